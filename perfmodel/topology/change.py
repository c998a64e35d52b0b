"""A machine that changes: links that slow down, links and devices that are lost.

A changed machine is a `Topology` with the same ranks, graph and arc numbers; only what its arcs
carry differs. Its ``healthy`` field keeps the machine as it was built, whose preferences among
routes stay (a library that is running does not choose its rings anew when a link slows down).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType

from perfmodel.errors import Fault, InputError
from perfmodel.topology.model import Arcs, Topology
from perfmodel.topology.names import arcs_at, no_device

_NOTHING: Mapping[int, float] = MappingProxyType({})


def degraded(
    topology: Topology,
    bandwidth_Bps: Mapping[int, float] = _NOTHING,
    latency_s: Mapping[int, float] = _NOTHING,
) -> Topology:
    """Return the machine with other numbers on some of its links.

    Parameters
    ----------
    topology : Topology
    bandwidth_Bps : mapping of int to float
        New usable rate by arc; 0 means that traffic on it stands still (but keeps its route).
    latency_s : mapping of int to float
        New latency by arc; seconds.

    Raises
    ------
    InputError
        An arc that there is not, or a number that is negative or not finite; every fault.
    """
    _refuse(topology, {"bandwidth": bandwidth_Bps, "latency": latency_s})
    arcs = topology.arcs
    rates, delays = arcs.bandwidth_Bps.copy(), arcs.latency_s.copy()
    rates[list(bandwidth_Bps)] = list(bandwidth_Bps.values())
    delays[list(latency_s)] = list(latency_s.values())
    rates[list(topology.dead)] = 0.0
    return _with(topology, Arcs(arcs.names, arcs.kinds, rates, delays))


def without(
    topology: Topology, *, arcs: Iterable[int] = (), nodes: Collection[str] = ()
) -> Topology:
    """Return the machine with links or devices lost: nothing is routed over them any more.

    Parameters
    ----------
    topology : Topology
    arcs : iterable of int
        Directed links; see `perfmodel.topology.names.arcs_named`.
    nodes : collection of str
        Devices, lost with all their links.

    Raises
    ------
    InputError
        An arc or a device that there is not; every fault.
    """
    unknown = [no_device(topology, name, "lose") for name in nodes if name not in topology.graph]
    if unknown:
        raise InputError(unknown)
    gone = set(arcs)
    _refuse(topology, {"link": dict.fromkeys(gone, 0.0)})
    names = (*topology.lost, *nodes, *_cables(topology, gone))
    gone = gone.union(*(arcs_at(topology, node) for node in nodes))
    dead = topology.dead | gone
    old = topology.arcs
    rates = old.bandwidth_Bps.copy()
    rates[list(dead)] = 0.0
    changed = _with(topology, Arcs(old.names, old.kinds, rates, old.latency_s))
    return replace(changed, dead=dead, lost=tuple(dict.fromkeys(names)))


def _with(topology: Topology, arcs: Arcs) -> Topology:
    return replace(topology, changed=arcs, healthy=topology.healthy or topology)


def _cables(topology: Topology, arcs: Collection[int]) -> list[str]:
    """Names of links: "a -- b" where both directions are meant, else "a -> b"."""
    ends = {topology.arcs.names[arc] for arc in sorted(arcs)}
    return sorted(
        f"{a} -- {b}" if (b, a) in ends else f"{a} -> {b}"
        for a, b in ends
        if (b, a) not in ends or a < b
    )


def _refuse(topology: Topology, numbers: Mapping[str, Mapping[int, float]]) -> None:
    count = len(topology.arcs)
    faults = []
    for field, values in numbers.items():
        for arc, value in values.items():
            if not 0 <= arc < count:
                faults.append(Fault(field, f"arc {arc}", f"0 to {count - 1}"))
            elif not (math.isfinite(value) and value >= 0):
                label = topology.arcs.label(arc)
                faults.append(Fault(field, f"{value} on {label}", "a number of zero or more"))
    if faults:
        raise InputError(faults)
