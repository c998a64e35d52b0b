"""Graphs in files: NetworkX's node-link JSON, written and read, and GraphML, read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import Fault, InputError, refuse_if
from perfmodel.files import plain, read_text, read_yaml, write_json
from perfmodel.files.validate import in_file
from perfmodel.topology.composed.load import GRAPH_SUFFIXES
from perfmodel.topology.model import Topology
from perfmodel.topology.own_graph import topology_of

if TYPE_CHECKING:
    import networkx as nx


def is_graph_file(name: str) -> bool:
    """Whether a name is that of a file that holds a graph."""
    return name.lower().endswith(GRAPH_SUFFIXES)


def read_topology(path: Path) -> Topology:
    """Make a machine of the graph in a file.

    Raises `InputError`: no such file, no graph, or what is wrong in it; names the file.
    """
    with in_file(str(path)):
        graph = _read(path)
        is_own = isinstance(graph.graph, dict) and "machine" in graph.graph
        return topology_of(graph, "" if is_own else path.stem)


def _read(path: Path) -> nx.Graph[Any]:
    import networkx as nx

    file = str(path)
    if file.lower().endswith(".graphml"):
        from perfmodel.topology.importers.safe_xml import parse_xml

        text = read_text(path)
        parse_xml(text, file)  # refuses what could make a small file huge
        try:
            graph: nx.Graph[Any] = nx.parse_graphml(text, edge_key_type=str)
        except (nx.NetworkXError, KeyError, ValueError) as error:
            raise InputError(Fault("file", f"no GraphML: {error}", "a graph", file)) from None
        return graph
    document = plain(read_yaml(path))
    allowed = "node-link data, with lists of nodes and edges, as networkx.node_link_data makes it"
    keys = document.keys() if isinstance(document, dict) else ()
    links = "links" if "links" in keys else "edges"
    missing = [key for key in ("nodes", links) if key not in keys]
    refuse_if(missing, "file", f"no {' and no '.join(missing)}", allowed, file)
    try:
        return nx.node_link_graph(document, edges=links)
    except (KeyError, TypeError, AttributeError, ValueError, nx.NetworkXError) as error:
        raise InputError(
            Fault(
                "file",
                f"nodes or edges that are no mappings, or without an end: {error}",
                allowed,
                file,
            )
        ) from None


def write_graph(topology: Topology, path: Path) -> None:
    """Write every device and link of a machine as node-link JSON; `read_topology` reads it."""
    write_json(path, graph_document(topology))


def graph_document(topology: Topology) -> dict[str, Any]:
    """Return every device and link of a machine as node-link data."""
    import networkx as nx

    return dict(nx.node_link_data(topology.graph, edges="edges"))
