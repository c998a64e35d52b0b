"""Workers that loop and servers that are queues: closed forms, queueing bounds, staleness."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import SimulationError
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.background import Change, Traffic
from perfmodel.simulate.engine.loop_records import LoopRun
from perfmodel.simulate.engine.loop_run import simulate_loops
from perfmodel.topology.faults import degrade_links
from perfmodel.training.plan.step_plan import Exchange, LoopPlan, Server, Worker, WorkItem
from tests.conftest import switched

LINK_Bps, LATENCY_S = 1e9, 5e-6
FEW = settings(max_examples=40)


def machine_of(devices: int, latency_s: float = LATENCY_S, link_Bps: float = LINK_Bps) -> Machine:
    """Workers come first, then servers; each has a link of its own in either direction."""
    topology = switched([link_Bps] * devices, [latency_s] * devices, down_Bps=link_Bps)
    return Machine(topology, load_library("plain"))


def loops(
    workers: int = 1,
    servers: int = 1,
    *,
    compute_s: float = 0.1,
    nbytes: float = 1e8,
    each_s: float = 0.0,
    all_s: float = 0.0,
    pieces: int = 1,
    overlap: bool = False,
    slack: int | None = None,
    together: bool = False,
    scales: Sequence[float] = (),
    apart_s: float = 0.0,
    answer: float = 1.0,
) -> LoopPlan:
    """One item, or one of forward and of backward for each piece; equal parts on all servers."""
    share = pieces * servers
    exchanges = tuple(
        Exchange(
            f"piece {piece}", server, nbytes / share, answer * nbytes / share, each_s / share, all_s
        )
        for piece in range(pieces)
        for server in range(servers)
    )
    every = tuple(range(len(exchanges)))
    if not overlap:
        items: tuple[WorkItem, ...] = (
            WorkItem("work", "backward", compute_s, needs=every, sends=every),
        )
    else:
        parts = [every[at * servers : (at + 1) * servers] for at in range(pieces)]
        piece_s = compute_s / (2 * pieces)
        items = (
            *(WorkItem("f", "forward", piece_s, needs=part) for part in reversed(parts)),
            *(WorkItem("b", "backward", piece_s, sends=part) for part in parts),
        )
    scale = [*scales, *[1.0] * (workers - len(scales))]
    return LoopPlan(
        "test",
        tuple(Worker(f"w{at}", (at,), scale[at], start_s=at * apart_s) for at in range(workers)),
        tuple(Server(f"s{at}", at, device=f"n0/gpu{workers + at}") for at in range(servers)),
        (items,),
        exchanges,
        workers,
        slack,
        together,
    )


def run(plan: LoopPlan, *, rounds: int = 12, latency_s: float = LATENCY_S, **kw: object) -> LoopRun:
    machine = machine_of(len(plan.workers) + len(plan.servers), latency_s)
    return simulate_loops(plan, machine, rounds=rounds, **kw)  # type: ignore[arg-type]


def throughput(result: LoopRun, after: int = 4) -> float:
    """Updates per second after some rounds."""
    ends = result.round_ends_s()
    return (len(ends) - after) * len(result.plan.workers) / (ends[-1] - ends[after - 1])


def late(result: LoopRun, after: int = 4) -> list[int]:
    from_s = result.round_ends_s()[after - 1]
    return [updates for at, updates, _ in result.staleness if at > from_s]


# ---------------------------------------------------------------- closed forms


@given(
    compute_s=st.floats(1e-3, 1),
    nbytes=st.floats(1e4, 1e9),
    each_s=st.floats(0, 0.1),
    together=st.booleans(),
)
@FEW
def test_one_worker_and_one_server_take_the_sum_of_their_times(
    compute_s: float, nbytes: float, each_s: float, together: bool
) -> None:
    plan = loops(compute_s=compute_s, nbytes=nbytes, each_s=each_s, together=together, all_s=2e-3)
    plan = plan if together else replace(plan, exchanges=(replace(plan.exchanges[0], all_s=0.0),))
    ends = run(plan, rounds=4).round_ends_s()
    update_s = each_s + (2e-3 if together else 0.0)
    step_s = compute_s + 2 * (LATENCY_S + nbytes / LINK_Bps) + update_s
    assert np.diff(ends) == pytest.approx([step_s] * 3, rel=1e-9)
    assert ends[0] == pytest.approx(step_s - LATENCY_S - nbytes / LINK_Bps, rel=1e-9)


@pytest.mark.slow
@given(workers=st.integers(1, 12), servers=st.integers(1, 6))
@FEW
def test_synchronous_servers_take_what_their_busier_link_takes(workers: int, servers: int) -> None:
    """Worker: 2 S / B; server: 2 w S / (s B); the larger of both."""
    plan = loops(workers, servers, compute_s=0.0, slack=0, together=True)
    ends = run(plan, rounds=4, latency_s=0.0).round_ends_s()
    step_s = max(2 * 1e8 / LINK_Bps, 2 * workers * 1e8 / (servers * LINK_Bps))
    assert np.diff(ends) == pytest.approx([step_s] * 3, rel=1e-9)


def test_pieces_overlap_with_backward_and_forward() -> None:
    """What is hidden: all but the last piece's way, where links and server keep up."""
    nbytes, pieces, compute_s = 4e7, 8, 0.2
    plan = loops(pieces=pieces, compute_s=compute_s, nbytes=nbytes, overlap=True, each_s=8e-4)
    ends = run(plan, rounds=4).round_ends_s()
    piece_s = 2 * (LATENCY_S + nbytes / pieces / LINK_Bps) + 8e-4 / pieces
    assert np.diff(ends) == pytest.approx([compute_s + piece_s] * 3, rel=1e-9)
    whole = run(loops(compute_s=compute_s, nbytes=nbytes, each_s=8e-4), rounds=4).round_ends_s()
    assert whole[1] - whole[0] > compute_s + 7 * piece_s


def test_messages_of_one_pair_follow_each_other_and_pairs_share_links() -> None:
    """Two workers push 1e8 each to one server: its link takes both at half the rate."""
    plan = loops(2, pieces=4, compute_s=0.1, slack=0, together=True)
    result = run(plan, rounds=2, tracked=(0, 1), latency_s=0.0)
    pushes = [m for m in result.messages if m.is_push and m.iteration == 0 and m.worker == 0]
    assert [m.start_s for m in pushes] == pytest.approx([0.1, 0.15, 0.2, 0.25])
    assert [m.end_s for m in pushes] == pytest.approx([0.15, 0.2, 0.25, 0.3])


def test_work_of_a_worker_on_its_messages_is_in_a_row() -> None:
    plan = loops(pieces=4, nbytes=4e3)
    exchanges = tuple(replace(each, before_s=0.01, after_s=0.02) for each in plan.exchanges)
    ends = run(replace(plan, exchanges=exchanges), rounds=3).round_ends_s()
    assert ends[1] - ends[0] >= 0.1 + 4 * 0.02 + 0.01


def test_the_host_issues_in_order_and_after_what_arrives() -> None:
    plan = loops(nbytes=1e3)
    (work,) = plan.items[0]
    bound = replace(plan, items=((replace(work, duration_s=0.01, host_s=0.2),),))
    ends = run(bound, rounds=3).round_ends_s()
    way_s = 2 * (LATENCY_S + 1e3 / LINK_Bps)
    assert ends[1] - ends[0] == pytest.approx(0.2 + 0.01 + way_s, rel=1e-9)


# ---------------------------------------------------------------- queueing bounds


@given(
    workers=st.integers(1, 9),
    servers=st.integers(1, 3),
    compute_s=st.floats(1e-3, 0.5),
    nbytes=st.floats(1e6, 2e8),
    each_s=st.floats(0, 0.1),
    overlap=st.booleans(),
    slow=st.floats(1, 3),
)
@FEW
def test_asynchronous_throughput_never_exceeds_its_bounds(
    workers: int,
    servers: int,
    compute_s: float,
    nbytes: float,
    each_s: float,
    overlap: bool,
    slow: float,
) -> None:
    plan = loops(
        workers,
        servers,
        compute_s=compute_s,
        nbytes=nbytes,
        each_s=each_s,
        overlap=overlap,
        pieces=4 if overlap else 1,
        scales=[slow],
    )
    result = run(plan, rounds=24)
    demand_s = max(nbytes / servers / LINK_Bps, each_s / servers)
    alone = sum(1 / (compute_s * worker.scale) for worker in plan.workers)
    if not overlap:  # an iteration then is work and way, one after the other
        way_s = 2 * (LATENCY_S + nbytes / servers / LINK_Bps) + each_s / servers
        alone = sum(1 / (compute_s * worker.scale + way_s) for worker in plan.workers)
    bound = min(alone, 1 / demand_s)
    # between two times, each worker may complete one update more than its rate says
    count = len(result.update_times_s)
    assert count <= bound * result.length_s * (1 + 1e-9) + workers
    assert throughput(result, 12) <= bound * (1 + workers / (12 * workers) + 1e-9)


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
def test_throughput_is_between_the_bounds_of_closed_networks(workers: int) -> None:
    """N / (N D + Z) <= X <= min(N / (D + Z), 1 / Dmax), D all demands of one worker together."""
    for compute_s, each_s in ((1.0, 1e-3), (0.05, 0.05), (1e-3, 0.2), (0.3, 0.02)):
        plan = loops(workers, compute_s=compute_s, each_s=each_s, nbytes=1e7)
        rate = throughput(run(plan, rounds=24), 8)
        way_s = 2 * (LATENCY_S + 1e7 / LINK_Bps)
        demands_s = each_s + way_s
        most = min(workers / (demands_s + compute_s), 1 / max(each_s, 1e7 / LINK_Bps))
        assert workers / (workers * demands_s + compute_s) * (1 - 1e-9) <= rate
        assert rate <= most * (1 + 1e-9)


@pytest.mark.parametrize(
    ("compute_s", "each_s", "nbytes"), [(10.0, 1e-3, 1e6), (1e-3, 0.1, 1e5), (1e-3, 1e-6, 1e8)]
)
def test_meets_the_bound_where_one_side_dominates(
    compute_s: float, each_s: float, nbytes: float
) -> None:
    """Computing, the server's work, its link: within 1 % of the least bound.

    Answers are a tenth of what is pushed, so that one direction of the link is the busiest.
    """
    workers, apart_s = 8, max(each_s, nbytes / LINK_Bps)
    plan = loops(
        workers, compute_s=compute_s, each_s=each_s, nbytes=nbytes, apart_s=apart_s, answer=0.1
    )
    rate = throughput(run(plan, rounds=16), 8)
    alone = workers / (compute_s + 2 * LATENCY_S + 1.1 * nbytes / LINK_Bps + each_s)
    bound = min(alone, 1 / each_s, LINK_Bps / nbytes)
    assert bound * 0.99 <= rate <= bound * (1 + 1e-9)


def test_workers_that_begin_together_crowd_one_direction_of_the_link() -> None:
    """All push at once and then all pull at once, so that each direction idles half of the time."""
    plan = loops(8, compute_s=1e-3, nbytes=1e8)
    assert throughput(run(plan, rounds=4), 1) == pytest.approx(5.0, rel=0.02)
    apart = replace(
        plan, workers=tuple(replace(w, start_s=0.1 * at) for at, w in enumerate(plan.workers))
    )
    assert 9.5 < throughput(run(apart, rounds=8), 2) <= 10.0 * (1 + 1e-9)


# ---------------------------------------------------------------- staleness


@given(
    workers=st.integers(1, 9),
    compute_s=st.floats(1e-2, 0.3),
    each_s=st.floats(1e-4, 0.1),
    servers=st.integers(1, 3),
    slow=st.floats(1, 4),
)
@FEW
def test_mean_staleness_is_one_less_than_the_workers(
    workers: int, compute_s: float, each_s: float, servers: int, slow: float
) -> None:
    """From one update of a worker to its next all others together make X T - 1, whoever is slow.

    Averaged over updates, sum of x_i (X T_i - 1) / X = w - 1.
    """
    plan = loops(workers, servers, compute_s=compute_s, each_s=each_s, nbytes=1e6, scales=[slow])
    result = run(plan, rounds=64)
    # one iteration of the slowest worker is cut at the end
    assert fmean(late(result, 16)) == pytest.approx(workers - 1, abs=0.02 + 0.12 * workers)
    if slow == 1:
        assert set(late(result, 16)) == {workers - 1}


@pytest.mark.parametrize("workers", [1, 2, 5, 8])
def test_equal_workers_are_all_as_late(workers: int) -> None:
    result = run(loops(workers, compute_s=0.5, each_s=1e-3, nbytes=1e6), rounds=12)
    assert set(late(result)) == {workers - 1}


def test_a_slow_worker_is_later_than_the_others() -> None:
    result = run(loops(4, compute_s=0.5, each_s=1e-4, nbytes=1e4, scales=[3.0]), rounds=40)
    assert max(late(result)) in {8, 9, 10}  # three others make three updates each meanwhile
    assert min(late(result)) == 2


@given(
    workers=st.integers(2, 7),
    slack=st.integers(0, 5),
    slow=st.floats(1, 5),
    compute_s=st.floats(1e-3, 0.2),
    pieces=st.integers(1, 3),
)
@FEW
def test_nobody_is_further_ahead_than_the_slack(
    workers: int, slack: int, slow: float, compute_s: float, pieces: int
) -> None:
    plan = loops(
        workers, compute_s=compute_s, pieces=pieces, overlap=True, slack=slack, scales=[slow]
    )
    result = run(plan, rounds=20)
    assert max(result.leads) <= slack
    done = [len(own) for own in result.updates_s]
    assert max(done) - min(done) <= slack + 1  # one more has been computed, and was not let on
    assert max(late(result, 1)) <= (2 * slack + 1) * (workers - 1)


@given(
    workers=st.integers(1, 7),
    servers=st.integers(1, 3),
    compute_s=st.floats(1e-3, 0.2),
    pieces=st.integers(1, 4),
    slow=st.floats(1, 3),
)
@FEW
def test_no_slack_is_synchronous(
    workers: int, servers: int, compute_s: float, pieces: int, slow: float
) -> None:
    """With servers that cost nothing: a slack of 0 holds each answer until all pushed."""
    plan = loops(
        workers, servers, compute_s=compute_s, pieces=pieces, overlap=True, slack=0, scales=[slow]
    )
    bounded, together = run(plan), run(replace(plan, together=True))
    assert bounded.round_ends_s() == pytest.approx(together.round_ends_s(), rel=1e-9)
    assert set(late(together, 1)) == {0}


def test_much_slack_is_none() -> None:
    plan = loops(4, compute_s=0.1, each_s=1e-3, scales=[1.5])
    free, loose = run(plan), run(replace(plan, slack=1000))
    assert loose.round_ends_s() == pytest.approx(free.round_ends_s(), rel=1e-12)
    tight = run(replace(plan, slack=1), rounds=40)
    assert throughput(tight, 20) < 0.95 * throughput(run(plan, rounds=40), 20)


# ---------------------------------------------------------------- what happens around it


def test_stretches_and_servers_are_counted() -> None:
    plan = loops(3, compute_s=0.1, each_s=0.01, nbytes=1e5)
    result = run(plan, rounds=8, stretch=lambda worker, iteration, item: 1.0 + worker)
    assert [work["backward"] for work in result.work_s[2]] == pytest.approx(
        [0.3] * len(result.work_s[2])
    )
    busy_s = sum(each.end_s - each.start_s for each in result.services)
    assert busy_s == pytest.approx(0.01 * len(result.services))
    ordered = sorted(result.services, key=lambda each: each.arrived_s)
    assert all(a.end_s <= b.start_s + 1e-12 for a, b in itertools.pairwise(ordered))


def test_links_that_change_and_other_traffic_slow_messages() -> None:
    plan = loops(compute_s=0.1, nbytes=1e8)
    machine = machine_of(2, 0.0)
    arc = machine.router.route("n0/gpu0", "n0/gpu1")[0]
    slow = Machine(degrade_links(machine.topology, {arc: LINK_Bps / 4}, {}), machine.library)
    changed = simulate_loops(plan, machine, rounds=4, changes=[Change(0.4, slow, "slow")])
    ends = changed.round_ends_s()
    assert ends[0] == pytest.approx(0.2)
    assert ends[2] - ends[1] == pytest.approx(0.1 + 0.4 + 0.1)
    busy = Traffic("n0/gpu0", "n0/gpu1", rate_Bps=5e8)
    shared = simulate_loops(plan, machine, rounds=3, traffic=[busy]).round_ends_s()
    assert shared[1] - shared[0] == pytest.approx(0.1 + 0.2 + 0.1)
    free = simulate_loops(plan, machine, rounds=3, fidelity="free").round_ends_s()
    assert np.diff(free) == pytest.approx([0.1, 0.1])


def test_messages_over_a_dead_link_are_an_error() -> None:
    machine = machine_of(2, 0.0)
    arc = machine.router.route("n0/gpu0", "n0/gpu1")[0]
    dead = Machine(degrade_links(machine.topology, {arc: 0.0}, {}), machine.library)
    with pytest.raises(SimulationError, match="stall for ever"):
        simulate_loops(loops(), machine, rounds=3, changes=[Change(0.05, dead, "dead")])


def test_bytes_are_counted_on_each_link() -> None:
    plan = loops(3, 2, compute_s=0.1, slack=0, together=True)
    result = run(plan, rounds=5)
    topology = machine_of(5).topology
    into = [at for at, (_, dst) in enumerate(topology.arcs.names) if dst == "n0/gpu3"]
    sent = float(result.counted.wire_bytes[into].sum())
    assert sent == pytest.approx(5 * 3 * 0.5e8)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [4, 8])
def test_solving_less_often_changes_little(workers: int) -> None:
    plan = loops(workers, 2, compute_s=0.1, pieces=8, overlap=True, each_s=0.01, apart_s=0.03)
    exact, rough = run(plan, rounds=16), run(plan, rounds=16, quantum_s=1e-4)
    assert throughput(rough) == pytest.approx(throughput(exact), rel=0.015)
    assert math.isfinite(rough.length_s)
