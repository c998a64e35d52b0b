"""A fabric whose switches, cables and hosts are listed one by one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from perfmodel.errors import Fault, InputError
from perfmodel.topology.fabrics import Fabric
from perfmodel.topology.wiring import Trunk, Wiring


def listed_wiring(fabric: Fabric, rails: tuple[int, ...], hosts: int) -> Wiring:
    """Plug the NICs of the first hosts into the switches that the list says.

    Raises
    ------
    InputError
        More hosts than the list has, NICs that differ in number, or switches that no cable joins.
    """
    rows = fabric.hosts[:hosts]
    faults = []
    if hosts > len(fabric.hosts):
        faults.append(Fault("hosts", str(hosts), f"at most {len(fabric.hosts)} in this fabric"))
    wrong = next((row for row in rows if len(row.leaves) != len(rails)), None)
    if wrong is not None:
        found = f"{len(rails)} NICs per host, and {len(wrong.leaves)} of {wrong.name} in the fabric"
        faults.append(Fault("fabric", found, "as many as the host template has"))
    if faults:
        raise InputError(faults)
    leaves = list(dict.fromkeys(leaf for row in rows for leaf in row.leaves))
    reached = _reached(leaves[:1], [(trunk.from_, trunk.to) for trunk in fabric.trunks])
    apart = [leaf for leaf in leaves if leaf not in reached]
    if apart:
        raise InputError(Fault("fabric.trunks", f"no cables from {leaves[0]} to {apart[0]}",
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
    laid: Counter[tuple[str, str]] = Counter()
    for trunk in fabric.trunks:
        ends = trunk.from_, trunk.to
        if trunk.from_ == trunk.to:
            raise InputError(Fault("fabric.trunks", f"{trunk.to} joined to itself",
                                   "two different switches"))  # fmt: skip
        if trunk.from_ in place:
            low, high = sorted(ends, key=place.__getitem__)
            yield Trunk(f"fabric/{low}", f"fabric/{high}", trunk.cables, 1, trunk.bandwidth,
                        laid[low, high])  # fmt: skip
            laid[low, high] += trunk.cables


def _reached(start: Iterable[str], pairs: list[tuple[str, str]]) -> dict[str, None]:
    """Switches that cables lead to, in the order in which they are met."""
    beside: dict[str, list[str]] = {}
    for a, b in pairs:
        beside.setdefault(a, []).append(b)
        beside.setdefault(b, []).append(a)
    reached = dict.fromkeys(start)
    queue = list(reached)
    for name in queue:
        for other in beside.get(name, ()):
            if other not in reached:
                reached[other] = None
                queue.append(other)
    return reached
