"""Hardware as a graph of devices and links; `templates.build.build_topology` makes it.

The package can be called, as ``perfmodel.topology("dgx-a100", nodes=2)``: a function of that name
beside it would be hidden as soon as anything here is imported.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeGuard

if TYPE_CHECKING:
    import networkx as nx

    from perfmodel.topology.model import Topology


def build_cluster(
    node: str | Path | nx.Graph[Any],
    *,
    nodes: int = 1,
    fabric: str | Path | Mapping[str, Any] | Callable[[int, int], nx.Graph[Any]] | None = None,
    gpus_per_node: int | None = None,
) -> Topology:
    """Build a machine, or a cluster of such machines with the routing usual on its network.

    Parameters
    ----------
    node : str, Path or networkx.Graph
        Name of a node template (`perfmodel topology list`), or its file; or the graph of a whole
        machine (see `perfmodel.topology.own_graph.topology_of`).
    nodes : int
    fabric : str, Path, mapping or callable, optional
        Network between the nodes, by name or file, or its kind with what differs from the kind's
        defaults: ``{"kind": "fat-tree", "oversubscription": 4.0}``; or a function of the numbers of
        nodes and of NICs of each that returns a graph of them and of switches (see
        `perfmodel.topology.fabric.fabric_graph`). Needed for more than one node.
    gpus_per_node : int, optional
        Use only the first GPUs of each node.

    Raises
    ------
    InputError
        Unknown names, more GPUs than there are, several nodes without a fabric; every fault.

    Examples
    --------
    >>> import perfmodel
    >>> perfmodel.topology("dgx-a100", nodes=2, fabric="rail-optimised").name
    'dgx-a100 x 2'
    """
    from perfmodel.errors import changed_faults
    from perfmodel.files import validate_document
    from perfmodel.topology.graph_files import is_graph_file
    from perfmodel.topology.templates.build import build_topology, with_usual_routing
    from perfmodel.topology.templates.spec import FabricSpec

    if is_graph(node):
        return graph_alone(node, nodes=nodes, fabric=fabric, gpus_per_node=gpus_per_node)
    _check_arguments(node, fabric, nodes=nodes, gpus_per_node=gpus_per_node)
    name = str(node)
    if is_graph_file(name):
        return graph_alone(Path(name), nodes=nodes, fabric=fabric, gpus_per_node=gpus_per_node)
    names = {"hosts": "nodes", "gpus_per_host": "gpus_per_node"}
    with changed_faults(lambda each: replace(each, field=names.get(each.field, each.field))):
        stated = (
            validate_document(FabricSpec, dict(fabric)) if isinstance(fabric, Mapping) else fabric
        )
        network = with_usual_routing(name, str(stated) if isinstance(stated, Path) else stated)
        return build_topology(name, hosts=nodes, fabric=network, gpus_per_host=gpus_per_node)


def _check_arguments(node: object, fabric: object, **counts: object) -> None:
    """Refuse types that no argument has; every fault."""
    from perfmodel.errors import failed, raise_faults

    raise_faults(
        failed(
            (
                not isinstance(node, str | Path),
                "topology",
                f"a {type(node).__name__}",
                "a name such as 'dgx-a100', a path, or a NetworkX graph",
            ),
            (
                not (isinstance(fabric, str | Path | Mapping | None) or callable(fabric)),
                "fabric",
                f"a {type(fabric).__name__}",
                "a name, a path, a mapping with its 'kind', or a function that returns a graph",
            ),
            *(
                (
                    not isinstance(number, Integral | None) or isinstance(number, bool),
                    name,
                    repr(number),
                    "a whole number",
                )
                for name, number in counts.items()
            ),
        )
    )


def is_graph(machine: object) -> TypeGuard[nx.Graph[Any]]:
    """Whether something is a NetworkX graph; NetworkX is not loaded to find out."""
    networkx = sys.modules.get("networkx")
    return networkx is not None and isinstance(machine, networkx.Graph)


def graph_alone(graph: nx.Graph[Any] | Path, **arguments: Any) -> Topology:
    """The machine of a graph, or of the graph in a file, which says all of it.

    Raises `InputError`: something beside it, or what is wrong in the graph.
    """
    from perfmodel.errors import Fault, raise_faults
    from perfmodel.topology.graph_files import read_topology
    from perfmodel.topology.own_graph import topology_of

    raise_faults(
        Fault(name, repr(value), "nothing beside a graph, which says all of a machine")
        for name, value in arguments.items()
        if value not in (None, 1)
    )
    return read_topology(graph) if isinstance(graph, Path) else topology_of(graph)


class _CallablePackage(ModuleType):
    """A package that is called like `build_cluster`."""

    __call__ = staticmethod(build_cluster)

    def __repr__(self) -> str:
        return "<package 'perfmodel.topology'; perfmodel.topology('dgx-a100') builds a machine>"


_package: Any = sys.modules[__name__]
_package.__class__ = _CallablePackage
