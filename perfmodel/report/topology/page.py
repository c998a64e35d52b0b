"""A machine or a cluster as one self-contained HTML page."""

from __future__ import annotations

import re
from collections.abc import Set as AbstractSet
from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.report.common.document import (
    Definitions,
    Figure,
    Table,
    for_ranks_of,
    has_processes,
    header,
    section,
)
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.topology.figure import draw_topology, topology_caption
from perfmodel.report.topology.summary import link_rows, network_text, path_matrix, rate_lines
from perfmodel.topology.model import Topology

_MOST_COLUMNS = 16
"""Devices of a host of which the page lists how each reaches each."""


def check_page_name(path: Path) -> None:
    """Raise `InputError` unless a file's name ends as that of a page."""
    if path.suffix.lower() not in {".html", ".htm"}:
        raise InputError(Fault("-o", repr(path.name), "a file name that ends in '.html'"))


def write_topology(topology: Topology, path: Path) -> Path:
    """Write the picture, its links and the sources of their numbers as one HTML page.

    Raises `InputError`: the file's name does not end in ``.html``, or it cannot be written.
    """
    check_page_name(path)
    return write_report_files(path.parent, {path.name: topology_html(topology)})


def topology_html(topology: Topology) -> str:
    """Build the page as one string."""
    (names, rows), paths = path_matrix(topology), None
    if len(names) <= _MOST_COLUMNS:
        table = Table(("", *names), [(name, *row) for name, row in zip(names, rows, strict=True)])
        said = _paths_text({cell for row in rows for cell in row})
        paths = section("Paths inside a host", said, table)
    device = "process " if has_processes(topology) else "gpu "
    sources = {
        re.sub("^gpu ", device, name): re.sub(
            r"(?<=\d) us\b", f" {chr(0xB5)}s", text[:1].upper() + text[1:]
        )
        for name, text in topology.sources.items()
    }
    shown = (
        section(
            "Machine and links",
            f"{topology_caption(topology)}. Rates are usable ones, each way.",
            Figure(draw_topology(topology), "topology", f"Picture of {topology.name}"),
        ),
        section(
            "Links",
            " ".join(f"{line[:1].upper()}{line[1:]}." for line in rate_lines(topology)),
            Table((">links", "kind", ">each way", ">latency"), list(link_rows(topology))),
        ),
        paths,
    )
    return render_html(
        topology.name,
        [
            header(network_text(topology), topology.name, []),
            *for_ranks_of(topology, shown),
            section("Where the numbers come from", "", Definitions(sources)),
        ],
    )


_PATH_TYPES = {
    "PIX": "one PCIe switch",
    "PXB": "several PCIe switches",
    "PHB": "the CPU's host bridge",
    "NODE": "several host bridges of one CPU",
    "SYS": "from CPU to CPU",
}
"""What each path type that ``nvidia-smi topo -m`` names means."""


def _paths_text(cells: AbstractSet[str]) -> str:
    """Explain the path types of a machine, and no others."""
    lanes = next((cell for cell in sorted(cells) if cell.startswith("NV")), "NV")
    explained = {
        lanes: f"{lanes[2:]} {'lane' if lanes == 'NV1' else 'lanes'} of NVLink",
        **_PATH_TYPES,
        "XGMI": "AMD's Infinity Fabric between GPUs",
    }
    texts = [f"{kind}: {text}" for kind, text in explained.items() if kind in cells]
    return f"As nvidia-smi topo -m names them: {'. '.join(texts)}." if texts else ""
