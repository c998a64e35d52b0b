"""Compiled loops against what they replace: the same bits."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.collectives import catalog
from perfmodel.collectives.algorithms import ring, tree
from perfmodel.collectives.schedule import Phase
from perfmodel.collectives.timing import compiled_loops, tree_clocks, unrolled
from perfmodel.collectives.timing.path_classes import heaviest_rows
from perfmodel.collectives.timing.recurrence_steps import LinkRates
from perfmodel.collectives.timing.tree_clocks import TreeClocks
from perfmodel.collectives.timing.unrolled import prepare_phases
from perfmodel.collectives.timing.variable_rate import Clocks
from perfmodel.simulate.flow.transfers import cycle_s
from perfmodel.simulate.sharing.max_min import max_min_rates

pytest.importorskip("numba")
LOOPS = compiled_loops.load()


@pytest.fixture
def switch() -> Iterator[pytest.MonkeyPatch]:
    with pytest.MonkeyPatch.context() as patch:
        yield patch


def both(find: Any) -> tuple[Any, Any]:
    """What a function returns with NumPy, and with compiled loops."""
    results = []
    for loops in (None, LOOPS):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(compiled_loops, "loaded", lambda loops=loops: loops)
            results.append(find())
    return results[0], results[1]


@given(st.integers(0, 10**6), st.integers(1, 30), st.integers(1, 20), st.booleans())
def test_shares(seed: int, flows: int, links: int, capped: bool) -> None:
    rng = np.random.default_rng(seed)
    pointers = np.concatenate([[0], np.cumsum(rng.integers(0, 5, flows))])
    arcs = rng.integers(0, links, pointers[-1])
    capacity = rng.choice([0.0, 1e9, 2e9, 3.3e9], links)
    caps = rng.choice([np.inf, 4e8, 7e8], flows) if capped else None
    plain, compiled = both(lambda: max_min_rates(capacity, pointers, arcs, caps))
    assert np.array_equal(plain, compiled)


def test_arrays_of_a_single_edge_are_of_the_usual_type() -> None:
    """Numba would compile a loop once more for those that cannot be written to."""
    (phase,) = catalog.make("broadcast", "chain", 2, 64).phases
    assert not phase.nbytes.flags.writeable
    arrays = prepare_phases([phase], 1).contiguous(phase)
    assert all(each.flags.writeable and each.flags.c_contiguous for each in arrays)


SCHEDULES = {
    "ring": lambda ranks: ring.all_reduce(ranks, 4096 * ranks),
    "trees": lambda ranks: tree.double_binary_tree(ranks, 1 << 16, piece_bytes=1 << 12),
    "chain": lambda ranks: ring.broadcast(ranks, 1 << 16, piece_bytes=1 << 12),
    "trees of many pieces": lambda ranks: tree.double_binary_tree(
        ranks, 1 << 16, piece_bytes=1 << 9
    ),
}


@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.integers(0, 10**6),
    st.integers(1, 4),
    st.integers(3, 8),
    st.integers(1, 40),
)
def test_sends_at_rates_that_change(
    name: str, seed: int, credits: int, ranks: int, count: int
) -> None:
    """What is stepped through with compiled loops is what NumPy steps through, or folds."""
    rng = np.random.default_rng(seed)
    phases = SCHEDULES[name](ranks).phases
    edges = len(phases[0].src)
    paces = [
        (
            at,
            rng.choice([0.0, *rng.uniform(1e8, 1e9, 5 * edges)], edges),
            rng.uniform(0, 1e-5, edges),
        )
        for at in (0.0, *np.sort(rng.uniform(1e-6, 1e-3, count)))
    ]
    paces[-1] = (paces[-1][0], rng.uniform(1e8, 1e9, edges), paces[-1][2])

    def clocks(loops: Any) -> Any:
        course = prepare_phases(phases, credits)
        start = np.zeros(edges), LinkRates(-np.inf, *paces[0][1:])
        return Clocks(course, *start, loops)

    def ends(loops: Any) -> Any:
        sends, least_s, left = clocks(loops), [], []
        for pace in paces[1:]:
            sends.change(*pace)
            least_s.append(sends.least_wire_s())
            left.append(sends.left())
        return sends.ends(), least_s, left

    (plain, *some), (compiled, *same) = ends(None), ends(LOOPS)
    assert compiled.wire_s == pytest.approx(plain.wire_s, rel=1e-12)
    assert compiled.landed_s == pytest.approx(plain.landed_s, rel=1e-12)
    assert same[0] == pytest.approx(some[0], rel=1e-12)
    assert np.array_equal(some[1], same[1])


@pytest.mark.slow
@given(
    st.sampled_from(["trees", "chain", "trees of many pieces"]),
    st.integers(0, 10**6),
    st.sampled_from([1, 2, 3, 4, 12, 40]),
    st.integers(3, 8),
    st.integers(1, 14),
    st.lists(st.booleans(), min_size=14, max_size=14),
    st.sampled_from([1, 1000]),
)
def test_pieces_over_trees_at_rates_that_change(
    name: str, seed: int, credits: int, ranks: int, count: int, asked: list[bool], many: int
) -> None:
    """One by one or in runs is what NumPy steps through, whenever ends are asked for in between."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (tree_clocks, unrolled):
            patch.setattr(module, "MANY_PIECES", many)
        _send_pieces_over_trees(name, seed, credits, ranks, count, asked)


def _send_pieces_over_trees(
    name: str, seed: int, credits: int, ranks: int, count: int, asked: list[bool]
) -> None:
    rng = np.random.default_rng(seed)
    phases = SCHEDULES[name](ranks).phases
    edges = len(phases[0].src)
    begin_s = rng.choice([0.0, 1e-5, 3e-5], edges)
    at_s = np.sort(rng.uniform(1e-6, 3e-4, count))
    least_s = rng.choice([0.0, -1e-4])  # in NCCL's trees a piece arrives before its end has left
    rates = [
        (rng.uniform(1e8, 1e9, edges), rng.uniform(least_s, 1e-5, edges)) for _ in range(count + 1)
    ]
    if count > 1:
        rates[count // 2][0][: edges // 2] = 0.0  # links that are cut for a while
    start = begin_s, LinkRates(-np.inf, *rates[0])
    course = prepare_phases(phases, credits)
    assert course.are_trees
    plain, by_pieces = Clocks(course, *start), TreeClocks(LOOPS, course, *start)
    for now_s, pace, ask in zip(at_s, rates[1:], asked, strict=False):
        plain.change(now_s, *pace)
        by_pieces.change(now_s, *pace)
        if ask:
            assert by_pieces.ends().landed_s == pytest.approx(plain.ends().landed_s, rel=1e-12)
            assert by_pieces.least_wire_s() <= by_pieces.ends().wire_s * (1 + 1e-12)
    assert by_pieces.ends().wire_s == pytest.approx(plain.ends().wire_s, rel=1e-12)
    assert by_pieces.ends().landed_s == pytest.approx(plain.ends().landed_s, rel=1e-12)
    for clocks in (plain, by_pieces):
        clocks.change(3e-4, *rates[-1])
    assert np.array_equal(by_pieces.left(), plain.left())


@given(
    st.integers(0, 10**6),
    st.integers(2, 12),
    st.integers(1, 60),
    st.integers(1, 64),
    st.sampled_from([1, 1000]),
)
def test_pieces_in_runs_are_those_one_by_one(
    seed: int, credits: int, begin: int, count: int, order_by: int
) -> None:
    """When they have left, and when those that are in flight will have arrived."""
    rng = np.random.default_rng(seed)
    course = prepare_phases(SCHEDULES["trees of many pieces"](6).phases, credits)
    edges = course.edges
    rates = [(rng.uniform(1e8, 1e9, edges), rng.uniform(-1e-6, 2e-6, edges)) for _ in range(3)]
    rates[-1][0][: edges // 4] *= rng.choice([0.0, 1.0])  # links that are cut for good
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unrolled, "MANY_PIECES", order_by)
        clocks = TreeClocks(LOOPS, course, np.zeros(edges), LinkRates(-np.inf, *rates[0]))
    for at_s, pace in zip(np.sort(rng.uniform(1e-6, 4e-4, 2)), rates[1:], strict=True):
        clocks.change(at_s, *pace)
    (free_s, arrived_s), (one_s, each_s) = [
        (np.zeros(edges), np.zeros((credits, edges + 1))) for _ in range(2)
    ]
    spans, left_by = ((0, begin), (begin, min(begin + count, clocks._pieces))), list[int]()
    until_s = rng.uniform(0, 4e-4)
    for many, all_left in ((1, (free_s, arrived_s)), (1000, (one_s, each_s))):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tree_clocks, "MANY_PIECES", many)
            copies = [each.copy() for each in all_left]
            left_by.append(clocks._send(0, clocks._pieces, *copies, until_s))
            for span in spans:
                clocks._send(*span, *all_left, last=credits)
    assert left_by[0] == left_by[1]
    assert free_s == pytest.approx(one_s, rel=1e-12)
    assert arrived_s == pytest.approx(each_s, rel=1e-12)


@pytest.mark.parametrize("many", [1, 1000])
@pytest.mark.parametrize("name", ["trees", "chain"])
def test_pieces_that_have_left_are_kept_where_there_are_many_changes(
    name: str, many: int, switch: pytest.MonkeyPatch
) -> None:
    switch.setattr(tree_clocks, "MOST_TREE_PACES", 16)
    for module in (tree_clocks, unrolled):
        switch.setattr(module, "MANY_PIECES", many)
    phases = SCHEDULES[name](4).phases
    rng, edges, changes = np.random.default_rng(3), len(phases[0].src), 24
    rates = [
        (rng.uniform(1e8, 1e9, edges), rng.uniform(0, 1e-6, edges)) for _ in range(changes + 1)
    ]
    start = np.zeros(edges), LinkRates(-np.inf, *rates[0])
    course = prepare_phases(phases, 2)
    plain, by_pieces = Clocks(course, *start), TreeClocks(LOOPS, course, *start)
    for at_s, pace in zip(np.linspace(0.0, 1.2e-4, changes), rates[1:], strict=True):
        plain.change(at_s, *pace)
        by_pieces.change(at_s, *pace)
        assert np.array_equal(by_pieces.left(), plain.left())
    assert by_pieces.ends().landed_s == pytest.approx(plain.ends().landed_s, rel=1e-12)


def slowest_cycle(phase: Phase, rate_Bps: FloatArray, latency_s: FloatArray, credits: int) -> float:
    slowest_s, around_s = 0.0, dict[int, list[float]]()
    for edge, channel in enumerate(phase.channel.tolist()):
        busy_s = phase.nbytes[edge] / rate_Bps[edge]
        step_s = busy_s + latency_s[edge]
        own_s = max(busy_s, step_s / credits) if phase.repeat > 1 else busy_s
        slowest_s = max(slowest_s, own_s * phase.active[edge])
        around_s.setdefault(channel, []).append(step_s)
    if phase.repeat > 1 and not phase.first.any():
        turns = [phase.repeat * sum(ring) / len(ring) / phase.lag for ring in around_s.values()]
        return max(slowest_s, *turns)
    return slowest_s


@pytest.mark.parametrize("name", sorted(SCHEDULES))
@pytest.mark.parametrize("credits", [1, 4])
def test_estimates_of_cycles(name: str, credits: int) -> None:
    rng = np.random.default_rng(credits)
    for phase in SCHEDULES[name](6).phases:
        edges = len(phase.src)
        links = rng.choice([1e8, 3e9], edges), rng.uniform(0, 1e-4, edges)
        estimated_s = cycle_s(phase, *links, credits)
        assert estimated_s == pytest.approx(slowest_cycle(phase, *links, credits), rel=1e-12)
        assert estimated_s > 0


def heaviest(
    before: IntArray, order: IntArray, own_s: FloatArray, gains_s: Any, ends_s: FloatArray
) -> FloatArray:
    """Heaviest paths to edges by what they have gained, edge after edge."""
    rows = np.full((5, len(own_s) + 1), ends_s[-1])
    for edge in np.argsort(order, kind="stable").tolist():
        reached = np.maximum(ends_s[edge], rows[:, before[edge]].max(axis=1))
        first, second, third = (reached[0] + gain[edge] for gain in gains_s)
        both = max(reached[2] + gains_s[2][edge], reached[3] + gains_s[1][edge])
        reached[4] = max(reached[4], both, second + gains_s[2][edge])
        reached[1:4] = np.maximum(reached[1:4], [first, second, third])
        rows[:, edge] = reached + own_s[edge]
    return rows


@pytest.mark.slow
@given(st.integers(0, 10**6), st.integers(1, 60), st.integers(1, 3))
def test_heaviest_paths(seed: int, edges: int, most: int) -> None:
    rng = np.random.default_rng(seed)
    order = rng.integers(0, 8, edges)
    before = np.full((edges, most), edges)
    for edge in range(edges):
        earlier = np.flatnonzero(order < order[edge])
        if len(earlier):
            before[edge] = rng.choice(np.append(earlier, edges), most)
    own, gains = rng.random(edges), tuple(rng.random((3, edges)))
    ends = np.append(rng.random(edges), rng.choice([0.0, -np.inf]))
    by_levels = heaviest_rows(before, order, own, gains, ends)
    assert np.array_equal(by_levels, heaviest(before, order, own, gains, ends))


@pytest.mark.parametrize("on_disk", [True, False])
def test_loops_are_loaded_when_they_pay(on_disk: bool, switch: pytest.MonkeyPatch) -> None:
    """Later where numba has to compile them: that takes seconds."""
    calls = list[None]()
    switch.setattr(compiled_loops, "load", lambda: calls.append(None))
    switch.setattr(compiled_loops, "_are_on_disk", lambda: on_disk)
    needed = compiled_loops.CHANGES_TO_LOAD if on_disk else compiled_loops.CHANGES_TO_COMPILE
    effort, expecting = compiled_loops.Effort(), compiled_loops.Effort()
    for before in range(needed + 10):
        effort.spend()
        assert len(calls) == (before + 1 >= needed)
    expecting.expect(needed - 1)
    assert len(calls) == 1
    expecting.expect(needed)
    assert len(calls) == 2


def test_what_is_on_disk_is_found(tmp_path: Path) -> None:
    """What numba keeps of a function is found where it kept it, and nothing before."""
    (tmp_path / "doubled.py").write_text(
        "from numba import njit\n"
        "from perfmodel.collectives.timing.compiled_loops import is_on_disk\n"
        "@njit(cache=True)\n"
        "def double(number): return 2 * number\n"
        "print(is_on_disk(double), double(1), is_on_disk(double))\n"
    )
    command = [sys.executable, str(tmp_path / "doubled.py")]
    printed = [subprocess.check_output(command, text=True).split() for _ in range(2)]
    assert printed == [["False", "2", "True"], ["True", "2", "True"]]
