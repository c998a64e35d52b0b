"""The shipped files: they load, they are sound, and their numbers are those published."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import InputError, TopologyError
from perfmodel.files import data_folder
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology, check, load_node, template_names
from perfmodel.topology.templates.gpus import gpu_names, gpu_sources, load_gpu
from perfmodel.topology.templates.spec import FABRIC_KINDS

REQUIRED = {
    "dgx1-v100",
    "dgx2-v100",
    "dgx-a100",
    "dgx-h100",
    "hgx-h200",
    "hgx-b200",
    "gb200-nvl72",
    "aws-p3dn",
    "aws-p4d",
    "aws-p5",
    "azure-ndv4",
    "azure-ndv5",
    "gcp-a3-mega",
    "rtx4090-x4",
    "rtx4090-x4-p2p",
    "rtx4090-x8",
    "rtx4090-x8-p2p",
    "l40s-x8",
    "v100-x8-25g",
    "v100-x8-100g",
    "ethernet-10g",
    "ethernet-25g",
    "ethernet-100g",
}
WITH_NICS = (
    "dgx1-v100",
    "dgx2-v100",
    "dgx-a100",
    "gb200-nvl72",
    "aws-p4d",
    "aws-p5",
    "gcp-a3-mega",
    "l40s-x8",
    "ethernet-10g",
)
"""A machine of each number of NICs, and each way that they are joined to GPUs."""

# nvidia-smi topo -m of a DGX-1, github.com/pytorch/pytorch benchmarks/distributed/ddp/README.md.
# "SYS" between GPUs means no NVLink there; NCCL then relays over one GPU (NVB).
DGX1 = """
X   NV1 NV1 NV2 NV2 SYS SYS SYS PIX PHB SYS SYS
NV1 X   NV2 NV1 SYS NV2 SYS SYS PIX PHB SYS SYS
NV1 NV2 X   NV2 SYS SYS NV1 SYS PHB PIX SYS SYS
NV2 NV1 NV2 X   SYS SYS SYS NV1 PHB PIX SYS SYS
NV2 SYS SYS SYS X   NV1 NV1 NV2 SYS SYS PIX PHB
SYS NV2 SYS SYS NV1 X   NV2 NV1 SYS SYS PIX PHB
SYS SYS NV1 SYS NV1 NV2 X   NV2 SYS SYS PHB PIX
SYS SYS SYS NV1 NV2 NV1 NV2 X   SYS SYS PHB PIX
"""


def nvlink_Bps(name: str, gpu: str = "n0/gpu0") -> float:
    graph = build_topology(name).graph
    return sum(
        d["bandwidth"] for _, _, d in graph.out_edges(gpu, data=True) if d["kind"] == "nvlink"
    )


def test_all_required_templates_ship() -> None:
    assert set(template_names()) >= REQUIRED


@pytest.mark.slow
@pytest.mark.parametrize("name", template_names())
def test_template_is_sound_and_every_gpu_reaches_every_other(name: str) -> None:
    assert check(name) == ()
    node = load_node(name)
    for link in node.links.values():
        assert link.efficiency_source
        assert link.latency_source
    topology = build_topology(name)
    assert topology.sources
    assert topology.fabric == "none"
    assert topology.sources["gpu launch"]
    assert next(iter(topology.graph.nodes)).startswith("n0/")


@pytest.mark.slow
@pytest.mark.parametrize("fabric", FABRIC_KINDS)
@pytest.mark.parametrize("name", WITH_NICS)
def test_two_hosts_are_joined_by_every_fabric(name: str, fabric: str) -> None:
    topology = build_topology(name, hosts=2, fabric=fabric)
    assert check(topology) == ()
    router = Router(topology)
    if fabric == "rail-only" and name == "l40s-x8":  # eight NICs, and no NVLink between rails
        with pytest.raises(TopologyError, match="rails are joined inside hosts only"):
            router.route("n0/gpu0", "n1/gpu7")
        return
    half = len(topology.ranks) // 2
    step = 1 if half <= 16 else 17
    for src in topology.ranks[:half:step]:
        for dst in topology.ranks[half::step]:
            assert router.path_type(src, dst) == "NET"
            assert router.route(src, dst)
            assert router.route(dst, src)


# NCCL 2.30.7 src/graph/topo.h: links per GPU times usable bandwidth per link; of V100 that are
# joined directly what nccl-tests reach (konnase/konnase.github.io: busbw 129.1 GB/s on 8).
@pytest.mark.parametrize(
    ("name", "GBps"),
    [
        ("dgx1-v100", 129),
        ("dgx2-v100", 120),
        ("aws-p3dn", 129),
        ("v100-x8-25g", 129),
        ("dgx-a100", 240),
        ("azure-ndv4", 240),
        ("aws-p4d", 240),
        ("dgx-h100", 370.8),
        ("azure-ndv5", 370.8),
        ("hgx-h200", 370.8),
        ("hgx-b200", 721.8),
        ("gb200-nvl72", 721.8),
    ],
)
def test_usable_nvlink_bandwidth_per_gpu(name: str, GBps: float) -> None:
    assert nvlink_Bps(name) == pytest.approx(GBps * 1e9, rel=1e-9)


@pytest.mark.parametrize(("name", "GBps"), [("dgx1-v100", 12), ("dgx-a100", 24), ("dgx-h100", 48)])
def test_usable_pcie_bandwidth(name: str, GBps: float) -> None:
    """NCCL: x16 of generation 3, 4, 5 carries 12, 24, 48 GB/s."""
    arcs = build_topology(name).arcs
    rates = [arcs.bandwidth_Bps[i] for i, kind in enumerate(arcs.kinds) if kind == "pcie"]
    assert rates == pytest.approx([GBps * 1e9] * len(rates), rel=1e-3)


@pytest.mark.parametrize("name", ["dgx1-v100", "aws-p3dn", "v100-x8-25g", "v100-x8-100g"])
def test_hybrid_cube_mesh(name: str) -> None:
    topology = build_topology(name)
    lanes = {
        (a, b): d["lanes"] for a, b, d in topology.graph.edges(data=True) if d["kind"] == "nvlink"
    }
    for gpu in topology.ranks:
        assert sum(count for (a, _), count in lanes.items() if a == gpu) == 6
    assert all(lanes[b, a] == count for (a, b), count in lanes.items())
    assert len(lanes) == 2 * 16 < 8 * 7, "not every pair is joined"


def test_dgx1_agrees_with_nvidia_smi() -> None:
    topology = build_topology("dgx1-v100")
    router = Router(topology)
    devices = [f"n0/gpu{i}" for i in range(8)] + [f"n0/nic{i}" for i in range(4)]
    for row, line in enumerate(DGX1.split("\n")[1:9]):
        for column, cell in enumerate(line.split()):
            src, dst = devices[row], devices[column]
            if cell.startswith("NV"):
                assert topology.graph[src][dst][0]["lanes"] == int(cell[2:])
                assert router.path_type(src, dst) == "NVL"
            elif cell != "X":
                assert router.path_type(src, dst) == ("NVB" if column < 8 else cell)


def test_dgx2_shares_one_nvswitch_among_sixteen() -> None:
    topology = build_topology("dgx2-v100")
    assert len(topology.ranks) == 16
    switches = [n for n, d in topology.graph.nodes(data=True) if d["kind"] == "nvswitch"]
    assert len(switches) == 1
    assert topology.graph.in_degree(switches[0]) == 16


def test_nvl72_is_one_nvlink_domain_with_trays_of_four() -> None:
    topology = build_topology("gb200-nvl72")
    router = Router(topology)
    assert len(topology.ranks) == 72
    assert router.path_type("n0/gpu0", "n0/gpu71") == "NVL"
    assert router.path_type("n0/gpu5", "n0/cpu2") == "C2C"
    assert router.path_type("n0/gpu5", "n0/nic5") == "P2C"
    assert [router.nearest_nics(gpu)[0] for gpu in topology.ranks] == [
        f"n0/nic{i}" for i in range(72)
    ]
    assert set(router.nearest_nics("n0/gpu4")) == {f"n0/nic{i}" for i in range(4, 8)}


@pytest.mark.parametrize("n", [4, 8])
def test_rtx4090_boxes_differ_in_p2p_alone(n: int) -> None:
    without, with_p2p = build_topology(f"rtx4090-x{n}"), build_topology(f"rtx4090-x{n}-p2p")
    assert (without.gpu_p2p, with_p2p.gpu_p2p) == (False, True)
    assert without.staging_Bps == pytest.approx(19.6e9)  # measured median 19.555 GB/s
    assert with_p2p.staging_Bps is None
    assert without.arcs.bandwidth_Bps.tolist() == with_p2p.arcs.bandwidth_Bps.tolist()
    assert "p2pBandwidthLatencyTest" in without.sources["staging bandwidth"]


# Large bf16 products in TFLOP/s, mean of 4096 to 10240: zzc0721/torch-performance-test-data, issues
# 79 and 185, and database.md (A100: 264.5 at best, less the 3 % that a mean is below the best).
@pytest.mark.parametrize(
    ("gpu", "large"), [("a100-sxm4-80gb", 256.6), ("h100-sxm5-80gb", 768.6), ("a40", 116.0)]
)
def test_matmul_efficiency_times_peak_is_what_was_measured(gpu: str, large: float) -> None:
    found = load_gpu(gpu)
    assert found.peak_flops["bf16"] * found.matmul_efficiency["bf16"] == pytest.approx(
        large * 1e12, rel=0.02
    )


@pytest.mark.parametrize("name", [n for n in gpu_names() if load_gpu(n).generation != "cpu"])
def test_gpu_has_sane_numbers_and_a_source_for_each(name: str) -> None:
    """The bounds leave room for coming generations: they show a wrong unit."""
    gpu = load_gpu(name)
    assert gpu.name == name
    assert 9 * 2**30 < gpu.memory_bytes < 3000 * 2**30
    assert 3e11 <= gpu.memory_Bps <= 8e13
    assert set(gpu.peak_flops) == set(gpu.matmul_efficiency)
    if not gpu.accelerator:
        assert "fp32" in gpu.peak_flops
        # a P40 multiplies fp16 at a 64th of fp32
        assert name == "p40-24gb" or gpu.peak_flops["fp16"] > gpu.peak_flops["fp32"]
        assert gpu.overlap_slowdown == pytest.approx(1.189)
    sources = gpu_sources(name)
    assert len(sources) == 9 + (gpu.power_W is not None)
    assert gpu.power_W is None or 50 < gpu.power_W <= 14_000
    assert all(len(text.split()) > 2 for text in sources.values()), "keys were resolved"


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"did you mean 'dgx-a100'"):
        load_node("dgx-a10")
    with pytest.raises(InputError, match=r"did you mean 'h100-sxm5-80gb'"):
        load_gpu("h100-sxm5-80g")
    with pytest.raises(InputError, match="node template"):
        load_node("gpus")
    with pytest.raises(InputError, match=r"no such file.*'dgx-a100'"):
        load_node("nowhere/mine.yaml")


@pytest.mark.parametrize("name", ["gpus.yaml", "our-gpus.yaml"])
def test_a_user_adds_gpus_and_templates_beside_the_shipped_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    folder = tmp_path / "topologies"
    folder.mkdir()
    table = (data_folder("topologies") / "gpus.yaml").read_text()
    start, end = table.index("  l40s:\n"), table.index("  t4:\n")
    entry = (
        table[start:end]
        .replace("  l40s:", "  mine:")
        .replace("memory: 44.42 GiB", "memory: 60 GiB")
    )
    (folder / name).write_text(table[: table.index("gpus:\n  v100")] + "gpus:\n" + entry)
    node = (data_folder("topologies") / "ethernet-10g.yaml").read_text()
    (folder / "box.yaml").write_text(node.replace("gpu: v100-pcie-16gb", "gpu: mine"))
    monkeypatch.chdir(tmp_path)
    assert build_topology("box").gpu.memory_bytes == 60 * 2**30
    assert build_topology("dgx-a100").gpu.name == "a100-sxm4-80gb"
    own = folder / name
    own.write_text(own.read_text().replace("memory: 60 GiB", "memory: 60"))
    assert build_topology("dgx-a100").gpu.name == "a100-sxm4-80gb", "a fault in a GPU of others"
    with pytest.raises(InputError) as caught:
        build_topology("box")
    (fault,) = caught.value.faults
    assert (fault.field, fault.file) == ("gpus.mine.memory", str(own.resolve()))
    assert own.read_text().splitlines()[(fault.line or 0) - 1].strip() == "memory: 60"
    (folder / "also.yaml").write_text(own.read_text())
    assert build_topology("dgx-a100").gpu.name == "a100-sxm4-80gb"
    with pytest.raises(InputError, match=r"gpus\.mine: found the same name in also\.yaml"):
        build_topology("box")
