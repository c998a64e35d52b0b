"""What is too big to simulate, and why."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.collectives.dependencies import messages_in
from perfmodel.errors import Fault, InputError
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import Machine

MESSAGE_SENDS = 2_000_000
"""Sends that fidelity "message" is allowed: a minute or two, some seconds with the extra `fast`."""

MOST_GPUS = 200_000
"""GPUs of one cluster: building 100,000 takes 1.3 GB and 3 s."""


def check_message_size(
    machine: Machine,
    collectives: Iterable[tuple[str, int]],
    field: str = "fidelity",
    *,
    algorithm: str | None = None,
) -> None:
    """Refuse a run at fidelity "message" whose sends would take minutes.

    Parameters
    ----------
    machine : Machine
    collectives : iterable of (op, nbytes)
        Among all ranks. Sends are counted as the library carries them: rings, pieces of trees and
        chains, segments.
    field : str
    algorithm : str, optional
        As for `perfmodel.library.lowering.lower.lower_collective`.

    Raises
    ------
    InputError
        Says how many sends there would be and what to use instead.
    """
    if len(machine.topology.ranks) < 2:
        return
    wanted = list(collectives)
    group = range(len(machine.topology.ranks))
    known: dict[tuple[str, int], int] = {}
    sends = 0
    for number, (op, nbytes) in enumerate(wanted, 1):
        if (op, nbytes) not in known:
            root = group[0]
            way = lower_collective(machine, op, nbytes, group, root=root, algorithm=algorithm)[0]
            known[op, nbytes] = messages_in(way.schedule)
        sends += known[op, nbytes]
        if sends > MESSAGE_SENDS:
            found = f"'message' for {len(group)} ranks ({sends:,} sends in {number} of "
            raise InputError(
                Fault(
                    field,
                    f"{found}{len(wanted)} collectives)",
                    f"at most {MESSAGE_SENDS:,} sends; use 'flow', fewer ranks or smaller buffers",
                )
            )


def check_cluster_size(gpus: int, field: str) -> None:
    """Refuse a cluster that would not fit a workstation's memory.

    Raises
    ------
    InputError
    """
    if gpus > MOST_GPUS:
        raise InputError(Fault(field, f"{gpus:,} GPUs", f"at most {MOST_GPUS:,} GPUs"))
