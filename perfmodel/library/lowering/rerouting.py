"""A collective over other links: of a machine that has changed, or of other hosts.

Hosts own equally many arcs, in the same order (`perfmodel.topology.model.Topology.host_arcs`), so
that a collective of GPUs of some hosts is that of others with its ranks and arcs shifted, and with
the routes between these hosts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import IntArray, RankGroup
from perfmodel.library.lowering.edge_routing import reroute_edges
from perfmodel.library.lowering.lowered import Edges, LoweredCollective, Stage, route_latency_s
from perfmodel.library.lowering.protocols import caps_Bps, protocol_parameters, step_latency_s
from perfmodel.library.machine import Machine
from perfmodel.topology.model import Topology


def reroute(lowered: LoweredCollective, machine: Machine) -> LoweredCollective:
    """Return a collective as the changed machine carries it on.

    The schedule, the edges and their order stay, so edge i of the result continues the work of
    edge i. Edges that cross a dead arc take another route; latencies are those of the links as
    they are now. Where nothing changed for it, that is `lowered` itself. It was laid on a machine
    of the same ranks and arc numbers.

    Raises `TopologyError`: two ranks that an edge joins cannot reach each other any more.
    """
    stages = tuple(_reroute_stage(lowered, stage, machine) for stage in lowered.stages)
    unchanged = all(new is old for new, old in zip(stages, lowered.stages, strict=True))
    return lowered if unchanged else replace(lowered, stages=stages)


def _reroute_stage(lowered: LoweredCollective, stage: Stage, machine: Machine) -> Stage:
    edges = reroute_edges(machine.topology, machine.router, stage.edges)
    link_s = route_latency_s(machine.topology, edges.pointers, edges.arcs)  # as it is now
    edges = edges if np.array_equal(link_s, edges.latency_s) else replace(edges, latency_s=link_s)
    if edges is stage.edges:
        return stage
    protocol = protocol_parameters(
        machine.library, lowered.schedule.collective, lowered.schedule.algorithm
    )[lowered.protocol]
    before_s = step_latency_s(protocol, stage.edges, lowered.schedule)
    after_s = step_latency_s(protocol, edges, lowered.schedule)
    rest_s = stage.latency_s - before_s  # of what was measured, and of how a pipeline fills
    return Stage(
        phases=stage.phases,
        edges=edges,
        latency_s=np.where(rest_s == 0, after_s, after_s + rest_s),
        cap_Bps=caps_Bps(protocol, edges, lowered.schedule, stage.phases, stage.load),
        load=stage.load,
    )


# ---------------------------------------------------------------- hosts


@dataclass(frozen=True, slots=True)
class Placed:
    """A collective of a group that runs as that of another group does.

    `lowered`: of a group of the same shape, in the same time.
    `edges`: of the group itself, in place of each of the distinct edges of `lowered`.
    """

    lowered: LoweredCollective
    edges: tuple[Edges, ...]

    def lower(self) -> LoweredCollective:
        """Return the collective of the group itself."""
        if distinct_edges(self.lowered) == self.edges:
            return self.lowered
        return replace(
            self.lowered,
            stages=tuple(
                Stage(s.phases, edges, s.latency_s, s.cap_Bps, s.load)
                for s, edges in zip(self.lowered.stages, self.of_stages(), strict=True)
            ),
        )

    def of_stages(self) -> list[Edges]:
        """Return the edges of the group in each stage."""
        if len(self.edges) == 1:
            return list(self.edges) * len(self.lowered.stages)
        own = dict(zip(distinct_edges(self.lowered), self.edges, strict=True))
        return [own[stage.edges] for stage in self.lowered.stages]


def distinct_edges(lowered: LoweredCollective) -> tuple[Edges, ...]:
    """Return the edges of a collective, those of several stages once."""
    return tuple(dict.fromkeys(stage.edges for stage in lowered.stages))


GroupShape = tuple[tuple[int, ...], tuple[int, ...]]
"""Which GPU of its host each rank of a group is, and which of the group's hosts that is."""


def shape_of(topology: Topology, group: RankGroup) -> GroupShape:
    """Return what groups have in common that differ in their hosts only."""
    size = topology.gpus_per_host
    number: dict[int, int] = {}
    places = tuple(number.setdefault(rank // size, len(number)) for rank in group)
    return tuple(rank % size for rank in group), places


def edges_on_hosts(
    all_edges: Sequence[Edges], machine: Machine, group: RankGroup, others: Sequence[RankGroup]
) -> list[tuple[Edges, ...] | None]:
    """Return all edges of a collective of a group for other groups of its shape.

    None for a group where it is not certain to take the same time: routes between its hosts are
    longer, their links have other rates, or edges share links that they do not share in `group`.
    """
    moves = _host_moves(machine.topology, group, others)
    usable, moved_arcs = np.ones(len(others), dtype=np.bool_), []
    for edges in all_edges:
        may_move, arcs = _moved_arcs(machine, edges, moves)
        usable &= may_move
        moved_arcs.append(arcs)
    own = np.concatenate([edges.arcs for edges in all_edges])
    usable &= _are_alike(machine.topology, own, np.concatenate(moved_arcs, axis=1))
    moved = zip(
        *(
            _on_hosts(machine.topology, edges, arcs, moves)
            for edges, arcs in zip(all_edges, moved_arcs, strict=True)
        ),
        strict=True,
    )
    return [edges if may_move else None for edges, may_move in zip(moved, usable, strict=True)]


@dataclass(frozen=True, slots=True)
class _HostMoves:
    """Hosts of a group, and the hosts of others that take their places."""

    own: IntArray
    """Ascending; shape (hosts,)."""
    others: IntArray
    """Shape (groups, hosts)."""

    def of(self, hosts: IntArray) -> IntArray:
        """Hosts of the other groups in place of some of the own; shape (groups, hosts)."""
        return self.others[:, np.searchsorted(self.own, hosts)]


def _host_moves(topology: Topology, group: RankGroup, others: Sequence[RankGroup]) -> _HostMoves:
    size = topology.gpus_per_host
    own, first = np.unique(np.asarray(group) // size, return_index=True)
    return _HostMoves(own, np.asarray([tuple(each) for each in others])[:, first] // size)


def _moved_arcs(
    machine: Machine, edges: Edges, moves: _HostMoves
) -> tuple[NDArray[np.bool_], IntArray]:
    """Whether each group's routes are as long, and its arcs; shapes (groups,), (groups, hops)."""
    topology, router = machine.topology, machine.router
    block = topology.host_arcs
    arcs = np.broadcast_to(edges.arcs, (len(moves.others), len(edges.arcs))).copy()
    inside = np.flatnonzero(edges.arcs < topology.first_cable)
    hosts = edges.arcs[inside] // block
    arcs[:, inside] += (moves.of(hosts) - hosts) * block
    cables = np.flatnonzero(edges.arcs >= topology.first_cable)
    if not len(cables):
        return np.ones(len(arcs), dtype=np.bool_), arcs
    edge_of = np.repeat(np.arange(len(edges)), np.diff(edges.pointers))
    far, first, hops = np.unique(edge_of[cables], return_index=True, return_counts=True)
    if (edges.src[far] < 0).any() or (edges.dst[far] < 0).any():  # of a switch of the fabric
        return np.zeros(len(arcs), dtype=np.bool_), arcs
    ends = edges.arcs[cables[first]], edges.arcs[cables[first + hops - 1]]
    nics = [router.nic_numbers(cable, end) for end, cable in enumerate(ends)]
    own_hosts = edges.src[far] // topology.gpus_per_host, edges.dst[far] // topology.gpus_per_host
    own_ports = [router.ports(h, nic) for h, nic in zip(own_hosts, nics, strict=True)]
    again = router.across(own_ports[0], own_ports[1], far)
    if not np.array_equal(again[1], edges.arcs[cables]):  # routed by another rule
        return np.zeros(len(arcs), dtype=np.bool_), arcs
    ports = [
        router.ports(moves.of(h), np.broadcast_to(nic, (len(arcs), len(far)))).ravel()
        for h, nic in zip(own_hosts, nics, strict=True)
    ]
    lengths, cable_arcs = router.across(ports[0], ports[1], np.tile(far, len(arcs)))
    as_long = (lengths.reshape(len(arcs), len(far)) == hops).all(axis=1)
    of_as_long = np.repeat(np.repeat(as_long, len(far)), lengths)
    arcs[np.ix_(as_long, cables)] = cable_arcs[of_as_long].reshape(-1, len(cables))
    return as_long, arcs


def _are_alike(topology: Topology, own: IntArray, others: IntArray) -> NDArray[np.bool_]:
    """Whether hops of other groups cross links like the own ones, shared by the same hops."""
    links = topology.arcs
    uses = (_first_uses(others) == _first_uses(own[None, :])).all(axis=1)
    rates = (values[others] == values[own] for values in (links.bandwidth_Bps, links.latency_s))
    are_alike = np.logical_and.reduce([uses, *(each.all(axis=1) for each in rates)])
    return np.asarray(are_alike, dtype=np.bool_)


def _first_uses(arcs: IntArray) -> IntArray:
    """For each hop the first one over the same arc, row by row."""
    order = np.argsort(arcs, axis=1, kind="stable")
    ascending = np.take_along_axis(arcs, order, axis=1)
    begins = np.ones(arcs.shape, dtype=np.bool_)
    begins[:, 1:] = ascending[:, 1:] != ascending[:, :-1]
    at = np.maximum.accumulate(np.where(begins, np.arange(arcs.shape[1]), 0), axis=1)
    uses = np.empty_like(order)
    np.put_along_axis(uses, order, np.take_along_axis(order, at, axis=1), axis=1)
    return uses


def _on_hosts(
    topology: Topology, edges: Edges, arcs: IntArray, moves: _HostMoves
) -> Iterator[Edges]:
    """Yield edges on the hosts of each other group; `arcs`: of each, shape (groups, hops)."""
    size, own = topology.gpus_per_host, moves.own

    def move(numbers: IntArray, block: int) -> IntArray:  # a switch is no rank, and stays -1
        host, rest = np.divmod(numbers, block)
        place = np.minimum(np.searchsorted(own, host), len(own) - 1)
        return np.where(numbers < 0, numbers, moves.others[:, place] * block + rest)

    src, dst = move(edges.src, size), move(edges.dst, size)
    copies = edges.copies
    domains = () if copies is None else move(copies.domain, topology.host_arcs)
    for number, own_arcs in enumerate(arcs):
        yield replace(
            edges,
            src=src[number],
            dst=dst[number],
            arcs=own_arcs,
            copies=copies and replace(copies, domain=domains[number]),
        )
