"""The devices of an NCCL topology XML as a tree: CPUs, PCIe switches, GPUs, NICs.

Source of the rules: NVIDIA/nccl 2.30.7 ``src/graph/xml.cc`` and ``topo.cc``: classes by prefix, a
missing speed or width means 16 lanes of the usual generation, Broadcom switches that appear as two
levels are one.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

from perfmodel.errors import Fault, failed, raise_faults
from perfmodel.memo import first_applying, grouped
from perfmodel.topology.from_text.parts import cpu_named
from perfmodel.topology.importers.safe_xml import Element

DeviceKind = Literal["cpu", "gpu", "nic", "switch", "nvswitch", "unknown"]

_CLASSES: tuple[tuple[str, DeviceKind], ...] = (
    ("0x060400", "switch"),
    ("0x080100", "switch"),
    ("0x068000", "nvswitch"),
    ("0x03", "gpu"),
    ("0x02", "nic"),
)
_GENERATIONS = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}


@dataclass
class Device:
    """One PCI function, or a network port without one.

    Parameters
    ----------
    kind : DeviceKind
    busid : str
    line : int
        Where it stands in the file.
    generation, lanes : int
        Of its PCIe link; no generation where the file does not say.
    vendor, device, pci_class : str
        Identifiers as the file has them, in lower case, without ``0x``.
    level : int
        Of a Broadcom switch that appears as two: 1 upper, 2 lower; 0 for all else.
    gpu, nets : Element, list of Element
        The elements that say that it is a GPU, or a NIC.
    children : list of Device
    """

    kind: DeviceKind
    busid: str
    line: int
    generation: int | None = None
    lanes: int = 16
    vendor: str = ""
    device: str = ""
    pci_class: str = ""
    level: int = 0
    gpu: Element | None = None
    nets: list[Element] = field(default_factory=list)
    children: list[Device] = field(default_factory=list)

    def walk(self) -> Iterator[Device]:
        """Yield the device and all below it, in file order."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass
class Domain(Device):
    """A CPU: one NUMA domain.

    Parameters
    ----------
    number : int
    part : str or None
        Name of its generation among the parts; None where the file does not say.
    """

    number: int = 0
    part: str | None = None


def devices_of(domains: Sequence[Domain], kind: DeviceKind) -> list[Device]:
    """All devices of a kind, in file order."""
    return [device for domain in domains for device in domain.walk() if device.kind == kind]


def read_domains(root: Element, file: str) -> list[Domain]:
    """Read the devices.

    Raises `InputError`: another version, no CPUs, devices named twice, numbers that are none; every
    fault.
    """
    faults = failed(
        (
            root.get("version") not in {None, "1", "2"},
            "system",
            f"version {root.get('version')!r}",
            "version 1, or RCCL's 2",
        ),
        file=file,
        line=root.line,
    )
    domains = [_domain(cpu, at, file, faults) for at, cpu in enumerate(root.all("cpu"))]
    faults += failed(
        (not domains, "system", "no cpu element", "one per NUMA domain"), file=file, line=root.line
    )
    faults += _number_faults(root, domains, file)
    by_bus = grouped(
        (each.busid, each) for domain in domains for each in domain.walk() if each.busid
    )
    faults += [
        Fault(
            "pci",
            f"busid {busid!r} again (first on line {first.line})",
            "each device once",
            file,
            device.line,
        )
        for busid, (first, *again) in by_bus.items()
        for device in again
    ]
    raise_faults(faults)
    for domain in domains:
        _flatten(domain)
    return domains


def _number_faults(root: Element, domains: list[Domain], file: str) -> list[Fault]:
    """One NUMA domain twice; where several hosts stand in the file, they are numbered through."""
    numbers = [domain.number for domain in domains]
    if len(set(numbers)) == len(numbers):
        return []
    if len({cpu.get("host_hash") for cpu in root.all("cpu")}) > 1:  # hosts that NVLink joins
        for at, domain in enumerate(domains):
            domain.number = at
        return []
    return [
        Fault(
            "cpu",
            f"numaid {numbers} with one number twice",
            "each NUMA domain once",
            file,
            root.line,
        )
    ]


def _domain(cpu: Element, at: int, file: str, faults: list[Fault]) -> Domain:
    number = _integer(cpu, "numaid", file, faults, default=at)
    faults += failed((number < 0, "cpu.numaid", str(number), "0 or more"), file=file, line=cpu.line)
    vendor = cpu.get("vendor") or {"arm64": "ARM", "ppc64": "IBM"}.get(cpu.get("arch") or "", "")
    family, model = (
        _integer(cpu, name, file, faults, default=0) if vendor else 0
        for name in ("familyid", "modelid")
    )
    nets = [[net for net in nic.all("net") if not is_virtual(net)] for nic in cpu.all("nic")]
    return Domain(
        "cpu",
        "",
        cpu.line,
        children=[
            *(_device(pci, file, faults) for pci in cpu.all("pci")),
            *(
                Device("nic", f"cpu{number}-nic{i}", nic.line, nets=own)
                for i, (nic, own) in enumerate(zip(cpu.all("nic"), nets, strict=True))
                if own
            ),
        ],
        number=number,
        part=cpu_named(vendor, family, model) if vendor else None,
    )


_VIRTUAL = re.compile(
    r"(?:veth|docker|br-|virbr|vnet|tun|tap|cali|cni|flannel|cilium|lxc|lxd|kube|nodelocaldns|weave"
    r"|vxlan|genev|ovs|dummy|podman|wg|tailscale|zt|ifb|gre|sit|ipvlan|macvlan|lo\b)",
    re.IGNORECASE,
)
"""Names of interfaces that are no hardware: bridges, tunnels and pairs of Linux, Docker and
Kubernetes."""


def is_virtual(net: Element) -> bool:
    """Whether a network interface is no hardware; NCCL lists all that it could open sockets on."""
    return _VIRTUAL.match(net.get("name") or "") is not None


def _device(pci: Element, file: str, faults: list[Fault]) -> Device:
    children = [_device(child, file, faults) for child in pci.all("pci")]
    nets = [net for nic in pci.all("nic") for net in nic.all("net")]
    speed = re.match(r"(\d+(?:\.\d+)?)\s*GT/s", pci.get("link_speed") or "")
    width = _integer(pci, "link_width", file, faults, default=0)
    return Device(
        kind=_kind(pci, has_nets=bool(nets), has_children=bool(children)),
        busid=(pci.get("busid") or "").lower(),
        line=pci.line,
        generation=_GENERATIONS.get(float(speed[1])) if speed else None,
        lanes=width if 0 < width <= 32 else 16,
        vendor=_identifier(pci, "vendor"),
        device=_identifier(pci, "device"),
        pci_class=_identifier(pci, "class"),
        level=_level(pci),
        gpu=next(iter(pci.all("gpu")), None),
        nets=nets,
        children=children,
    )


def _kind(pci: Element, *, has_nets: bool, has_children: bool) -> DeviceKind:
    """Kind of a device: by what stands in it, else by its class."""
    pci_class = (pci.get("class") or "").lower()
    by_class = (kind for prefix, kind in _CLASSES if pci_class.startswith(prefix))
    return first_applying(
        (bool(pci.all("gpu")), "gpu"),
        (has_nets, "nic"),
        (has_children, "switch"),
        (True, next(by_class, "switch" if pci_class else "unknown")),
    )


def _level(pci: Element) -> int:
    """Level of a Broadcom Gen4 or Gen5 switch, as NCCL's getBcmGen finds it; 0: none."""
    *model, own = (
        _identifier(pci, name)
        for name in ("vendor", "device", "subsystem_vendor", "subsystem_device")
    )
    return first_applying(
        (
            model == ["1000", "c030", "1000"] and len(own) == 4,
            {"0": 1, "1": 2}.get(own[:1], 0),
        ),
        (
            model == ["1000", "c010", "1000"] and own.startswith("a0"),
            2 if own >= "a001" else 1,
        ),
        (True, 0),
    )


def _flatten(device: Device) -> None:
    """Move the devices of lower Broadcom switches to the upper one."""
    flat: list[Device] = []
    for child in device.children:
        _flatten(child)
        flat += child.children if device.level == 1 and child.level == 2 else [child]
    device.children[:] = flat


def _identifier(pci: Element, name: str) -> str:
    return (pci.get(name) or "").lower().removeprefix("0x")


def _integer(element: Element, name: str, file: str, faults: list[Fault], *, default: int) -> int:
    text = element.get(name)
    if text is None:
        return default
    if re.fullmatch(r"-?\d{1,9}", text):
        return int(text)
    faults.append(
        Fault(f"{element.tag}.{name}", repr(text[:40]), "a whole number", file, element.line)
    )
    return default
