"""Bytes of a collective on the links that it crosses: on the wire, or of payload."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, sending_s
from perfmodel.library.lowering.lowered import LoweredCollective, Stage

Crossings = tuple[float, IntArray, IntArray]
"""Load of some edges, links that they use, and how often they cross each."""


class LinkBytes(NamedTuple):
    """Bytes of a collective on the links that it uses, all others having none.

    Arrays have shape (links used,).
    """

    links: IntArray
    wire_bytes: FloatArray
    payload_bytes: FloatArray


def stage_bytes(lowered: LoweredCollective, stage: Stage) -> FloatArray:
    """Wire bytes of each edge in a whole stage; shape (edges,)."""
    payload = sum((p.nbytes * p.active for p in stage.phases), np.zeros(len(stage.edges)))
    return payload * lowered.wire_factor


def add_traffic(
    bytes_on_arc: FloatArray, lowered: LoweredCollective, times: int = 1, *, payload: bool = False
) -> None:
    """Add `times` the bytes of a collective on each link: on the wire, or of payload."""
    for stage in lowered.stages:
        edges, nbytes = stage.edges, times * stage_bytes(lowered, stage)
        if payload:
            nbytes /= lowered.wire_factor * stage.load
        spread = np.repeat(nbytes, np.diff(edges.pointers))
        bytes_on_arc += np.bincount(edges.arcs, weights=spread, minlength=len(bytes_on_arc))


def link_times_s(capacity_Bps: FloatArray, lowered: LoweredCollective) -> FloatArray:
    """Time in which each link carries the bytes of a collective; seconds, shape (links,)."""
    nbytes = np.zeros(len(capacity_Bps))
    add_traffic(nbytes, lowered)
    return sending_s(nbytes, capacity_Bps)


def alike_bytes(lowered: LoweredCollective) -> float | None:
    """Payload of every edge of a collective on so many that it is kept once; None of others."""
    phases, stages = lowered.schedule.phases, lowered.stages
    if len(phases) != 1 or len(stages) != 1 or len(phases[0].nbytes) != len(stages[0].edges):
        return None
    nbytes, active = phases[0].nbytes, phases[0].active
    equal = nbytes.strides == active.strides == (0,) and len(nbytes) > 0
    return float(nbytes[0] * active[0]) if equal else None


def count_crossings(stage: Stage) -> list[Crossings]:
    """How often edges of a stage cross each link, those of one load together."""
    lengths, arcs = np.diff(stage.edges.pointers), stage.edges.arcs
    loads = stage.load[:1] if stage.load.strides == (0,) else np.unique(stage.load)
    if len(loads) == 1:
        return [(float(loads[0]), *_counted(arcs))]
    return [
        (load, *_counted(arcs[np.repeat(stage.load == load, lengths)])) for load in loads.tolist()
    ]


def _counted(arcs: IntArray) -> tuple[IntArray, IntArray]:
    times = np.bincount(arcs)
    used = np.flatnonzero(times)
    return used, times[used]
