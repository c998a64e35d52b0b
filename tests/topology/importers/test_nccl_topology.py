"""NCCL's topology XML: dumps that say all, files of providers that say little."""

from __future__ import annotations

import os
from itertools import permutations
from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.library.nccl.communicator import system_of
from perfmodel.library.ring_search import local_rings
from perfmodel.library.settings import LibrarySettings
from perfmodel.studies.run.collective import collective_rows
from perfmodel.topology.importers import ImportedTopology, import_file, nccl_nics
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology, check

# A made-up host: two sockets, a switch each with two GPUs and one NIC of two ports.
DUMP = """<system version="1">
  <cpu numaid="0" affinity="ff" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143">
    <pci busid="0000:10:00.0" class="0x060400" link_speed="32.0 GT/s PCIe" link_width="16">
      <pci busid="0000:11:00.0" class="0x030200" vendor="0x10de" device="0x2330"
           link_speed="32.0 GT/s PCIe" link_width="16">
        <gpu dev="0" sm="90" rank="0" gdr="1">
          <nvlink target="0000:f0:00.0" count="9" tclass="0x068000"/>
          <nvlink target="0000:f1:00.0" count="9" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:12:00.0" class="0x030200" vendor="0x10de" device="0x2330"
           link_speed="16 GT/s" link_width="8">
        <gpu dev="1" sm="90" rank="1" gdr="1">
          <nvlink target="0000:f0:00.0" count="18" tclass="0x068000"/>
        </gpu>
      </pci>
      <pci busid="0000:13:00.0" class="0x020700" link_speed="32.0 GT/s PCIe" link_width="16">
        <nic>
          <net name="mlx5_0" dev="1" speed="200000" port="1" guid="0x1" gdr="1"/>
          <net name="mlx5_1" dev="0" speed="200000" port="2" guid="0x1" gdr="1"/>
        </nic>
      </pci>
    </pci>
  </cpu>
  <cpu numaid="1" affinity="ff00" arch="x86_64" vendor="GenuineIntel" familyid="6" modelid="143"/>
</system>
"""

# What a provider ships: classes alone. No GPU model, no NVLink, no rate of a NIC.
BARE = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="23" modelid="49">
    <pci busid="ffff:ff:01.0" class="0x060400" link_speed="16 GT/s" link_width="16">
      <pci busid="0003:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
      <pci busid="0103:00:00.0" class="0x020700" link_speed="16 GT/s" link_width="16"/>
      <pci busid="0001:00:00.0" class="0x030200" link_speed="16 GT/s" link_width="16"/>
    </pci>
  </cpu>
</system>
"""


def imported(tmp_path: Path, text: str, name: str = "host.xml", **said: str) -> ImportedTopology:
    path = tmp_path / name
    path.write_text(text)
    found = import_file(path, **said)  # type: ignore[arg-type]
    assert check(found.node()) == ()
    written = tmp_path / "written.yaml"
    written.write_text(found.text())
    assert check(str(written)) == (), "what is written can be read"
    return found


def rate_GBps(topology: Topology, src: str, dst: str) -> float:
    return float(topology.graph[f"n0/{src}"][f"n0/{dst}"][0]["bandwidth"]) / 1e9


# ---------------------------------------------------------------- a dump


def test_a_dump_says_all(tmp_path: Path) -> None:
    found = imported(tmp_path, DUMP)
    topology = build_topology(found.node())
    router = Router(topology)
    assert topology.gpu.name == "h100-sxm5-80gb", "by its PCI device 2330"
    assert len(topology.ranks) == 2
    assert rate_GBps(topology, "gpu0", "nvs") == pytest.approx(18 * 20.6, rel=1e-3)  # 9 + 9
    assert rate_GBps(topology, "gpu0", "pcie0") == pytest.approx(48, rel=2e-3)  # NCCL: x16 gen5
    assert rate_GBps(topology, "gpu1", "pcie0") == pytest.approx(12, rel=2e-3)  # x8 gen4
    assert rate_GBps(topology, "cpu0", "cpu1") == pytest.approx(22)  # Sapphire Rapids
    assert router.path_type("n0/gpu0", "n0/gpu1") == "NVL"
    assert router.path_type("n0/gpu0", "n0/nic0") == "PIX"
    assert topology.network == "infiniband"
    assert topology.gpudirect_rdma
    assert found.notes == ()


def test_ports_of_one_adapter_share_its_lanes_and_keep_their_numbers(tmp_path: Path) -> None:
    found = imported(tmp_path, DUMP)
    topology = build_topology(found.node())
    assert rate_GBps(topology, "nic0", "pcie0") == pytest.approx(24, rel=2e-3)
    assert found.node().links["infiniband"].bandwidth == pytest.approx(25e9)
    assert "speed of its net elements" in topology.sources["infiniband bandwidth"]


def test_rates_of_adapters_are_those_of_ethernet_and_infiniband() -> None:
    """Of ports and pairs of them: 25 and 100 Gbit/s, HDR, NDR, XDR."""
    assert set(nccl_nics._RATES_GBPS.values()) <= {25, 100, 200, 400, 800}


def test_every_edge_says_where_it_is_from(tmp_path: Path) -> None:
    text = imported(tmp_path, DUMP).text()
    assert "{from: gpu1, to: pcie0, link: pcie4-x8}  # line 11, pci 0000:12:00.0" in text
    assert "lanes: 18}  # line 7, nvlink" in text
    assert "host.xml, link_speed and link_width" in text


def test_direct_nvlinks_and_those_that_lead_nowhere(tmp_path: Path) -> None:
    text = DUMP.replace(
        'target="0000:f0:00.0" count="9" tclass="0x068000"',
        'target="0000:12:00.0" count="4" tclass="0x030200"',
    )
    text = text.replace(
        'target="0000:f1:00.0" count="9" tclass="0x068000"',
        'target="0000:11:00.0" count="3" tclass="0x030200"',
    )
    text = text.replace(
        'target="0000:f0:00.0" count="18" tclass="0x068000"',
        'target="0000:11:00.0" count="2" tclass="0x030200"',
    )
    found = imported(tmp_path, text)
    assert rate_GBps(build_topology(found.node()), "gpu0", "gpu1") == pytest.approx(
        4 * 20.6, rel=1e-3
    )
    assert any("to itself" in note for note in found.notes)
    assert any("say 4 and 2" in note for note in found.notes)


def test_superchips_reach_their_cpu_chip_to_chip(tmp_path: Path) -> None:
    text = DUMP.replace(
        '<nvlink target="0000:f0:00.0" count="9" tclass="0x068000"/>',
        '<c2c bw="45000" count="10"/>',
    )
    topology = build_topology(imported(tmp_path, text).node())
    assert rate_GBps(topology, "gpu0", "cpu0") == pytest.approx(450)
    router = Router(topology)
    assert router.path_type("n0/gpu0", "n0/cpu0") == "C2C"
    assert router.path_type("n0/gpu1", "n0/cpu0") == "PHB"
    with pytest.raises(InputError, match=r"c2c\.bw"):
        imported(tmp_path, text.replace('bw="45000"', 'bw="0"'))


def test_two_levels_of_a_broadcom_switch_are_one(tmp_path: Path) -> None:
    upper = (
        'class="0x060400" vendor="0x1000" device="0xc030" subsystem_vendor="0x1000"'
        ' subsystem_device="0x0072"'
    )
    text = DUMP.replace('busid="0000:10:00.0" class="0x060400"', f'busid="0000:10:00.0" {upper}')
    lower = upper.replace("0x0072", "0x1003")
    text = text.replace(
        '<pci busid="0000:13:00.0"',
        f'<pci busid="0000:0f:00.0" {lower} link_speed="32 GT/s" link_width="16">'
        '<pci busid="0000:13:00.0"',
    ).replace("</nic>\n      </pci>", "</nic>\n      </pci></pci>")
    router = Router(build_topology(imported(tmp_path, text).node()))
    assert router.path_type("n0/gpu0", "n0/nic0") == "PIX"
    apart = text.replace("0x1003", "0x9999")
    router = Router(build_topology(imported(tmp_path, apart).node()))
    assert router.path_type("n0/gpu0", "n0/nic0") == "PXB"


# ---------------------------------------------------------------- completed


def test_what_a_provider_leaves_open_is_completed_and_said(tmp_path: Path) -> None:
    found = imported(tmp_path, BARE, gpu="A100-SXM4-80GB")
    topology = build_topology(found.node())
    assert rate_GBps(topology, "gpu0", "gpu1") == pytest.approx(12 * 20, rel=1e-3)
    assert topology.network == "infiniband"
    said = " ".join(found.notes)
    assert "NVLinks all to all" in said
    assert "NICs of 200 Gbit/s" in said
    assert all(f"# Assumed: {note}." in found.text() for note in found.notes)
    assert found.node().links["infiniband"].source.startswith("assumption")


def test_one_gpu_misses_no_nvlinks(tmp_path: Path) -> None:
    alone = "".join(line for line in BARE.splitlines(keepends=True) if "0001:00" not in line)
    found = imported(tmp_path, alone, gpu="RTX 4090")
    assert found.node().edges
    assert not any("NVLink" in note for note in found.notes)
    assert any("NVLink" in note for note in imported(tmp_path, BARE, gpu="RTX 4090").notes)


def test_gpus_count_by_bus_id_as_cuda_does(tmp_path: Path) -> None:
    text = imported(tmp_path, BARE, gpu="A100-SXM4-80GB").text()
    assert "{from: gpu0, to: pcie0, link: pcie4}  # line 6, pci 0001:00:00.0" in text


def test_from_a_template(tmp_path: Path) -> None:
    found = imported(tmp_path, BARE, template="dgx-a100")
    topology = build_topology(found.node())
    assert topology.gpu.name == "a100-sxm4-80gb"
    assert rate_GBps(topology, "gpu0", "nvs") == pytest.approx(240)
    assert "as was asked" in found.notes[0]


@pytest.mark.parametrize(
    ("gpu", "kinds", "note"),
    [
        ("RTX 4090", set(), "no NVLinks between 4090"),
        ("H100-SXM5-80GB", {"nvlink4"}, "18 per GPU, usual for this GPU"),
        ("A100-SXM4-80GB", {"nvlink3"}, "NVLinks as in dgx-a100"),
    ],
)
def test_another_gpu_has_not_the_nvlinks_of_the_template(
    tmp_path: Path, gpu: str, kinds: set[str], note: str
) -> None:
    found = imported(tmp_path, BARE, template="dgx-a100", gpu=gpu)
    links = found.node().links
    assert {edge.link for edge in found.node().edges if links[edge.link].kind == "nvlink"} == kinds
    assert any(note in one for one in found.notes)


@pytest.mark.parametrize("name", ["ndv4-topo.xml", "my-a100-host.xml"])
def test_the_name_of_the_file_helps(tmp_path: Path, name: str) -> None:
    found = imported(tmp_path, BARE, name)
    assert build_topology(found.node()).gpu.name.startswith("a100-sxm4")
    assert any("file's name" in note for note in found.notes)


def test_nothing_tells_the_gpu(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--gpu NAME"):
        imported(tmp_path, BARE)


def test_the_user_may_not_contradict_the_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="h100-sxm5-80gb by its PCI device"):
        imported(tmp_path, DUMP, gpu="V100-SXM2-16GB")


def test_devices_without_a_class_need_a_template(tmp_path: Path) -> None:
    text = BARE.replace(' class="0x030200"', "").replace(' class="0x020700"', "")
    with pytest.raises(InputError, match="nothing for 3 devices"):
        imported(tmp_path, text, gpu="A100-SXM4-80GB")
    with pytest.raises(InputError, match=r"3 devices without a class.*8 GPUs and 8 NICs"):
        imported(tmp_path, text, template="dgx-a100")


def test_a_file_without_gpus_gets_those_of_the_template(tmp_path: Path) -> None:
    lines = [line for line in BARE.splitlines() if "0x030200" not in line]
    found = imported(tmp_path, "\n".join(lines), template="dgx-a100")
    assert len(build_topology(found.node()).ranks) == 8
    with pytest.raises(InputError, match="--template NAME of the machine, which has them"):
        imported(tmp_path, "\n".join(lines), gpu="A100-SXM4-80GB")


def test_gpus_that_do_not_spread_are_refused(tmp_path: Path) -> None:
    switch = '<pci busid="{}" class="0x060400"><pci busid="{}" class="0x020700"/></pci>'
    three = "".join(switch.format(f"a{at}", f"b{at}") for at in range(3))
    text = f'<system version="1"><cpu numaid="0">{three}</cpu></system>'
    with pytest.raises(InputError, match="3 places for 8"):
        imported(tmp_path, text, template="dgx-a100")


def test_pcie_is_no_faster_than_the_gpu(tmp_path: Path) -> None:
    """A provider's file gives V100s generation 4, which have 3 (NVIDIA's data sheet)."""
    found = imported(tmp_path, BARE, gpu="V100-SXM2-16GB")
    assert rate_GBps(build_topology(found.node()), "gpu0", "pcie0") == pytest.approx(12, rel=2e-3)
    assert any("generation 3" in note and "generation 4" in note for note in found.notes)


def test_a_switch_at_rest_is_as_fast_as_its_devices(tmp_path: Path) -> None:
    """Links slow down at rest, and a dump says so; its devices say what it can do."""
    busy = 'class="0x060400" link_speed="32.0 GT/s PCIe"'
    found = imported(tmp_path, DUMP.replace(busy, busy.replace("32.0", "5.0")))
    assert rate_GBps(build_topology(found.node()), "pcie0", "cpu0") == pytest.approx(24, rel=2e-3)
    assert any("as fast as their devices" in note for note in found.notes)


def test_hosts_that_nvlink_joins_may_stand_in_one_file(tmp_path: Path) -> None:
    text = DUMP.replace('numaid="0"', 'numaid="0" host_hash="0x1"')
    text = text.replace('numaid="1"', 'numaid="0" host_hash="0x2"')
    assert "n0/cpu1" in build_topology(imported(tmp_path, text).node()).graph


@pytest.mark.parametrize(
    ("old", "new", "match"),
    [
        ('version="1"', 'version="7"', "version '7'"),
        ('numaid="1"', 'numaid="0"', "one number twice"),
        ("0000:12:00.0", "0000:11:00.0", "again"),
        ('count="18"', 'count="-2"', "nvlink.count"),
        ('link_width="8"', 'link_width="wide"', "link_width"),
        (
            'device="0x2330"\n           link_speed="16',
            'device="0x20b2"\n           link_speed="16',
            "several kinds",
        ),
    ],
)
def test_faults_name_file_and_line(tmp_path: Path, old: str, new: str, match: str) -> None:
    assert old in DUMP
    with pytest.raises(InputError, match=match) as caught:
        imported(tmp_path, DUMP.replace(old, new))
    assert all("host.xml" in (fault.file or "") for fault in caught.value.faults)


# ---------------------------------------------------------------- channels

GRAPHS = """<graphs version="1">
  <graph id="0" pattern="4" crossnic="0" nchannels="2" speedintra="20" speedinter="20"
         typeintra="NVL" typeinter="PIX" samechannels="0">
    <channel><net dev="0"/><gpu dev="1"/><gpu dev="0"/><net dev="1"/></channel>
    <channel><net dev="1"/><gpu dev="0x0"/><gpu dev="0x1"/><net dev="0"/></channel>
  </graph>
  <graph id="3" pattern="5" nchannels="0" speedintra="0" speedinter="0"/>
</graphs>
"""


def test_channels_of_a_graph_are_kept_and_used(tmp_path: Path) -> None:
    host, graph = tmp_path / "host.xml", tmp_path / "graph.xml"
    host.write_text(DUMP)
    graph.write_text(GRAPHS)
    found = import_file(host, graph=graph)
    written = tmp_path / "with.yaml"
    written.write_text(found.text())
    topology = build_topology(str(written))
    ring = topology.graph_of("ring", [0, 1])
    assert ring is not None
    assert [way.gpus for way in ring.paths] == [(1, 0), (0, 1)]
    assert [(way.nic_in, way.nic_out) for way in ring.paths] == [(0, 1), (1, 0)]
    assert (ring.intra_Bps, ring.type_inter, ring.same_channels) == (20e9, "PIX", False)
    assert topology.graph_of("ring", [0]) is None
    assert len(topology.channel_graphs) == 1, "a graph without channels says nothing"
    assert local_rings(Router(topology), topology.ranks) == ((1, 0), (0, 1))
    system = system_of(topology, Router(topology), range(2), LibrarySettings())
    assert (system.ring.channels, system.ring.intra_GBps) == (2, 20)
    alone = build_topology(import_file(host).node())
    assert alone.channel_graphs == ()
    assert system_of(alone, Router(alone), range(2), LibrarySettings()).ring.channels > 2


def test_channels_of_a_file_name_its_devices(tmp_path: Path) -> None:
    host, graph = tmp_path / "host.xml", tmp_path / "graph.xml"
    host.write_text(DUMP)
    graph.write_text(GRAPHS)
    written = tmp_path / "edited.yaml"
    written.write_text(
        import_file(host, graph=graph).text().replace("[gpu1, gpu0]", "[gpu1, gpu9]")
    )
    (fault,) = check(str(written))
    assert (fault.field, fault.found) == ("graphs.0.channels.0", "'gpu9', no gpu")


def test_a_graph_alone_is_refused_and_one_of_another_machine_too(tmp_path: Path) -> None:
    host, graph = tmp_path / "host.xml", tmp_path / "graph.xml"
    host.write_text(DUMP)
    graph.write_text(GRAPHS)
    with pytest.raises(InputError, match="--graph"):
        import_file(graph)
    with pytest.raises(InputError, match="root element 'graphs'"):
        import_file(host, graph=host)
    graph.write_text(GRAPHS.replace('gpu dev="1"', 'gpu dev="7"'))
    with pytest.raises(InputError, match="7, which the topology has not"):
        import_file(host, graph=graph)


# ---------------------------------------------------------------- files of others

# NUMA domains, GPUs, NICs and path types of each file, read off by eye: which GPU hangs beside
# which NIC; the archetypes of Azure/azhpc-images topology/ and the p4d file of aws-ofi-nccl.
GOLDEN = {
    "azure-ndv2-topo.xml": (2, 8, 1, "v100-sxm2", ["PHB"] * 4 + ["SYS"] * 4, "NVL"),
    "azure-ndv4-topo.xml": (4, 8, 8, "a100-sxm4", ["PIX"] * 8, "NVL"),
    "azure-ndv5-topo.xml": (2, 8, 8, "h100-sxm5", ["PIX"] * 8, "NVL"),
    "azure-ndv5-topo-new.xml": (2, 8, 8, "h100-sxm5", ["PIX"] * 8, "NVL"),
    "azure-ncv4-topo.xml": (4, 4, 1, "a100-pcie", ["PHB"] + ["SYS"] * 3, "SYS"),
    "aws-p4d-24xl-topo.xml": (2, 8, 4, "a100-sxm4-40gb", ["PIX"] * 8, "NVL"),
    "aws-p4de-24xl-topo.xml": (2, 8, 4, "a100-sxm4-80gb", ["PIX"] * 8, "NVL"),
    "aws-p5en-48xl-topo.xml": (2, 8, 8, "h200-sxm5", ["PIX"] * 8, "NVL"),
    "aws-g5.48xl-topo.xml": (2, 8, 1, "a10g", ["SYS"] * 4 + ["PHB"] * 4, "PHB"),
    "nebius-h100-topo.xml": (2, 8, 8, "h100-sxm5", ["PIX"] * 8, "NVL"),
    "nemo-aws-topo.xml": (2, 8, 8, "h100-sxm5", ["PIX"] * 8, "NVL"),
    "nemo-azure-topo.xml": (1, 8, 8, "a100-sxm4", ["PIX"] * 8, "NVL"),
    "nemo-oci-topo.xml": (4, 8, 8, "a100-sxm4", ["PIX"] * 8, "NVL"),
    "oci-a100-flattened-topo.xml": (4, 8, 8, "a100-sxm4", ["PIX"] * 8, "NVL"),
    "oci-b4-flattened-topo.xml": (4, 8, 8, "a100-sxm4", ["PIX"] * 8, "NVL"),
    "oci-h100-topo.xml": (2, 8, 16, "h100-sxm5", ["PIX"] * 8, "NVL"),
}

# The file, our template of the same machine, and how far their rings may be apart.
SAME = [
    ("azure-ndv4-topo.xml", "azure-ndv4", 0.02),
    ("azure-ndv5-topo.xml", "azure-ndv5", 0.02),
    ("aws-p4d-24xl-topo.xml", "aws-p4d", 0.02),
    ("nemo-aws-topo.xml", "aws-p5", 0.02),
    ("aws-p5en-48xl-topo.xml", "aws-p5en", 0.02),
    ("azure-ndv2-topo.xml", "azure-ndv2", 0.02),
    ("nebius-h100-topo.xml", "dgx-h100", 0.05),
    ("oci-a100-flattened-topo.xml", "oci-a100", 0.02),
    ("oci-h100-topo.xml", "oci-h100", 0.12),  # the file's ports have 180 Gbit/s, not 200
]


@pytest.fixture
def samples() -> Path:
    folder = os.environ.get("PERFMODEL_SAMPLES")
    if not folder:
        pytest.skip("PERFMODEL_SAMPLES names no folder with topologies of other people")
    return Path(folder) / "nccl_topo"


@pytest.mark.parametrize("name", GOLDEN)
def test_structure_of_real_files(samples: Path, name: str) -> None:
    domains, gpus, nics, gpu, ways, peers = GOLDEN[name]
    found = import_file(samples / name)
    assert check(found.node()) == ()
    topology = build_topology(found.node())
    router = Router(topology)
    kinds = [kind for _, kind in topology.graph.nodes(data="kind")]
    assert [kinds.count(kind) for kind in ("cpu", "gpu", "nic")] == [domains, gpus, nics]
    assert topology.gpu.name.startswith(gpu)
    assert [router.path_type(g, router.nearest_nics(g)[0]) for g in topology.ranks] == ways
    assert router.path_type(*topology.ranks[:2]) == peers


def test_a_real_file_of_rccl_is_a_board_of_mi300x(samples: Path) -> None:
    found = import_file(samples.parent / "unseen" / "nccl_topo" / "rccl-topo_8p_940vm.xml")
    topology = build_topology(found.node())
    kinds = [kind for _, kind in topology.graph.nodes(data="kind")]
    assert [topology.gpu.name, kinds.count("gpu"), kinds.count("nic")] == ["mi300x", 8, 8]
    assert len(local_rings(Router(topology), topology.ranks)) == 14


@pytest.mark.parametrize(
    ("name", "GBps"),
    [
        ("azure-ndv2-topo.xml", 10),
        ("azure-ndv4-topo.xml", 16),
        ("azure-ndv5-topo.xml", 22),
        ("azure-ncv4-topo.xml", 16),
        ("aws-p4d-24xl-topo.xml", 10),
    ],
)
def test_rate_between_numa_domains_as_nccl_has_it(samples: Path, name: str, GBps: float) -> None:
    """NCCL 2.30.7 src/graph/topo.h, by the model of the CPU."""
    topology = build_topology(import_file(samples / name).node())
    assert rate_GBps(topology, "cpu0", "cpu1") == pytest.approx(GBps)


def test_ndv4_numbers_its_gpus_as_nvidia_smi_does(samples: Path) -> None:
    """GPU 0 and 1 of an ND A100 v4 stand on NUMA domain 1, 2 and 3 on domain 0."""
    topology = build_topology(import_file(samples / "azure-ndv4-topo.xml").node())
    router = Router(topology)
    assert [router.nearest_cpu(gpu)[-1] for gpu in topology.ranks] == list("11003322")


@pytest.mark.slow
@pytest.mark.parametrize(("name", "template", "apart"), SAME)
def test_rings_of_an_import_take_as_long_as_those_of_our_template(
    samples: Path, name: str, template: str, apart: float
) -> None:
    node = import_file(samples / name).node()
    for hosts in (1, 2):
        fabric = "one-switch" if hosts > 1 else None
        times = []
        for spec in (node, template):
            topology = build_topology(spec, hosts=hosts, fabric=fabric)
            rows = collective_rows(
                topology, op="all_reduce", sizes=[2**20, 2**28], algorithm="ring"
            )
            times.append([row["time_s"] for row in rows])
        assert times[0] == pytest.approx(times[1], rel=apart)


def test_graphs_of_real_machines(samples: Path) -> None:
    found = import_file(samples / "azure-ncv4-topo.xml", graph=samples / "azure-ncv4-graph.xml")
    ring = build_topology(found.node()).graph_of("ring", range(4))
    assert ring is not None
    assert (len(ring.paths), ring.intra_Bps, ring.type_intra) == (2, 12e9, "SYS")
    with pytest.raises(InputError, match="--graph"):
        import_file(samples / "uccl-graph-dump.xml")


# ---------------------------------------------------------------- as people have them

PAIR = """<system version="1">
  <cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="143" modelid="49">
    <pci busid="0000:07:00.0" class="0x030200" vendor="0x10de" device="0x20b2" link_speed="16 GT/s" link_width="16">
      <gpu dev="0" sm="80" rank="0" gdr="1">LINKS</gpu>
    </pci>
    <pci busid="0000:0b:00.0" class="0x030200" vendor="0x10de" device="0x20b2" link_speed="16 GT/s" link_width="16">
      <gpu dev="1" sm="80" rank="1" gdr="1">LINKS</gpu>
    </pci>
    <pci busid="0000:0c:00.0" class="0x020700" vendor="0x15b3" device="0x101b" link_speed="16 GT/s" link_width="16">
      <nic><net name="mlx5_0" dev="0" speed="200000" port="1" gdr="1"/></nic>
    </pci>
    <nic><net name="veth12ab" dev="1" speed="10000"/><net name="br-99" dev="2" speed="10000"/></nic>
  </cpu>
</system>
"""  # noqa: E501
SWITCHED = '<nvlink target="0000:c4:00.0" count="12" tclass="0x068000"/>'


def imported_pair(tmp_path: Path, text: str, **options: str) -> ImportedTopology:
    path = tmp_path / "topo.xml"
    path.write_text(text)
    return import_file(path, **options)


def test_virtual_interfaces_are_no_nics(tmp_path: Path) -> None:
    imported = imported_pair(tmp_path, PAIR.replace("LINKS", SWITCHED))
    assert "1 x 200 Gbit/s infiniband" in imported.document["description"]
    assert "2 virtual interfaces are no NICs (veth12ab, br-99)" in imported.notes


def test_xml_in_a_page_is_found(tmp_path: Path) -> None:
    text = PAIR.replace("LINKS", SWITCHED)
    page = "Our node:\n\n```xml\n" + "".join(f"> {line}\n" for line in text.splitlines()) + "```\n"
    whole = imported_pair(tmp_path, text).document["edges"]
    assert imported_pair(tmp_path, page).document["edges"] == whole


def test_gpus_on_a_board_have_nvlinks_of_the_file_or_of_the_template(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no nvlink element for 2 GPUs A100 SXM4"):
        imported_pair(tmp_path, PAIR.replace("LINKS", ""))
    named = imported_pair(tmp_path, PAIR.replace("LINKS", ""), template="dgx-a100")
    assert "NVLinks as in dgx-a100: the file has none" in named.notes
    assert "2 GPUs, as the file says; dgx-a100 has 8" in named.notes
    assert build_topology(named.node()).graph["n0/gpu0"]["n0/nvs"][0]["lanes"] == 12
    with pytest.raises(InputError, match="a100-sxm4-80gb by its PCI device, and h100"):
        imported_pair(tmp_path, PAIR.replace("LINKS", SWITCHED), template="dgx-h100")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('count="12"', 'count="126"', "126 NVLinks of gpu0; allowed: at most 12"),
        ('speed="200000"', 'speed="200000000"', "2e.08 Mbit/s; allowed: at most 1,600,000"),
    ],
)
def test_what_no_hardware_has_is_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    text = PAIR.replace("LINKS", SWITCHED)
    with pytest.raises(InputError, match=message):
        imported_pair(tmp_path, text.replace(old, new))


def rccl_gpu(at: int, count: int) -> str:
    peers = (other for other in range(count) if other != at)
    links = "".join(
        f'<xgmi target="0000:{other}0:00.0" count="1" tclass="0x120000"/>' for other in peers
    )
    return (
        f'<pci busid="0000:{at}0:00.0" class="0x120000" vendor="0x1002" device="0x74a1" '
        f'link_speed="32.0 GT/s PCIe" link_width="16">'
        f'<gpu dev="{at}" sm="304" gcn="gfx942" rank="{at}" gdr="1">{links}</gpu></pci>'
    )


def test_a_file_of_rccl_names_amds_gpus_and_links(tmp_path: Path) -> None:
    """As RCCL writes it: version 2, GPUs by their PCI ids, links as xgmi elements."""
    text = (
        '<system version="2"><cpu numaid="0" arch="x86_64" vendor="AuthenticAMD" familyid="175" '
        f'modelid="17">{"".join(rccl_gpu(at, 4) for at in range(4))}</cpu></system>'
    )
    found = imported(tmp_path, text)
    topology = build_topology(found.node())
    assert topology.gpu.name == "mi300x"
    assert {rate_GBps(topology, f"gpu{a}", f"gpu{b}") for a, b in permutations(range(4), 2)} == {48}


def test_a_gpu_with_fewer_nvlinks_than_its_peers_is_noted(tmp_path: Path) -> None:
    text = PAIR.replace("LINKS", SWITCHED).replace('count="12"', 'count="10"', 1)
    assert any("gpu0 has 10 NVLinks" in note for note in imported_pair(tmp_path, text).notes)
