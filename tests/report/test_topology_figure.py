"""Picture of a machine: each cable once, coloured by its busiest direction."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace
from pathlib import Path

import hypothesis
import networkx as nx
import pytest
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.report.common.quantities import link_path
from perfmodel.report.topology import topology_html, write_topology
from perfmodel.report.topology_figure import (
    Cable,
    cables_between,
    default_places,
    draw_topology,
    path,
    shrink,
    topology_caption,
)
from perfmodel.report.topology_layout import (
    LayerLabel,
    busiest_link,
    find_limiting,
    limit_sentence,
    stack,
)
from perfmodel.studies.run.result import Result, SizeResult
from perfmodel.studies.run.usage import LinkEnds, LinkUse
from perfmodel.topology.own_graph import topology_of
from perfmodel.topology.templates.build import build_topology


def test_cables_join_both_directions_and_parallel_links(result: Result) -> None:
    topology = result.topology
    graph = topology.graph.copy()
    for host in range(topology.hosts):
        for src, dst in (("gpu0", "nvs"), ("nvs", "gpu0")):
            numbers = {"bandwidth": 300e9, "latency": 1e-6, "index": graph.number_of_edges()}
            graph.add_edge(f"n{host}/{src}", f"n{host}/{dst}", kind="nvlink", **numbers)
    doubled = topology_of(graph)
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
    used = {trace.name for trace in draw_topology(result.topology, result.main).data}
    assert {"unused", "up to 10 %", "25 to 50 %", "over 50 %", "GPU", "NIC"} <= used
    kinds = {trace.name for trace in draw_topology(result.topology).data}
    assert {"NVLink", "PCIe", "InfiniBand", "GPU"} <= kinds
    assert not kinds & {"unused", "over 50 %"}


def test_hover_names_the_link_its_rate_and_its_use(result: Result) -> None:
    drawn = draw_topology(result.topology, result.main)
    texts = [text for trace in drawn.data for text in (trace.hovertext or ())]
    hover = next(text for text in texts if "fabric/leaf0 - n0/nic1" in text)
    plain = hover.replace("\N{NO-BREAK SPACE}", " ")
    assert "25.0 GB/s" in plain
    assert "62 % used" in plain


def test_only_placed_devices_are_drawn(result: Result) -> None:
    places = default_places(result.topology)
    drawn = draw_topology(result.topology, places=places)
    devices = sum(len(t.x) for t in drawn.data if t.mode and t.mode.startswith("markers+"))
    assert devices == len(places) == 14
    assert "one host is drawn, the others are wired alike" in topology_caption(result.topology)


def limited_by(result: Result, link: LinkUse) -> SizeResult:
    ends = link_of(link.src, link.dst, link.kind)
    return replace(
        result.main, bottleneck="host 0's NIC 1", bottleneck_path=str(ends), limiting_links=(ends,)
    )


def link_of(src: str, dst: str, kind: str) -> LinkEnds:
    return LinkEnds(src, dst, kind, ("nic", "switch"))


def test_the_bottleneck_is_thick_named_and_has_its_rate(result: Result) -> None:
    nic = next(
        link for link in result.main.links if (link.src, link.dst) == ("n0/nic1", "fabric/leaf0")
    )
    point = limited_by(result, nic)
    drawn = draw_topology(result.topology, point)
    thick = [trace for trace in drawn.data if trace.name == "bottleneck" and trace.mode == "lines"]
    assert [trace.line.width for trace in thick] == [6]
    words = [note.text.replace("\xa0", " ") for note in drawn.layout.annotations]
    (label,) = (text for text in words if "Bottleneck" in text)
    assert label == "<b>Bottleneck<br>2 \xd7 InfiniBand<br>25.0 GB/s<br>200 Gbit/s</b>"
    assert any("8 \xd7 NVLink" in text for text in words)
    sentence = limit_sentence(result.topology, point).replace("\xa0", " ")
    assert sentence.startswith("Bottleneck: host 0's NIC 1; drawn thick (InfiniBand of 25.0 GB/s")
    assert f"Path of the bottleneck: {point.bottleneck_path}" in busiest_link(point)


def test_a_bottleneck_whose_traffic_is_not_listed_is_drawn_at_its_like(result: Result) -> None:
    elsewhere = link_of("n112/gpu3", "n112/nvs", "nvlink")
    point = replace(result.main, limiting_links=(elsewhere,))
    (link,) = find_limiting(point)
    assert (link.src[:6], link.dst) == ("n0/gpu", "n0/nvs")
    assert find_limiting(replace(point, limiting_links=())) == []


def test_of_a_path_of_which_a_part_is_listed_the_rest_is_drawn_at_its_like(result: Result) -> None:
    listed = next(link for link in result.main.links if link.dst == "n0/nvs")
    links = (
        link_of(listed.src, "n0/nvs", "nvlink"),
        link_of("n112/nic1", "fabric/leaf9", "infiniband"),
    )
    limiting = find_limiting(replace(result.main, limiting_links=links))
    assert {link.kind for link in limiting} == {"nvlink", "infiniband"}
    assert {"n0/nvs", "fabric/leaf0"} <= {end for link in limiting for end in (link.src, link.dst)}
    text = "the GPUs' NVLink, the NICs"
    point = replace(result.main, limiting_links=links, bottleneck=text)
    words = limit_sentence(result.topology, point)
    assert "NVLink of " in words
    assert "InfiniBand of " in words
    assert "links like it are drawn thick" in words  # n112 is not in the picture


def test_the_path_of_a_bottleneck_has_links_alone(result: Result) -> None:
    link = link_of("n0/nic1", "fabric/leaf0", "infiniband")
    path = f"latency of the ring's steps, over {link}"
    point = replace(result.main, bottleneck_path=path, limiting_links=(link,))
    assert link_path(point) == "n0/nic1 -> fabric/leaf0 (infiniband)"
    assert busiest_link(point).endswith(f"Path of the bottleneck: {link}.")
    assert not link_path(replace(result.main, bottleneck_path="latency of the ring's steps"))


def test_the_host_of_the_bottleneck_is_drawn(result: Result) -> None:
    link = next(link for link in result.main.links if link.src.startswith("n0/"))
    elsewhere = replace(
        link, src=link.src.replace("n0/", "n1/"), dst=link.dst.replace("n0/", "n1/")
    )
    places = default_places(result.topology, [elsewhere])
    assert {result.topology.devices[name].host for name in places} == {-1, 1}


def test_compute_is_shown_at_the_gpus(result: Result) -> None:
    point = replace(result.main, bottleneck="compute", limit="compute")
    notes = [note.text for note in draw_topology(result.topology, point).layout.annotations]
    assert "<b>Bottleneck<br>GPU<br>compute</b>" in notes


@hypothesis.given(st.lists(st.integers(0, 8), min_size=1, max_size=9), st.floats(0.1, 0.4))
def test_labels_never_touch_and_stay_in_order(halves: list[int], line: float) -> None:
    labels = [LayerLabel(half / 2, ("PCIe", "24 GB/s"), limits=half == 3) for half in halves]
    placed = stack(labels, line)
    assert [label.height for _, label in placed] == sorted(label.height for label in labels)
    for (low, below), (high, above) in itertools.pairwise(placed):
        lines = (len(below.lines) + below.limits + len(above.lines) + above.limits) / 2
        assert high - low >= line * lines - 1e-9
    if len(labels) == 1:
        assert placed == [(labels[0].height, labels[0])]


@pytest.mark.slow
def test_page_is_written_and_other_formats_are_refused(tmp_path: Path) -> None:
    machine = build_topology("dgx-a100")
    page = write_topology(machine, tmp_path / "machine.html")
    assert "figure-topology" in page.read_text(encoding="utf-8")
    with pytest.raises(InputError, match=r"machine\.png.*\.html"):
        write_topology(machine, tmp_path / "machine.png")


@pytest.mark.slow
def test_a_page_lists_links_paths_and_sources_in_words_of_its_ranks() -> None:
    page = topology_html(build_topology("dgx-a100", hosts=2, fabric="rail-optimised"))
    for text in (
        "16 GPUs (a100-sxm4-80gb) in 2 hosts",
        "network rail-optimised",
        "240 GB/s",
        "NV12",
        "Each host sends 198.8 GB/s into the fabric",
        "NVIDIA A100 data sheet",
        "6.8 to 7.4 µs with torch 2.11",
    ):
        assert text in page
    loopback = topology_html(build_topology("cpu-loopback"))
    assert "16 processes (cpu-process) in one host" in loopback
    assert "no network" in loopback
    # names of the file's fields aside ("gpu peak")
    assert not re.findall(r"\bGPUs?\b", loopback.split("<script>")[0].split('"Process"')[0])


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


def test_a_graph_of_ones_own_is_drawn_by_distance() -> None:
    torus = nx.grid_graph((3, 3), periodic=True)
    for gpu in torus:
        torus.nodes[gpu].update(kind="gpu", model="a100-sxm4-80gb")
    for link in torus.edges:
        torus.edges[link].update(bandwidth="25 GB/s", latency="1 us")
    machine = topology_of(torus)
    places = default_places(machine)
    assert set(places) == set(machine.ranks)
    assert len(set(places.values())) == 9
    drawn = draw_topology(machine)
    assert not drawn.layout.annotations
    assert {trace.name for trace in drawn.data} >= {"NVLink", "GPU"}
