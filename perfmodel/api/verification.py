"""``pm.verify``: whether an algorithm, or a single schedule, leaves the right data behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, overload

from perfmodel.api.questions import python_names
from perfmodel.errors import Fault, InputError
from perfmodel.own_functions import check_function

if TYPE_CHECKING:
    from perfmodel.collectives.schedule import Schedule
    from perfmodel.collectives.verify import Verified
    from perfmodel.collectives.verify_table import VerifiedRow

RANKS = range(2, 18)
"""Numbers of ranks that are tried by default: powers of two, primes and others."""


@overload
def verify(algorithm: Schedule, *, orders: int = 3, seed: int = 0, **own: Any) -> Verified: ...
@overload
def verify(
    algorithm: str | Callable[[int, int], Schedule],
    *,
    ranks: Iterable[int] = RANKS,
    orders: int = 3,
    seed: int = 0,
    **own: Any,
) -> list[VerifiedRow]: ...
def verify(
    algorithm: Any, *, ranks: Iterable[int] = RANKS, orders: int = 3, seed: int = 0, **own: Any
) -> Verified | list[VerifiedRow]:
    """Move real arrays along an algorithm's sends, in random legal orders, and check the result.

    Parameters
    ----------
    algorithm : callable, str or Schedule
        A function of (ranks, nbytes) that returns a Schedule, the name of an algorithm, or a
        schedule, which is checked as it is.
    ranks : iterable of int
        Numbers of ranks, each with several sizes of buffer. Those for which the function raises
        `perfmodel.ScheduleError` are left out.
    orders : int
        How many random legal orders of each schedule to try.
    seed : int
        Other orders for each; the same for the same.
    **own
        As of `perfmodel.collectives.verify_table.verify_table`, or of
        `perfmodel.collectives.verify.verify` for a schedule.

    Returns
    -------
    list of VerifiedRow, or Verified for a schedule
        What was checked, with the bytes that the busiest rank sends.

    Raises
    ------
    DataMismatch
        Wrong data; names rank and chunk, what was found and what was wanted.
    InputError
        No such algorithm, or what is wrong with the function.
    ScheduleError
        Sends of one round that race.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.verify("ring", ranks=[4])[0].bytes_per_rank_over_nbytes
    1.5
    """
    from perfmodel.collectives.schedule import Schedule
    from perfmodel.collectives.verify import verify as verify_schedule
    from perfmodel.collectives.verify_table import verify_table

    if isinstance(algorithm, Schedule):
        return verify_schedule(algorithm, orders=orders, seed=seed, **own)
    if not isinstance(algorithm, str):
        allowed = "a function of (ranks, nbytes) that returns a Schedule, a name, or a Schedule"
        check_function("algorithm", algorithm, "(ranks, nbytes)", allowed)
    counts = [ranks] if isinstance(ranks, int) else list(ranks)
    if not all(isinstance(count, int) and count > 0 for count in counts):
        raise InputError(Fault("ranks", repr(ranks), "numbers of ranks, such as range(2, 18)"))
    with python_names():
        return verify_table(algorithm, counts, orders=orders, seed=seed, **own)
