"""A host from free text: "A100-SXM4-80GB", 8 of them, "NVLink3 NVSwitch", "InfiniBand HDR".

Machines that have a template get it; others are put together from ``parts.yaml``. What the text
leaves open is filled with what is usual, and listed as an assumption.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from perfmodel.errors import Fault, InputError, failed
from perfmodel.files import collect_faults, validate_document
from perfmodel.memo import applying
from perfmodel.topology.from_text.gpu_text import NamedGpu
from perfmodel.topology.from_text.grammar import is_hardware
from perfmodel.topology.from_text.layouts import draft_host, usual_host, usual_layout
from perfmodel.topology.from_text.match_template import (
    HostText,
    TemplateFacts,
    match_template,
    read_host,
)
from perfmodel.topology.from_text.network_text import NetworkText
from perfmodel.topology.from_text.parts import GpuConnector, hardware_parts, usual_nics
from perfmodel.topology.from_text.template_builder import port, with_ports, with_socket_limits
from perfmodel.topology.templates.load import load_template
from perfmodel.topology.templates.spec import LinkSpec, NodeSpec

_USUAL_RATE = "assumption: the usual rate for this GPU and kind of network"
_ALLOWED = {
    "gpu": "one GPU, its form and its memory ('A100-SXM4-80GB')",
    "intra": "links and sockets ('NVLink3 NVSwitch', 'PCIe4 x16, two sockets'), each once",
    "network": "a network and its NICs ('InfiniBand HDR', '8 x 100 Gbit/s RoCE'), each once",
}
RACK_GPUS = 72
"""GPUs that NVLink joins in one rack (NVIDIA GB200 and GB300 NVL72)."""


@dataclass(frozen=True, slots=True)
class Described:
    """A host that was put together from text."""

    node: NodeSpec
    """May hold more GPUs than were asked for, where the machine has them: use the first."""
    assumptions: tuple[str, ...]
    """What the text leaves open and how it was filled."""
    template: str | None = None
    """Name of the shipped template it is; None where it was put together."""
    trays: int = 1
    """Described hosts in the node: 18 where NVLink joins a rack."""

    def spread(self, hosts: int, gpus: int) -> tuple[int, int]:
        """Return the number of nodes, and GPUs of each, for so many hosts of so many GPUs."""
        nodes = -(-hosts // self.trays)
        return nodes, -(-hosts * gpus // nodes)


def describe(
    gpu: str,
    *,
    gpus: int,
    intra: str,
    network: str | None = None,
    nics: int | None = None,
    nic_Gbps: float | None = None,
) -> Described:
    """Put a host together from text.

    Parameters
    ----------
    gpu : str
        In any usual spelling: "A100-SXM4-80GB", "Tesla V100-SXM2-16GB", "RTX 4090", "H100 PCIe";
        or a name of the table of GPUs, a user's own included.
    gpus : int
        GPUs of one host.
    intra : str
        What joins them: "NVLink3 NVSwitch", "NVLink2 hybrid cube mesh", "NVLink bridge",
        "PCIe4 x16, two sockets", "none". Numbers count: "NVSwitch, 36 x 100 GB/s".
    network : str, optional
        What joins hosts: "InfiniBand HDR", "RoCE v2 25 GbE", "AWS EFA (p4d.24xlarge)"; None: none.
    nics : int, optional
        NICs of one host; None: as the words say, or as usual.
    nic_Gbps : float, optional
        Rate of each; gigabits per second; None: as the words say, or as usual.

    Words that look like hardware and are not known are refused; others are named in a note.

    Raises
    ------
    InputError
        What is not known, and what is; every fault.
    """
    faults = failed(
        (gpus < 1, "gpus", str(gpus), "one or more"),
        (nics is not None and nics < 1, "nics", str(nics), "one or more"),
        (
            nic_Gbps is not None and not 0 < nic_Gbps < 1e5,
            "nic_Gbps",
            str(nic_Gbps),
            "more than zero, in gigabits per second",
        ),
    )
    host = None
    with collect_faults(faults):
        host = read_host(gpu, gpus=gpus, intra=intra, network=network, nics=nics, nic_Gbps=nic_Gbps)
        faults += [
            Fault(name, repr(words), _ALLOWED[name])
            for name, words in host.passed_over
            if is_hardware(words)
        ]
    if faults or host is None:
        raise InputError(faults)
    return _with_stated(_build_host(host), host)


def find_host(host: HostText) -> Described:
    """Take the template that fits as it is, or put a host of the same parts together.

    Raises `InputError`: no host can have these parts.
    """
    facts = match_template(host, as_is=True)
    if facts is None:
        return _with_stated(_build_host(host), host)
    notes = (f"machine: template {facts.name}", *host.network.assumptions)
    return _with_stated(Described(load_template(facts.name), notes, facts.name), host)


def _build_host(host: HostText) -> Described:
    named, net = host.gpu, host.network
    layout, notes = usual_layout(named, host.gpus, host.intra)
    notes = (*named.assumptions, *notes)
    if named.part.form == "superchip" and layout == "nvswitch":
        return _rack(named, net, notes)
    facts = match_template(host, as_is=False)
    if facts is not None:
        return _from_template(facts, host, notes)
    network, nic_notes = _network(named.part, net)
    parts, part_notes = usual_host(
        named, host.gpus, layout, host.intra, network, p2p=host.peer_access
    )
    return Described(draft_host(parts).node(), (*notes, *nic_notes, *part_notes))


# ---------------------------------------------------------------- what a text states of any host


def _with_stated(described: Described, host: HostText) -> Described:
    """Turn P2P and GPUDirect on or off, and set the payload share of the MTU, where stated."""
    node, notes = described.node, list(described.assumptions)
    for stated, field, what in (
        (host.gpudirect, "gpudirect_rdma", "GPUDirect RDMA"),
        (host.peer_access, "gpu_p2p", "P2P over PCIe"),
    ):
        if stated is not None and stated != getattr(node, field):
            node = node.model_copy(update={field: stated})
            notes.append(f"{what} is {'on' if stated else 'off'}, as stated")
    if host.mtu is not None and host.network.kind is not None:
        share = host.mtu / (host.mtu + hardware_parts().ports[host.network.kind].header)
        node = with_ports(node, {"efficiency": share})
        notes.append(f"MTU {host.mtu}: {100 * share:.0f} % of the wire is payload")
    if host.network.kind == "tcp":
        node, limits = with_socket_limits(node, host.text)
        notes += limits
    if host.passed_over:
        words = dict.fromkeys(repr(words) for _, words in host.passed_over)
        notes.append(f"passed over, being unknown or at odds with other words: {', '.join(words)}")
    return replace(described, node=node, assumptions=tuple(notes))


# ---------------------------------------------------------------- the network


def _network(part: GpuConnector, net: NetworkText) -> tuple[NetworkText | None, tuple[str, ...]]:
    """NICs of a host, all of them settled, and what was assumed."""
    if net.kind is None:
        return None, ()
    usual, usual_Bps = usual_nics(net.kind, part.spelled)
    devices = net.nics or (usual if part.on_board else min(usual, 1))
    each = devices // 8 if part.on_board and devices > 8 and devices % 8 == 0 else 1
    nics, nic_Bps = devices // each, (net.nic_Bps or usual_Bps) * each
    by = "aws-ofi-nccl" if net.kind == "efa" else "NCCL_IB_MERGE_NICS"
    notes = applying(
        (each > 1, f"{each} devices beside a GPU are one adapter ({by})"),
        (net.nics is None, f"{nics} NIC{'s' if nics > 1 else ''} per host, as usual"),
        (net.nic_Bps is None, f"NICs of {nic_Bps * 8e-9:g} Gbit/s, as usual"),
    )
    settled = replace(net, nics=nics, nic_Bps=nic_Bps, rate_source=net.rate_source or _USUAL_RATE)
    return settled, (*net.assumptions, *(f"assumption: {note}" for note in notes))


# ---------------------------------------------------------------- machines with a template


def _from_template(facts: TemplateFacts, host: HostText, assumptions: tuple[str, ...]) -> Described:
    """A template with the GPU that is named."""
    node = load_template(facts.name).model_copy(update={"gpu": host.gpu.name})
    net, nic_Gbps = host.network, facts.nic_Bps / max(facts.nics, 1) * 8e-9
    notes = applying(
        (
            net.kind is not None and (net.nics is None or net.nic_Bps is None),
            f"NICs of {facts.name}: {facts.nics} x {nic_Gbps:g} Gbit/s",
        ),
        (True, f"the rest as in the template {facts.name}"),
        (host.gpus < facts.gpus, f"the first {host.gpus} of {facts.gpus} GPUs"),
    )
    assumed = (f"assumption: {note}" for note in notes)
    return Described(node, (*assumptions, *net.assumptions, *assumed), facts.name)


def _rack(named: NamedGpu, net: NetworkText, assumptions: tuple[str, ...]) -> Described:
    """An NVLink rack: one node of 72 GPUs, whose trays are the hosts that were described."""
    rack = "gb300-nvl72" if named.part.spelled == "gb300" else "gb200-nvl72"
    node = load_template(rack).model_copy(update={"gpu": named.name})
    notes = [*assumptions, "assumption: a rack of 18 trays of 4 GPUs, all joined by NVLink"]
    if net.kind is not None:
        nic_Bps = net.nic_Bps or usual_nics(net.kind, named.part.spelled)[1]
        notes += applying(
            (
                net.nic_Bps is None,
                f"assumption: NICs of {nic_Bps * 8e-9:g} Gbit/s, one per GPU",
            )
        )
        fresh = validate_document(
            LinkSpec, port(net.kind, nic_Bps, net.rate_source or _USUAL_RATE, named.name)
        )
        node = with_ports(node, dict(fresh)).model_copy(
            update={"sources": {**hardware_parts().sources, **node.sources}}
        )
    return Described(node, tuple(notes), rack, trays=RACK_GPUS // 4)
