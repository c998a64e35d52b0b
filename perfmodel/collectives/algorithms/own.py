"""A function of the user's as an algorithm: it is called, and what it returns is checked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import numpy as np

from perfmodel.collectives.catalog import algorithms
from perfmodel.collectives.dependencies import sends_in
from perfmodel.collectives.schedule import Schedule
from perfmodel.collectives.verify import verify
from perfmodel.errors import Fault, InputError, describe_type, raise_faults, refuse_if
from perfmodel.own_functions import call_function, name_of

OwnAlgorithm = Callable[[int, int], Schedule]
"""``algorithm(ranks, nbytes)``: a schedule of any collective. It raises `ScheduleError` for a
number of ranks or a size that it does not allow."""

OWN: Final = "own"
"""Name under which tables are asked for numbers of an algorithm that they do not have."""

MOST_CHECKED: Final = 50_000
"""Sends of a schedule up to which its data is checked before it is timed: a second."""

A_FUNCTION: Final = "a function of (ranks, nbytes) that returns a perfmodel.Schedule"


def plan_own(algorithm: OwnAlgorithm, ranks: int, nbytes: int, op: str | None = None) -> Schedule:
    """Plan a collective with a function of the user's.

    `op`: what it has to do; None: whatever it does.
    Raises `InputError`: it cannot be called so, raises, or returns something else.
    Raises `ScheduleError`: the function says that it does not allow this.
    """
    name = name_of(algorithm)
    schedule = call_function("algorithm", algorithm, (ranks, nbytes), "(ranks, nbytes)", A_FUNCTION)
    if not isinstance(schedule, Schedule):
        raise InputError(
            Fault(
                "algorithm",
                f"{name}({ranks}, {nbytes}), which returned {describe_type(schedule)}",
                A_FUNCTION,
            )
        )
    expected = {"ranks": ranks, "nbytes": nbytes, "collective": op or schedule.collective}
    raise_faults(
        Fault(f"{name}().{field}", repr(getattr(schedule, field)), repr(value))
        for field, value in expected.items()
        if getattr(schedule, field) != value
    )
    _check_views(name, schedule)
    return replace(schedule, algorithm=f"{name} (own)" if name in algorithms() else name)


def check_data(schedule: Schedule) -> bool:
    """Check what a schedule leaves behind, with an element in each chunk.

    Returns whether it was checked: not if it has more than `MOST_CHECKED` sends.
    Raises `DataMismatch`: names rank and chunk.
    Raises `ScheduleError`: sends that race or wait for each other.
    """
    if sends_in(schedule, most=MOST_CHECKED) > MOST_CHECKED:
        return False
    sizes = np.full(len(schedule.chunk_bytes), schedule.itemsize, dtype=np.int64)
    verify(replace(schedule, chunk_bytes=sizes, nbytes=int(sizes.sum())), orders=1)
    return True


def _check_views(name: str, schedule: Schedule) -> None:
    """Refuse phases, which are timed, that are not the rounds, which are checked."""
    total, allowed = int(schedule.chunk_bytes.sum()), f"the {schedule.nbytes} bytes of the buffer"
    refuse_if(
        total != schedule.nbytes and schedule.collective != "all_to_all",
        f"{name}().chunk_bytes",
        f"{total} bytes",
        allowed,
    )
    if sends_in(schedule, most=MOST_CHECKED) > MOST_CHECKED:
        return
    by_rounds, by_phases = dict[tuple[int, int], float](), dict[tuple[int, int], float]()
    for part in schedule.rounds():
        _add(by_rounds, part.src, part.dst, part.nbytes)
    for phase in schedule.phases:
        _add(by_phases, phase.src, phase.dst, phase.nbytes * phase.active)
    for edge in sorted(by_rounds.keys() | by_phases.keys()):
        sent, timed = by_rounds.get(edge, 0.0), by_phases.get(edge, 0.0)
        if abs(sent - timed) > schedule.itemsize * (1 + 1e-9 * sent):
            text = f"{timed:,.0f} bytes from rank {edge[0]} to {edge[1]}"
            allowed = f"the {sent:,.0f} of its rounds; Schedule.from_rounds makes both alike"
            raise InputError(Fault(f"{name}().phases", text, allowed))


def _add(totals: dict[tuple[int, int], float], src: Any, dst: Any, nbytes: Any) -> None:
    for edge in zip(src.tolist(), dst.tolist(), nbytes.tolist(), strict=True):
        totals[edge[:2]] = totals.get(edge[:2], 0.0) + edge[2]
