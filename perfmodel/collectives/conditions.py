"""What each rank holds before a collective and must hold after it, chunk by chunk.

Chunks of all_to_all: 0 ... N-1 input by receiver, N ... 2N-1 output by sender, then scratch; the
block that a rank keeps for itself stays in the input.
"""

from __future__ import annotations

from typing import Final

from perfmodel.collectives.schedule import Schedule

PADDED: Final = frozenset({"all_to_all"})
"""Collectives with more chunks than the buffer has bytes: output and scratch apart from input."""


def holds_at_first(schedule: Schedule, rank: int, chunk: int) -> bool:
    """Whether the rank's copy of the chunk holds data before the collective."""
    if schedule.collective in {"all_gather", "gather"}:
        return bool(schedule.owner[chunk] == rank)
    if schedule.collective in {"broadcast", "scatter"}:
        return rank == schedule.root
    if schedule.collective == "all_to_all":
        return chunk < schedule.ranks
    return True


def must_hold(schedule: Schedule, rank: int, chunk: int) -> bool:
    """Whether something is expected of the rank's copy of the chunk after the collective."""
    if schedule.collective in {"reduce_scatter", "scatter"}:
        return bool(schedule.owner[chunk] == rank)
    if schedule.collective in {"reduce", "gather"}:
        return rank == schedule.root
    if schedule.collective == "all_to_all":
        own = chunk in {rank, schedule.ranks + rank}
        return (chunk < schedule.ranks) == own and chunk < 2 * schedule.ranks
    return True


def wanted_part(schedule: Schedule, rank: int, chunk: int) -> tuple[int | None, int]:
    """Whose input must be there afterwards (None: the sum of all), and which chunk of it."""
    if schedule.collective in {"all_reduce", "reduce_scatter", "reduce"}:
        return None, chunk
    if schedule.collective == "all_to_all":
        return (rank if chunk < schedule.ranks else chunk - schedule.ranks), rank
    if schedule.collective in {"all_gather", "gather"}:
        return int(schedule.owner[chunk]), chunk
    return schedule.root, chunk
