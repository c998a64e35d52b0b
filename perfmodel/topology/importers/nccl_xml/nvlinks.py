"""NVLinks of an imported host: from the file, a template, or as usual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.defaults import usual_layout
from perfmodel.topology.from_text.gpu_text import NamedGpu
from perfmodel.topology.from_text.intra_text import read_intra
from perfmodel.topology.from_text.layouts import Board, join_gpus, wire_nvlinks
from perfmodel.topology.from_text.template_builder import Draft, link_fields
from perfmodel.topology.importers.complete import ImportedHost, part_of
from perfmodel.topology.importers.nccl_xml.devices import Device
from perfmodel.topology.importers.nccl_xml.safe_xml import Element
from perfmodel.topology.templates.spec import NodeSpec, device_names, pairs

NVSWITCH_CLASS = "0x068000"
"""PCI class of an NVSwitch."""
_LAYOUTS = {
    "nvswitch": "through an NVSwitch",
    "cube": "in a hybrid cube mesh",
    "mesh": "all to all",
    "bridge": "in pairs",
}


def add_nvlinks(draft: Draft, host: ImportedHost, gpus: Sequence[Device]) -> None:
    """Join the GPUs.

    A file with ``gpu`` elements is a dump: it names every NVLink there is. One without them never
    names any; then the template's are taken, or those that are usual for the GPU.
    """
    template = host.template
    fits = (
        template is not None and host.usual("gpu") >= len(gpus) and _has_its_nvlinks(host, template)
    )
    elements = [(at, gpu.gpu) for at, gpu in enumerate(gpus) if gpu.gpu is not None]
    dumped = [(at, link) for at, element in elements for link in element.all("nvlink")]
    if dumped:
        _add_dumped(draft, host, gpus, dumped)
    elif fits and template is not None and _copy_nvlinks(draft, template, len(gpus)):
        host.notes.append(f"NVLinks as in {template.name}: the file has none")
    elif elements:
        _check_without(host, gpus)
        host.notes.append("no NVLinks: the file has GPUs, and none of theirs")
    elif not fits:
        _add_usual(draft, host, len(gpus))


def _check_without(host: ImportedHost, gpus: Sequence[Device]) -> None:
    """GPUs on a board have NVLinks: a dump without any was made where NCCL could not see them."""
    part = host.part
    if len(gpus) > 1 and part.on_board and part.nvlink and part.c2c is None:
        problem = f"no nvlink element for {len(gpus)} GPUs"
        problem += f" {part.spelled.upper()} {part.form.upper()}"
        allowed = "their NVLinks, or --template NAME of the machine, whose NVLinks are taken"
        raise InputError(Fault("nvlink", problem, allowed, host.file, gpus[0].line))


def _has_its_nvlinks(host: ImportedHost, template: NodeSpec) -> bool:
    """Whether the GPU has the template's NVLinks; another model (--gpu) may have others."""
    theirs = any(template.links[edge.link].kind == "nvlink" for edge in template.edges)
    return not theirs or part_of(template.gpu).nvlink == host.part.nvlink


def _add_usual(draft: Draft, host: ImportedHost, gpus: int) -> None:
    """Join GPUs as is usual for their model."""
    part = host.part
    layout, _ = usual_layout(NamedGpu(host.gpu, part), gpus, read_intra(""))
    if layout != "pcie":
        join_gpus(draft, Board(gpus, layout, part.nvlink, part.lanes))
        how = f"{_LAYOUTS[layout]}, {part.lanes} per GPU, usual for this GPU"
        host.notes.append(f"NVLinks {how}")
    elif gpus > 1:
        host.notes.append(f"no NVLinks between {part.spelled.upper()}")


def _copy_nvlinks(draft: Draft, template: NodeSpec, gpus: int) -> bool:
    """Join GPUs as a template does; whether it has NVLinks at all."""
    switches = device_names(template, "nvswitch")
    first = device_names(template, "gpu")[:gpus]
    renamed = {name: f"gpu{at}" for at, name in enumerate(first)} | {
        name: name for name in switches
    }
    joined = [
        (renamed[a], renamed[b], edge)
        for edge in template.edges
        if template.links[edge.link].kind == "nvlink"
        for a, b in pairs(edge)
        if a in renamed and b in renamed
    ]
    for a, b, edge in joined:
        draft.link(edge.link, link_fields(template.links[edge.link]))
        draft.join(a, b, edge.link, lanes=edge.lanes)
    if joined:
        draft.sources |= template.sources
        for name in switches:
            draft.add(name, "nvswitch")
    return bool(joined)


# ---------------------------------------------------------------- as the file says


def _add_dumped(
    draft: Draft, host: ImportedHost, gpus: Sequence[Device], links: Sequence[tuple[int, Element]]
) -> None:
    """Join GPUs by the NVLinks of a dump; `links` are its elements, each with the GPU's number."""
    by_bus = {device.busid: at for at, device in enumerate(gpus)}
    switched, between = Counter[int](), Counter[tuple[int, int]]()
    lines: dict[int, int] = {}
    for at, link in links:
        lines.setdefault(at, link.line)
        count = link.number("count") or 0
        if not 0 < count <= 1000:
            found, allowed = repr(link.get("count")), "from 1 to 1,000"
            raise InputError(Fault("nvlink.count", found, allowed, host.file, link.line))
        target = (link.get("target") or "").lower()
        if (link.get("tclass") or "").lower().startswith(NVSWITCH_CLASS):
            switched[at] += int(count)
        elif by_bus.get(target) == at:
            host.notes.append(f"NVLinks of gpu{at} to itself do not count (line {link.line})")
        elif target in by_bus:
            between[at, by_bus[target]] += int(count)
        else:
            host.notes.append(
                f"an NVLink of gpu{at} to {target or 'nothing'}, no GPU of the"
                f" file, does not count (line {link.line})"
            )
    _check_totals(host, switched, between, lines)
    both_ways = {}
    for a, b in sorted({(min(pair), max(pair)) for pair in between}):
        forward, back = between[a, b], between[b, a]
        both_ways[a, b] = most = max(forward, back)
        if forward != back and forward and back:
            host.notes.append(
                f"{most} NVLinks between gpu{a} and gpu{b}, which say {forward} and {back}"
            )
        lines.setdefault(a, lines.get(b, 0))
    name = host.part.nvlink or ("nvlink4" if host.part.sm >= 90 else "nvlink3")
    comments = {at: f"line {line}, nvlink" for at, line in lines.items()}
    wire_nvlinks(draft, name, dict(sorted(switched.items())), both_ways, comments)


def _check_totals(
    host: ImportedHost,
    switched: Mapping[int, int],
    between: Mapping[tuple[int, int], int],
    lines: Mapping[int, int],
) -> None:
    """No GPU has more NVLinks than its model; one that has fewer than others is noted."""
    part = host.part
    for at in sorted(lines):
        total = switched.get(at, 0) + sum(n for (a, _), n in between.items() if a == at)
        if total > part.lanes:
            allowed = f"at most {part.lanes}: {part.spelled.upper()} {part.form.upper()}"
            found = f"{total} NVLinks of gpu{at}"
            raise InputError(Fault("nvlink.count", found, allowed, host.file, lines[at]))
    most = max(switched.values(), default=0)
    fewer = [f"gpu{at} has {count}" for at, count in sorted(switched.items()) if count < most]
    if fewer:
        note = f"{', '.join(fewer)} NVLinks to the switch, others {most}: as the file says"
        host.notes.append(note)
