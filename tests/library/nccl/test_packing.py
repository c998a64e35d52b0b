"""The search of channels leaves out only what could not have won."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.library.nccl import graphs as search
from perfmodel.library.nccl.host_graph import Host, HostPath, hardware, host_of
from perfmodel.library.nccl.packing import Demand, channel_bound, pack_channels
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology

NEWEST = (9.0, 9.0)


def host(name, gpus, *, hosts=2):
    topology = build_topology(name, hosts=hosts, fabric="one-switch" if hosts > 1 else None)
    local = topology.ranks[:gpus]
    return host_of(topology, Router(topology), local, between_hosts=hosts > 1, release=NEWEST)


def graphs(looked_at, cross_nic):
    """Ring and tree, searched anew."""
    search.ring_graph.cache_clear()
    search.tree_graph.cache_clear()
    ring = search.ring_graph(looked_at, cross_nic=cross_nic, most=32)
    return ring, search.tree_graph(looked_at, ring)


SMALL = [
    ("gb200-nvl72", 4),
    ("gb200-nvl72", 8),
    ("gb200-nvl72", 13),
    ("dgx-h100", 8),
    ("dgx-a100", 3),
    ("hgx-b200", 8),
    ("dgx2-v100", 6),
    ("dgx1-v100", 8),
    ("azure-ncv4", 4),
    ("aws-p5", 8),
]


@pytest.mark.parametrize(("GBps", "rings"), [(20.0, 6), (10.0, 12), (40.0, 2), (45.0, 0)])
def test_rings_of_a_cube_mesh_use_every_link_up(GBps, rings):
    """A GPU of a DGX-1V has six NVLinks of 20 GB/s: a ring takes two, and runs both ways.

    Of the two joined links there are two per GPU, which make one ring.
    """
    demand = Demand(GBps, GBps, "NVL", "NVL", 0, same=False)
    assert pack_channels(host("dgx1-v100", 8, hosts=1), demand, most=32) == rings


@pytest.mark.slow
@pytest.mark.parametrize("hosts", [1, 2])
@pytest.mark.parametrize("cross_nic", [0, 2])
@pytest.mark.parametrize(("name", "gpus"), SMALL)
def test_nothing_that_wins_is_left_out(name, gpus, cross_nic, hosts, monkeypatch):
    looked_at = host(name, gpus, hosts=hosts)
    short = graphs(looked_at, cross_nic)
    monkeypatch.setattr(search, "channel_bound", lambda host, demand, *, most: most)
    assert graphs(looked_at, cross_nic) == short


@pytest.mark.slow
def test_little_is_searched_on_a_switched_domain(monkeypatch):
    """45.1 GB/s are 16 channels; no lower speed carries more, which takes no packing to know."""
    asked = []
    monkeypatch.setattr(
        search,
        "pack_channels",
        lambda *what, most: asked.append(what[1]) or pack_channels(*what, most=most),
    )
    ring, _ = graphs(host("gb200-nvl72", 64), 2)
    assert (ring.channels, ring.intra_GBps) == (16, 45.1)
    assert len(asked) < 6


SWITCHED = st.builds(
    lambda gpus, nics, *rest: switched(gpus, min(nics, gpus), *rest),
    st.integers(2, 7),
    st.integers(0, 7),
    st.booleans(),
    st.sampled_from([0.5, 24.0, 240.6, 450.0, 721.8]),
    st.sampled_from([12.0, 24.0, 48.0]),
    st.sampled_from([12.5, 25.0, 50.0]),
)


def switched(gpus, nics, near, nvlink_GBps, pcie_GBps, nic_GBps):
    """GPUs on one switch, each with a PCIe link; the first of them have a NIC."""
    up, down, out, into = (
        dict(zip(range(gpus), range(at * gpus, (at + 1) * gpus), strict=True)) for at in range(4)
    )
    peers = {
        (a, b): HostPath("NVL", (up[a], down[b]))
        for a in range(gpus)
        for b in range(gpus)
        if a != b
    }

    def to_nic(gpu, nic, outward):
        pcie = out if outward else into
        if gpu == nic:
            return HostPath("PIX", (pcie[gpu],))
        if outward and near:
            return HostPath("PXN", (up[gpu], down[nic], out[nic]))
        return HostPath("SYS", (pcie[gpu],))

    return Host(
        capability=100,
        cpu="arm",
        gpus=gpus,
        peers=peers,
        outward={(g, n): to_nic(g, n, True) for g in range(gpus) for n in range(nics)},
        inward={(g, n): to_nic(g, n, False) for g in range(gpus) for n in range(nics)},
        nic_GBps=(nic_GBps,) * nics,
        arc_GBps={arc: nvlink_GBps if arc < 2 * gpus else pcie_GBps for arc in range(4 * gpus)},
        mesh=None,
        nvlink_GBps=nvlink_GBps if gpus > 1 else 0.0,
        switched=gpus > 1,
    )


@given(SWITCHED, st.sampled_from([0, 1, 2]))
@settings(deadline=None, max_examples=60)
def test_a_switched_domain_is_searched_as_in_full(looked_at, cross_nic):
    short = graphs(looked_at, cross_nic)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "channel_bound", lambda host, demand, *, most: most)
        assert graphs(looked_at, cross_nic) == short


@given(
    st.one_of(SWITCHED, st.sampled_from([host(*one) for one in SMALL[3:9]])),
    st.sampled_from(hardware().speeds_between_hosts_GBps[100]),
    st.sampled_from(["NVL", "PIX", "PHB", "SYS"]),
    st.sampled_from(["PIX", "PXN", "SYS", None]),
    st.booleans(),
)
@settings(deadline=None, max_examples=200)
def test_no_packing_exceeds_the_bound(looked_at, speed, intra, inter, same):
    demand = Demand(speed, 0.0 if inter is None else speed, intra, inter, 2, same)
    assert pack_channels(looked_at, demand, most=64) <= channel_bound(looked_at, demand, most=64)


@pytest.mark.parametrize("gpus", [2, 4, 7])
def test_the_bound_is_reached_on_a_switch(gpus):
    """Rings inside a switched host leave every GPU once: as many as one GPU's links carry."""
    looked_at = switched(gpus, 0, False, 721.8, 48.0, 50.0)
    demand = Demand(45.0, 45.0, "NVL", "LOC", 0, True)
    assert (
        pack_channels(looked_at, demand, most=64) == channel_bound(looked_at, demand, most=64) == 16
    )


def test_equal_hosts_are_searched_once():
    search.ring_graph.cache_clear()
    first, second = host("dgx-h100", 8), host("dgx-h100", 8)
    assert first is not second
    assert (first, hash(first)) == (second, hash(second))
    slower = replace(first, nic_GBps=(25.0, *first.nic_GBps[1:]))
    assert slower != first
    for one in (first, second, slower):
        search.ring_graph(one, cross_nic=2, most=32)
    assert search.ring_graph.cache_info().misses == 2
