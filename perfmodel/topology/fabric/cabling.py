"""Cables of a fabric, by its shape or as listed: the switch of each NIC, and the trunks.

Only numbers; `perfmodel.topology.fabric.assemble` makes arcs of a `Wiring`. Ports are counted host
by host, so port p belongs to host ``p // ports_per_host``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from perfmodel.errors import Fault, InputError
from perfmodel.topology.fabric.fabric import Fabric
from perfmodel.topology.routing.clos import Ints


@dataclass(frozen=True, slots=True)
class Trunk:
    """Cables between two switches.

    Parameters
    ----------
    lower, upper : str
    cables : int
        Parallel links, each an arc of its own.
    lanes : int
        Cables bonded into each link (adaptive routing).
    raw_Bps : float or None
        Rate of one cable; None: as the fabric's others.
    """

    lower: str
    upper: str
    cables: int
    lanes: int = 1
    raw_Bps: float | None = None


@dataclass(frozen=True, slots=True)
class Wiring:
    """Cables of a fabric."""

    switches: tuple[str, ...]
    """Leaves first."""
    leaf_of: Ints
    """Leaf switch of each port, as a position in `switches`. Shape (ports,)."""
    trunks: tuple[Trunk, ...] = ()
    """Leaf by leaf; then, in a fat tree, those of the level above."""
    leaves: int = 1
    pod: int = 1
    above: int = 0
    cables: int = 0
    cores: int = 0
    """`leaves` to `cores`: as in `perfmodel.topology.routing.clos.Tiers`."""
    assumptions: tuple[str, ...] = ()


# ---------------------------------------------------------------- regular shapes


def wire(fabric: Fabric, rails: tuple[int, ...], hosts: int) -> Wiring:
    """Plug every NIC of every host into the fabric.

    `rails`: rail of each NIC of one host.

    Raises `InputError`: the fabric has too few ports.
    """
    shapes: Mapping[str, Callable[[Fabric, tuple[int, ...], int], Wiring]] = {
        "one-switch": _one_switch,
        "rail-optimised": _rail_optimised,
        "leaf-spine": _leaf_spine,
        "fat-tree": _fat_tree,
    }
    return shapes[fabric.kind](fabric, rails, hosts)


def _one_switch(_fabric: Fabric, rails: tuple[int, ...], hosts: int) -> Wiring:
    return Wiring(("fabric/switch0",), np.zeros(hosts * len(rails), dtype=np.int64))


def _rail_optimised(fabric: Fabric, rails: tuple[int, ...], hosts: int) -> Wiring:
    """One leaf per rail for each group of hosts; spines above join the rails and the groups."""
    used = sorted(set(rails))
    cables = len(rails) // len(used)  # NICs of one host on one rail
    group = fabric.hosts_per_leaf or max(1, fabric.down_ports // cables)
    groups = math.ceil(hosts / group)
    rail = np.array([used.index(rail) for rail in rails], dtype=np.int64)
    leaf_of = (np.arange(hosts)[:, None] // group * len(used) + rail).ravel()
    return _with_spines(fabric, groups * len(used), leaf_of, min(group, hosts) * cables)


def _leaf_spine(fabric: Fabric, rails: tuple[int, ...], hosts: int) -> Wiring:
    """Leaves hold whole hosts where a host fits; spines above join the leaves."""
    nics = len(rails)
    per_leaf = fabric.down_ports
    if fabric.hosts_per_leaf or nics <= per_leaf:
        per_leaf = nics * (fabric.hosts_per_leaf or per_leaf // nics)
    ports = hosts * nics
    leaf_of = np.arange(ports) // per_leaf
    return _with_spines(fabric, math.ceil(ports / per_leaf), leaf_of, min(per_leaf, ports))


def _with_spines(fabric: Fabric, leaves: int, leaf_of: Ints, down: int) -> Wiring:
    """Join leaves of `down` used ports by the fewest spines that have ports enough."""
    names = tuple(f"fabric/leaf{i}" for i in range(leaves))
    if leaves == 1:
        return Wiring(names, leaf_of)
    up = max(1, round(down / fabric.oversubscription))
    spines = next(
        (s for s in range(1, up + 1) if up % s == 0 and leaves * up // s <= fabric.radix), up
    )
    notes = []
    if leaves * up // spines > fabric.radix:
        notes.append(
            f"assumption: {spines} modular spine switches of {leaves * up // spines} ports "
            f"each stand for the third level that switches of {fabric.radix} ports would need"
        )
    notes += _rounded_taper(down, up, fabric.oversubscription)
    above, cables, lanes = spines, up // spines, 1
    if fabric.routing == "adaptive":
        notes += [_adaptive_note(f"{spines} spine switches")] if spines > 1 else []
        above, cables, lanes = 1, 1, up
    upper = tuple(f"fabric/spine{s}" for s in range(above))
    trunks = tuple(Trunk(leaf, spine, cables, lanes) for leaf in names for spine in upper)
    return Wiring(
        names + upper, leaf_of, trunks,
        leaves=leaves, pod=leaves, above=above, cables=cables, assumptions=tuple(notes),
    )  # fmt: skip


def _rounded_taper(down: int, up: int, oversubscription: float) -> Iterator[str]:
    """Say what whole cables make of a ratio."""
    if abs(down / up - oversubscription) > 1e-9:
        yield (
            f"assumption: {up} uplinks for {down} host ports of a leaf, so oversubscription "
            f"{down / up:.3g} (asked: {oversubscription:g})"
        )


def _adaptive_note(switches: str) -> str:
    return (
        f"assumption: adaptive routing spreads every flow evenly over all ways, so {switches} act "
        "as one, and the cables from a switch to them as one link of their summed rate"
    )


def _fat_tree(fabric: Fabric, rails: tuple[int, ...], hosts: int) -> Wiring:
    """Three levels of equal switches (Al-Fares et al., SIGCOMM 2008): k**3 / 4 host ports.

    Only what the ports in use need is built: their edge switches, whole pods above them, and core
    switches if there are several pods. An oversubscribed tree is tapered at its edge: each edge
    switch has fewer uplinks by that factor, so that its pod has as many aggregation switches fewer.
    """
    ports = hosts * len(rails)
    k = fabric.k or _smallest_k(ports)
    if ports > k**3 // 4 or k > max(fabric.radix, fabric.k or 0):
        most = (fabric.k or fabric.radix - fabric.radix % 2) ** 3 // 4
        raise InputError(
            Fault("fabric.radix", f"{ports} NICs", f"at most {most} in a fat tree of such switches")
        )
    half = k // 2
    edges = math.ceil(ports / half)
    leaf_of = np.arange(ports) // half
    names = tuple(f"fabric/edge{e}" for e in range(edges))
    if edges == 1:
        return Wiring(names, leaf_of)
    pods = math.ceil(edges / half)
    adaptive = fabric.routing == "adaptive"
    up = max(1, round(half / fabric.oversubscription))
    above, lanes = (1, up) if adaptive else (up, 1)  # switches of a pod, cables to each
    cores = (1 if adaptive else half) if pods > 1 else 0  # above each of those
    aggs = tuple(f"fabric/agg{a}" for a in range(pods * above))
    tops = tuple(f"fabric/core{c}" for c in range(above * cores))
    trunks = [Trunk(names[e], aggs[e // half * above + a], 1, lanes)
              for e in range(edges) for a in range(above)]  # fmt: skip
    trunks += [Trunk(aggs[a], tops[a % above * cores + c], 1, up * half if adaptive else 1)
               for a in range(pods * above) for c in range(cores)]  # fmt: skip
    notes = list(_rounded_taper(half, up, fabric.oversubscription))
    if adaptive:
        notes.append(
            _adaptive_note(f"the {up} aggregation switches of a pod and all core switches")
        )
    return Wiring(
        names + aggs + tops, leaf_of, tuple(trunks),
        leaves=edges, pod=half, above=above, cables=1, cores=cores,
        assumptions=tuple(notes),
    )  # fmt: skip


def _smallest_k(ports: int) -> int:
    k = 2
    while k**3 // 4 < ports:
        k += 2
    return k


# ---------------------------------------------------------------- listed fabrics


def wire_listed(fabric: Fabric, rails: tuple[int, ...], hosts: int) -> Wiring:
    """Plug the NICs of the first hosts into the switches that the list says.

    Raises `InputError`: more hosts than the list has, NICs that differ in number, or switches that
    no cable joins.
    """
    rows = fabric.hosts[:hosts]
    faults = []
    if hosts > len(fabric.hosts):
        faults.append(Fault("hosts", str(hosts), f"at most {len(fabric.hosts)} in this fabric"))
    odd_host = next((row for row in rows if len(row.leaves) != len(rails)), None)
    if odd_host is not None:
        listed = f"{len(odd_host.leaves)} of {odd_host.name} in the fabric"
        mismatch = f"{len(rails)} NICs per host, and {listed}"
        faults.append(Fault("fabric", mismatch, "as many as the host template has"))
    if faults:
        raise InputError(faults)
    leaves = list(dict.fromkeys(leaf for row in rows for leaf in row.leaves))
    reached = _reached(leaves[:1], [(trunk.from_, trunk.to) for trunk in fabric.trunks])
    unreachable = [leaf for leaf in leaves if leaf not in reached]
    if unreachable:
        raise InputError(Fault("fabric.trunks", f"no cables from {leaves[0]} to {unreachable[0]}",
                               "switches that are joined"))  # fmt: skip
    names = [*leaves, *(name for name in reached if name not in set(leaves))]
    place = {name: at for at, name in enumerate(names)}
    return Wiring(
        switches=tuple(f"fabric/{name}" for name in names),
        leaf_of=np.array([place[leaf] for row in rows for leaf in row.leaves], dtype=np.int64),
        trunks=tuple(_trunks(fabric, place)),
        leaves=len(leaves),
        assumptions=(f"assumption: the first {hosts} of {len(fabric.hosts)} hosts of the fabric",)
        if hosts < len(fabric.hosts)
        else (),
    )


def _trunks(fabric: Fabric, place: Mapping[str, int]) -> Iterator[Trunk]:
    """Cables between switches that are used, each from the earlier switch to the later."""
    for trunk in fabric.trunks:
        ends = trunk.from_, trunk.to
        if trunk.from_ == trunk.to:
            raise InputError(Fault("fabric.trunks", f"{trunk.to} joined to itself",
                                   "two different switches"))  # fmt: skip
        if trunk.from_ in place:
            low, high = sorted(ends, key=place.__getitem__)
            yield Trunk(f"fabric/{low}", f"fabric/{high}", trunk.cables, 1, trunk.bandwidth)


def _reached(start: Iterable[str], pairs: list[tuple[str, str]]) -> dict[str, None]:
    """Switches that cables lead to, in the order in which they are met."""
    neighbours: dict[str, list[str]] = {}
    for a, b in pairs:
        neighbours.setdefault(a, []).append(b)
        neighbours.setdefault(b, []).append(a)
    reached = dict.fromkeys(start)
    queue = list(reached)
    for name in queue:
        for other in neighbours.get(name, ()):
            if other not in reached:
                reached[other] = None
                queue.append(other)
    return reached
