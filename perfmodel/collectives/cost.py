"""Closed forms: what a collective costs on uniform links, and bounds that nothing may beat.

alpha is the latency of one step in seconds, beta the inverse bandwidth in seconds per byte.
Source of the forms: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005; Hockney's alpha-beta model.
"""

from __future__ import annotations

import math
from typing import Any

from perfmodel.collectives.forms import form


def closed_form_s(
    op: str,
    algorithm: str,
    ranks: int,
    nbytes: float,
    *,
    alpha_s: float,
    beta_s_per_B: float,
    gamma_s_per_B: float = 0.0,
    **own: Any,
) -> float:
    """Time of an algorithm on uniform links: steps alpha + path beta + sums gamma; seconds.

    Parameters
    ----------
    op, algorithm : str
        As in `perfmodel.collectives.catalog.ALGORITHMS`.
    ranks : int
    nbytes : float
        S; bytes.
    alpha_s, beta_s_per_B : float
        Latency of a step, and inverse bandwidth of a rank's port in one direction. Sends that
        share a port share its bandwidth.
    gamma_s_per_B : float
        Time to add one byte; the busiest rank's sums are counted as if nothing overlapped them.
    **own
        The algorithm's own parameters, as for `perfmodel.collectives.forms.form`.

    Raises
    ------
    InputError
        No such operation or algorithm.
    """
    cost = form(op, algorithm, ranks, nbytes, **own)
    wire_s = cost.steps * alpha_s + cost.path_bytes * beta_s_per_B
    return wire_s + cost.reduced_bytes * gamma_s_per_B


def steps(op: str, algorithm: str, ranks: int, nbytes: float, **own: Any) -> int:
    """Number of rounds of an algorithm's schedule."""
    return form(op, algorithm, ranks, nbytes, **own).steps


def bytes_per_rank(op: str, algorithm: str, ranks: int, nbytes: float, **own: Any) -> float:
    """Bytes that the busiest rank sends in an algorithm; exact where chunks divide evenly."""
    return form(op, algorithm, ranks, nbytes, **own).sent_bytes


def lower_bound_s(
    op: str, algorithm: str, ranks: int, nbytes: float, *, alpha_s: float, beta_s_per_B: float
) -> float:
    """Time that no algorithm of this kind can beat, on ports as in `closed_form_s`; seconds.

    The larger of two bounds. Bandwidth: what the busiest port must carry (`bus_factor` S; S for
    an all-reduce in a switch). Latency: if a rank hears from f others in a step, data of N ranks
    needs log N / log(1+f) steps to come together, and a switch needs two.
    """
    if ranks < 2:
        return 0.0
    in_switch = algorithm.replace("-", "_") in IN_SWITCH
    summed = in_switch and op.replace("-", "_") == "all_reduce"
    share = 1.0 if summed else bus_factor(op.replace("-", "_"), ranks)
    heard = {"server": ranks - 1, "direct": ranks - 1, "star": ranks - 1, "tree": 4}
    heard |= {"bidirectional_ring": 2, "batched": ranks - 1}
    fewest = math.log(ranks) / math.log(1 + heard.get(algorithm.replace("-", "_"), 1))
    least = 2 if in_switch else math.ceil(fewest - 1e-9)
    return max(least * alpha_s, share * nbytes * beta_s_per_B)


IN_SWITCH = frozenset({"switch", "nvls", "nvls_tree", "collnet", "collnet_direct"})
"""Algorithms in which switches add and copy."""


def bus_factor(collective: str, ranks: int) -> float:
    """Return busbw / algbw, as nccl-tests defines it (``doc/PERFORMANCE.md``)."""
    if ranks < 2:
        return 1.0
    share = {"all_reduce": 2 * (ranks - 1) / ranks, "broadcast": 1.0, "reduce": 1.0, "send": 1.0}
    return share.get(collective, (ranks - 1) / ranks)
