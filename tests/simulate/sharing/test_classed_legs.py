"""Trees of a large cluster are timed class by class: the same times, without looking at edges."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.lowering.lowered import add_traffic
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.simulate import uncontended as uncontended_timer
from perfmodel.simulate.sharing.duty_cycle import StageRates, classed_leg
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.templates.build import build_topology

MIB = 1 << 20


@pytest.mark.slow
@pytest.mark.parametrize("fabric", ["leaf-spine", "fat-tree"])
def test_times_are_those_edge_by_edge(fabric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with bytes that channels share unevenly; rates and latencies of edges come when asked.

    Counts of links are those link by link.
    """
    machine = make_machine(
        build_topology("dgx-a100", hosts=60, fabric=fabric), load_library("nccl")
    )
    timer, alone = UncontendedTimer(machine), UncontendedTimer(machine)
    for nbytes in (MIB, 64 * MIB, 64 * MIB + 1004):
        for way in lower_collective(machine, "all_reduce", nbytes, range(480), algorithm="tree"):
            leg = timer.timed_legs(way)[0]
            assert classed_leg(way, StageRates(machine.topology.arcs.bandwidth_Bps)) is not None
            with monkeypatch.context() as patch:
                patch.setattr(uncontended_timer, "classed_leg", lambda *_: None)
                edges = alone.timed_legs(way)[0]
            assert "_expanded" not in vars(leg)  # nobody needs a value of each edge
            assert leg.ends.last_s == pytest.approx(edges.ends.last_s, rel=1e-12)
            assert leg.ends.wire_s == pytest.approx(edges.ends.wire_s, rel=1e-12)
            np.testing.assert_allclose(leg.rates_Bps, edges.rates_Bps, rtol=1e-12)
            np.testing.assert_allclose(
                leg.stage.latency_s, edges.stage.latency_s, rtol=1e-9, atol=1e-15
            )
            links, *both = timer.link_bytes(way)
            wire, payload = (np.bincount(links, each, len(machine.topology.arcs)) for each in both)
            for counted, is_payload in ((wire, False), (payload, True)):
                expected = np.zeros(len(counted))
                add_traffic(expected, way, payload=is_payload)
                np.testing.assert_allclose(counted, expected, rtol=1e-12)


def test_what_sizes_have_in_common_is_kept_once() -> None:
    """Latencies, caps and loads of a protocol are one array for all sizes, counts one number."""
    machine = make_machine(
        build_topology("dgx-a100", hosts=4, fabric="leaf-spine"), load_library("nccl")
    )
    ways = [
        lower_collective(machine, "all_reduce", nbytes, range(32), algorithm="tree")[-1]
        for nbytes in (64 * MIB, 128 * MIB)
    ]
    first, second = (way.stages[0] for way in ways)
    for name in ("latency_s", "cap_Bps", "load"):
        assert getattr(first, name) is getattr(second, name)
    for way in ways:
        assert way.schedule.phases[0].nbytes.strides == (0,)
        assert way.stages[0].phases[0].active.strides == (0,)
