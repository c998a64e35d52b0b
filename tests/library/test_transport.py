"""Which way bytes take inside a host, by path type and by what a user tells NCCL.

Rules: NVIDIA/nccl 2.30.7 ``src/graph/paths.cc`` and the user guide.
"""

import pytest

from perfmodel.errors import TopologyError
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.library.settings import LibrarySettings, settings_of
from perfmodel.library.transport import apply_settings, gdr_paths, local_path, nic_path, peer_paths
from perfmodel.studies.run.collective import collective_rows
from perfmodel.topology.from_text.describe import describe
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.spec import FabricSpec

RAILS = FabricSpec(kind="rail-optimised", routing="rail")


def with_env(template, hosts=1, version=None, **env):
    topology = build_topology(template, hosts=hosts, fabric=RAILS if hosts > 1 else None)
    topology = apply_settings(topology, settings_of(version=version, env=env))
    return topology, Router(topology)


def nodes_on(topology, path):
    names = [topology.arcs.names[arc] for arc in path.arcs]
    return [names[0][0], *(dst for _, dst in names)]


def test_by_default_the_machine_stays_the_same():
    topology = build_topology("dgx-a100")
    assert apply_settings(topology, LibrarySettings()) is topology
    assert apply_settings(topology, settings_of(env={"NCCL_DEBUG": "INFO"})) is topology


@pytest.mark.parametrize(
    ("env", "hop", "staged"),
    [
        ({}, "nvlink", False),
        ({"NCCL_P2P_LEVEL": "NVL"}, "nvlink", False),
        ({"NCCL_P2P_LEVEL": "LOC"}, "pcie", True),
        ({"NCCL_P2P_DISABLE": "1"}, "pcie", True),
        ({"NCCL_P2P_DISABLE": "0"}, "nvlink", False),
        ({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}, "network", False),
    ],
)
def test_between_gpus_with_nvlink(env, hop, staged):
    hosts = 2 if "NCCL_SHM_DISABLE" in env else 1
    topology, router = with_env("dgx-a100", hosts, **env)
    path = local_path(topology, router, "n0/gpu0", "n0/gpu1")
    assert (path.hop, path.staged) == (hop, staged)
    passed = {name.split("/")[1].rstrip("0123456789") for name in nodes_on(topology, path)}
    assert ("nvs" in passed) == (hop == "nvlink")
    assert ("cpu" in passed) == staged
    assert ("nic" in passed) == (hop == "network")


@pytest.mark.parametrize(
    ("level", "peer", "staged"),
    [
        ("PIX", 1, False),
        ("PIX", 4, True),
        ("PHB", 1, False),
        ("PHB", 4, True),
        ("SYS", 4, False),
        (None, 1, False),
        (None, 4, True),
    ],
)
def test_between_gpus_over_pcie(level, peer, staged):
    """8 L40S: four behind each PCIe switch (PIX), the others across sockets (SYS)."""
    env = {} if level is None else {"NCCL_P2P_LEVEL": level}
    topology, router = with_env("l40s-x8", **env)
    assert local_path(topology, router, "n0/gpu0", f"n0/gpu{peer}").staged == staged


def test_a_level_does_not_make_p2p_possible():
    topology, router = with_env("rtx4090-x8", NCCL_P2P_LEVEL="SYS")
    assert local_path(topology, router, "n0/gpu0", "n0/gpu1").staged
    assert peer_paths(topology) == {"NVL", "NVB", "C2C"}


def test_without_shm_and_without_nics_nothing_is_left():
    topology, router = with_env("rtx4090-x8", NCCL_SHM_DISABLE="1")
    with pytest.raises(TopologyError, match="NCCL_SHM_DISABLE=1"):
        local_path(topology, router, "n0/gpu0", "n0/gpu1")


@pytest.mark.parametrize(
    ("env", "gpu", "staged"),
    [
        ({}, 0, False),
        ({"NCCL_NET_GDR_LEVEL": "PIX"}, 0, False),
        ({"NCCL_NET_GDR_LEVEL": "LOC"}, 0, True),
        ({"NCCL_NET_GDR_LEVEL": "0"}, 0, True),
        ({"NCCL_NET_GDR_LEVEL": "SYS"}, 6, False),
        ({"NCCL_IB_DISABLE": "1"}, 0, True),
        ({"NCCL_NET": "Socket"}, 0, True),
    ],
)
def test_to_a_nic(env, gpu, staged):
    topology, router = with_env("dgx-a100", 2, **env)
    inward = nic_path(topology, router, f"n0/gpu{gpu}", "n0/nic0", outward=False)
    assert inward.staged == staged


def test_to_the_nic_of_another_gpu():
    """PXN: over NVLink to the GPU beside the NIC, unless it is turned off or too old."""
    topology, router = with_env("dgx-h100", 2)
    relayed = nic_path(topology, router, "n0/gpu5", "n0/nic0", outward=True)
    assert not relayed.staged
    assert "n0/gpu0" in nodes_on(topology, relayed)
    off, router = with_env("dgx-h100", 2, NCCL_PXN_DISABLE="1")
    assert nic_path(off, router, "n0/gpu5", "n0/nic0", outward=True).staged
    old, router = with_env("dgx-h100", 2, version="2.11.4")
    assert nic_path(old, router, "n0/gpu5", "n0/nic0", outward=True).staged


def test_sockets_instead_of_rdma():
    topology, _ = with_env("dgx-a100", 2, NCCL_IB_DISABLE="1")
    assert topology.network == "tcp"
    assert gdr_paths(topology) == frozenset()
    local, _ = with_env("dgx-a100", NCCL_IB_DISABLE="1")
    assert not local.gpudirect_rdma or local.network == "none"


def test_machines_are_built_with_their_settings():
    topology = build_topology("dgx-a100")
    machine = make_machine(
        topology, load_library("nccl"), settings=settings_of(env={"NCCL_P2P_DISABLE": "1"})
    )
    assert machine.rings(range(8)).edges.staged
    assert not make_machine(topology, load_library("nccl")).rings(range(8)).edges.staged


def test_peers_of_other_sockets_get_little():
    """NVIDIA/nccl-tests issue 293: 6.4 GB/s of 16 between the sockets."""
    node = describe(
        "A100-PCIE-40GB", gpus=1, intra="none", network="InfiniBand HDR, across sockets"
    )
    topology = build_topology(node.node, hosts=2, fabric="one-switch")
    used = apply_settings(topology, settings_of(env={"NCCL_NET_GDR_LEVEL": "SYS"}))
    forced = nic_path(used, Router(used), "n0/gpu0", "n0/nic0", outward=True)
    staged = nic_path(topology, Router(topology), "n0/gpu0", "n0/nic0", outward=True)
    assert (forced.staged, staged.staged) == (False, True)
    assert forced.cap_Bps == pytest.approx(6.45e9)
    assert staged.cap_Bps == float("inf")
    env = LibrarySettings(env={"NCCL_NET_GDR_LEVEL": "SYS", "NCCL_PROTO": "Simple"})
    machine = make_machine(topology, load_library("nccl"), settings=env)
    (lowered,) = lower_collective(machine, "all_reduce", 1 << 20, range(2), algorithm="ring")
    assert lowered.stages[0].cap_Bps.max() == pytest.approx(6.45e9)


def four_cards(cpu):
    return build_topology(describe("RTX 5090", gpus=4, intra=f"PCIe5, {cpu}", network=None).node)


@pytest.mark.parametrize(("cpu", "shares"), [("AMD EPYC Rome", True), ("AMD EPYC Genoa", False)])
def test_copies_of_older_cpus_share_one_link(cpu, shares):
    """NVIDIA/nccl issue 1285 and nccl-tests issue 74 against issue 287 and nccl issue 1639."""
    topology = four_cards(cpu)
    path = local_path(topology, Router(topology), "n0/gpu0", "n0/gpu1")
    link_Bps = topology.arcs.bandwidth_Bps[path.arcs[0]]
    assert path.staged
    assert path.together_Bps == (link_Bps if shares else float("inf"))


def test_all_reduce_through_the_memory_of_genoa():
    """NVIDIA/nccl-tests issue 287: 128 MiB on four RTX 5090 without P2P, 27.3 GB/s of each."""
    (row,) = collective_rows(four_cards("AMD Genoa"), op="all_reduce", sizes=[2**27])
    assert 1.5 * 2**27 / row["time_s"] == pytest.approx(27.3e9, rel=0.3)
