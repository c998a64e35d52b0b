"""Collectives over the machine's own rings and channels, and any other over the nearest links."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from perfmodel.arrays import IntArray, RankGroup, digest, rank_array
from perfmodel.collectives.catalog import ALGORITHMS, ROOTED, make
from perfmodel.collectives.schedule import Phase, Schedule
from perfmodel.errors import check_schedule, refuse_if
from perfmodel.library.channels import Rings, group_by_host
from perfmodel.library.lowering.edge_routing import edges_between, edges_of_names
from perfmodel.library.lowering.lowered import ITEM_BYTES, Edges, LaidSchedule, select_edges
from perfmodel.library.machine import Machine

MOST_KEPT = 1 << 23
"""Edges that a machine keeps in all: the same pairs serve collectives of all sizes. An all-to-all
of 2,048 ranks has four million, of 150 bytes each; larger ones are laid again for each size."""


def lay_on_rings(
    machine: Machine, op: str, nbytes: int, group: RankGroup, root: int
) -> LaidSchedule:
    """Rings, and chains along them, over the machine's channels; stars over the nearest links."""
    own: dict[str, Any] = {"root": root_position(group, root)} if op in ROOTED else {}
    plan = partial(make, op, OWN_ALGORITHM[op], len(group), nbytes, itemsize=ITEM_BYTES, **own)
    if op in {"scatter", "gather"}:
        return lay_directly(machine, plan(), group)
    rings = machine.rings(group)
    orders = _places(group)[rings.orders]
    schedule = plan(orders=orders)
    edges = _ring_edges(rings, orders, schedule) if op in ROOTED else rings.edges
    return LaidSchedule(schedule, ((schedule.phases, edges),))


def lay_by_name(
    machine: Machine, op: str, algorithm: str, nbytes: int, group: RankGroup, root: int
) -> LaidSchedule:
    """An algorithm by name, with what it needs to know of the machine."""
    own: dict[str, Any] = {"root": root_position(group, root)} if op in ROOTED else {}
    if algorithm == "hierarchical":
        own["groups"] = group_by_host(rank_array(group) // machine.topology.gpus_per_host)
    schedule = make(op, algorithm, len(group), nbytes, itemsize=ITEM_BYTES, **own)
    return lay_directly(machine, schedule, group)


def root_position(group: RankGroup, root: int) -> int:
    """Position of the root in its group."""
    check_schedule(
        (root not in group, f"root {root}; allowed: a rank of the group, which it is not in")
    )
    return group.index(root)


def _places(group: RankGroup) -> IntArray:
    """Position in its group of each rank of the topology; -1 for those that are not in it."""
    ranks = rank_array(group)
    places = np.full(int(ranks.max()) + 1, -1)
    places[ranks] = np.arange(len(ranks))
    return places


def lay_directly(machine: Machine, schedule: Schedule, group: RankGroup) -> LaidSchedule:
    """Any schedule, each pair of ranks over its nearest links."""
    ranks = rank_array(group)
    laid: list[tuple[tuple[Phase, ...], Edges]] = []
    for phases in stages_of(schedule):
        src, dst = phases[0].src, phases[0].dst
        if phases[0].drained:  # over the edges of the stage before
            edges = laid[-1][1]
        elif schedule.switches:
            names = _names(machine, group, schedule, src, dst)
            edges = edges_of_names(machine.topology, machine.router, *names)
        else:
            relayed = machine.library.nccl_tuner and schedule.collective in SINGLE_SENDS
            edges = kept_edges_between(machine, ranks[src], ranks[dst], relayed=relayed)
        laid.append((phases, edges))
    return LaidSchedule(schedule, tuple(laid))


def kept_edges_between(machine: Machine, src: IntArray, dst: IntArray, *, relayed: bool) -> Edges:
    """Edges between pairs of ranks over their nearest links, laid once for all sizes."""

    def lay() -> Edges:
        return edges_between(machine.topology, machine.router, src, dst, relayed=relayed)

    return machine.kept_edges((digest(src, dst), relayed), len(src), MOST_KEPT, lay)


def _names(
    machine: Machine, group: RankGroup, schedule: Schedule, src: IntArray, dst: IntArray
) -> tuple[list[str], list[str]]:
    """Devices by name, of ranks and of the switch that reduces and copies for them."""
    topology = machine.topology
    hosts = {rank // topology.gpus_per_host for rank in group}
    switches = [
        node
        for node in topology.links[topology.ranks[group[0]]]
        if topology.devices[node].kind == "nvswitch"
    ]
    ranks = f"{len(group)} ranks on {len(hosts)} hosts of {topology.template}"
    refuse_if(
        len(hosts) > 1 or not switches,
        "algorithm",
        f"{schedule.algorithm!r} for {ranks}",
        "ranks that share an NVSwitch",
    )
    names = [*(topology.ranks[rank] for rank in group), *switches[:1] * schedule.switches]
    return [names[at] for at in src.tolist()], [names[at] for at in dst.tolist()]


SINGLE_SENDS = frozenset({"all_to_all", "scatter", "gather", "send"})
"""Operations that NCCL has no collective for: they are sends and receives, started together."""

OWN_ALGORITHM: Mapping[str, str] = {
    op: next(iter(rows)) for op, rows in ALGORITHMS.items() if op != "send"
}
"""What a library runs unless its file (`own_algorithm`) or the user says otherwise: the first."""

ON_CHANNELS = frozenset({"ring", "chain", "star"})
"""Algorithms laid over the machine's own rings and channels; others go by the nearest links."""


def stages_of(schedule: Schedule) -> tuple[tuple[Phase, ...], ...]:
    """Consecutive phases over the same edges belong together, up to one that begins drained."""
    stages: list[list[Phase]] = []
    for phase in schedule.phases:
        if stages and not phase.drained and _same_edges(stages[-1][0], phase):
            stages[-1].append(phase)
        else:
            stages.append([phase])
    return tuple(tuple(stage) for stage in stages)


def _same_edges(first: Phase, second: Phase) -> bool:
    return all(
        np.array_equal(getattr(first, name), getattr(second, name))
        for name in ("src", "dst", "channel")
    )


def _ring_edges(rings: Rings, orders: IntArray, chained: Schedule) -> Edges:
    """The rings' own edges that a chain's phase goes over, in the phase's order."""
    phase, ranks = chained.phases[0], orders.shape[1]
    at = np.empty_like(orders)
    np.put_along_axis(at, orders, np.arange(ranks)[None, :], axis=1)
    return select_edges(rings.edges, phase.channel * ranks + at[phase.channel, phase.src])
