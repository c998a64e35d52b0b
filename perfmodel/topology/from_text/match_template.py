"""A host as a text describes it, and the shipped template that it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from perfmodel.errors import Fault, InputError
from perfmodel.files import attempt
from perfmodel.topology.from_text.gpu_text import NamedGpu, read_gpu
from perfmodel.topology.from_text.grammar import passed_over, read_phrases
from perfmodel.topology.from_text.layouts import layout_of, usual_layout
from perfmodel.topology.from_text.network_text import (
    IntraText,
    NetworkText,
    read_gpudirect,
    read_intra,
    read_mtu,
    read_network,
    read_pcie,
    read_peer_access,
)
from perfmodel.topology.from_text.parts import GpuConnector, Layout, hardware_parts, usual_nics
from perfmodel.topology.from_text.template_builder import names_any
from perfmodel.topology.model import NetworkKind
from perfmodel.topology.templates.load import is_template, load_template, template_names
from perfmodel.topology.templates.spec import NodeSpec, device_names, nic_ports

_SAME_RATE = 0.02
"""Rates of all NICs together that differ by less are the same."""


@dataclass(frozen=True, slots=True)
class HostText:
    """One host as a text describes it."""

    gpu: NamedGpu
    gpus: int
    intra: IntraText
    network: NetworkText
    peer_access: bool | None
    gpudirect: bool | None
    """`peer_access` and `gpudirect`: copies between GPUs over PCIe, and between NICs and GPUs;
    None: not stated."""
    mtu: int | None
    """In bytes."""
    text: str
    """All of the text in lower case; it may name the machine as its provider does."""
    passed_over: tuple[tuple[str, str], ...]
    """Words that say nothing of a machine, each behind the name of the argument that has it."""


def read_host(
    gpu: str,
    *,
    gpus: int,
    intra: str,
    network: str | None,
    usual_network: NetworkKind | None = None,
    nics: int | None = None,
    nic_Gbps: float | None = None,
    env: Mapping[str, str] | None = None,
    settings: str = "",
    remarks: str = "",
) -> HostText:
    """Read the description of a host; `gpu`, `intra` and `network` are as `describe` takes them.

    `usual_network` is the kind of network where `network` names none that is known; `nics` and
    `nic_Gbps` come before what it says. `env` has NCCL's variables; `settings` may state P2P,
    GPUDirect and the MTU, `remarks` the machine.

    Raises `InputError`: a GPU or a network that is not known.
    """
    faults: list[Fault] = []
    named = attempt(faults, lambda: read_gpu(gpu, intra))
    net = attempt(faults, lambda: read_network(network, env, usual=usual_network))
    if named is None or net is None:
        raise InputError(faults)
    stated = "; ".join((intra, network or "", settings))
    inside = read_intra(intra)
    return HostText(
        gpu=named,
        gpus=gpus,
        intra=replace(inside, pcie=inside.pcie or read_pcie(gpu)),  # "H100 PCIe Gen5"
        network=replace(
            net,
            nics=nics or net.nics,
            nic_Bps=nic_Gbps * 1e9 / 8 if nic_Gbps else net.nic_Bps,
            rate_source="as described" if nic_Gbps else net.rate_source,
        ),
        peer_access=read_peer_access(stated),
        gpudirect=read_gpudirect(stated),
        mtu=read_mtu(stated),
        text=f"{gpu}; {stated}; {remarks}".lower().replace("_", "-"),
        passed_over=tuple(_passed_over(named, {"gpu": gpu, "intra": intra, "network": network})),
    )


_READ_OF = {
    "gpu": ("gpus", "pcie", "machine", "nothing"),
    "intra": ("nvlink", "lanes", "pcie", "sockets", "path", "p2p", "gpudirect"),
    "network": ("nic", "lanes", "rack", "sockets", "path", "p2p", "gpudirect"),
}
"""Subjects that act where an argument has them."""
_READ_OF_ALL = ("mtu", "machine", "setting", "nothing")


def _passed_over(named: NamedGpu, texts: Mapping[str, str | None]) -> Iterator[tuple[str, str]]:
    """Yield the words that act in no argument, each behind the name of one that has it."""
    stated = {name: text for name, text in texts.items() if text}
    over = {
        name: passed_over(text, (*_READ_OF[name], *_READ_OF_ALL)) for name, text in stated.items()
    }
    read = {
        phrase.text
        for name, text in stated.items()
        for phrase in read_phrases(text, prose=True)
        if phrase.text not in over[name]
    }
    if named.part.amd:
        read |= {"xGMI", "xgmi"}  # which joins them anyway
    yield from ((name, words) for name in over for words in over[name] if words not in read)


# ---------------------------------------------------------------- templates


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What a template holds."""

    name: str
    gpu: GpuConnector
    gpus: int
    layout: Layout
    p2p: bool
    network: NetworkKind | None
    nics: int
    nic_Bps: float
    """Raw rate of all NICs together."""
    cpu: str | None
    """Kind of its CPUs, where it states it."""

    @property
    def is_reference(self) -> bool:
        """Whether it is NVIDIA's own machine, which others are built after."""
        return self.name.startswith(("dgx", "hgx", "gb"))

    def is_named_in(self, text: str) -> bool:
        """Whether a text in lower case names the machine as its provider does."""
        return names_any(hardware_parts().machines.get(self.name, ()), text)


@lru_cache(maxsize=1)
def template_facts() -> tuple[TemplateFacts, ...]:
    """All shipped templates whose GPU is one; those of named machines first, in their order."""
    shipped = template_names()
    machines = [name for name in hardware_parts().machines if name in shipped]
    names = dict.fromkeys((*machines, *shipped))
    nodes = {name: load_template(name) for name in names if is_template(name)}
    return tuple(
        _facts(name, node) for name, node in nodes.items() if node.gpu in hardware_parts().gpus
    )


def _facts(name: str, node: NodeSpec) -> TemplateFacts:
    ports = nic_ports(node)
    return TemplateFacts(
        name=name,
        gpu=hardware_parts().gpus[node.gpu],
        gpus=len(device_names(node, "gpu")),
        layout=layout_of(node, hardware_parts().gpus[node.gpu]),
        p2p=node.gpu_p2p,
        network=ports[0].network_kind if ports else None,
        nics=len(ports),
        nic_Bps=sum(port.bandwidth for port in ports),
        cpu=node.cpu,
    )


# ---------------------------------------------------------------- the one that fits


def match_template(host: HostText, *, as_is: bool) -> TemplateFacts | None:
    """Return the shipped template that best fits a description, or None.

    `as_is`: the template is taken without a change: a network needs the stated rate of all NICs (or
    the machine its name), and the same memory of GPUs is preferred. Else GPUs may be replaced by
    those of another memory, and NICs that are not stated are the usual ones.
    """
    layout, _ = usual_layout(host.gpu, host.gpus, host.intra)
    candidates = [
        facts
        for facts in template_facts()
        if _is_candidate(facts, host, as_is=as_is)
        and _has_gpus(facts, host, layout, as_is=as_is)
        and _has_network(facts, host, as_is=as_is)
    ]
    return min(candidates, key=lambda facts: _rank(facts, host, as_is=as_is), default=None)


def _is_candidate(facts: TemplateFacts, host: HostText, *, as_is: bool) -> bool:
    """Whether a template may be taken: its machine is named, or need not be."""
    machines, net = hardware_parts(), host.network
    if facts.is_named_in(host.text):
        return True
    if as_is or facts.name not in machines.machines:
        return as_is and facts.name not in machines.only_if_named
    rated = net.kind in {"efa", "tcpx", "tcpxo"} or (net.nics and net.nic_Bps)
    usual = facts.is_reference or facts.layout == "pcie" or bool(rated)
    return usual and facts.name not in machines.only_if_named


def _has_gpus(facts: TemplateFacts, host: HostText, layout: Layout, *, as_is: bool) -> bool:
    """Whether GPUs, and what joins them, are those of a template."""
    gpu, part, intra = host.gpu, host.gpu.part, host.intra
    other_form = gpu.form_stated and part.form != facts.gpu.form
    if part.spelled != facts.gpu.spelled or other_form or host.gpus > facts.gpus:
        return False
    lanes = intra.lanes_of_gpu(layout, facts.gpus)
    usual = lanes in {None, part.lanes} and intra.lane_Bps in {None, 25e9, 50e9}
    if not usual or intra.cpu not in {None, facts.cpu} or host.network.across:
        return False
    if facts.gpus == 1:
        return not intra.stated
    if facts.layout == "pcie":
        p2p = not part.geforce if host.peer_access is None else host.peer_access
        same = layout == "pcie" and host.gpus == facts.gpus and p2p == facts.p2p
        plain = intra.switches is None and intra.pcie in {None, part.pcie}
        return same and (plain or facts.is_named_in(host.text))
    if as_is:
        unknown_layout = not intra.stated and (part.on_board or not gpu.form_stated)
        return host.gpus > 1 and (unknown_layout or layout == facts.layout)
    return layout == facts.layout and (host.gpus > 1 or intra.stated)


def _has_network(facts: TemplateFacts, host: HostText, *, as_is: bool) -> bool:
    """Whether NICs are those of a template, or those that are usual for its GPU and network."""
    net = host.network
    if net.kind is None or net.kind != facts.network:
        return net.kind is None
    if net.nic_Bps is not None:
        nics = facts.nics if net.nics is None else net.nics
        return abs(net.nic_Bps * nics / facts.nic_Bps - 1) <= _SAME_RATE
    if as_is or net.nics is None:
        return not as_is or facts.is_named_in(host.text)
    _, usual_Bps = usual_nics(net.kind, host.gpu.part.spelled)
    return net.nics == facts.nics and usual_Bps * facts.nics == facts.nic_Bps


def _rank(
    facts: TemplateFacts, host: HostText, *, as_is: bool
) -> tuple[bool, bool, int, bool, bool, str]:
    built_after = not facts.is_reference
    return (
        not facts.is_named_in(host.text),
        built_after and not as_is,
        facts.gpus - host.gpus,
        host.gpu.memory_GB not in {None, facts.gpu.memory},
        built_after,
        facts.name,
    )
