"""What may be wrong with a machine: the same machine with one fault each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from perfmodel.errors import PerfmodelError
from perfmodel.files import FileModel, shipped
from perfmodel.files.spec import ShippedTable
from perfmodel.library.settings import LibrarySettings
from perfmodel.memo import applying
from perfmodel.topology.compilation import compile_topology
from perfmodel.topology.faults import arcs_of_device, degrade_links, remove_links
from perfmodel.topology.model import Topology

SHARES = (0.5, 0.25)
"""Shares of its rate that are left of a link in doubt: a PCIe link of half or a quarter of its
lanes, or one or two generations less; a port that came up at an earlier rate."""

Configured = tuple[Topology, LibrarySettings]


class SuspectText(FileModel):
    """What a fault is called, where to look, and how NCCL's log says it."""

    what: str
    look_at: str
    says: tuple[str, ...] = ()


class BeyondInterval(FileModel):
    """How many recorded sweeps were slower than the interval ends, and by how much in the mean.

    `mean_excess`: standard deviations of the interval beyond its slow end.
    """

    sweeps: int
    slower: int
    mean_excess: float


class SuspectTexts(ShippedTable):
    """Contents of ``suspects.yaml``."""

    beyond: BeyondInterval
    suspects: dict[str, SuspectText]


suspect_texts = shipped(SuspectTexts, __file__, "suspects.yaml")
"""Reads the shipped texts, by fault."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A fault, by its name in ``suspects.yaml``, and machines that have it, here or there."""

    name: str
    machines: tuple[Configured, ...]


Fault = tuple[str, Callable[[Configured], Configured]]


def find_suspects(topology: Topology, settings: LibrarySettings) -> list[Suspect]:
    """Return the faults that a machine can have.

    Settings that are stated are no suspects: what is predicted has them already.
    """
    found: dict[str, list[Configured]] = {}
    for name, make in (
        *_faults_of_devices(topology),
        *_faults_of_all(topology),
        *_other_settings(topology, settings),
    ):
        with suppress(PerfmodelError):  # such a machine could not run at all
            found.setdefault(name, []).append(make((topology, settings)))
    return [Suspect(name, tuple(machines)) for name, machines in found.items()]


def _faults_of_devices(topology: Topology) -> Iterator[Fault]:
    """Faults of a NIC, of a GPU and of a host, at two places each.

    Which host and GPU it is matters where some carry less than others, as the ends of trees do.
    """
    for host, part in dict.fromkeys(((0, 0.0), (topology.hosts // 2, 0.5))):
        devices = [name for name in topology.devices if name.startswith(f"n{host}/")]
        gpus, nics = (
            [name for name in devices if topology.devices[name].kind == kind]
            for kind in ("gpu", "nic")
        )
        gpus = gpus[: topology.gpus_per_host]
        yield from _faults_of_gpu(topology, gpus, gpus[int(part * len(gpus))])
        if topology.hosts > 1:
            nic = nics[int(part * len(nics))]
            yield from _slower("nic_half", [nic], set(topology.arcs.kinds) - {"pcie", "nvlink"})
            yield from _slower("nic_pcie_half", [nic], {"pcie"})
            yield from _slower("slow_host", devices, set(topology.arcs.kinds))
            if len(nics) > 1:
                yield "nic_down", partial(_without, nodes=(nic,))


def _faults_of_gpu(topology: Topology, gpus: Sequence[str], gpu: str) -> Iterator[Fault]:
    kinds = {topology.arcs.kinds[arc] for arc in arcs_of_device(topology, gpu)}
    if "pcie" in kinds and len(topology.ranks) > 1:
        yield from _slower("gpu_pcie_half", [gpu], {"pcie"})
    if "nvlink" in kinds and len(gpus) > 1:
        yield from _slower("nvlink_half", [gpu], {"nvlink"})
        for peer in [name for name in topology.links[gpu] if name in gpus]:
            arcs = (*topology.links[gpu][peer], *topology.links[peer][gpu])
            if topology.arcs.kinds[arcs[0]] == "nvlink":
                yield "nvlink_down", partial(_without, arcs=arcs)


def _faults_of_all(topology: Topology) -> Iterator[Fault]:
    if topology.hosts < 2:
        return
    nics = [name for name in topology.devices if topology.devices[name].kind == "nic"]
    yield from _slower("nics_half", nics, set(topology.arcs.kinds) - {"pcie", "nvlink"})
    if topology.fabric in ("rail-optimised", "rail-only"):
        yield "rails_crossed", _cross_rails


def _other_settings(topology: Topology, settings: LibrarySettings) -> Iterator[Fault]:
    several_hosts, several_gpus = topology.hosts > 1, topology.gpus_per_host > 1
    verbs = several_hosts and topology.network in ("infiniband", "roce")
    any_algorithm, any_protocol = (f"NCCL_{name}" not in settings.env for name in ("ALGO", "PROTO"))
    changes = applying(
        (several_hosts, ("gpudirect_off", "NCCL_NET_GDR_LEVEL", "LOC")),
        (verbs, ("sockets", "NCCL_IB_DISABLE", "1")),
        (several_gpus, ("p2p_off", "NCCL_P2P_DISABLE", "1")),
        (several_gpus, ("nvls_off", "NCCL_NVLS_ENABLE", "0")),
        (any_algorithm, ("ring_alone", "NCCL_ALGO", "ring")),
        (any_algorithm, ("tree_alone", "NCCL_ALGO", "tree")),
        (any_protocol, ("simple_alone", "NCCL_PROTO", "simple")),
        (any_protocol, ("ll_alone", "NCCL_PROTO", "ll")),
        (any_protocol, ("ll128_alone", "NCCL_PROTO", "ll128")),
    )
    return ((name, partial(_set, variable, value)) for name, variable, value in changes)


def _set(variable: str, value: str, configured: Configured) -> Configured:
    """Set a variable of NCCL."""
    topology, settings = configured
    return topology, settings.model_copy(update={"env": {**settings.env, variable: value}})


def _slower(name: str, devices: Sequence[str], kinds: set[str]) -> Iterator[Fault]:
    """Take some of the rate of the links of some kinds that devices have."""

    def make(configured: Configured, share: float) -> Configured:
        topology, settings = configured
        arcs = topology.arcs
        touched = {arc for device in devices for arc in arcs_of_device(topology, device)}
        rates = {
            arc: share * arcs.bandwidth_Bps[arc] for arc in touched if arcs.kinds[arc] in kinds
        }
        return degrade_links(topology, rates), settings

    yield from ((name, partial(make, share=share)) for share in SHARES)


def _without(configured: Configured, **lost: Sequence[Any]) -> Configured:
    """Take devices or links away."""
    return remove_links(configured[0], **lost), configured[1]


def _cross_rails(configured: Configured) -> Configured:
    """Swap the cables of the first two NICs of the first host in the graph of the fabric."""
    topology, settings = configured
    assert topology.fabric_graph is not None
    fabric = topology.fabric_graph.copy()
    first, second, *_ = (data for _, _, data in fabric.edges(0, data=True))
    first["nics"], second["nics"] = second["nics"], first["nics"]
    crossed = compile_topology(
        topology.node_graph,
        hosts=topology.hosts,
        fabric=fabric,
        gpus_per_host=topology.gpus_per_host,
    )
    return crossed, settings
