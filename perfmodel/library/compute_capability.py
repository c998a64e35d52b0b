"""Compute capability of GPUs, by which NCCL decides what they can do."""

from perfmodel.files import shipped
from perfmodel.files.spec import ShippedTable
from perfmodel.topology.model import Topology

UNKNOWN = 80
"""Capability of a generation that we do not know, and of GPUs that are not NVIDIA's."""


class ComputeCapabilities(ShippedTable):
    """The table of compute capabilities, as ``compute_capability.yaml`` has it."""

    source: str
    generations: dict[str, int]
    consumer: dict[str, int]
    consumer_names: tuple[str, ...]


compute_capabilities = shipped(ComputeCapabilities, __file__, "compute_capability.yaml")
"""Reads the table of compute capabilities."""


def capability_of(topology: Topology) -> int:
    """Compute capability of the GPUs, 90 for sm90; `UNKNOWN` for generations that we do not know.

    Some chips of a generation differ from its data-centre ones: they are recognised by name.
    """
    table, generation = compute_capabilities(), topology.gpu.generation
    usual = table.generations.get(generation, UNKNOWN)
    is_consumer = topology.gpu.name.lower().split("-")[0] in table.consumer_names
    return table.consumer.get(generation, usual) if is_consumer else usual
