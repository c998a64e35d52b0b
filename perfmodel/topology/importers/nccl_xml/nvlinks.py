"""NVLinks of an imported host: from its file, from a template, or as the GPU usually has them.

A host in the making: its draft, the names of devices, where each edge is from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.defaults import usual_layout
from perfmodel.topology.from_text.gpu_text import NamedGpu, read_intra
from perfmodel.topology.from_text.layouts import Board, join_gpus
from perfmodel.topology.from_text.template_builder import Draft, nvlink
from perfmodel.topology.importers.complete import Known, part_of
from perfmodel.topology.importers.nccl_xml.devices import Device, number
from perfmodel.topology.templates.spec import NodeSpec, expand_pattern, pairs


@dataclass
class Making:
    """A host in the making.

    Parameters
    ----------
    draft : Draft
    known : Known
    file : str
    names : dict of int to str
        Name of each device, by its identity.
    beside : dict of int to str
        Comment of each edge, by its position.
    notes : list of str
    """

    draft: Draft
    known: Known
    file: str
    names: dict[int, str] = field(default_factory=dict)
    beside: dict[int, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def join(self, src: str, dst: str, link: str, comment: str = "", lanes: int = 0) -> None:
        """Add an edge and where it is from."""
        if comment:
            self.beside[len(self.draft.edges)] = comment
        self.draft.join(src, dst, link, **({"lanes": lanes} if lanes else {}))


_SWITCH, _GPU = "0x068000", "0x03"


def add_nvlinks(making: Making, gpus: Sequence[Device]) -> None:
    """Join the GPUs.

    A file with ``gpu`` elements is a dump: it names every NVLink there is. One without them never
    names any; then the template's are taken, or those that are usual for the GPU.
    """
    if any(device.gpu is not None and device.gpu.all("nvlink") for device in gpus):
        _as_dumped(making, gpus)
    elif any(device.gpu is not None for device in gpus):
        making.notes.append("no NVLinks: the file has GPUs, and none of theirs")
    elif (
        making.known.template is not None
        and making.known.gpus >= len(gpus)
        and _has_its_nvlinks(making, making.known.template)
    ):
        copied = copy_nvlinks(making, making.known.template, len(gpus))
        if copied:
            making.notes.append(f"NVLinks as in {making.known.template.name}")
    else:
        usual_nvlinks(making, len(gpus), [])


def _has_its_nvlinks(making: Making, template: NodeSpec) -> bool:
    """Whether the GPU has the template's NVLinks; another model (--gpu) may have others."""
    theirs = {edge.link for edge in template.edges if template.links[edge.link].kind == "nvlink"}
    return not theirs or part_of(template.gpu).nvlink == making.known.part.nvlink


def usual_nvlinks(making: Making, gpus: int, said: list[str]) -> None:
    """Join GPUs as is usual for their model."""
    named = NamedGpu(making.known.gpu, making.known.part)
    layout, _ = usual_layout(named, gpus, read_intra(" ".join(said)))
    if layout == "pcie":
        if gpus > 1:
            making.notes.append(f"no NVLinks between {making.known.part.spelled.upper()}")
        return
    part = making.known.part
    join_gpus(making.draft, Board(gpus, layout, part.nvlink, part.lanes))
    how = {"nvswitch": "through an NVSwitch", "cube": "in a hybrid cube mesh",
           "mesh": "all to all", "bridge": "in pairs"}  # fmt: skip
    making.notes.append(f"NVLinks {how[layout]}, {part.lanes} per GPU, usual for this GPU")


def copy_nvlinks(making: Making, template: NodeSpec, gpus: int) -> bool:
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
                _same_link(making, template, edge.link)
                making.join(renamed[a], renamed[b], edge.link, "", edge.lanes)
                copied = True
    if copied:
        for name in (n for n, kind in kinds.items() if kind == "nvswitch"):
            making.draft.add(name, "nvswitch")
    return copied


def _same_link(making: Making, template: NodeSpec, name: str) -> None:
    spec = template.links[name]
    document = spec.model_dump(exclude_none=True)
    document["bandwidth"] = f"{spec.bandwidth / 1e9:.6g} GB/s"
    document["latency"] = f"{spec.latency * 1e6:.6g} us"
    making.draft.link(name, document)
    making.draft.sources |= template.sources


# ---------------------------------------------------------------- as the file says


def _as_dumped(making: Making, gpus: Sequence[Device]) -> None:
    by_bus = {device.busid: at for at, device in enumerate(gpus)}
    switched: Counter[int] = Counter()
    between: Counter[tuple[int, int]] = Counter()
    lines: dict[int, int] = {}
    for at, device in enumerate(gpus):
        for link in device.gpu.all("nvlink") if device.gpu is not None else []:
            lines.setdefault(at, link.line)
            count = number(link, "count") or 0
            if not 0 < count <= 1000:
                raise InputError(Fault("nvlink.count", repr(link.get("count")), "1 or more",
                                       making.file, link.line))  # fmt: skip
            target = (link.get("target") or "").lower()
            tclass = (link.get("tclass") or "").lower()
            if tclass.startswith(_SWITCH):
                switched[at] += int(count)
            elif by_bus.get(target) == at:
                making.notes.append(f"NVLinks of gpu{at} to itself do not count (line {link.line})")
            elif target in by_bus:
                between[at, by_bus[target]] += int(count)
            else:
                making.notes.append(f"an NVLink of gpu{at} to {target or 'nothing'}, no GPU of the"
                                    f" file, does not count (line {link.line})")  # fmt: skip
    _add_switched(making, switched, lines)
    _add_between(making, between, lines)


def _add_switched(making: Making, lanes: Mapping[int, int], lines: Mapping[int, int]) -> None:
    if not lanes:
        return
    making.draft.add("nvs", "nvswitch")
    name = _link(making, switched=True)
    for at, count in sorted(lanes.items()):
        making.join(f"gpu{at}", "nvs", name, f"line {lines[at]}, nvlink", count)


def _add_between(
    making: Making, lanes: Mapping[tuple[int, int], int], lines: Mapping[int, int]
) -> None:
    for a, b in sorted({(min(pair), max(pair)) for pair in lanes}):
        there, back = lanes.get((a, b), 0), lanes.get((b, a), 0)
        if there != back and there and back:
            making.notes.append(f"{max(there, back)} NVLinks between gpu{a} and gpu{b}, which say"
                                f" {there} and {back}")  # fmt: skip
        name = _link(making, switched=False)
        making.join(f"gpu{a}", f"gpu{b}", name, f"line {lines.get(a, lines.get(b, 0))}, nvlink",
                    max(there, back))  # fmt: skip


def _link(making: Making, *, switched: bool) -> str:
    part = making.known.part
    name = part.nvlink or ("nvlink4" if part.sm >= 90 else "nvlink3")
    making.draft.link(name, nvlink(name, switched=switched))
    return name
