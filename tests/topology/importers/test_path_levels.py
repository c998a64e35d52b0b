"""`nvidia-smi topo -m`: every spelling, and a graph whose path types are those of the table."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.topology.importers import ImportedTopology, import_file
from perfmodel.topology.importers.path_levels import Matrix
from perfmodel.topology.importers.topo_matrix import matrix_of
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.routing.shortest_paths import HostArc, best_paths
from perfmodel.topology.templates.build import build_topology, check

# Of public posts: pytorch/pytorch benchmarks/distributed/ddp/README.md (a DGX-1),
# NVIDIA/nccl-tests issue 178 (A100 PCIe in pairs), konnase.github.io (V100, other wiring).
DGX1 = """
        GPU0    GPU1    GPU2    GPU3    GPU4    GPU5    GPU6    GPU7    mlx5_2  mlx5_0  mlx5_3  mlx5_1  CPU Affinity
GPU0     X      NV1     NV1     NV2     NV2     SYS     SYS     SYS     SYS     PIX     SYS     PHB     0-19,40-59
GPU1    NV1      X      NV2     NV1     SYS     NV2     SYS     SYS     SYS     PIX     SYS     PHB     0-19,40-59
GPU2    NV1     NV2      X      NV2     SYS     SYS     NV1     SYS     SYS     PHB     SYS     PIX     0-19,40-59
GPU3    NV2     NV1     NV2      X      SYS     SYS     SYS     NV1     SYS     PHB     SYS     PIX     0-19,40-59
GPU4    NV2     SYS     SYS     SYS      X      NV1     NV1     NV2     PIX     SYS     PHB     SYS     20-39,60-79
GPU5    SYS     NV2     SYS     SYS     NV1      X      NV2     NV1     PIX     SYS     PHB     SYS     20-39,60-79
GPU6    SYS     SYS     NV1     SYS     NV1     NV2      X      NV2     PHB     SYS     PIX     SYS     20-39,60-79
GPU7    SYS     SYS     SYS     NV1     NV2     NV1     NV2      X      PHB     SYS     PIX     SYS     20-39,60-79
mlx5_2  SYS     SYS     SYS     SYS     PIX     PIX     PHB     PHB      X      SYS     PHB     SYS
mlx5_0  PIX     PIX     PHB     PHB     SYS     SYS     SYS     SYS     SYS      X      SYS     PHB
mlx5_3  SYS     SYS     SYS     SYS     PHB     PHB     PIX     PIX     PHB     SYS      X      SYS
mlx5_1  PHB     PHB     PIX     PIX     SYS     SYS     SYS     SYS     SYS     PHB     SYS      X

Legend:

  X    = Self
"""  # noqa: E501

PAIRS = """\
\tGPU0\tGPU1\tGPU2\tGPU3\tGPU4\tGPU5\tGPU6\tGPU7\tCPU Affinity\tNUMA Affinity
GPU0\t X \tNV12\tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t0-31\t0
GPU1\tNV12\t X \tNODE\tNODE\tSYS\tSYS\tSYS\tSYS\t0-31\t0
GPU2\tNODE\tNODE\t X \tNV12\tSYS\tSYS\tSYS\tSYS\t0-31\t0
GPU3\tNODE\tNODE\tNV12\t X \tSYS\tSYS\tSYS\tSYS\t0-31\t0
GPU4\tSYS\tSYS\tSYS\tSYS\t X \tNV12\tNODE\tNODE\t32-63\t1
GPU5\tSYS\tSYS\tSYS\tSYS\tNV12\t X \tNODE\tNODE\t32-63\t1
GPU6\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\t X \tNV12\t32-63\t1
GPU7\tSYS\tSYS\tSYS\tSYS\tNODE\tNODE\tNV12\t X \t32-63\t1
"""

CUBE = """\
     GPU0 GPU1 GPU2 GPU3 GPU4 GPU5 GPU6 GPU7
GPU0 X    NV1  NV1  NV2  SYS  SYS  NV2  SYS
GPU1 NV1  X    NV2  NV1  SYS  SYS  SYS  NV2
GPU2 NV1  NV2  X    NV2  NV1  SYS  SYS  SYS
GPU3 NV2  NV1  NV2  X    SYS  NV1  SYS  SYS
GPU4 SYS  SYS  NV1  SYS  X    NV2  NV1  NV2
GPU5 SYS  SYS  SYS  NV1  NV2  X    NV2  NV1
GPU6 NV2  SYS  SYS  SYS  NV1  NV2  X    NV1
GPU7 SYS  NV2  SYS  SYS  NV2  NV1  NV1  X
"""

# The style of new drivers, as made up: underlined header, NICs by number, a legend, two switches
# below another (PXB), and a NIC of two ports.
NEW = """\
\x1b[4m\tGPU0\tGPU1\tNIC0\tNIC1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPXB\tPXB\t0-55\t0\t\tN/A
GPU1\tNV18\t X \tPXB\tPXB\t0-55\t0\t\tN/A
NIC0\tPXB\tPXB\t X \tPIX\t\t\t\t
NIC1\tPXB\tPXB\tPIX\t X \t\t\t\t

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_bond_1

GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-000000000000)
"""


def read(text: str, gpu: str | None = None) -> ImportedTopology:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "topo.txt"
        path.write_text(text)
        found = import_file(path, gpu=gpu)
    assert check(found.node()) == ()
    return found


def cells_of(topology: Topology, matrix: Matrix) -> dict[tuple[str, str], str]:
    """The table that a topology has: NVLinks, else path types over PCIe alone."""
    names = {gpu: f"gpu{at}" for at, gpu in enumerate(matrix.gpus)}
    names |= {nic: f"nic{at}" for at, nic in enumerate(matrix.nics)}
    kinds = {data["local"]: data["kind"] for _, data in topology.graph.nodes(data=True)}
    arcs: dict[str, list[HostArc]] = {}
    for at, (src, dst) in enumerate(topology.arcs.names):
        if topology.arcs.kinds[at] != "nvlink":
            rate_Bps = float(topology.arcs.bandwidth_Bps[at])
            arc = HostArc(at, dst[3:], topology.arcs.kinds[at], rate_Bps)
            arcs.setdefault(src[3:], []).append(arc)
    found = {}
    for a, b in matrix.cells:
        edge = topology.graph.get_edge_data(f"n0/{names[a]}", f"n0/{names[b]}")
        found[a, b] = (
            f"NV{edge[0]['lanes']}" if edge else best_paths(names[a], kinds, arcs)[names[b]].type
        )
    return found


def as_nccl(cells: dict[tuple[str, str], str]) -> dict[tuple[str, str], str]:
    """NCCL knows no NODE: between host bridges of one NUMA domain is PHB."""
    return {pair: "PHB" if cell == "NODE" else cell for pair, cell in cells.items()}


@pytest.mark.parametrize(
    ("text", "gpu", "domains"),
    [
        (DGX1, "V100-SXM2-16GB", 2),
        (CUBE.replace("SYS", "SOC"), "V100-SXM2-16GB", 2),
        (PAIRS, "A100 80GB PCIe", 2),
        (CUBE, "V100-SXM2-16GB", 2),
    ],
)
def test_the_graph_has_the_path_types_of_the_table(text: str, gpu: str, domains: int) -> None:
    topology = build_topology(read(text, gpu).node())
    matrix = matrix_of(text, "t")
    assert cells_of(topology, matrix) == as_nccl(matrix.cells)
    assert [kind for _, kind in topology.graph.nodes(data="kind")].count("cpu") == domains


def test_a_switch_where_nvlinks_are_more_than_a_gpu_has() -> None:
    gpus = [f"GPU{at}" for at in range(8)]
    rows = [[g, *("X" if g == h else "NV12" for h in gpus), "0-63", "0"] for g in gpus]
    text = "\t".join(["", *gpus, "CPU Affinity"]) + "\n" + "\n".join(map("\t".join, rows))
    topology = build_topology(read(text, "A100-SXM4-40GB").node())
    assert topology.graph["n0/gpu0"]["n0/nvs"][0]["lanes"] == 12
    dgx2 = build_topology(read(text.replace("NV12", "NV6"), "Tesla V100-SXM3-32GB").node())
    assert dgx2.graph["n0/gpu7"]["n0/nvs"][0]["lanes"] == 6, "six links cannot reach seven peers"
    mesh = text.replace("NV12", "NV1")
    assert "n0/nvs" not in build_topology(read(mesh, "A100-SXM4-40GB").node()).graph


def test_a_gpu_whose_nvlinks_are_down_is_told() -> None:
    """As on a B200 host in vllm-project/vllm issue 16336: GPU 2 is reached over PCIe alone."""
    gpus = [f"GPU{at}" for at in range(4)]
    rows = [
        [g, *("X" if g == h else "NODE" if "GPU2" in (g, h) else "NV18" for h in gpus)]
        for g in gpus
    ]
    text = "\t".join(["", *gpus]) + "\n" + "\n".join(map("\t".join, rows))
    found = read(text, "B200-SXM-180GB")
    topology = build_topology(found.node())
    assert topology.graph.has_edge("n0/gpu1", "n0/nvs")
    assert not topology.graph.has_edge("n0/gpu2", "n0/nvs")
    assert [note for note in found.notes if "GPU2 has no NVLinks" in note]
    whole = read(text.replace("NODE", "NV18"), "B200-SXM-180GB")
    assert not [note for note in whole.notes if "has no NVLinks" in note]


def test_new_spelling_with_legend_and_model() -> None:
    found = read(NEW)
    topology = build_topology(found.node())
    router = Router(topology)
    assert topology.gpu.name == "h100-sxm5-80gb"
    assert router.path_type("n0/gpu0", "n0/nic0") == "PXB"
    assert router.path_type("n0/nic0", "n0/nic1") == "PIX"
    assert "n0/nvs" in topology.graph, "18 NVLinks between two H100 SXM lead through a switch"
    assert {found.node().links[d.port].network for d in found.node().nodes if d.port} == {
        "infiniband",
        "roce",
    }
    assert "# line 2, GPU0" in found.text()
    assert any("usual for this GPU" in note for note in found.notes)


def test_old_spelling_and_a_template_for_the_nics(tmp_path: Path) -> None:
    old = tmp_path / "dgx.txt"
    old.write_text(DGX1.replace("SYS", "SOC"))
    found = import_file(old, template="dgx1-v100")
    topology = build_topology(found.node())
    assert topology.gpu.name == "v100-sxm2-32gb"
    assert cells_of(topology, matrix_of(DGX1, "t")) == as_nccl(matrix_of(DGX1, "t").cells)
    assert found.node().links["infiniband"].bandwidth == pytest.approx(12.5e9)
    assert any("as in dgx1-v100" in note for note in found.notes)


def test_superchips_hang_on_their_cpus() -> None:
    gpus = [f"GPU{at}" for at in range(4)]
    rows = [[g, *("X" if g == h else "NV6" for h in gpus)] for g in gpus]
    text = "\t".join(["", *gpus]) + "\n" + "\n".join(map("\t".join, rows))
    topology = build_topology(read(text, "GH200").node())
    assert Router(topology).path_type("n0/gpu3", "n0/cpu3") == "C2C"
    assert topology.graph["n0/gpu0"]["n0/gpu3"][0]["lanes"] == 6


@pytest.mark.parametrize(
    ("text", "match"),
    [
        (PAIRS, "--gpu NAME"),
        ("\n".join(PAIRS.splitlines()[:6]), "no row of GPU5, GPU6, GPU7"),
        (PAIRS.replace("GPU2\tNODE\tNODE\t X \tNV12", "GPU2\tNODE\tNODE\t X \tNVX"), "'NVX'"),
        (PAIRS.replace("GPU2\tNODE\tNODE\t X ", "GPU2\t X \tNODE\tNODE"), "X in its own column"),
        (PAIRS.rsplit("\tSYS", 5)[0], "cells"),
    ],
)
def test_tables_that_are_cut_or_wrong(text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        read(text)


def test_a_gpu_without_nvlink_cannot_have_them() -> None:
    with pytest.raises(InputError, match="L40S, which has no NVLink"):
        read(PAIRS, "L40S")


def test_halves_that_differ_are_said() -> None:
    found = read(PAIRS.replace("GPU1\tNV12\t X \tNODE", "GPU1\tNV12\t X \tPHB"), "A100 PCIe")
    assert any("GPU1 to GPU2 is PHB, and back NODE" in note for note in found.notes)


# ---------------------------------------------------------------- any tree


@st.composite
def trees(draw: st.DrawFn) -> dict[str, tuple[int, int, int]]:
    """Devices with domain, cluster and leaf: equal ones share a switch, and so on."""
    count = draw(st.integers(2, 9))
    place = st.tuples(st.integers(0, 1), st.integers(0, 1), st.integers(0, 2))
    return {f"GPU{at}": draw(place) for at in range(count)}


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(trees())
def test_any_tree_of_switches_comes_back(tree: dict[str, tuple[int, int, int]]) -> None:
    def way(a: str, b: str) -> str:
        left, right = tree[a], tree[b]
        if left == right:
            return "PIX"
        return "PXB" if left[:2] == right[:2] else "PHB" if left[0] == right[0] else "SYS"

    names = list(tree)
    rows = [[a, *("X" if a == b else way(a, b) for b in names)] for a in names]
    text = "\t".join(["", *names]) + "\n" + "\n".join(map("\t".join, rows))
    topology = build_topology(read(text, "L40S").node())
    matrix = matrix_of(text, "t")
    assert cells_of(topology, matrix) == matrix.cells


def test_more_nvlinks_than_any_gpu_has_are_a_typing_error() -> None:
    with pytest.raises(InputError, match="found NV99; allowed: at most NV12"):
        read(PAIRS.replace("NV12", "NV99"), "A100-SXM4-80GB")


@pytest.mark.parametrize("cell", ["NV4", "nv12"])
def test_nvlinks_join_gpus_alone(cell: str) -> None:
    head = "\tGPU0\tGPU1\tNIC0\n"
    table = f"{head}GPU0\t X \tNV12\t{cell}\nGPU1\tNV12\t X \tSYS\n"
    with pytest.raises(InputError, match="row of GPU0: found NVLinks to NIC0"):
        read(table, "A100-SXM4-80GB")
    pair = "GPU0\t X \tSYS\tPIX\nGPU1\tSYS\t X \tSYS\n"
    with pytest.raises(InputError, match="row of NIC0: found NVLinks of NIC0"):
        read(f"{head}{pair}NIC0\t{cell}\tSYS\t X\n", "A100-SXM4-80GB")


# ---------------------------------------------------------------- as people paste them


def wide(nics: int = 8) -> str:
    """Eight GPUs and their NICs, as a driver prints them with tabs."""
    gpus, names = [f"GPU{at}" for at in range(8)], [f"NIC{at}" for at in range(nics)]
    head = "\t".join(["", *gpus, *names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID"])
    rows = []
    for at, name in enumerate([*gpus, *names]):
        row = [name]
        for to, other in enumerate([*gpus, *names]):
            near, same = at % 8 == to % 8, at % 8 // 4 == to % 8 // 4
            path = "NV18" if at < 8 and to < 8 else "PIX" if near else "NODE" if same else "SYS"
            row.append(" X " if name == other else path)
        row += (
            [f"{56 * (at // 4)}-{56 * (at // 4) + 55}", str(at // 4), "", "N/A"] if at < 8 else []
        )
        rows.append("\t".join(row))
    return "\n".join([head, *rows]) + "\n\nLegend:\n\n  X    = Self\n"


def broken(text: str, width: int) -> str:
    return "\n".join(
        line[at : at + width]
        for line in text.expandtabs(8).splitlines()
        for at in range(0, max(len(line), 1), width)
    )


@settings(max_examples=12, deadline=None)
@given(st.integers(60, 170))
def test_rows_that_a_terminal_wrapped_are_put_together(width: int) -> None:
    whole, wrapped = matrix_of(wide(), "t"), matrix_of(broken(wide(), width), "t")
    assert (wrapped.devices, wrapped.cells) == (whole.devices, whole.cells)
    assert wrapped.numa == whole.numa
    assert any("wrapped" in note for note in wrapped.notes) == (len(wide().expandtabs(8)) > width)


def test_names_that_ran_into_each_other_are_two() -> None:
    glued = wide().replace("NIC6\tNIC7\tCPU", "NIC6NIC7CPU", 1)
    assert matrix_of(glued, "t").cells == matrix_of(wide(), "t").cells
    assert "two devices" in matrix_of(glued, "t").notes[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (wide().replace("\tNIC7\tCPU", "\tCPU", 1), "16 cells; allowed: 15, one per device"),
        (wide().replace("GPU3\tGPU4", "GPU4", 1), "GPU3 not among them"),
        (wide().replace("GPU2\tNV18", "GPU2\tNV12", 1), "NV18 to GPU2, whose row says NV12"),
        (wide() + "\n" + wide(2), "another table"),
        (wide() + "GPU1\tNV18\t X " + 14 * "\tSYS" + "\n", "another row"),
        (wide().replace("\t56-111\t1", "\t56-111\t0", 1), "CPUs 56-111 of NUMA domain 0"),
        (wide().replace("NV18", "NV126"), "NV126; allowed: at most NV18"),
    ],
)
def test_what_no_table_can_say_is_refused(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read(text, "H100 SXM")


def test_rows_of_nics_that_were_cut_off_are_as_their_columns() -> None:
    few = "\n".join(wide().splitlines()[:11])
    matrix = matrix_of(few, "t")
    assert matrix.cells["NIC5", "GPU5"] == "PIX"
    assert "NIC2 to NIC7 as the rows of GPUs have them" in matrix.notes[0]


def test_nvlinks_beyond_those_of_a_model_are_no_switch() -> None:
    with pytest.raises(InputError, match="NV1 to GPU1, and NV3 between others"):
        read(DGX1.replace("NV2", "NV3"), "V100-SXM2-16GB")
    apart = wide(0).replace("GPU0\t X \tNV18", "GPU0\t X \tSYS").replace("GPU1\tNV18", "GPU1\tSYS")
    with pytest.raises(InputError, match="SYS to GPU1, and NV18 to others"):
        read(apart, "H100 SXM")


def test_a_table_must_be_of_the_machine_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "topo.txt"
    path.write_text(wide(0).replace("NV18", "SYS"))
    with pytest.raises(InputError, match="SYS between GPUs, and no NVLinks"):
        import_file(path, template="dgx-h100")
    path.write_text(NEW)
    with pytest.raises(InputError, match="'A100', where the file has 'NVIDIA H100 80GB HBM3'"):
        import_file(path, gpu="A100")


def test_gpus_of_one_numa_domain_share_it_though_a_virtual_machine_says_sys() -> None:
    head = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\n"
    text = f"{head}GPU0\t X \tSYS\t0-7\t0\nGPU1\tSYS\t X \t0-7\t0\n"
    imported = read(text, "T4")
    assert any("virtual machine" in note for note in imported.notes)
    assert [d.id for d in imported.node().nodes if d.kind == "cpu"] == ["cpu0"]


def test_nics_that_are_far_from_all_gpus_are_named() -> None:
    table = (
        "     GPU0 GPU1 NIC0 NIC1 NIC2\n"
        "GPU0 X    NV18 PIX  NODE NODE\n"
        "GPU1 NV18 X    NODE NODE PIX\n"
        "NIC0 PIX  NODE X    NODE NODE\n"
        "NIC1 NODE NODE NODE X    NODE\n"
        "NIC2 NODE PIX  NODE NODE X\n"
    )
    said = " ".join(read(table, "h100-sxm5-80gb").notes)
    assert "3 NICs carry training, 1 more than GPUs" in said
    assert "(far from all GPUs: NIC1)" in said


def test_devices_that_are_nearer_than_the_table_has_them_are_said() -> None:
    """SYS from a GPU to a NIC becomes PHB where other cells join both in one NUMA domain."""
    head = "\tGPU0\tGPU1\tNIC0\tNIC1\n"
    rows = "GPU0\t X \tPHB\tPHB\tSYS\nGPU1\tPHB\t X \tSYS\tSYS\n"
    text = f"{head}{rows}NIC0\tPHB\tSYS\t X \tSYS\nNIC1\tSYS\tSYS\tSYS\t X \n"
    imported = read(text, "T4")
    said = [note for note in imported.notes if "though the table says SYS" in note]
    (note,) = said
    assert note.startswith("GPU1 to NIC0 are joined in one NUMA domain (PHB)")
    assert not any("says SYS" in note for note in read(PAIRS, "A100 PCIe").notes)
