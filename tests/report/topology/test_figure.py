"""Picture of a machine: each cable once, coloured by its busiest direction."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.report.topology.figure import (
    Cable,
    cables_between,
    default_places,
    draw_topology,
    path,
    shrink,
    topology_caption,
    write_topology,
)
from perfmodel.studies.run.result.model import LinkUse, Result
from perfmodel.topology.graph import from_networkx


def test_cables_join_both_directions_and_parallel_links(result: Result) -> None:
    topology = result.topology
    graph = topology.graph.copy()
    for src, dst in (("n0/gpu0", "n0/nvs"), ("n0/nvs", "n0/gpu0")):
        index = graph.number_of_edges()
        graph.add_edge(src, dst, kind="nvlink", bandwidth_Bps=300e9, latency_s=1e-6, index=index)
    devices, built = from_networkx(graph)
    doubled = replace(topology, devices=devices, built=built)
    use = [
        LinkUse("n0/gpu0", "n0/nvs", "nvlink", 10.0, 0.2),
        LinkUse("n0/nvs", "n0/gpu0", "nvlink", 30.0, 0.6),
    ]
    cables = cables_between(doubled, use, ["n0/gpu0", "n0/nvs", "n0/gpu1"])
    found = {cable.ends: cable for cable in cables}
    assert found.keys() == {("n0/gpu0", "n0/nvs"), ("n0/gpu1", "n0/nvs")}
    pair = found["n0/gpu0", "n0/nvs"]
    assert (pair.arcs, pair.bandwidth_Bps) == (2, 600e9)
    assert (pair.utilisation, pair.nbytes) == (0.6, 30.0)
    assert found["n0/gpu1", "n0/nvs"].utilisation == 0.0


def test_colours_tell_use_or_kind(result: Result) -> None:
    used = {trace.name for trace in draw_topology(result.topology, result.main.links).data}
    assert {"unused", "up to 10 %", "25 to 50 %", "over 50 %", "GPU", "NIC"} <= used
    kinds = {trace.name for trace in draw_topology(result.topology).data}
    assert {"NVLink", "PCIe", "InfiniBand", "GPU"} <= kinds
    assert not kinds & {"unused", "over 50 %"}


def test_hover_names_the_link_its_rate_and_its_use(result: Result) -> None:
    drawn = draw_topology(result.topology, result.main.links)
    texts = [text for trace in drawn.data for text in (trace.hovertext or ())]
    hover = next(text for text in texts if "leaf0 - n0/nic1" in text)
    plain = hover.replace("\N{NO-BREAK SPACE}", " ")
    assert "25.0 GB/s" in plain
    assert "62 % used" in plain


def test_only_placed_devices_are_drawn(result: Result) -> None:
    places = default_places(result.topology)
    drawn = draw_topology(result.topology, places=places)
    devices = sum(len(t.x) for t in drawn.data if t.mode and t.mode.startswith("markers+"))
    assert devices == len(places) == 27
    assert "the first 2 hosts are drawn" in topology_caption(result.topology)


def test_page_is_written_and_other_formats_are_refused(result: Result, tmp_path: Path) -> None:
    page = write_topology(result.topology, tmp_path / "machine.html")
    assert "figure-topology" in page.read_text(encoding="utf-8")
    with pytest.raises(InputError, match=r"machine\.png.*\.html"):
        write_topology(result.topology, tmp_path / "machine.png")


def test_links_within_a_row_do_not_lie_on_top_of_each_other() -> None:
    places = {"a": (0.0, 0.0), "b": (1.0, 0.0), "c": (2.0, 0.0), "d": (1.0, 1.0)}
    near = path(Cable(("a", "b"), "nvlink", 1.0, 1, 0.0, 0.0), places)
    far = path(Cable(("a", "c"), "nvlink", 1.0, 1, 0.0, 0.0), places)
    assert near[0] == far[0] == (0.0, 0.0)
    assert far[-1] == (2.0, 0.0)
    assert min(y for _, y in far) < min(y for _, y in near) < 0
    assert path(Cable(("a", "d"), "nvlink", 1.0, 1, 0.0, 0.0), places) == [(0, 0), (1, 1)]


def test_devices_shrink_in_crowded_rows_only() -> None:
    assert shrink({"alone": (0.0, 0.0)}, ["alone"]) == 1.0
    few = {f"few {i}": (9.0 * i, 1.0) for i in range(8)}
    many = {f"many {i}": (float(i), 0.0) for i in range(73)}
    assert shrink(few | many, few) == 1.0
    assert 18 * shrink(few | many, many) * 72 <= 330 * 1.01
