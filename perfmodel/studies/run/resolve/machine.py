"""From the cluster and library sections of a scenario to a Machine."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from perfmodel.errors import Fault, InputError
from perfmodel.files import validate_document
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import CommLibrary, load_library
from perfmodel.library.settings import LibrarySettings, settings_of
from perfmodel.scenario import ClusterSize, LibrarySection, Scenario
from perfmodel.studies.run.resolve.limits import check_cluster_size
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.spec import FabricSpec, NodeSpec

_FIELDS = {
    "topology": "cluster.node",
    "hosts": "cluster.nodes",
    "gpus_per_host": "cluster.gpus_per_node",
    "fabric": "cluster.fabric",
    "library": "library.name",
    "protocol": "library.protocol",
    "env.NCCL_ALGO": "library.algorithm",
    "env.NCCL_PROTO": "library.protocol",
    "profile": "profile",
    "precision": "compute.precision",
    "batch": "training.batch_per_gpu",
    "fidelity": "fidelity",
}
"""Fields of the scenario behind the parameters of the functions that read them."""


def machine(
    scenario: Scenario, node: NodeSpec, size: ClusterSize, hosts: int | None = None
) -> Machine:
    """Build the cluster at one size, with the library that drives it.

    Parameters
    ----------
    hosts : int, optional
        Nodes on the network; default: as many as the job has.

    Raises
    ------
    InputError
        Names file, line and field of the scenario.
    """
    try:
        check_cluster_size((hosts or size.nodes) * size.gpus_per_node, "cluster.nodes")
    except InputError as error:
        raise relocated(scenario, error, "cluster.nodes") from None
    fabric = _fabric(scenario)
    try:
        topology = build_topology(
            node, hosts=hosts or size.nodes, fabric=fabric, gpus_per_host=size.gpus_per_node
        )
    except InputError as error:
        raise relocated(scenario, error, "cluster") from None
    found = make_machine(
        topology,
        library(scenario.library),
        settings=settings(scenario),
        channels=scenario.library.channels,
    )
    return replace(found, whole=True) if scenario.events else found


def _fabric(scenario: Scenario) -> FabricSpec | str | None:
    """The network between nodes: a shape with what differs, or the path of a fabric's file."""
    section = scenario.cluster.fabric
    if section is None:
        return None
    given = section.model_dump(exclude_none=True)
    if section.kind.endswith((".yaml", ".yml")):
        beside = sorted(given.keys() - {"kind"})
        if beside:
            found = f"{', '.join(beside)} beside the file {section.kind!r}"
            allowed = "a file alone: it says all of its fabric"
            raise InputError(scenario.origin.fault("cluster.fabric", found, allowed))
        return scenario.origin.beside("cluster.fabric", section.kind)
    try:
        return validate_document(FabricSpec, given)
    except InputError as error:
        raise relocated(scenario, error, "cluster.fabric") from None


def settings(scenario: Scenario) -> LibrarySettings:
    """Return what a scenario tells the library.

    Raises
    ------
    InputError
        An unknown variable or value, or NCCL's settings for another library; names line and field.
    """
    section = scenario.library
    env = dict(section.env)
    if section.name != "nccl":
        faults = list(_for_nccl_only(scenario))
        if faults:
            raise InputError(faults)
    else:
        words = {"NCCL_ALGO": section.algorithm, "NCCL_PROTO": section.protocol}
        env = {name: word for name, word in words.items() if word != "auto"} | env
    try:
        return settings_of(
            version=section.version,
            env=env,
            one_process=section.processes == "per-host",
            fields=("library.version", "library.env"),
        )
    except InputError as error:
        raise relocated(scenario, error, "library") from None


def _for_nccl_only(scenario: Scenario) -> Iterator[Fault]:
    """NCCL's settings, where the library is another one."""
    section = scenario.library
    given = {
        "algorithm": None if section.algorithm in {"auto", "ring"} else section.algorithm,
        "version": section.version,
        "env": next(iter(section.env), None),
    }
    for name, value in given.items():
        if value is not None:
            allowed = f"nothing for {section.name}, only for name: nccl"
            yield scenario.origin.fault(f"library.{name}", repr(value), allowed)


def library(section: LibrarySection) -> CommLibrary:
    """Return the library with what the scenario overrides."""
    loaded = load_library(section.name)
    protocols = {
        name: protocol.model_copy(update={"credits": section.credits or protocol.credits})
        for name, protocol in loaded.protocols.items()
        if section.protocol in {"auto", name}
    }
    given = {"workers": section.workers, "host_step": section.host_step}
    return loaded.model_copy(
        update={
            "protocols": protocols or loaded.protocols,
            **{name: value for name, value in given.items() if value is not None},
        }
    )


def relocated(
    scenario: Scenario,
    error: InputError,
    section: str,
    also: Mapping[str, str] = MappingProxyType({}),
) -> InputError:
    """Return an error from a lower layer that names the field of the scenario it is about.

    Faults of a file of its own (a node template, a model file) keep their place; those that name a
    field of the scenario already are given its line.
    """
    fields = (
        _FIELDS
        | {"model": "model.name" if scenario.model.file is None else "model.file"}
        | dict(also)
    )
    return InputError(
        f
        if f.file or f.field.startswith("--set ")
        else scenario.origin.fault(
            f.field if _is_ours(f.field) else fields.get(f.field, f"{section}.{f.field}"),
            f.found,
            f.allowed,
        )
        for f in error.faults
    )


def _is_ours(field: str) -> bool:
    """Whether a dotted field is one of a scenario's, and not of a lower layer's parameters."""
    section, dot, _ = field.partition(".")
    return bool(dot) and section in Scenario.model_fields
