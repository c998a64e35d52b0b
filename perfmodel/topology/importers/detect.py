"""Kind of a file, by its content; other kinds are refused with a reason."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Literal

from perfmodel.errors import Fault, InputError
from perfmodel.files.pasted_text import (
    clean_characters,
    clean_lines,
    read_pasted_text,
    unwrapped,
    wrapped_width,
)

Kind = Literal["nccl-topology", "nccl-graph", "topo-matrix", "ibnetdiscover"]

LARGEST_BYTES = 64 * 2**20
"""An ibnetdiscover file of 10,000 ports has 3 MB; nothing that is read here is larger than this."""

MOST_LINES = 1_500_000

WANTED = "an NCCL topology XML, the text of `nvidia-smi topo -m` or of `ibnetdiscover`"

_ROOTS = {
    "topology": "hwloc's XML (root element 'topology'): it has neither NVLinks nor what NCCL uses;"
    " run NCCL with NCCL_TOPO_DUMP_FILE=FILE instead",
    "html": "an HTML page, perhaps an error message instead of the file",
    "nvidia_smi_log": "the XML of `nvidia-smi -q -x`: it does not say how GPUs are joined; use"
    " `nvidia-smi topo -m`, or `perfmodel topology discover` on the machine",
}
_TEXTS = (
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
    (r"command not found|No devices were found|NVIDIA-SMI has failed", "an error message"),
    (r"^\s*(<!DOCTYPE|<html)", _ROOTS["html"]),
    (r"^\s*\{", "JSON"),
)


def _refusal(problem: str, file: str) -> InputError:
    return InputError(Fault("file", problem, WANTED, file))


def read_content(path: Path) -> str:
    """Read a text file of another tool, without colours, prefixes and marks of quotation.

    Raises `InputError`: unreadable, empty, too large, packed or binary.
    """
    try:
        text = clean_characters(read_pasted_text(path, LARGEST_BYTES))
    except InputError as error:
        raise _refusal(error.faults[0].found, str(path)) from None
    if not text.strip():
        raise _refusal("nothing: the file is empty", str(path))
    if text.count("\n") > MOST_LINES:
        raise _refusal(f"more than {MOST_LINES:,} lines", str(path))
    text = _joined_lines(text)
    return text if text.lstrip().startswith("<") else _embedded("\n".join(clean_lines(text)))


_PORT = re.compile(r"^\s*\[\d+\]", re.MULTILINE)


def _joined_lines(text: str) -> str:
    """XML and ports of a fabric as they were before a terminal wrapped them.

    Joined lines of XML say the same; ports must be as many as before. A matrix joins its own.
    """
    width = wrapped_width(text)
    joined = unwrapped(text, width) if width else text
    ports = len(_PORT.findall(text))
    is_xml = text.lstrip().startswith("<")
    return joined if is_xml or (ports and ports == len(_PORT.findall(joined))) else text


_ELEMENT = re.compile(r"^\s*<(system|graphs)\b", re.MULTILINE)


def _embedded(text: str) -> str:
    """XML that stands in a page or log, on its own lines; else the text."""
    begin = _ELEMENT.search(text)
    if begin is None:
        return text
    end = text.rfind(f"</{begin[1]}>")
    whole = text[begin.start() : end + len(begin[1]) + 3] if end > 0 else text[begin.start() :]
    return "\n" * text.count("\n", 0, begin.start()) + whole


def kind_of(text: str, file: str) -> Kind:
    """Return the kind of a text.

    Raises `InputError`: something else; the message says what it seems to be and what to do with
    it.
    """
    refuse = partial(_refusal, file=file)
    root = _root(text)
    if root == "system":
        return "nccl-topology"
    if root == "graphs":
        return "nccl-graph"
    if root is not None:
        raise refuse(_ROOTS.get(root.lower(), f"XML whose root element is {root[:40]!r}"))
    if _is_matrix(text):
        if _is_status_matrix(text):
            raise refuse(
                "the status matrix of `nvidia-smi topo -p2p`, which does not say how GPUs"
                " are joined: use `nvidia-smi topo -m`"
            )
        return "topo-matrix"
    if re.search(r'^(Switch|Ca|Rt)\s+\d+\s+"[SHR]-', text, re.MULTILINE):
        return "ibnetdiscover"
    for pattern, contents in _TEXTS:
        if re.search(pattern, text, re.IGNORECASE | re.MULTILINE):
            raise refuse(contents)
    first = next((line.strip() for line in text.splitlines() if line.strip()), "")
    raise refuse(f"text that begins with {first[:60]!r}")


def _root(text: str) -> str | None:
    """Name of the root element, if this is XML."""
    start = re.compile(r"\s*").match(text).end()  # type: ignore[union-attr]
    if not text.startswith("<", start):
        return None
    while text.startswith(("<?", "<!--"), start):  # by position: a slice each would copy the rest
        end = text.find("-->" if text.startswith("<!--", start) else "?>", start)
        if end < 0:
            return None
        start = re.compile(r"[> \t\n]*").match(text, end + 2).end()  # type: ignore[union-attr]
    rest = text[start : start + 1000]
    if rest.upper().startswith("<!DOCTYPE"):
        named = re.match(r"<!DOCTYPE\s+([\w:.-]+)", rest, re.IGNORECASE)
        return named[1] if named else None
    named = re.match(r"<([\w:.-]+)", rest)
    return named[1] if named else None


def _is_matrix(text: str) -> bool:
    """Whether there is a header of GPUs and a row of cells below it."""
    header = re.search(r"^[^\n\w]*GPU0[ \t]", text + "\n", re.MULTILINE)
    return bool(header and re.search(r"^[ \t]*GPU0[ \t]+(X|OK|NS|N/A)\b", text, re.MULTILINE))


def _is_status_matrix(text: str) -> bool:
    rows = re.findall(r"^[ \t]*GPU\d+((?:[ \t]+\S+)+)", text, re.MULTILINE)
    cells = {cell for row in rows for cell in row.split()} - {"X"}
    path_types = {"PIX", "PXB", "PHB", "NODE", "SYS", "SOC"}
    bonded = any(re.fullmatch(r"NV\d+", cell) for cell in cells)
    return (
        not (cells & path_types)
        and not bonded
        and bool(cells & {"OK", "NS", "CNS", "GNS", "TNS", "DR"})
    )
