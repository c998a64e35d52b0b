"""Who meets whom on links, and what each leaves to the others."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.flow.stream_network import stream_stage
from perfmodel.simulate.sharing import between_collectives
from perfmodel.simulate.sharing.between_collectives import (
    JobsOnLinks,
    LinkSet,
    LinkUsers,
    Share,
    shared_rates,
)
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.model import Topology


@given(
    jobs=st.lists(st.frozensets(st.integers(0, 25), min_size=1, max_size=6), max_size=12),
    ended=st.sets(st.integers(0, 11)),
    links_in_question=st.frozensets(st.integers(0, 25), max_size=5),
)
def test_those_who_meet_are_connected(
    jobs: list[frozenset[int]], ended: set[int], links_in_question: frozenset[int]
) -> None:
    """Equal to the components of the graph of jobs and links; each pair is compared once."""
    users: LinkUsers[int] = LinkUsers()
    graph: nx.Graph[object] = nx.Graph()
    sets = [LinkSet(np.array(sorted(links))) for links in jobs]
    for job, own in enumerate(sets):
        users.enter(job, own)
    for job, links in enumerate(jobs):
        if job in ended:
            shared = set(users.leave(job))
            left = [at for at in range(len(jobs)) if at not in ended or at > job]
            assert shared == {sets[at] for at in left if jobs[at] & links}
            continue
        graph.add_edges_from((("job", job), ("link", link)) for link in links)
    expected = {
        frozenset(number for kind, number in part if kind == "job")
        for part in nx.connected_components(graph)
        if any(kind == "link" and number in links_in_question for kind, number in part)
    }
    asked = LinkSet(np.array(sorted(links_in_question), dtype=np.int64))
    assert {frozenset(component) for component in users.components(asked)} == expected
    compared = [links.compared for links in (asked, *sets)]
    users.components(asked)
    assert compared == [links.compared for links in (asked, *sets)]
    assert max(compared) <= len(jobs) + 1


@pytest.mark.parametrize("count", [100, between_collectives.MANY_LINKS])
def test_jobs_of_many_links_meet_where_they_have_one_in_common(count: int) -> None:
    even = 2 * np.arange(count)
    for place in (0, count // 3, count - 1):
        odd = even + 1
        assert LinkSet(even).isdisjoint(LinkSet(odd))
        odd[place] = even[place]
        assert not LinkSet(even).isdisjoint(LinkSet(odd))
        assert not LinkSet(odd).isdisjoint(LinkSet(even))
        assert LinkSet(even[place : place + 1]).isdisjoint(LinkSet(even + 1))


def share(route: tuple[int, ...], duty: float, name: object) -> Share:
    """An edge that sends a gigabyte within `duty` of its job's time when it gets 1 GB/s."""
    return Share(stream_stage([route], [np.inf]), np.array([1e9]), lambda _: 1 / duty, name)


def test_what_one_leaves_the_other_takes() -> None:
    """One needs 0.2 GB/s on average of a link of 1 GB/s: the other sends at 0.8, it at 0.5."""
    slow, quick = (
        share((0,), 0.2, "slow"),
        Share(
            stream_stage([(0,)], [np.inf]),
            np.array([1e9]),
            lambda rate: 1e9 / float(rate[0]),
            "quick",
        ),
    )
    for order in ((slow, quick), (quick, slow)):
        rates = dict(zip((s.key for s in order), shared_rates(np.array([1e9]), order), strict=True))
        assert rates["slow"] == pytest.approx([0.5e9])
        assert rates["quick"] == pytest.approx([0.8e9])


def test_those_in_step_meet_all_the_time() -> None:
    alike = [share((0,), 0.2, "both") for _ in range(2)]
    assert [float(r[0]) for r in shared_rates(np.array([1e9]), alike)] == [0.5e9, 0.5e9]


@given(
    jobs=st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True),
            st.floats(0.05, 1.0),
            st.sampled_from("abc"),
        ),
        min_size=2,
        max_size=5,
    )
)
def test_rounds_that_ask_nothing_new_change_nothing(
    jobs: list[tuple[list[int], float, str]],
) -> None:
    """Equal to the rates with every round solved anew, to the last bit."""
    capacity_Bps = np.array([1e9, 2e9, 1.5e9, 0.7e9])
    shares = [share(tuple(route), duty, name) for route, duty, name in jobs]
    quick = shared_rates(capacity_Bps, shares)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(between_collectives.np, "array_equal", lambda *_: False)
        plain = shared_rates(capacity_Bps, shares)
    assert [rate.tolist() for rate in quick] == [rate.tolist() for rate in plain]


@given(st.integers(0, 10**6), st.integers(2, 4), st.integers(2, 8))
def test_edges_that_meet_nobody_are_solved_once(seed: int, jobs: int, edges: int) -> None:
    """Equal to the rates with all edges solved in each round, to the last bit."""
    rng = np.random.default_rng(seed)
    capacity_Bps, shares = rng.uniform(1e9, 3e9, 60), []
    for job in range(jobs):
        own = np.arange(job * 12, job * 12 + 15)  # some links are also those of the next job
        routes = [tuple(rng.choice(own, rng.integers(1, 4), replace=False)) for _ in range(edges)]
        stage = stream_stage(routes, rng.choice([np.inf, 0.4e9], edges).tolist())
        duty = rng.uniform(0.05, 1.0)
        shares.append(Share(stage, rng.uniform(1e9, 2e9, edges), lambda _, d=duty: 3 / d, job % 3))
    quick = shared_rates(capacity_Bps, shares)
    with pytest.MonkeyPatch.context() as patch:
        everyone = np.ones(jobs * edges, dtype=np.bool_)
        patch.setattr(between_collectives, "_meeting_edges", lambda *_: everyone)
        plain = shared_rates(capacity_Bps, shares)
    assert [rate.tolist() for rate in quick] == [rate.tolist() for rate in plain]


def test_edges_meet_through_others() -> None:
    """The second edge meets the other job through the first; the third meets nobody."""
    own = stream_stage([(0, 1), (1, 2), (3,)], [np.inf] * 3).edges
    other = stream_stage([(5, 0), (4,)], [np.inf] * 2).edges
    assert JobsOnLinks.of([own, other]).met.tolist() == [0, 1, 3]


def test_messages_free_their_links_before_they_land(
    switched_topology: object,
) -> None:
    """Latency is no work: of two that meet, the second has the link to itself meanwhile."""
    topology: Topology = switched_topology([1e9] * 3, [1e-3, 5e-3, 0.0])  # type: ignore[operator]
    env = simpy.Environment()
    network = FlowNetwork(env, UncontendedTimer(Machine(topology, load_library("plain"))))
    ends: list[float] = []

    def send(at_s: float, dst: int, nbytes: int) -> object:
        yield env.timeout(at_s)
        yield network.collective("send", nbytes, ((0, dst),), 0)
        ends.append(env.now)

    both = [send(0.0, 1, 1_000_000), send(0.5e-3, 2, 2_000_000)]
    env.run(until=env.all_of([env.process(one) for one in both]))  # type: ignore[arg-type]
    # Half a megabyte alone, then half and half until 1.5 ms; then the second alone to 3 ms.
    assert ends == pytest.approx([1.5e-3 + 1e-3, 3e-3 + 1e-3])
