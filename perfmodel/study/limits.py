"""What is too big for the message fidelity, and why."""

from __future__ import annotations

from perfmodel.errors import Fault, InputError

MESSAGE_SENDS = 3_000_000
"""Sends that fidelity "message" is allowed: about a minute at some 50,000 sends per second."""


def check_message_size(ranks: int, collectives: int, field: str = "fidelity") -> None:
    """Refuse a run whose sends would take minutes.

    Raises
    ------
    InputError
        Says how many sends there would be and what to use instead.
    """
    sends = 2 * ranks * (ranks - 1) * collectives
    if sends > MESSAGE_SENDS:
        raise InputError(
            Fault(
                field,
                f"'message' for {ranks} ranks and {collectives} collectives ({sends:,} sends)",
                f"at most {MESSAGE_SENDS:,} sends; use 'flow', or fewer ranks",
            )
        )
