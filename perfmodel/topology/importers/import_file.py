"""Import a file of any kind that is known by its content; other kinds are refused with a reason."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import dropwhile
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, InputError, failed, raise_faults, refuse_if
from perfmodel.files.pasted_text import (
    MOST_LINES,
    PRINTED,
    PRINTED_PYTHON,
    clean_characters,
    clean_lines,
    is_xml,
    read_pasted_text,
    unwrapped,
    wrapped_width,
)
from perfmodel.topology.importers.ibnetdiscover import read_fabric
from perfmodel.topology.importers.imported import ImportedTopology, Kind
from perfmodel.topology.importers.nccl_topology import read_nccl
from perfmodel.topology.importers.safe_xml import Element, parse_xml
from perfmodel.topology.importers.topo_matrix import is_cell, read_matrix
from perfmodel.topology.templates.spec import device_names

WANTED = "an NCCL topology XML, the text of `nvidia-smi topo -m` or of `ibnetdiscover`"

_ROOT_KINDS: Mapping[str, Kind] = {"system": "nccl-topology", "graphs": "nccl-graph"}
_ROOTS = {
    "topology": "hwloc's XML (root element 'topology'): it has neither NVLinks nor what NCCL uses;"
    " run NCCL with NCCL_TOPO_DUMP_FILE=FILE instead",
    "html": "an HTML page, perhaps an error message instead of the file",
    "nvidia_smi_log": "the XML of `nvidia-smi -q -x`: it does not say how GPUs are joined; use"
    " `nvidia-smi topo -m`",
}
_TEXTS = (
    (PRINTED_PYTHON, PRINTED),
    (
        r"ROCm System Management|AMD SMI|\bXGMI\b",
        "what rocm-smi or amd-smi says of AMD GPUs: their links (XGMI) are not imported",
    ),
    (
        r"^Switch\s+0x[0-9a-f]+.*==\(|^CA: .*0x[0-9a-f]+.*==\(",
        "the text of iblinkinfo: use ibnetdiscover",
    ),
    (r"^perfmodel:\s*1", "a file of perfmodel's own: use it as it is"),
    (
        r"P2P Connectivity Matrix|Unidirectional P2P|Bidirectional P2P",
        "a measurement (p2pBandwidthLatencyTest): see `perfmodel calibrate`",
    ),
    (r"nvbandwidth|memcpy CE CPU", "a measurement (nvbandwidth): see `perfmodel calibrate`"),
    (
        r"#\s+out-of-place\s+in-place|nccl-tests version|# nThread \d",
        "a measurement (nccl-tests): see `perfmodel calibrate`",
    ),
    (
        r"^\s*(Machine|Package) (L#|\()",
        "the text of lstopo (hwloc), without NVLinks: use `nvidia-smi topo -m`",
    ),
    (
        r"^\W*GPU0\s+GPU1\b",
        "a matrix whose row of GPU0 does not begin with X, as that of `nvidia-smi topo -m` does",
    ),
    (r"command not found|No devices were found|NVIDIA-SMI has failed", "an error message"),
    (r"^\s*(<!DOCTYPE|<html)", _ROOTS["html"]),
    (r"^\s*\{", "JSON"),
)


def import_file(
    path: Path,
    *,
    gpu: str | None = None,
    template: str | None = None,
    graph: Path | None = None,
) -> ImportedTopology:
    """Read a description of hardware that some other tool wrote.

    Parameters
    ----------
    path : Path
        An NCCL topology XML, the text of ``nvidia-smi topo -m`` or of ``ibnetdiscover``; its
        kind is found from the content.
    gpu : str, optional
        Model of the GPUs, where the file does not say; any usual spelling.
    template : str, optional
        Template (name or path) from which the rest is completed.
    graph : Path, optional
        An ``NCCL_GRAPH_DUMP_FILE`` of the same machine: its channels are kept.

    Raises
    ------
    InputError
        Another kind of file (the message says which), or one that is wrong; every fault.
    """
    text = read_content(path)
    kind = kind_of(text, str(path))
    refuse_if(
        kind == "nccl-graph",
        "file",
        "an NCCL graph (channels): it does not say what joins the devices",
        "a topology (NCCL_TOPO_DUMP_FILE), with this beside it as --graph",
        str(path),
    )
    if kind == "ibnetdiscover":
        raise_faults(
            Fault(name, repr(str(value)), "nothing: a fabric has no GPUs")
            for name, value in {"gpu": gpu, "template": template, "graph": graph}.items()
            if value is not None
        )
        return read_fabric(text, str(path))
    read = read_nccl if kind == "nccl-topology" else read_matrix
    imported = read(text, str(path), gpu=gpu, template=template)
    return imported if graph is None else _with_graph(imported, graph)


# ---------------------------------------------------------------- the text


def _refusal(problem: str, file: str) -> InputError:
    return InputError(Fault("file", problem, WANTED, file))


def read_content(path: Path) -> str:
    """Read a text file of another tool, without colours, prefixes and marks of quotation.

    Raises `InputError`: unreadable, empty, too large, packed or binary.
    """
    try:
        text = clean_characters(read_pasted_text(path))
    except InputError as error:
        raise _refusal(error.faults[0].found, str(path)) from None
    refuse_if(not text.strip(), "file", "nothing: the file is empty", WANTED, str(path))
    refuse_if(
        text.count("\n") > MOST_LINES,
        "file",
        f"more than {MOST_LINES:,} lines",
        WANTED,
        str(path),
    )
    text = _joined_lines(text)
    if is_xml(text):  # with what is printed behind it
        end = max(text.rfind("</system>"), text.rfind("</graphs>"))
        return text if end < 0 else text[: text.index(">", end) + 1]
    lines = clean_lines(text)
    return _embedded("\n".join(_plain_table(lines) if "GPU" in text else lines))


_SPELLED = re.compile(r"\bGPU (\d+)(?=\s|$)")


def _plain_table(lines: Sequence[str]) -> Iterator[str]:
    """Yield the lines of a table with its devices first, as nvidia-smi prints it.

    Pages have a word in the corner, spell GPU0 as two words, or put affinities before devices.
    """
    moved: list[str] = []
    for line in lines:
        spelled = _SPELLED.sub(r"GPU\1", line)
        first, *words = spelled.split() or [""]
        if first != "GPU0" and "GPU0" in words[:5] and not is_cell(words[0]):
            before = {first, *words[: words.index("GPU0")]}
            moved = [f"{word} Affinity" for word in ("CPU", "NUMA") if word in before]
            yield "\t".join(["", *words[words.index("GPU0") :], *moved])
        elif moved and (
            cells := list(dropwhile(lambda word: word == "N/A" or not is_cell(word), words))
        ):
            yield "\t".join([first, *cells, *words[: -len(cells)]])
        else:
            yield spelled


_PORT = re.compile(r"^\s*\[\d+\]", re.MULTILINE)


def _joined_lines(text: str) -> str:
    """XML and ports of a fabric as they were before a terminal wrapped them.

    Joined lines of XML say the same; ports must be as many as before. A matrix joins its own.
    """
    width = wrapped_width(text)
    joined = unwrapped(text, width) if width else text
    ports = len(_PORT.findall(text))
    return joined if is_xml(text) or (ports and ports == len(_PORT.findall(joined))) else text


_COMMENT = r"<!--(?:(?!-->)[\s\S]){0,20000}-->"
_ELEMENT = re.compile(rf"^\s*(?:{_COMMENT}\s*)*<(system|graphs)\b", re.MULTILINE)
"""Comments before the root say which machine it is."""


def _embedded(text: str) -> str:
    """XML that stands in a page or log, on its own lines; else the text."""
    begin = _ELEMENT.search(text)
    if begin is None:
        return text
    end = text.rfind(f"</{begin[1]}>")
    whole = text[begin.start() : end + len(begin[1]) + 3 if end > 0 else None]
    return "\n" * text.count("\n", 0, begin.start()) + whole


# ---------------------------------------------------------------- its kind


def kind_of(text: str, file: str) -> Kind:
    """Return the kind of a text.

    Raises `InputError`: something else; the message says what it seems to be and what to do with
    it.
    """
    refuse = partial(_refusal, file=file)
    root = _root(text)
    if root is not None and root in _ROOT_KINDS:
        return _ROOT_KINDS[root]
    if root is not None:
        raise refuse(_ROOTS.get(root.lower(), f"XML whose root element is {root[:40]!r}"))
    if _is_matrix(text):
        refuse_if(
            _is_status_matrix(text),
            "file",
            "the status matrix of `nvidia-smi topo -p2p`, which does not say how GPUs are joined:"
            " use `nvidia-smi topo -m`",
            WANTED,
            file,
        )
        return "topo-matrix"
    if re.search(r'^(Switch|Ca|Rt)\s+\d+\s+"[SHR]-', text, re.MULTILINE):
        return "ibnetdiscover"
    flags = re.IGNORECASE | re.MULTILINE
    seems = (contents for pattern, contents in _TEXTS if re.search(pattern, text, flags))
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    raise refuse(next(seems, f"text that begins with {first[:60]!r}"))


def _root(text: str) -> str | None:
    """Name of the root element, if this is XML."""
    start = len(text) - len(text.lstrip())
    while text.startswith(("<?", "<!--"), start):  # by position: a slice each would copy the rest
        end = text.find("-->" if text.startswith("<!--", start) else "?>", start)
        if end < 0:
            return None
        start = re.compile(r"[> \t\n]*").match(text, end + 2).end()  # type: ignore[union-attr]
    named = re.match(r"<(?:!DOCTYPE\s+)?([\w:.-]+)", text[start : start + 1000], re.IGNORECASE)
    return named[1] if named else None


def _is_matrix(text: str) -> bool:
    """Whether there is a header of GPUs and a row of cells below it."""
    header = re.search(r"^[^\n\w]*GPU0[ \t]", text + "\n", re.MULTILINE)
    return bool(header and re.search(r"^[ \t]*GPU0[ \t]+(X|OK|NS|N/A)\b", text, re.MULTILINE))


def _is_status_matrix(text: str) -> bool:
    cells = " ".join(re.findall(r"^[ \t]*GPU\d+((?:[ \t]+\S+)+)", text, re.MULTILINE))
    is_path = re.search(r"(?<!\S)(?:PIX|PXB|PHB|NODE|SYS|SOC|NV\d+)(?!\S)", cells)
    return is_path is None and bool(re.search(r"(?<!\S)(?:OK|[CGT]?NS|DR)(?!\S)", cells))


# ---------------------------------------------------------------- channels


_PATTERNS = {0: "ring", 1: "tree", 2: "collnet_chain", 3: "nvls", 4: "collnet_direct"}
"""By the id of a graph: NCCL 2.30.7 ``src/include/graph.h`` (NCCL_ALGO_*)."""

_Devices = Mapping[str, tuple[str, ...]]
"""GPUs and NICs of a host, by their kind."""


def _with_graph(imported: ImportedTopology, path: Path) -> ImportedTopology:
    """Add the channels of NCCL's graphs (`NCCL_GRAPH_DUMP_FILE`) to a host that was imported.

    Raises `InputError`: no graph, or one that names devices the host has not.
    """
    file, node, text = str(path), imported.node(), read_content(path)
    refuse_if(
        (kind := kind_of(text, file)) != "nccl-graph",
        "graph",
        f"a file of kind {kind}",
        "an NCCL graph (root element 'graphs')",
        file,
    )
    root, _ = parse_xml(text, file)
    devices = {kind: device_names(node, kind) for kind in ("gpu", "nic")}
    faults: list[Fault] = []
    rows = (_graph(graph, devices, path, faults) for graph in root.all("graph"))
    graphs = [row for row in rows if row]
    raise_faults(dict.fromkeys(faults))
    refuse_if(not graphs, "graph", "no channels", "a graph with channels", file)
    counted = ", ".join(f"{len(row['channels'])} of {row['pattern']}" for row in graphs)
    return replace(
        imported,
        document={**imported.document, "graphs": graphs},
        title=f"{imported.title} Channels from {path.name}: {counted}.",
    )


def _graph(
    graph: Element, devices: _Devices, path: Path, faults: list[Fault]
) -> dict[str, Any] | None:
    channels, pattern = graph.all("channel"), graph.number("id")
    if not channels or pattern is None or int(pattern) not in _PATTERNS:
        return None
    speeds = [graph.number(f"speed{where}") or 0.0 for where in ("intra", "inter")]
    if min(speeds) <= 0:
        faults.append(
            Fault("graph.speedintra", "no speed", "more than 0 GB/s", str(path), graph.line)
        )
        return None
    return {
        "pattern": _PATTERNS[int(pattern)],
        "intra": f"{speeds[0]:g} GB/s",
        "inter": f"{speeds[1]:g} GB/s",
        "type_intra": graph.get("typeintra") or "LOC",
        "type_inter": graph.get("typeinter") or "LOC",
        "same_channels": (graph.get("samechannels") or "1") != "0",
        "source": f"{path.name}, line {graph.line}",
        "channels": [_channel(channel, devices, str(path), faults) for channel in channels],
    }


def _channel(channel: Element, devices: _Devices, file: str, faults: list[Fault]) -> dict[str, Any]:
    gpus = [_device(gpu, "gpu", devices, file, faults) for gpu in channel.all("gpu")]
    nets = [_device(net, "nic", devices, file, faults) for net in channel.all("net")]
    faults += failed(
        (not gpus, "channel", "no GPU", "the GPUs it passes"), file=file, line=channel.line
    )
    ends = {"enter": nets[0], "leave": nets[-1]} if nets else {}
    return {"gpus": [gpu for gpu in gpus if gpu], **ends}


def _device(element: Element, kind: str, devices: _Devices, file: str, faults: list[Fault]) -> str:
    """Name of a device by its number, which is decimal or, in newer versions, hexadecimal."""
    text, name = element.get("dev") or "", ""
    try:
        name = f"{kind}{int(text, 16 if text.lower().startswith('0x') else 10)}"
    except ValueError:
        found, allowed = repr(text), "a number"
    else:
        if name in devices[kind]:
            return name
        found = f"{text}, which the topology has not"
        allowed = f"one of its {len(devices[kind])} {kind}s"
    faults.append(Fault(f"{element.tag}.dev", found, allowed, file, element.line))
    return name
