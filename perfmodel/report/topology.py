"""A machine or a cluster in plain text, and as one self-contained HTML page."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path

from perfmodel.errors import TopologyError, refuse_if
from perfmodel.report.common.document import (
    Definitions,
    Figure,
    Table,
    for_ranks_of,
    has_processes,
    header,
    in_words_of,
    section,
)
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.topology_figure import draw_topology, topology_caption
from perfmodel.topology.model import Topology
from perfmodel.topology.routing.router import Router
from perfmodel.units import format_bandwidth, format_bytes, format_time

_MOST_COLUMNS = 16
"""Devices of a host of which the page lists how each reaches each."""

_PLURALS = {
    "gpu": "GPUs",
    "nvswitch": "NVSwitches",
    "pcie_switch": "PCIe switches",
    "cpu": "CPUs (NUMA)",
    "memory": "host memories",
    "nic": "NICs",
    "switch": "network switches",
}


def summary(topology: Topology) -> list[str]:
    """Describe a topology in lines of plain text.

    Counts by kind, links with bandwidth per direction and latency, the path types of one host as
    ``nvidia-smi topo -m`` prints them, how many bytes per second leave a host, and how much the
    fabric is oversubscribed.
    """
    gpu, of_cpu = topology.gpu, has_processes(topology)
    hosts = "1 host" if topology.hosts == 1 else f"{topology.hosts} hosts"
    memory = f"{format_bytes(gpu.memory_bytes)} at {format_bandwidth(gpu.memory_Bps)}"
    counts = Counter[str](device.kind for device in topology.devices.values())
    words = {**_PLURALS, "gpu": "processes"} if of_cpu else _PLURALS
    return [
        f"{topology.name}: {len(topology.ranks)} ranks on {hosts}, {network_text(topology)}",
        f"{'Process' if of_cpu else 'GPU'} {gpu.name}: {memory}",
        "",
        *(f"{counts[kind]:>8}  {word}" for kind, word in words.items() if counts[kind]),
        "",
        f"{'links':>8}  {'kind':<11} {'per direction':>14} {'latency':>10}",
        *(
            f"{count:>8}  {kind:<11} {rate:>14} {latency:>10}"
            for count, kind, rate, latency in link_rows(topology)
        ),
        "",
        *_matrix_lines(topology),
        "",
        *rate_lines(topology),
    ]


def network_text(topology: Topology) -> str:
    """Name the network between hosts."""
    return "no network" if topology.fabric == "none" else f"network {topology.fabric}"


def path_matrix(topology: Topology) -> tuple[list[str], list[list[str]]]:
    """Path types of one host, as ``nvidia-smi topo -m`` prints them.

    Returns the names, GPUs and then NICs, and the path type from each of the first sixteen to each:
    "X" on the diagonal, "-" where nothing connects them, "NV12" for 12 lanes of NVLink, switched or
    direct.
    """
    router = Router(topology)
    names = [
        name
        for kind in ("gpu", "nic")
        for name, device in topology.devices.items()
        if device.host == 0 and device.kind == kind
    ]
    rows = [
        ["X" if a == b else _cell(topology, router, a, b) for b in names]
        for a in names[:_MOST_COLUMNS]
    ]
    return [topology.devices[name].local for name in names], rows


def _cell(topology: Topology, router: Router, src: str, dst: str) -> str:
    try:
        kind, arcs = router.path_type(src, dst), router.route(src, dst)
    except TopologyError:
        return "-"
    if kind != "NVL":
        return kind
    return in_words_of(topology, f"NV{min(topology.arcs.lanes[arc] for arc in arcs)}")


def link_rows(topology: Topology) -> Iterator[tuple[str, str, str, str]]:
    """List links that are alike: how many, kind, rate per direction, latency."""
    arcs = topology.arcs
    alike = Counter(
        zip(arcs.kinds, arcs.bandwidth_Bps.tolist(), arcs.latency_s.tolist(), strict=True)
    )
    return (
        (
            f"{count / 2:g}",
            in_words_of(topology, kind),
            format_bandwidth(rate_Bps),
            format_time(latency_s),
        )
        for (kind, rate_Bps, latency_s), count in sorted(alike.items())
    )


def _matrix_lines(topology: Topology) -> Iterator[str]:
    names, rows = path_matrix(topology)
    width = max(len(name) for name in names) + 1
    for name, row in zip(["", *names], [names, *rows], strict=False):
        yield f"{name:<{width}}" + "".join(f"{cell:>7}" for cell in row[:_MOST_COLUMNS])
    if len(names) > _MOST_COLUMNS:
        yield f"... and {len(names) - _MOST_COLUMNS} more devices"


def rate_lines(topology: Topology) -> Iterator[str]:
    """Say how copies between GPUs are staged, what a host sends, and what leaf switches pass on."""
    devices, arcs, start = topology.devices, topology.arcs, topology.hosts * topology.host_arcs
    fabric = list(zip(arcs.names[start:], arcs.bandwidth_Bps[start:].tolist(), strict=True))
    leaves = {dst for (src, dst), _ in fabric if devices[src].kind == "nic"}
    out_Bps = sum(rate_Bps for (src, _), rate_Bps in fabric if devices[src].kind == "nic")
    up_Bps = sum(
        rate_Bps
        for (src, dst), rate_Bps in fabric
        if src in leaves and devices[dst].kind == "switch" and dst not in leaves
    )
    if not topology.gpu_p2p and not has_processes(topology):
        yield "GPUs may not copy to each other over PCIe: traffic is staged in host memory"
    if out_Bps:
        yield f"each host sends {format_bandwidth(out_Bps / topology.hosts)} into the fabric"
    if up_Bps and out_Bps / up_Bps > 1.0001:
        yield f"leaf switches are oversubscribed {out_Bps / up_Bps:.3g} : 1"
    elif up_Bps:
        yield "leaf switches pass on all that their hosts send"


# ---------------------------------------------------------------- page


def check_page_name(path: Path) -> None:
    """Raise `InputError` unless a file's name ends as that of a page."""
    refuse_if(
        path.suffix.lower() not in {".html", ".htm"},
        "-o",
        repr(path.name),
        "a file name that ends in '.html'",
    )


def write_topology(topology: Topology, path: Path) -> Path:
    """Write the picture, its links and the sources of their numbers as one HTML page.

    Raises `InputError`: the file's name does not end in ``.html``, or it cannot be written.
    """
    check_page_name(path)
    return write_report_files(path.parent, {path.name: topology_html(topology)})


def topology_html(topology: Topology) -> str:
    """Build the page as one string."""
    names, rows = path_matrix(topology)
    device = "process " if has_processes(topology) else "gpu "
    return render_html(
        topology.name,
        [
            header(network_text(topology), topology.name, []),
            *for_ranks_of(
                topology,
                (
                    (
                        section(
                            "Machine and links",
                            f"{topology_caption(topology)}. Rates are usable ones, each way.",
                            Figure(
                                draw_topology(topology), "topology", f"Picture of {topology.name}"
                            ),
                        ),
                        section(
                            "Links",
                            " ".join(
                                f"{line[:1].upper()}{line[1:]}." for line in rate_lines(topology)
                            ),
                            Table(
                                (">links", "kind", ">each way", ">latency"),
                                list(link_rows(topology)),
                            ),
                        ),
                        section(
                            "Paths inside a host",
                            _paths_text({cell for row in rows for cell in row}),
                            Table(
                                ("", *names),
                                [(name, *row) for name, row in zip(names, rows, strict=False)],
                            ),
                        )
                        if len(names) <= _MOST_COLUMNS
                        else None,
                    )
                ),
            ),
            section(
                "Where the numbers come from",
                "",
                Definitions(
                    {
                        re.sub("^gpu ", device, name): re.sub(
                            r"(?<=\d) us\b", f" {chr(0xB5)}s", text[:1].upper() + text[1:]
                        )
                        for name, text in topology.sources.items()
                    }
                ),
            ),
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
