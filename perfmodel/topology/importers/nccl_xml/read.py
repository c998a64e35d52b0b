"""NCCL's topology XML (`NCCL_TOPO_DUMP_FILE`, `NCCL_TOPO_FILE`) as a node template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.parts import hardware_parts, reads_gpus
from perfmodel.topology.from_text.template_builder import (
    Draft,
    between_cpus,
    dram,
    pattern,
    stock_link,
)
from perfmodel.topology.importers.complete import Hints, add_gpus, classify, in_order, known_from
from perfmodel.topology.importers.imported import ImportedTopology, plain_name
from perfmodel.topology.importers.nccl_xml.devices import Device, Domain, number, tree_of
from perfmodel.topology.importers.nccl_xml.nics import Adapter, adapters_of, port_of
from perfmodel.topology.importers.nccl_xml.nvlinks import Making, add_nvlinks
from perfmodel.topology.importers.nccl_xml.safe_xml import Element, parse_xml


def read_nccl(text: str, file: str, *, gpu: str | None, template: str | None) -> ImportedTopology:
    """Read a topology XML; what it leaves open is completed from a template or what is usual.

    Raises
    ------
    InputError
        Not well formed, or too little known to complete it; every fault.
    """
    root, comments = parse_xml(text, file)
    domains = tree_of(root, file)
    words = " ".join((Path(file).stem.lower(), *comments)).lower()
    hints = Hints(file, words, gpu, template)
    known = known_from(domains, hints)
    notes = [*known.notes, *classify(domains, known, hints), *add_gpus(domains, known, hints)]
    gpus = in_order([d for dom in domains for d in dom.walk() if d.kind == "gpu"], "dev")
    adapters = adapters_of(domains, known, notes)
    wires = Counter(f"{adapter.Bps * 8e-9:g} Gbit/s {adapter.network}" for adapter in adapters)
    shown = "".join(f", {count} x {what}" for what, count in wires.items())
    description = f"{len(gpus)} x {known.gpu}{shown} (imported)"
    making = Making(Draft(known.gpu, description, plain_name(file)), known, file, notes=notes)
    making.names |= {id(device): f"gpu{at}" for at, device in enumerate(gpus)}
    making.draft.add(pattern("gpu", len(gpus)), "gpu")
    add_nvlinks(making, gpus)
    _add_tree(making, domains, adapters)
    _add_hosts_memory(making, domains)
    _add_flags(making, adapters)
    return ImportedTopology(
        kind="nccl-topology",
        document=making.draft.document(),
        title=f"Imported from {Path(file).name}, an NCCL topology.",
        notes=tuple(making.notes),
        beside={"edges": making.beside},
    )


# ---------------------------------------------------------------- PCIe


def _add_tree(making: Making, domains: Sequence[Domain], adapters: Sequence[Adapter]) -> None:
    switches = [d for dom in domains for d in dom.walk() if d.kind == "switch" and _holds(d)]
    making.names |= {id(device): f"pcie{at}" for at, device in enumerate(switches)}
    if switches:
        making.draft.add(pattern("pcie", len(switches)), "pcie_switch")
    making.draft.add(_several("cpu", [domain.number for domain in domains]), "cpu")
    for domain in domains:
        for device in domain.devices:
            _hang(making, device, f"cpu{domain.number}", domain)
    making.draft.add_nics([port_of(making.draft, adapter) for adapter in adapters])
    for at, adapter in enumerate(adapters):
        above = making.names.get(id(adapter.above), f"cpu{adapter.domain.number}")
        link = _pcie(making, adapter.devices[0], adapter.domain, adapter.lanes)
        making.join(f"nic{at}", above, link, adapter.comment)


def _holds(switch: Device) -> bool:
    """Whether anything that counts hangs below a switch."""
    return any(device.kind in {"gpu", "nic"} for device in switch.walk())


def _hang(making: Making, device: Device, above: str, domain: Domain) -> None:
    name = making.names.get(id(device))
    if name is None:  # a NIC, which has its own turn, or what carries nothing
        return
    comment = f"line {device.line}, pci {device.busid}" if device.line else "assumed"
    making.join(name, above, _pcie(making, device, domain), comment)
    for link in device.gpu.all("c2c") if device.gpu is not None else []:
        making.join(name, f"cpu{domain.number}", _c2c(making, link), f"line {link.line}, c2c")
    for child in device.children:
        _hang(making, child, name, domain)


def _c2c(making: Making, link: Element) -> str:
    """Add the chip-to-chip link of a superchip: MB/s of one, times how many (NCCL's topo.cc)."""
    MBps, count = number(link, "bw"), number(link, "count")
    if not MBps or MBps <= 0:
        raise InputError(Fault("c2c.bw", repr(link.get("bw")), "MB/s, more than 0", making.file,
                               link.line))  # fmt: skip
    usable = f"{MBps * (count or 1) / 1000:.6g} GB/s"
    said = f"{Path(making.file).name}, bw and count of its c2c elements"
    return making.draft.link("c2c", stock_link("c2c", bandwidth=usable, source=said))


def _pcie(making: Making, device: Device, domain: Domain, lanes: int | None = None) -> str:
    """Add the PCIe link above a device; returns its name."""
    generation, note = _generation(making, device, domain)
    if note:
        _once(making, note)
    lanes = lanes or device.lanes
    name = f"pcie{generation}" if lanes == 16 else f"pcie{generation}-x{lanes}"
    stock = hardware_parts().links[f"pcie{generation}"]
    said = f"{Path(making.file).name}, link_speed and link_width of its pci elements"
    more = {
        "source": f"assumption: {note}" if note else said,
        "bandwidth": f"{stock.bandwidth * lanes / 16 / 1e9:.6g} GB/s",
    }
    return making.draft.link(name, stock_link(f"pcie{generation}", **more))


def _generation(making: Making, device: Device, domain: Domain) -> tuple[int, str]:
    """Generation of a PCIe link, and what was assumed where the file is silent or wrong."""
    said = device.generation
    if device.kind == "gpu":
        own = int(making.known.part.pcie[-1])
        if said is None or said > own:
            told = "nothing" if said is None else f"generation {said}"
            return own, f"PCIe of GPUs is of generation {own}, theirs; the file says {told}"
        return said, ""
    below = [d.generation for d in device.children if d.generation]
    if device.kind == "switch" and below and (said is None or said < min(below)):
        told = "nothing" if said is None else "less (a link at rest does)"
        return min(below), f"PCIe switches are as fast as their devices; the file says {told}"
    if said is not None:
        return said, ""
    own = int(hardware_parts().cpus[domain.part or making.known.part.cpu].pcie[-1])
    return (
        own,
        f"PCIe of NICs and switches is of generation {own}, as the CPUs; the file does not say",
    )


def _once(making: Making, note: str) -> None:
    if note not in making.notes:
        making.notes.append(note)


# ---------------------------------------------------------------- CPUs, memory, flags


def _add_hosts_memory(making: Making, domains: Sequence[Domain]) -> None:
    numbers = [domain.number for domain in domains]
    part = next((domain.part for domain in domains if domain.part), None)
    if part is None:
        part = making.known.part.cpu
        _once(making, f"CPUs are of the kind {part}, usual with this GPU; the file does not say")
    if len(numbers) > 1:
        name, link = between_cpus(part)
        cpus = _several("cpu", numbers)
        making.draft.join(cpus, cpus, making.draft.link(name, link), pattern="all")
    making.draft.link("dram", dram(part, max(1, len(numbers) // 2)))
    making.draft.add(_several("mem", numbers), "memory")
    making.draft.join(_several("mem", numbers), _several("cpu", numbers), "dram")


def _several(stem: str, numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"{stem}{numbers[0]}"
    if list(numbers) == list(range(len(numbers))):
        return pattern(stem, len(numbers))
    return f"{stem}[{','.join(map(str, numbers))}]"


def _add_flags(making: Making, adapters: Sequence[Adapter]) -> None:
    part = making.known.part
    said = {adapter.gdr for adapter in adapters if adapter.gdr is not None}
    reads = True in said if said else all(reads_gpus(part, a.network) for a in adapters)
    making.draft.extra = {"gpu_p2p": not part.geforce, "gpudirect_rdma": reads}
    if part.geforce:
        _once(making, "the driver keeps GeForce GPUs from copying to each other over PCIe")
