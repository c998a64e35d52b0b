"""From "all-reduce these bytes among these ranks" to a schedule on real edges.

The result (`LoweredCollective`) is what both simulators time: a schedule, the links of its edges, and what
the library adds to each step. Where the library has a rule for which of its algorithms and
protocols it takes, there is one result. Elsewhere it is for the simulator to see which is best for
a size: it times the candidates and takes the quickest.

A way of carrying a collective, stretched by what was measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from perfmodel.arrays import RankGroup, rank_array
from perfmodel.collectives.algorithms import linear
from perfmodel.errors import Fault, InputError
from perfmodel.library.corrections import CollectiveContext, Corrections
from perfmodel.library.lowering.edge_routing import edges_between
from perfmodel.library.lowering.edges import HOP_KINDS
from perfmodel.library.lowering.lowered import ITEM_BYTES, LaidSchedule, LoweredCollective, Stage
from perfmodel.library.lowering.protocol_costs import chunk_bytes, launch_s
from perfmodel.library.lowering.protocols import numbers_of, usable, with_protocol
from perfmodel.library.lowering.rings import (
    LAID,
    OWN_ALGORITHM,
    SINGLE_SENDS,
    by_name,
    on_rings,
)
from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary, Protocol, own_algorithm
from perfmodel.library.nccl.lowering.collnet import through_fabric
from perfmodel.library.nccl.lowering.nvls import through_switches, why_not
from perfmodel.library.nccl.lowering.trees import tree
from perfmodel.library.nccl.tuner import OPS, channels_used, choices, system_on


def uneven_s(library: CommLibrary, way: LoweredCollective, nbytes: float) -> float:
    """What a way's launch holds of what uneven channels lose; seconds."""
    schedule = way.schedule
    numbers = numbers_of(library, schedule.collective, schedule.algorithm)
    protocol = numbers.get(way.protocol)
    lost_s = 0.0 if protocol is None else launch_s(protocol, nbytes) - protocol.launch
    return min(lost_s, way.launch_s)


def as_measured(
    measured: Corrections,
    way: LoweredCollective,
    situation: CollectiveContext,
    *,
    uneven_s: float = 0.0,
) -> LoweredCollective:
    """Stretch a way of carrying a collective by what was measured.

    Parameters
    ----------
    measured : Corrections
    way : LoweredCollective
    situation : CollectiveContext
    uneven_s : float
        Part of the launch that is what uneven channels lose.

    Returns
    -------
    LoweredCollective
        With the same schedule and edges.
    """
    whole = 1.0 if measured.residual is None else measured.residual(situation)
    steps = (
        np.array([measured.steps.get(f"{way.protocol}/{hop}", 1.0) for hop in HOP_KINDS]) * whole
    )
    rate = measured.rates.get(f"{situation.algorithm}/{way.protocol}", 1.0) / whole

    def stretched(stage: Stage) -> Stage:
        # A cap is in bytes on the wire, of which there are more or fewer now: it stays.
        return replace(stage, latency_s=stage.latency_s * steps[stage.edges.hop])

    return replace(
        way,
        launch_s=((way.launch_s - uneven_s) * measured.launch + uneven_s * measured.uneven) * whole,
        wire_factor=way.wire_factor / rate,
        stages=tuple(stretched(stage) for stage in way.stages),
    )


def lower_collective(
    machine: Machine,
    op: str,
    nbytes: int,
    group: RankGroup,
    *,
    root: int = 0,
    algorithm: str | None = None,
) -> tuple[LoweredCollective, ...]:
    """Return the ways in which the library could carry a collective, one per protocol.

    Parameters
    ----------
    machine : Machine
    op : str
        A `training.plan.Op`.
    nbytes : int
    group : range or tuple of int
        Ranks of the topology, at least two.
    root : int
        Rank of the topology, for rooted operations.
    algorithm : str, optional
        Name in `perfmodel.collectives.catalog`. Default: the library's own. Rings, and chains
        around them, are laid over the machine's channels; so is what `NCCL_OWN` names, for NCCL.

    Raises
    ------
    InputError
        An operation without such an algorithm, or one that these ranks do not allow.
    """
    size = -(-int(nbytes) // ITEM_BYTES) * ITEM_BYTES
    asked = _asked(machine, op, size, group, algorithm)
    finders = {name: _finder(machine, op, name, size, group, root) for name, _ in asked}
    return tuple(
        _measured(machine, with_protocol(finders[name](key), key, protocol, size), size, group)
        for name, protocols in asked
        for key, protocol in protocols.items()
        if not protocol.bounded or protocol.serves(chunk_bytes(finders[name](key).schedule))
    )


Asked = list[tuple[str, Mapping[str, Protocol]]]
"""Algorithms by name, and the protocols in which each is tried."""


def _asked(
    machine: Machine, op: str, nbytes: int, group: RankGroup, algorithm: str | None
) -> Asked:
    """What is tried: what the user names, the library's choice, or what it usually runs."""
    nccl = machine.library.name == "nccl"
    if algorithm is None and nccl and op in OPS:
        return _chosen(machine, op, nbytes, group)
    own = None if algorithm else own_algorithm(machine.library, op, nbytes, len(group))
    usual = NCCL_USUAL.get(op) if nccl else None
    name = algorithm or own or usual or OWN_ALGORITHM.get(op, "")
    found = usable(machine, group, op, name)
    if nccl and op in SINGLE_SENDS:
        found = _of_sends(found, nbytes if op == "send" else nbytes / len(group))
    elif nccl:
        wanted = machine.settings.protocols(op)
        only = {"simple"} if name in SIMPLE_ONLY else found.keys()
        kept = {key: p for key, p in found.items() if key in only}
        found = {key: p for key, p in kept.items() if wanted is None or key in wanted} or kept
    return [(name, found)]


def _of_sends(protocols: Mapping[str, Protocol], block: float) -> Mapping[str, Protocol]:
    """Protocol of single sends of so many bytes."""
    name = "ll" if block <= LL_SENDS_BYTES else "simple"
    return {name: protocols[name]} if name in protocols else protocols


def _chosen(machine: Machine, op: str, nbytes: int, group: RankGroup) -> Asked:
    """NCCL's choice among the ways that there are."""
    for choice in choices(machine, op, nbytes, group):
        name = CHOICES.get((op, choice.algorithm))
        if name in {"nvls", "nvls_tree"} and why_not(machine, op, name, group) is not None:
            continue
        protocols = numbers_of(machine.library, op, name) if name else {}
        if name and choice.protocol in protocols:
            return [(name, {choice.protocol: protocols[choice.protocol]})]
    return [(OWN_ALGORITHM[op], usable(machine, group, op, OWN_ALGORITHM[op]))]


def _finder(
    machine: Machine, op: str, name: str, nbytes: int, group: RankGroup, root: int
) -> Callable[[str], LaidSchedule]:
    """How to lay an algorithm for a protocol."""
    own = NCCL_OWN.get((op, name)) if machine.library.name == "nccl" else None
    if own is not None:
        return lambda protocol: own(machine, op, name, nbytes, group, protocol)
    if name == OWN_ALGORITHM.get(op, "") and name in LAID:
        way = on_rings(machine, op, nbytes, group, root)
    else:
        way = by_name(machine, op, name, nbytes, group, root)
    return lambda _: way


def _channels(
    machine: Machine, op: str, name: str, nbytes: int, group: RankGroup, protocol: str
) -> int:
    """Channels that NCCL uses for a message."""
    system = system_on(machine, group)
    return channels_used(system, op, name, protocol, nbytes, machine.settings)


def _tree(
    machine: Machine, op: str, name: str, nbytes: int, group: RankGroup, protocol: str
) -> LaidSchedule:
    channels = _channels(machine, op, name, nbytes, group, protocol)
    return tree(machine, nbytes, group, protocol, channels)


def _nvls(
    machine: Machine, op: str, name: str, nbytes: int, group: RankGroup, protocol: str
) -> LaidSchedule:
    channels = _channels(machine, op, name, nbytes, group, protocol)
    return through_switches(machine, op, name, nbytes, group, channels)


def _collnet(
    machine: Machine, op: str, name: str, nbytes: int, group: RankGroup, protocol: str
) -> LaidSchedule:
    choice = "collnet_chain" if name == "collnet" else name
    channels = _channels(machine, op, choice, nbytes, group, protocol)
    return through_fabric(machine, name, nbytes, group, channels)


def _pat(
    machine: Machine, op: str, name: str, nbytes: int, group: RankGroup, protocol: str
) -> LaidSchedule:
    del protocol
    hosts = np.unique(rank_array(group) // machine.topology.gpus_per_host)
    if len(hosts) < len(group):
        found = f"{name!r} for {len(group)} ranks on {len(hosts)} hosts"
        raise InputError(Fault("algorithm", found, "one rank for each host"))
    return by_name(machine, op, name, nbytes, group, 0)


Layer = Callable[[Machine, str, str, int, RankGroup, str], LaidSchedule]

NCCL_OWN: Mapping[tuple[str, str], Layer] = MappingProxyType(
    {
        ("all_reduce", "tree"): _tree,
        ("all_reduce", "nvls"): _nvls,
        ("reduce_scatter", "nvls"): _nvls,
        ("all_gather", "nvls"): _nvls,
        ("all_reduce", "nvls_tree"): _nvls,
        ("all_reduce", "collnet"): _collnet,
        ("all_reduce", "collnet_direct"): _collnet,
        ("reduce_scatter", "pat"): _pat,
        ("all_gather", "pat"): _pat,
    }
)
"""What NCCL lays over its channels, NICs and switches in ways of its own."""

CHOICES: Mapping[tuple[str, str], str] = MappingProxyType(
    {
        **{key: key[1] for key in NCCL_OWN},
        ("all_reduce", "collnet_chain"): "collnet",
        **{(op, "ring"): name for op, name in OWN_ALGORITHM.items() if name in {"ring", "chain"}},
    }
)
"""Name of the way that there is for an operation and an algorithm that NCCL's tuner chooses."""

NCCL_USUAL: Mapping[str, str] = MappingProxyType({"all_to_all": "batched"})
"""What NCCL runs for an operation, where that is not what other libraries run."""

LL_SENDS_BYTES = 16384
"""NCCL_P2P_LL_THRESHOLD; NVIDIA/nccl 2.30.7 ``src/enqueue.cc``."""

SIMPLE_ONLY = frozenset({"nvls", "nvls_tree", "collnet", "collnet_direct", "pat"})
"""Algorithms that know no other protocol than Simple."""


def lower_message(machine: Machine, src: int, dst: int, nbytes: int) -> LoweredCollective:
    """Return how the library carries one point-to-point message: by its bulk protocol.

    NCCL sends short ones by LL.
    """
    nccl = machine.library.name == "nccl"
    ends = np.array([src]), np.array([dst])
    edges = edges_between(machine.topology, machine.router, *ends, relayed=nccl)
    protocols = numbers_of(machine.library, "send", "direct")
    name, protocol = list((_of_sends(protocols, nbytes) if nccl else protocols).items())[-1]
    schedule = linear.send(nbytes)
    way = with_protocol(LaidSchedule(schedule, ((schedule.phases, edges),)), name, protocol, nbytes)
    return _measured(machine, way, nbytes, (src, dst))


def _measured(
    machine: Machine, way: LoweredCollective, nbytes: int, group: RankGroup
) -> LoweredCollective:
    """A way as a profile says that it goes."""
    if machine.measured == Corrections():
        return way
    hosts = len(np.unique(rank_array(group) // machine.topology.gpus_per_host))
    op, algorithm = way.schedule.collective, way.schedule.algorithm
    situation = CollectiveContext(op, nbytes, len(group), hosts, algorithm, way.protocol)
    lost_s = uneven_s(machine.library, way, nbytes)
    return as_measured(machine.measured, way, situation, uneven_s=lost_s)
