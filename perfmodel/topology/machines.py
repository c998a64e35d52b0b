"""Which shipped template is the machine that words describe."""

from __future__ import annotations

import re
from dataclasses import replace

from perfmodel.topology.build import template_names
from perfmodel.topology.networked import Networked
from perfmodel.topology.parts import GpuPart, Layout, MachinePart, parts, usual_nics
from perfmodel.topology.spelled import Joined, NamedGpu


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


def _fits(machine: MachinePart, part: GpuPart, gpus: int, layout: Layout, joined: Joined) -> bool:
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
    return [machine for machine in parts().machines if machine.template in present]
