"""NCCL's double binary tree over real NICs and channels."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from perfmodel.arrays import RankGroup, rank_array
from perfmodel.collectives.algorithms import pipelined_trees
from perfmodel.collectives.algorithms.pipelined_trees import Forest, chained_parents, forest_of
from perfmodel.library.channels.rails import Rails, rails_over
from perfmodel.library.lowering.edge_routing import NEAREST, route_edges
from perfmodel.library.lowering.edges import Edges, with_latencies
from perfmodel.library.lowering.lowered import ITEM_BYTES, LaidSchedule
from perfmodel.library.machine import Machine
from perfmodel.library.nccl.chunk_sizes import pieces_of_share, tree_bytes
from perfmodel.library.transport import Path, local_path, nic_path


@dataclass(frozen=True, slots=True)
class LaidForest:
    """Trees over a group, and the links of their edges."""

    trees: Forest
    edges: Edges
    rails: Rails


def rails_of(machine: Machine, group: RankGroup) -> Rails:
    """The channels of a group; found once."""
    return machine.laid(
        ("rails", group),
        lambda: rails_over(
            machine.topology, machine.router, rank_array(group), at_most=machine.channels
        ),
    )


def lay_tree(
    machine: Machine, nbytes: int, group: RankGroup, protocol: str, channels: int
) -> LaidSchedule:
    """All-reduce up and down trees, in the pieces of a protocol.

    `channels`: those that NCCL uses for this message; each that is laid represents some of them.
    Trees are laid over all rails at any size: where rails share switches their flows collide by
    hash, and the most loaded cable decides.
    """
    laid = machine.laid(("tree", group), lambda: _lay(machine, group))
    nodes, size = laid.rails.hosts.shape
    chunk = tree_bytes(protocol, nbytes, channels, nodes, size)
    pieces = pieces_of_share(nbytes, channels, chunk)
    schedule = machine.recent(
        "tree schedules",
        (laid.trees,),
        (nbytes, pieces),
        lambda: pipelined_trees.all_reduce(laid.trees, nbytes, pieces=pieces, itemsize=ITEM_BYTES),
    )
    return LaidSchedule(schedule, ((schedule.phases, laid.edges),), shared=True)


def _lay(machine: Machine, group: RankGroup) -> LaidForest:
    rails = rails_of(machine, group)
    return LaidForest(*over_rails(machine, rails), rails)


def over_rails(machine: Machine, rails: Rails) -> tuple[Forest, Edges]:
    """Two trees over nodes on each channel, or within one node its chains, laid on links.

    Machines whose links differ in their numbers only share the routes, which are large.
    """
    topology = machine.topology
    is_alike = topology.tiers is not None and not topology.dead
    if not is_alike or len(rails.hosts) == 1 or NEAREST in rails.nics:
        return _lay_trees(machine, rails)
    key = ("trees", _content(rails), _host_paths(machine, rails))
    laid_on, trees, edges = machine.shared.get(key, (None, None, None))
    if laid_on is None or laid_on.tiers is not topology.tiers:
        trees, edges = _lay_trees(machine, rails)
        machine.shared[key] = topology, trees, edges
    elif laid_on.arcs.latency_s is not topology.arcs.latency_s:
        edges = with_latencies(topology, edges)
    return trees, edges


def _content(rails: Rails) -> tuple[bytes, ...]:
    return tuple(part.tobytes() for part in (rails.hosts, rails.chains, rails.nics, rails.spread))


def _host_paths(machine: Machine, rails: Rails) -> tuple[Path, ...]:
    """Paths of the trees' edges inside hosts, as arcs of the first host."""
    topology, router = machine.topology, machine.router
    local = rails.hosts[0] % topology.gpus_per_host
    paths = []
    for chain, nic, spread in zip(
        local[rails.chains].tolist(), rails.nics.tolist(), rails.spread.tolist(), strict=True
    ):
        gpus, port = [topology.ranks[gpu] for gpu in chain], router.nic_name(0, nic)
        for a, b in pairwise(gpus):
            paths += [local_path(topology, router, *ends) for ends in ((a, b), (b, a))]
        paths += [
            nic_path(topology, router, gpu, port, outward=outward)
            for gpu in gpus[: 1 + spread]
            for outward in (True, False)
        ]
    return tuple(paths)


def _lay_trees(machine: Machine, rails: Rails) -> tuple[Forest, Edges]:
    trees = forest_of(
        np.stack(
            [
                chained_parents(rails.places[:, chain], second=bool(second), spread=bool(spread))
                for chain, spread in zip(rails.chains, rails.spread, strict=True)
                for second in range(rails.trees)
            ]
        )
    )
    ranks, nics = rails.hosts.ravel(), rails.nics[trees.channel // rails.trees]
    ends = ranks[trees.src], ranks[trees.dst]
    return trees, route_edges(machine.topology, machine.router, *ends, nics, nics)
