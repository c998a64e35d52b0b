"""From "all-reduce these bytes among these ranks" to schedules on the machine's links.

The result (`LoweredCollective`) is what all simulators time: a schedule, the links of its edges,
and what the library adds to each step. Where the library has a rule for its algorithm and protocol,
there is one result; elsewhere one per protocol, and the simulator takes the quickest for a size.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from perfmodel.arrays import RankGroup, distinct, rank_array
from perfmodel.collectives.algorithms import linear
from perfmodel.collectives.algorithms.own import OWN, OwnAlgorithm, plan_own
from perfmodel.collectives.catalog import NCCL_ALGORITHMS, find_algorithm
from perfmodel.library.corrections import CollectiveContext, Corrections
from perfmodel.library.lowering.lowered import (
    HOP_KINDS,
    ITEM_BYTES,
    LaidSchedule,
    LoweredCollective,
)
from perfmodel.library.lowering.protocols import (
    chunk_bytes,
    protocol_parameters,
    usable_protocols,
    with_protocol,
)
from perfmodel.library.lowering.rings import (
    ON_CHANNELS,
    OWN_ALGORITHM,
    kept_edges_between,
    lay_by_name,
    lay_directly,
    lay_on_rings,
)
from perfmodel.library.machine import Machine
from perfmodel.library.model import Protocol, own_algorithm
from perfmodel.library.nccl.communicator import channels_of
from perfmodel.library.nccl.dispatch import (
    NCCL_USUAL,
    PAIRS_CHANNELS,
    allowed_protocols,
    channels_used,
    chosen_algorithm,
    find_layer,
    send_protocol,
    system_on,
)

Algorithm = str | OwnAlgorithm
"""An algorithm of the catalogue by name, or a function that plans a schedule."""

MOST_RANKS_KEPT = 16
"""Schedules of more ranks are made again: a fit asks for the same few sizes a thousand times."""


def apply_corrections(
    measured: Corrections,
    lowered: LoweredCollective,
    situation: CollectiveContext,
) -> LoweredCollective:
    """Apply measured corrections to a lowered collective.

    Returns
    -------
    LoweredCollective
        With the same schedule and edges.
    """
    measured = measured.at(situation.nbytes)
    whole = 1.0 if measured.residual is None else measured.residual(situation)
    steps = (
        np.array([measured.steps.get(f"{lowered.protocol}/{hop}", 1.0) for hop in HOP_KINDS])
        * whole
    )
    rate = measured.rates.get(f"{situation.algorithm}/{lowered.protocol}", 1.0) / whole

    lost_s = lowered.uneven_s * measured.uneven * whole
    return replace(
        lowered,
        launch_s=(lowered.launch_s - lowered.uneven_s) * measured.launch * whole + lost_s,
        uneven_s=lost_s,
        wire_factor=lowered.wire_factor / rate,
        # A cap is in bytes on the wire, of which there are more or fewer now: it stays.
        stages=tuple(
            replace(stage, latency_s=stage.latency_s * steps[stage.edges.hop])
            for stage in lowered.stages
        ),
    )


def lower_collective(
    machine: Machine,
    op: str,
    nbytes: int,
    group: RankGroup,
    *,
    root: int = 0,
    algorithm: Algorithm | None = None,
) -> tuple[LoweredCollective, ...]:
    """Lay a collective on the machine: one result for each protocol that the library may take.

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
    algorithm : str or callable, optional
        Name in `perfmodel.collectives.catalog`. Default: the library's own. Rings, and chains
        around them, are laid over the machine's channels; so is what `NCCL_OWN` names, for NCCL.
        A function of the user's is laid over the nearest links of each pair of ranks, with the
        costs that the library's protocols have for any algorithm.

    Raises
    ------
    InputError
        An operation without such an algorithm, or one that these ranks do not allow.
    """
    nominal = lower_without_corrections(machine, op, nbytes, group, root=root, algorithm=algorithm)
    return tuple(correct(machine, lowered, nbytes, group) for lowered in nominal)


def lower_without_corrections(
    machine: Machine,
    op: str,
    nbytes: int,
    group: RankGroup,
    *,
    root: int = 0,
    algorithm: Algorithm | None = None,
) -> tuple[LoweredCollective, ...]:
    """As `lower_collective`, without the machine's measured corrections."""
    size = whole_items(nbytes)
    if algorithm is None:
        op = machine.library.runs_as.get(op, op)
    if algorithm is None or isinstance(algorithm, str):
        name, protocols = _candidate(machine, op, size, group, algorithm)
        lay = _layer(machine, op, name, size, group, root)
    else:
        name, protocols = _candidate(machine, op, size, group, OWN)
        planned = plan_own(algorithm, len(group), size, op)
        lay = partial(_as_laid, lay_directly(machine, planned, group))
    return tuple(
        with_protocol(
            lay(key),
            key,
            protocol,
            size,
            _channels(machine, op, name, key, size, group),
            machine,
        )
        for key, protocol in protocols.items()
        if not protocol.bounded or protocol.serves(chunk_bytes(lay(key).schedule))
    )


def _channels(
    machine: Machine, op: str, name: str, protocol: str, nbytes: int, group: RankGroup
) -> int:
    """Channels on which NCCL runs a ring or an all-to-all, or RCCL all-pairs; no other asks."""
    if name == "all_pairs":
        return PAIRS_CHANNELS
    if machine.library.nccl_tuner and op == "all_to_all":
        return channels_of(system_on(machine, group), "ring", machine.settings)
    if machine.library.nccl_tuner and name == "ring" and op in NCCL_ALGORITHMS:
        system = system_on(machine, group)
        return channels_used(system, op, name, protocol, nbytes, machine.settings)
    return 1


def whole_items(nbytes: int) -> int:
    """Return a size that is whole elements: the next of them; bytes."""
    return -(-int(nbytes) // ITEM_BYTES) * ITEM_BYTES


Candidate = tuple[str, Mapping[str, Protocol]]
"""An algorithm by name, and the protocols in which it is tried."""


def _candidate(
    machine: Machine, op: str, nbytes: int, group: RankGroup, algorithm: str | None
) -> Candidate:
    """What is tried: what the user names, the library's choice, or what it usually runs."""
    nccl = machine.library.nccl_tuner
    if algorithm is None and nccl and op in NCCL_ALGORITHMS:
        return chosen_algorithm(machine, op, nbytes, group)
    own = None if algorithm else own_algorithm(machine.library, op, nbytes, len(group))
    name = algorithm or own or (NCCL_USUAL.get(op) if nccl else None) or OWN_ALGORITHM.get(op, "")
    if nccl:
        return name, allowed_protocols(machine, op, name, nbytes, group)
    protocols, fabric = usable_protocols(machine, group, op, name), machine.topology.fabric_graph
    if fabric is not None and "dims" in fabric.graph:
        from perfmodel.library.lowering.axes import limit_to_axes

        protocols = limit_to_axes(machine, op, group, protocols)
    return name, protocols


def _layer(
    machine: Machine, op: str, name: str, nbytes: int, group: RankGroup, root: int
) -> Callable[[str], LaidSchedule]:
    """Function from a protocol to the algorithm laid on links."""
    layer = find_layer(op, name) if machine.library.nccl_tuner else None
    if layer is not None:
        row = find_algorithm(op, name)
        return lambda protocol: layer(machine, op, row, nbytes, group, protocol)

    def lay() -> LaidSchedule:
        if name == OWN_ALGORITHM.get(op, "") and name in ON_CHANNELS:
            return lay_on_rings(machine, op, nbytes, group, root)
        return lay_by_name(machine, op, name, nbytes, group, root)

    small = len(group) <= MOST_RANKS_KEPT
    return partial(_as_laid, machine.laid((op, name, nbytes, group, root), lay) if small else lay())


def _as_laid(laid: LaidSchedule, _: str) -> LaidSchedule:
    return laid


def lower_message(machine: Machine, src: int, dst: int, nbytes: int) -> LoweredCollective:
    """Return how the library carries one point-to-point message: by its bulk protocol.

    NCCL sends short ones by LL.
    """
    nccl = machine.library.nccl_tuner
    edges = kept_edges_between(machine, np.array([src]), np.array([dst]), relayed=nccl)
    protocols = protocol_parameters(machine.library, "send", "direct")
    name, protocol = list((send_protocol(protocols, nbytes) if nccl else protocols).items())[-1]
    schedule = linear.send(2, nbytes)
    lowered = with_protocol(
        LaidSchedule(schedule, ((schedule.phases, edges),)), name, protocol, nbytes
    )
    return _correct(machine, lowered, nbytes, (src, dst))


def correct(
    machine: Machine, lowered: LoweredCollective, nbytes: int, group: RankGroup
) -> LoweredCollective:
    """Apply the machine's measured corrections to a collective lowered without them."""
    return _correct(machine, lowered, whole_items(nbytes), group)


def _correct(
    machine: Machine, lowered: LoweredCollective, nbytes: int, group: RankGroup
) -> LoweredCollective:
    if machine.measured == Corrections():
        return lowered
    hosts = len(distinct(rank_array(group) // machine.topology.gpus_per_host))
    op, algorithm = lowered.schedule.collective, lowered.schedule.algorithm
    situation = CollectiveContext(op, nbytes, len(group), hosts, algorithm, lowered.protocol)
    return apply_corrections(machine.measured, lowered, situation)
