"""What a topology file leaves open: the GPU, the machine, devices without a class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.gpu_text import read_gpu
from perfmodel.topology.from_text.match_template import TemplateFacts, template_facts
from perfmodel.topology.from_text.parts import GpuConnector, hardware_parts
from perfmodel.topology.importers.nccl_xml.devices import Device, Domain, number
from perfmodel.topology.templates.build import load_node
from perfmodel.topology.templates.spec import NodeSpec, device_names


@dataclass(frozen=True, slots=True)
class Hints:
    """What is known of the machine besides the elements of its file."""

    file: str
    """Its name, for messages."""
    text: str
    """Its name and comments, in lower case."""
    gpu: str | None = None
    template: str | None = None
    """`gpu` and `template`: as the user named them."""

    def refuse(self, field: str, problem: str, allowed: str) -> InputError:
        """Return the error for something that is missing or wrong in the file."""
        return InputError(Fault(field, problem, allowed, self.file))


@dataclass(frozen=True, slots=True)
class Completion:
    """GPU and template by which a file is completed."""

    gpu: str
    """Name in the table of GPUs."""
    part: GpuConnector
    template: NodeSpec | None
    """Machine from which the rest is completed."""
    notes: tuple[str, ...]
    """What was assumed."""

    @property
    def gpus(self) -> int:
        """GPUs of the template; 0 without one."""
        return len(device_names(self.template, "gpu")) if self.template else 0

    @property
    def nics(self) -> int:
        """NICs of the template; 0 without one."""
        return len(device_names(self.template, "nic")) if self.template else 0


def complete_machine(domains: Sequence[Domain], hints: Hints) -> Completion:
    """Find GPU and machine by the user, the file, its name, or its structure.

    Raises `InputError`: neither the file nor the user names the GPU; or the two disagree.
    """
    notes: list[str] = []
    template = _template(domains, hints, notes)
    gpu = _gpu(domains, hints, template, notes)
    part = part_of(gpu)
    if template is not None and hints.template is None:
        notes.append(f"what the file leaves open is as in the template {template.name}")
    return Completion(gpu, part, template, tuple(notes))


def part_of(gpu: str) -> GpuConnector:
    """How a GPU of the table is plugged in."""
    parts = hardware_parts().gpus
    return parts[gpu] if gpu in parts else read_gpu(gpu).part


# ---------------------------------------------------------------- machine


def _template(domains: Sequence[Domain], hints: Hints, notes: list[str]) -> NodeSpec | None:
    """Template of the machine: the user's, the one that the file names, or the first like it."""
    if hints.template is not None:
        node = load_node(hints.template)
        notes.append(f"what the file leaves open is as in {hints.template}, as was asked")
        return node
    gpus = _kind(domains, "gpu")
    if any(device.gpu is not None for device in gpus):
        return None  # NCCL wrote the file: it leaves nothing open
    named = next((facts for facts in template_facts() if facts.is_named_in(hints.text)), None)
    if named is not None and (not gpus or len(gpus) <= named.gpus):
        notes.append(f"{named.name}: the file's name or a comment says so")
        return load_node(named.name)
    family = _family(domains, hints)
    nets = [net for device in _kind(domains, "nic") for net in device.nets]
    if not gpus or (family and nets and all(number(net, "speed") for net in nets)):
        return None  # a template would add nothing
    similar = [
        facts.name
        for facts in template_facts()
        if family in {None, facts.gpu.spelled} and _is_like(facts, domains)
    ]
    if not similar:
        return None
    others = f" (so are {', '.join(similar[1:])})" if similar[1:] else ""
    notes.append(f"the machine is like {similar[0]}, by its GPUs, NICs and PCIe{others}")
    return load_node(similar[0])


def _family(domains: Sequence[Domain], hints: Hints) -> str | None:
    """Family of the GPUs by the user, the file or its name; None: none of them names it."""
    if hints.gpu is not None:
        return read_gpu(hints.gpu).part.spelled
    models = [name for device in _kind(domains, "gpu") for name in [_by_device(device)] if name]
    name = models[0] if models else _spelled_in(hints.text)
    return part_of(name).spelled if name else None


def _is_like(facts: TemplateFacts, domains: Sequence[Domain]) -> bool:
    """Whether GPUs, NICs and generations of PCIe are those of a machine with a name."""
    gpus, nics = _kind(domains, "gpu"), _kind(domains, "nic")
    if facts.gpus != len(gpus) or facts.layout == "pcie" or facts.nics != len(nics):
        return False
    generations = {f"pcie{device.generation}" for device in gpus if device.generation}
    infiniband = any(device.pci_class.startswith("0207") for device in nics)
    same = {facts.gpu.pcie} == generations and infiniband == (facts.network == "infiniband")
    machines = hardware_parts()
    return same and facts.name in machines.machines and facts.name not in machines.only_if_named


# ---------------------------------------------------------------- GPU


def _gpu(
    domains: Sequence[Domain], hints: Hints, template: NodeSpec | None, notes: list[str]
) -> str:
    models = {name for device in _kind(domains, "gpu") for name in [_by_device(device)] if name}
    if len(models) > 1:
        raise hints.refuse("gpu", f"GPUs of several kinds: {', '.join(sorted(models))}", "one kind")
    if hints.template is not None and template is not None and models:
        (model,) = models
        if part_of(template.gpu).spelled != part_of(model).spelled:
            raise hints.refuse(
                "template",
                f"{model} by its PCI device, and {template.gpu} in {hints.template}",
                "a machine with the GPUs of the file",
            )
    if hints.gpu is not None:
        named = read_gpu(hints.gpu)
        if models and part_of(next(iter(models))).spelled != named.part.spelled:
            other = next(iter(models))
            raise hints.refuse("gpu", f"{other} by its PCI device, {hints.gpu!r} asked for", other)
        notes.extend(note.removeprefix("assumption: ") for note in named.assumptions)
        return named.name
    if models:
        return next(iter(models))
    if template is not None:
        notes.append(f"GPUs are {template.gpu}, as in {template.name}")
        return template.gpu
    spelled = _spelled_in(hints.text)
    if spelled is not None:
        notes.append(f"GPUs are {spelled}: the file's name or a comment says so")
        return spelled
    raise hints.refuse(
        "gpu",
        "nothing that tells the model of the GPUs",
        "--gpu NAME (such as 'A100-SXM4-80GB') or --template NAME",
    )


def _spelled_in(text: str) -> str | None:
    try:
        return read_gpu(text, "nvlink").name
    except InputError:
        return None


def _by_device(device: Device) -> str | None:
    if device.vendor not in {"", "10de"} or not device.device:
        return None
    rows = (name for name, part in hardware_parts().gpus.items() if device.device in part.devices)
    return next(rows, None)


def _kind(domains: Sequence[Domain], kind: str) -> list[Device]:
    return [device for domain in domains for device in domain.walk() if device.kind == kind]


# ---------------------------------------------------------------- devices without a class


def classify(domains: Sequence[Domain], completion: Completion, hints: Hints) -> tuple[str, ...]:
    """Decide what devices without a class are, by how many the template has; returns notes.

    Raises `InputError`: no template, or its numbers of devices do not fit.
    """
    unknown = _kind(domains, "unknown")
    if not unknown:
        return ()
    count = len(unknown)
    if completion.template is None:
        raise hints.refuse(
            "pci.class",
            f"nothing for {count} devices",
            "--template NAME of the machine, which tells what they are",
        )
    if not _kind(domains, "gpu") and count == completion.gpus + completion.nics:
        _first_are_gpus(domains, completion.gpus)
        return (
            f"{completion.gpus} of {count} devices without a class are GPUs, the last are NICs",
        )
    if completion.nics and count % completion.nics == 0:
        for device in unknown:
            device.kind = "nic"
        return (f"the {count} devices without a class are NICs",)
    raise hints.refuse(
        "pci.class",
        f"{count} devices without a class",
        f"{completion.gpus} GPUs and {completion.nics} NICs, as {completion.template.name} has",
    )


def _first_are_gpus(domains: Sequence[Domain], gpus: int) -> None:
    per_domain = gpus // len(domains)
    for domain in domains:
        for at, device in enumerate(d for d in domain.walk() if d.kind == "unknown"):
            device.kind = "gpu" if at < per_domain else "nic"


def add_gpus(domains: Sequence[Domain], completion: Completion, hints: Hints) -> tuple[str, ...]:
    """Put the template's GPUs under the switches of a file that has none; returns notes.

    Raises `InputError`: no template, or its GPUs do not spread evenly.
    """
    if _kind(domains, "gpu"):
        return ()
    switches = [d for domain in domains for d in domain.walk() if d.kind == "switch"]
    places: list[list[Device]] = [d.children for d in switches] or [d.devices for d in domains]
    if not completion.gpus:
        raise hints.refuse("gpu", "no GPU", "--template NAME of the machine, which has them")
    if completion.gpus % len(places):
        raise hints.refuse(
            "gpu",
            f"no GPU, and {len(places)} places for {completion.gpus}",
            "a template whose GPUs spread evenly",
        )
    per_place = completion.gpus // len(places)
    for at, place in enumerate(places):
        for i in range(per_place):
            place.append(Device("gpu", f"~{at * per_place + i:04d}", 0))
    return (f"{completion.gpus} GPUs, {per_place} per PCIe switch: the file has none",)


# ---------------------------------------------------------------- order


def sort_gpus(devices: Sequence[Device], attribute: str) -> list[Device]:
    """GPUs in the order of their numbers in the file, else of their bus ids, as CUDA counts."""
    numbers = [number(device.gpu, attribute) for device in devices]
    if all(value is not None for value in numbers) and len(set(numbers)) == len(devices):
        return [
            d for _, d in sorted(zip(numbers, devices, strict=True), key=lambda row: row[0] or 0)
        ]
    return sorted(devices, key=lambda device: device.busid)
