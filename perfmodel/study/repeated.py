"""Collectives one behind the other, as benchmarks time them."""

from __future__ import annotations

import numpy as np

from perfmodel.collectives.chain import PIECE_BYTES
from perfmodel.library.carry import Carried, Group, carry
from perfmodel.simulate.estimate import Estimator, stage_bytes


def hidden_s(known: Estimator, way: Carried, op: str, group: Group) -> float:
    """What repeating a broadcast or a reduction hides of its time; seconds.

    nccl-tests starts the next one without waiting for the last (one time for 20 of them). A rank of
    a chain is done when it has passed its last piece on, long before the end of the chain is; so
    what a single one needs to travel down the chain is seen once, and not in each of them.

    Parameters
    ----------
    known : Estimator
    way : Carried
        How the collective is carried.
    op : str
    group : range or tuple of int
    """
    schedule = way.schedule
    hops = schedule.ranks - 1
    if schedule.algorithm != "chain" or op not in {"broadcast", "reduce"} or hops < 2:
        return 0.0
    chains = 1 + max(int(phase.channel.max()) for phase in schedule.phases)
    piece = min(schedule.nbytes, PIECE_BYTES * chains)
    alone = carry(known.machine, op, piece, group, algorithm="chain")
    first = next((one for one in alone if one.protocol == way.protocol), None)
    if first is None:
        return 0.0
    travel_s = (known.way_s(first) - first.launch_s) * (1 - 1 / hops)
    return max(0.0, min(travel_s, known.way_s(way) - way.launch_s - _busy_s(known, way)))


def _busy_s(known: Estimator, way: Carried) -> float:
    """Least time that the busiest edge needs for what it sends; seconds."""
    return max(
        float(np.max(stage_bytes(way, stage) / known.rates(stage))) for stage in known.legs(way)
    )
