"""What repetitions of a collective hide of each other: nccl-tests starts each without waiting."""

from __future__ import annotations

import numpy as np

from perfmodel.arrays import RankGroup
from perfmodel.collectives.algorithms.chain import PIECE_BYTES
from perfmodel.library.lowering.link_bytes import stage_bytes
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.simulate.uncontended.timer import UncontendedTimer


def hidden_s(
    timer: UncontendedTimer, lowered: LoweredCollective, op: str, group: RankGroup
) -> float:
    """Time of a broadcast or a reduction that overlaps with the next repetition; seconds.

    nccl-tests starts the next one without waiting for the last, and divides the time of 20 by 20.
    A rank of a chain is done when it has passed its last piece on, before the end of the chain is.
    So the time in which a single piece passes along the chain counts once, not in each repetition.
    """
    schedule = lowered.schedule
    hops = schedule.ranks - 1
    if schedule.algorithm != "chain" or op not in {"broadcast", "reduce"} or hops < 2:
        return 0.0
    chains = 1 + max(int(phase.channel.max()) for phase in schedule.phases)
    piece = min(schedule.nbytes, PIECE_BYTES * chains)
    pieces = lower_collective(timer.machine, op, piece, group, algorithm="chain")
    first = next((each for each in pieces if each.protocol == lowered.protocol), None)
    if first is None:
        return 0.0
    travel_s = (timer.time_s(first) - first.launch_s) * (1 - 1 / hops)
    slack_s = timer.time_s(lowered) - lowered.launch_s - _busy_s(timer, lowered)
    return max(0.0, min(travel_s, slack_s))


def _busy_s(timer: UncontendedTimer, lowered: LoweredCollective) -> float:
    """Least time that the busiest edge needs for its bytes; seconds."""
    return max(
        float(np.max(stage_bytes(lowered, stage) / timer.rates(stage)))
        for stage in timer.legs(lowered)
    )
