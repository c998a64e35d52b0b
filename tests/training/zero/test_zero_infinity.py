"""ZeRO-Infinity: bytes to the host and its drives, time in closed form, memory, refusals."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from perfmodel.errors import InputError
from perfmodel.scenario.strategies.deepspeed import OffloadOptimizer, OffloadParam, ZeroStrategy
from perfmodel.testing.check_plan import check_plan
from perfmodel.topology.model import Drives
from perfmodel.training.memory_use import Setup
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.training.zero.strategy import ZERO, zero_plan
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload

LINK_BPS, MEMORY_BPS, READ_BPS, WRITE_BPS = 1e9, 2e9, 0.5e9, 0.25e9
RANKS, LAYERS, ELEMENTS = 2, 6, 4_000_000
PART = ELEMENTS // RANKS
ALL_PARTS = LAYERS * PART
CPU_BYTES = 42
"""Read and written by an element of the step on CPUs: scaled (8), updated (28), converted (6)."""

ALONE = {
    "stage3_prefetch_bucket_size": 0,
    "stage3_param_persistence_threshold": 0,
    "stage3_max_reuse_distance": 0,
    "sub_group_size": PART,
}
"""Each layer is gathered when it runs, freed at once, and a sub-group of its own."""

TO_DRIVES = OffloadParam(device="nvme", buffer_count=LAYERS, max_in_cpu=0)


@pytest.fixture
def request_of(times_of: Any) -> Any:
    """Layers in bf16 of four million elements each, on two GPUs."""

    def make(**changes: Any) -> StepRequest:
        tensors = tuple(ParameterTensor(f"w{i}", (ELEMENTS,), "bf16") for i in range(LAYERS))
        layers = tuple(Layer(f"layer{i}", (i,)) for i in range(LAYERS))
        workload = Workload("six", tensors, layers)
        times: LayerTimes = times_of(workload, copy_Bps=1e30)
        asked = {
            "host_link_Bps": LINK_BPS,
            "host_memory_Bps": MEMORY_BPS,
            "optimizer": "adamw",
            "drives": Drives(READ_BPS, WRITE_BPS),
        }
        return StepRequest(workload, times, RANKS, 1, **(asked | changes))

    return make


def seconds_of(plan: StepPlan, *words: str) -> float:
    """Time of the tasks whose names begin with some words."""
    return sum(
        task.work.duration_s
        for task in plan.tasks
        if isinstance(task.work, Compute) and task.name.startswith(words)
    )


def length_s(plan: StepPlan, run_plan: Any) -> float:
    return float(max(end for _, end in run_plan(plan)))


# ---------------------------------------------------------------- parameters


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_parameters_go_up_before_each_gather(request_of: Any, micro_batches: int) -> None:
    options = ZeroStrategy(
        kind="zero", stage=3, offload_param=OffloadParam(), accumulate=micro_batches, **ALONE
    )
    plan = zero_plan(request_of(), options)
    check_plan(plan)
    gathered = micro_batches * 2 * ALL_PARTS  # in forward and in backward
    assert seconds_of(plan, "copy in gather") * LINK_BPS == pytest.approx(2 * gathered)
    assert seconds_of(plan, "copy parameters down") * LINK_BPS == pytest.approx(2 * ALL_PARTS)


def test_what_is_updated_on_the_host_stays_there(request_of: Any) -> None:
    """With both on the host no parameters go up after the step (``step`` of stage3.py)."""
    options = ZeroStrategy(
        kind="zero",
        stage=3,
        offload_param=OffloadParam(),
        offload_optimizer=OffloadOptimizer(),
        **ALONE,
    )
    plan = zero_plan(request_of(), options)
    check_plan(plan)
    assert not seconds_of(plan, "copy parameters")
    assert seconds_of(plan, "optimizer on CPUs") * MEMORY_BPS == pytest.approx(
        CPU_BYTES * ALL_PARTS
    )


def test_the_host_waits_for_each_copy(request_of: Any, run_plan: Any) -> None:
    """So a layer's kernels begin when the copy of what is gathered ahead is done, not before."""
    options = ZeroStrategy(
        kind="zero",
        stage=3,
        offload_param=OffloadParam(),
        **(ALONE | {"stage3_prefetch_bucket_size": ELEMENTS}),
    )
    plan = zero_plan(request_of(), options)
    spans = dict(zip((task.name for task in plan.tasks), run_plan(plan), strict=True))
    ahead = spans["copy in gather 1"]
    assert ahead[1] - ahead[0] == pytest.approx(2 * PART / LINK_BPS)
    first = next(span for name, span in spans.items() if name.startswith("forward"))
    assert first[0] == pytest.approx(ahead[1])


def test_an_endless_link_costs_nothing(request_of: Any, run_plan: Any) -> None:
    request = request_of(host_link_Bps=math.inf)
    offloads = (None, OffloadParam())
    plans = [
        zero_plan(request, ZeroStrategy(kind="zero", stage=3, offload_param=each))
        for each in offloads
    ]
    assert length_s(plans[1], run_plan) == pytest.approx(length_s(plans[0], run_plan))
    calls = [[t.work for t in plan.tasks if isinstance(t.work, Collective)] for plan in plans]
    assert [replace(work, key="") for work in calls[0]] == [
        replace(work, key="") for work in calls[1]
    ]


@pytest.mark.parametrize("prefetched", [0, ELEMENTS, 3 * ELEMENTS])
def test_each_part_is_read_once_for_each_gather(request_of: Any, prefetched: int) -> None:
    options = ZeroStrategy(
        kind="zero",
        stage=3,
        offload_param=TO_DRIVES,
        **(ALONE | {"stage3_prefetch_bucket_size": prefetched}),
    )
    plan = zero_plan(request_of(), options)
    check_plan(plan)
    gathers = sum(task.name.startswith("copy in gather") for task in plan.tasks)
    gathered = sum(
        task.work.nbytes
        for task in plan.tasks
        if isinstance(task.work, Collective) and task.work.op == "all_gather"
    )
    assert gathers > LAYERS / 2
    assert seconds_of(plan, "read parameters") * READ_BPS == pytest.approx(gathered / RANKS)
    assert seconds_of(plan, "write parameters") * WRITE_BPS == pytest.approx(2 * ALL_PARTS)


def test_reads_go_on_beside_the_layers(request_of: Any, run_plan: Any) -> None:
    """Reads follow each other while the host waits for nothing else, and make up the step."""
    read_s = 2 * PART / READ_BPS
    ahead, alone = ({"stage3_prefetch_bucket_size": each} for each in (ELEMENTS, 0))
    steps = {}
    for name, settings in (("ahead", ahead), ("alone", alone)):
        for link in (LINK_BPS, math.inf):
            options = ZeroStrategy(
                kind="zero", stage=3, offload_param=TO_DRIVES, **(ALONE | settings)
            )
            steps[name, link] = length_s(
                zero_plan(request_of(host_link_Bps=link), options), run_plan
            )
    reads = 2 * LAYERS * read_s
    for link in (LINK_BPS, math.inf):
        assert steps["ahead", link] < steps["alone", link]
        assert steps["ahead", link] > (2 * LAYERS - 2) * read_s
    writes = 2 * ALL_PARTS / WRITE_BPS
    last_layer_s, update_s = 2e-3, 1e-3 / RANKS
    assert steps["alone", math.inf] == pytest.approx(reads + last_layer_s + update_s + writes)


# ---------------------------------------------------------------- states


def pipelined_s(reads: bool, writes: bool, read_s: float, update_s: float, write_s: float) -> float:
    """Time of the sub-groups one after the other, by the order of calls in ``step``."""
    host = drive_reads = drive_writes = read_ahead = written = 0.0
    for group in range(LAYERS):
        if group == 0 or not reads:
            drive_reads = max(host, drive_reads) + read_s
            read_ahead = drive_reads
        host = max(host, read_ahead)
        if reads and group + 1 < LAYERS:
            drive_reads = max(host, drive_reads) + read_s
            read_ahead = drive_reads
        host += update_s
        host = max(host, written)
        drive_writes = max(host, drive_writes) + write_s
        if writes and group + 1 < LAYERS:
            written = drive_writes
        else:
            host = drive_writes
    return host


@pytest.mark.parametrize("reads", [False, True])
@pytest.mark.parametrize("writes", [False, True])
@pytest.mark.parametrize("memory_Bps", [0.1e9, 2e9, 20e9])
def test_states_are_read_and_written_by_sub_group(
    request_of: Any, run_plan: Any, reads: bool, writes: bool, memory_Bps: float
) -> None:
    offload = OffloadOptimizer(
        device="nvme", buffer_count=12, pipeline_read=reads, pipeline_write=writes
    )
    request = request_of(host_memory_Bps=memory_Bps)
    plan = zero_plan(
        request, ZeroStrategy(kind="zero", stage=3, offload_optimizer=offload, **ALONE)
    )
    check_plan(plan)
    spans = run_plan(plan)
    began = next(s for t, s in zip(plan.tasks, spans, strict=True) if "read states" in t.name)[0]
    read_s, write_s = 16 * PART / READ_BPS, 12 * PART / WRITE_BPS
    update_s = CPU_BYTES * PART / memory_Bps + 2 * PART / LINK_BPS
    expected = pipelined_s(reads, writes, read_s, update_s, write_s)
    assert max(end for _, end in spans) - began == pytest.approx(expected, rel=1e-9)
    least = max(LAYERS * each for each in (read_s, update_s, write_s))
    assert least < expected <= LAYERS * (read_s + update_s + write_s) * (1 + 1e-12)
    if not reads and not writes:
        assert expected == pytest.approx(LAYERS * (read_s + update_s + write_s))


def test_gradients_are_written_beside_backward(request_of: Any, run_plan: Any) -> None:
    """In fp32, bucket by bucket; states are read when all are written."""
    offload = OffloadOptimizer(device="nvme")
    options = ZeroStrategy(
        kind="zero",
        stage=3,
        offload_optimizer=offload,
        reduce_bucket_size=ELEMENTS,
        accumulate=2,
        **ALONE,
    )
    plan = zero_plan(request_of(), options)
    assert seconds_of(plan, "write gradients") * WRITE_BPS == pytest.approx(4 * ALL_PARTS)
    spans = list(zip((task.name for task in plan.tasks), run_plan(plan), strict=True))
    writes = [span for name, span in spans if name.startswith("write gradients")]
    states = [span for name, span in spans if name.startswith("read states")]
    backward = [span for name, span in spans if name.startswith("backward")]
    assert len(writes) == LAYERS
    assert writes[0][0] < backward[-1][1]
    assert states[0][0] >= writes[-1][1]


def test_endless_drives_are_the_memory_of_the_host(request_of: Any, run_plan: Any) -> None:
    request = request_of(drives=Drives(math.inf, math.inf))
    steps = [
        length_s(
            zero_plan(
                request,
                ZeroStrategy(
                    kind="zero", stage=3, offload_optimizer=OffloadOptimizer(device=device)
                ),
            ),
            run_plan,
        )
        for device in ("cpu", "nvme")
    ]
    assert steps[0] == pytest.approx(steps[1])


# ---------------------------------------------------------------- memory


def test_twenty_bytes_of_an_element_leave_the_gpu(request_of: Any) -> None:
    """Equation 2 of arXiv 2104.07857: 20 bytes of each parameter are model states."""
    options = ZeroStrategy(
        kind="zero",
        stage=3,
        offload_param=OffloadParam(),
        offload_optimizer=OffloadOptimizer(),
        **ALONE,
    )
    setup = Setup(request_of().workload, "bf16", "adamw", RANKS, 1, activations_bytes=0.0)
    use = ZERO.memory(replace(setup, options=options))
    assert use.host_bytes == 20 * ALL_PARTS
    assert use.states_bytes == use.drive_bytes == 0
    kept = ZERO.memory(replace(setup, options=ZeroStrategy(kind="zero", stage=3, **ALONE)))
    assert kept.states_bytes == 16 * ALL_PARTS  # without fp32 gradients
    assert kept.host_bytes == 0


def test_drives_hold_what_memory_does_not(request_of: Any) -> None:
    offload = {"offload_param": TO_DRIVES, "offload_optimizer": OffloadOptimizer(device="nvme")}
    setup = Setup(request_of().workload, "bf16", "adamw", RANKS, 1, activations_bytes=0.0)
    use = ZERO.memory(
        replace(setup, options=ZeroStrategy(kind="zero", stage=3, **offload, **ALONE))
    )
    assert use.drive_bytes == 18 * ALL_PARTS
    # four buffers of a sub-group in fp32, LAYERS of 100 million elements, one of a whole layer,
    # and gradients in 16 bits
    buffers = 16 * PART + 2 * LAYERS * 100_000_000 + 2 * ELEMENTS
    assert use.host_bytes == buffers + 2 * ALL_PARTS


@pytest.mark.parametrize("kept", [0, PART, 3 * PART + 1, LAYERS * PART])
def test_sub_groups_stay_in_memory_while_they_fit(request_of: Any, kept: int) -> None:
    offload = TO_DRIVES.model_copy(update={"max_in_cpu": kept})
    setup = Setup(request_of().workload, "bf16", "adamw", RANKS, 1, activations_bytes=0.0)
    use = ZERO.memory(
        replace(setup, options=ZeroStrategy(kind="zero", stage=3, offload_param=offload, **ALONE))
    )
    assert use.drive_bytes == 2 * (ALL_PARTS - kept // PART * PART)


# ---------------------------------------------------------------- refusals


def test_too_few_buffers_are_refused_with_a_number_that_suffices(request_of: Any) -> None:
    """DeepSpeed stops: "Not enough buffers 0 for swapping 1" (its issue 3062)."""
    settings = ALONE | {
        "stage3_max_reuse_distance": 10 * ELEMENTS,
        "stage3_prefetch_bucket_size": ELEMENTS,
    }

    def plan_with(count: int) -> None:
        offload = TO_DRIVES.model_copy(update={"buffer_count": count})
        zero_plan(
            request_of(), ZeroStrategy(kind="zero", stage=3, offload_param=offload, **settings)
        )

    with pytest.raises(InputError) as failed:
        plan_with(1)
    (fault,) = failed.value.faults
    assert fault.field == "offload_param.buffer_count"
    found = re.match(r"(\d+) or more", fault.allowed)
    assert found is not None
    plan_with(int(found[1]))
    with pytest.raises(InputError):
        plan_with(int(found[1]) - 1)


def test_what_a_machine_or_a_buffer_lacks_is_named(request_of: Any) -> None:
    offloads = {"offload_param": TO_DRIVES, "offload_optimizer": OffloadOptimizer(device="nvme")}
    with pytest.raises(InputError) as failed:
        zero_plan(request_of(drives=None), ZeroStrategy(kind="zero", stage=3, **offloads))
    assert [fault.field for fault in failed.value.faults] == list(reversed(offloads))
    small = OffloadParam(device="nvme", max_in_cpu=0, buffer_size=PART - 1)
    with pytest.raises(InputError, match=r"buffer_size.*2,000,000 or more"):
        zero_plan(request_of(), ZeroStrategy(kind="zero", stage=3, offload_param=small))
    pipeline = OffloadOptimizer(device="nvme", pipeline_read=True)
    with pytest.raises(InputError, match=r"offload_optimizer\.buffer_count: found 4; allowed: 8"):
        zero_plan(request_of(), ZeroStrategy(kind="zero", stage=3, offload_optimizer=pipeline))


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"stage": 2, "offload_optimizer": {"device": "nvme"}}, "stages 1 and 2"),
        ({"stage": 2, "offload_param": {}}, "stage 3 alone"),
        ({"stage": 3, "offload_param": {"buffer_count": 3}}, "of nvme alone"),
        ({"stage": 3, "offload_optimizer": {"pipeline_read": True}}, "of nvme alone"),
        ({"stage": 3, "offload_param": {}, "zero_hpz_partition_size": 2}, "second copies"),
    ],
)
def test_sections_that_do_not_go_together(section: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ZeroStrategy.model_validate({"kind": "zero", **section})
