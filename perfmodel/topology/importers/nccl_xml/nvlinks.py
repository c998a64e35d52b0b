"""Draft of an imported host, and its NVLinks: from the file, a template, or as usual."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.defaults import usual_layout
from perfmodel.topology.from_text.gpu_text import NamedGpu
from perfmodel.topology.from_text.intra_text import read_intra
from perfmodel.topology.from_text.layouts import Board, join_gpus
from perfmodel.topology.from_text.template_builder import Draft, link_fields, nvlink
from perfmodel.topology.importers.complete import Completion, part_of
from perfmodel.topology.importers.nccl_xml.devices import Device, number
from perfmodel.topology.templates.name_ranges import expand_pattern
from perfmodel.topology.templates.spec import NodeSpec, pairs


@dataclass
class HostDraft:
    """Draft of an imported host."""

    draft: Draft
    completion: Completion
    file: str
    names: dict[int, str] = field(default_factory=dict)
    """Name of each device, by its identity."""
    notes: list[str] = field(default_factory=list)


_SWITCH = "0x068000"
"""PCI class of an NVSwitch."""


def add_nvlinks(host: HostDraft, gpus: Sequence[Device]) -> None:
    """Join the GPUs.

    A file with ``gpu`` elements is a dump: it names every NVLink there is. One without them never
    names any; then the template's are taken, or those that are usual for the GPU.
    """
    template = host.completion.template
    fits = (
        template is not None
        and host.completion.gpus >= len(gpus)
        and _has_its_nvlinks(host, template)
    )
    dumped = any(device.gpu is not None for device in gpus)
    if any(device.gpu is not None and device.gpu.all("nvlink") for device in gpus):
        _add_dumped(host, gpus)
    elif fits and template is not None and _copy_nvlinks(host, template, len(gpus)):
        host.notes.append(f"NVLinks as in {template.name}: the file has none")
    elif dumped:
        _check_without(host, gpus)
        host.notes.append("no NVLinks: the file has GPUs, and none of theirs")
    elif not fits:
        _add_usual(host, len(gpus))


def _check_without(host: HostDraft, gpus: Sequence[Device]) -> None:
    """GPUs on a board have NVLinks: a dump without any was made where NCCL could not see them."""
    part = host.completion.part
    if len(gpus) < 2 or not (part.on_board and part.nvlink and part.c2c is None):
        return
    raise InputError(
        Fault(
            "nvlink",
            f"no nvlink element for {len(gpus)} GPUs {part.spelled.upper()} {part.form.upper()}",
            "their NVLinks, or --template NAME of the machine, whose NVLinks are taken",
            host.file,
            gpus[0].line,
        )
    )


def _has_its_nvlinks(host: HostDraft, template: NodeSpec) -> bool:
    """Whether the GPU has the template's NVLinks; another model (--gpu) may have others."""
    theirs = {edge.link for edge in template.edges if template.links[edge.link].kind == "nvlink"}
    return not theirs or part_of(template.gpu).nvlink == host.completion.part.nvlink


def _add_usual(host: HostDraft, gpus: int) -> None:
    """Join GPUs as is usual for their model."""
    named = NamedGpu(host.completion.gpu, host.completion.part)
    layout, _ = usual_layout(named, gpus, read_intra(""))
    if layout == "pcie":
        if gpus > 1:
            host.notes.append(f"no NVLinks between {host.completion.part.spelled.upper()}")
        return
    part = host.completion.part
    join_gpus(host.draft, Board(gpus, layout, part.nvlink, part.lanes))
    how = {
        "nvswitch": "through an NVSwitch",
        "cube": "in a hybrid cube mesh",
        "mesh": "all to all",
        "bridge": "in pairs",
    }
    host.notes.append(f"NVLinks {how[layout]}, {part.lanes} per GPU, usual for this GPU")


def _copy_nvlinks(host: HostDraft, template: NodeSpec, gpus: int) -> bool:
    """Join GPUs as a template does; whether it has NVLinks at all."""
    kinds = {name: d.kind for d in template.nodes for name in expand_pattern(d.id)}
    inside = {name for name, kind in kinds.items() if kind in {"gpu", "nvswitch"}}
    order = [name for name, kind in kinds.items() if kind == "gpu"][:gpus]
    renamed = {name: f"gpu{at}" for at, name in enumerate(order)}
    renamed |= {name: name for name, kind in kinds.items() if kind == "nvswitch"}
    copied = False
    for edge in template.edges:
        if template.links[edge.link].kind != "nvlink":
            continue
        for a, b in pairs(edge):
            if {a, b} <= inside and a in renamed and b in renamed:
                _copy_link(host, template, edge.link)
                host.draft.join(renamed[a], renamed[b], edge.link, lanes=edge.lanes)
                copied = True
    if copied:
        for name in (n for n, kind in kinds.items() if kind == "nvswitch"):
            host.draft.add(name, "nvswitch")
    return copied


def _copy_link(host: HostDraft, template: NodeSpec, name: str) -> None:
    host.draft.link(name, link_fields(template.links[name]))
    host.draft.sources |= template.sources


# ---------------------------------------------------------------- as the file says


def _add_dumped(host: HostDraft, gpus: Sequence[Device]) -> None:
    by_bus = {device.busid: at for at, device in enumerate(gpus)}
    switched: Counter[int] = Counter()
    between: Counter[tuple[int, int]] = Counter()
    lines: dict[int, int] = {}
    for at, device in enumerate(gpus):
        for link in device.gpu.all("nvlink") if device.gpu is not None else []:
            lines.setdefault(at, link.line)
            count = number(link, "count") or 0
            if not 0 < count <= 1000:
                raise InputError(
                    Fault(
                        "nvlink.count",
                        repr(link.get("count")),
                        "from 1 to 1,000",
                        host.file,
                        link.line,
                    )
                )
            target = (link.get("target") or "").lower()
            tclass = (link.get("tclass") or "").lower()
            if tclass.startswith(_SWITCH):
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
    _add_switched(host, switched, lines)
    _add_between(host, between, lines)


def _check_totals(
    host: HostDraft,
    switched: Mapping[int, int],
    between: Mapping[tuple[int, int], int],
    lines: Mapping[int, int],
) -> None:
    """No GPU has more NVLinks than its model; one that has fewer than others is noted."""
    part = host.completion.part
    model = part.spelled.upper()
    for at in sorted(lines):
        total = switched.get(at, 0) + sum(n for (a, _), n in between.items() if a == at)
        if total > part.lanes:
            raise InputError(
                Fault(
                    "nvlink.count",
                    f"{total} NVLinks of gpu{at}",
                    f"at most {part.lanes}: {model} {part.form.upper()}",
                    host.file,
                    lines[at],
                )
            )
    most = max(switched.values(), default=0)
    fewer = [f"gpu{at} has {count}" for at, count in sorted(switched.items()) if count < most]
    if fewer:
        host.notes.append(
            f"{', '.join(fewer)} NVLinks to the switch, others {most}: as the file says"
        )


def _add_switched(host: HostDraft, lanes: Mapping[int, int], lines: Mapping[int, int]) -> None:
    if not lanes:
        return
    host.draft.add("nvs", "nvswitch")
    name = _link(host, switched=True)
    for at, count in sorted(lanes.items()):
        host.draft.join(f"gpu{at}", "nvs", name, f"line {lines[at]}, nvlink", lanes=count)


def _add_between(
    host: HostDraft, lanes: Mapping[tuple[int, int], int], lines: Mapping[int, int]
) -> None:
    for a, b in sorted({(min(pair), max(pair)) for pair in lanes}):
        forward, back = lanes.get((a, b), 0), lanes.get((b, a), 0)
        if forward != back and forward and back:
            host.notes.append(
                f"{max(forward, back)} NVLinks between gpu{a} and gpu{b}, which say"
                f" {forward} and {back}"
            )
        name = _link(host, switched=False)
        comment = f"line {lines.get(a, lines.get(b, 0))}, nvlink"
        host.draft.join(f"gpu{a}", f"gpu{b}", name, comment, lanes=max(forward, back))


def _link(host: HostDraft, *, switched: bool) -> str:
    part = host.completion.part
    name = part.nvlink or ("nvlink4" if part.sm >= 90 else "nvlink3")
    host.draft.link(name, nvlink(name, switched=switched))
    return name
