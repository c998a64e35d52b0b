"""DistributedDataParallel around a module on several GPUs of one process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.errors import InputError
from perfmodel.simulate.engine.engine import simulate
from perfmodel.testing.check_plan import check_plan
from perfmodel.testing.closed_forms import PassTimes
from perfmodel.training.ddp.buckets import ddp_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.device_replica import layer_devices
from perfmodel.training.parallel_layout import ParallelLayout, mix_step
from perfmodel.training.pipeline.stage_workload import part_layers
from perfmodel.training.plan.step_plan import Collective, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload import load_workload
from perfmodel.workload.memory.recompute import NO_RECOMPUTE
from tests.training.pipeline.pipeline_toys import machine_of, toy_model

REPLICAS, GPUS, BLOCKS, STEPS = 4, 2, 6, 3
LAYOUT = ParallelLayout(stages=GPUS, schedule="sequential", order=("pp", "tp", "cp", "ep", "dp"))
CAP_BYTES = 2048
"""Two blocks of the toy fill a bucket."""
TIMES = dict.fromkeys(range(BLOCKS), PassTimes(1.0, 1.0, 1.0))


def request(launch_s: float = 0.0) -> StepRequest:
    return StepRequest(*toy_model(BLOCKS, TIMES, launch_s=launch_s), REPLICAS, 1)


def options(asked: StepRequest, **fields: object) -> DdpOptions:
    parts = part_layers(asked.workload, LAYOUT.pipeline_schedule(1), LAYOUT.partition)
    return DdpOptions(
        layer_devices=layer_devices(parts),
        bucket_cap=CAP_BYTES,
        **fields,  # type: ignore[arg-type]
    )


def plan_of(asked: StepRequest, chosen: DdpOptions) -> StepPlan:
    plan = mix_step(
        LAYOUT,
        asked,
        lambda own, count: ddp_plan(own, chosen.model_copy(update={"accumulate": count})),
        chosen.accumulate,
        "fp32",
        NO_RECOMPUTE,
        None,
        chosen,
    )
    check_plan(plan)
    return plan


def step_s(plan: StepPlan) -> float:
    """Time of a settled step where messages take no time."""
    ends = simulate(plan, machine_of(REPLICAS * GPUS), steps=STEPS, fidelity="free").step_ends_s
    return ends[-1] - ends[-2]


def all_reduces(plan: StepPlan, device: int) -> list[str]:
    return [
        task.name
        for task in plan.tasks
        if isinstance(task.work, Collective)
        and task.work.op == "all_reduce"
        and task.rank_class == f"stage {device}"
    ]


def test_buckets_are_pytorchs_of_tensors_on_two_gpus() -> None:
    """Incomplete buckets go last, that of the GPU whose gradients came first behind all."""
    torch = pytest.importorskip("torch", reason="compares with the real function of PyTorch")
    dist = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch._subclasses")
    asked = request()
    chosen = options(asked)
    with fake.FakeTensorMode():
        listed = [
            torch.empty(each.shape, device=f"cuda:{device}")
            for each, device in zip(asked.workload.tensors, chosen.layer_devices, strict=True)
        ]
    order = list(asked.workload.ready_order)
    wanted, _ = dist._compute_bucket_assignment_by_size(
        [listed[index] for index in order], [CAP_BYTES], [], order
    )
    buckets = ddp_buckets(asked.workload, chosen)
    assert [list(bucket.tensors) for bucket in buckets] == wanted == [[5, 4], [2, 1], [0], [3]]
    assert [bucket.device for bucket in buckets] == [1, 0, 0, 1]


@pytest.mark.parametrize("accumulate", [1, 3])
def test_gpus_take_turns(accumulate: int) -> None:
    """A step has all layers of the model in a row, as on one GPU; each GPU has half of them."""
    asked = request()
    plan = plan_of(asked, options(asked, accumulate=accumulate, gradient_as_bucket_view=True))
    assert step_s(plan) == pytest.approx(BLOCKS * 3.0 * accumulate, rel=1e-9)
    assert [each.ranks for each in plan.classes] == [(0, 2, 4, 6), (1, 3, 5, 7)]
    assert plan.samples == REPLICAS * accumulate
    sends = [t for t in plan.tasks if isinstance(t.work, Collective) and t.work.op == "send"]
    assert len(sends) == 2 * 2 * accumulate  # both ends of activations and of gradients
    assert all_reduces(plan, 0) == ["all-reduce bucket 1", "all-reduce bucket 2"]
    assert all_reduces(plan, 1) == ["all-reduce bucket 0", "all-reduce bucket 3"]


def test_one_host_thread_issues_the_work_of_all_gpus() -> None:
    """Where issuing takes longer than running, a step takes what one thread needs for all GPUs."""
    asked = request(launch_s=10.0)
    slow = step_s(plan_of(asked, options(asked)))
    plain = ddp_plan(asked, DdpOptions(bucket_cap=CAP_BYTES))
    assert slow == pytest.approx(step_s(plain), rel=0.05)
    assert slow > 2 * BLOCKS * 10.0


def test_an_incomplete_bucket_waits_until_the_other_gpus_buckets_are_launched() -> None:
    """One reducer launches buckets in order; only its host has to be so far, not the other GPU."""
    for launch_s, host_waits in ((1e-3, False), (10.0, True)):
        asked = request(launch_s)
        run = simulate(
            plan_of(asked, options(asked)), machine_of(REPLICAS * GPUS), steps=1, fidelity="free"
        )
        own = {
            task.name: (start, end)
            for task, _, start, end, _, _ in run.executions
            if task.rank_class == "stage 1"
        }
        issued_s = max(end for name, (_, end) in own.items() if name.startswith("issue backward"))
        copied_s = own["copy in h.3"][1]
        begun_s = own["all-reduce bucket 3"][0]
        assert begun_s == max(copied_s, issued_s)
        assert (copied_s < issued_s) == host_waits
        passes = [each for each in run.executions if each[0].name.startswith("backward")]
        other_s = [each[3] for each in passes if each[0].rank_class == "stage 0"]
        assert begun_s < max(other_s)


def test_each_gpu_updates_what_it_holds() -> None:
    asked = request()
    asked = replace(asked, times=replace(asked.times, optimizer_s=6.0, optimizer_kernels=6))
    uneven = replace(LAYOUT, partition=replace(LAYOUT.partition, blocks_per_part=(2, 4)))
    parts = part_layers(asked.workload, uneven.pipeline_schedule(1), uneven.partition)
    chosen = DdpOptions(layer_devices=layer_devices(parts))
    plan = mix_step(
        uneven,
        asked,
        lambda own, _: ddp_plan(own, chosen),
        1,
        "fp32",
        NO_RECOMPUTE,
        None,
        chosen,
    )
    updates = [
        t.work.duration_s
        for t in plan.tasks  # type: ignore[union-attr]
        if t.kind == "optimizer" and t.stream == "compute"
    ]
    np.testing.assert_allclose(updates, [2.0, 4.0])


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"join": True}, "strategy.join"), ({"hook": "powersgd"}, "strategy.hook")],
)
def test_refuses_what_nobody_has_planned(fields: dict[str, object], name: str) -> None:
    from perfmodel.scenario.strategies.ddp import PowerSgdHook

    if "hook" in fields:
        fields = {"hook": PowerSgdHook(kind="powersgd")}
    asked = request()
    with pytest.raises(InputError) as caught:
        plan_of(asked, options(asked, **fields))
    assert [fault.field for fault in caught.value.faults] == [name]


def test_refuses_a_parameter_on_two_gpus() -> None:
    model = load_workload("gpt2", dtype="fp32", sequence_length=64)
    toy = request()
    ones = np.ones(len(model.layers))
    times = replace(
        toy.times,
        forward_s=ones,
        backward_s=ones,
        weight_gradient_s=ones,
        forward_kernels=ones.astype(int),
        backward_kernels=ones.astype(int),
    )
    with pytest.raises(InputError, match="tied"):
        plan_of(replace(toy, workload=model, times=times), DdpOptions())
