"""How often rates are solved must not grow with the streams that begin and end together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import simpy

from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.sharing.max_min import LinkSharing
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.model import Topology


@pytest.mark.parametrize("streams", [4, 60])
def test_alike_streams_are_solved_once(
    switched_topology: Callable[..., Topology], monkeypatch: pytest.MonkeyPatch, streams: int
) -> None:
    solutions: list[int] = []
    rates = LinkSharing.rates

    def count(self: LinkSharing, *arguments: object) -> object:
        solutions.append(1)
        return rates(self, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(LinkSharing, "rates", count)
    topology = switched_topology([1e9] * 64, [0.0] * 64, down_Bps=1e9)
    machine = Machine(topology, load_library("plain"))
    network = FlowNetwork(simpy.Environment(), UncontendedTimer(machine))
    ends = [
        network.stream(machine.router.route(f"n0/gpu{number}", "n0/gpu63"), 1e9, 1e6 / 3)
        for number in range(streams)
    ]
    network.env.run(until=network.env.all_of(ends))
    assert network.env.now == pytest.approx(streams * 1e6 / 3 / 1e9, rel=1e-9)
    assert network.counted.wire_bytes.max() == pytest.approx(streams * 1e6 / 3, rel=1e-9)
    assert len(solutions) <= 2
