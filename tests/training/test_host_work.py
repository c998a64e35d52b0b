"""What a step costs the process of a rank: at its end, and for a hook that converts."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfmodel.library.model import load_library
from perfmodel.simulate.engine import simulate
from perfmodel.study.host import host_work
from perfmodel.topology.gpus import load_gpu
from perfmodel.topology.model import Sockets
from perfmodel.training.ddp import ddp_plan
from perfmodel.training.options import DdpOptions
from perfmodel.training.plan import Compute, StepPlan
from perfmodel.workload.model import Layer, LayerTimes, Tensor, Workload

NONE = np.zeros(2, dtype=np.int64)
MODEL = Workload(
    "two", (Tensor("a", (1000,)), Tensor("b", (3000,))), (Layer("a", (0,)), Layer("b", (1,)))
)
TIMES = LayerTimes(
    np.array([1.0, 1.0]), np.array([2.0, 2.0]), NONE, NONE, 0.0, 0.0, 0, math.inf, 0.0, "made up"
)
OPTIONS = DdpOptions(broadcast_buffers=False, bucket_cap_bytes=1)


def planned(**given: object) -> StepPlan:
    return ddp_plan(MODEL, TIMES, ranks=2, batch_per_gpu=1, options=OPTIONS, **given)  # type: ignore[arg-type]


def test_the_next_step_waits_for_the_end_of_this_one() -> None:
    plan = planned(host_s=0.5)
    (end,) = [at for at, task in enumerate(plan.tasks) if task.name == "end of the step"]
    first = next(task for task in plan.tasks if task.stream == "compute")
    assert first.after_previous == (end,)
    assert plan.tasks[end].work == Compute(0.5)
    assert len(plan.tasks) == len(planned().tasks) + 1


def test_a_host_that_converts_does_not_hold_up_the_device() -> None:
    """16 kB at 8 kB/s: 1.5 s of one bucket beside backward, 0.5 s of the last one after it."""
    from perfmodel.library.carry import Machine
    from perfmodel.topology.build import build

    machine = Machine(build("shaped-ethernet", hosts=2, fabric="one-switch"), load_library("plain"))
    run = simulate(planned(hook="fp16", cast_Bps=8000.0), machine, fidelity="free")
    assert run.step_time_s == pytest.approx(6.0 + 0.5)
    run = simulate(planned(hook="fp16", cast_Bps=8000.0), machine, steps=3, fidelity="free")
    assert run.step_times_s[-1] == pytest.approx(6.5)
    spans = {span.name: span for span in run.timeline.spans if span.step == 0}
    assert spans["compress bucket 0"].end_s - spans["compress bucket 0"].start_s == 1.5
    assert spans["backward a"].end_s == 6.0


def test_host_work_by_hand() -> None:
    """Four processes on two cores: (0.35 ms + 2 x 4 us + 12 MB / 6 GB/s) twice over."""
    gloo, process = load_library("gloo"), load_gpu("emulated-process")
    found = host_work(gloo, process, Sockets(0.0, 2), [4e6, 8e6], 4, views=False)
    assert found.step_s == pytest.approx(2 * (0.35e-3 + 8e-6 + 2e-3))
    assert found.cast_Bps == pytest.approx(2.25e9)
    views = host_work(gloo, process, Sockets(), [4e6, 8e6], 4, views=True)
    assert views.step_s == pytest.approx(0.35e-3 + 8e-6 + 1e-3)
    real = host_work(gloo, load_gpu("v100-sxm2-16gb"), Sockets(0.0, 2), [4e6], 4, views=False)
    assert real.step_s == 0.0
    assert real.cast_Bps is None
    assert host_work(load_library("nccl"), process, Sockets(), [4e6], 4, views=False).step_s == 0.0
