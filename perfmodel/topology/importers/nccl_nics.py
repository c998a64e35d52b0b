"""NICs of an imported host: what they are, how fast, and which functions are one adapter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from perfmodel.errors import refuse_if
from perfmodel.memo import first_applying
from perfmodel.topology.from_text.parts import usual_nics
from perfmodel.topology.importers.complete import ImportedHost
from perfmodel.topology.importers.nccl_devices import Device, Domain
from perfmodel.topology.importers.safe_xml import Element

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

_Place = tuple[Device, Device | None, Domain]
"""A function, the switch above it (None: the CPU), and its NUMA domain."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """One NIC of the template.

    Parameters
    ----------
    devices : tuple of Device
        Functions of the file that it represents.
    above : Device or None
        Switch above it; None: the CPU.
    domain : Domain
    network : str
    Bps : float
        Raw rate; bytes per second.
    source : str
        Where the rate is from.
    comment : str
        Where the adapter is from.
    gdr : bool, optional
        Whether the file says that it reads GPU memory.
    shared : int
        Adapters that share the PCIe lanes of one function.
    """

    devices: tuple[Device, ...]
    above: Device | None
    domain: Domain
    network: str
    Bps: float
    source: str
    comment: str
    gdr: bool | None = None
    shared: int = 1

    @property
    def lanes(self) -> int:
        """PCIe lanes: those of all its functions, or its share of those of one."""
        return max(1, min(16, sum(device.lanes for device in self.devices)) // self.shared)


def find_adapters(host: ImportedHost) -> list[Adapter]:
    """NICs in the order of their numbers in the file, or as they stand there."""
    places = [
        (device, above, domain) for domain in host.domains for device, above in _functions(domain)
    ]
    if not places:
        return _from_template(host)
    functions = _functions_per_adapter(places, host)
    adapters = [
        adapter
        for first in range(0, len(places), functions)
        for adapter in _adapters(places[first : first + functions], host)
    ]
    refuse_if(
        len(adapters) > MOST_NICS,
        "nic",
        f"{len(adapters)} NICs of one host",
        f"at most {MOST_NICS}",
    )
    return adapters


def _functions(
    device: Device, above: Device | None = None
) -> Iterator[tuple[Device, Device | None]]:
    """Yield the NICs below a device, each with the switch above it."""
    for child in device.children:
        if child.kind == "nic":
            yield child, above
        else:
            yield from _functions(child, child if child.kind == "switch" else above)


def _functions_per_adapter(places: Sequence[_Place], host: ImportedHost) -> int:
    """EFA devices beside one GPU act as one adapter of several rails (aws-ofi-nccl)."""
    functions, rest = divmod(len(places), host.usual("nic") or 8)
    if _network(places[0][0], host) != "efa" or functions < 2 or rest:
        return 1
    above = [id(switch) for _, switch, _ in places]
    if any(len(set(above[at : at + functions])) > 1 for at in range(0, len(above), functions)):
        return 1
    host.notes.append(f"{functions} EFA devices act as one adapter (aws-ofi-nccl)")
    return functions


def _adapters(places: Sequence[_Place], host: ImportedHost) -> Iterator[Adapter]:
    """Yield the adapters of some functions: each net of a single one, or all functions as one."""
    devices = tuple(device for device, _, _ in places)
    first, above, domain = places[0]
    network = _network(first, host)
    if network == "roce" and first.vendor != "15b3" and host.template is None:
        host.notes.append("Ethernet NICs beside such GPUs speak RoCE v2")
    nets = first.nets if len(devices) == 1 else []
    each_net: Sequence[Element | None] = nets or [None]
    for net in each_net:
        Bps, source = _rate(first, net, network, len(devices), host)
        gdr = None if net is None else net.number("gdr")
        comment = (
            f"line {first.line}, pci {first.busid}"
            if net is None
            else f"line {net.line}, net {net.get('name') or ''}".rstrip()
        )
        reads = None if gdr is None else gdr > 0
        yield Adapter(
            devices, above, domain, network, Bps, source, comment, reads, max(1, len(nets))
        )


def _network(device: Device, host: ImportedHost) -> str:
    """Kind of network, by class and vendor, by the names NCCL gives, or by the template."""
    names = " ".join(net.get("name") or "" for net in device.nets)
    rdma = device.vendor == "15b3" or any(word in names for word in ("mlx", "bnxt", "irdma"))
    plain = any(name.startswith(("eth", "en")) for name in names.split())
    usual = "roce" if rdma or (host.part.on_board and not plain) else "tcp"
    return first_applying(
        (device.pci_class.startswith("0207"), "infiniband"),
        (device.vendor == "1d0f" or "efa" in names or "rdmap" in names, "efa"),
        (device.pci_class.startswith("0208") or "hfi1" in names, "omni-path"),
        (True, host.port.network_kind if host.port else usual),
    )


def _rate(
    device: Device, net: Element | None, network: str, functions: int, host: ImportedHost
) -> tuple[float, str]:
    """Rate of an adapter and its source: as the file states it, or else as is assumed."""
    speed, line = (net.number("speed") or 0.0, net.line) if net is not None else (0.0, None)
    refuse_if(
        speed > MOST_GBPS * 1000,
        "net.speed",
        f"{speed:g} Mbit/s",
        f"at most {MOST_GBPS * 1000:,}",
        line=line,
    )
    if speed > 0:
        return speed * 1e6 / 8, "NCCL's topology file, speed of its net elements"
    by_device = _RATES_GBPS.get(f"{device.vendor}:{device.device}")
    if host.port is not None and host.template is not None:
        Bps, why = host.port.bandwidth, f"as in {host.template.name}"
    elif by_device is not None:
        Bps, why = by_device * functions * 1e9 / 8, f"by their PCI device {device.device}"
    else:
        _, Bps = usual_nics(network, host.part.spelled)
        why = "usual for this GPU and kind of network"
    note = f"NICs of {Bps * 8e-9:g} Gbit/s, {why}"
    host.notes.append(note)
    return Bps, f"assumption: {note}"


def _from_template(host: ImportedHost) -> list[Adapter]:
    """NICs of the template, spread evenly, for a file that has none."""
    port, count = host.port, host.usual("nic")
    if port is None or host.template is None:
        host.notes.append("no NICs: the file has none")
        return []
    places: list[tuple[Device | None, Domain]] = [
        (device, domain)
        for domain in host.domains
        for device in domain.walk()
        if device.kind == "switch"
    ] or [(None, domain) for domain in host.domains]
    name = host.template.name
    host.notes.append(f"{count} NICs of {name}, spread evenly: the file has none")
    return [
        Adapter(
            (Device("nic", "", 0),),
            *places[at * len(places) // count],
            port.network_kind,
            port.bandwidth,
            f"assumption: as in {name}",
            "assumed",
        )
        for at in range(count)
    ]
