"""Machines of processes on shaped links, as a row of a table of real runs describes them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from perfmodel.files import validate_document
from perfmodel.files.csv_rows import Record
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.topology.faults import degrade_links, find_arcs
from perfmodel.topology.templates.build import build_topology, load_node
from perfmodel.topology.templates.spec import FabricSpec, NodeSpec, SocketsSpec

ROUND_TRIP_S = 47e-6
"""Of 64 bytes over plain TCP on these links without added latency, where no file says it."""
ACKNOWLEDGED_BYTES = 66
"""Bytes of the acknowledgement of two segments (Ethernet, IP and TCP headers with timestamps)."""
FRAME_BYTES, HEADER_BYTES = 14, 52
"""Of Ethernet around, and of IP and TCP with timestamps inside, what an MTU counts."""
SMALL_MTU, JUMBO_MTU, SLOW_MBIT = 1500, 9000, 500
"""Buckets of the own runs hold four frames of 1500 bytes, and 500 bytes more than two larger ones,
or than four of 9000 bytes above 500 Mbit/s."""
TEMPLATE = "shaped-ethernet"
CALL, MESSAGE_ENDS = "call", 8
"""Rows with the CPU time of a small all-reduce of two processes: four messages out, four in."""
LEAST_MESSAGE = 2**20
"""Bytes from which on messages tell a link's rate."""

Link = tuple[str, str, str]
"""Rate in Mbit/s, MTU and delay in microseconds, as numbers without trailing zeros."""


@dataclass(frozen=True, slots=True)
class Links:
    """What plain TCP reached on the links: payload over line rate by (rate, MTU), round trips.

    And how fast the cores were, by (rate, MTU).
    """

    payload_share: Mapping[tuple[str, str], float]
    round_trip_us: Mapping[Link, float]
    core_speed: Mapping[tuple[str, str], float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ShapedCluster:
    """Hosts of one process each, on shaped links.

    Parameters
    ----------
    rate_Bps : float
        Of payload, on every host's link.
    one_way_s : float
    racks : tuple of int
        Of each rank; all 0 on one switch.
    trunk_Bps : float, optional
        Between racks.
    slow : tuple of (int, str, float)
        Ranks whose link is slower: "up" or "down", and its rate.
    burst_bytes, frame_bytes : float
    workers, cores : int
    core_speed : float
    """

    rate_Bps: float
    one_way_s: float
    racks: tuple[int, ...]
    trunk_Bps: float | None
    slow: tuple[tuple[int, str, float], ...]
    burst_bytes: float
    frame_bytes: float
    workers: int
    cores: int
    core_speed: float


def number(text: str) -> str:
    """Write a number as the tables of links are looked up by."""
    return f"{float(text or 0):g}"


def payload_Bps(rate_mbit: float, mtu: str, links: Links) -> float:
    """Payload of a link that carries as many bytes the other way, whose receipt it acknowledges."""
    measured = links.payload_share.get((number(str(rate_mbit)), number(mtu)))
    frame = float(mtu) + FRAME_BYTES
    share = (float(mtu) - HEADER_BYTES) / frame if measured is None else measured
    return rate_mbit * 1e6 / 8 * share / (1 + ACKNOWLEDGED_BYTES / (2 * frame))


def shaped_of(cells: Mapping[str, str], links: Links, cores: int) -> ShapedCluster:
    """Read the machine of a row."""
    ranks, mtu, rate = int(cells["n"]), cells["mtu"], float(cells["rate_mbit"])
    placement = [int(part) for part in (cells.get("placement") or "").split("-") if part]
    placement = placement or list(range(ranks))
    trunk = cells.get("trunk_mbit")
    tree = cells.get("topo") == "tree"
    return ShapedCluster(
        rate_Bps=payload_Bps(rate, mtu, links),
        one_way_s=_one_way_s(cells, links),
        racks=tuple(2 * host // ranks if tree else 0 for host in placement),
        trunk_Bps=payload_Bps(float(trunk), mtu, links) if trunk else None,
        slow=tuple(_slow(cells.get("slow_host") or "", placement, mtu, links)),
        burst_bytes=_burst_bytes(cells),
        frame_bytes=float(mtu),
        workers=int(cells.get("gloo_threads") or 2),
        cores=cores,
        core_speed=_core_speed(cells, links),
    )


def _core_speed(cells: Mapping[str, str], links: Links) -> float:
    """As measured with these links; otherwise the median of all measurements, or 1."""
    speeds = links.core_speed
    link = number(cells["rate_mbit"]), number(cells["mtu"])
    return speeds.get(link, statistics.median(speeds.values()) if speeds else 1.0)


def _burst_bytes(cells: Mapping[str, str]) -> float:
    """The shaper's bucket: as the row says, or as the tables of own runs have it."""
    if cells.get("burst"):
        return float(cells["burst"])
    mtu, rate = float(cells["mtu"]), float(cells["rate_mbit"])
    frame = mtu + FRAME_BYTES
    if mtu <= SMALL_MTU:
        return 4 * frame
    return (2 if rate <= SLOW_MBIT or mtu > JUMBO_MTU else 4) * frame + 500


def _one_way_s(cells: Mapping[str, str], links: Links) -> float:
    """Half of a round trip of plain TCP; the nearest rate's where this one was not measured."""
    key = tuple(number(cells[name]) for name in ("rate_mbit", "mtu", "delay_us"))
    like = [
        (abs(float(link[0]) - float(key[0])), link[1] != key[1], us)
        for link, us in links.round_trip_us.items()
        if link[2] == key[2]
    ]
    if like:
        return min(like)[2] * 1e-6 / 2
    return ROUND_TRIP_S / 2 + float(key[2]) * 1e-6


def _slow(
    text: str, placement: Sequence[int], mtu: str, links: Links
) -> list[tuple[int, str, float]]:
    """Read "2:up250" (host 2, Mbit/s)."""
    slow = []
    for part in (part for part in text.split(";") if part):
        host, setting = part.split(":")
        direction = "up" if setting.startswith("up") else "down"
        rate = float(setting.removeprefix(direction))
        slow.append((placement.index(int(host)), direction, payload_Bps(rate, mtu, links)))
    return slow


def measured_links(records: Sequence[Record]) -> Links:
    """Read payload rates (slope between the smallest and the largest message) and round trips."""
    messages: dict[tuple[str, str], list[tuple[float, float]]] = {}
    round_trips: dict[Link, float] = {}
    speeds: dict[tuple[str, str], float] = {}
    for record in records:
        cells = record.cells
        if cells.get("cc", "cubic") != "cubic" or cells["rate_mbit"] in {"", "none"}:
            continue
        link = (number(cells["rate_mbit"]), number(cells["mtu"]), number(cells["delay_us"]))
        time_us = float(cells["t_us_med"])
        if cells["kind"] == "rtt64":
            round_trips[link] = time_us
        elif cells["kind"] == CALL:
            speeds[link[:2]] = _call_us() / time_us
        elif cells["kind"] == "oneway" and link[2] == "0" and int(cells["bytes"]) >= LEAST_MESSAGE:
            messages.setdefault(link[:2], []).append((float(cells["bytes"]), time_us))
    payload = {
        key: (max(sizes)[0] - min(sizes)[0]) * 8 / (max(sizes)[1] - min(sizes)[1]) / float(key[0])
        for key, sizes in messages.items()
        if len(sizes) > 1
    }
    return Links(payload, round_trips, speeds)


def _call_us() -> float:
    """What a small all-reduce of two processes takes of each one's core, by Gloo's file."""
    gloo = load_library("gloo")
    return 1e6 * (gloo.core_call + MESSAGE_ENDS * gloo.core_message)


# ---------------------------------------------------------------- machines


def machine_of(shaped: ShapedCluster) -> Machine:
    """Build the machine from the template of such hosts, with Gloo as its library file has it."""
    node = node_of(shaped)
    ranks = len(shaped.racks)
    topology = build_topology(node, hosts=ranks, fabric=_fabric(shaped))
    rates = {}
    for rank, direction, rate_Bps in shaped.slow:
        switch = f"fabric/rack{shaped.racks[rank]}" if shaped.trunk_Bps else "fabric/switch0"
        ends = [f"n{rank}/nic0", switch][:: 1 if direction == "up" else -1]
        (arc,) = find_arcs(topology, " -> ".join(ends))
        rates[arc] = rate_Bps
    topology = degrade_links(topology, rates) if rates else topology
    library = load_library("gloo").model_copy(update={"workers": shaped.workers})
    return Machine(topology, library)


def node_of(shaped: ShapedCluster) -> NodeSpec:
    """The shipped template with a row's rate, latency, bucket and cores."""
    node = load_node(TEMPLATE)
    port = {"bandwidth": shaped.rate_Bps, "efficiency": 1.0, "latency": shaped.one_way_s / 2}
    burst = {"burst": f"{shaped.burst_bytes:.0f} B"} if shaped.burst_bytes >= 1 else {}
    sockets = validate_document(
        SocketsSpec,
        {
            **burst,
            "frame": f"{shaped.frame_bytes:.0f} B",
            "cores": shaped.cores,
            "core_speed": shaped.core_speed,
            "source": "the row",
        },
    )
    return node.model_copy(
        update={
            "links": {**node.links, "tcp": node.links["tcp"].model_copy(update=port)},
            "sockets": sockets,
        }
    )


def _fabric(shaped: ShapedCluster) -> FabricSpec:
    none = {"switch_latency": "0 s", "cable_latency": "0 s"}
    if shaped.trunk_Bps is None:
        return validate_document(FabricSpec, {"kind": "one-switch", **none})
    hosts = [
        {"name": f"host{rank}", "leaves": [f"rack{rack}"]} for rank, rack in enumerate(shaped.racks)
    ]
    trunk = {"from": "rack0", "to": "rack1", "bandwidth": f"{shaped.trunk_Bps!r} B/s"}
    listed = {"kind": "listed", "hosts": hosts, "trunks": [trunk], **none}
    return validate_document(FabricSpec, listed)
