"""Edges that stand for others have the rates that each would have by itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.collectives.timing import compiled_loops
from perfmodel.simulate.flow.stream_network import stream_stage
from perfmodel.simulate.sharing.alike_edges import AlikeEdges
from perfmodel.simulate.sharing.between_collectives import LinkSharings, Share, shared_rates


def ring(groups: int, ranks: int, stride: int, nbytes: float, name: str) -> Share:
    """A ring in each of some groups; rank r has link 2 r to send over and 2 r + 1 to receive."""
    routes = [
        (2 * (group * ranks + at), 2 * (group * ranks + (at + stride) % ranks) + 1)
        for group in range(groups)
        for at in range(ranks)
    ]
    count = len(routes)
    return Share(stream_stage(routes, [np.inf] * count), np.full(count, nbytes), lambda _: 2, name)


def fan(groups: int, ranks: int, nbytes: float, name: str) -> Share:
    """All ranks of a group over one trunk, the links after those of `ring`."""
    routes = [
        (2 * (group * ranks + at), 2 * groups * ranks + group)
        for group in range(groups)
        for at in range(ranks)
    ]
    count = len(routes)
    return Share(stream_stage(routes, [np.inf] * count), np.full(count, nbytes), lambda _: 3, name)


@pytest.mark.parametrize("loops", [None, compiled_loops.load()], ids=["NumPy", "compiled"])
def test_edges_that_share_a_link_take_as_much_of_it_as_all_of_them(
    loops: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over each trunk of 4 GB/s eight ranks send, each by its link of 0.1, and one edge alone.

    Ranks get 0.1 GB/s, and the edge what eight of them leave of the trunk. Where the trunk has
    0.45 GB/s, all nine get the same.
    """
    monkeypatch.setattr(compiled_loops, "loaded", lambda: loops)
    through = stream_stage([(128 + group,) for group in range(8)], [np.inf] * 8)
    alone = Share(through, np.full(8, 1e9), lambda _: 3, "alone")
    jobs = [replace(each, takes_s=lambda _: 0.1) for each in (fan(8, 8, 1e9, "fan"), alone)]
    for trunk_Bps, of_fan, of_alone in ((4e9, 1e8, 3.2e9), (4.5e8, 5e7, 5e7)):
        capacity_Bps = np.append(np.full(128, 1e8), np.full(8, trunk_Bps))
        for sharings in (None, LinkSharings()):
            rates = shared_rates(capacity_Bps, jobs, sharings)
            assert rates[0] == pytest.approx(np.full(64, of_fan))
            assert rates[1] == pytest.approx(np.full(8, of_alone))


def test_rings_over_alike_links_are_one_edge_each() -> None:
    alike, capacity_Bps = AlikeEdges(np.full(128, 1e9)), np.full(128, 1e9)
    jobs = [ring(8, 8, stride, 1e9, str(stride)) for stride in (1, 3)]
    folded = alike.fold([(job.stage, job.wire_bytes) for job in jobs])
    assert [len(part.pointers) - 1 for part in folded] == [1, 1]
    rates = shared_rates(capacity_Bps, jobs, LinkSharings())
    assert [rate.tolist() for rate in rates] == [[5e8] * 64] * 2


@given(st.integers(0, 10**9))
def test_folded_rates_are_those_of_all_edges(seed: int) -> None:
    """Rings, and edges at random, over links of two rates, some of which are slower ones.

    Jobs come one after the other and meet in any selection, some with bytes of their own.
    """
    rng = np.random.default_rng(seed)
    capacity_Bps = rng.choice([1e9, 2e9], 68)
    if rng.random() < 0.7:
        capacity_Bps[:] = 1e9
    capacity_Bps[rng.integers(0, 64, rng.integers(0, 3))] = 0.6e9
    sharings, known = LinkSharings(), list[Share]()
    for number in range(int(rng.integers(2, 6))):
        job = ring(4, 8, int(rng.integers(1, 8)), rng.choice([1e9, 3e9]), f"{number % 3}")
        if rng.random() < 0.4:
            job = fan(4, 8, rng.choice([1e9, 3e9]), f"{number % 3}")
        elif rng.random() < 0.3:
            routes = [tuple(rng.choice(64, 2, replace=False)) for _ in range(6)]
            stage = stream_stage(routes, rng.choice([np.inf, 0.3e9], 6).tolist())
            job = Share(stage, rng.uniform(1e9, 2e9, 6), lambda _: 3, "other")
        known.append(job)
        chosen = [known[at] for at in rng.permutation(len(known))[: rng.integers(1, 5)]]
        folded = shared_rates(capacity_Bps, chosen, sharings)
        for mine, each in zip(folded, shared_rates(capacity_Bps, chosen), strict=True):
            assert mine == pytest.approx(each, rel=1e-12)


def test_a_stage_with_other_bytes_tells_edges_apart() -> None:
    sharings, capacity_Bps = LinkSharings(), np.full(128, 1e9)
    first = ring(1, 8, 1, 1e9, "even")
    uneven = Share(replace(first.stage), np.arange(1.0, 9.0) * 1e8, lambda _: 1, "uneven")
    for jobs in ([first, first], [first, uneven], [uneven, first]):
        rates, plain = shared_rates(capacity_Bps, jobs, sharings), shared_rates(capacity_Bps, jobs)
        assert [rate.tolist() for rate in rates] == [
            pytest.approx(rate.tolist(), rel=1e-12) for rate in plain
        ]
