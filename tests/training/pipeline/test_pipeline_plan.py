"""Plans of pipelines: theory's times in the engine, published bytes, reductions in time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.scenario.strategies.sharded import FsdpStrategy, MegatronStrategy
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.engine.jitter import Jitter, Variation
from perfmodel.testing.check_plan import check_plan
from perfmodel.testing.closed_forms import PassTimes, pass_spans
from perfmodel.training.fsdp.step_plan import fsdp_plan
from perfmodel.training.megatron import megatron_plan
from perfmodel.training.pipeline.pass_actions import PipelineSchedule, action_groups
from perfmodel.training.pipeline.pipeline_plan import ALL_STAGES, TIED, pipeline_plan
from perfmodel.training.pipeline.schedules import make_schedule
from perfmodel.training.pipeline.stage_passes import PartPlan, PipelineOptions
from perfmodel.training.pipeline.stage_workload import model_parts
from perfmodel.training.plan.layer_calls import add_layer_calls
from perfmodel.training.plan.split_class import one_class_per_rank
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.layer_calls import LayerCall
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.zoo import build_model
from tests.conftest import PLAIN_GPU
from tests.training.pipeline.pipeline_toys import (
    CHAINS,
    machine_of,
    plain_ddp,
    toy_model,
    toy_pipeline,
)
from tests.training.pipeline.published_bubbles import published_bubble

EVEN = PassTimes(3.0, 3.0, 2.0)


def free_step_s(plan: StepPlan, ranks: int) -> float:
    run = simulate(plan, machine_of(ranks), fidelity="free")
    return run.step_ends_s[0]


@pytest.mark.slow
@pytest.mark.parametrize("overlap_p2p", [True, False])
@pytest.mark.parametrize("kind", [kind for kind in CHAINS if kind != "sequential"])
def test_simulated_bubble_is_the_published_one(kind: str, overlap_p2p: bool) -> None:
    """To 1e-9, with free communication; ZB-V's where all passes take as long."""
    if not overlap_p2p and kind not in ("gpipe", "1f1b", "interleaved"):
        pytest.skip("no library waits for these messages")
    stages = 4
    times = PassTimes(2.0, 2.0, 2.0) if kind == "zb_v" else EVEN
    schedule = make_schedule(kind, stages, 3 * stages)
    plan = toy_pipeline(schedule, times, overlap_p2p=overlap_p2p)
    check_plan(plan)
    run = simulate(plan, machine_of(stages), fidelity="free")
    busy_s = 3 * stages * (times.forward + times.backward)
    busy_s *= schedule.parts / stages
    if kind in ("zb_v", "zb_h2"):
        passes = [each for each in run.executions if each[0].kind in ("forward", "backward")]
        spans = [
            max(e[3] for e in passes if e[0].rank_class == f"stage {stage}")
            - min(e[2] for e in passes if e[0].rank_class == f"stage {stage}")
            for stage in range(stages)
        ]
        bubble = max(spans) - busy_s
    else:
        bubble = run.step_ends_s[0] - busy_s
    assert bubble == pytest.approx(float(published_bubble(kind, stages, times)), abs=1e-9)


@pytest.mark.parametrize("kind", ["1f1b", "interleaved", "zb_h1", "sequential"])
def test_jitter_of_stages_gives_the_times_of_the_recurrence(kind: str) -> None:
    """A factor on the passes of each stage, in each step anew: to 1e-9 where messages are free."""
    stages, steps = 4, 3
    schedule = make_schedule(kind, stages, 2 * stages)
    plan = toy_pipeline(schedule, EVEN)
    jitter = Jitter("gamma", 0.3, "step", seed=7)
    run = simulate(
        plan, machine_of(stages), steps=steps, fidelity="free", stretch=Variation(plan, [jitter])
    )
    factors = jitter.factors(stages, 0, 0)
    scaled = {
        (stage, chunk): PassTimes(*(float(factors[stage]) * each for each in (3.0, 3.0, 2.0)))
        for stage in range(stages)
        for chunk in range(schedule.chunks)
    }
    wanted = pass_spans(schedule, scaled)
    assert run.step_ends_s[0] == pytest.approx(max(float(s[-1][1]) for s in wanted), abs=1e-9)
    for stage in range(stages):
        passes = [
            (each[2], each[3])
            for each in run.executions
            if each[1] == 0
            and each[0].kind in ("forward", "backward")
            and each[0].rank_class == f"stage {stage}"
        ]
        begins = sorted(begin for begin, _ in passes)
        assert begins == pytest.approx([float(begin) for begin, _ in wanted[stage]], abs=1e-9)
    second_s = run.step_ends_s[1] - run.step_ends_s[0]
    assert abs(second_s / run.step_ends_s[0] - 1) > 1e-3  # another draw


def test_jitter_of_each_rank_is_the_same_at_both_fidelities() -> None:
    """Each replica of each stage has a draw of its own; only its own messages wait for it."""
    schedule = make_schedule("1f1b", 3, 4)
    plan = one_class_per_rank(toy_pipeline(schedule, PassTimes(3e-6, 3e-6, 2e-6), ranks=2))
    check_plan(plan)
    jitter = Jitter("lognormal", 0.2, "layer", seed=3)
    flow, message = (
        simulate(
            plan, machine_of(6, 1e8), steps=4, fidelity=fidelity, stretch=Variation(plan, [jitter])
        )
        for fidelity in ("flow", "message")
    )
    assert flow.step_ends_s == pytest.approx(message.step_ends_s, rel=1e-9)
    plain = simulate(plan, machine_of(6, 1e8), steps=4)
    assert flow.step_ends_s[-1] > plain.step_ends_s[-1]


seconds = st.integers(1, 9).map(float)


@pytest.mark.slow
@given(st.sampled_from(sorted(CHAINS)), st.integers(2, 4), st.data())
@settings(max_examples=40)
def test_engine_and_recurrence_agree(kind: str, stages: int, data: Any) -> None:
    """With other times on each part, and a host that issues what it runs."""
    stages += stages % 2 if kind == "dualpipe" else 0
    schedule = make_schedule(kind, stages, 2 * stages)
    times = {
        part: PassTimes(*(data.draw(seconds) for _ in range(3))) for part in range(schedule.parts)
    }
    by_chunk = {
        (stage, chunk): times[schedule.part(stage, chunk)]
        for stage in range(stages)
        for chunk in range(schedule.chunks)
    }
    expected = max(spans[-1][1] for spans in pass_spans(schedule, by_chunk))
    plan = toy_pipeline(schedule, times)
    assert free_step_s(plan, stages) == pytest.approx(float(expected), abs=1e-9)
    hosted = toy_pipeline(schedule, times, launch_s=1e-9)
    check_plan(hosted)
    assert free_step_s(hosted, stages) == pytest.approx(float(expected), abs=1e-6)


@pytest.mark.parametrize(("kind", "chunks"), [(k, row.chunks or 3) for k, row in CHAINS.items()])
def test_bytes_are_those_of_every_boundary_both_ways(kind: str, chunks: int) -> None:
    """Narayanan et al. 2021, 2.2: b s h each way and boundary, v times as many in chunks."""
    stages, micro_batches = 4, 12
    schedule = make_schedule(kind, stages, micro_batches, chunks)
    plan = toy_pipeline(schedule, EVEN, ranks=2)
    sent = Counter[int]()
    for task in plan.tasks:
        if isinstance(task.work, Collective) and task.work.op == "send":
            group = next(c for c in plan.communicators if c.name == task.work.communicator).groups[
                0
            ]
            source = group[0] // 2
            if task.rank_class == f"stage {source}":
                sent[source] += task.work.nbytes
    inner = {"v": 2 * chunks, "bidirectional": 2}.get(schedule.layout, 2 * chunks)
    ends = {"v": chunks, "bidirectional": 1}.get(schedule.layout, 2 * chunks - 1)
    each = 64 * micro_batches
    assert sent == {0: ends * each, 1: inner * each, 2: inner * each, 3: ends * each}


def test_one_stage_is_the_plain_plan() -> None:
    schedule = make_schedule("1f1b", 1, 3)
    workload, times = toy_model(4, dict.fromkeys(range(4), EVEN))
    (part,) = model_parts(workload, times, schedule)
    plain = toy_pipeline(schedule, EVEN, ranks=2)
    plan = pipeline_plan(schedule, [PartPlan(plain, part)], PipelineOptions(1))
    assert plan is plain


@given(st.sampled_from(sorted(CHAINS)), st.floats(1e2, 1e6))
@settings(max_examples=15)
def test_time_is_not_below_compute_nor_the_way_of_a_micro_batch(
    kind: str, bandwidth_Bps: float
) -> None:
    schedule = make_schedule(kind, 2, 4)
    plan = toy_pipeline(schedule, EVEN, ranks=2)
    end = simulate(plan, machine_of(4, bandwidth_Bps)).step_ends_s[0]
    compute = Counter[str]()
    for task in plan.tasks:
        if isinstance(task.work, Compute):
            compute[task.rank_class] += task.work.duration_s  # type: ignore[assignment]
    boundaries = sum(
        schedule.place(part)[0] != schedule.place(part + 1)[0] for part in range(schedule.parts - 1)
    )
    way_s = schedule.parts * (EVEN.forward + EVEN.input_gradient)
    way_s += 2 * boundaries * 64 / bandwidth_Bps
    assert end >= max([*compute.values(), way_s]) - 1e-9


def test_waiting_for_messages_adds_them_to_a_lone_micro_batch() -> None:
    """F, message, F, B, message, B."""
    schedule = make_schedule("1f1b", 2, 1)
    plan = toy_pipeline(schedule, EVEN, overlap_p2p=False)
    end = simulate(plan, machine_of(2, 64.0)).step_ends_s[0]
    assert end == pytest.approx(2 * 8.0 + 2 * 1.0, rel=1e-6)


@pytest.mark.parametrize(("overlap_p2p", "issues"), [(True, 1), (False, 3)])
def test_a_host_that_waits_for_messages_issues_after_them(overlap_p2p: bool, issues: int) -> None:
    """Each pass behind a message, and the first one, shows a launch of 0.25 s."""
    schedule = make_schedule("1f1b", 2, 1)
    plan = toy_pipeline(schedule, EVEN, overlap_p2p=overlap_p2p, launch_s=0.25)
    end = simulate(plan, machine_of(2, 64.0)).step_ends_s[0]
    assert end == pytest.approx(2 * 8.0 + 2 * 1.0 + issues * 0.25, rel=1e-6)


@pytest.mark.parametrize("segments", [1, 3, 128])
@pytest.mark.parametrize(("launch_s", "step_s"), [(0.25, 64 + 3 * 0.25), (8.0, 4 * 32 + 8)])
def test_kernels_begin_once_their_first_layer_is_issued(
    segments: int, launch_s: float, step_s: float
) -> None:
    """Four blocks a part, as one task or several, F of 12 s and B of 20 s, a micro-batch alone.

    A quick host shows a launch behind each message and at the start, as with one block; a slow one
    is waited for: all launches of F, F, B, B, and that of the optimizer.
    """
    schedule = make_schedule("1f1b", 2, 1)
    plan = toy_pipeline(
        schedule, EVEN, overlap_p2p=False, launch_s=launch_s, blocks=4, segments=segments
    )
    assert simulate(plan, machine_of(2), fidelity="free").step_ends_s[0] == pytest.approx(step_s)


@pytest.mark.parametrize(("launch_s", "issues"), [(0.25, 1), (8.0, 2)])
def test_launches_that_kernels_hide_are_no_tasks(launch_s: float, issues: int) -> None:
    schedule = make_schedule("1f1b", 2, 1)
    plan = toy_pipeline(schedule, EVEN, overlap_p2p=False, launch_s=launch_s, blocks=4)
    first = [task for task in plan.tasks if task.rank_class == "stage 0" and task.kind == "issue"]
    assert sum("forward" in task.name for task in first) == issues


def test_waiting_costs_what_overlap_hides() -> None:
    """GPipe with messages of a second: hidden but for two, or one after each pass of all."""
    schedule = make_schedule("gpipe", 2, 8)
    hidden, exposed = (
        simulate(toy_pipeline(schedule, EVEN, overlap_p2p=overlap), machine_of(2, 64.0))
        for overlap in (True, False)
    )
    assert hidden.step_ends_s[0] == pytest.approx(9 * 8.0 + 2 * 1.0, rel=1e-6)
    assert exposed.step_ends_s[0] == pytest.approx(9 * 8.0 + 16 * 1.0, rel=1e-6)


def test_messages_show_where_two_micro_batches_are_in_flight() -> None:
    """1F1B on two stages: a micro-batch's round takes 2 (F + B + c), and two are under way."""
    plan = toy_pipeline(make_schedule("1f1b", 2, 8), EVEN)
    end = simulate(plan, machine_of(2, 64.0)).step_ends_s[0]
    assert end == pytest.approx(4 * 2 * (8.0 + 1.0) + 8.0, rel=1e-6)


@pytest.mark.parametrize("kind", ["interleaved", "zb_h1", "zb_v", "dualpipe"])
def test_gradients_are_reduced_once_the_last_weight_gradient_is_ready(kind: str) -> None:
    """Of each part on its own; of a part that two stages hold, by both."""
    schedule = make_schedule(kind, 2, 4)
    plan = toy_pipeline(schedule, EVEN, ranks=2)
    run = simulate(plan, machine_of(4))
    for part in range(schedule.parts):
        ready = max(
            end
            for task, _, _, end, *_ in run.executions
            if task.kind == "backward" and f"h.{part}" in task.name
        )
        starts = {
            start
            for task, _, start, *_ in run.executions
            if getattr(task.work, "communicator", "").endswith(f"of part {part}")
        }
        assert len(starts) == 1
        assert starts.pop() == pytest.approx(ready, abs=1e-6)


# ---------------------------------------------------------------- real models


def gpt_pipeline(
    schedule: PipelineSchedule, options: MegatronStrategy, ranks: int, **more: Any
) -> tuple[StepPlan, list[PartPlan]]:
    gpt = build_model("gpt2", dtype="bf16", sequence_length=128)
    times = layer_times(gpt, PLAIN_GPU, batch=1, precision="bf16", optimizer="adamw")
    if schedule.layout == "bidirectional":
        ranks, options = (
            2 * ranks,
            options.model_copy(update={"accumulate": options.accumulate // 2}),
        )
    parts = [
        PartPlan(megatron_plan(StepRequest(part.workload, part.times, ranks, 1), options), part)
        for part in model_parts(gpt, times, schedule)
    ]
    return pipeline_plan(schedule, parts, PipelineOptions(128 * 768 * 2, **more)), parts


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["1f1b", "interleaved", "zb_h1", "zb_v", "dualpipe"])
@pytest.mark.parametrize("overlap", [False, True])
def test_megatron_in_a_pipeline(kind: str, overlap: bool) -> None:
    """All work of the plain plans, one agreement of all stages, the embedding added up by two."""
    schedule = make_schedule(kind, 2, 4)
    options = MegatronStrategy(
        kind="megatron",
        accumulate=4,
        use_distributed_optimizer=True,
        overlap_grad_reduce=overlap,
        overlap_param_gather=overlap,
        bucket_size=10_000_000 if overlap else None,
    )
    plan, parts = gpt_pipeline(schedule, options, 2, overlap_reduction=overlap)
    check_plan(plan)
    before = sum(t.work.duration_s for p in parts for t in p.plan.tasks if _computes(t))
    after = sum(t.work.duration_s for t in plan.tasks if _computes(t))
    copies = 2 if kind == "dualpipe" else 1  # each part is held by two stages
    assert after == pytest.approx(copies * before)
    used = Counter(getattr(task.work, "communicator", None) for task in plan.tasks)
    assert used[ALL_STAGES] == 2  # a task in each of two stages
    tied = [task.work for task in plan.tasks if getattr(task.work, "communicator", None) == TIED]
    if kind in ("zb_v", "dualpipe"):  # both ends of the model are on the first stage
        assert not tied
    else:
        assert [work.nbytes for work in tied] == [50257 * 768 * 2] * 2
    run = simulate(plan, machine_of(4), steps=2)
    assert run.step_ends_s[1] > run.step_ends_s[0]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_tied_embedding_is_added_up_after_both_have_its_gradient(ranks: int) -> None:
    """And, as in Megatron-Core, after its data-parallel reduction."""
    options = MegatronStrategy(kind="megatron", accumulate=4, overlap_grad_reduce=True)
    plan, _ = gpt_pipeline(make_schedule("1f1b", 2, 4), options, ranks)
    run = simulate(plan, machine_of(2 * ranks))
    starts = {
        start
        for task, _, start, *_ in run.executions
        if getattr(task.work, "communicator", None) == TIED
    }
    before = [
        end
        for task, _, _, end, *_ in run.executions
        if task.kind in ("forward", "backward") or task.bucket is not None
    ]
    assert len(starts) == 1
    assert min(starts) >= max(before) - 1e-12
    updates = [start for task, _, start, *_ in run.executions if task.kind == "optimizer"]
    assert min(updates) > min(starts)


def _computes(task: Any) -> bool:
    return isinstance(task.work, Compute) and task.stream == "compute"


@pytest.mark.slow
def test_many_micro_batches_make_few_tasks() -> None:
    """175B with 16 stages and 192 micro-batches: a task a pass, and messages."""
    schedule = make_schedule("1f1b", 16, 192)
    plan = toy_pipeline(schedule, EVEN, ranks=8)
    passes, ends = 2 * 16 * 192, 2 * 2 * 15 * 192
    assert passes + ends <= len(plan.tasks) <= passes + ends + 200


def test_passes_of_a_middle_micro_batch_are_one_task() -> None:
    schedule = make_schedule("1f1b", 2, 6)
    options = MegatronStrategy(
        kind="megatron", accumulate=6, overlap_grad_reduce=True, bucket_size=10_000_000
    )
    plan, parts = gpt_pipeline(schedule, options, 2)
    for stage in range(2):
        for micro_batch in (1, 2, 3, 4):
            tasks = [
                task
                for task in plan.tasks
                if task.rank_class == f"stage {stage}"
                and task.stream == "compute"
                and task.micro_batch == micro_batch
            ]
            assert [task.kind for task in tasks] == ["forward", "backward"]
            layers = len(parts[stage].part.workload.layers)
            assert sorted(tasks[0].layers) == sorted(tasks[1].layers) == list(range(layers))
            assert tasks[0].work == Compute(
                pytest.approx(float(parts[stage].part.times.forward_s.sum()))  # type: ignore[arg-type]
            )


def test_what_cannot_be_a_pipeline_is_refused() -> None:
    with pytest.raises(InputError, match="overlap_p2p: found false with zb_h1"):
        toy_pipeline(make_schedule("zb_h1", 2, 4), EVEN, overlap_p2p=False)
    workload, times = toy_model(4, dict.fromkeys(range(4), EVEN))
    for kind, text in (
        ("zb_h1", "where backward gathers parameters"),
        (
            "1f1b",
            "waits for the one before, in a pipeline; allowed: a strategy whose micro-batches",
        ),
    ):
        with pytest.raises(InputError, match=text):
            fsdp_pipeline(make_schedule(kind, 2, 4), FsdpStrategy(kind="fsdp", accumulate=4))
    with pytest.raises(InputError, match=r"strategy\.accumulate: found a plan of 4 micro-batches"):
        fsdp_pipeline(make_schedule("1f1b", 2, 8), FsdpStrategy(kind="fsdp", accumulate=4))
    schedule = make_schedule("zb_h1", 2, 4)
    parts = model_parts(workload, replace(times, weight_gradient_s=None), schedule)
    plain = toy_pipeline(make_schedule("1f1b", 1, 4), EVEN)
    with pytest.raises(InputError, match="do not tell gradients of weights apart"):
        pipeline_plan(schedule, [PartPlan(plain, part) for part in parts], PipelineOptions(1))


def fsdp_pipeline(schedule: PipelineSchedule, options: FsdpStrategy) -> StepPlan:
    workload, times = toy_model(4, dict.fromkeys(range(4), EVEN))
    parts = [
        PartPlan(fsdp_plan(StepRequest(part.workload, part.times, 2, 1), options), part)
        for part in model_parts(workload, times, schedule)
    ]
    return pipeline_plan(schedule, parts, PipelineOptions(64))


@pytest.mark.parametrize("kind", ["1f1b", "interleaved", "zb_h1"])
def test_fsdp_in_a_pipeline_gathers_and_reduces_once_a_step(kind: str) -> None:
    """torch 2.13 unshards a stage before its first pass and reduces after its last one."""
    options = FsdpStrategy(
        kind="fsdp",
        accumulate=4,
        reshard_after_forward=False,
        reshard_after_backward=False,
        sync="last",
    )
    plan = fsdp_pipeline(make_schedule(kind, 2, 4), options)
    check_plan(plan)
    ops = Counter(
        task.work.op
        for task in plan.tasks
        if isinstance(task.work, Collective) and task.work.op != "send"
    )
    assert ops == {"all_gather": 4, "reduce_scatter": 4}  # of each of four blocks
    assert free_step_s(plan, 4) > 4 * 2 * 8.0


@pytest.mark.parametrize("call_bytes", [1 << 20, 3 << 30])
def test_pairs_of_dualpipe_hide_what_experts_exchange(call_bytes: int) -> None:
    """On one stage: passes alone expose their calls, a pair takes the longer of both."""
    call = partial(LayerCall, "expert", "all_to_all", call_bytes / 4, 2)
    calls = (call("forward", "before"), call("backward", "after"))

    def with_calls(request: StepRequest, accumulate: int) -> StepPlan:
        (layer,) = request.workload.layers
        workload = replace(request.workload, layers=(replace(layer, calls=calls),))
        own = replace(request, workload=workload)
        return add_layer_calls(plain_ddp(own, accumulate), own, "fp32")

    schedule = make_schedule("dualpipe_v", 1, 6)
    plan = toy_pipeline(schedule, EVEN, ranks=2, plan=with_calls)
    check_plan(plan)
    machine = machine_of(2)
    run = simulate(plan, machine, overlap_slowdown=1.0)
    passes = [e for e in run.executions if e[0].kind == "communication" and e[0].layers]
    assert len(passes) == 2 * 2 * 6
    call_s = passes[0][3] - passes[0][2]
    assert call_s == pytest.approx(call_bytes / 2 / 1e9, rel=1e-6)
    wanted_s = 0.0
    for pair in action_groups(schedule.actions[0]):
        kinds = [action.kind for action in pair]
        work_s = sum(
            {"forward": 3.0, "input_gradient": 3.0, "weight_gradient": 2.0, "backward": 5.0}[kind]
            for kind in kinds
        )
        calls_s = call_s * sum(kind != "weight_gradient" for kind in kinds)
        wanted_s += max(work_s, calls_s) if len(pair) > 1 else work_s + calls_s
    last = max(e[3] for e in run.executions if e[0].layers)
    assert last == pytest.approx(wanted_s, rel=1e-9)


def test_each_boundary_has_its_own_bytes_both_ways() -> None:
    """As of maps of features: activations forward and their gradients back are as large."""
    plan = toy_pipeline(make_schedule("1f1b", 4, 4), EVEN, transfer_bytes=(10, 20, 30))
    sent = {
        (task.work.communicator, task.work.nbytes)
        for task in plan.tasks
        if isinstance(task.work, Collective) and task.work.op == "send"
    }
    expected = {(f"stage {a} to stage {a + 1}", 10 * (a + 1)) for a in range(3)}
    assert sent == expected | {(f"stage {a + 1} to stage {a}", 10 * (a + 1)) for a in range(3)}
