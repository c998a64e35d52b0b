"""NCCL's topology XML (`NCCL_TOPO_DUMP_FILE`, `NCCL_TOPO_FILE`) as a node template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.parts import hardware_parts, reads_gpus
from perfmodel.topology.from_text.template_builder import (
    Draft,
    number_pattern,
    pattern,
    stock_link,
)
from perfmodel.topology.importers.complete import (
    Hints,
    add_gpus,
    classify,
    complete_machine,
    sort_gpus,
)
from perfmodel.topology.importers.imported import ImportedTopology, plain_name
from perfmodel.topology.importers.nccl_xml.devices import (
    Device,
    Domain,
    is_virtual,
    number,
    read_domains,
)
from perfmodel.topology.importers.nccl_xml.nics import Adapter, find_adapters
from perfmodel.topology.importers.nccl_xml.nvlinks import HostDraft, add_nvlinks
from perfmodel.topology.importers.nccl_xml.safe_xml import Element, parse_xml


def read_nccl(text: str, file: str, *, gpu: str | None, template: str | None) -> ImportedTopology:
    """Read a topology XML; what it leaves open is completed from a template or what is usual.

    Raises `InputError`: not well formed, or too little known to complete it; every fault.
    """
    root, comments = parse_xml(text, file)
    domains = read_domains(root, file)
    hints = Hints(file, " ".join((Path(file).stem.lower(), *comments)).lower(), gpu, template)
    completion = complete_machine(domains, hints)
    notes = [
        *_virtual_nets(root),
        *completion.notes,
        *classify(domains, completion, hints),
        *add_gpus(domains, completion, hints),
    ]
    gpus = sort_gpus([d for dom in domains for d in dom.walk() if d.kind == "gpu"], "dev")
    if completion.gpus and completion.template is not None and len(gpus) != completion.gpus:
        notes.append(
            f"{len(gpus)} GPUs, as the file says; {completion.template.name} has {completion.gpus}"
        )
    adapters = find_adapters(domains, completion, notes)
    wires = Counter(f"{adapter.Bps * 8e-9:g} Gbit/s {adapter.network}" for adapter in adapters)
    wire_list = "".join(f", {count} x {kind_name}" for kind_name, count in wires.items())
    description = f"{len(gpus)} x {completion.gpu}{wire_list} (imported)"
    host = HostDraft(
        Draft(completion.gpu, description, plain_name(file)), completion, file, notes=notes
    )
    host.names |= {id(device): f"gpu{at}" for at, device in enumerate(gpus)}
    host.draft.add(pattern("gpu", len(gpus)), "gpu")
    add_nvlinks(host, gpus)
    _add_tree(host, domains, adapters)
    _add_host_memory(host, domains)
    _add_flags(host, adapters)
    return ImportedTopology(
        kind="nccl-topology",
        document=host.draft.document(),
        title=f"Imported from {Path(file).name}, an NCCL topology.",
        notes=tuple(dict.fromkeys(host.notes)),
        comments={"edges": host.draft.comments},
    )


def _virtual_nets(root: Element) -> list[str]:
    """Note on the interfaces that are no hardware."""
    nets = [net for cpu in root.all("cpu") for nic in cpu.all("nic") for net in nic.all("net")]
    names = list(dict.fromkeys(net.get("name") or "" for net in nets if is_virtual(net)))
    first_names = ", ".join(names[:3]) + (", ..." if names[3:] else "")
    return [f"{len(names)} virtual interfaces are no NICs ({first_names})"] * bool(names)


# ---------------------------------------------------------------- PCIe


def _add_tree(host: HostDraft, domains: Sequence[Domain], adapters: Sequence[Adapter]) -> None:
    switches = [d for dom in domains for d in dom.walk() if d.kind == "switch" and _has_endpoint(d)]
    host.names |= {id(device): f"pcie{at}" for at, device in enumerate(switches)}
    if switches:
        host.draft.add(pattern("pcie", len(switches)), "pcie_switch")
    host.draft.add(number_pattern("cpu", [domain.number for domain in domains]), "cpu")
    for domain in domains:
        for device in domain.devices:
            _add_subtree(host, device, f"cpu{domain.number}", domain)
    host.draft.add_nics([host.draft.add_port(a.network, a.Bps, a.source) for a in adapters])
    for at, adapter in enumerate(adapters):
        above = host.names.get(id(adapter.above), f"cpu{adapter.domain.number}")
        link = _pcie(host, adapter.devices[0], adapter.domain, adapter.lanes)
        host.draft.join(f"nic{at}", above, link, adapter.comment)


def _has_endpoint(switch: Device) -> bool:
    """Whether a GPU or NIC is below a switch."""
    return any(device.kind in {"gpu", "nic"} for device in switch.walk())


def _add_subtree(host: HostDraft, device: Device, above: str, domain: Domain) -> None:
    name = host.names.get(id(device))
    if name is None:  # a NIC, which has its own turn, or what carries nothing
        return
    comment = f"line {device.line}, pci {device.busid}" if device.line else "assumed"
    host.draft.join(name, above, _pcie(host, device, domain), comment)
    for link in device.gpu.all("c2c") if device.gpu is not None else []:
        host.draft.join(name, f"cpu{domain.number}", _c2c(host, link), f"line {link.line}, c2c")
    for child in device.children:
        _add_subtree(host, child, name, domain)


def _c2c(host: HostDraft, link: Element) -> str:
    """Add the chip-to-chip link of a superchip: MB/s of one, times how many (NCCL's topo.cc)."""
    MBps, count = number(link, "bw"), number(link, "count")
    if not MBps or MBps <= 0:
        raise InputError(
            Fault("c2c.bw", repr(link.get("bw")), "MB/s, more than 0", host.file, link.line)
        )
    usable = f"{MBps * (count or 1) / 1000:.6g} GB/s"
    source = f"{Path(host.file).name}, bw and count of its c2c elements"
    return host.draft.link("c2c", stock_link("c2c", bandwidth=usable, source=source))


def _pcie(host: HostDraft, device: Device, domain: Domain, lanes: int | None = None) -> str:
    """Add the PCIe link above a device; returns its name."""
    generation, note = _generation(host, device, domain)
    if note:
        host.notes.append(note)
    stated = f"{Path(host.file).name}, link_speed and link_width of its pci elements"
    source = f"assumption: {note}" if note else stated
    return host.draft.add_pcie(generation, lanes or device.lanes, source=source)


def _generation(host: HostDraft, device: Device, domain: Domain) -> tuple[int, str]:
    """Generation of a PCIe link, and what was assumed where the file is silent or wrong."""
    stated = device.generation
    if device.kind == "gpu":
        own = int(host.completion.part.pcie[-1])
        if stated is None or stated > own:
            statement = "nothing" if stated is None else f"generation {stated}"
            return own, f"PCIe of GPUs is of generation {own}, theirs; the file says {statement}"
        return stated, ""
    below = [d.generation for d in device.children if d.generation]
    if device.kind == "switch" and below and (stated is None or stated < min(below)):
        statement = "nothing" if stated is None else "less (a link at rest does)"
        return min(below), f"PCIe switches are as fast as their devices; the file says {statement}"
    if stated is not None:
        return stated, ""
    own = int(hardware_parts().cpus[domain.part or host.completion.part.cpu].pcie[-1])
    return (
        own,
        f"PCIe of NICs and switches is of generation {own}, as the CPUs; the file does not say",
    )


# ---------------------------------------------------------------- CPUs, memory, flags


def _add_host_memory(host: HostDraft, domains: Sequence[Domain]) -> None:
    numbers = [domain.number for domain in domains]
    part = next((domain.part for domain in domains if domain.part), None)
    if part is None:
        part = host.completion.part.cpu
        host.notes.append(
            f"CPUs are of the kind {part}, usual with this GPU; the file does not say"
        )
    host.draft.add_host_memory(part, numbers)


def _add_flags(host: HostDraft, adapters: Sequence[Adapter]) -> None:
    part = host.completion.part
    stated = {adapter.gdr for adapter in adapters if adapter.gdr is not None}
    reads = True in stated if stated else all(reads_gpus(part, a.network) for a in adapters)
    host.draft.extra = {"gpu_p2p": not part.geforce, "gpudirect_rdma": reads}
    if part.geforce:
        host.notes.append("the driver keeps GeForce GPUs from copying to each other over PCIe")
