"""Channels that the search finds, against those of machines whose logs or rules are known.

Golden numbers: the rules of NVIDIA/nccl 2.30.7 ``src/graph/search.cc`` worked out by hand for usual
machines, and what published logs say (H800: 16 channels, 2.18.3; 25 GbE: 2; DGX-1: 12).
"""

import math
from dataclasses import replace

import pytest

from perfmodel.errors import InputError
from perfmodel.files import data_folder
from perfmodel.library.compute_capability import capability_of, compute_capabilities
from perfmodel.library.nccl.communicator import channels_of, system_of
from perfmodel.library.nccl.cost_model import constants_of
from perfmodel.library.nccl.graphs import nvls_graph, ring_graph, tree_graph
from perfmodel.library.nccl.host_graph import (
    Host,
    HostPath,
    host_of,
    vendor_of,
)
from perfmodel.library.settings import LibrarySettings, settings_of
from perfmodel.library.transport import apply_settings
from perfmodel.topology.faults import degrade_links, find_arcs, remove_links
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.gpus import gpu_names, load_gpu


def looked_at(template, hosts=1, gpus=None, fabric="one-switch", group=None, **words):
    topology = build_topology(
        template, hosts=hosts, gpus_per_host=gpus, fabric=fabric if hosts > 1 else None
    )
    settings = settings_of(**words)
    topology = apply_settings(topology, settings)
    ranks = group or range(len(topology.ranks))
    return system_of(topology, Router(topology), ranks, settings), settings


RINGS = [  # template, hosts, GPUs per host, channels, GB/s, type inside, real channels
    ("dgx-a100", 1, 8, 12, 20.0, "NVL", 24),
    ("dgx-h100", 1, 8, 12, 30.0, "NVL", 24),
    ("hgx-h200", 1, 8, 12, 30.0, "NVL", 24),
    ("hgx-b200", 1, 8, 16, 45.0, "NVL", 32),
    ("dgx-a100", 2, 8, 8, 24.0, "NVL", 16),
    ("azure-ndv4", 4, 8, 8, 24.0, "NVL", 16),
    ("dgx-h100", 4, 8, 8, 45.0, "NVL", 16),
    ("azure-ndv5", 2, 8, 8, 45.0, "NVL", 16),
    ("dgx1-v100", 1, 8, 6, 20.0, "NVL", 12),
    ("dgx1-v100", 1, 4, 4, 20.0, "NVL", 8),
    ("dgx1-v100", 1, 5, 2, 20.0, "NVB", 4),
    ("dgx2-v100", 1, 16, 6, 20.0, "NVL", 12),
    ("v100-x8-25g", 2, 8, 1, 3.0, "NVL", 2),
    ("rtx4090-x8", 1, 8, 1, 15.0, "SYS", 2),
    ("dgx-a100", 2, 1, 1, 24.0, "LOC", 2),
    ("dgx-h100", 2, 1, 2, 24.0, "LOC", 4),
]


@pytest.mark.parametrize("row", RINGS)
def test_rings(row):
    template, hosts, gpus, channels, speed, kind, real = row
    system, settings = looked_at(template, hosts, gpus)
    ring = system.ring
    assert (ring.channels, ring.intra_GBps, ring.type_intra) == (channels, speed, kind)
    assert channels_of(system, "ring", settings) == real
    assert (system.nodes, system.ranks, system.gpus) == (hosts, hosts * gpus, gpus)


@pytest.mark.parametrize(
    ("template", "hosts", "graph"),
    [
        ("dgx-h100", 1, (8, 40.0, 60.0)),
        ("hgx-b200", 1, (8, 80.0, 90.0)),
        ("dgx-h100", 4, (8, 40.0, 48.0)),
        ("dgx-a100", 1, None),
    ],
)
def test_nvls(template, hosts, graph):
    nvls = looked_at(template, hosts)[0].nvls
    actual = None if nvls is None else (nvls.channels, nvls.intra_GBps, nvls.inter_GBps)
    assert actual == graph


@pytest.mark.parametrize(("gpus", "speed"), [(4, 60.0), (5, 60.0), (6, 50.0), (7, 40.0), (8, 40.0)])
def test_nvls_speed_over_gpus(gpus, speed):
    nvls = looked_at("dgx-h100", 1, gpus)[0].nvls
    assert (nvls.channels, nvls.intra_GBps) == (gpus, speed)


def test_versions():
    old, _ = looked_at("dgx-h100", version="2.21.5")
    assert (old.nvls.intra_GBps, old.nvls.inter_GBps) == (40.0, 40.0)
    assert looked_at("dgx-h100", version="2.16.2")[0].nvls is None
    system, settings = looked_at("hgx-b200", version="2.26.2")
    assert channels_of(system, "ring", settings) == 32


def switched(lanes_GBps, capability, gpus=8):
    """A host whose GPUs meet at one switch."""
    arcs = dict.fromkeys(range(2 * gpus), lanes_GBps)
    peers = {
        (a, b): HostPath("NVL", (a, gpus + b)) for a in range(gpus) for b in range(gpus) if a != b
    }
    return Host(capability, "intel", gpus, peers, {}, {}, (), arcs, None, lanes_GBps, switched=True)


def test_h800_has_16_channels():
    """Log of NCCL 2.18.3: 8 NVLinks of 20 GB/s, 16 channels."""
    ring = ring_graph(switched(160.0, 90), cross_nic=2, most=32)
    assert (ring.channels, ring.intra_GBps) == (8, 20.0)


def test_a100_with_half_its_links():
    """240 GB/s give 12 x 20; half of it 3 x 40, doubled to 6 x 20."""
    ring = ring_graph(switched(120.0, 80), cross_nic=2, most=32)
    assert (ring.channels, ring.intra_GBps) == (6, 20.0)


def test_nvls_charges_each_head_twice():
    host = switched(370.8, 90)
    assert nvls_graph(host, raise_inter=False).intra_GBps * 9 <= 370.8
    assert nvls_graph(replace(host, nvlink_GBps=359.0), raise_inter=False).intra_GBps == 30.0
    assert nvls_graph(replace(host, capability=80), raise_inter=False) is None


def test_more_speed_inside_for_trees_between_hosts():
    """8 x 24 between hosts leave room for 8 x 30 chains on 240 GB/s of NVLink."""
    tree = looked_at("dgx-a100", 2)[0].tree
    assert (tree.channels, tree.intra_GBps, tree.inter_GBps) == (8, 30.0, 24.0)
    assert tree_graph(switched(240.0, 80), looked_at("dgx-a100")[0].ring).intra_GBps == 20.0


def test_user_bounds_on_channels():
    for env, count in (({"NCCL_MAX_NCHANNELS": "8"}, 8), ({"NCCL_MIN_CTAS": "32"}, 32)):
        system, settings = looked_at("dgx-a100", env=env)
        assert channels_of(system, "ring", settings) == count


def test_paths_to_the_network():
    direct, _ = looked_at("dgx-a100", 2)
    assert direct.ring.type_inter in {"PIX", "PXB"}
    assert looked_at("dgx-h100", 2)[0].ring.type_inter == "PXN"
    alone, _ = looked_at("dgx-h100", 2, env={"NCCL_PXN_DISABLE": "1"})
    assert alone.ring.type_inter != "PXN"
    sockets, _ = looked_at("dgx-a100", 2, env={"NCCL_IB_DISABLE": "1"})
    assert sockets.ring.type_inter in {"PHB", "SYS"}
    near, _ = looked_at("dgx-a100", 2, env={"NCCL_NET_GDR_LEVEL": "LOC"})
    assert near.ring.type_inter in {"PHB", "SYS"}


def test_without_p2p_gpus_meet_in_host_memory():
    usual, _ = looked_at("dgx-a100")
    staged, _ = looked_at("dgx-a100", env={"NCCL_P2P_DISABLE": "1"})
    assert usual.ring.type_intra == "NVL"
    assert staged.ring.type_intra in {"PHB", "SYS"}
    assert staged.ring.channels * staged.ring.intra_GBps <= 24.0


def test_a_rack_without_p2p_is_refused_by_the_variable():
    """Trays of an NVLink rack share no host memory."""
    with pytest.raises(InputError, match=r"NCCL_P2P_DISABLE .*nothing connects n0/cpu0"):
        looked_at("gb200-nvl72", env={"NCCL_P2P_DISABLE": "1"})


def test_part_of_a_host_and_uneven_hosts():
    pair, _ = looked_at("dgx-a100", group=(2, 5))
    assert (pair.nodes, pair.ranks, pair.gpus) == (1, 2, 2)
    uneven, _ = looked_at("dgx-a100", 2, group=(0, 1, 2, 8))
    assert (uneven.nodes, uneven.ranks, uneven.gpus) == (2, 4, 1)
    assert uneven.per_node == 2


def test_each_generation_of_nvidia_has_a_capability_and_rows_of_the_tuner():
    """One that is missing would count as sm80: no NVLS, Ampere's estimates."""
    gpus = [gpu for gpu in map(load_gpu, gpu_names()) if not (gpu.amd or gpu.accelerator)]
    ours = {gpu.generation for gpu in gpus} - {"cpu"}
    assert ours == compute_capabilities().generations.keys()
    constants = constants_of((math.inf, math.inf))
    tables = (constants.ll_max_GBps, constants.tree_GBps, constants.nvls_efficiency)
    assert all(table.keys() == constants.rows_since.keys() for table in tables)


def test_capabilities_and_vendors():
    names = ("dgx1-v100", "dgx-a100", "rtx4090-x4")
    assert [capability_of(build_topology(name)) for name in names] == [70, 80, 89]
    ampere = build_topology("dgx-a100")
    assert capability_of(replace(ampere, gpu=replace(ampere.gpu, name="rtx-3090"))) == 86
    assert capability_of(replace(ampere, gpu=replace(ampere.gpu, name="a10g"))) == 86
    assert vendor_of(build_topology("dgx-a100")) == "amd"
    assert vendor_of(build_topology("dgx-h100")) == "intel"
    assert vendor_of(build_topology("gb200-nvl72")) == "arm"


def test_one_host_is_looked_at():
    """What a search costs does not grow with the number of hosts."""
    calls = {}
    for hosts in (2, 64):
        topology = build_topology("dgx-a100", hosts=hosts, fabric="rail-optimised")
        router = Router(topology)
        asked = []
        original = router.route
        router.route = lambda *ends, ask=original, seen=asked: (seen.append(ends), ask(*ends))[1]
        system = system_of(topology, router, range(len(topology.ranks)), LibrarySettings())
        assert system.nodes == hosts
        calls[hosts] = len(asked)
        assert all(end.startswith("n0/") for ends in asked for end in ends)
    assert calls[2] == calls[64]


def test_ports_of_one_adapter_are_one_nic(tmp_path):
    """16 ports of 200 Gbit/s on 8 GPUs (as OCI's H100 machines have) are 8 adapters of 400."""
    text = (data_folder("topologies") / "dgx-h100.yaml").read_text()
    path = tmp_path / "two-ports.yaml"
    path.write_text(text.replace("nic[0-7]", "nic[0-15]").replace("400 Gbit/s", "200 Gbit/s"))
    system = looked_at(str(path), 2)[0]
    assert (system.ring.channels, system.ring.inter_GBps) == (8, 45.0)
    assert (system.collnet.channels, system.collnet.inter_GBps) == (8, 48.0)
    for words in ({"version": "2.19.3"}, {"env": {"NCCL_IB_MERGE_NICS": "0"}}):
        ring = looked_at(str(path), 2, **words)[0].ring
        assert (ring.channels, ring.inter_GBps) == (15, 24.0)


def test_a_host_bridge_of_intel_costs_a_fifth_more():
    """24 GB/s of PCIe carry two rings of 12, or one of 20 at 1.2 times the bytes."""
    topology = build_topology("rtx4090-x4")
    rings = []
    for machine in (topology, replace(topology, cpu=None)):
        ring = system_of(machine, Router(machine), range(4), LibrarySettings()).ring
        rings.append((ring.channels, ring.intra_GBps))
    assert rings == [(2, 12.0), (1, 20.0)]


def test_a_slow_nic_carries_no_more_than_it_can():
    """12.5 GB/s behind a PCIe link of 48: one ring of 12, whatever PCIe would carry."""
    arcs = {0: 48.0, 1: 48.0, 2: 370.8, 3: 370.8}
    peers = {(0, 1): HostPath("NVL", (2,)), (1, 0): HostPath("NVL", (3,))}
    ways = {(g, 0): HostPath("PIX", (0,)) for g in range(2)}
    back = {(g, 0): HostPath("PIX", (1,)) for g in range(2)}
    host = Host(90, "intel", 2, peers, ways, back, (12.5,), arcs, None, 370.8, switched=True)
    ring = ring_graph(host, cross_nic=2, most=32)
    assert (ring.channels, ring.inter_GBps) == (1, 12.0)


def test_a_lost_nic_changes_no_channels_of_a_running_library():
    whole = apply_settings(build_topology("dgx1-v100", hosts=2, fabric="one-switch"), settings_of())
    lost = remove_links(whole, nodes=["n0/nic1"])
    ranks, settings = (0, 1, 8, 9), settings_of()
    expected = system_of(whole, Router(whole), ranks, settings)
    assert system_of(lost, Router(lost), ranks, settings) == expected


def test_a_slow_link_changes_no_channels_of_a_running_library():
    """A PCIe link at half its width: NCCL reads ``max_link_width`` when it starts."""
    topology = build_topology("dgx-a100", hosts=2, fabric="rail-optimised")
    whole = apply_settings(topology, settings_of())
    arcs = find_arcs(whole, "n0/nic0 -- n0/pcie0")
    slow = degrade_links(whole, {arc: 0.5 * whole.arcs.bandwidth_Bps[arc] for arc in arcs})
    ranks, settings = tuple(range(16)), settings_of()
    expected = system_of(whole, Router(whole), ranks, settings)
    assert system_of(slow, Router(slow), ranks, settings) == expected


def test_a_merged_adapter_counts_once(tmp_path):
    text = (data_folder("topologies") / "dgx-h100.yaml").read_text()
    path = tmp_path / "two-ports.yaml"
    path.write_text(text.replace("nic[0-7]", "nic[0-15]").replace("400 Gbit/s", "200 Gbit/s"))
    topology = build_topology(str(path), hosts=2, fabric="one-switch")
    rates = [
        host_of(
            topology,
            Router(topology),
            topology.ranks[:8],
            between_hosts=True,
            release=(2, 30),
            merging=merging,
        ).nic_GBps
        for merging in (True, False)
    ]
    assert rates == [(50.0,) * 8, (25.0,) * 16]
