"""Networks between hosts: their numbers, from files and from what a scenario overrides."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, allowed_names, raise_faults, refuse_if
from perfmodel.files import (
    data_folder,
    find_file,
    is_file,
    line_of,
    read_yaml,
    validate_document,
)
from perfmodel.topology.templates.spec import (
    BY_NICS,
    FABRIC_KINDS,
    ROUTINGS_OF,
    FabricFile,
    FabricSpec,
)


@dataclass(frozen=True, slots=True)
class Fabric:
    """A fabric with every number settled.

    Parameters
    ----------
    spec : FabricSpec
    sources : mapping of str to str
        Where its numbers come from, by field.
    """

    spec: FabricSpec
    sources: Mapping[str, str]

    @property
    def kind(self) -> str:
        """Its shape."""
        return self.spec.kind

    @property
    def numbers(self) -> Mapping[str, Any]:
        """Every number that it has, by its field in `FabricSpec`."""
        return {name: value for name, value in dict(self.spec).items() if value is not None}

    @property
    def down_ports(self) -> int:
        """Ports of a leaf that face hosts: as many as leave room for the uplinks."""
        if self.spec.leaf_ports is not None:
            return self.spec.leaf_ports
        taper: float = self.numbers["oversubscription"]
        ports: float = self.numbers["radix"] * (taper / (1 + taper))
        return max(1, math.floor(ports + 1e-9))


def usual_routing(kind: str, network: str) -> str:
    """How flows choose among equally short paths where nobody says.

    Switches of InfiniBand route adaptively, and NCCL asks them to: NCCL_IB_ADAPTIVE_ROUTING is 1 on
    InfiniBand and 0 on RoCE unless set (NVIDIA NCCL user guide, "Environment Variables").
    Slingshot's always do (De Sensi et al., SC 2020), so dragonflies are taken for such. Collectives
    of TPUs spread over all links of their torus or mesh (`direct_networks.SPREAD_OVER_AXES`).
    """
    adaptive = {
        "infiniband": {"leaf-spine", "rail-optimised", "fat-tree", "rail-only"},
        "ici": {"torus", "mesh"},
    }.get(network, set()) | {"dragonfly"}
    return "adaptive" if kind in adaptive else "ecmp"


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
    raise InputError(Fault("fabric", repr(name), allowed_names(FABRIC_KINDS, name) + BY_NICS))


def _read(path: Path) -> FabricFile:
    document = read_yaml(path)
    file = validate_document(FabricFile, document, str(path))
    fields = file.fabric.model_fields_set - {"kind", "routing"}
    line = line_of(document, ["sources"])
    refuse_if(
        (file.fabric.kind == "listed") != (file.fabric.hosts is not None),
        "fabric.hosts",
        "them" if file.fabric.hosts else "none",
        "hosts of a listed fabric, and of no other",
        str(path),
        line_of(document, ["fabric"]),
    )
    faults = [
        Fault(f"sources.{name}", "nothing", "a source for this number", str(path), line)
        for name in sorted(fields - set(file.sources))
    ] + [
        Fault(f"sources.{name}", repr(name), allowed_names(fields, name), str(path), line)
        for name in sorted(set(file.sources) - fields)
    ]
    raise_faults(faults)
    return file


def _merge(file: FabricFile, overrides: FabricSpec | None) -> Fabric:
    listed = overrides or file.fabric
    settings = overrides.model_dump(exclude_none=True) if overrides else {}
    values = {
        "switch_latency": 0.0,
        "cable_latency": 0.0,
        "radix": 64,
        "oversubscription": 1.0,
        "routing": ROUTINGS_OF.get(listed.kind, ("ecmp",))[0],
        **file.fabric.model_dump(exclude_none=True),
        **settings,
        "hosts": listed.hosts,
        "trunks": listed.trunks,
        # half the ports face up, half down
        **(
            {"k": settings["radix"] - settings["radix"] % 2}
            if listed.kind == "fat-tree" and "radix" in settings
            else {}
        ),
    }
    stated = [] if overrides is file.fabric else [*settings]
    own = {name: "given in the scenario" for name in stated if name not in {"kind", "routing"}}
    return Fabric(FabricSpec.model_construct(**values), {**file.sources, **own})
