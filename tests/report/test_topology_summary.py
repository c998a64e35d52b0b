"""The summary says what is there; the layout keeps layers apart."""

from __future__ import annotations

import pytest

from perfmodel.report.topology import path_matrix, summary
from perfmodel.report.topology_layout import positions
from perfmodel.topology.templates.build import build_topology, template_names
from perfmodel.topology.templates.spec import FabricSpec


def test_summary_counts_links_and_path_types() -> None:
    lines = summary(build_topology("dgx-a100", hosts=4, fabric="rail-optimised"))
    text = "\n".join(lines)
    assert "dgx-a100 x 4: 32 ranks on 4 hosts, network rail-optimised" in text
    assert "      32  GPUs" in lines
    assert "      32  NICs" in lines
    assert any("nvlink" in line and "240 GB/s" in line and "300 ns" in line for line in lines)
    assert "each host sends 198.8 GB/s into the fabric" in lines  # 8 x 25 GB/s x 0.994
    assert not any("\x1b" in line or "[/" in line for line in lines)


def test_summary_says_the_oversubscription() -> None:
    fabric = FabricSpec(kind="leaf-spine", hosts_per_leaf=8, oversubscription=4)
    assert "leaf switches are oversubscribed 4 : 1" in summary(
        build_topology("ethernet-10g", hosts=16, fabric=fabric)
    )


def test_path_matrix_of_a_dgx_a100() -> None:
    names, rows = path_matrix(build_topology("dgx-a100"))
    assert names == [f"gpu{i}" for i in range(8)] + [f"nic{i}" for i in range(8)]
    assert rows[0][:3] == ["X", "NV12", "NV12"]
    assert rows[0][8:11] == ["PIX", "PIX", "SYS"]
    assert all(rows[i][j] == rows[j][i] for i in range(16) for j in range(16))


@pytest.mark.slow
@pytest.mark.parametrize("name", template_names())
def test_every_template_can_be_shown(name: str) -> None:
    topology = build_topology(name)
    assert len(summary(topology)) > 5
    assert set(positions(topology, range(topology.hosts))) == set(topology.graph)


def test_layout_has_layers_and_no_two_devices_in_one_place() -> None:
    topology = build_topology("dgx1-v100", hosts=40, fabric="leaf-spine")
    placed = positions(topology, (0, 1))
    assert len(set(placed.values())) == len(placed)
    hosts = {name.partition("/")[0] for name in placed}
    assert hosts == {"n0", "n1", "fabric"}
    height = {name: y for name, (_, y) in placed.items()}
    assert height["fabric/spine0"] > height["fabric/leaf0"] > height["n0/nic0"] > height["n0/cpu0"]
    assert height["n0/cpu0"] > height["n0/pcie0"] > height["n0/gpu0"]
    assert max(x for n, (x, _) in placed.items() if n.startswith("n0/")) < min(
        x for n, (x, _) in placed.items() if n.startswith("n1/")
    )
    assert "fabric/leaf7" not in placed, "its hosts are not drawn"
