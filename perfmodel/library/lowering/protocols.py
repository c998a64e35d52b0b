"""Which protocols a group may use, and a schedule with what a protocol adds to it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from perfmodel.arrays import FloatArray, RankGroup, rank_array
from perfmodel.collectives.catalog import bus_factor
from perfmodel.collectives.schedule import Phase, Schedule
from perfmodel.errors import refuse_if
from perfmodel.library.lowering.lowered import (
    HOP_KINDS,
    Edges,
    LaidSchedule,
    LoweredCollective,
    Stage,
)
from perfmodel.library.lowering.rings import SINGLE_SENDS
from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary, Protocol, protocols_of
from perfmodel.library.transport import GDR_PATHS, NVLINK_PATHS

MIB = 1 << 20

GROUPED = frozenset({"all_to_all", "scatter", "gather"})
"""Operations that are groups of sends, started together."""


def start_s(protocol: Protocol, schedule: Schedule) -> float:
    """Time before the first byte moves; seconds."""
    alone = schedule.collective not in GROUPED
    return protocol.launch + (0.0 if alone else protocol.each_peer * (schedule.ranks - 1))


def uneven_s(protocol: Protocol, schedule: Schedule, nbytes: float, channels: int) -> float:
    """Time that grows with the bytes and that no link sees; seconds.

    `channels`: those that work on the message. A ring ends with a copy within each GPU, and what an
    all-to-all leaves where it is takes the blocks that send. A block of all-pairs sends one chunk,
    so that none strays, and copies thrice: what it received to scratch, what it adds (N - 1 times
    1/N of a chunk), and the sums that it receives (steps of ROCm/rccl ``tools/msccl-algorithms``).
    """
    carried = nbytes * bus_factor(schedule.collective, schedule.ranks)
    pairs = schedule.algorithm == "all_pairs"
    lost_s = 0.0 if pairs else protocol.unevenness * math.sqrt(carried / MIB)
    copies = pairs or schedule.algorithm == "ring" or schedule.collective == "all_to_all"
    if protocol.copy_rate is None or not copies:
        return lost_s
    copied = nbytes / schedule.ranks * (3 - 1 / schedule.ranks if pairs else 1)
    return lost_s + copied / (channels * protocol.copy_rate)


def chunk_bytes(schedule: Schedule) -> float:
    """Size of the sends of a schedule, weighted by their bytes (where all are alike: that size)."""
    sends = [(phase.nbytes, phase.active) for phase in schedule.phases]
    total = sum(float((nbytes * active).sum()) for nbytes, active in sends)
    return sum(float((nbytes**2 * active).sum()) for nbytes, active in sends) / (total or 1.0)


def wire_factor(protocol: Protocol, chunk: float) -> float:
    """Bytes on the wire per byte of a chunk of this size (bytes)."""
    if not protocol.wire_segments or chunk <= 0:
        return 1.0 / protocol.wire_efficiency
    starts = np.array([0.0, *(segment.beyond for segment in protocol.wire_segments)])
    efficiency = [protocol.wire_efficiency, *(s.efficiency for s in protocol.wire_segments)]
    return float((np.diff(np.minimum(np.append(starts, np.inf), chunk)) / efficiency).sum() / chunk)


def reduced_bytes(schedule: Schedule) -> float:
    """Bytes of a send that its receiver adds to its own, averaged over the schedule's bytes.

    Half of what a bandwidth-optimal all-reduce sends is partial sums, half is results;
    in recursive doubling all of it is added.
    """
    sent = added = 0.0
    for phase in schedule.phases:
        nbytes = phase.nbytes * phase.active
        sent += float(nbytes.sum())
        added += float((nbytes * phase.adds).sum())
    return chunk_bytes(schedule) * added / (sent or 1.0)


def step_latency_s(protocol: Protocol, edges: Edges, schedule: Schedule) -> FloatArray:
    """Time of a step on each edge beyond its bytes on the wire; seconds, shape (edges,)."""
    in_turn = _in_turn(protocol, schedule)
    step = tuple(getattr(protocol.step, hop) for hop in HOP_KINDS)
    waits_s = edges.once(
        ("step", step, protocol.host_step, protocol.latencies_per_step, in_turn),
        lambda: _waits_s(protocol, edges, in_turn),
    )
    return (
        waits_s
        if protocol.reduce_rate is None
        else waits_s + reduced_bytes(schedule) / protocol.reduce_rate
    )


def _waits_s(protocol: Protocol, edges: Edges, in_turn: bool) -> FloatArray:
    """`step_latency_s` but for what receivers add."""
    library_s = np.array([getattr(protocol.step, hop) for hop in HOP_KINDS])[edges.hop]
    if protocol.host_step > 0:
        library_s = np.maximum(library_s, protocol.host_step * _sharing(edges))
    waits_s: FloatArray = edges.latency_s * protocol.latencies_per_step + library_s
    return waits_s / 2 if in_turn else waits_s


def _in_turn(protocol: Protocol, schedule: Schedule) -> bool:
    """Whether segments that could be in flight together go one at a time (`two_in_turn`).

    k segments of b seconds then take k (b + L): the first ready message travels alone, and each of
    the others follows the segment before it the other way.
    """
    pipelined = any(phase.lag > 1 for phase in schedule.phases)
    return protocol.two_in_turn and schedule.ranks == 2 and pipelined


def _limit_Bps(protocol: Protocol, edges: Edges, channels: int) -> FloatArray:
    cap_Bps = edges.cap_Bps
    if protocol.network_rate is not None:
        between = edges.hop == HOP_KINDS.index("network")
        cap_Bps = np.where(between, np.minimum(cap_Bps, protocol.network_rate), cap_Bps)
    if protocol.max_rate is None:
        return cap_Bps
    return np.minimum(cap_Bps, protocol.max_rate / channels)


def caps_Bps(
    protocol: Protocol,
    edges: Edges,
    schedule: Schedule,
    phases: Sequence[Phase],
    load: FloatArray,
) -> FloatArray:
    """Most that each edge may carry in these phases; bytes on the wire per second, shape (edges,).

    Copies through the memory of a domain share what it carries; an edge that no phase uses takes no
    share. `load`: bytes on the links per byte of payload.
    """
    channels = 1 + max((int(phase.channel.max()) for phase in schedule.phases), default=0)
    own_Bps = edges.once(
        ("rate", protocol.network_rate, protocol.max_rate, channels),
        lambda: _limit_Bps(protocol, edges, channels),
    )
    if edges.copies is None:
        return own_Bps
    sharing = np.any([phase.active > 0 for phase in phases], axis=0) & (edges.copies.domain >= 0)
    domains = edges.copies.domain[sharing]
    share_Bps = np.full(len(edges), np.inf)
    if len(domains):
        share_Bps[sharing] = edges.copies.together_Bps / np.bincount(domains)[domains]
    return np.minimum(own_Bps, share_Bps * load)


def _sharing(edges: Edges) -> FloatArray:
    """How many of the edges use the busiest link of each edge through host memory; 0 elsewhere."""
    users = np.bincount(edges.arcs)[edges.arcs].astype(float)
    busiest = np.maximum.reduceat(users, edges.pointers[:-1]) if len(edges) else users
    shared: FloatArray = np.where(edges.hop == HOP_KINDS.index("memory"), busiest, 0.0)
    return shared


SAME_NUMBERS: Mapping[str, str] = MappingProxyType({"chain": "ring", "collnet_direct": "collnet"})
"""Algorithms whose numbers are those of another, unless the library has their own."""


def protocol_parameters(library: CommLibrary, op: str, algorithm: str) -> Mapping[str, Protocol]:
    """Protocols of a library with the numbers of an algorithm, or of single sends ("p2p").

    Numbers of an algorithm for one operation ("reduce/chain") come before its own.
    """
    name = "p2p" if op in SINGLE_SENDS else algorithm
    stated = (key for key in (f"{op}/{name}", name) if key in library.by_algorithm)
    return protocols_of(library, next(stated, SAME_NUMBERS.get(name, name)))


_NETWORK, _PCIE = HOP_KINDS.index("network"), HOP_KINDS.index("pcie")


def usable_protocols(
    machine: Machine, group: RankGroup, op: str, algorithm: str
) -> Mapping[str, Protocol]:
    """Protocols in which this group may run an algorithm.

    Raises `InputError`: None of those that the library is left with.
    """
    protocols = protocol_parameters(machine.library, op, algorithm)
    some_need_nvlink = any(protocol.nvlink_only for protocol in protocols.values())
    fast = not some_need_nvlink or _ordered_writes(machine, group)
    usable = {name: p for name, p in protocols.items() if fast or not p.nvlink_only}
    refuse_if(
        not usable,
        "protocol",
        ", ".join(map(repr, protocols)),
        "'simple' or 'll': between these GPUs not every path is NVLink or GPUDirect",
    )
    return usable


def _ordered_writes(machine: Machine, group: RankGroup) -> bool:
    """Whether all paths keep 128-byte writes whole: NVLink inside hosts, GPUDirect between them.

    Source: NVIDIA/nccl 2.30.7 ``src/graph/tuning.cc``, where LL128 is enabled.
    """
    router, size = machine.router, machine.topology.gpus_per_host
    ranks = rank_array(group)
    hosts = ranks // size
    first, last = int(hosts.min()), int(hosts.max())
    gpus = [machine.topology.ranks[rank] for rank in ranks[hosts == first].tolist()]
    inside = all(router.path_type(a, b) in NVLINK_PATHS for a, b in itertools.pairwise(gpus))
    if first == last or not inside:
        return inside
    reach = all(router.path_type(gpu, router.nearest_nics(gpu)[0]) in GDR_PATHS for gpu in gpus)
    return machine.topology.gpudirect_rdma and reach


def with_protocol(
    laid: LaidSchedule,
    name: str,
    protocol: Protocol,
    nbytes: int,
    channels: int = 1,
    machine: Machine | None = None,
) -> LoweredCollective:
    """Add to a laid schedule of so many bytes what a protocol costs.

    `channels`: those that work on a message of this size.
    `machine`: with which others share phases of schedules that they share.
    """
    schedule = laid.schedule
    lost_s = uneven_s(protocol, schedule, nbytes, channels)

    def load_phase(phase: Phase, edges: Edges, load: FloatArray) -> Phase:
        if machine is None or not laid.shared:
            return _loaded(phase, load)
        key = (*_efficiencies(protocol), edges.staged)
        return machine.recent("loaded phases", phase, key, lambda: _loaded(phase, load))

    def stage_of(phases: tuple[Phase, ...], edges: Edges) -> Stage:
        load = edges.once(("load", *_efficiencies(protocol)), lambda: _find_load(edges, protocol))
        return Stage(
            phases=tuple(load_phase(phase, edges, load) for phase in phases),
            edges=edges,
            latency_s=step_latency_s(protocol, edges, schedule),
            cap_Bps=caps_Bps(protocol, edges, schedule, phases, load),
            load=load,
        )

    return LoweredCollective(
        schedule=schedule,
        stages=tuple(stage_of(*stage) for stage in laid.laid),
        protocol=name,
        launch_s=start_s(protocol, schedule) + lost_s,
        wire_factor=wire_factor(protocol, chunk_bytes(schedule)),
        credits=1 if _in_turn(protocol, schedule) else protocol.credits,
        uneven_s=lost_s,
    )


def _loaded(phase: Phase, load: FloatArray) -> Phase:
    """A phase with the bytes that links carry; `load`: per byte of payload, shape (edges,)."""
    return phase if (load == 1.0).all() else replace(phase, nbytes=phase.nbytes * load)


def _efficiencies(protocol: Protocol) -> tuple[float, ...]:
    """What the bytes that links carry depend on."""
    return (
        protocol.network_efficiency,
        protocol.staged_efficiency,
        protocol.switch_efficiency,
        protocol.two_way_efficiency,
    )


def _find_load(edges: Edges, protocol: Protocol) -> FloatArray:
    """What links to reducing switches, networks and hosts' memory carry per byte of payload."""
    between = protocol.network_efficiency * (protocol.staged_efficiency if edges.staged else 1.0)
    factor = np.where((edges.src < 0) | (edges.dst < 0), 1.0 / protocol.switch_efficiency, 1.0)
    if edges.staged and protocol.two_way_efficiency < 1:
        both = np.isin(edges.src, edges.dst) | np.isin(edges.dst, edges.src)
        factor = np.where((edges.hop == _PCIE) & both, factor / protocol.two_way_efficiency, factor)
    return np.where(edges.hop == _NETWORK, 1.0 / between, factor)
