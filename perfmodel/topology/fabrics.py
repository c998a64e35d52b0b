"""Networks between hosts: which NIC is plugged into which switch, which switches are joined.

Pure arithmetic on names; `perfmodel.topology.build` turns a `Wiring` into arcs. Ports are counted
host by host, so port p belongs to host ``p // ports_per_host``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from perfmodel.errors import Fault, InputError, one_of
from perfmodel.files import data_folder, find_file, line_of, read_yaml, validate
from perfmodel.topology.spec import FABRIC_KINDS, FabricFile, FabricSpec


@dataclass(frozen=True, slots=True)
class Fabric:
    """A fabric with every number settled; the fields are those of `FabricSpec`, in SI units."""

    kind: str
    switch_latency_s: float
    cable_latency_s: float
    radix: int
    oversubscription: float
    leaf_ports: int | None
    hosts_per_leaf: int | None
    uplink_Bps: float | None
    k: int | None
    sources: Mapping[str, str]

    @property
    def down_ports(self) -> int:
        """Ports of a leaf that face hosts: as many as leave room for the uplinks."""
        if self.leaf_ports is not None:
            return self.leaf_ports
        share = self.oversubscription / (1 + self.oversubscription)
        return max(1, math.floor(self.radix * share + 1e-9))


@dataclass(frozen=True, slots=True)
class Wiring:
    """Cables of a fabric.

    Parameters
    ----------
    switches : tuple of str
    leaves : tuple of str
        Leaf switch of each port, in port order.
    trunks : tuple of (str, str, int)
        Lower switch, upper switch, number of parallel cables.
    assumptions : tuple of str
    """

    switches: tuple[str, ...]
    leaves: tuple[str, ...]
    trunks: tuple[tuple[str, str, int], ...]
    assumptions: tuple[str, ...] = ()


# ---------------------------------------------------------------- from files


def settle(fabric: FabricSpec | str) -> Fabric:
    """Fill what a fabric leaves open from the file of its shape.

    Parameters
    ----------
    fabric : FabricSpec or str
        A shape with overrides, the name of a shape, or the path of a fabric file.

    Raises
    ------
    InputError
        Unknown shape, unreadable or wrong file.
    """
    if isinstance(fabric, str):
        return _settled(_read(_path(fabric)), None)
    return _settled(_read(_path(fabric.kind)), fabric)


def _path(name: str) -> Path:
    if name in FABRIC_KINDS:
        return data_folder("topologies") / "fabrics" / f"{name}.yaml"
    if name.endswith((".yaml", ".yml")) or name.startswith("fabrics/"):
        return find_file(name, "topologies", field="fabric")
    own = Path("topologies") / "fabrics" / f"{name}.yaml"
    if own.is_file():
        return own
    raise InputError(Fault("fabric", repr(name), one_of(FABRIC_KINDS, name)))


def _read(path: Path) -> FabricFile:
    document = read_yaml(path)
    file = validate(FabricFile, document, str(path))
    given = file.fabric.model_fields_set - {"kind"}
    line = line_of(document, ["sources"])
    faults = [
        Fault(f"sources.{name}", "nothing", "a source for this number", str(path), line)
        for name in sorted(given - set(file.sources))
    ] + [
        Fault(f"sources.{name}", repr(name), one_of(given, name), str(path), line)
        for name in sorted(set(file.sources) - given)
    ]
    if faults:
        raise InputError(faults)
    return file


def _settled(file: FabricFile, wanted: FabricSpec | None) -> Fabric:
    asked = {} if wanted is None else wanted.model_dump(exclude_none=True, exclude={"kind"})
    values = file.fabric.model_dump(exclude_none=True) | asked
    return Fabric(
        kind=values["kind"],
        switch_latency_s=values.get("switch_latency", 0.0),
        cable_latency_s=values.get("cable_latency", 0.0),
        radix=values.get("radix", 64),
        oversubscription=values.get("oversubscription", 1.0),
        leaf_ports=values.get("leaf_ports"),
        hosts_per_leaf=values.get("hosts_per_leaf"),
        uplink_Bps=values.get("uplink_bandwidth"),
        k=values.get("k"),
        sources={**file.sources, **dict.fromkeys(asked, "given in the scenario")},
    )


# ---------------------------------------------------------------- shapes


def wire(fabric: Fabric, rails: tuple[int, ...], hosts: int) -> Wiring:
    """Plug every NIC of every host into the fabric.

    Parameters
    ----------
    fabric : Fabric
    rails : tuple of int
        Rail of each NIC of one host.
    hosts : int

    Raises
    ------
    InputError
        The fabric has too few ports.
    """
    shapes: Mapping[str, Callable[[Fabric, tuple[int, ...], int], Wiring]] = {
        "one-switch": _one_switch,
        "rail-optimised": _rail_optimised,
        "leaf-spine": _leaf_spine,
        "fat-tree": _fat_tree,
    }
    return shapes[fabric.kind](fabric, rails, hosts)


def _one_switch(_fabric: Fabric, rails: tuple[int, ...], hosts: int) -> Wiring:
    return Wiring(("fabric/switch0",), ("fabric/switch0",) * (hosts * len(rails)), ())


def _rail_optimised(fabric: Fabric, rails: tuple[int, ...], hosts: int) -> Wiring:
    """One leaf per rail for each group of hosts; spines above join the rails and the groups."""
    used = sorted(set(rails))
    cables = len(rails) // len(used)  # NICs of one host on one rail
    group = fabric.hosts_per_leaf or max(1, fabric.down_ports // cables)
    groups = math.ceil(hosts / group)
    names = {(g, rail): f"fabric/leaf{g * len(used) + i}" for g in range(groups)
             for i, rail in enumerate(used)}  # fmt: skip
    leaves = tuple(names[host // group, rail] for host in range(hosts) for rail in rails)
    return _with_spines(fabric, tuple(names.values()), leaves, min(group, hosts) * cables)


def _leaf_spine(fabric: Fabric, rails: tuple[int, ...], hosts: int) -> Wiring:
    """Leaves hold whole hosts where a host fits; spines above join the leaves."""
    nics = len(rails)
    per_leaf = fabric.down_ports
    if fabric.hosts_per_leaf or nics <= per_leaf:
        per_leaf = nics * (fabric.hosts_per_leaf or per_leaf // nics)
    ports = hosts * nics
    names = tuple(f"fabric/leaf{i}" for i in range(math.ceil(ports / per_leaf)))
    leaves = tuple(names[port // per_leaf] for port in range(ports))
    return _with_spines(fabric, names, leaves, min(per_leaf, ports))


def _with_spines(
    fabric: Fabric, names: tuple[str, ...], leaves: tuple[str, ...], down: int
) -> Wiring:
    """Join leaves of `down` used ports by the fewest spines that have ports enough."""
    if len(names) == 1:
        return Wiring(names, leaves, ())
    up = max(1, round(down / fabric.oversubscription))
    spines = next(
        (s for s in range(1, up + 1) if up % s == 0 and len(names) * up // s <= fabric.radix), up
    )
    notes = []
    if len(names) * up // spines > fabric.radix:
        notes.append(
            f"assumption: {spines} modular spine switches of {len(names) * up // spines} ports "
            f"each stand for the third level that switches of {fabric.radix} ports would need"
        )
    if abs(down / up - fabric.oversubscription) > 1e-9:
        notes.append(
            f"assumption: {up} uplinks for {down} host ports of a leaf, so oversubscription "
            f"{down / up:.3g} (asked: {fabric.oversubscription:g})"
        )
    above = tuple(f"fabric/spine{s}" for s in range(spines))
    trunks = tuple((leaf, spine, up // spines) for leaf in names for spine in above)
    return Wiring(names + above, leaves, trunks, tuple(notes))


def _fat_tree(fabric: Fabric, rails: tuple[int, ...], hosts: int) -> Wiring:
    """Three levels of equal switches (Al-Fares et al., SIGCOMM 2008): k**3 / 4 host ports.

    Only what the ports in use need is built: their edge switches, whole pods above them, and core
    switches if there are several pods.
    """
    ports = hosts * len(rails)
    k = fabric.k or _smallest_k(ports)
    if ports > k**3 // 4 or k > max(fabric.radix, fabric.k or 0):
        most = (fabric.k or fabric.radix - fabric.radix % 2) ** 3 // 4
        raise InputError(
            Fault("fabric", f"{ports} NICs", f"at most {most} in a fat tree of such switches")
        )
    half = k // 2
    edges = math.ceil(ports / half)
    leaves = tuple(f"fabric/edge{port // half}" for port in range(ports))
    switches = [f"fabric/edge{e}" for e in range(edges)]
    if edges == 1:
        return Wiring(tuple(switches), leaves, ())
    pods = math.ceil(edges / half)
    switches += [f"fabric/agg{a}" for a in range(pods * half)]
    trunks = [(f"fabric/edge{e}", f"fabric/agg{e // half * half + a}", 1)
              for e in range(edges) for a in range(half)]  # fmt: skip
    if pods > 1:
        switches += [f"fabric/core{c}" for c in range(half * half)]
        trunks += [(f"fabric/agg{a}", f"fabric/core{a % half * half + c}", 1)
                   for a in range(pods * half) for c in range(half)]  # fmt: skip
    return Wiring(tuple(switches), leaves, tuple(trunks))


def _smallest_k(ports: int) -> int:
    k = 2
    while k**3 // 4 < ports:
        k += 2
    return k
