"""The devices of an NCCL topology XML as a tree: CPUs, PCIe switches, GPUs, NICs.

Source of the rules: NVIDIA/nccl 2.30.7 ``src/graph/xml.cc`` and ``topo.cc``: classes by prefix, a
missing speed or width means 16 lanes of the usual generation, Broadcom switches that appear as two
levels are one.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.parts import cpu_named
from perfmodel.topology.importers.nccl_xml.safe_xml import Element

DeviceKind = Literal["gpu", "nic", "switch", "nvswitch", "unknown"]

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
    """One PCI function, or a network port without one."""

    kind: DeviceKind
    busid: str
    line: int
    generation: int | None = None
    """Of its PCIe link; None where the file does not say."""
    lanes: int = 16
    vendor: str = ""
    device: str = ""
    pci_class: str = ""
    """`vendor`, `device` and `pci_class`: identifiers as the file has them, in lower case, without
    ``0x``."""
    level: int = 0
    """Of a Broadcom switch that appears as two: 1 upper, 2 lower; 0 for all else."""
    gpu: Element | None = None
    nets: list[Element] = field(default_factory=list)
    children: list[Device] = field(default_factory=list)

    def walk(self) -> Iterator[Device]:
        """Yield the device and all below it, in file order."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass
class Domain:
    """A CPU: one NUMA domain."""

    number: int
    part: str | None
    """Name of its generation among the parts; None where the file does not say."""
    line: int
    devices: list[Device]

    def walk(self) -> Iterator[Device]:
        """Yield all devices below it, in file order."""
        for device in self.devices:
            yield from device.walk()


def read_domains(root: Element, file: str) -> list[Domain]:
    """Read the devices.

    Raises `InputError`: another version, no CPUs, devices named twice, numbers that are none; every
    fault.
    """
    faults: list[Fault] = []
    if (amd := _amd_gpu(root)) is not None:
        raise InputError(
            Fault(
                "gpu",
                f"AMD GPUs ({amd.get('gcn') or 'XGMI'}), in a topology of RCCL",
                "NVIDIA GPUs: links of AMD's (XGMI) are not imported; describe the node in YAML",
                file,
                amd.line,
            )
        )
    if root.get("version") not in {None, "1"}:
        faults.append(
            Fault("system", f"version {root.get('version')!r}", "version 1", file, root.line)
        )
    domains = [_domain(cpu, at, file, faults) for at, cpu in enumerate(root.all("cpu"))]
    if not domains:
        faults.append(Fault("system", "no cpu element", "one per NUMA domain", file, root.line))
    faults += _number_faults(root, domains, file)
    by_bus: dict[str, Device] = {}
    for device in (d for domain in domains for d in domain.walk()):
        if device.busid in by_bus and device.busid:
            faults.append(
                Fault(
                    "pci",
                    f"busid {device.busid!r} again (first on line {by_bus[device.busid].line})",
                    "each device once",
                    file,
                    device.line,
                )
            )
        by_bus[device.busid] = device
    if faults:
        raise InputError(faults)
    for domain in domains:
        for device in domain.devices:
            _flatten(device)
    return domains


def _amd_gpu(element: Element) -> Element | None:
    """The first GPU of AMD, which RCCL's files name by ``gcn`` and join by ``xgmi``."""
    for child in element.children:
        is_amd = child.tag == "gpu" and (child.get("gcn") is not None or child.all("xgmi"))
        if is_amd:
            return child
        if (below := _amd_gpu(child)) is not None:
            return below
    return None


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
    if number < 0:
        faults.append(Fault("cpu.numaid", str(number), "0 or more", file, cpu.line))
    vendor = cpu.get("vendor") or {"arm64": "ARM", "ppc64": "IBM"}.get(cpu.get("arch") or "", "")
    part = None
    if vendor:
        family = _integer(cpu, "familyid", file, faults, default=0)
        part = cpu_named(vendor, family, _integer(cpu, "modelid", file, faults, default=0))
    devices = [_device(pci, file, faults) for pci in cpu.all("pci")]
    for i, nic in enumerate(cpu.all("nic")):
        nets = [net for net in nic.all("net") if not is_virtual(net)]
        if nets:
            devices.append(Device("nic", f"cpu{number}-nic{i}", nic.line, nets=nets))
    return Domain(number, part, cpu.line, devices)


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
    gpus = pci.all("gpu")
    nets = [net for nic in pci.all("nic") for net in nic.all("net")]
    pci_class = (pci.get("class") or "").lower()
    kind = next((kind for prefix, kind in _CLASSES if pci_class.startswith(prefix)), None)
    if gpus:
        kind = "gpu"
    elif nets:
        kind = "nic"
    elif children:
        kind = "switch"
    elif kind is None:
        kind = "switch" if pci_class else "unknown"
    speed = re.match(r"(\d+(?:\.\d+)?)\s*GT/s", pci.get("link_speed") or "")
    width = _integer(pci, "link_width", file, faults, default=0)
    return Device(
        kind=kind,
        busid=(pci.get("busid") or "").lower(),
        line=pci.line,
        generation=_GENERATIONS.get(float(speed[1])) if speed else None,
        lanes=width if 0 < width <= 32 else 16,
        vendor=_identifier(pci.get("vendor")),
        device=_identifier(pci.get("device")),
        pci_class=pci_class.removeprefix("0x"),
        level=_level(pci),
        gpu=gpus[0] if gpus else None,
        nets=nets,
        children=children,
    )


def _level(pci: Element) -> int:
    """Level of a Broadcom Gen4 or Gen5 switch, as NCCL's getBcmGen finds it; 0: none."""
    identifiers = [
        _identifier(pci.get(name))
        for name in ("vendor", "device", "subsystem_vendor", "subsystem_device")
    ]
    if identifiers[:3] == ["1000", "c030", "1000"] and len(identifiers[3]) == 4:
        return {"0": 1, "1": 2}.get(identifiers[3][0], 0)
    if identifiers[:3] == ["1000", "c010", "1000"] and identifiers[3].startswith("a0"):
        return 2 if identifiers[3] >= "a001" else 1
    return 0


def _flatten(device: Device) -> None:
    """Move the devices of lower Broadcom switches to the upper one."""
    flat: list[Device] = []
    for child in device.children:
        _flatten(child)
        flat += child.children if device.level == 1 and child.level == 2 else [child]
    device.children[:] = flat


def _identifier(text: str | None) -> str:
    return (text or "").lower().removeprefix("0x")


def _integer(element: Element, name: str, file: str, faults: list[Fault], *, default: int) -> int:
    text = element.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"-?\d{1,9}", text):
        faults.append(
            Fault(f"{element.tag}.{name}", repr(text[:40]), "a whole number", file, element.line)
        )
        return default
    return int(text)


def number(element: Element | None, name: str) -> float | None:
    """A number among the attributes; None where there is none, or one that is not finite."""
    text = element.get(name) if element is not None else None
    try:
        value = None if text is None else float(text)
    except ValueError:
        return None
    return value if value is None or math.isfinite(value) else None
