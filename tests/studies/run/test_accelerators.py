"""Accelerators by their data sheets: collectives over a torus, grades, and words that fit them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.library.settings import LibrarySettings
from perfmodel.report.common.document import count_ranks, in_words_of
from perfmodel.scenario.load import make_scenario
from perfmodel.studies.advise.run import advise_scenario
from perfmodel.studies.run.collective import collective_rows
from perfmodel.studies.run.evidence import evidence_of
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.steps.sized_job import size_job
from perfmodel.topology.templates.build import build_topology, with_usual_routing
from perfmodel.topology.templates.gpus import gpu_names, load_gpu
from perfmodel.topology.templates.load import template_names
from perfmodel.topology.templates.spec import FabricSpec

GIB = 1 << 30
BOOK = {
    "tpu-v4": (275e12, 1.2e12, 32, 4.5e10, 6),
    "tpu-v5e": (197e12, 8.1e11, 16, 4.5e10, 4),
    "tpu-v5p": (459e12, 2.8e12, 95, 9e10, 6),
    "tpu-v6e": (920e12, 1.6e12, 32, 9e10, 4),
}
"""Austin et al., How to Scale Your Model, part 2: operations per second in bf16, bytes per second
and GiB of memory, bytes per second of an ICI link and direction, links of a chip."""


def torus(node: str, *dims: int, kind: str = "torus") -> Any:
    fabric = with_usual_routing(node, FabricSpec(kind=kind, dims=dims))  # type: ignore[arg-type]
    return build_topology(node, hosts=math.prod(dims), fabric=fabric)


def job(**more: Any) -> Any:
    return {
        "perfmodel": 1,
        "model": {"name": "llama3-8b", "sequence_length": 2048},
        "compute": {"precision": "bf16", "optimizer": "adamw"},
        "strategy": {"kind": "fsdp", "param_dtype": "bf16"},
        "training": {"batch_per_gpu": 1},
        **more,
    }


SLICE = {"node": "tpu-v5p", "nodes": 16, "fabric": {"kind": "torus", "dims": [4, 4]}}


@pytest.mark.parametrize(
    ("field", "value"),
    [("env", {"NCCL_ALGO": "Tree"}), ("version", "2.21.5"), ("algorithm", "tree"), ("channels", 4)],
)
def test_settings_of_nccl_are_refused(field: str, value: object) -> None:
    inputs = resolve_scenario(make_scenario(job(cluster=SLICE, library={field: value})), None, None)
    with pytest.raises(InputError, match=rf"library\.{field}.*accelerators have in place of nccl"):
        size_job(inputs, inputs.sizes[-1])


def test_a_collective_refuses_variables_of_nccl() -> None:
    settings = LibrarySettings(env={"NCCL_ALGO": "Tree"})
    with pytest.raises(InputError, match=r"NCCL_ALGO.*nothing of NCCL on tpu-v5p"):
        make_machine(torus("tpu-v5p", 4, 4), load_library("nccl"), settings=settings)


# ---------------------------------------------------------------- data sheets


@pytest.mark.parametrize("name", BOOK)
def test_numbers_are_those_of_the_book(name: str) -> None:
    flops, memory_Bps, gib, link_Bps, links = BOOK[name]
    gpu = load_gpu(name)
    assert gpu.accelerator
    assert gpu.peak_flops["bf16"] == pytest.approx(flops, rel=0.01)
    assert gpu.memory_Bps == pytest.approx(memory_Bps, rel=0.04)
    assert gpu.memory_bytes == pytest.approx(gib * GIB, rel=0.01)
    (nic,) = (
        data
        for _, data in build_topology(name).node_graph.nodes(data=True)
        if data["kind"] == "nic"
    )
    assert nic["port_bandwidth"] * nic["port_efficiency"] == pytest.approx(links * link_Bps)


def test_every_template_has_its_chip() -> None:
    ours = {name for name in gpu_names() if load_gpu(name).accelerator}
    nodes = {name for name in template_names() if build_topology(name).gpu.name in ours}
    assert len(ours) == 13
    assert len(nodes) == 11


# ---------------------------------------------------------------- collectives


@pytest.mark.parametrize(
    ("dims", "op", "passes"),
    [
        ((4, 4, 4), "all_reduce", 2),
        ((4, 4, 4), "all_gather", 1),
        ((8, 8), "all_reduce", 2),
        ((16,), "reduce_scatter", 1),
    ],
)
def test_rings_over_each_dimension_use_the_links_of_a_chip(
    dims: tuple[int, ...], op: str, passes: int
) -> None:
    """Bytes over the bandwidth of all axes, 1.8e11 a second and axis (the book, part 3)."""
    (row,) = collective_rows(torus("tpu-v5p", *dims), op=op, sizes=[8 * GIB])
    chips = math.prod(dims)
    ideal_s = passes * 8 * GIB * (chips - 1) / chips / (1.8e11 * len(dims))
    assert ideal_s <= row["time_s"] <= 1.15 * ideal_s


def test_a_line_has_half_of_a_ring() -> None:
    (ring,), (line,) = (
        collective_rows(torus("tpu-v6e", 8, kind=kind), op="all_gather", sizes=[8 * GIB])
        for kind in ("torus", "mesh")
    )
    assert line["time_s"] == pytest.approx(2 * ring["time_s"], rel=0.05)


def test_their_makers_rings_stand_in_for_nccl() -> None:
    nccl = load_library("nccl")
    assert make_machine(torus("tpu-v5e", 4, 4), nccl).library.name == "rings"
    assert make_machine(build_topology("gaudi3-x8"), nccl).library.name == "rings"
    assert make_machine(build_topology("mi250x-x8"), nccl).library.nccl_tuner


# ---------------------------------------------------------------- grades and words


@pytest.mark.parametrize("cluster", [SLICE, {"node": "gaudi2-x8", "nodes": 1}])
def test_answers_rest_on_the_data_sheet_and_are_wide(cluster: dict[str, Any]) -> None:
    inputs = resolve_scenario(make_scenario(job(cluster=cluster)), None, None)
    sized = size_job(inputs, inputs.sizes[0])
    assert evidence_of(sized).grade == "data sheet only"


def test_nothing_is_said_of_programs_that_do_not_run_there() -> None:
    small = {"node": "tpu-v5p", "nodes": 4, "fabric": {"kind": "torus", "dims": [2, 2]}}
    model = {"name": "llama3.2-1b", "sequence_length": 2048}
    advice = advise_scenario(make_scenario(job(cluster=small, model=model)))
    assert advice.words == {}
    texts = " ".join(trial.text for trial in (*advice.trials, *advice.too_big, *advice.refused))
    assert "NCCL" not in texts
    assert "CUDA" not in texts


def test_chips_are_chips() -> None:
    topology = build_topology("tpu-v7")
    assert count_ranks(topology) == "1 chip"
    told = "fits the GPUs, with room for the 3 GiB of CUDA, NCCL and allocator"
    assert (
        in_words_of(topology, told)
        == "fits the chips, with room for the 3 GiB of the runtime and its buffers"
    )
    crossed = "each host's NIC and the hosts' NICs (between hosts: PCIe, Ethernet)"
    assert in_words_of(torus("tpu-v7", 2, 2, 2), crossed) == (
        "each chip's ICI links and the chips' ICI links (between hosts: ICI)"
    )
    gaudi = build_topology("gaudi2-x8", hosts=2, fabric="one-switch")
    assert in_words_of(gaudi, "PCIe, Ethernet") == "PCIe, Ethernet"
