"""What is too big to simulate, and why."""

from __future__ import annotations

from perfmodel.errors import Fault, InputError
from perfmodel.library.carry import Machine

MESSAGE_SENDS = 500_000
"""Sends that fidelity "message" is allowed: a minute or two where rings share links."""

MOST_GPUS = 200_000
"""GPUs of one cluster: building 100,000 takes 1.2 GB and 8 s."""


def check_message_size(machine: Machine, collectives: int, field: str = "fidelity") -> None:
    """Refuse a run at fidelity "message" whose sends would take minutes.

    Raises
    ------
    InputError
        Says how many sends there would be and what to use instead.
    """
    ranks = len(machine.topology.ranks)
    if ranks < 2 or not collectives:
        return
    # Every ring carries 2 (N - 1) steps of N sends; laying the rings first would be slow for many.
    rings = len(machine.rings(range(ranks)).orders) if ranks <= MESSAGE_SENDS**0.5 else 1
    sends = 2 * ranks * (ranks - 1) * rings * collectives
    if sends > MESSAGE_SENDS:
        raise InputError(
            Fault(
                field,
                f"'message' for {ranks} ranks, {rings} rings and {collectives} collectives "
                f"({sends:,} sends)",
                f"at most {MESSAGE_SENDS:,} sends; use 'flow', or fewer ranks",
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
