"""Every field of a node, a fabric, a table of GPUs and of a library's settings acts, or is refused.

The fields come from the schemas, so that a new one is tried as it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.errors import InputError
from perfmodel.files import plain, validate_document
from perfmodel.files.read import parse_yaml
from perfmodel.library.settings import LibrarySettings
from perfmodel.report.run.text import to_json
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.collective import collective_rows
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.load import reference_faults
from perfmodel.topology.templates.spec import FabricSpec, GpuTable, NodeSpec
from tests.fields import Document, acts, list_fields, other_values, value_at

# ---------------------------------------------------------------- fabrics

LISTED = {
    "kind": "listed",
    "hosts": [{"name": "a", "leaves": ["x"]}, {"name": "b", "leaves": ["y"]}],
    "trunks": [{"from": "x", "to": "y"}],
}
SHAPES: dict[str, Document] = {
    "one-switch": {"kind": "one-switch"},
    "leaf-spine": {"kind": "leaf-spine", "radix": 4},
    "rail-optimised": {"kind": "rail-optimised", "radix": 4},
    "fat-tree": {"kind": "fat-tree", "radix": 4},
    "rail-only": {"kind": "rail-only", "radix": 4},
    "dragonfly": {"kind": "dragonfly", "radix": 5, "routers_per_group": 2},
    "torus": {"kind": "torus"},
    "mesh": {"kind": "mesh"},
    "hypercube": {"kind": "hypercube"},
    "flattened-butterfly": {"kind": "flattened-butterfly"},
    "listed": LISTED,
}
OTHERS: dict[str, list[Any]] = {
    "kind": ["leaf-spine", "fat-tree"],
    "hosts": [[{"name": "a", "leaves": ["x"]}]],
    "trunks": [[{"from": "y", "to": "x"}]],
    "leaves": [["y"], ["x"]],
    "from": ["z"],
    "to": ["z"],
    "dims": [[2, 5], [3, 3]],
    "routing": ["dimension-ordered", "valiant", "minimal"],
}
IMPLIED = {(shape, "routing"): "ecmp" for shape in ("one-switch", "listed", "rail-only")}
"""Values that hold in a shape without being said."""
NAMES = "names of hosts are in messages only: switches and cables make the network"


def network_of(document: Document) -> object:
    """All that the network of a fabric has: its arcs, and where flows go."""
    hosts = 2 if document["kind"] == "listed" else 8
    topology = build_topology(
        "ethernet-10g", hosts=hosts, fabric=validate_document(FabricSpec, document)
    )
    ports = np.arange(hosts)
    lengths, arcs = Router(topology).across(ports, np.roll(ports, 1), ports)
    return _arcs_of(topology), lengths.tolist(), arcs.tolist()


def _arcs_of(topology: Topology) -> object:
    arcs = topology.arcs
    return arcs.names, arcs.lanes.tolist(), arcs.bandwidth_Bps.tolist(), arcs.latency_s.tolist()


@pytest.mark.parametrize(
    ("shape", "name"),
    [(shape, name) for shape, at in SHAPES.items() for name in list_fields(FabricSpec, at)],
)
def test_every_field_of_a_fabric_acts_or_is_refused(shape: str, name: str) -> None:
    document = SHAPES[shape]
    values = other_values(FabricSpec, document, name) or OTHERS.get(name.rpartition(".")[2], [])
    held = value_at(document, name), IMPLIED.get((shape, name))
    values = [value for value in values if value not in held]
    if name.startswith("hosts.") and name.endswith(".name"):
        assert not acts(document, network_of, name, ["c"]), NAMES
    else:
        assert acts(document, network_of, name, values), f"{name} with {values}"


# ---------------------------------------------------------------- GPUs

TABLE = """
perfmodel: 1
kind: gpus
gpus:
  mine:
    generation: ampere
    memory: 40 GiB
    memory_bandwidth: 1555 GB/s
    peak: {fp32: 19.5 TFLOP/s, fp16: 312 TFLOP/s}
    matmul_efficiency: {fp32: 0.5, fp16: 0.5}
    memory_efficiency: 0.5
    kernel_overhead: 2 us
    launch: 4 us
    streaming_multiprocessors: 108
    overlap_slowdown: 1.1
    power: 400 W
"""
TEXTS = {
    "perfmodel": "the version of the format: no other is read",
    "kind": "what kind of file it is: no other is read",
    "description": "text",
    "sources": "text",
    "gpus.mine.sources": "text",
    "gpus.mine.peak": "has keys of its own, tried as one",
    "gpus.mine.matmul_efficiency": "has keys of its own, tried as one",
    "gpus.mine.streaming_multiprocessors": "a number of the datasheet that no formula reads",
    "gpus.mine.power": "of `perfmodel plan`, whose tests of energy try it",
}


def gpu_document() -> Document:
    document: Document = dict(plain(parse_yaml(TABLE)))
    gpu = document["gpus"]["mine"]
    gpu["sources"] = {name: "made up for a test" for name in gpu if name != "generation"}
    return document


GPU_VALUES: dict[str, list[Any]] = {"generation": ["hopper", "volta"]}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*list_fields(GpuTable, gpu_document())])
def test_every_field_of_a_gpu_acts(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "topologies"
    folder.mkdir()
    node = (Path(str(_template("dgx-a100")))).read_text()
    plugged = name.split(".")[2:3] in (["form"], ["pcie"], ["nvlink"])
    composed = "perfmodel: 1\nkind: node\ngpus: 4 x mine\n"
    text = composed if plugged else node.replace("gpu: a100-sxm4-80gb", "gpu: mine")
    (folder / "own.yaml").write_text(text)
    (tmp_path / "asked.yaml").write_text(
        "# How long?\nperfmodel: 1\nmodel: {name: resnet18}\ncompute: {precision: fp16}\n"
        "cluster: {node: own, gpus_per_node: 4}\ntraining: {batch_per_gpu: 8}\n"
    )

    def answer(document: Document) -> object:
        (folder / "gpus.yaml").write_text(json.dumps(document))
        result = to_json(run_scenario(load_scenario("asked.yaml")))
        return {part: result[part] for part in ("step_time_s", "breakdown_s", "memory", "fits")}

    values = other_values(GpuTable, gpu_document(), name) or GPU_VALUES.get(
        name.rpartition(".")[2], []
    )
    if name not in TEXTS:
        assert acts(gpu_document(), answer, name, values), f"{name} with {values}"


def _template(name: str) -> Path:
    from perfmodel.files import find_file

    return find_file(name, "topologies")


# ---------------------------------------------------------------- hosts

NODE = """
perfmodel: 1
kind: node
description: four GPUs and two NICs at one PCIe switch
gpu: l40s
gpu_p2p: false
links:
  pcie4: {kind: pcie, bandwidth: 32 GB/s, efficiency: 0.8, latency: 1 us, source: made up}
  up: {kind: pcie, bandwidth: 16 GB/s, efficiency: 0.8, latency: 1 us, source: made up}
  eth: {kind: ethernet, bandwidth: 100 Gbit/s, efficiency: 0.9, latency: 2 us, source: made up}
nodes:
  - {id: "gpu[0-3]", kind: gpu}
  - {id: pcie0, kind: pcie_switch}
  - {id: cpu0, kind: cpu}
  - {id: "nic[0-1]", kind: nic, port: eth}
edges:
  - {from: "gpu[0-3]", to: pcie0, link: pcie4}
  - {from: "nic[0-1]", to: pcie0, link: pcie4}
  - {from: pcie0, to: cpu0, link: up}
"""
NODE_VALUES: dict[str, list[Any]] = {
    "perfmodel": [2],
    "kind": ["fabric", "memory"],
    "gpu": ["a100-pcie-40gb", "h100-pcie"],
    "id": ["other[0-9]"],
    "port": ["pcie4", "eth"],
    "from": ["gpu[0-4]", "nic[0-2]"],
    "to": ["cpu0", "gpu3"],
    "link": ["up", "pcie4"],
    "staging": [{"bandwidth": "1 GB/s", "source": "made up"}],
    "launch": [{"time": "20 us", "source": "made up"}],
    "graphs": [
        [
            {
                "pattern": "ring",
                "intra": "5 GB/s",
                "inter": "5 GB/s",
                "type_intra": "PHB",
                "type_inter": "PHB",
                "source": "made up",
                "channels": [
                    {"gpus": ["gpu0", "gpu1", "gpu2", "gpu3"], "enter": "nic0", "leave": "nic0"}
                ],
            }
        ]
    ],
    "sockets": [{"burst": "10 kB", "source": "made up"}],
}
IDLE = {
    "name": "a name",
    "description": "text",
    "sources": "text",
    "source": "text",
    "efficiency_source": "text",
    "latency_source": "text",
    "flow_source": "text",
    "pattern": "one device at an end is joined to each of the other, and to all of them",
}
"""Fields that change nothing, and why, by their last part."""


def times_on(document: Document) -> object:
    """Arcs of two hosts, and times of collectives and of a step on them."""
    faults = reference_faults(document)
    if faults:
        raise InputError(faults)
    topology = build_topology(
        validate_document(NodeSpec, document), hosts=2, fabric="rail-optimised"
    )
    rows = [
        [row["time_s"] for row in collective_rows(topology, sizes=[8, 1 << 24], library=library)]
        for library in ("nccl", "gloo")
    ]
    return topology.gpu, _arcs_of(topology), topology.arcs.kinds, topology.sockets, rows


@pytest.mark.slow
@pytest.mark.parametrize("name", list(list_fields(NodeSpec, dict(plain(parse_yaml(NODE))))))
def test_every_field_of_a_host_acts_or_is_refused(name: str) -> None:
    document = dict(plain(parse_yaml(NODE)))
    last = name.rpartition(".")[2]
    values = other_values(NodeSpec, document, name) or NODE_VALUES.get(last, [])
    values = [value for value in values if value != value_at(document, name)]
    if last not in IDLE:
        assert acts(document, times_on, name, values), f"{name} with {values}"


# ---------------------------------------------------------------- settings of the library

SETTINGS: dict[str, list[Any]] = {
    "version": ["2.4.8"],
    "env": [{"NCCL_PROTO": "LL"}],
    "one_process": [True],
    "awaited": [True],
}


@pytest.mark.parametrize("name", sorted(LibrarySettings.model_fields))
def test_every_setting_of_a_library_acts(name: str) -> None:
    topology = build_topology("dgx-a100")

    def answer(document: Document) -> object:
        settings = validate_document(LibrarySettings, document)
        return collective_rows(topology, sizes=[8, 1 << 22], settings=settings)

    assert acts({}, answer, name, SETTINGS[name])
