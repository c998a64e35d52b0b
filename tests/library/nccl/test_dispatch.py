"""Which links NCCL's trees, switches and single sends use, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from perfmodel.collectives.verify import verify
from perfmodel.errors import InputError
from perfmodel.library.lowering.lower import lower_collective, lower_message
from perfmodel.library.lowering.lowered import LoweredCollective, add_traffic
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import load_library
from perfmodel.library.nccl.trees import rails_of
from perfmodel.library.settings import LibrarySettings
from perfmodel.topology.templates.build import build_topology

MiB = 1 << 20


def machine(template: str, hosts: int = 1, fabric: str = "rail-optimised", **told: Any) -> Machine:
    topology = (
        build_topology(template, hosts=hosts, fabric=fabric)
        if hosts > 1
        else build_topology(template)
    )
    return make_machine(topology, load_library("nccl"), settings=LibrarySettings(**told))


def everyone(here: Machine) -> range:
    return range(len(here.topology.ranks))


def way(
    here: Machine, algorithm: str | None, nbytes: int, op: str = "all_reduce"
) -> LoweredCollective:
    return lower_collective(here, op, nbytes, everyone(here), algorithm=algorithm)[-1]


def payload(here: Machine, one: LoweredCollective) -> dict[tuple[str, str], float]:
    """Bytes on each link, without a protocol's flags."""
    nbytes = np.zeros(len(here.topology.arcs))
    (stage,) = one.stages
    plain = replace(stage, phases=one.schedule.phases)
    add_traffic(nbytes, replace(one, stages=(plain,), wire_factor=1.0))
    return {ends: float(n) for ends, n in zip(here.topology.arcs.names, nbytes, strict=True) if n}


def cables(found: dict[tuple[str, str], float], end: int) -> list[float]:
    return [n for ends, n in found.items() if "/nic" in ends[end] and "fabric" in ends[1 - end]]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("template", "hosts", "algorithm"),
    [
        ("dgx-h100", 1, "tree"),
        ("dgx-h100", 2, "tree"),
        ("dgx-h100", 3, "nvls_tree"),
        ("dgx-h100", 1, "nvls"),
        ("dgx1-v100", 1, "tree"),
        ("dgx1-v100", 3, "tree"),
        ("azure-ndv4", 4, "tree"),
        ("dgx-h100", 2, "collnet"),
        ("dgx-h100", 3, "collnet_direct"),
        ("rtx4090-x4", 1, "tree"),
        ("ethernet-10g", 5, "tree"),
    ],
)
@pytest.mark.parametrize("nbytes", [4, 1000, MiB])
def test_data_is_right_as_laid(template: str, hosts: int, algorithm: str, nbytes: int) -> None:
    for one in lower_collective(
        cluster := machine(template, hosts),
        "all_reduce",
        nbytes,
        everyone(cluster),
        algorithm=algorithm,
    ):
        assert one.schedule.nbytes == nbytes
        verify(one.schedule, orders=1)


@pytest.mark.parametrize("op", ["reduce_scatter", "all_gather"])
def test_data_of_scattered_operations_is_right(op: str) -> None:
    verify(way(machine("dgx-h100"), "nvls", 8000, op).schedule, orders=1)
    verify(way(machine("ethernet-10g", 5), "pat", 8000, op).schedule, orders=1)


def test_an_irregular_group_has_trees_over_its_ranks() -> None:
    cluster = machine("dgx-a100", 3)
    group = (0, 1, 2, 8, 9, 16)
    one = lower_collective(cluster, "all_reduce", MiB, group, algorithm="tree")[-1]
    verify(one.schedule, orders=1)
    edges = one.stages[0].edges
    assert set(edges.src.tolist()) == set(group)


def test_two_hosts_carry_the_buffer_once_each_way_and_more_twice() -> None:
    """Fact of NCCL's double tree: of two nodes each has one parent and one child."""
    for hosts, most in ((2, 1.0), (4, 2.0), (8, 2.0)):
        cluster = machine("dgx-a100", hosts)
        actual = payload(cluster, way(cluster, "tree", 64 * MiB))
        for end in (0, 1):
            carried = np.array(cables(actual, end)).reshape(-1)
            assert len(carried) == 8 * hosts
            assert carried.max() == pytest.approx(most * 64 * MiB / 8)


def test_trees_begin_beside_their_nic_and_share_it_where_two_gpus_are_near() -> None:
    two_near, one_near = (
        rails_of(cluster := machine(t, 2), everyone(cluster)) for t in ("dgx-a100", "dgx-h100")
    )
    assert one_near.chains[:, 0].tolist() == list(range(8))
    assert not one_near.spread.any()
    assert two_near.spread.all()
    assert (two_near.chains[:, 0] // 2 == two_near.chains[:, 1] // 2).all()
    assert (two_near.chains[:, 0] // 2 == two_near.nics // 2).all()


def test_chains_follow_the_links_of_a_mesh() -> None:
    """On a DGX-1 neighbours of a chain are joined by NVLink: no edge crosses PCIe."""
    cluster = machine("dgx1-v100")
    kinds = {
        cluster.topology.arcs.kinds[arc] for arc in way(cluster, "tree", MiB).stages[0].edges.arcs
    }
    assert kinds == {"nvlink"}


def test_nvls_ports_carry_one_eighth_more_than_the_buffer() -> None:
    cluster = machine("dgx-h100")
    actual = payload(cluster, way(cluster, "nvls", 64 * MiB))
    assert len(actual) == 16
    assert list(actual.values()) == pytest.approx([64 * MiB * 9 / 8] * 16)
    scattered = payload(cluster, way(cluster, "nvls", 64 * MiB, "reduce_scatter"))
    assert sum(scattered.values()) == pytest.approx(8 * 64 * MiB + 64 * MiB)


def test_nvls_between_two_hosts_sends_each_rail_an_eighth_once() -> None:
    cluster = machine("dgx-h100", 2)
    actual = payload(cluster, way(cluster, "nvls_tree", 64 * MiB))
    assert cables(actual, 0) == pytest.approx([8 * MiB] * 16)
    ports = [n for ends, n in actual.items() if "nvs" in ends[1]]
    assert ports == pytest.approx([64 * MiB * 9 / 8] * 16)


def test_switches_that_add_are_sent_the_buffer_once_by_each_host_and_leaf() -> None:
    cluster = machine("dgx-h100", 24)
    actual = payload(cluster, way(cluster, "collnet", 64 * MiB))
    assert cables(actual, 0) == pytest.approx([8 * MiB] * 8 * 24)
    trunks = [n for (a, b), n in actual.items() if "leaf" in a and "spine" in b]
    assert trunks == pytest.approx([8 * MiB] * len(trunks))
    assert len(trunks) == 16  # two leaves for each rail


@pytest.mark.parametrize(
    ("template", "hosts", "algorithm", "op", "why"),
    [
        ("dgx-a100", 1, "nvls", "all_reduce", "a100.*NVSwitch does not reduce"),
        ("l40s-x8", 1, "nvls", "all_reduce", "allowed: Hopper or later behind an NVSwitch"),
        ("dgx-h100", 2, "nvls", "all_reduce", "16 ranks on 2 hosts.*on one host"),
        ("dgx-h100", 1, "nvls_tree", "all_reduce", "8 ranks on 1 hosts.*on several hosts"),
        ("dgx-h100", 1, "collnet", "all_reduce", "several hosts on InfiniBand"),
        ("ethernet-10g", 4, "collnet", "all_reduce", "several hosts on InfiniBand"),
        ("dgx-h100", 2, "pat", "all_gather", "one rank for each host"),
    ],
)
def test_what_a_machine_cannot_do_is_refused(
    template: str, hosts: int, algorithm: str, op: str, why: str
) -> None:
    with pytest.raises(InputError, match=why):
        way(machine(template, hosts), algorithm, MiB, op)


def chosen(here: Machine, nbytes: int, op: str = "all_reduce") -> tuple[str, str]:
    actual = lower_collective(here, op, nbytes, everyone(here))
    assert len(actual) == 1
    return actual[0].schedule.algorithm, actual[0].protocol


def test_the_choice_is_nccls() -> None:
    """Measured on 8 H200 with NCCL 2.27: Ring and LL up to 1 MiB, NVLS above."""
    h200 = machine("hgx-h200")
    assert chosen(h200, MiB) == ("ring", "ll")
    assert chosen(h200, 64 * MiB) == ("nvls", "simple")
    assert chosen(machine("dgx-a100"), 1 << 30) == ("ring", "simple")
    assert chosen(machine("dgx-a100", 16), 1024) == ("tree", "ll")
    assert chosen(machine("dgx-h100", 2), 1 << 30)[0] == "nvls_tree"
    assert chosen(h200, MiB, "broadcast")[0] == "chain"


@pytest.mark.slow
@pytest.mark.parametrize("op", ["all_gather", "reduce_scatter"])
def test_a_choice_that_cannot_be_laid_gives_way_to_the_next(op: str) -> None:
    """NVLS scatters over 32 GPUs at most; a rack of 72 goes by rings."""
    assert {chosen(machine("gb200-nvl72"), n, op)[0] for n in (MiB, 1 << 30)} == {"ring"}


def test_the_users_environment_is_heard() -> None:
    assert chosen(machine("hgx-h200", env={"NCCL_ALGO": "Ring"}), 1 << 30)[0] == "ring"
    assert chosen(machine("hgx-h200", env={"NCCL_NVLS_ENABLE": "0"}), 1 << 30)[0] == "ring"
    simple = machine("dgx-a100", 2, env={"NCCL_PROTO": "Simple"})
    assert chosen(simple, 1024)[1] == "simple"
    ways = lower_collective(simple, "all_reduce", 1024, everyone(simple), algorithm="tree")
    assert [one.protocol for one in ways] == ["simple"]


def test_a_named_algorithm_is_tried_in_all_its_protocols() -> None:
    cluster = machine("dgx-h100", 2)
    protocols = {
        name: [
            w.protocol
            for w in lower_collective(cluster, "all_reduce", MiB, everyone(cluster), algorithm=name)
        ]
        for name in ("tree", "nvls_tree")
    }
    assert protocols == {"tree": ["ll", "ll128", "simple"], "nvls_tree": ["simple"]}


def test_pieces_of_small_messages_are_smaller() -> None:
    """NVIDIA/nccl ``src/enqueue.cc``: Simple 512 KiB, NVLS 16 to 128 KiB; LL passes on 4 KiB."""
    cluster = machine("dgx-h100")
    by_size = [
        way(cluster, "nvls", n).schedule.phases[0].active[0]
        for n in (MiB, 64 * MiB, 256 * MiB, 1 << 30)
    ]
    # 16 channels x 8 heads: 16 KiB at 1 MiB, 64 KiB at 64 and 256 MiB, 128 KiB at 1 GiB.
    assert by_size == [1, 8, 32, 64]
    ll, _, simple = lower_collective(
        cluster, "all_reduce", 24 * MiB, everyone(cluster), algorithm="tree"
    )
    assert (ll.schedule.phases[0].active[0], simple.schedule.phases[0].active[0]) == (256, 2)


def test_all_to_all_sends_to_many_at_once_and_short_messages_by_ll() -> None:
    cluster = machine("dgx-h100", 8)
    assert len(way(cluster, None, 64 * MiB, "all_to_all").stages) == 2
    assert chosen(cluster, 64 * 1024, "all_to_all") == ("batched", "ll")
    assert chosen(cluster, 64 * MiB, "all_to_all") == ("batched", "simple")
    assert lower_message(cluster, 0, 9, 4096).protocol == "ll"
    assert lower_message(cluster, 0, 9, MiB).protocol == "simple"


def test_single_sends_change_rails_inside_the_host() -> None:
    """NCCL's PXN: over NVLink to the GPU beside the NIC of the receiver's rail."""
    cluster = machine("dgx-h100", 2)
    edges = lower_message(cluster, 0, 13, MiB).stages[0].edges
    names = [cluster.topology.arcs.names[arc] for arc in edges.arcs]
    assert names[:2] == [("n0/gpu0", "n0/nvs"), ("n0/nvs", "n0/gpu5")]
    assert "fabric/leaf5" in {end for ends in names for end in ends}
    assert not any("spine" in end for ends in names for end in ends)
    alone = machine("dgx-h100", 2, env={"NCCL_PXN_DISABLE": "1"})
    names = [
        alone.topology.arcs.names[arc]
        for arc in lower_message(alone, 0, 13, MiB).stages[0].edges.arcs
    ]
    assert names[0] == ("n0/gpu0", "n0/pcie0")
