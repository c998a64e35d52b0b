"""Which shipped template a machine in words is, found by what the templates themselves say.

Which shipped template is the machine that words describe.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from perfmodel.topology.from_text.gpu_text import Joined, NamedGpu
from perfmodel.topology.from_text.log_text import GpuWords, Intra, gpu_words
from perfmodel.topology.from_text.network_text import Networked
from perfmodel.topology.from_text.parts import (
    GpuConnector,
    Layout,
    MachinePart,
    hardware_parts,
    usual_nics,
)
from perfmodel.topology.model import NetworkKind
from perfmodel.topology.templates.build import load_node, template_names
from perfmodel.topology.templates.spec import EdgeSpec, NodeSpec, expand_pattern, pairs

_SAME_RATE = 0.02
"""Rates of all NICs together that differ by less are the same."""

_PROVIDERS = ("dgx", "hgx", "p3dn", "p4d", "p5", "ndv4", "ndv5", "a3-mega", "nvl72")
"""Names of machines that tell one template from another with the same parts."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What a template has: GPUs, how they are joined, NICs and their rate together."""

    name: str
    gpu: GpuWords
    gpus: int
    intra: Intra
    peer_access: bool
    gpudirect: bool
    nics: int
    nic_Gbps: float
    network: NetworkKind


@lru_cache(maxsize=1)
def template_facts() -> tuple[Facts, ...]:
    """Facts of all shipped templates whose GPU is one."""
    found = (facts_of(load_node(name), name) for name in template_names())
    return tuple(facts for facts in found if facts is not None)


def facts_of(node: NodeSpec, name: str) -> Facts | None:
    """Read the facts out of a node template; None if its "GPUs" are processes."""
    gpu = gpu_words(node.gpu)
    if gpu is None:
        return None
    kinds = {device: spec.kind for spec in node.nodes for device in expand_pattern(spec.id)}
    ports = [
        spec.port for spec in node.nodes if spec.kind == "nic" for _ in expand_pattern(spec.id)
    ]
    rate_Bps = sum(node.links[port].bandwidth for port in ports if port)
    gpus = [device for device, kind in kinds.items() if kind == "gpu"]
    return Facts(
        name=name,
        gpu=gpu,
        gpus=len(gpus),
        intra=_intra(node, kinds, len(gpus)),
        peer_access=node.gpu_p2p,
        gpudirect=node.gpudirect_rdma,
        nics=len(ports),
        nic_Gbps=rate_Bps * 8e-9,
        network=_network(node, ports[0] if ports else None),
    )


def _network(node: NodeSpec, port: str | None) -> NetworkKind:
    if port is None:
        return "none"
    link = node.links[port]
    return link.network or ("infiniband" if link.kind == "infiniband" else "roce")


def _intra(node: NodeSpec, kinds: Mapping[str, str], gpus: int) -> Intra:
    joined = {(kinds.get(a), kinds.get(b)) for edge in _nvlinks(node) for a, b in pairs(edge)}
    if any("nvswitch" in pair for pair in joined):
        return "nvswitch"
    if joined:
        return "mesh" if gpus == 8 else "nvlink" if gpus > 2 else "bridge"
    return "pcie" if gpus > 1 else "none"


def _nvlinks(node: NodeSpec) -> Iterator[EdgeSpec]:
    return (edge for edge in node.edges if node.links[edge.link].kind == "nvlink")


@dataclass(frozen=True, slots=True)
class Wanted:
    """A host as a log's words describe it; None or empty: not stated."""

    gpu: GpuWords
    gpus: int
    intra: Intra
    peer_access: bool | None
    network: NetworkKind | None
    nics: float | None
    nic_Gbps: float | None
    words: str
    gpu_text: str = ""
    intra_text: str = ""
    network_text: str = ""
    gpudirect: bool | None = None
    mtu_bytes: int | None = None


def fitting(wanted: Wanted, candidates: tuple[Facts, ...] | None = None) -> Facts | None:
    """Return the template that best fits, or None.

    GPU model and form, links between GPUs and, if there is a network, its kind and the rate of all
    NICs of a host together must be the same; a stated name of a machine, the same memory and the
    fewest unused GPUs decide between several.
    """
    found = [
        facts
        for facts in (template_facts() if candidates is None else candidates)
        if _same_gpus(wanted, facts) and _same_network(wanted, facts)
    ]
    return min(found, key=lambda facts: _rank(wanted, facts)) if found else None


def _same_gpus(wanted: Wanted, facts: Facts) -> bool:
    gpu = wanted.gpu
    if gpu.family != facts.gpu.family or (gpu.form and gpu.form != (facts.gpu.form or gpu.form)):
        return False
    if wanted.gpus > facts.gpus or wanted.intra not in {facts.intra, "", "none"}:
        return False
    if facts.intra == "pcie" and wanted.gpus > 1:
        return wanted.peer_access in {None, facts.peer_access} and wanted.gpus == facts.gpus
    return wanted.gpus > 1 or facts.gpus == 1  # one GPU of many: how the host is laid out is open


def _same_network(wanted: Wanted, facts: Facts) -> bool:
    if wanted.network is None:
        return not wanted.network_text  # words that name no known network fit nothing
    if wanted.network != facts.network:
        return False
    if wanted.nic_Gbps is None:
        return bool(_named(wanted, facts))
    total = wanted.nic_Gbps * (facts.nics if wanted.nics is None else wanted.nics)
    return abs(total / facts.nic_Gbps - 1) <= _SAME_RATE


def _named(wanted: Wanted, facts: Facts) -> int:
    """How many names of machines a template shares with the words."""
    words = wanted.words.lower().replace("_", "-")
    return sum(name in words and name in facts.name for name in _PROVIDERS)


def _rank(wanted: Wanted, facts: Facts) -> tuple[int, int, int, int, str]:
    gpu = wanted.gpu
    other_memory = gpu.memory_GB is not None and gpu.memory_GB != facts.gpu.memory_GB
    reference = facts.name.startswith(("dgx", "hgx", "gb"))
    return (
        -_named(wanted, facts),
        facts.gpus - wanted.gpus,
        other_memory,
        not reference,
        facts.name,
    )


def machine_that_fits(
    named: NamedGpu, gpus: int, layout: Layout, joined: Joined, net: Networked, words: str
) -> MachinePart | None:
    """The template that fits; one whose name was said before one that merely agrees."""
    if net.gpudirect is False or net.mtu or net.across or joined.lanes or joined.cpu:
        return _named_only(named, gpus, layout, net, words, joined)
    fitting = [
        machine
        for machine in templates_present()
        if _fits(machine, named.part, gpus, layout, joined) and _carries(machine, named, net)
    ]
    said = [machine for machine in fitting if said_in(machine, words)]
    if said:
        return said[0]
    fitting = [machine for machine in fitting if not machine.only_if_named]
    plain = [m for m in fitting if m.template.startswith(("dgx", "hgx")) or m.layout == "pcie"]
    alike = net.kind in {"efa", "tcpx", "tcpxo"} or (net.nics and net.nic_Bps)  # then any will do
    return next(iter([*plain, *(fitting if alike else [])]), None)


def _named_only(
    named: NamedGpu, gpus: int, layout: Layout, net: Networked, words: str, joined: Joined
) -> MachinePart | None:
    """A machine that was called by its name, though the words say more than a template holds."""
    usual = joined.lanes in {None, named.part.lanes} and joined.lane_Bps in {None, 25e9, 50e9}
    if net.gpudirect is False or net.mtu or net.across or joined.cpu or not usual:
        return None
    return machine_that_fits(named, gpus, layout, replace(joined, lanes=None), net, words)


def _fits(
    machine: MachinePart, part: GpuConnector, gpus: int, layout: Layout, joined: Joined
) -> bool:
    if machine.gpu != part.spelled or machine.layout != layout:
        return False
    if layout == "pcie":
        p2p = joined.p2p if joined.p2p is not None else not part.geforce
        plain = joined.switches is None and joined.pcie in {None, part.pcie}
        return plain and gpus == machine.gpus and p2p == machine.p2p
    board = machine.gpus == 16 if part.form == "sxm3" else machine.gpus <= 8
    return part.on_board and board and gpus <= machine.gpus


def _carries(machine: MachinePart, named: NamedGpu, net: Networked) -> bool:
    """Whether a template's NICs are those that were described, or are usual."""
    if net.kind is None:
        return True
    if machine.network is None or machine.network != net.kind:
        return False
    usual, usual_Bps = usual_nics(machine.network, named.part.spelled)
    if net.nics is None and net.nic_Bps is None:
        return True
    nics, nic_Bps = net.nics or usual, net.nic_Bps or usual_Bps
    if net.nics is None or net.nic_Bps is None:
        return nics == machine.nics and nic_Bps == machine.nic
    grouped = machine.network == "efa"  # devices beside one GPU are one adapter of its template
    same = nics == machine.nics or (grouped and nics % machine.nics == 0)
    return same and abs(nics * nic_Bps / (machine.nics * machine.nic) - 1) < 0.01


def said_in(machine: MachinePart, words: str) -> bool:
    """Whether words (in lower case) name a machine as its provider does."""
    return any(
        re.search(rf"(?<![a-z0-9]){re.escape(word)}(?![a-z0-9])", words) for word in machine.words
    )


def templates_present() -> list[MachinePart]:
    """Machines whose templates ship."""
    present = set(template_names())
    return [machine for machine in hardware_parts().machines if machine.template in present]
