"""NCCL's topology XML (`NCCL_TOPO_DUMP_FILE`, `NCCL_TOPO_FILE`) as a node template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.parts import hardware_parts, reads_gpus
from perfmodel.topology.from_text.template_builder import (
    Draft,
    number_pattern,
    pattern,
    stock_link,
)
from perfmodel.topology.importers.complete import ImportedHost, complete_machine, sort_gpus
from perfmodel.topology.importers.imported import ImportedTopology, plain_name
from perfmodel.topology.importers.nccl_xml.devices import Device, Domain, is_virtual, read_domains
from perfmodel.topology.importers.nccl_xml.nics import Adapter, find_adapters
from perfmodel.topology.importers.nccl_xml.nvlinks import add_nvlinks
from perfmodel.topology.importers.nccl_xml.safe_xml import Element, parse_xml


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
        cpu = f"cpu{domain.number}"
        draft.join(name, cpu, _c2c(draft, host.file, link), f"line {link.line}, c2c")
    for child in device.children:
        _add_subtree(draft, host, names, child, name, domain)


def _c2c(draft: Draft, file: str, link: Element) -> str:
    """Add the chip-to-chip link of a superchip: MB/s of one, times how many (NCCL's topo.cc)."""
    MBps = link.number("bw")
    if not MBps or MBps <= 0:
        raise InputError(
            Fault("c2c.bw", repr(link.get("bw")), "MB/s, more than 0", file, link.line)
        )
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
    if not any(domain.part for domain in host.domains):
        note = f"CPUs are of the kind {kind}, usual with this GPU; the file does not say"
        host.notes.append(note)
    draft.add_host_memory(kind, [domain.number for domain in host.domains])


def _add_flags(draft: Draft, host: ImportedHost, adapters: Sequence[Adapter]) -> None:
    part = host.part
    stated = {adapter.gdr for adapter in adapters if adapter.gdr is not None}
    reads = True in stated if stated else all(reads_gpus(part, a.network) for a in adapters)
    draft.extra = {"gpu_p2p": not part.geforce, "gpudirect_rdma": reads}
    if part.geforce:
        host.notes.append("the driver keeps GeForce GPUs from copying to each other over PCIe")
