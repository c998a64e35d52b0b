"""How many sends a schedule has, counted without keeping them."""

from __future__ import annotations

from perfmodel.collectives.schedule import Schedule


def messages_in(schedule: Schedule) -> int:
    """Return how many messages travel: one per edge and repeat in which it works.

    Counted in the phases, so that it costs no more than the edges. It is what fidelity "message"
    simulates.
    """
    return sum(int(phase.active.sum()) for phase in schedule.phases)


def sends_in(schedule: Schedule, most: int | None = None) -> int:
    """Return how many chunks travel, each a send that `verify` executes.

    Parameters
    ----------
    schedule : Schedule
    most : int, optional
        Stop counting once there are more.
    """
    found = 0
    for part in schedule.rounds():
        found += len(part.src)
        if most is not None and found > most:
            break
    return found
