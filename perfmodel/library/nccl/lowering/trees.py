"""NCCL's double binary tree over real NICs and channels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import RankGroup, rank_array
from perfmodel.collectives.algorithms import pipelined_trees
from perfmodel.collectives.algorithms.pipelined_trees import Forest, chained_parents, forest_of
from perfmodel.library.channels.rails import Rails, rails_over
from perfmodel.library.lowering.edge_routing import route_edges
from perfmodel.library.lowering.edges import Edges
from perfmodel.library.lowering.lowered import ITEM_BYTES, LaidSchedule
from perfmodel.library.machine import Machine
from perfmodel.library.nccl.chunk_sizes import pieces_of_share, tree_bytes


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
    schedule = pipelined_trees.all_reduce(
        laid.trees,
        nbytes,
        pieces=pieces_of_share(nbytes, channels, chunk),
        itemsize=ITEM_BYTES,
    )
    return LaidSchedule(schedule, ((schedule.phases, laid.edges),))


def _lay(machine: Machine, group: RankGroup) -> LaidForest:
    rails = rails_of(machine, group)
    return LaidForest(*over_rails(machine, rails), rails)


def over_rails(machine: Machine, rails: Rails) -> tuple[Forest, Edges]:
    """Two trees over nodes on each channel, or within one node its chains, laid on links."""
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
