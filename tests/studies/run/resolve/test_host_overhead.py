"""What a step costs the process of a rank: at its end, and for a hook that converts."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.scenario.strategies.ddp import CastHook
from perfmodel.simulate.engine.engine import simulate
from perfmodel.studies.run.resolve.job_plan import HOST_MEMORY_BPS, host_memory, host_work
from perfmodel.topology.model import Sockets
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.plan.step_plan import Compute, StepPlan
from perfmodel.training.strategy import CoreWork, StepRequest
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload

NONE = np.zeros(2, dtype=np.int64)
MODEL = Workload(
    "two",
    (ParameterTensor("a", (1000,)), ParameterTensor("b", (3000,))),
    (Layer("a", (0,)), Layer("b", (1,))),
)
TIMES = LayerTimes(
    np.array([1.0, 1.0]), np.array([2.0, 2.0]), NONE, NONE, 0.0, 0.0, 0, math.inf, "made up"
)
OPTIONS = DdpOptions(broadcast_buffers=False, bucket_cap=1)


def planned(options: DdpOptions = OPTIONS, **given: object) -> StepPlan:
    return ddp_plan(StepRequest(MODEL, TIMES, 2, 1, **given), options)  # type: ignore[arg-type]


def test_the_next_step_waits_for_the_end_of_this_one() -> None:
    plan = planned(host_s=0.5)
    (end,) = [at for at, task in enumerate(plan.tasks) if task.name == "end of the step"]
    first = next(task for task in plan.tasks if task.stream == "compute")
    assert first.after_previous == (end,)
    assert plan.tasks[end].work == Compute(0.5)
    assert len(plan.tasks) == len(planned().tasks) + 1


def test_a_host_that_converts_does_not_hold_up_the_device() -> None:
    """16 kB at 8 kB/s: 1.5 s of one bucket beside backward, 0.5 s of the last one after it."""
    machine = Machine(
        build_topology("shaped-ethernet", hosts=2, fabric="one-switch"), load_library("plain")
    )
    plan = planned(OPTIONS.model_copy(update={"hook": CastHook(kind="fp16")}), cast_Bps=8000.0)
    run = simulate(plan, machine, fidelity="free")
    assert run.step_time_s == pytest.approx(6.0 + 0.5)
    run = simulate(plan, machine, steps=3, fidelity="free")
    assert run.step_times_s[-1] == pytest.approx(6.5)
    spans = {span.name: span for span in run.timeline.spans if span.step == 0}
    assert spans["compress bucket 0"].end_s - spans["compress bucket 0"].start_s == 1.5
    assert spans["backward a"].end_s == 6.0


def test_host_work_by_hand() -> None:
    """Four processes on two cores: (0.3 ms + 2 x 2.4 us + 12 MB / 6 GB/s) twice over."""
    gloo, process = load_library("gloo"), load_gpu("emulated-process")
    work = host_work(gloo, process, Sockets(0.0, 2), [4e6, 8e6], 4, views=False)
    assert work.step_s == pytest.approx(2 * (0.3e-3 + 4.8e-6 + 2e-3))
    assert work.cast_Bps == pytest.approx(2.25e9)
    views = host_work(gloo, process, Sockets(), [4e6, 8e6], 4, views=True)
    assert views.step_s == pytest.approx(0.3e-3 + 4.8e-6 + 1e-3)
    slow = host_work(gloo, process, Sockets(0.0, 2, 0.5), [4e6, 8e6], 4, views=False)
    assert slow.step_s == pytest.approx(2 * (0.6e-3 + 9.6e-6 + 2e-3))  # copies wait for memory
    assert work.core == CoreWork(gloo.core_layer, gloo.core_gradient, 6e9)
    recorded = host_work(
        gloo, process, Sockets(0.0, 2), [4e6, 8e6], 4, views=False, copies_measured=True
    )
    assert (recorded.step_s, recorded.copies_Bps) == (pytest.approx(2 * 304.8e-6), None)
    real = host_work(gloo, load_gpu("v100-sxm2-16gb"), Sockets(0.0, 2), [4e6], 4, views=False)
    assert real.step_s == 0.0
    assert real.core == CoreWork()
    assert real.cast_Bps is None
    assert host_work(load_library("nccl"), process, Sockets(), [4e6], 4, views=False).step_s == 0.0


def test_backward_has_the_work_of_its_layers_and_gradients_on_cores() -> None:
    """Each layer here has one gradient, of 4 and 12 kB; the first micro-batch sends none."""
    core = CoreWork(layer_s=0.5, gradient_s=0.25, copies_Bps=16e3)
    assert core.of(3, 2, 8e3) == 3 * 0.5 + 2 * 0.25 + 0.5
    work = {task.name: task.core_s for task in planned(core=core).tasks if task.core_s}
    assert work == {"backward b": 0.75 + 12 / 16, "backward a": 0.75 + 4 / 16}
    assert not any(task.core_s for task in planned().tasks)


def test_cores_that_backward_keeps_busy_are_not_there_for_messages() -> None:
    """Two ranks on one core: the first bucket waits for 2 x 0.3 s of work of either rank."""
    node = build_topology("shaped-ethernet", hosts=2, fabric="one-switch")
    machine = Machine(replace(node, sockets=Sockets(0.0, 1)), load_library("gloo"))
    ends_s = {
        gradient_s: next(
            span.end_s - span.start_s
            for span in simulate(planned(core=CoreWork(0.0, gradient_s)), machine).timeline.spans
            if span.name == "all-reduce bucket 0"
        )
        for gradient_s in (0.0, 0.3)
    }
    assert ends_s[0.3] - ends_s[0.0] == pytest.approx(0.6, rel=0.01)


@pytest.mark.parametrize(
    ("node", "link_Bps"),
    [
        ("dgx-h100", 63e9 * 0.762),  # a PCIe switch for each GPU
        ("dgx-a100", 31.5e9 * 0.762 / 2),  # one for two, which share its way to the CPU
    ],
)
def test_gpus_share_their_way_to_the_host(node: str, link_Bps: float) -> None:
    memory = host_memory(Machine(build_topology(node), load_library("nccl")))
    assert memory.link_Bps == pytest.approx(link_Bps, rel=0.01)
    assert memory.memory_Bps == HOST_MEMORY_BPS / 8
