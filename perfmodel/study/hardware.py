"""From the cluster and library sections of a scenario to a Machine."""

from __future__ import annotations

from perfmodel.errors import InputError
from perfmodel.files import validate
from perfmodel.library.carry import Machine
from perfmodel.library.model import Library, load_library
from perfmodel.scenario import LibrarySection, Scenario, Size
from perfmodel.study.limits import check_cluster_size
from perfmodel.topology.build import build
from perfmodel.topology.spec import FabricSpec, NodeSpec

_FIELDS = {
    "topology": "cluster.node",
    "hosts": "cluster.nodes",
    "gpus_per_host": "cluster.gpus_per_node",
    "fabric": "cluster.fabric",
    "library": "library.name",
    "protocol": "library.protocol",
    "profile": "profile",
    "precision": "compute.precision",
    "batch": "training.batch_per_gpu",
    "fidelity": "fidelity",
}
"""Fields of the scenario behind the parameters of the functions that read them."""


def machine(scenario: Scenario, node: NodeSpec, size: Size) -> Machine:
    """Build the cluster at one size, with the library that drives it.

    Raises
    ------
    InputError
        Names file, line and field of the scenario.
    """
    try:
        check_cluster_size(size.gpus, "cluster.nodes")
    except InputError as error:
        raise relocated(scenario, error, "cluster.nodes") from None
    section = scenario.cluster.fabric
    fabric = None
    if section is not None:
        try:
            fabric = validate(FabricSpec, section.model_dump(exclude_none=True))
        except InputError as error:
            raise relocated(scenario, error, "cluster.fabric") from None
    try:
        topology = build(node, hosts=size.nodes, fabric=fabric, gpus_per_host=size.gpus_per_node)
    except InputError as error:
        raise relocated(scenario, error, "cluster") from None
    return Machine(topology, library(scenario.library), scenario.library.channels)


def library(section: LibrarySection) -> Library:
    """Return the library with what the scenario overrides."""
    loaded = load_library(section.name)
    protocols = {
        name: protocol.model_copy(update={"credits": section.credits or protocol.credits})
        for name, protocol in loaded.protocols.items()
        if section.protocol in {"auto", name}
    }
    return loaded.model_copy(update={"protocols": protocols or loaded.protocols})


def relocated(scenario: Scenario, error: InputError, section: str) -> InputError:
    """Return an error from a lower layer that names the field of the scenario it is about.

    Faults of a file of its own (a node template, a model file) keep their place.
    """
    fields = _FIELDS | {"model": "model.name" if scenario.model.file is None else "model.file"}
    return InputError(
        f
        if f.file
        else scenario.origin.fault(fields.get(f.field, f"{section}.{f.field}"), f.found, f.allowed)
        for f in error.faults
    )
