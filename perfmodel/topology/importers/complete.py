"""What a topology file leaves open: the GPU, the machine, devices without a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from perfmodel.errors import Fault, InputError, refuse_if
from perfmodel.topology.from_text.gpu_text import read_gpu
from perfmodel.topology.from_text.match_template import TemplateFacts, template_facts
from perfmodel.topology.from_text.parts import GpuConnector, hardware_parts
from perfmodel.topology.importers.nccl_devices import Device, DeviceKind, Domain, devices_of
from perfmodel.topology.templates.build import load_node
from perfmodel.topology.templates.spec import LinkSpec, NodeSpec, device_names, nic_ports


@dataclass
class ImportedHost:
    """The devices of a file, and what is known of the machine besides them.

    Parameters
    ----------
    domains : sequence of Domain
    file : str
        Its name, for messages.
    text : str
        Its name and comments, in lower case.
    asked_gpu, asked_template : str, optional
        As the user named them.
    notes : list of str
        What was assumed.
    gpu : str
        Name in the table of GPUs.
    template : NodeSpec, optional
        Machine from which the rest is completed.
    """

    domains: Sequence[Domain]
    file: str
    text: str
    asked_gpu: str | None = None
    asked_template: str | None = None
    notes: list[str] = field(default_factory=list)
    gpu: str = ""
    template: NodeSpec | None = None

    def all(self, kind: DeviceKind) -> list[Device]:
        """Return the devices of a kind, in file order."""
        return devices_of(self.domains, kind)

    @property
    def part(self) -> GpuConnector:
        """How its GPU is plugged in."""
        return part_of(self.gpu)

    def usual(self, kind: str) -> int:
        """Return how many devices of a kind the template has; 0 without one."""
        return len(device_names(self.template, kind)) if self.template else 0

    @property
    def port(self) -> LinkSpec | None:
        """What leaves the first NIC of the template."""
        return next(iter(nic_ports(self.template) if self.template else ()), None)

    def refuse(self, field: str, problem: str, allowed: str) -> InputError:
        """Return the error for something that is missing or wrong in the file."""
        return InputError(Fault(field, problem, allowed, self.file))


def complete_machine(host: ImportedHost) -> None:
    """Find GPU and machine by the user, the file, its name, or its structure.

    Raises `InputError`: neither the file nor the user names the GPU; or the two disagree.
    """
    models = list(dict.fromkeys(name for gpu in host.all("gpu") for name in _by_device(gpu)))
    host.template = _template(host, models)
    host.gpu = _gpu(host, models)
    if host.template is not None and host.asked_template is None:
        host.notes.append(f"what the file leaves open is as in the template {host.template.name}")
    _classify(host)
    _add_gpus(host)


def part_of(gpu: str) -> GpuConnector:
    """How a GPU of the table is plugged in."""
    parts = hardware_parts().gpus
    return parts[gpu] if gpu in parts else read_gpu(gpu).part


# ---------------------------------------------------------------- machine


def _template(host: ImportedHost, models: Sequence[str]) -> NodeSpec | None:
    """Template of the machine: the user's, the one that the file names, or the first like it."""
    if host.asked_template is not None:
        host.notes.append(f"what the file leaves open is as in {host.asked_template}, as was asked")
        return load_node(host.asked_template)
    gpus = host.all("gpu")
    if any(device.gpu is not None for device in gpus):
        return None  # NCCL wrote the file: it leaves nothing open
    named = next((facts for facts in template_facts() if facts.is_named_in(host.text)), None)
    if named is not None and len(gpus) <= named.gpus:
        host.notes.append(f"{named.name}: the file's name or a comment says so")
        return load_node(named.name)
    family = _family(host, models)
    nets = [net for device in host.all("nic") for net in device.nets]
    if not gpus or (family and nets and all(net.number("speed") for net in nets)):
        return None  # a template would add nothing
    similar = [
        facts.name
        for facts in template_facts()
        if family in {None, facts.gpu.spelled} and _is_like(facts, host)
    ]
    if not similar:
        return None
    others = f" (so are {', '.join(similar[1:])})" if similar[1:] else ""
    host.notes.append(f"the machine is like {similar[0]}, by its GPUs, NICs and PCIe{others}")
    return load_node(similar[0])


def _family(host: ImportedHost, models: Sequence[str]) -> str | None:
    """Family of the GPUs by the user, the file or its name; None: none of them names it."""
    if host.asked_gpu is not None:
        return read_gpu(host.asked_gpu).part.spelled
    name = models[0] if models else _spelled_in(host.text)
    return part_of(name).spelled if name else None


def _is_like(facts: TemplateFacts, host: ImportedHost) -> bool:
    """Whether GPUs, NICs and generations of PCIe are those of a machine with a name."""
    gpus, nics, machines = host.all("gpu"), host.all("nic"), hardware_parts()
    infiniband = any(device.pci_class.startswith("0207") for device in nics)
    return (
        (facts.gpus, facts.nics) == (len(gpus), len(nics))
        and facts.layout != "pcie"
        and {facts.gpu.pcie} == {f"pcie{gpu.generation}" for gpu in gpus if gpu.generation}
        and infiniband == (facts.network == "infiniband")
        and facts.name in machines.machines
        and facts.name not in machines.only_if_named
    )


# ---------------------------------------------------------------- GPU


def _gpu(host: ImportedHost, models: Sequence[str]) -> str:
    template = host.template
    refuse_if(
        len(models) > 1,
        "gpu",
        f"GPUs of several kinds: {', '.join(sorted(models))}",
        "one kind",
        host.file,
    )
    by_device = next(iter(models), None)
    family = part_of(by_device).spelled if by_device else None
    asked = template if host.asked_template is not None else None
    if asked is not None and family not in {None, part_of(asked.gpu).spelled}:
        raise host.refuse(
            "template",
            f"{by_device} by its PCI device, and {asked.gpu} in {host.asked_template}",
            "a machine with the GPUs of the file",
        )
    if host.asked_gpu is not None:
        named = read_gpu(host.asked_gpu)
        refuse_if(
            by_device and family != named.part.spelled,
            "gpu",
            f"{by_device} by its PCI device, {host.asked_gpu!r} asked for",
            f"{by_device}",
            host.file,
        )
        host.notes.extend(note.removeprefix("assumption: ") for note in named.assumptions)
        return named.name
    if by_device:
        return by_device
    if template is not None:
        host.notes.append(f"GPUs are {template.gpu}, as in {template.name}")
        return template.gpu
    spelled = _spelled_in(host.text)
    if spelled is None:
        raise host.refuse(
            "gpu",
            "nothing that tells the model of the GPUs",
            "--gpu NAME (such as 'A100-SXM4-80GB') or --template NAME",
        )
    host.notes.append(f"GPUs are {spelled}: the file's name or a comment says so")
    return spelled


def _spelled_in(text: str) -> str | None:
    try:
        return read_gpu(text, "nvlink").name
    except InputError:
        return None


def _by_device(device: Device) -> list[str]:
    """Name of the GPU that a PCI device is, in a list; an empty list where it is not known."""
    known = device.vendor in {"", "10de", "1002"} and device.device
    rows = hardware_parts().gpus.items() if known else ()
    return [name for name, part in rows if device.device in part.devices][:1]


# ---------------------------------------------------------------- devices without a class


def _classify(host: ImportedHost) -> None:
    """Decide what devices without a class are, by how many the template has.

    Raises `InputError`: no template, or its numbers of devices do not fit.
    """
    unknown = host.all("unknown")
    if not unknown:
        return
    count, gpus, nics = len(unknown), host.usual("gpu"), host.usual("nic")
    if host.template is None:
        raise host.refuse(
            "pci.class",
            f"nothing for {count} devices",
            "--template NAME of the machine, which tells what they are",
        )
    if not host.all("gpu") and count == gpus + nics:
        for domain in host.domains:
            for at, device in enumerate(devices_of([domain], "unknown")):
                device.kind = "gpu" if at < gpus // len(host.domains) else "nic"
        note = f"{gpus} of {count} devices without a class are GPUs, the last are NICs"
    elif nics and count % nics == 0:
        for device in unknown:
            device.kind = "nic"
        note = f"the {count} devices without a class are NICs"
    else:
        raise host.refuse(
            "pci.class",
            f"{count} devices without a class",
            f"{gpus} GPUs and {nics} NICs, as {host.template.name} has",
        )
    host.notes.append(note)


def _add_gpus(host: ImportedHost) -> None:
    """Put the template's GPUs under the switches of a file that has none.

    Raises `InputError`: no template, or its GPUs do not spread evenly.
    """
    if host.all("gpu"):
        return
    places, gpus = host.all("switch") or host.domains, host.usual("gpu")
    refuse_if(
        not gpus, "gpu", "no GPU", "--template NAME of the machine, which has them", host.file
    )
    refuse_if(
        gpus % len(places),
        "gpu",
        f"no GPU, and {len(places)} places for {gpus}",
        "a template whose GPUs spread evenly",
        host.file,
    )
    each = gpus // len(places)
    for at in range(gpus):
        places[at // each].children.append(Device("gpu", f"~{at:04d}", 0))
    host.notes.append(f"{gpus} GPUs, {each} per PCIe switch: the file has none")


# ---------------------------------------------------------------- order


def sort_gpus(devices: Sequence[Device], attribute: str) -> list[Device]:
    """GPUs in the order of their numbers in the file, else of their bus ids, as CUDA counts."""
    numbers = {
        id(device): device.gpu.number(attribute) if device.gpu else None for device in devices
    }
    if None in numbers.values() or len(set(numbers.values())) < len(devices):
        return sorted(devices, key=lambda device: device.busid)
    return sorted(devices, key=lambda device: numbers[id(device)] or 0)
