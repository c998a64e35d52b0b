"""`ibnetdiscover` as a listed fabric, and listed fabrics by themselves."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.topology.importers import import_file
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology, check
from perfmodel.topology.templates.spec import FabricSpec

# Made up: two leaves joined by three cables (one of them slower), hosts of two adapters on both
# leaves, an aggregation node, and a manager. Every cable stands at both of its ends.
FABRIC = """#
# Topology file: generated
#
vendid=0x2c9
Switch  41 "S-aa"         # "MF0;leaf1:MQM8700/U1" enhanced port 0 lid 1 lmc 0
[1]     "H-01"[1](1)                # "node1 mlx5_0" lid 11 4xHDR s=4
[2]     "H-03"[1](3)                # "node2 mlx5_0" lid 13 4xHDR
[38]    "S-bb"[38]                  # "MF0;leaf2:MQM8700/U1" lid 2 4xHDR
[39]    "S-bb"[39]                  # "MF0;leaf2:MQM8700/U1" lid 2 4xHDR
[40]    "S-bb"[40]                  # "MF0;leaf2:MQM8700/U1" lid 2 4xEDR
[41]    "H-0a"[1](a)                # "Mellanox Technologies Aggregation Node" lid 3 4xHDR

Switch  41 "S-bb"         # "MF0;leaf2:MQM8700/U1" enhanced port 0 lid 2 lmc 0
[1]     "H-02"[1](2)                # "node1 mlx5_1" lid 12 4xHDR
[2]     "H-04"[1](4)                # "node2 mlx5_1" lid 14 4xHDR
[3]     "H-05"[1](5)                # "ufm1 UFM" lid 15 4xHDR
[38]    "S-aa"[38]                  # "MF0;leaf1:MQM8700/U1" lid 1 4xHDR
[39]    "S-aa"[39]                  # "MF0;leaf1:MQM8700/U1" lid 1 4xHDR
[40]    "S-aa"[40]                  # "MF0;leaf1:MQM8700/U1" lid 1 4xEDR

Ca      1 "H-04"          # "node2 mlx5_1"
[1](4)    "S-bb"[2]         # lid 14 lmc 0 "MF0;leaf2:MQM8700/U1" lid 2 4xHDR
Ca      1 "H-03"          # "node2 mlx5_0"
[1](3)    "S-aa"[2]         # lid 13 lmc 0 "MF0;leaf1:MQM8700/U1" lid 1 4xHDR
Ca      1 "H-01"          # "node1 mlx5_0"
[1](1)    "S-aa"[1]         # lid 11 lmc 0 "MF0;leaf1:MQM8700/U1" lid 1 4xHDR
Ca      1 "H-02"          # "node1 mlx5_1"
[1](2)    "S-bb"[1]         # lid 12 lmc 0 "MF0;leaf2:MQM8700/U1" lid 2 4xHDR
Ca      1 "H-05"          # "ufm1 UFM"
[1](5)    "S-bb"[3]         # lid 15 lmc 0 "MF0;leaf2:MQM8700/U1" lid 2 4xHDR
Ca      1 "H-0a"          # "Mellanox Technologies Aggregation Node"
[1](a)    "S-aa"[41]         # lid 3 lmc 0 "MF0;leaf1:MQM8700/U1" lid 1 4xHDR
"""


def test_switches_cables_and_hosts(tmp_path: Path) -> None:
    path = tmp_path / "ib.txt"
    path.write_text(FABRIC)
    found = import_file(path)
    fabric = found.fabric().fabric
    assert fabric.hosts is not None
    assert [(host.name, host.leaves) for host in fabric.hosts] == [
        ("node1", ("leaf1:MQM8700-U1", "leaf2:MQM8700-U1")),
        ("node2", ("leaf1:MQM8700-U1", "leaf2:MQM8700-U1")),
    ]
    assert fabric.trunks is not None
    cables = {(t.cables, t.bandwidth) for t in fabric.trunks}
    assert cables == {(2, 25e9), (1, 12.5e9)}, "each cable once, by its rate"
    assert any("Aggregation Node" in note for note in found.notes)


def test_what_is_written_joins_hosts(tmp_path: Path) -> None:
    path, written = tmp_path / "ib.txt", tmp_path / "fabric.yaml"
    path.write_text(FABRIC)
    written.write_text(import_file(path).text())
    assert check(written) == ()
    topology = build_topology("l40s-x8", hosts=2, fabric=str(written))
    assert check(topology) == ()
    router = Router(topology)
    rail = router.route("n0/nic0", "n1/nic0")
    assert [topology.arcs.names[arc][1] for arc in rail] == ["fabric/leaf1:MQM8700-U1", "n1/nic0"]
    across = {router.route("n0/nic0", "n1/nic1", flow) for flow in range(32)}
    assert len(across) == 3, "three cables between the leaves share the flows"
    rates = {float(topology.arcs.bandwidth_Bps[way[1]]) for way in across}
    assert max(rates) == pytest.approx(2 * min(rates))


def test_more_or_other_hosts_than_the_list(tmp_path: Path) -> None:
    path, written = tmp_path / "ib.txt", tmp_path / "fabric.yaml"
    path.write_text(FABRIC)
    written.write_text(import_file(path).text())
    with pytest.raises(InputError, match="at most 2 in this fabric"):
        build_topology("l40s-x8", hosts=3, fabric=str(written))
    with pytest.raises(InputError, match="8 NICs per host, and 2 of node1"):
        build_topology("dgx-a100", hosts=2, fabric=str(written))


def test_listed_in_code() -> None:
    spec = FabricSpec.model_validate(
        {
            "kind": "listed",
            "hosts": [{"name": "a", "leaves": ["x"]}, {"name": "b", "leaves": ["y"]}],
            "trunks": [{"from": "x", "to": "core"}, {"from": "core", "to": "y"}],
        }
    )
    topology = build_topology("ethernet-100g", hosts=2, fabric=spec)
    route = Router(topology).route("n0/nic0", "n1/nic0")
    assert [topology.arcs.names[arc][1] for arc in route] == [
        "fabric/x",
        "fabric/core",
        "fabric/y",
        "n1/nic0",
    ]
    apart = spec.model_copy(update={"trunks": spec.trunks[:1] if spec.trunks else ()})
    with pytest.raises(InputError, match="no cables from x to y"):
        build_topology("ethernet-100g", hosts=2, fabric=apart)


def test_cables_may_be_written_from_either_end() -> None:
    hosts = [{"name": "a", "leaves": ["x"]}, {"name": "b", "leaves": ["y"]}]
    trunks = [{"from": "x", "to": "y"}, {"from": "y", "to": "x", "cables": 2}]
    spec = FabricSpec.model_validate({"kind": "listed", "hosts": hosts, "trunks": trunks})
    topology = build_topology("ethernet-100g", hosts=2, fabric=spec)
    assert check(topology) == ()
    assert topology.graph.number_of_edges("fabric/x", "fabric/y") == 3
    assert spec.trunks is not None
    loop = spec.model_copy(update={"trunks": (spec.trunks[0].model_copy(update={"to": "x"}),)})
    with pytest.raises(InputError, match=r"x joined to itself|no cables"):
        build_topology("ethernet-100g", hosts=2, fabric=loop)


def test_a_listed_fabric_needs_its_hosts(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(
        "perfmodel: 1\nkind: fabric\ndescription: x\nfabric: {kind: listed}\nsources: {}\n"
    )
    (fault,) = check(path)
    assert fault.field == "fabric.hosts"


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('Ca      1 "H-02"', 'Ca      1 "H-01"', "again"),
        ('[39]    "S-bb"[39]                  #', "[39]    S-bb", "port"),
        ('[1]     "H-01"', '[1]     "H-01', "port"),
    ],
)
def test_blocks_that_are_wrong(tmp_path: Path, old: str, new: str, match: str) -> None:
    path = tmp_path / "ib.txt"
    path.write_text(FABRIC.replace(old, new))
    with pytest.raises(InputError, match=match) as caught:
        import_file(path)
    assert caught.value.faults[0].line


def test_a_fabric_has_no_gpus(tmp_path: Path) -> None:
    path = tmp_path / "ib.txt"
    path.write_text(FABRIC)
    with pytest.raises(InputError, match="a fabric has no GPUs"):
        import_file(path, gpu="A100")
    path.write_text('Switch 4 "S-aa" # "lonely"\n')
    with pytest.raises(InputError, match="no host beside a switch"):
        import_file(path)


def test_a_real_fabric() -> None:
    folder = os.environ.get("PERFMODEL_SAMPLES")
    if not folder:
        pytest.skip("PERFMODEL_SAMPLES names no folder with fabrics of other people")
    fabric = import_file(Path(folder) / "ibnetdiscover_small.txt").fabric().fabric
    assert fabric.hosts is not None
    assert fabric.trunks is not None
    assert (len(fabric.hosts), len(fabric.trunks)) == (10, 7)


def test_a_listing_that_is_cut_off_or_contradicts_itself_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "ib.txt"
    switch = "".join(
        f'[{n}]\t"H-0{n}"[1](a) \t# "host{n} mlx5_0" lid {n} 4xHDR\n' for n in range(1, 5)
    )
    text = f'Switch\t40 "S-aa"\t# "leaf" base port 0\n{switch}\n' + "".join(
        f'Ca\t1 "H-0{n}"\t# "host{n} mlx5_0"\n[1](a) \t"S-aa"[{n}]\t# "leaf" lid 1 4xHDR\n\n'
        for n in range(1, 5)
    )
    path.write_text("".join(f"node-1: {line}\n" for line in text.splitlines()))
    assert len(import_file(path).document["fabric"]["hosts"]) == 4
    path.write_text(text[: text.index('Ca\t1 "H-03"')])
    with pytest.raises(InputError, match="2 devices at the far end of cables without a block"):
        import_file(path)
    path.write_text(text.replace('"S-aa"[3]', '"S-aa"[4]'))
    with pytest.raises(InputError, match="which leads elsewhere"):
        import_file(path)
    path.write_text(text.replace('[3]\t"H-03"[1](a) \t# "host3 mlx5_0" lid 3 4xHDR\n', ""))
    assert any("only one of their ends" in note for note in import_file(path).notes)
