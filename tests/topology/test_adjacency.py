"""Neighbours of a device, listed when they are asked for: all arcs, each once."""

from __future__ import annotations

import pytest

from perfmodel.topology.templates.build import build_topology


@pytest.mark.parametrize("fabric", ["fat-tree", "rail-optimised", "leaf-spine"])
@pytest.mark.parametrize("template", ["dgx-a100", "v100-x8-25g", "gb200-nvl72"])
def test_neighbours_are_those_of_all_arcs(template: str, fabric: str) -> None:
    topology = build_topology(template, hosts=3, fabric=fabric)
    out: dict[str, dict[str, list[int]]] = {name: {} for name in topology.devices}
    into: dict[str, dict[str, list[int]]] = {name: {} for name in topology.devices}
    for arc, (src, dst) in enumerate(topology.built.names):
        out[src].setdefault(dst, []).append(arc)
        into[dst].setdefault(src, []).append(arc)
    assert dict(topology.links) == out
    assert dict(topology.links_into) == into
    assert len(topology.links) == len(topology.devices)
    with pytest.raises(KeyError):
        topology.links["n9/gpu0"]
