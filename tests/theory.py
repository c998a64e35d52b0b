"""Formulas from textbooks, kept apart from the package so that tests do not ask it about itself.

Sources: Thakur, Rabenseifner and Gropp, IJHPCA 19(1), 2005; Chan and others, Concurrency and
Computation 19(13), 2007.
"""

from __future__ import annotations

import math


def ring_all_reduce_s(ranks: int, nbytes: float, *, alpha_s: float, beta_s_per_B: float) -> float:
    """Time of a ring all-reduce: 2(N-1)(alpha + S beta / N); seconds."""
    return 2 * (ranks - 1) * (alpha_s + nbytes * beta_s_per_B / ranks)


def chain_s(
    ranks: int, nbytes: float, *, pieces: int, alpha_s: float, beta_s_per_B: float
) -> float:
    """Time of a pipelined broadcast or reduce: (N-2+P)(alpha + S beta / P); seconds."""
    return (ranks - 2 + pieces) * (alpha_s + nbytes * beta_s_per_B / pieces)


def sent_share(collective: str, ranks: int) -> float:
    """Bytes that the busiest rank sends per byte of the buffer, where bandwidth is best used."""
    if collective in {"broadcast", "reduce", "send_recv"}:
        return 1.0
    return (2 if collective == "all_reduce" else 1) * (ranks - 1) / ranks


def egress_bound_s(collective: str, ranks: int, nbytes: float, cut_Bps: float) -> float:
    """Time below which point-to-point sends cannot end, if each rank sends at `cut_Bps`; seconds.

    Of an all-gather a rank need send its own part only, of a broadcast all once.
    """
    if ranks < 2:
        return 0.0
    share = 1 / ranks if collective == "all_gather" else sent_share(collective, ranks)
    return share * nbytes / cut_Bps


def latency_bound_s(collective: str, ranks: int, alpha_s: float) -> float:
    """Chain of latencies that no schedule of single sends can avoid: ceil(log2 N) steps."""
    if ranks < 2:
        return 0.0
    return alpha_s * (1 if collective in {"scatter", "gather"} else math.ceil(math.log2(ranks)))
