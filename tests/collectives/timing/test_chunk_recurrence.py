"""Rounds timed one after the other: the same as message by message, each with its own list."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.collectives.catalog import ALGORITHMS, make
from perfmodel.collectives.dependencies import messages, unroll
from perfmodel.collectives.schedule import Phase, Round, Schedule
from perfmodel.collectives.timing.recurrence import EdgePaces, last_landing_s
from perfmodel.errors import ScheduleError, SimulationError
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.topology.model import Topology

PAIRS = [(op, name) for op, makers in ALGORITHMS.items() for name in makers if op != "send"]


def random_paces(stages: Sequence[Sequence[Phase]], seed: int, credits: int) -> EdgePaces:
    rng = np.random.default_rng(seed)
    edges = sum(len(stage[0].src) for stage in stages)
    return EdgePaces(stages, rng.uniform(0, 1e-9, edges), rng.uniform(0, 1e-5, edges), credits)


def message_by_message(schedule: Schedule, paces: EdgePaces, begin_s: float) -> float:
    """When the last message lands: what each waits for is a list of its own."""
    sent = messages(unroll(schedule))
    repeats = [sum(phase.repeat for phase in stage) for stage in paces.stages]
    stage_of_round = np.repeat(np.arange(len(repeats)), repeats)
    number: dict[tuple[int, int, int, int], int] = {}
    for at, stage in enumerate(paces.stages):
        for channel, src, dst in zip(stage[0].channel, stage[0].src, stage[0].dst, strict=True):
            number[at, int(channel), int(src), int(dst)] = len(number)
    free: dict[int, float] = {}
    landed_on_edge: dict[int, list[float]] = {}
    landed_at: dict[tuple[int, int], list[tuple[int, float]]] = {}
    landed: list[float] = []
    for at in range(len(sent.src)):
        src, dst, channel = int(sent.src[at]), int(sent.dst[at]), int(sent.channel[at])
        stage = int(stage_of_round[sent.round[at]])
        edge = number[stage, channel, src, dst]
        waits = [begin_s, free.get(edge, 0.0), *(landed[other] for other in sent.after[at])]
        before_s = landed_on_edge.setdefault(edge, [])
        waits += before_s[-paces.credits :][: len(before_s) >= paces.credits]
        waits += [end for before, end in landed_at.get((channel, src), []) if before < stage]
        free[edge] = max(waits) + float(sent.nbytes[at] * paces.per_byte_s[edge])
        landed.append(free[edge] + float(paces.latency_s[edge]))
        before_s.append(landed[-1])
        for rank in (src, dst):
            landed_at.setdefault((channel, rank), []).append((stage, landed[-1]))
    return max(landed, default=begin_s)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "name"), PAIRS)
def test_every_algorithm(op: str, name: str, switched_topology: Callable[..., Topology]) -> None:
    compared = 0
    for ranks in (2, 4, 7, 8):
        try:
            machine = Machine(
                switched_topology([1e9] * ranks, [0.0] * ranks), load_library("plain")
            )
            way = lower_collective(machine, op, ranks * 4096, range(ranks), algorithm=name)[0]
        except ScheduleError:
            continue  # not for so many ranks
        schedule, stages = way.schedule, [stage.phases for stage in way.stages]
        for seed in range(3):
            paces = random_paces(stages, seed, 1 + seed)
            wanted = message_by_message(schedule, paces, 1e-6)
            assert last_landing_s(schedule, paces, 1e-6) == pytest.approx(wanted, rel=1e-12)
            compared += 1
    assert compared


RANKS = 4
EVERYBODY = [(c, s, d) for c in range(2) for s in range(RANKS) for d in range(RANKS)]


@st.composite
def random_rounds(draw: st.DrawFn) -> list[list[tuple[int, int, int, int, int, int]]]:
    """Sends (channel, src, dst, src chunk, dst chunk, bytes); those of a round all add, or none."""
    number = st.integers(0, RANKS - 1)
    rounds = []
    for _ in range(draw(st.integers(1, 6))):
        sends = draw(
            st.lists(
                st.tuples(st.integers(0, 1), number, number, number, number, st.integers(0, 9)),
                max_size=6,
            )
        )
        if not draw(st.booleans()):
            sends = list({(send[2], send[4]): send for send in sends}.values())
        rounds.append(sends)
    return rounds


def scheduled(
    rounds: list[list[tuple[int, int, int, int, int, int]]], *, adds: bool
) -> tuple[Schedule, Sequence[Sequence[Phase]]]:
    """Rounds over the edges of everybody to everybody, half of them in a second stage."""
    columns = [np.array(sends, dtype=np.int64).reshape(-1, 6).T for sends in rounds]
    parts = [
        Round(src, dst, from_chunk, to_chunk, nbytes, channel, np.full(len(src), adds))
        for channel, src, dst, from_chunk, to_chunk, nbytes in columns
    ]
    channel, src, dst = np.array(EVERYBODY).T
    half = len(rounds) // 2
    zeros = np.zeros(len(src), np.int64)
    phases = [
        Phase("any", src, dst, channel, zeros * 1.0, repeat, zeros, zeros + repeat)
        for repeat in (half, len(rounds) - half)
    ]
    schedule = make("all_reduce", "ring", RANKS, 64, itemsize=4)
    return replace(schedule, unroll=lambda: iter(parts)), [[phase] for phase in phases]


@pytest.mark.slow
@given(random_rounds(), st.integers(0, 10**6), st.integers(1, 3))
def test_random_rounds(
    rounds: list[list[tuple[int, int, int, int, int, int]]], seed: int, credits: int
) -> None:
    schedule, stages = scheduled(rounds, adds=True)
    paces = random_paces(stages, seed, credits)
    wanted = message_by_message(schedule, paces, 0.0)
    assert last_landing_s(schedule, paces, 0.0) == pytest.approx(wanted, rel=1e-12)


def test_what_cannot_be_is_refused() -> None:
    schedule, stages = scheduled([[(0, 0, 1, 0, 2, 8), (1, 3, 1, 1, 2, 8)]], adds=False)
    with pytest.raises(ScheduleError, match="2 sends of one round write chunk 2 of rank 1"):
        last_landing_s(schedule, random_paces(stages, 0, 1), 0.0)
    schedule, stages = scheduled([[(2, 0, 1, 0, 2, 8)]], adds=True)
    with pytest.raises(SimulationError, match=r"a send over \(2, 0, 1\) that no phase"):
        last_landing_s(schedule, random_paces(stages, 0, 1), 0.0)
