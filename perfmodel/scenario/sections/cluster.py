"""Section ``cluster``: nodes, the network between them, placement."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from perfmodel.files import FileModel, Nodes, Parts
from perfmodel.scenario.sections.base import Index, Name, OrName, Placement, expand_name
from perfmodel.scenario.sections.node import Node


class FabricSection(FileModel):
    """The network between nodes: a kind, and what differs from that kind's defaults."""

    kind: Name = Field(description="see `perfmodel topology list`")
    oversubscription: Annotated[float, Field(strict=True, ge=1, le=1e6)] | None = Field(
        default=None, description="bandwidth into a leaf switch over bandwidth out of it"
    )
    hosts_per_leaf: Parts | None = None
    radix: Parts | None = Field(default=None, description="ports of one switch")
    routing: (
        Literal["ecmp", "rail", "adaptive", "dimension-ordered", "minimal", "valiant"] | None
    ) = Field(
        default=None,
        description="how flows choose among ways; default: the fabric's, else adaptive for leaves "
        "and spines on InfiniBand and on a dragonfly",
    )
    dims: tuple[Parts, ...] | None = Field(
        default=None, description="routers along each dimension of a torus, mesh or butterfly"
    )
    dimensions: Parts | None = Field(default=None, description="of a hypercube")
    groups: Parts | None = Field(default=None, description="groups of a dragonfly")
    routers_per_group: Parts | None = None
    hosts_per_router: Parts | None = None
    trunk_cables: Parts | None = Field(
        default=None, description="parallel cables between two neighbouring routers"
    )
    global_cables: Parts | None = Field(
        default=None, description="cables between each two groups of a dragonfly"
    )


Fabric = Annotated[FabricSection, expand_name("kind"), OrName()]
"""A network between nodes, or its kind alone."""


class MixedSection(FileModel):
    """Nodes of this job with another GPU; their links stay those of `cluster.node`."""

    nodes: Annotated[tuple[Index, ...], Field(min_length=1)] = Field(
        description="nodes of this job, counted from 0"
    )
    gpu: Name = Field(description="a GPU of `topologies/gpus.yaml`, such as 'v100-sxm2-32gb'")


class ClusterSection(FileModel):
    """The hardware: a node template, how many of them, and the network between them."""

    node: Node = Field(
        description="a node template by name or file (see `perfmodel topology list`), in words "
        "such as '2 x rtx-4090, 10 GbE', or a host put together"
    )
    nodes: Nodes = Field(default=1, description="nodes of this job")
    gpus_per_node: Parts | None = Field(
        default=None, description="how many of a node's GPUs are used"
    )
    fabric: Fabric | None = None
    pool: Nodes | None = Field(
        default=None,
        description="nodes on the network, those of this job among them; default: what `nodes` "
        "and `jobs` need",
    )
    placement: Placement = "packed"
    mixed: tuple[MixedSection, ...] = ()
    graph: Name | None = Field(
        default=None,
        description="a NetworkX graph of the whole machine (node-link JSON or GraphML), in place "
        "of node, nodes and fabric",
    )

    @model_validator(mode="before")
    @classmethod
    def _name_graph(cls, stated: Any) -> Any:
        """Let the graph stand for the node."""
        if isinstance(stated, Mapping) and stated.get("graph") is not None:
            return {"node": stated["graph"], **stated}
        return stated

    @model_validator(mode="after")
    def _check_graph(self) -> ClusterSection:
        if self.graph is None:
            return self
        own = {"graph"} if self.node != self.graph else {"graph", "node"}
        others = ", ".join(sorted(self.model_fields_set - own))
        if others:
            raise ValueError(f"graph alone, which says all of the machine, without {others}")
        return self
