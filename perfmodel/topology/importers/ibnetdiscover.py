"""`ibnetdiscover`: switches, cables and hosts of an InfiniBand fabric, as a listed fabric.

Source of the format: linux-rdma/infiniband-diags, man page ibnetdiscover(8): blocks that begin with
Switch, Ca or Rt, a line per port; every cable stands in both of its ends' blocks.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from perfmodel.errors import Fault, failed, raise_faults, refuse_if
from perfmodel.files import plain, read_yaml
from perfmodel.files.find import data_folder
from perfmodel.memo import applying
from perfmodel.topology.importers.imported import ImportedTopology, natural_key

_BLOCK = re.compile(r'^(Switch|Ca|Rt)\s+(\d+)\s+"([SHR]-[0-9a-fA-F]+)"\s*(?:#\s*"([^"]*)")?')
_PORT = re.compile(r'^\[(\d+)\](?:\([0-9a-fA-F]+\))?\s+"([SHR]-[0-9a-fA-F]+)"\[(\d+)\](.*)$')
_SPEED = re.compile(r"\b(\d+)x(SDR|DDR|QDR|FDR10|FDR|EDR|HDR|NDR|XDR)\b")
_GBPS = {
    "SDR": 2.0,
    "DDR": 4.0,
    "QDR": 8.0,
    "FDR10": 10.0,
    "FDR": 13.64,
    "EDR": 25.0,
    "HDR": 50.0,
    "NDR": 100.0,
    "XDR": 200.0,
}
"""Data rate of one lane in Gbit/s (InfiniBand specification; SDR to QDR are 8b/10b)."""

_NO_HOST = re.compile(r"aggregation node|sharp|\bufm\b|gateway|bridge", re.IGNORECASE)
_MODEL = re.compile(r"MT\d+|Mellanox|ConnectX")
"""Names that adapters have where nobody named them."""

_Hosts = dict[str, list[tuple[str, float | None]]]
"""Leaf switch and rate (Gbit/s) of each NIC, by host."""


@dataclass
class _Block:
    """A switch or an adapter: its ports, by number, with the far end and the rate."""

    kind: str
    guid: str
    name: str
    line: int
    ports: dict[int, tuple[str, int, float | None]] = field(default_factory=dict)


@dataclass
class _Listing:
    """Everything of a file: blocks by identifier."""

    blocks: dict[str, _Block]
    notes: list[str]

    def rate(self, src: str, number: int) -> float | None:
        """Gbit/s of the cable at a port, as either end says."""
        far, far_port, rate = self.blocks[src].ports[number]
        if rate is None and far in self.blocks:
            rate = self.blocks[far].ports.get(far_port, ("", 0, None))[2]
        return rate


def read_fabric(text: str, file: str) -> ImportedTopology:
    """Read a fabric; aggregation nodes of switches, gateways and managers are no hosts.

    Raises `InputError`: no switch, no host, or a block that says nothing; every fault.
    """
    listing = _blocks(text, file)
    names = _switch_names(listing)
    hosts = _hosts(listing, names)
    refuse_if(
        not names or not hosts,
        "file",
        "no host beside a switch" if names else "no switch",
        "switches and hosts, as ibnetdiscover lists them",
        file,
    )
    counts = Counter(map(len, hosts.values()))
    usual = max(counts, key=lambda count: (counts[count], count))
    odd = [host for host, nics in hosts.items() if len(nics) != usual]
    if odd:
        shown = f"({', '.join(odd[:5])}{', ...' if odd[5:] else ''})"
        what = f"hosts with another number of NICs than {usual} are left out"
        listing.notes.append(f"{len(odd)} {what} {shown}")
    hosts = {host: nics for host, nics in hosts.items() if len(nics) == usual}
    trunks = list(_trunks(listing, names))
    description = f"{len(names)} switches, {len(hosts)} hosts of {usual} NICs"
    return ImportedTopology(
        kind="ibnetdiscover",
        document=_document(file, description, hosts, trunks, listing.notes),
        title=f"Imported from {Path(file).name}, ibnetdiscover.",
        notes=tuple(listing.notes),
    )


# ---------------------------------------------------------------- parsing


def _blocks(text: str, file: str) -> _Listing:
    blocks: dict[str, _Block] = {}
    faults: list[Fault] = []
    block: _Block | None = None
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if begins := _BLOCK.match(line):
            kind, _, guid, name = begins.groups()
            block = _Block(kind, guid.lower(), (name or "").strip(), number)
            if block.guid in blocks:
                faults.append(
                    Fault(
                        "block",
                        f"{guid} again (first on line {blocks[block.guid].line})",
                        "each device once",
                        file,
                        number,
                    )
                )
            blocks[block.guid] = block
        elif line.startswith("["):
            port = _PORT.match(line)
            if port is None or block is None:
                allowed = '[port] "S-GUID"[port] # ... 4xHDR'
                faults.append(Fault("port", repr(line[:50]), allowed, file, number))
                continue
            cable = (port[2].lower(), int(port[3]), _rate(port[4]))
            faults += failed(
                (
                    block.ports.setdefault(int(port[1]), cable)[:2] != cable[:2],
                    "port",
                    f"port {port[1]} again, to another device",
                    "each port once",
                ),
                file=file,
                line=number,
            )
    raise_faults((faults or list(_cable_faults(blocks, file)))[:20])
    return _Listing(blocks, _cables_of_one_end(blocks))


def _cable_faults(blocks: Mapping[str, _Block], file: str) -> Iterator[Fault]:
    """Cables whose ends contradict each other, and far ends that have no block: a file cut off."""
    missing = _unlisted(blocks)
    if len(missing) > max(1, _FEW_UNLISTED * len(blocks)):
        first = min(missing)
        yield Fault(
            "block",
            f"{len(missing)} devices at the far end of cables without a block of their own",
            f"a block for each, as for {first} (is the file cut off?)",
            file,
            next(
                block.line
                for block in blocks.values()
                if first in {far for far, _, _ in block.ports.values()}
            ),
        )
    for block in blocks.values():
        for number, (far, far_port, _) in block.ports.items():
            back = blocks[far].ports.get(far_port) if far in blocks else None
            if back is not None and back[:2] != (block.guid, number):
                yield Fault(
                    "port",
                    f"port {number} to {far} port {far_port}, which leads elsewhere",
                    "cables that both ends agree on",
                    file,
                    block.line,
                )


_FEW_UNLISTED = 0.05
"""Share of devices that may lack a block: a host that went down while the fabric was walked."""


def _unlisted(blocks: Mapping[str, _Block]) -> set[str]:
    """Devices at the far end of cables that have no block."""
    return {far for block in blocks.values() for far, _, _ in block.ports.values()} - set(blocks)


def _cables_of_one_end(blocks: Mapping[str, _Block]) -> list[str]:
    """Notes on cables that stand in the block of one end alone (they count), and on its devices."""
    lone = sum(
        far in blocks and far_port not in blocks[far].ports
        for block in blocks.values()
        for far, far_port, _ in block.ports.values()
    )
    return ([f"{lone} cables that only one of their ends names count as well"] if lone else []) + [
        f"{name} has no block of its own and is left out" for name in sorted(_unlisted(blocks))
    ]


def _rate(rest: str) -> float | None:
    speeds = _SPEED.findall(rest)
    return int(speeds[-1][0]) * _GBPS[speeds[-1][1]] if speeds else None


# ---------------------------------------------------------------- names


def _switch_names(listing: _Listing) -> dict[str, str]:
    """Short, unique names of the switches, by identifier."""
    named: dict[str, str] = {}
    uses: Counter[str] = Counter()
    for guid, block in listing.blocks.items():
        if block.kind == "Switch":
            text = block.name.split(";")[-1] or guid
            name = re.sub(r"[^A-Za-z0-9_.:-]+", "-", text).strip("-") or guid
            uses[name] += 1
            named[guid] = name if uses[name] == 1 else f"{name}.{uses[name]}"
    return named


def _hosts(listing: _Listing, switches: Mapping[str, str]) -> _Hosts:
    """Leaf switch and rate of each NIC, host by host, in the order of their names."""
    adapters = [block for block in listing.blocks.values() if block.kind == "Ca"]
    others = Counter(block.name for block in adapters if _NO_HOST.search(block.name))
    hosts: dict[str, list[tuple[Any, str, float | None]]] = {}
    for block in adapters:
        ports = {port: far for port, (far, _, _) in block.ports.items() if far in switches}
        if block.name in others or not ports:
            continue
        host, nic = _host_of(block, listing.notes)
        for port, far in sorted(ports.items()):
            row = (natural_key(f"{nic}:{port:03d}"), switches[far], listing.rate(block.guid, port))
            hosts.setdefault(host, []).append(row)
    listing.notes += [f"{count} x {name!r} is no host" for name, count in others.items()]
    return {
        host: [(leaf, rate) for _, leaf, rate in sorted(hosts[host], key=lambda row: row[0])]
        for host in sorted(hosts, key=natural_key)
    }


def _host_of(block: _Block, notes: list[str]) -> tuple[str, str]:
    """Host and adapter by the words of a Ca: "node1 mlx5_0", "node1 HCA-1", or a model's name."""
    parts = block.name.split()
    if len(parts) >= 2 and not _MODEL.match(parts[0]):
        return parts[0], " ".join(parts[1:])
    note = "adapters whose names are those of their models are hosts of their own"
    if note not in notes:
        notes.append(note)
    return block.guid.removeprefix("h-"), "0"


# ---------------------------------------------------------------- cables


def _trunks(
    listing: _Listing, names: Mapping[str, str]
) -> Iterator[tuple[str, str, int, float | None]]:
    """Cables between switches: two switches, how many of a rate, and that in Gbit/s."""
    rate_of: dict[tuple[tuple[str, int], ...], float | None] = {}
    for guid in names:
        for number, (far, far_port, _) in listing.blocks[guid].ports.items():
            if far in names and far != guid:
                ends = tuple(sorted([(guid, number), (far, far_port)]))
                rate_of.setdefault(ends, listing.rate(guid, number))
    cables = Counter((ends[0][0], ends[1][0], rate) for ends, rate in rate_of.items())
    order = {guid: at for at, guid in enumerate(names)}
    in_order = sorted(cables.items(), key=lambda each: (order[each[0][0]], order[each[0][1]]))
    yield from ((names[a], names[b], count, rate) for (a, b, rate), count in in_order)


def _document(
    file: str,
    description: str,
    hosts: _Hosts,
    trunks: list[tuple[str, str, int, float | None]],
    notes: list[str],
) -> dict[str, Any]:
    shape = plain(read_yaml(data_folder("topologies") / "fabrics" / "one-switch.yaml"))
    rates = sorted({rate for nics in hosts.values() for _, rate in nics if rate})
    of_file = f"the file has NICs of {', '.join(f'{rate:g}' for rate in rates)} Gbit/s"
    notes += applying(
        (True, "times through switches and cables as in one-switch"),
        (rates, f"the host template's NICs; {of_file}"),
        (
            any(rate is None for *_, rate in trunks),
            "cables whose rate the file does not say are as fast as the NICs",
        ),
    )
    times, name = ("switch_latency", "cable_latency"), Path(file).name
    return {
        "perfmodel": 1,
        "kind": "fabric",
        "description": f"{description} (imported)",
        "fabric": {
            "kind": "listed",
            **{key: shape["fabric"][key] for key in times},
            "hosts": [
                {"name": host, "leaves": [leaf for leaf, _ in nics]} for host, nics in hosts.items()
            ],
            "trunks": [
                {"from": a, "to": b, "cables": cables}
                | ({"bandwidth": f"{rate:g} Gbit/s"} if rate else {})
                for a, b, cables, rate in trunks
            ],
        },
        "sources": {
            **{key: shape["sources"][key] for key in times},
            "hosts": f"{name}, its Ca blocks",
            "trunks": f"{name}, its Switch blocks",
        },
    }
