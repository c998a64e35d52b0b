"""NICs of an imported host: what they are, how fast, and which functions are one adapter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfmodel.errors import Fault, InputError
from perfmodel.topology.from_text.parts import usual_nics
from perfmodel.topology.importers.complete import Completion
from perfmodel.topology.importers.nccl_xml.devices import Device, Domain, number
from perfmodel.topology.importers.nccl_xml.safe_xml import Element

MOST_GBPS = 1600
"""Of one adapter yet: ConnectX-9 (NVIDIA's data sheet), two ports of 800 Gbit/s."""
MOST_NICS = 64

_RATES_GBPS = {
    "15b3:1013": 100,
    "15b3:1015": 25,
    "15b3:1017": 100,
    "15b3:1019": 100,
    "15b3:101b": 200,
    "15b3:101d": 100,
    "15b3:1021": 400,
    "15b3:1023": 800,
    "15b3:a2d6": 100,
    "15b3:a2dc": 400,
    "1d0f:efa0": 100,
    "1d0f:efa1": 100,
    "1d0f:efa2": 200,
    "1d0f:efa3": 400,
    "8086:24f0": 100,
}
"""Rate of adapters by PCI vendor and device: the PCI ID Repository (pci-ids.ucw.cz) names the
models, their data sheets the rates (ConnectX-4 to -8, BlueField-2 and -3, EFA, Omni-Path)."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One NIC of the template."""

    devices: tuple[Device, ...]
    """Functions of the file that it represents."""
    domain: Domain
    above: Device | None
    """Switch above it; None: the CPU."""
    network: str
    Bps: float
    """Raw rate; bytes per second."""
    source: str
    """Where the rate is from."""
    gdr: bool | None
    """Whether the file says that it reads GPU memory."""
    shared: int
    """Adapters that share the PCIe lanes of one function."""
    comment: str

    @property
    def lanes(self) -> int:
        """PCIe lanes: those of all its functions, or its share of those of one."""
        return max(1, min(16, sum(device.lanes for device in self.devices)) // self.shared)


def find_adapters(
    domains: Sequence[Domain], completion: Completion, notes: list[str]
) -> list[Adapter]:
    """NICs in the order of their numbers in the file, or as they stand there."""
    rows = [row for domain in domains for row in _functions(domain)]
    if not rows:
        return _from_template(domains, completion, notes)
    functions = _functions_per_adapter(rows, completion, notes)
    adapters = []
    for first in range(0, len(rows), functions):
        devices = tuple(device for device, _, _ in rows[first : first + functions])
        _, above, domain = rows[first]
        adapters += list(_adapters(devices, above, domain, completion, notes))
    if len(adapters) > MOST_NICS:
        problem, allowed = f"{len(adapters)} NICs of one host", f"at most {MOST_NICS}"
        raise InputError(Fault("nic", problem, allowed))
    return adapters


def _functions(domain: Domain) -> Iterator[tuple[Device, Device | None, Domain]]:
    def below(
        devices: Sequence[Device], above: Device | None
    ) -> Iterator[tuple[Device, Device | None, Domain]]:
        for device in devices:
            if device.kind == "nic":
                yield device, above, domain
            else:
                yield from below(device.children, device if device.kind == "switch" else above)

    return below(domain.devices, None)


def _functions_per_adapter(
    rows: Sequence[tuple[Device, Device | None, Domain]], completion: Completion, notes: list[str]
) -> int:
    """EFA devices beside one GPU act as one adapter of several rails (aws-ofi-nccl)."""
    devices = [device for device, _, _ in rows]
    is_efa = _network(devices[0], completion) == "efa"
    adapters = completion.nics or 8
    if not is_efa or len(devices) <= adapters or len(devices) % adapters:
        return 1
    functions = len(devices) // adapters
    places = [id(above) for _, above, _ in rows]
    if any(len(set(places[at : at + functions])) > 1 for at in range(0, len(rows), functions)):
        return 1
    notes.append(f"{functions} EFA devices act as one adapter (aws-ofi-nccl)")
    return functions


def _adapters(
    devices: tuple[Device, ...],
    above: Device | None,
    domain: Domain,
    completion: Completion,
    notes: list[str],
) -> Iterator[Adapter]:
    first = devices[0]
    network = _network(first, completion)
    if network == "roce" and first.vendor != "15b3" and completion.template is None:
        notes.append("Ethernet NICs beside such GPUs speak RoCE v2")
    nets = [net for device in devices for net in device.nets]
    if nets and len(devices) == 1:
        for net in nets:
            Bps, source = _rate_of(net, first, network, completion, notes)
            gdr = number(net, "gdr")
            yield Adapter(
                devices,
                domain,
                above,
                network,
                Bps,
                source,
                None if gdr is None else gdr > 0,
                len(nets),
                f"line {net.line}, net {net.get('name') or ''}".rstrip(),
            )
        return
    Bps, source = _rate(first, network, completion, len(devices), notes)
    yield Adapter(
        devices,
        domain,
        above,
        network,
        Bps,
        source,
        None,
        1,
        f"line {first.line}, pci {first.busid}",
    )


def _network(device: Device, completion: Completion) -> str:
    """Kind of network, by class and vendor, by the names NCCL gives, or by the template."""
    names = " ".join(net.get("name") or "" for net in device.nets)
    if device.pci_class.startswith("0207"):
        return "infiniband"
    if device.vendor == "1d0f" or "efa" in names or "rdmap" in names:
        return "efa"
    if device.pci_class.startswith("0208") or "hfi1" in names:
        return "omni-path"
    template = _template_port(completion)
    if template is not None:
        return template[0]
    rdma = device.vendor == "15b3" or any(word in names for word in ("mlx", "bnxt", "irdma"))
    plain = any(name.startswith(("eth", "en")) for name in names.split())
    return "roce" if rdma or (completion.part.on_board and not plain) else "tcp"


def _template_port(completion: Completion) -> tuple[str, float] | None:
    """Kind of network and rate of the template's NICs."""
    if completion.template is None:
        return None
    ports = [completion.template.links[d.port] for d in completion.template.nodes if d.port]
    return None if not ports else (ports[0].network_kind, ports[0].bandwidth)


def _rate_of(
    net: Element, device: Device, network: str, completion: Completion, notes: list[str]
) -> tuple[float, str]:
    speed = number(net, "speed")
    if speed is not None and speed > MOST_GBPS * 1000:
        problem, allowed = f"{speed:g} Mbit/s", f"at most {MOST_GBPS * 1000:,}"
        raise InputError(Fault("net.speed", problem, allowed, line=net.line))
    if speed is not None and speed > 0:
        return speed * 1e6 / 8, "NCCL's topology file, speed of its net elements"
    return _rate(device, network, completion, 1, notes)


def _rate(
    device: Device, network: str, completion: Completion, functions: int, notes: list[str]
) -> tuple[float, str]:
    """Rate of an adapter where the file does not state it."""
    template = _template_port(completion)
    if template is not None and completion.template is not None:
        note = f"NICs of {template[1] * 8e-9:g} Gbit/s, as in {completion.template.name}"
        notes.append(note)
        return template[1], f"assumption: {note}"
    by_device = _RATES_GBPS.get(f"{device.vendor}:{device.device}")
    if by_device is not None:
        note = f"NICs of {by_device * functions:g} Gbit/s, by their PCI device {device.device}"
        notes.append(note)
        return by_device * functions * 1e9 / 8, f"assumption: {note}"
    _, usual_Bps = usual_nics(network, completion.part.spelled)
    note = f"NICs of {usual_Bps * 8e-9:g} Gbit/s, usual for this GPU and kind of network"
    notes.append(note)
    return usual_Bps, f"assumption: {note}"


def _from_template(
    domains: Sequence[Domain], completion: Completion, notes: list[str]
) -> list[Adapter]:
    """NICs of the template, spread evenly, for a file that has none."""
    template = _template_port(completion)
    if template is None or not completion.nics:
        notes.append("no NICs: the file has none")
        return []
    network, Bps = template
    places: list[tuple[Device | None, Domain]] = [
        (device, domain)
        for domain in domains
        for device in domain.walk()
        if device.kind == "switch"
    ] or [(None, domain) for domain in domains]
    name = completion.template.name if completion.template else ""
    notes.append(f"{completion.nics} NICs of {name}, spread evenly: the file has none")
    source = f"assumption: as in {name}"
    return [
        Adapter(
            (Device("nic", "", 0),), place[1], place[0], network, Bps, source, None, 1, "assumed"
        )
        for at in range(completion.nics)
        for place in [places[at * len(places) // completion.nics]]
    ]
