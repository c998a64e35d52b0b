"""Networks between hosts: their numbers, from files and from what a scenario overrides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.files import (
    data_folder,
    find_file,
    is_file,
    line_of,
    read_yaml,
    validate_document,
)
from perfmodel.topology.templates.spec import (
    FABRIC_KINDS,
    OPTIONS,
    ROUTINGS_OF,
    FabricFile,
    FabricSpec,
    ListedHost,
    ListedTrunk,
)


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
    routing: str
    sources: Mapping[str, str]
    hosts: tuple[ListedHost, ...] = ()
    trunks: tuple[ListedTrunk, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    """What only the generator of its shape reads."""

    @property
    def down_ports(self) -> int:
        """Ports of a leaf that face hosts: as many as leave room for the uplinks."""
        if self.leaf_ports is not None:
            return self.leaf_ports
        share = self.oversubscription / (1 + self.oversubscription)
        return max(1, math.floor(self.radix * share + 1e-9))


def usual_routing(kind: str, network: str) -> str:
    """How flows choose among equally short paths where nobody says.

    Switches of InfiniBand route adaptively, and NCCL asks them to: NCCL_IB_ADAPTIVE_ROUTING is 1 on
    InfiniBand and 0 on RoCE unless set (NVIDIA NCCL user guide, "Environment Variables").
    Slingshot's always do (De Sensi et al., SC 2020), so dragonflies are taken for such.
    """
    levels = kind in {"leaf-spine", "rail-optimised", "fat-tree", "rail-only"}
    adaptive = kind == "dragonfly" or (levels and network == "infiniband")
    return "adaptive" if adaptive else "ecmp"


# ---------------------------------------------------------------- from files


def states_routing(fabric: FabricSpec | str) -> bool:
    """Whether a fabric, or the file that it is the name of, says how flows choose."""
    stated = _read(_path(fabric)).fabric if isinstance(fabric, str) else fabric
    return stated.routing is not None


def resolve_fabric(fabric: FabricSpec | Fabric | str) -> Fabric:
    """Fill what a fabric leaves open from the file of its shape.

    `fabric`: a shape with overrides, the name of a shape, or the path of a fabric file.

    Raises `InputError`: unknown shape, unreadable or wrong file.
    """
    if isinstance(fabric, Fabric):
        return fabric
    if isinstance(fabric, str):
        file = _read(_path(fabric))
        return _merge(file, None if fabric in FABRIC_KINDS else file.fabric)
    shape = "one-switch" if fabric.kind == "listed" else fabric.kind  # for times alone
    return _merge(_read(_path(shape)), fabric)


def _path(name: str) -> Path:
    if name in FABRIC_KINDS:
        return data_folder("topologies") / "fabrics" / f"{name}.yaml"
    if name.endswith((".yaml", ".yml")) or name.startswith("fabrics/"):
        return find_file(name, "topologies", field="fabric")
    own = Path("topologies") / "fabrics" / f"{name}.yaml"
    if is_file(own):
        return own
    raise InputError(Fault("fabric", repr(name), allowed_names(FABRIC_KINDS, name)))


def _read(path: Path) -> FabricFile:
    document = read_yaml(path)
    file = validate_document(FabricFile, document, str(path))
    fields = file.fabric.model_fields_set - {"kind", "routing"}
    line = line_of(document, ["sources"])
    if (file.fabric.kind == "listed") != (file.fabric.hosts is not None):
        raise InputError(
            Fault(
                "fabric.hosts",
                "them" if file.fabric.hosts else "none",
                "hosts of a listed fabric, and of no other",
                str(path),
                line_of(document, ["fabric"]),
            )
        )
    faults = [
        Fault(f"sources.{name}", "nothing", "a source for this number", str(path), line)
        for name in sorted(fields - set(file.sources))
    ] + [
        Fault(f"sources.{name}", repr(name), allowed_names(fields, name), str(path), line)
        for name in sorted(set(file.sources) - fields)
    ]
    if faults:
        raise InputError(faults)
    return file


def _merge(file: FabricFile, overrides: FabricSpec | None) -> Fabric:
    settings = (
        {} if overrides is None else overrides.model_dump(exclude_none=True, exclude={"kind"})
    )
    own_file = overrides is file.fabric  # has its own sources
    listed = overrides or file.fabric
    lists = {"hosts", "trunks"}
    values = file.fabric.model_dump(exclude_none=True, exclude=lists) | {
        name: value for name, value in settings.items() if name not in lists
    }
    settings.pop("routing", None)  # a choice, not a number that needs a source
    if listed.kind == "fat-tree" and "radix" in settings:
        values["k"] = values["radix"] - values["radix"] % 2  # half the ports face up, half down
    return Fabric(
        kind=listed.kind,
        switch_latency_s=values.get("switch_latency", 0.0),
        cable_latency_s=values.get("cable_latency", 0.0),
        radix=values.get("radix", 64),
        oversubscription=values.get("oversubscription", 1.0),
        leaf_ports=values.get("leaf_ports"),
        hosts_per_leaf=values.get("hosts_per_leaf"),
        uplink_Bps=values.get("uplink_bandwidth"),
        k=values.get("k"),
        routing=values.get("routing", ROUTINGS_OF.get(listed.kind, ("ecmp",))[0]),
        sources={
            **file.sources,
            **({} if own_file else dict.fromkeys(settings, "given in the scenario")),
        },
        hosts=listed.hosts or (),
        trunks=listed.trunks or (),
        options={name: value for name, value in values.items() if name in OPTIONS},
    )
