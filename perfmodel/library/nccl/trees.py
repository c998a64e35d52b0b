"""NCCL's double binary tree over real NICs and channels."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise

import numpy as np

from perfmodel.arrays import RankGroup, rank_array
from perfmodel.collectives.algorithms.tree import (
    Forest,
    chained_parents,
    forest_all_reduce,
    forest_of,
)
from perfmodel.library.channels import Rails, rails_over
from perfmodel.library.lowering.edge_routing import NEAREST, route_edges
from perfmodel.library.lowering.lowered import ITEM_BYTES, Edges, LaidSchedule, route_latency_s
from perfmodel.library.machine import Machine
from perfmodel.library.transport import Path, local_path, nic_path

KIB = 1 << 10

STEP_BYTES = {"ll": 32 * KIB, "ll128": 576_000}
"""Payload of one step: LL 512 threads x 8 lines x 8 bytes; LL128 120 elements x 640 threads x
8 bytes, of which 15/16 are payload; Simple an eighth of ``NCCL_BUFFSIZE``."""

BUFFER_BYTES = 4096 * KIB
"""Default of ``NCCL_BUFFSIZE``."""

PASSED_ON_BYTES = {"ll": (256, 4 * KIB), "ll128": (1_920, 38_400)}
"""Payload that a warp, and a block of all its warps, has passed on before it takes more: LL 32 and
512 threads x 8 bytes, LL128 32 and 640 threads x 64 bytes, of which 15/16 are payload
(``src/device/prims_ll.h``, ``prims_ll128.h``: each line carries its flag, so that nothing waits for
the end of a step)."""

LEAST_PARTS = 8
"""Parts at least that a longer message of LL or LL128 is passed on in, where warps have so much."""

NVLS_BYTES = 128 * KIB
"""NCCL_NVLS_CHUNKSIZE."""


def pieces_of_share(nbytes: float, shares: int, chunk: float) -> int:
    """In how many pieces each of equal shares is sent."""
    return max(1, math.ceil(nbytes / (shares * chunk)))


def tree_bytes(
    protocol: str,
    nbytes: float,
    channels: int,
    nodes: int,
    per_node: int,
    buffer_bytes: int = BUFFER_BYTES,
) -> float:
    """Bytes that a tree moves at a time on each channel; `buffer_bytes`: of Simple.

    LL and LL128 pass on lines as they come; the steps of LL128 are shorter for small messages.
    """
    chunk = float(STEP_BYTES.get(protocol, buffer_bytes / 8))
    if protocol == "ll128":
        steps = 1 + math.floor(math.log2(nodes)) + 0.1 * per_node
        fills = ((steps * 64 / per_node, 128 * KIB), (steps * 16 / per_node, 32 * KIB))
        chunk = _filling(chunk, nbytes / channels, fills)
    if protocol not in PASSED_ON_BYTES:
        return chunk
    least, most = PASSED_ON_BYTES[protocol]
    return min(chunk, max(float(least), min(float(most), nbytes / (channels * LEAST_PARTS))))


def nvls_bytes(nbytes: float, at_once: int, nodes: int = 1) -> float:
    """Bytes that each head moves at a time on each channel; `at_once` heads times channels.

    Between nodes, which trees join, by NCCL_NVLSTREE_MAX_CHUNKSIZE.
    """
    chunk = float(64 * KIB if nodes >= 4 else NVLS_BYTES)
    alone, between = ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB)), ((4, 64 * KIB), (1, 32 * KIB))
    for fill, smaller in alone if nodes == 1 else between:
        if nbytes < fill * at_once * chunk:
            chunk = float(smaller)
    return chunk


def collnet_bytes(nbytes: float, channels: int, depth: int) -> float:
    """Bytes that CollNet moves at a time on each channel, `depth` steps below the network."""
    fills = ((64 * depth, 128 * KIB), (8 * depth, 64 * KIB), (depth, 32 * KIB))
    return _filling(256.0 * KIB, nbytes / channels, fills)


def _filling(chunk: float, nbytes: float, fills: Iterable[tuple[float, int]]) -> float:
    """Halve a chunk, down to some size, while fewer whole ones than stated fill so many bytes."""
    for fewest, least in fills:
        while nbytes // chunk < fewest and chunk > least:
            chunk /= 2
    return chunk


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
    rails = rails_of(machine, group)
    trees, edges = machine.laid(("tree", group), lambda: over_rails(machine, rails))
    nodes, size = rails.hosts.shape
    buffer_bytes = machine.settings.count("NCCL_BUFFSIZE") or BUFFER_BYTES
    chunk = tree_bytes(protocol, nbytes, channels, nodes, size, buffer_bytes)
    pieces = pieces_of_share(nbytes, channels, chunk)
    schedule = machine.recent(
        "tree schedules",
        trees,
        (nbytes, pieces),
        lambda: forest_all_reduce(trees, nbytes, pieces=pieces, itemsize=ITEM_BYTES),
    )
    return LaidSchedule(schedule, ((schedule.phases, edges),), shared=True)


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
        edges = replace(edges, latency_s=route_latency_s(topology, edges.pointers, edges.arcs))
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
        paths += [
            local_path(topology, router, *ends)
            for a, b in pairwise(gpus)
            for ends in ((a, b), (b, a))
        ]
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
