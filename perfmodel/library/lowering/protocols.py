"""Which protocols a group may use, and a schedule with what a protocol adds to it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from perfmodel.arrays import FloatArray, RankGroup, rank_array
from perfmodel.collectives.schedule import Phase
from perfmodel.errors import Fault, InputError
from perfmodel.library.lowering.edges import HOP_KINDS, Edges
from perfmodel.library.lowering.lowered import LaidSchedule, LoweredCollective, Stage
from perfmodel.library.lowering.protocol_costs import (
    caps_Bps,
    chunk_bytes,
    credits_of,
    start_s,
    step_latency_s,
    uneven_s,
    wire_factor,
)
from perfmodel.library.lowering.rings import SINGLE_SENDS
from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary, Protocol, protocols_of
from perfmodel.library.transport import GDR_PATHS, NVLINK_PATHS

SAME_NUMBERS: Mapping[str, str] = MappingProxyType({"chain": "ring", "collnet_direct": "collnet"})
"""Algorithms whose numbers are those of another, unless the library has their own."""


def protocol_parameters(library: CommLibrary, op: str, algorithm: str) -> Mapping[str, Protocol]:
    """Protocols of a library with the numbers of an algorithm, or of single sends ("p2p").

    Numbers of an algorithm for one operation ("reduce/chain") come before its own.
    """
    name = "p2p" if op in SINGLE_SENDS else algorithm
    for key in (f"{op}/{name}", name):
        if key in library.by_algorithm:
            return protocols_of(library, key)
    return protocols_of(library, SAME_NUMBERS.get(name, name))


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
    usable_protocols = {name: p for name, p in protocols.items() if fast or not p.nvlink_only}
    if not usable_protocols:
        names = ", ".join(repr(name) for name in protocols)
        allowed = "'simple' or 'll': between these GPUs not every path is NVLink or GPUDirect"
        raise InputError(Fault("protocol", names, allowed))
    return usable_protocols


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
        return machine.recent(
            "loaded phases", (phase, edges.hop), key, lambda: _loaded(phase, load)
        )

    def stage_of(phases: tuple[Phase, ...], edges: Edges) -> Stage:
        load = _wire_load(edges, protocol)
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
        credits=credits_of(protocol, schedule),
        uneven_s=lost_s,
    )


def _loaded(phase: Phase, load: FloatArray) -> Phase:
    """A phase with the bytes that links carry; `load`: per byte of payload, shape (edges,)."""
    if (load == 1.0).all():
        return phase
    return replace(phase, nbytes=phase.nbytes * load)


def _wire_load(edges: Edges, protocol: Protocol) -> FloatArray:
    """What links to reducing switches, networks and hosts' memory carry per byte of payload."""
    return edges.once(("load", *_efficiencies(protocol)), lambda: _find_load(edges, protocol))


def _efficiencies(protocol: Protocol) -> tuple[float, ...]:
    """What the bytes that links carry depend on."""
    return (
        protocol.network_efficiency,
        protocol.staged_efficiency,
        protocol.switch_efficiency,
        protocol.two_way_efficiency,
    )


def _find_load(edges: Edges, protocol: Protocol) -> FloatArray:
    between = protocol.network_efficiency * (protocol.staged_efficiency if edges.staged else 1.0)
    factor = np.where((edges.src < 0) | (edges.dst < 0), 1.0 / protocol.switch_efficiency, 1.0)
    if edges.staged and protocol.two_way_efficiency < 1:
        both = np.isin(edges.src, edges.dst) | np.isin(edges.dst, edges.src)
        local = edges.hop == _PCIE
        factor = np.where(local & both, factor / protocol.two_way_efficiency, factor)
    return np.where(edges.hop == _NETWORK, 1.0 / between, factor)
