"""NCCL's graphs (`NCCL_GRAPH_DUMP_FILE`): the channels of a host."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.topology.importers.detect import kind_of, read_content
from perfmodel.topology.importers.imported import ImportedTopology
from perfmodel.topology.importers.nccl_xml.safe_xml import Element, parse_xml
from perfmodel.topology.templates.name_ranges import expand_pattern

_PATTERNS = {0: "ring", 1: "tree", 2: "collnet_chain", 3: "nvls", 4: "collnet_direct"}
"""By the id of a graph: NCCL 2.30.7 ``src/include/graph.h`` (NCCL_ALGO_*)."""


def with_graph(imported: ImportedTopology, path: Path) -> ImportedTopology:
    """Add the channels of a dump to a host that was imported.

    Raises `InputError`: no graph, or one that names devices the host has not.
    """
    file = str(path)
    text = read_content(path)
    kind = kind_of(text, file)
    if kind != "nccl-graph":
        raise InputError(
            Fault("graph", f"a file of kind {kind}", "an NCCL graph (root element 'graphs')", file)
        )
    root, _ = parse_xml(text, file)
    node = imported.node()
    kinds = {name: d.kind for d in node.nodes for name in expand_pattern(d.id)}
    faults: list[Fault] = []
    rows = [_graph(graph, kinds, Path(file).name, file, faults) for graph in root.all("graph")]
    graphs = [row for row in rows if row is not None]
    if not graphs and not faults:
        faults.append(Fault("graph", "no channels", "a graph with channels", file))
    if faults:
        raise InputError(dict.fromkeys(faults))
    counted = ", ".join(f"{len(row['channels'])} of {row['pattern']}" for row in graphs)
    return replace(
        imported,
        document={**imported.document, "graphs": graphs},
        title=f"{imported.title} Channels from {Path(file).name}: {counted}.",
    )


def _graph(
    graph: Element, kinds: Mapping[str, str], name: str, file: str, faults: list[Fault]
) -> dict[str, Any] | None:
    channels = graph.all("channel")
    pattern = graph.number("id")
    if not channels or pattern is None or int(pattern) not in _PATTERNS:
        return None
    speeds = [graph.number(f"speed{where}") or 0.0 for where in ("intra", "inter")]
    if min(speeds) <= 0:
        faults.append(Fault("graph.speedintra", "no speed", "more than 0 GB/s", file, graph.line))
        return None
    return {
        "pattern": _PATTERNS[int(pattern)],
        "intra": f"{speeds[0]:g} GB/s",
        "inter": f"{speeds[1]:g} GB/s",
        "type_intra": graph.get("typeintra") or "LOC",
        "type_inter": graph.get("typeinter") or "LOC",
        "same_channels": (graph.get("samechannels") or "1") != "0",
        "source": f"{name}, line {graph.line}",
        "channels": [_channel(channel, kinds, file, faults) for channel in channels],
    }


def _channel(
    channel: Element, kinds: Mapping[str, str], file: str, faults: list[Fault]
) -> dict[str, Any]:
    gpus = [_device(gpu, "gpu", kinds, file, faults) for gpu in channel.all("gpu")]
    nets = [_device(net, "nic", kinds, file, faults) for net in channel.all("net")]
    if not gpus:
        faults.append(Fault("channel", "no GPU", "the GPUs it passes", file, channel.line))
    row: dict[str, Any] = {"gpus": [gpu for gpu in gpus if gpu]}
    if nets:
        row |= {"enter": nets[0], "leave": nets[-1]}
    return row


def _device(
    element: Element, stem: str, kinds: Mapping[str, str], file: str, faults: list[Fault]
) -> str:
    """Name of a device by its number, which is decimal or, in newer versions, hexadecimal."""
    text = element.get("dev") or ""
    try:
        name = f"{stem}{int(text, 16 if text.lower().startswith('0x') else 10)}"
    except ValueError:
        faults.append(Fault(f"{element.tag}.dev", repr(text), "a number", file, element.line))
        return ""
    if kinds.get(name) != stem:
        devices = sorted(n for n, kind in kinds.items() if kind == stem)
        faults.append(
            Fault(
                f"{element.tag}.dev",
                f"{text}, which the topology has not",
                f"one of its {len(devices)} {stem}s",
                file,
                element.line,
            )
        )
    return name
