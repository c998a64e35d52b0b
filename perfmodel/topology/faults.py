"""Faults of a machine: links that slow down, links and devices that fail, and links by name.

A degraded machine is a `Topology` with the same ranks, graph and arc numbers; only the numbers of
its arcs differ. Its ``healthy`` field keeps the machine as it was built, because a running library
keeps the rings that it chose then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from types import MappingProxyType

from perfmodel.errors import Fault, InputError, allowed_names, raise_faults
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.name_ranges import expand_ranges

_LINK = re.compile(r"(?P<src>\S+)\s*(?P<arrow>->|--)\s*(?P<dst>[^\s#]+)(?:\s*#(?P<cable>\d+))?")


# ---------------------------------------------------------------- links by name


def find_arcs(topology: Topology, text: str) -> tuple[int, ...]:
    """Directed links by name, by rising number.

    `text`: ``"n0/nic0 -> fabric/leaf0"`` (one direction), ``"n0/nic0 -- fabric/leaf0"`` (both),
    ``"n1/nic3"`` (all links of a device). Names may be patterns (see `find_devices`); of parallel
    cables all are meant unless a number names one (``"fabric/leaf0 -- fabric/spine1 #2"``).

    Raises `InputError`: no such device, or devices that no link joins; the message names the
    nearest.
    """
    match = _LINK.fullmatch(text.strip())
    if match is None:
        nodes = find_devices(topology, text.strip(), "link")
        return tuple(sorted({arc for node in nodes for arc in arcs_of_device(topology, node)}))
    sources, targets = (set(find_devices(topology, match[end], "link")) for end in ("src", "dst"))
    cable = None if match["cable"] is None else int(match["cable"])
    arcs = _between(topology, sources, targets, cable)
    if match["arrow"] == "--":
        arcs |= _between(topology, targets, sources, cable)
    if not arcs:
        raise InputError(Fault("link", repr(text), _neighbours(topology, sources, cable)))
    return tuple(sorted(arcs))


def arcs_of_device(topology: Topology, node: str) -> set[int]:
    """All directed links that leave a device or enter it."""
    adjacencies = (topology.links[node], topology.links_into[node])
    return {arc for neighbours in adjacencies for cables in neighbours.values() for arc in cables}


def no_device(topology: Topology, name: str, field: str) -> Fault:
    """Fault of a name that no device has, with the nearest that there are."""
    head = name.partition("/")[0] + "/"
    near = [node for node in topology.devices if node.startswith(head)]
    others = (node for node in topology.devices if node.startswith(("n0/", "fabric/")))
    allowed = allowed_names(near or list(others), name, limit=12)
    return Fault(field, repr(name), f"a device: {allowed}")


def find_devices(topology: Topology, pattern: str, field: str) -> list[str]:
    """Devices by name or pattern: ranges as in node templates, ``*`` and ``?`` for any text.

    ``"n[0-3]/nic*"`` are all NICs of four nodes; each node of the range must be there.

    Raises `InputError`: a device that there is not, or a malformed range; names `field`.
    """
    devices: dict[str, None] = {}
    try:
        for name in expand_ranges(pattern):
            candidates = topology.devices if ("*" in name or "?" in name) else (name,)
            literal = name.replace("[", "[[]")  # a bracket without its end
            matches = [node for node in candidates if fnmatchcase(node, literal)]
            if not all(node in topology.devices for node in matches) or not matches:
                raise InputError(no_device(topology, name, field))
            devices |= dict.fromkeys(matches)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(Fault(field, repr(pattern), str(error))) from None
    return list(devices)


def _between(
    topology: Topology, sources: Iterable[str], targets: set[str], cable: int | None
) -> set[int]:
    return {
        arc
        for src in sources
        for dst, cables in topology.links[src].items()
        if dst in targets
        for key, arc in enumerate(cables)
        if cable is None or key == cable
    }


def _neighbours(topology: Topology, sources: set[str], cable: int | None) -> str:
    names = allowed_names(sorted({dst for src in sources for dst in topology.links[src]}), limit=12)
    number = "" if cable is None else " (parallel cables are numbered from #0)"
    return f"a link from {min(sources)} to {names}{number}"


# ---------------------------------------------------------------- links that change

_NOTHING: Mapping[int, float] = MappingProxyType({})


def degrade_links(
    topology: Topology,
    bandwidth_Bps: Mapping[int, float] = _NOTHING,
    latency_s: Mapping[int, float] = _NOTHING,
) -> Topology:
    """Return the machine with other numbers on some of its links.

    `bandwidth_Bps`: new usable rate by arc; 0 means that traffic on it stands still (but keeps its
    route). `latency_s`: new latency by arc; seconds.

    Raises `InputError`: an arc that there is not, or a number that is negative or not finite; every
    fault.
    """
    _check_numbers(topology, {"bandwidth": bandwidth_Bps, "latency": latency_s})
    arcs = topology.arcs
    rates, delays = arcs.bandwidth_Bps.copy(), arcs.latency_s.copy()
    rates[list(bandwidth_Bps)] = list(bandwidth_Bps.values())
    delays[list(latency_s)] = list(latency_s.values())
    rates[list(topology.dead)] = 0.0
    changed = replace(arcs, bandwidth_Bps=rates, latency_s=delays)
    return replace(topology, changed=changed, healthy=topology.healthy or topology)


def remove_links(
    topology: Topology, *, arcs: Iterable[int] = (), nodes: Collection[str] = ()
) -> Topology:
    """Return the machine with links or devices lost: nothing is routed over them any more.

    `arcs`: directed links; see `perfmodel.topology.faults.find_arcs`. `nodes`: devices, lost with
    all their links.

    Raises `InputError`: an arc or a device that there is not; every fault.
    """
    raise_faults(
        no_device(topology, name, "lose") for name in nodes if name not in topology.devices
    )
    lost_arcs = set(arcs)
    _check_numbers(topology, {"link": dict.fromkeys(lost_arcs, 0.0)})
    broken = replace(
        topology,
        dead=topology.dead.union(lost_arcs, *(arcs_of_device(topology, node) for node in nodes)),
        lost=tuple(dict.fromkeys((*topology.lost, *nodes, *_link_names(topology, lost_arcs)))),
        healthy=topology.healthy or topology,
    )
    return degrade_links(broken)


def _link_names(topology: Topology, arcs: Collection[int]) -> list[str]:
    """Names of links: "a -- b" where both directions are meant, else "a -> b"."""
    ends = {topology.arcs.names[arc] for arc in sorted(arcs)}
    return sorted(
        f"{a} -- {b}" if (b, a) in ends else f"{a} -> {b}"
        for a, b in ends
        if (b, a) not in ends or a < b
    )


def _check_numbers(topology: Topology, numbers: Mapping[str, Mapping[int, float]]) -> None:
    count, faults = len(topology.arcs), []
    rows = ((field, *row) for field, values in numbers.items() for row in values.items())
    for field, arc, value in rows:
        if not 0 <= arc < count:
            faults.append(Fault(field, f"arc {arc}", f"0 to {count - 1}"))
        elif not (math.isfinite(value) and value >= 0):
            label = topology.arcs.label(arc)
            faults.append(Fault(field, f"{value} on {label}", "a number of zero or more"))
    raise_faults(faults)
