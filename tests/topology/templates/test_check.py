"""Faults of files and graphs: each found, named with file and line, all at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import Fault, InputError
from perfmodel.topology.fabric.fabric import resolve_fabric
from perfmodel.topology.templates.build import build_topology, check, load_node
from perfmodel.topology.templates.name_ranges import expand_pattern, expand_ranges
from perfmodel.topology.templates.spec import DeviceSpec, EdgeSpec, join

GOOD = """\
perfmodel: 1
kind: node
description: two GPUs behind a CPU
gpu: v100-pcie-16gb
sources:
  book: where the numbers come from
links:
  pcie: {kind: pcie, bandwidth: 10 GB/s, efficiency: 0.5, latency: 1 us, source: book}
  net: {kind: ethernet, bandwidth: 10 Gbit/s, efficiency: 1, latency: 2 us, source: a data sheet}
nodes:
  - {id: "gpu[0-1]", kind: gpu}
  - {id: cpu0, kind: cpu}
  - {id: nic0, kind: nic, port: net}
edges:
  - {from: "gpu[0-1]", to: cpu0, link: pcie, lanes: 2}
  - {from: nic0, to: cpu0, link: pcie}
"""


LINK = "links.n0/gpu0 -> n0/cpu0"


def faults_of(tmp_path: Path, *changes: tuple[str, str]) -> tuple[Fault, ...]:
    text = GOOD
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / "node.yaml"
    path.write_text(text)
    faults = check(path)
    for fault in faults:
        assert fault.file == str(path)
    if faults:
        with pytest.raises(InputError):
            build_topology(str(path))
    return faults


def test_a_good_file_has_none(tmp_path: Path) -> None:
    assert faults_of(tmp_path) == ()
    topology = build_topology(str(tmp_path / "node.yaml"))
    assert topology.template == "node"
    assert topology.graph["n0/gpu1"]["n0/cpu0"][0] == {
        "kind": "pcie",
        "bandwidth": 10e9,
        "latency": 1e-6,
        "lanes": 2,
        "index": 2,
    }
    assert topology.sources["pcie bandwidth"] == "where the numbers come from"


@pytest.mark.parametrize(
    ("old", "new", "field", "line", "said"),
    [
        (
            "to: cpu0, link: pcie, lanes",
            "to: cpuu0, link: pcie, lanes",
            "edges.0.to",
            15,
            "did you mean 'cpu0'",
        ),
        (
            "from: nic0, to: cpu0, link: pcie",
            "from: nic0, to: cpu0, link: pci",
            "edges.1.link",
            16,
            "did you mean 'pcie'",
        ),
        ("bandwidth: 10 GB/s", "bandwidth: 0 GB/s", "links.pcie.bandwidth", 8, "more than zero"),
        ("bandwidth: 10 GB/s", "bandwidth: 10", "links.pcie.bandwidth", 8, "a bandwidth such as"),
        ("kind: cpu}", "kind: cpuu}", "nodes.1.kind", 12, "did you mean 'cpu'"),
        ("kind: pcie,", "kind: pci,", "links.pcie.kind", 8, "did you mean 'pcie'"),
        ("id: cpu0", 'id: "gpu[1-2]"', "nodes.1.id", 12, "'gpu1' again"),
        (
            "  - {from: nic0, to: cpu0, link: pcie}\n",
            "",
            "nodes.2.id",
            13,
            "nic0, which no edge reaches",
        ),
        ("port: net", "port: pcie", "nodes.2.port", 13, "ethernet or infiniband"),
        (", port: net", "", "nodes.2.port", 13, "the link that leaves the NIC"),
        ("kind: cpu}", "kind: cpu, port: net}", "nodes.1.port", 12, "only a NIC has one"),
        ("gpu: v100-pcie-16gb", "gpu: v100-pcie-16g", "gpu", 4, "did you mean 'v100-pcie-16gb'"),
        ("source: book", "source: bok", "links.pcie.source", 8, "did you mean 'book'"),
        (
            "efficiency: 0.5",
            "efficiency: 1.5",
            "links.pcie.efficiency",
            8,
            "less than or equal to 1",
        ),
        ("lanes: 2", "lanes: 0", "edges.0.lanes", 15, "greater than or equal to 1"),
        ("lanes: 2", "laness: 2", "edges.0.laness", 15, "did you mean 'lanes'"),
        ('id: "gpu[0-1]"', 'id: "gpu[1-0]"', "nodes.0.id", 11, "from low to high"),
        ("latency: 1 us", "latency: -1 us", "links.pcie.latency", 8, "zero or more"),
        (
            'from: "gpu[0-1]", to: cpu0',
            'from: "gpu[0-1]", to: "gpu[0-1]"',
            "edges.0",
            15,
            "joined to itself",
        ),
    ],
)
def test_each_fault_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, field: str, line: int, said: str
) -> None:
    found = faults_of(tmp_path, (old, new))
    fault = next(f for f in found if f.field == field)
    assert fault.line == line
    assert said in str(fault)


def test_faults_of_shape_and_of_meaning_come_together(tmp_path: Path) -> None:
    found = faults_of(
        tmp_path,
        ("10 GB/s", "0 GB/s"),
        ("to: cpu0, link: pcie, lanes", "to: cpu9, link: pcie, lanes"),
    )
    assert [(f.field, f.line) for f in found] == [("links.pcie.bandwidth", 8), ("edges.0.to", 15)]


def test_a_key_given_twice_is_refused(tmp_path: Path) -> None:
    (fault,) = faults_of(tmp_path, ("kind: node\n", "kind: node\nkind: node\n"))
    assert fault.line is not None
    assert "given once" in fault.allowed


def test_unreachable_gpu_is_found(tmp_path: Path) -> None:
    path = tmp_path / "split.yaml"
    path.write_text(
        GOOD.replace('- {from: "gpu[0-1]", to: cpu0,', "- {from: gpu0, to: cpu0,")
        .replace("- {id: cpu0, kind: cpu}", "- {id: cpu0, kind: cpu}\n  - {id: cpu1, kind: cpu}")
        .replace("edges:\n", "edges:\n  - {from: gpu1, to: cpu1, link: pcie}\n")
    )
    found = check(path)
    assert {f.field for f in found} == {"nodes.n0/gpu0", "nodes.n0/gpu1"}
    assert all(f.file == str(path) for f in found)


def test_check_takes_names_and_specs_and_other_files() -> None:
    assert check("dgx-a100") == ()
    assert check(load_node("dgx-a100")) == ()
    (fault,) = check("dgx-a10")
    assert "did you mean 'dgx-a100'" in fault.allowed
    spec = load_node("ethernet-10g")
    broken = spec.model_copy(
        update={
            "edges": (EdgeSpec.model_validate({"from": "gpu0", "to": "cpu7", "link": "pcie3"}),)
        }
    )
    assert {f.field for f in check(broken)} == {f"nodes.{i}.id" for i in (1, 2, 3)} | {"edges.0.to"}
    with pytest.raises(InputError, match="cpu7"):
        build_topology(broken)


def test_shipped_fabrics_and_gpu_table_check_clean() -> None:
    from perfmodel.files import data_folder

    root = data_folder("topologies")
    for path in [root / "gpus.yaml", *sorted((root / "fabrics").glob("*.yaml"))]:
        assert check(path) == ()


def test_fabric_and_gpu_files_must_give_every_source(tmp_path: Path) -> None:
    fabric = tmp_path / "mine.yaml"
    fabric.write_text(
        "perfmodel: 1\nkind: fabric\ndescription: mine\n"
        "fabric: {kind: leaf-spine, radix: 8, switch_latency: 1 us}\n"
        "sources: {radix: a data sheet, radixx: a typo}\n"
    )
    found = check(fabric)
    assert {(f.field, f.line) for f in found} == {
        ("sources.switch_latency", 5),
        ("sources.radixx", 5),
    }
    fabric.write_text(fabric.read_text().replace("radixx", "switch_latency"))
    settled = resolve_fabric(str(fabric))
    spec = settled.spec
    assert (spec.kind, spec.radix, spec.switch_latency) == (
        "leaf-spine",
        8,
        1e-6,
    )
    assert settled.down_ports == 4

    gpus = tmp_path / "gpus.yaml"
    gpus.write_text(
        "perfmodel: 1\nkind: gpus\ngpus:\n  x:\n    generation: new\n    memory: 1 GiB\n"
        "    memory_bandwidth: 1 GB/s\n    peak: {fp32: 1 TFLOP/s, fp16: 2 TFLOP/s}\n"
        "    matmul_efficiency: {fp32: 1}\n    memory_efficiency: 1\n    kernel_overhead: 1 us\n"
        "    launch: 1 us\n    streaming_multiprocessors: 1\n    overlap_slowdown: 1\n"
        "    sources: {memory: a data sheet, peak: sheet}\n"
    )
    fields = [f.field for f in check(gpus)]
    assert "gpus.x.sources.launch" in fields, "no source"
    assert "gpus.x.sources.peak" in fields, "a key that does not exist"
    assert "gpus.x.matmul_efficiency" in fields, "fp16 has a peak but no efficiency"


def test_patterns() -> None:
    assert expand_pattern("nvs") == ("nvs",)
    assert expand_pattern("gpu[0-2]") == ("gpu0", "gpu1", "gpu2")
    assert expand_pattern("cpu[1-5:2]") == ("cpu1", "cpu3", "cpu5")
    assert join(("a", "b", "c", "d"), ("x", "y"), "each") == [
        ("a", "x"),
        ("b", "x"),
        ("c", "y"),
        ("d", "y"),
    ]
    assert join(("x", "y"), ("a", "b", "c", "d"), "each") == [
        ("x", "a"),
        ("x", "b"),
        ("y", "c"),
        ("y", "d"),
    ]
    assert join(("a", "b", "c"), ("a", "b", "c"), "all") == [("a", "b"), ("a", "c"), ("b", "c")]
    assert join(("a",), ("x", "y"), "all") == [("a", "x"), ("a", "y")]
    with pytest.raises(ValueError, match="multiple"):
        join(("a", "b", "c"), ("x", "y"), "each")
    with pytest.raises(ValueError, match="at most 8 ranges"):
        list(expand_ranges("[0]" * 5000))
    for wrong in ("gpu[", "gpu[a]", "gpu[3-1]", "0gpu", "gpu[]", "", "gpu[0-9999]"):
        with pytest.raises(ValueError, match=r"name|range"):
            expand_pattern(wrong)
    with pytest.raises(ValueError, match="name or a pattern"):
        DeviceSpec.model_validate({"id": 7, "kind": "gpu"})
