"""Links by name: what a scenario's ``link:`` means on a machine."""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

from perfmodel.errors import Fault, InputError, one_of
from perfmodel.topology.model import Topology

_LINK = re.compile(r"(?P<src>\S+)\s*(?P<way>->|--)\s*(?P<dst>[^\s#]+)(?:\s*#(?P<cable>\d+))?")


def arcs_named(topology: Topology, text: str) -> tuple[int, ...]:
    """Directed links that a name stands for, by rising number.

    Parameters
    ----------
    topology : Topology
    text : str
        ``"n0/nic0 -> fabric/leaf0"`` (one direction), ``"n0/nic0 -- fabric/leaf0"`` (both),
        ``"n1/nic3"`` (all links of a device). Names may hold ``*`` and ``?``; of parallel cables
        all are meant unless one is told by its number (``"fabric/leaf0 -- fabric/spine1 #2"``).

    Raises
    ------
    InputError
        No such device, or devices that no link joins; the message names the nearest.
    """
    match = _LINK.fullmatch(text.strip())
    if match is None:
        nodes = _nodes(topology, text.strip())
        return tuple(sorted({arc for node in nodes for arc in arcs_at(topology, node)}))
    left, right = _nodes(topology, match["src"]), _nodes(topology, match["dst"])
    cable = None if match["cable"] is None else int(match["cable"])
    found = _between(topology, left, right, cable)
    if match["way"] == "--":
        found |= _between(topology, right, left, cable)
    if not found:
        raise InputError(Fault("link", repr(text), _neighbours(topology, left, cable)))
    return tuple(sorted(found))


def arcs_at(topology: Topology, node: str) -> set[int]:
    """All directed links that leave a device or enter it."""
    beside = (topology.graph.succ[node], topology.graph.pred[node])
    return {
        int(data["index"])
        for neighbours in beside
        for cables in neighbours.values()
        for data in cables.values()
    }


def no_device(topology: Topology, name: str, field: str) -> Fault:
    """Fault of a name that no device has, with the nearest that there are."""
    return Fault(field, repr(name), _allowed(topology, name))


def _allowed(topology: Topology, name: str) -> str:
    head = name.partition("/")[0] + "/"
    near = [node for node in topology.graph if node.startswith(head)]
    known = near or [node for node in topology.graph if node.startswith(("n0/", "fabric/"))]
    return f"a device: {one_of(known, name, limit=12)}"


def _nodes(topology: Topology, name: str) -> set[str]:
    if name in topology.graph:
        return {name}
    is_pattern = "*" in name or "?" in name
    found = {node for node in topology.graph if is_pattern and fnmatchcase(node, name)}
    if not found:
        raise InputError(no_device(topology, name, "link"))
    return found


def _between(
    topology: Topology, left: Iterable[str], right: set[str], cable: int | None
) -> set[int]:
    adjacent = topology.graph.adj
    return {
        int(data["index"])
        for src in left
        for dst, cables in adjacent[src].items()
        if dst in right
        for key, data in enumerate(cables.values())
        if cable is None or key == cable
    }


def _neighbours(topology: Topology, left: set[str], cable: int | None) -> str:
    beside = sorted({dst for src in left for dst in topology.graph.adj[src]})
    shown = one_of(beside, limit=12)
    number = "" if cable is None else " (parallel cables are numbered from #0)"
    return f"a link from {min(left)} to {shown}{number}"
