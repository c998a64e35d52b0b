"""AMD's boards, and what RCCL was recorded to do on them."""

from __future__ import annotations

import numpy as np
import pytest

from perfmodel.errors import InputError
from perfmodel.files import validate_document
from perfmodel.files.csv_rows import read_table
from perfmodel.library.channels import rings_over
from perfmodel.library.settings import LibrarySettings
from perfmodel.scenario.sections.cluster import NodeSection
from perfmodel.studies.run.collective import collective_rows
from perfmodel.topology.composed.load import load_node
from perfmodel.topology.from_text.describe import describe
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.compute_spread import roofline_factors
from perfmodel.workload.kernels.float8_layers import Float8, recipe_faults
from perfmodel.workload.zoo import build_model
from reports.validation.run import records_folder
from reports.validation.strategies.predicted_step import predict_step
from reports.validation.strategies.stated_step import read_step
from reports.validation.strategies.step_tables import STEPS

BOARDS = ("mi300x-x8", "mi325x-x8", "mi350x-x8", "mi355x-x8", "azure-ndmi300x")


@pytest.mark.parametrize("name", BOARDS)
def test_seven_links_join_each_gpu_to_its_peers(name: str) -> None:
    """AMD Instinct platform data sheets: 64 and 76.8 GB/s, of which three quarters are usable."""
    topology = build_topology(name)
    arcs = topology.built
    links = [at for at, kind in enumerate(arcs.kinds) if kind == "nvlink"]
    assert len(links) == 8 * 7
    rate_Bps = 57.6e9 if name.startswith("mi35") else 48e9
    assert arcs.bandwidth_Bps[links] == pytest.approx(rate_Bps)
    assert len([d for d in topology.devices.values() if d.kind == "nic"]) == 8
    assert any("RCCL" in line for line in topology.assumptions)


@pytest.mark.parametrize("hosts", [1, 2])
def test_rings_use_each_link_of_a_board_alike(hosts: int) -> None:
    """As RCCL's: fourteen on one host, seven both ways, and one for each adapter between hosts."""
    fabric = "rail-optimised" if hosts > 1 else None
    topology: Topology = build_topology("mi300x-x8", hosts=hosts, fabric=fabric)
    rings = rings_over(topology, Router(topology), range(8 * hosts))
    uses = np.bincount(rings.edges.arcs, minlength=len(topology.arcs.names))
    of_board = topology.arcs.kinds.among({"nvlink"})
    assert len(rings.orders) == (14 if hosts == 1 else 8)
    assert set(uses[of_board]) == {2 if hosts == 1 else 1}
    assert set(uses[topology.arcs.kinds.among({"roce"})]) <= {0, 1}, "each cable once each way"
    assert all(sorted(ring) == list(range(8 * hosts)) for ring in rings.orders.tolist())


@pytest.mark.parametrize("gpus", range(1, 9))
@pytest.mark.parametrize("hosts", [1, 2])
def test_boards_of_any_size_have_rings(gpus: int, hosts: int) -> None:
    fabric = "rail-optimised" if hosts > 1 else None
    topology: Topology = build_topology("mi355x-x8", hosts=hosts, fabric=fabric, gpus_per_host=gpus)
    if len(topology.ranks) > 1:
        rings = rings_over(topology, Router(topology), range(gpus * hosts))
        assert all(sorted(ring) == list(range(gpus * hosts)) for ring in rings.orders.tolist())


def test_part_of_a_board_keeps_the_links_of_the_whole() -> None:
    node = describe("MI300X", gpus=4, intra="xGMI").node
    nvlinks = [edge for edge in node.edges if node.links[edge.link].kind == "nvlink"]
    assert {edge.lanes for edge in nvlinks} == {1}
    assert len(nvlinks) == 8 * 7 / 2


# rccl-tests all_reduce: rocm.blogs.amd.com, mi300x-rccl-xgmi, up to 8 MiB by MSCCL's all-pairs;
# ROCm/rccl pull request 2078, two hosts with eight adapters of 400 Gbit/s each; and
# oci-ai-incubations/oci-gpu-quickstarts, where all seven links of each GPU are used both ways.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "hosts", "nbytes", "recorded_s", "within"),
    [
        ("mi300x-x8", 1, 2**12, 13.3e-6, 0.05),
        ("mi300x-x8", 1, 2**18, 16.9e-6, 0.05),
        ("mi300x-x8", 1, 2**19, 24.4e-6, 0.05),
        ("mi300x-x8", 1, 2**21, 34.8e-6, 0.05),
        ("mi300x-x8", 1, 2**23, 83.7e-6, 0.15),
        ("mi300x-x8", 2, 2**31, 11.186e-3, 0.1),
        ("mi300x-x8", 1, 2**34, 94.254e-3, 0.05),
        ("mi355x-x8", 1, 2**34, 73.913e-3, 0.05),
        ("mi300x-x8", 2, 2**34, 89.885e-3, 0.05),
    ],
)
def test_recorded_all_reduces_lie_in_the_interval(
    name: str, hosts: int, nbytes: int, recorded_s: float, within: float
) -> None:
    fabric = "rail-optimised" if hosts > 1 else None
    topology: Topology = build_topology(name, hosts=hosts, fabric=fabric)
    row = collective_rows(topology, sizes=(nbytes,))[0]
    low_s, high_s = row["interval_s"]
    assert low_s < recorded_s < high_s
    assert row["time_s"] == pytest.approx(recorded_s, rel=within)


def test_one_process_for_all_gpus_is_without_msccl_by_default() -> None:
    """8 MiB of rccl-tests -g 8, in rings: crickett-hpe/hpc-ai-envs pull request 30."""
    settings = LibrarySettings(one_process=True)
    row = collective_rows(build_topology("mi300x-x8"), sizes=(2**23,), settings=settings)[0]
    assert row["algorithm"] == "ring"
    assert row["time_s"] == pytest.approx(91.1e-6, rel=0.16)


def test_a_published_step_lies_in_the_wide_interval_of_one_measured_product() -> None:
    """Llama 3 8B on 8 MI300X took 1.52 s of 1.22 s predicted (pytorch/ao, torchtitan)."""
    workload = build_model("llama3-8b")
    _, high = roofline_factors(workload, load_gpu("mi300x"), "bf16")
    assert 1.22 * high > 1.52


def test_fp8_of_amd_has_scales_of_tensors_and_rows_alone() -> None:
    gpu = load_gpu("mi300x")
    assert not recipe_faults(Float8("transformer_engine", "delayed"), gpu)
    assert not recipe_faults(Float8("torchao", "rowwise"), gpu)
    fault = recipe_faults(Float8("transformer_engine", "mxfp8"), gpu)[0]
    assert fault.allowed == "'delayed', 'current' on mi300x"


# MLPerf Training v5.1, Llama 2 70B LoRA on 8 MI300X and on two such hosts.
@pytest.mark.slow
@pytest.mark.parametrize("hosts", ["1", "2"])
def test_a_published_fine_tuning_on_amd_is_predicted(hosts: str) -> None:
    rows = [
        cells
        for cells in read_table(records_folder() / STEPS, [])
        if cells.cells["table"] == "mlperf-lora-amd"
        and cells.cells["gpu"] == "mi300x"
        and cells.cells["nodes"] == hosts
    ]
    step = predict_step(read_step(rows[0].cells))
    assert step.step_s == pytest.approx(step.stated.measured_s, rel=0.12)


@pytest.mark.parametrize(
    "host",
    [
        "8 x mi300x, NVSwitch",
        "8 x mi300x, NVLink bridge",
        "mi300x-x8, NVLink4",
        "mi300x-x8, 8 x h100",
        {"extends": "mi300x-x8", "gpu": "h100 sxm"},
        {"extends": "dgx-a100", "gpu": "mi300x"},
    ],
)
def test_what_only_nvidia_has_is_refused(host: str | dict[str, str]) -> None:
    with pytest.raises(InputError):
        load_node(host if isinstance(host, str) else validate_document(NodeSection, host))


def test_slower_links_stay_xgmi_to_each_peer() -> None:
    section = {"extends": "mi300x-x8", "gpus": 4, "nvlink": "7 x 50 GB/s"}
    node = load_node(validate_document(NodeSection, section))
    edges = [edge for edge in node.edges if node.links[edge.link].kind == "nvlink"]
    assert [(edge.link, edge.lanes) for edge in edges] == [("xgmi", 1)] * 6
    assert node.links["xgmi"].bandwidth == 50e9


def test_no_gpu_has_more_links_than_seven() -> None:
    with pytest.raises(InputError, match="at most 7"):
        load_node("8 x mi300x, NVLink 12 links")
