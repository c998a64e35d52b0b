"""From the cluster and library sections of a scenario to a Machine."""

from __future__ import annotations

from perfmodel.errors import InputError
from perfmodel.library.carry import Machine
from perfmodel.library.model import Library, load_library
from perfmodel.scenario import LibrarySection, Scenario, Size
from perfmodel.topology.build import build
from perfmodel.topology.spec import FabricSpec, NodeSpec


def machine(scenario: Scenario, node: NodeSpec, size: Size) -> Machine:
    """Build the cluster at one size, with the library that drives it.

    Raises
    ------
    InputError
        Names file, line and field of the scenario.
    """
    section = scenario.cluster.fabric
    fabric = None
    if section is not None:
        fabric = FabricSpec.model_validate(section.model_dump(exclude_none=True))
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
    """Return an error from a lower layer that names the section of the scenario it is about."""
    file, line = scenario.locate(section)
    return InputError(
        [
            type(f)(
                field=f.field if f.file else f"{section}.{f.field}",
                found=f.found,
                allowed=f.allowed,
                file=f.file or file,
                line=f.line if f.file else line,
            )
            for f in error.faults
        ]
    )
