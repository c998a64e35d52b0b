"""NICs of a composed host: how many, of which network and rate, and where they are plugged in."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.errors import Fault, InputError, allowed_names, failed, raise_faults, refuse_if
from perfmodel.files import attempt, validate_document
from perfmodel.scenario.sections.cluster import NicSection
from perfmodel.topology.composed.tree_changes import PartedHost, spread_evenly
from perfmodel.topology.from_text.grammar import unread_words
from perfmodel.topology.from_text.network_text import (
    NetworkText,
    adapter_rate,
    read_network,
    read_slot,
)
from perfmodel.topology.from_text.parts import hardware_parts, reads_gpus, usual_nics
from perfmodel.topology.from_text.template_builder import (
    Draft,
    bits,
    pattern,
    port,
    same_link,
    stock_link,
    with_ports,
)
from perfmodel.topology.model import NetworkKind
from perfmodel.topology.templates.spec import LinkSpec

STATED = "as stated in the description of the host"


@dataclass(frozen=True, slots=True)
class StatedNics:
    """What fields and words say of NICs; None: nothing.

    Parameters
    ----------
    section : NicSection
        The fields.
    count : int, optional
    kind : NetworkKind, optional
    rate_Bps : float, optional
    slot : (int, int), optional
        Generation and lanes of PCIe.
    """

    section: NicSection
    count: int | None
    kind: NetworkKind | None
    rate_Bps: float | None
    slot: tuple[int, int] | None

    @property
    def places_them(self) -> bool:
        """Whether NICs are counted, so that they are plugged in anew."""
        return self.count is not None or self.section.per_socket is not None


def read_nics(section: NicSection, field: str) -> StatedNics:
    """Read what is stated of NICs.

    `field`: "nic" or "nics", for messages. Raises `InputError`: every fault.
    """
    faults: list[Fault] = []
    described = _network(section.text, f"{field}.text", faults)
    named = _network(section.kind, f"{field}.kind", faults)
    stated = {"text": described, "kind": named}
    read = {name: each for name, each in stated.items() if each is not None}
    faults += [
        fault
        for name, phrase in read.items()
        for fault in _twice(section, phrase, f"{field}.{name}", field)
    ]
    if described and named and described.kind and named.kind != described.kind:
        faults.append(
            Fault(f"{field}.kind", repr(section.kind), f"{described.kind!r}, as the words say")
        )
    slot = attempt(
        faults, lambda: None if section.pcie is None else read_slot(section.pcie, f"{field}.pcie")
    )
    raise_faults(faults)
    rates_Bps = (section.rate, *(each.nic_Bps for each in read.values()))
    rate_Bps = next((each for each in rates_Bps if each), None)
    carried_Bps = adapter_rate(section.text or "")
    refuse_if(
        rate_Bps is not None and carried_Bps is not None and rate_Bps > carried_Bps,
        f"{field}.text",
        repr(section.text),
        f"at most {bits(carried_Bps or 0.0)}, which this adapter carries",
    )
    leading = re.match(r"\s*(\d+)\s*x\b", section.text or "")
    counts = (
        section.count,
        *(each.nics for each in read.values()),
        int(leading[1]) if leading else None,
        1 if field == "nic" and section.per_socket is None else None,
    )
    count = next((each for each in counts if each is not None), None)
    refuse_if(count == 0, f"{field}.text", repr(section.text), "one NIC or more")
    kinds = (each.kind for each in read.values() if each.kind)
    return StatedNics(section, count, next(kinds, None), rate_Bps or carried_Bps, slot)


_BARE_RATE = re.compile(r"\s*(\d+\s*x\s*)?\d+(\.\d+)?\s*g(bit/?s?|bps|b/s|b)?\s*", re.IGNORECASE)
"""A rate that names no kind of network: the template's own, or sockets where there is none."""


def _network(text: str | None, field: str, faults: list[Fault]) -> NetworkText | None:
    if text is None:
        return None
    allowed = allowed_names((*hardware_parts().ports, "2 x 100 Gbit/s RoCE"))
    if unread := unread_words(text, "nic"):
        faults.append(Fault(field, repr(unread), allowed))
        return None
    bare = _BARE_RATE.fullmatch(text) is not None
    try:
        read = read_network(text, usual="tcp" if bare or _GIGABIT_ETHERNET.search(text) else None)
    except InputError as error:
        faults += [Fault(field, fault.found, fault.allowed) for fault in error.faults]
        return None
    faults += failed((read.kind is None, field, repr(text), allowed))
    return replace(read, kind=None) if bare else read


_GIGABIT_ETHERNET = re.compile(r"\d\s*GE\b")


def _twice(section: NicSection, phrase: NetworkText, stated: str, field: str) -> Iterator[Fault]:
    """Numbers that a phrase and a field both state, and that differ.

    `stated`: the field that has the phrase, which for a rate may be that of the kind.
    """
    allowed = "as the words say" if stated.endswith("text") else f"as {stated} says"
    if section.rate and phrase.nic_Bps and not math.isclose(section.rate, phrase.nic_Bps):
        yield Fault(f"{field}.rate", bits(section.rate), f"{bits(phrase.nic_Bps)}, {allowed}")
    if section.count and phrase.nics and section.count != phrase.nics:
        yield Fault(f"{field}.count", str(section.count), f"{phrase.nics}, {allowed}")


# ---------------------------------------------------------------- the change


def change_nics(
    host: PartedHost, stated: StatedNics, sockets: int | None, field: str
) -> PartedHost:
    """Give a host the NICs that are stated.

    `sockets`: CPUs as stated. Raises `InputError`: a number that the host cannot have.
    """
    nics, per_socket = host.names("nic"), stated.section.per_socket
    count = (
        stated.count or len(nics) or 1
        if per_socket is None
        else per_socket * (sockets or max(1, len(host.names("cpu"))))
    )
    host, link = _port(host, stated, field)
    if count != len(nics) or per_socket is not None or not nics:
        return _plug(host, link, count, stated)
    if stated.slot is not None:
        host = _plug(host, link, count, stated)
    return host.with_node(links=with_ports(host.node, dict(link)).links)


def _port(host: PartedHost, stated: StatedNics, field: str) -> tuple[PartedHost, LinkSpec]:
    """The link that leaves each NIC; where no field says another, the template's own."""
    node = host.node
    old = next((node.links[spec.port] for spec in node.nodes if spec.port), None)
    kind = stated.kind or (old.network_kind if old is not None else None)
    if kind is None:
        raise InputError(Fault(f"{field}.kind", "nothing", "infiniband, roce, tcp or another kind"))
    if old is not None and old.network_kind == kind:
        link = old
        if stated.rate_Bps is not None and stated.rate_Bps != old.bandwidth:
            link = old.model_copy(update={"bandwidth": stated.rate_Bps, "source": STATED})
    else:
        rate_Bps = stated.rate_Bps
        if rate_Bps is None:
            rate_Bps = old.bandwidth if old is not None else usual_nics(kind, host.part.spelled)[1]
            why = "as before" if old is not None else "usual with this GPU"
            host = host.noting(f"assumption: NICs of {rate_Bps * 8e-9:g} Gbit/s, {why}")
        link = validate_document(LinkSpec, port(kind, rate_Bps, STATED, host.node.gpu))
        host = host.with_node(
            gpudirect_rdma=reads_gpus(host.part, kind),
            sources={**hardware_parts().sources, **node.sources},
        )
    return host, _with_details(link, kind, stated)


def _with_details(link: LinkSpec, kind: NetworkKind, stated: StatedNics) -> LinkSpec:
    latency_s, mtu = stated.section.latency, stated.section.mtu
    fields: dict[str, Any] = (
        {} if latency_s is None else {"latency": latency_s, "latency_source": STATED}
    )
    if mtu is not None:
        share = mtu / (mtu + hardware_parts().ports[kind].header)
        fields |= {"efficiency": share, "efficiency_source": STATED}
    return link.model_copy(update=fields)


def _plug(host: PartedHost, link: LinkSpec, count: int, stated: StatedNics) -> PartedHost:
    """Plug NICs in anew, evenly beside the old ones, the switches of GPUs, or the CPUs."""
    nics, by_cpu = host.names("nic"), stated.section.per_socket is not None
    ends = [each for nic in nics for each in host.neighbours(nic, _HOLDERS)]
    old_link = ends[0][1].link if ends else None
    fresh = host.without(nics)
    places = list(dict.fromkeys(place for place, _ in ends))
    if not places or by_cpu:
        places = _places(fresh, by_cpu=by_cpu)
    draft = Draft(host.node.gpu, "", "")
    slot_name, slot_link = _slot(host, stated, old_link)
    draft.links |= {slot_name: slot_link, link.network_kind: same_link(link)}
    at = 0
    for place, count_here in Counter(spread_evenly(count, places)).items():
        names = pattern("nic", count_here, at)
        draft.add(names, "nic", port=link.network_kind)
        draft.join(names, place, slot_name)
        at += count_here
    return fresh.plus(draft).with_node(graphs=())


_HOLDERS = ("pcie_switch", "cpu", "gpu")


def _places(host: PartedHost, *, by_cpu: bool) -> list[str]:
    """Switches that hold GPUs, or CPUs; in the order of the CPUs above them."""
    switches = [
        place
        for cpu in host.names("cpu")
        for place, _ in host.neighbours(cpu, ("pcie_switch",))
        if host.neighbours(place, ("gpu",))
    ]
    covered = {cpu for place in switches for cpu, _ in host.neighbours(place, ("cpu",))}
    if switches and (not by_cpu or covered == set(host.names("cpu"))):
        return switches
    return list(host.names("cpu"))


def _slot(host: PartedHost, stated: StatedNics, old: str | None) -> tuple[str, dict[str, Any]]:
    """PCIe link of a NIC, by name."""
    if stated.slot is not None:
        draft = Draft(host.node.gpu, "", "")
        name = draft.add_pcie(*stated.slot)
        return name, draft.links[name]
    if old is not None:
        return old, same_link(host.node.links[old])
    name = max(host.part.pcie, hardware_parts().cpus[host.part.cpu].pcie)
    return name, stock_link(name)
