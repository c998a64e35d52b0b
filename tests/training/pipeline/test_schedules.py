"""Schedules against PyTorch's and Megatron-Core's orders, and their bubbles against the papers."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError, ScheduleError
from perfmodel.testing.closed_forms import (
    PassTimes,
    pass_spans,
)
from perfmodel.training.pipeline.pass_actions import PipelineSchedule
from perfmodel.training.pipeline.schedules import make_schedule
from tests.training.pipeline.pipeline_toys import CHAINS
from tests.training.pipeline.published_bubbles import published_bubble, stage_bubbles, step_bubble
from tests.training.pipeline.record_megatron_orders import CASES, FILE, name_of

TORCH_KINDS = {
    "F": "forward",
    "B": "backward",
    "I": "input_gradient",
    "W": "weight_gradient",
}

TORCH_CLASSES = {
    "gpipe": ("ScheduleGPipe", 1),
    "looped_bfs": ("ScheduleLoopedBFS", 3),
    "interleaved": ("ScheduleInterleaved1F1B", 3),
    "interleaved_zero_bubble": ("ScheduleInterleavedZeroBubble", 2),
    "zb_h1": ("ScheduleInterleavedZeroBubble", 1),
    "zb_v": ("ScheduleZBVZeroBubble", 2),
    "dualpipe_v": ("ScheduleDualPipeV", 2),
}
"""1F1B is missing: torch 2.13 runs it without an order, and the one that it prints skips the first
micro-batches of later stages. `tests/training/recorded` has what it runs."""


def most_held(schedule: PipelineSchedule, stage: int) -> tuple[int, ...]:
    """Micro-batches of each chunk whose activations a stage holds when it holds most of all.

    From forward until the gradients of weights are computed.
    """
    change = {"forward": 1, "backward": -1, "weight_gradient": -1, "input_gradient": 0}
    held = [0] * schedule.chunks
    most = tuple(held)
    for action in schedule.actions[stage]:
        held[action.chunk] += change[action.kind]
        most = tuple(held) if sum(held) > sum(most) else most
    return most


def torch_order(kind: str, stages: int, micro_batches: int) -> list[list[tuple[Any, ...]]]:
    """Kind, part of the model, micro-batch and whether joined, for each stage."""
    schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
    name, chunks = TORCH_CLASSES[kind]
    held = [
        SimpleNamespace(
            num_stages=stages * chunks, group_size=stages, group_rank=0, stage_index=i, submod=None
        )
        for i in range(chunks)
    ]
    if kind == "gpipe":
        order = schedules.ScheduleGPipe(held[0], micro_batches)._get_pipeline_order()
    else:
        order = getattr(schedules, name)(held, micro_batches).pipeline_order
    return [[entry for action in order[stage] for entry in _entries(action)] for stage in order]


def _entries(action: Any) -> list[tuple[Any, ...]]:
    if action is None or action.computation_type.value == "REDUCE_GRAD":
        return []
    if action.sub_actions:
        first, second = (_entries(each)[0] for each in action.sub_actions)
        return [(*first[:3], True), second]
    kind = TORCH_KINDS[action.computation_type.value]
    return [(kind, action.stage_index, action.microbatch_index, False)]


def our_order(schedule: PipelineSchedule) -> list[list[tuple[Any, ...]]]:
    return [
        [(a.kind, schedule.part(stage, a.chunk), a.micro_batch, a.joined) for a in actions]
        for stage, actions in enumerate(schedule.actions)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("kind", TORCH_CLASSES)
def test_order_is_that_of_pytorch(kind: str) -> None:
    chunks = TORCH_CLASSES[kind][1]
    compared = 0
    for stages in (1, 2, 3, 4, 8):
        for micro_batches in (1, 3, 4, 8, 10, 16, 21):
            try:
                expected = torch_order(kind, stages, micro_batches)
            except ValueError:  # neither has it, but for one chunk, which needs no rounds
                if kind == "zb_h1":
                    continue
                with pytest.raises(InputError):
                    make_schedule(kind, stages, micro_batches, chunks)
                continue
            schedule = make_schedule(kind, stages, micro_batches, chunks)
            assert our_order(schedule) == expected, (stages, micro_batches)
            compared += 1
    assert compared >= 10


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_order_is_that_of_megatron(case: tuple[int, int, int, int | None]) -> None:
    stages, micro_batches, chunks, group = case
    kind = "interleaved" if chunks > 1 else "1f1b"
    schedule = make_schedule(kind, stages, micro_batches, chunks, micro_batch_group=group)
    passes = [[[a.kind, a.chunk, a.micro_batch] for a in each] for each in schedule.actions]
    assert passes == json.loads(FILE.read_text(encoding="utf-8"))["orders"][name_of(case)]


def test_dualpipe_is_dualpipe_v_folded_twice() -> None:
    """Stage s of the first half runs what stage s of the V runs, with half of the micro-batches."""
    both, folded = make_schedule("dualpipe", 8, 20), make_schedule("dualpipe_v", 4, 10)
    for stage in range(4):
        mine = [replace(a, micro_batch=a.micro_batch % 10) for a in both.actions[stage]]
        assert tuple(mine) == folded.actions[stage]
        mirror = [replace(a, chunk=1 - a.chunk) for a in mine]
        theirs = [replace(a, micro_batch=a.micro_batch % 10) for a in both.actions[7 - stage]]
        assert theirs == mirror


counts = st.tuples(st.sampled_from([2, 4, 6]), st.integers(1, 4), st.integers(2, 3))
short = st.fractions(Fraction(1, 4), 2, max_denominator=8)


def uniform(kind: str, stages: int, rounds: int, chunks: int) -> PipelineSchedule:
    """A schedule whose counts the papers' formulas are stated for."""
    row = CHAINS[kind]
    if kind in ("zb_h2", "zb_v", "dualpipe", "dualpipe_v"):
        rounds = max(rounds, 2)
    return make_schedule(kind, stages, rounds * stages, row.chunks or chunks)


@pytest.mark.slow
@given(counts, short, short, short)
@settings(max_examples=40)
@pytest.mark.parametrize("kind", [kind for kind in CHAINS if kind != "sequential"])
def test_bubble_is_the_published_one(
    kind: str, sizes: tuple[int, int, int], forward: Fraction, inputs: Fraction, weights: Fraction
) -> None:
    if kind == "zb_v":
        inputs = weights = forward
    elif kind.startswith("dualpipe"):
        inputs, weights = forward, min(forward, weights)
    elif "zero" in kind or kind.startswith("zb_h"):
        weights = min(forward, inputs, weights)
    times = PassTimes(forward, inputs, weights)
    schedule = uniform(kind, *sizes)
    staggered = kind in ("zb_v", "zb_h2")
    bubble = max(stage_bubbles(schedule, times)) if staggered else step_bubble(schedule, times)
    assert bubble == published_bubble(kind, schedule.stages, times)


@pytest.mark.parametrize("stages", [2, 3, 5])
def test_stages_of_zb_h2_hold_what_its_paper_says(stages: int) -> None:
    """Activations of 2 P - 1 micro-batches at most (Qi et al. 2024, table 1); 1F1B of P."""
    schedule = make_schedule("zb_h2", stages, 4 * stages)
    assert {most_held(schedule, stage) for stage in range(stages)} == {(2 * stages - 1,)}
    assert most_held(make_schedule("1f1b", stages, 4 * stages), 0) == (stages,)


@given(
    st.sampled_from(sorted(CHAINS)),
    st.integers(1, 6),
    st.integers(1, 14),
    st.integers(1, 3),
    st.randoms(use_true_random=False),
)
def test_any_schedule_ends_and_runs_each_pass_once(
    kind: str, stages: int, micro_batches: int, chunks: int, random: Any
) -> None:
    try:
        schedule = make_schedule(kind, stages, micro_batches, CHAINS[kind].chunks or chunks)
    except InputError:
        return
    expected = {
        (part, micro_batch): 1
        for part in range(schedule.parts)
        for micro_batch in range(micro_batches)
    }
    for kinds in ({"forward"}, {"backward", "input_gradient"}, {"backward", "weight_gradient"}):
        ran = Counter(
            (schedule.part(stage, a.chunk), a.micro_batch)
            for stage, actions in enumerate(schedule.actions)
            for a in actions
            if a.kind in kinds
        )
        assert ran == expected
    times = {
        (stage, chunk): PassTimes(*(Fraction(random.randint(1, 9)) for _ in range(3)))
        for stage in range(stages)
        for chunk in range(schedule.chunks)
    }
    spans = pass_spans(schedule, times)
    end = max(each[-1][1] for each in spans)
    path = max(
        sum(
            times[place].forward + times[place].input_gradient
            for place in (schedule.place(part, direction) for part in range(schedule.parts))
        )
        for direction in ((0, 1) if schedule.layout == "bidirectional" else (0,))
    )
    busy = [sum(last - first for first, last in each) for each in spans]
    assert end >= max([path, *busy])


@pytest.mark.parametrize(
    ("kind", "stages", "micro_batches", "chunks", "group", "text"),
    [
        ("1f1b", 4, 8, 2, None, "parallel.pipeline.chunks: found 2; allowed: 1"),
        ("zb_v", 4, 8, 3, None, "parallel.pipeline.chunks: found 3; allowed: 2"),
        ("interleaved", 4, 8, 1, None, "chunks: found 1; allowed: a whole number of at least 2"),
        ("interleaved", 4, 9, 2, None, "strategy.accumulate: found 9; allowed: a multiple of the"),
        ("interleaved", 4, 8, 2, 3, "micro_batch_group: found 3; allowed: from 4 (stages) to 8"),
        ("interleaved", 4, 9, 2, 4, "found 4: leaves 1; allowed: what leaves no remainder of 9"),
        ("dualpipe", 4, 6, 2, None, "strategy.accumulate: found 6; allowed: a whole number"),
        ("dualpipe", 3, 9, 2, None, "stages: found 3; allowed: an even number"),
        ("dualpipe_v", 2, 3, 2, None, "strategy.accumulate: found 3; allowed: a whole number"),
        ("gpipe", 0, 0, 1, None, "strategy.accumulate: found 0"),
        ("1f1b", 4, 8, 1, 4, "micro_batch_group: found 4; allowed: with interleaved only"),
        ("zb_h2", 4, 6, 1, None, "strategy.accumulate: found 6; allowed: a whole number of at"),
        ("zb_h9", 4, 8, 1, None, "parallel.pipeline.schedule: found 'zb_h9'"),
    ],
)
def test_what_a_schedule_cannot_do_is_refused(
    kind: str, stages: int, micro_batches: int, chunks: int, group: int | None, text: str
) -> None:
    with pytest.raises(InputError) as caught:
        make_schedule(kind, stages, micro_batches, chunks, micro_batch_group=group)
    assert text in str(caught.value)


def test_a_circle_names_who_waits() -> None:
    schedule = make_schedule("1f1b", 2, 2)
    turned = (tuple(reversed(schedule.actions[0])), schedule.actions[1])
    with pytest.raises(ScheduleError, match=r"stage 0: PassAction.*backward"):
        pass_spans(replace(schedule, actions=turned), PassTimes(1, 1, 1))


@pytest.mark.parametrize("stages", [2, 4, 8])
def test_activations_are_held_as_published(stages: int) -> None:
    """In parts of a stage; 1F1B's first stage holds P of them.

    Narayanan et al. 2021, 2.2: GPipe all m, 1F1B at most P, interleaved (1 + (P-1)/(P v)) P. Qi et
    al. 2024, table 1 and section 6: ZB-H1 and ZB-V as 1F1B. DeepSeek-V3 report, table 2: DualPipe
    P + 1.
    """
    micro_batches = 4 * stages

    def most(kind: str, chunks: int | None = None) -> int:
        schedule = make_schedule(kind, stages, micro_batches, chunks)
        return max(sum(most_held(schedule, stage)) for stage in range(stages))

    assert most("gpipe") == micro_batches
    assert most("1f1b") == stages
    assert most("looped_bfs", 3) == 3 * micro_batches
    for chunks in (2, 3):
        assert most("interleaved", chunks) == chunks * stages + stages - 1
    assert most("zb_h1") == stages
    assert most("zb_v") == 2 * stages  # chunks of half a stage
    assert most("dualpipe") == stages + 1
    first = make_schedule("1f1b", stages, micro_batches)
    assert [sum(most_held(first, s)) for s in range(stages)] == list(range(stages, 0, -1))


def test_more_passes_than_minutes_allow_are_refused() -> None:
    assert len(make_schedule("interleaved", 8, 256, 12).actions[0]) == 2 * 256 * 12
    with pytest.raises(InputError, match="260 micro-batches on 8 stages of 12 chunks") as refused:
        make_schedule("interleaved", 8, 512, 12)
    assert refused.value.faults[0].field == "strategy.accumulate"
    assert "98,304 passes" in str(refused.value)
