"""Says by name what keeps sends from ever arriving."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from perfmodel.library.carry import Carried, Machine, Stage
from perfmodel.topology.model import Topology

SHOWN = 4
"""So many edges are named; the others are counted."""


def name_of(way: Carried) -> str:
    """Readable name of a collective."""
    schedule = way.schedule
    return f"{schedule.collective} ({schedule.algorithm}, {schedule.nbytes:,} bytes)"


def standing_text(machine: Machine, standing: Iterable[tuple[Carried, Sequence[int]]]) -> str:
    """Name the edges of some collectives that stand still, and the links that carry nothing.

    Edges are numbered through the stages of their collective.
    """
    parts = []
    for way, edges in standing:
        named = [_edge_text(machine.topology, way, edge) for edge in edges[:SHOWN]]
        more = f" and {len(edges) - SHOWN} more" if len(edges) > SHOWN else ""
        parts.append(f"{name_of(way)}: {'; '.join(named)}{more}")
    return f"traffic stands still for ever: {' | '.join(parts)}"


def stage_text(machine: Machine, way: Carried, stage: Stage) -> str:
    """Name the edges of one stage of a collective over links that carry nothing."""
    rates, edges = machine.topology.arcs.bandwidth_Bps, stage.edges
    cut = np.add.reduceat(rates[edges.arcs] == 0, edges.pointers[:-1])
    found: list[int] = np.flatnonzero(cut).tolist()
    return standing_text(machine, [(replace(way, stages=(stage,)), found)])


def waiting_text(waiting: Iterable[tuple[Carried, int]]) -> str:
    """Name collectives of which some sends wait for each other."""
    parts = [f"{name_of(way)}: {left} sends wait" for way, left in waiting]
    return f"collectives that cannot end: {'; '.join(parts)}"


def _edge_text(topology: Topology, way: Carried, edge: int) -> str:
    for stage in way.stages:
        if edge < len(stage.edges):
            break
        edge -= len(stage.edges)
    edges, arcs = stage.edges, topology.arcs
    links = edges.arcs[edges.pointers[edge] : edges.pointers[edge + 1]].tolist()
    ends = f"{arcs.names[links[0]][0]} -> {arcs.names[links[-1]][1]}"
    dead = ", ".join(arcs.label(link) for link in links if not arcs.bandwidth_Bps[link])
    return f"{ends}, as {dead or 'its own limit'} carries nothing"
