"""Composed hosts in files and in words, and shipped ones as text."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.files import validate_document
from perfmodel.files.read import parse_yaml
from perfmodel.topology.composed.load import load_node, node_files
from perfmodel.topology.from_text.describe import describe
from perfmodel.topology.importers.imported import node_text
from perfmodel.topology.templates.build import build_topology, template_names
from perfmodel.topology.templates.spec import NodeSpec

BASE = """perfmodel: 1
kind: node
extends: dgx-a100
nics: {count: 4, rate: 100 Gbit/s, kind: roce}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "base.yaml").write_text(BASE)
    (tmp_path / "mine.yaml").write_text(
        "perfmodel: 1\nkind: node\nname: rack 7\nextends: base.yaml\nnics: {rate: 200 Gbit/s}\n"
    )
    return tmp_path


@pytest.mark.parametrize("name", [*template_names(), "2 x rtx-4090, 10 GbE"])
def test_a_node_as_text_reads_back(name: str) -> None:
    node = load_node(name)
    assert validate_document(NodeSpec, parse_yaml(node_text(node))) == node


def test_a_file_extends_a_file_beside_it(folder: Path) -> None:
    node = load_node(str(folder / "mine.yaml"))
    port = node.links[next(spec.port for spec in node.nodes if spec.port)]
    assert (node.name, port.network_kind, port.bandwidth) == ("rack 7", "roce", 25e9)
    assert [path.name for path in node_files(str(folder / "mine.yaml"))] == [
        "mine.yaml",
        "base.yaml",
        "dgx-a100.yaml",
    ]


def test_faults_of_a_file_name_its_lines(folder: Path) -> None:
    file = folder / "bad.yaml"
    file.write_text(BASE + "pcie: gen9\ngpus: 12\nwheels: 4\n")
    with pytest.raises(InputError) as raised:
        load_node(str(file))
    assert [(f.field, f.line) for f in raised.value.faults] == [("wheels", 7)]
    file.write_text(BASE + "gpus: 12\ncpu: pentium\n")
    with pytest.raises(InputError) as raised:
        load_node(str(file))
    assert [(f.field, f.file, f.line) for f in raised.value.faults] == [
        ("gpus", str(file), 5),
        ("cpu", str(file), 6),
    ]


def test_no_node_extends_itself(folder: Path) -> None:
    (folder / "base.yaml").write_text(BASE.replace("dgx-a100", "mine.yaml"))
    with pytest.raises(InputError, match="does not extend itself"):
        load_node(str(folder / "mine.yaml"))
    assert len(list(node_files(str(folder / "mine.yaml")))) == 2


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("dgx-a100, banana, gluon", "'no P2P'"),
        ("2 x rtx-4090, 10 GbE, 25 GbE", "each once"),
        ("2 x geforce-9999", "a GPU among"),
        ("dgx-a100, PCIe gen5 x16", "at most gen4"),
    ],
)
def test_words_without_meaning_are_refused(text: str, allowed: str) -> None:
    with pytest.raises(InputError) as raised:
        load_node(text)
    assert allowed in str(raised.value)
    assert all(fault.field == "topology" for fault in raised.value.faults)


LABS = {
    "rtx3090-x2-10g": (2, 10, "tcp"),
    "rtx3090-x4-25g": (4, 25, "tcp"),
    "rtx4090-x2-10g": (2, 10, "tcp"),
    "rtx4090-x4-25g": (4, 25, "tcp"),
    "rtx5090-x2-25g": (2, 25, "tcp"),
    "rtx5090-x4-100g": (4, 100, "roce"),
}


@pytest.mark.parametrize("name", LABS)
def test_nodes_of_small_labs(name: str) -> None:
    gpus, rate_Gbps, network = LABS[name]
    topology = build_topology(name, hosts=2, fabric="one-switch")
    assert (len(topology.ranks), topology.network) == (2 * gpus, network)
    node = load_node(name)
    rates = [node.links[spec.port].bandwidth * 8e-9 for spec in node.nodes if spec.port]
    assert rates == [rate_Gbps]
    assert not topology.gpu_p2p
    assert not topology.gpudirect_rdma
    assert topology.gpu.name == f"rtx-{name[3:7]}"


@pytest.mark.parametrize(
    ("name", "gpus", "gpu"), [("hgx-b300", 8, "B300"), ("gb300-nvl72", 72, "GB300")]
)
def test_blackwell_ultra_has_adapters_of_800_gigabits(name: str, gpus: int, gpu: str) -> None:
    """NVIDIA HGX B300 and GB300 NVL72 data sheets: 18 NVLinks of 50 GB/s, ConnectX-8."""
    node = load_node(name)
    links = {link.kind: link.bandwidth for link in node.links.values()}
    assert links["infiniband"] == 100e9
    assert links["nvlink"] == 50e9
    assert len(build_topology(node).ranks) == gpus
    assert describe(gpu, gpus=4 if gpus == 72 else 8, intra="NVSwitch").template == name
