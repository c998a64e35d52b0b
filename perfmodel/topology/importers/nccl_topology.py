"""NCCL's and RCCL's topology XML (`NCCL_TOPO_DUMP_FILE`, `NCCL_TOPO_FILE`) as a node template.

NVLinks are from the file, from a template, or as usual.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfmodel.errors import refuse_if
from perfmodel.memo import applying
from perfmodel.topology.from_text.gpu_text import NamedGpu
from perfmodel.topology.from_text.layouts import Board, join_gpus, usual_layout, wire_nvlinks
from perfmodel.topology.from_text.network_text import read_intra
from perfmodel.topology.from_text.parts import hardware_parts, reads_gpus
from perfmodel.topology.from_text.template_builder import (
    Draft,
    link_fields,
    number_pattern,
    pattern,
    stock_link,
)
from perfmodel.topology.importers.complete import ImportedHost, complete_machine, part_of, sort_gpus
from perfmodel.topology.importers.imported import ImportedTopology, plain_name
from perfmodel.topology.importers.nccl_devices import Device, Domain, is_virtual, read_domains
from perfmodel.topology.importers.nccl_nics import Adapter, find_adapters
from perfmodel.topology.importers.safe_xml import Element, parse_xml
from perfmodel.topology.templates.spec import NodeSpec, device_names, pairs


def read_nccl(text: str, file: str, *, gpu: str | None, template: str | None) -> ImportedTopology:
    """Read a topology XML; what it leaves open is completed from a template or what is usual.

    Raises `InputError`: not well formed, or too little known to complete it; every fault.
    """
    root, comments = parse_xml(text, file)
    described = " ".join((Path(file).stem.lower(), *comments)).lower()
    host = ImportedHost(read_domains(root, file), file, described, gpu, template)
    host.notes += _virtual_nets(root)
    complete_machine(host)
    gpus = sort_gpus(host.all("gpu"), "dev")
    if host.template is not None and len(gpus) != host.usual("gpu"):
        has = f"{host.template.name} has {host.usual('gpu')}"
        host.notes.append(f"{len(gpus)} GPUs, as the file says; {has}")
    adapters = find_adapters(host)
    wires = Counter(f"{adapter.Bps * 8e-9:g} Gbit/s {adapter.network}" for adapter in adapters)
    wire_list = "".join(f", {count} x {kind_name}" for kind_name, count in wires.items())
    draft = Draft(host.gpu, f"{len(gpus)} x {host.gpu}{wire_list} (imported)", plain_name(file))
    draft.add(pattern("gpu", len(gpus)), "gpu")
    add_nvlinks(draft, host, gpus)
    _add_tree(draft, host, gpus, adapters)
    _add_host_memory(draft, host)
    _add_flags(draft, host, adapters)
    return ImportedTopology(
        kind="nccl-topology",
        document=draft.document(),
        title=f"Imported from {Path(file).name}, an NCCL topology.",
        notes=tuple(dict.fromkeys(host.notes)),
        comments={"edges": draft.comments},
    )


def _virtual_nets(root: Element) -> list[str]:
    """Note on the interfaces that are no hardware."""
    nets = [net for cpu in root.all("cpu") for nic in cpu.all("nic") for net in nic.all("net")]
    names = list(dict.fromkeys(net.get("name") or "" for net in nets if is_virtual(net)))
    first_names = ", ".join(names[:3]) + (", ..." if names[3:] else "")
    return [f"{len(names)} virtual interfaces are no NICs ({first_names})"] if names else []


# ---------------------------------------------------------------- PCIe


def _add_tree(
    draft: Draft, host: ImportedHost, gpus: Sequence[Device], adapters: Sequence[Adapter]
) -> None:
    """Add switches, CPUs and NICs, and join all devices as the file has them."""
    switches = [
        switch
        for switch in host.all("switch")
        if any(device.kind in {"gpu", "nic"} for device in switch.walk())
    ]
    names = {id(device): f"gpu{at}" for at, device in enumerate(gpus)}
    names |= {id(device): f"pcie{at}" for at, device in enumerate(switches)}
    if switches:
        draft.add(pattern("pcie", len(switches)), "pcie_switch")
    draft.add(number_pattern("cpu", [domain.number for domain in host.domains]), "cpu")
    for domain in host.domains:
        for device in domain.children:
            _add_subtree(draft, host, names, device, f"cpu{domain.number}", domain)
    draft.add_nics([draft.add_port(each.network, each.Bps, each.source) for each in adapters])
    for at, adapter in enumerate(adapters):
        above = names.get(id(adapter.above), f"cpu{adapter.domain.number}")
        link = _pcie(draft, host, adapter.devices[0], adapter.domain, adapter.lanes)
        draft.join(f"nic{at}", above, link, adapter.comment)


def _add_subtree(
    draft: Draft,
    host: ImportedHost,
    names: Mapping[int, str],
    device: Device,
    above: str,
    domain: Domain,
) -> None:
    name = names.get(id(device))
    if name is None:  # a NIC, which has its own turn, or what carries nothing
        return
    comment = f"line {device.line}, pci {device.busid}" if device.line else "assumed"
    draft.join(name, above, _pcie(draft, host, device, domain, device.lanes), comment)
    for link in device.gpu.all("c2c") if device.gpu is not None else []:
        draft.join(
            name, f"cpu{domain.number}", _c2c(draft, host.file, link), f"line {link.line}, c2c"
        )
    for child in device.children:
        _add_subtree(draft, host, names, child, name, domain)


def _c2c(draft: Draft, file: str, link: Element) -> str:
    """Add the chip-to-chip link of a superchip: MB/s of one, times how many (NCCL's topo.cc)."""
    MBps = link.number("bw") or 0.0
    refuse_if(MBps <= 0, "c2c.bw", repr(link.get("bw")), "MB/s, more than 0", file, link.line)
    usable = f"{MBps * (link.number('count') or 1) / 1000:.6g} GB/s"
    source = f"{Path(file).name}, bw and count of its c2c elements"
    return draft.link("c2c", stock_link("c2c", bandwidth=usable, source=source))


def _pcie(draft: Draft, host: ImportedHost, device: Device, domain: Domain, lanes: int) -> str:
    """Add the PCIe link above a device; returns its name."""
    generation, note = _generation(host, device, domain)
    source = f"{Path(host.file).name}, link_speed and link_width of its pci elements"
    if note:
        host.notes.append(note)
        source = f"assumption: {note}"
    return draft.add_pcie(generation, lanes, source=source)


def _generation(host: ImportedHost, device: Device, domain: Domain) -> tuple[int, str]:
    """Generation of a PCIe link, and what was assumed where the file is silent or wrong."""
    stated, own = device.generation, int(host.part.pcie[-1])
    if device.kind == "gpu" and (stated is None or stated > own):
        says = "nothing" if stated is None else f"generation {stated}"
        return own, f"PCIe of GPUs is of generation {own}, theirs; the file says {says}"
    below = [child.generation for child in device.children if child.generation]
    if device.kind == "switch" and below and (stated is None or stated < min(below)):
        says = "nothing" if stated is None else "less (a link at rest does)"
        return min(below), f"PCIe switches are as fast as their devices; the file says {says}"
    if stated is not None:
        return stated, ""
    own = int(hardware_parts().cpus[domain.part or host.part.cpu].pcie[-1])
    return (
        own,
        f"PCIe of NICs and switches is of generation {own}, as the CPUs; the file does not say",
    )


# ---------------------------------------------------------------- CPUs, memory, flags


def _add_host_memory(draft: Draft, host: ImportedHost) -> None:
    kind = next((domain.part for domain in host.domains if domain.part), host.part.cpu)
    host.notes += applying(
        (
            not any(domain.part for domain in host.domains),
            f"CPUs are of the kind {kind}, usual with this GPU; the file does not say",
        )
    )
    draft.add_host_memory(kind, [domain.number for domain in host.domains])


def _add_flags(draft: Draft, host: ImportedHost, adapters: Sequence[Adapter]) -> None:
    part = host.part
    stated = {adapter.gdr for adapter in adapters if adapter.gdr is not None}
    reads = True in stated if stated else all(reads_gpus(part, a.network) for a in adapters)
    draft.extra |= {"gpu_p2p": not part.geforce, "gpudirect_rdma": reads}
    host.notes += applying(
        (part.geforce, "the driver keeps GeForce GPUs from copying to each other over PCIe")
    )


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
    dumped = [
        (at, link)
        for at, element in elements
        for tag in ("nvlink", "xgmi")  # the latter as RCCL names AMD's
        for link in element.all(tag)
    ]
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
    refuse_if(
        len(gpus) > 1 and part.on_board and part.nvlink and part.c2c is None,
        "nvlink",
        f"no nvlink element for {len(gpus)} GPUs {part.spelled.upper()} {part.form.upper()}",
        "their NVLinks, or --template NAME of the machine, whose NVLinks are taken",
        host.file,
        gpus[0].line,
    )


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
        host.notes.append(f"NVLinks {_LAYOUTS[layout]}, {part.lanes} per GPU, usual for this GPU")
    elif gpus > 1:
        host.notes.append(f"no NVLinks between {part.spelled.upper()}")


def _copy_nvlinks(draft: Draft, template: NodeSpec, gpus: int) -> bool:
    """Join GPUs by the NVLinks of a template; return whether it has any."""
    switches = device_names(template, "nvswitch")
    renamed = {name: f"gpu{at}" for at, name in enumerate(device_names(template, "gpu")[:gpus])} | {
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
        refuse_if(
            not 0 < count <= 1000,
            "nvlink.count",
            repr(link.get("count")),
            "from 1 to 1,000",
            host.file,
            link.line,
        )
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
        refuse_if(
            total > part.lanes,
            "nvlink.count",
            f"{total} NVLinks of gpu{at}",
            f"at most {part.lanes}: {part.spelled.upper()} {part.form.upper()}",
            host.file,
            lines[at],
        )
    most = max(switched.values(), default=0)
    fewer = [f"gpu{at} has {count}" for at, count in sorted(switched.items()) if count < most]
    host.notes += applying(
        (fewer, f"{', '.join(fewer)} NVLinks to the switch, others {most}: as the file says")
    )
