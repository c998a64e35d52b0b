"""Closed forms of what algorithms cost on uniform links, and bounds that no schedule can beat.

The model is Hockney's: every rank has one port that carries 1/beta bytes per second each way; what
it sends (or receives) at once shares the port; a step costs alpha and the bytes of its busiest
port; steps follow each other. Sources of the forms: Thakur, Rabenseifner and Gropp, IJHPCA 19(1),
2005; Patarasuk and Yuan, JPDC 69(2), 2009; Sanders et al., Parallel Computing 35(12), 2009. S is
the buffer, N the ranks, M the largest power of two up to N. The table of algorithms
(`perfmodel.collectives.catalog`) names the form of each.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.collectives.algorithms.all_to_all import BATCH
from perfmodel.collectives.algorithms.chain import PIECE_BYTES as CHAIN_BYTES
from perfmodel.collectives.algorithms.collnet import PIECE_BYTES as COLLNET_BYTES
from perfmodel.collectives.algorithms.in_network import PIECE_BYTES as SWITCH_BYTES
from perfmodel.collectives.algorithms.nvls import PIECE_BYTES as NVLS_BYTES
from perfmodel.collectives.algorithms.ring import SEGMENT_BYTES, segments
from perfmodel.collectives.algorithms.tree import PIECE_BYTES as TREE_BYTES
from perfmodel.collectives.catalog import ALGORITHMS, bus_factor, find_algorithm
from perfmodel.collectives.patterns import near_root, pieces_of


@dataclass(frozen=True, slots=True)
class Form:
    """A closed form."""

    steps: int
    """Rounds of the schedule: factor of alpha."""
    sent_bytes: float
    """By the busiest rank in all."""
    path_bytes: float
    """Of the busiest port of each step, added up: factor of beta."""
    reduced_bytes: float = 0.0
    """That the busiest rank adds up in all: factor of gamma."""


Formula = Callable[[int, float, Mapping[str, Any]], Form]


def form(op: str, algorithm: str, ranks: int, nbytes: float, **own: Any) -> Form:
    """Return the closed form of an algorithm; exact where chunks divide evenly.

    Parameters
    ----------
    op, algorithm : str
        As in `perfmodel.collectives.catalog.ALGORITHMS`.
    ranks : int
    nbytes : float
    **own
        ``piece_bytes`` (chain, tree, switch, nvls, collnet), ``segment_bytes`` (gloo_ring),
        ``group_size`` (hierarchical, nvls_tree, collnet), ``columns`` (torus), ``servers`` (a
        number); defaults as in the catalog.

    Raises
    ------
    InputError
        No such operation or algorithm.
    """
    formula = _FORMS[find_algorithm(op, algorithm).form]
    return formula(ranks, nbytes, own) if ranks > 1 else Form(0, 0.0, 0.0)


def _power(ranks: int) -> tuple[int, int, int]:
    """M, log2 M, and 1 if N is no power of two."""
    doublings = ranks.bit_length() - 1
    return 1 << doublings, doublings, int(ranks != 1 << doublings)


def _height(ranks: int) -> int:
    """ceil(log2 N)."""
    return (ranks - 1).bit_length()


def _ring(ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
    half = (ranks - 1) / ranks * nbytes
    return Form(2 * (ranks - 1), 2 * half, 2 * half, half)


def _all_parts(steps_of: Callable[[int], int], *, reduces: bool = False) -> Formula:
    """Every rank sends, and is sent, all parts of S but its own."""

    def formula(ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
        sent = (ranks - 1) / ranks * nbytes
        return Form(steps_of(ranks), sent, sent, sent * reduces)

    return formula


_pairwise = _ring_all_gather = _all_parts(lambda ranks: ranks - 1)
_ring_reduce_scatter = _all_parts(lambda ranks: ranks - 1, reduces=True)
_logarithmic_all_gather = _all_parts(_height)
_logarithmic_reduce_scatter = _all_parts(_height, reduces=True)
_direct_all_to_all = _all_parts(lambda _: 1)
_batched = _all_parts(lambda ranks: -(-(ranks - 1) // BATCH))


def _gloo_ring(ranks: int, nbytes: float, own: Mapping[str, Any]) -> Form:
    number, _ = segments(
        ranks, int(nbytes), segment_bytes=int(own.get("segment_bytes", SEGMENT_BYTES))
    )
    half = (ranks - 1) / ranks * nbytes
    return Form(2 * (ranks - 1) * (number // ranks), 2 * half, 2 * half, half)


def _tree(ranks: int, nbytes: float, own: Mapping[str, Any]) -> Form:
    pieces = pieces_of(int(nbytes), 2, int(own.get("piece_bytes", TREE_BYTES)), 1)
    steps = 2 * _height(ranks) - 1 + pieces
    # The busiest port carries one piece up and two down in one tree, one up in the other.
    at_once = min(ranks, 4) / 2 * nbytes
    return Form(steps, at_once, steps / pieces * at_once, nbytes if ranks > 2 else nbytes / 2)


def _binomial(ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
    half = _height(ranks) * nbytes
    return Form(2 * _height(ranks), half, 2 * half, half)


def _recursive_doubling(ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
    _power_of_two, doublings, fold = _power(ranks)
    sent = (doublings + fold) * nbytes
    return Form(doublings + 2 * fold, sent, sent + fold * nbytes, sent)


def _halving_doubling(ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
    members, doublings, fold = _power(ranks)
    half = (members - 1) / members * nbytes
    extra = fold * nbytes
    return Form(2 * doublings + 2 * fold, 2 * half + extra, 2 * (half + extra), half + extra)


def _rabenseifner(ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
    members, doublings, fold = _power(ranks)
    half, extra = (members - 1) / members * nbytes, fold * nbytes
    return Form(
        2 * doublings + 3 * fold, 2 * half + 1.5 * extra, 2 * (half + extra), half + extra / 2
    )


def _two_level(size_of: str) -> Formula:
    def formula(ranks: int, nbytes: float, own: Mapping[str, Any]) -> Form:
        size = int(own.get(size_of, near_root(ranks)))
        half = (ranks - 1) / ranks * nbytes
        return Form(2 * (size - 1) + 2 * (ranks // size - 1), 2 * half, 2 * half, half)

    return formula


_hierarchical, _torus = _two_level("group_size"), _two_level("columns")


def _server(ranks: int, nbytes: float, own: Mapping[str, Any]) -> Form:
    servers = int(own.get("servers", 1))
    pushed = (ranks - 1) / servers * nbytes
    return Form(2, pushed + (servers - 1) / servers * nbytes, 2 * pushed, pushed)


def _switch(_: int, nbytes: float, own: Mapping[str, Any]) -> Form:
    pieces = pieces_of(int(nbytes), 1, int(own.get("piece_bytes", SWITCH_BYTES)), 1)
    return Form(pieces + 1, nbytes, (pieces + 1) / pieces * nbytes)


def _nvls(steps: int, sent: Callable[[int], float], path: Callable[[int], float]) -> Formula:
    """Through a switch, where the busiest port carries `path` of S, most of what is `sent`."""

    def formula(ranks: int, nbytes: float, own: Mapping[str, Any]) -> Form:
        pieces = pieces_of(int(nbytes), ranks, int(own.get("piece_bytes", NVLS_BYTES)), 1)
        repeats = pieces + steps
        return Form(repeats, sent(ranks) * nbytes, repeats / pieces * path(ranks) * nbytes)

    return formula


_nvls_all_reduce = _nvls(3, lambda n: 1 + 1 / n, lambda n: 1 + 1 / n)
_nvls_reduce_scatter = _nvls(1, lambda _: 1.0, lambda _: 1.0)
_nvls_all_gather = _nvls(1, lambda n: 1 / n, lambda _: 1.0)


def _nvls_tree(ranks: int, nbytes: float, own: Mapping[str, Any]) -> Form:
    heads = int(own.get("group_size", near_root(ranks)))
    nodes = ranks // heads
    pieces = pieces_of(
        int(nbytes), heads * min(nodes, 2), int(own.get("piece_bytes", NVLS_BYTES)), 1
    )
    repeats = pieces + 2 * _height(nodes) + 3
    # In one tree half a part up and twice half a part down, in the other half a part up.
    between = min(nodes, 4) / 2 * (nodes > 1) / heads
    sent = (1 + 1 / heads + between) * nbytes
    return Form(repeats, sent, repeats / pieces * sent, min(nodes - 1, 2) / 2 / heads * nbytes)


def _collnet(ranks: int, nbytes: float, own: Mapping[str, Any]) -> Form:
    size = int(own.get("group_size", near_root(ranks)))
    pieces = pieces_of(int(nbytes), 1, int(own.get("piece_bytes", COLLNET_BYTES)), 1)
    repeats = 2 * size - 1 + pieces
    sent = min(size, 2) * nbytes
    return Form(repeats, sent, repeats / pieces * sent, nbytes * (size > 1))


def _collnet_direct(ranks: int, nbytes: float, own: Mapping[str, Any]) -> Form:
    size = int(own.get("group_size", near_root(ranks)))
    pieces = pieces_of(int(nbytes), size, int(own.get("piece_bytes", COLLNET_BYTES)), 1)
    repeats = pieces + (3 if size > 1 else 1)
    sent = (2 * size - 1) / size * nbytes
    return Form(repeats, sent, repeats / pieces * sent, (size - 1) / size * nbytes)


def _recursive_halving(ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
    members, doublings, fold = _power(ranks)
    extra = ranks - members
    # Members that a partner folded into have two parts; those parts are all at one end.
    parts = sum((1 << k) + min(extra, 1 << k) for k in range(doublings))
    halved, folded = parts / ranks * nbytes, fold * nbytes
    return Form(
        doublings + 2 * fold, folded or halved, halved + folded + folded / ranks, halved + folded
    )


def _chain(reduces: bool) -> Formula:
    def formula(ranks: int, nbytes: float, own: Mapping[str, Any]) -> Form:
        pieces = pieces_of(int(nbytes), 1, int(own.get("piece_bytes", CHAIN_BYTES)), 1)
        steps = ranks - 2 + pieces
        return Form(steps, nbytes, steps / pieces * nbytes, nbytes * reduces)

    return formula


_chain_broadcast, _chain_reduce = _chain(reduces=False), _chain(reduces=True)


def _binomial_broadcast(ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
    return Form(_height(ranks), _height(ranks) * nbytes, _height(ranks) * nbytes)


def _binomial_reduce(ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
    return Form(_height(ranks), nbytes, _height(ranks) * nbytes, _height(ranks) * nbytes)


def _bruck_all_to_all(ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
    sent = sum(offset.bit_count() for offset in range(1, ranks)) / ranks * nbytes
    return Form(_height(ranks), sent, sent)


def _scatter(ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
    return Form(1, (ranks - 1) / ranks * nbytes, (ranks - 1) / ranks * nbytes)


def _gather(ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
    return Form(1, nbytes / ranks, (ranks - 1) / ranks * nbytes)


def _send(_ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
    return Form(1, nbytes, nbytes)


_FORMS: Mapping[str, Formula] = {
    "ring": _ring,
    "ring_reduce_scatter": _ring_reduce_scatter,
    "ring_all_gather": _ring_all_gather,
    "gloo_ring": _gloo_ring,
    "tree": _tree,
    "binomial": _binomial,
    "recursive_doubling": _recursive_doubling,
    "halving_doubling": _halving_doubling,
    "rabenseifner": _rabenseifner,
    "hierarchical": _hierarchical,
    "torus": _torus,
    "server": _server,
    "switch": _switch,
    "nvls_all_reduce": _nvls_all_reduce,
    "nvls_reduce_scatter": _nvls_reduce_scatter,
    "nvls_all_gather": _nvls_all_gather,
    "nvls_tree": _nvls_tree,
    "collnet": _collnet,
    "collnet_direct": _collnet_direct,
    "recursive_halving": _recursive_halving,
    "logarithmic_reduce_scatter": _logarithmic_reduce_scatter,
    "logarithmic_all_gather": _logarithmic_all_gather,
    "chain_broadcast": _chain_broadcast,
    "chain_reduce": _chain_reduce,
    "binomial_broadcast": _binomial_broadcast,
    "binomial_reduce": _binomial_reduce,
    "pairwise": _pairwise,
    "bruck_all_to_all": _bruck_all_to_all,
    "direct_all_to_all": _direct_all_to_all,
    "batched": _batched,
    "scatter": _scatter,
    "gather": _gather,
    "send": _send,
}
"""By `perfmodel.collectives.catalog.Algorithm.form`."""


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
        The algorithm's own parameters, as for `perfmodel.testing.closed_forms.form`.

    Raises
    ------
    InputError
        No such operation or algorithm.
    """
    cost = form(op, algorithm, ranks, nbytes, **own)
    wire_s = cost.steps * alpha_s + cost.path_bytes * beta_s_per_B
    return wire_s + cost.reduced_bytes * gamma_s_per_B


def lower_bound_s(
    op: str, algorithm: str, ranks: int, nbytes: float, *, alpha_s: float, beta_s_per_B: float
) -> float:
    """Time that no algorithm of this kind can beat, on ports as in `closed_form_s`; seconds.

    The larger of two bounds. Bandwidth: what the busiest port must carry (`bus_factor` S; S for
    an all-reduce in a switch). Latency: if a rank receives from f others in a step, data of N ranks
    needs log N / log(1+f) steps to come together, and a switch needs two.
    """
    if ranks < 2:
        return 0.0
    in_switch = algorithm.replace("-", "_") in IN_SWITCH
    summed = in_switch and op.replace("-", "_") == "all_reduce"
    share = 1.0 if summed else bus_factor(op.replace("-", "_"), ranks)
    senders = {"server": ranks - 1, "direct": ranks - 1, "star": ranks - 1, "tree": 4}
    senders |= {"bidirectional_ring": 2, "batched": ranks - 1}
    fewest = math.log(ranks) / math.log(1 + senders.get(algorithm.replace("-", "_"), 1))
    least = 2 if in_switch else math.ceil(fewest - 1e-9)
    return max(least * alpha_s, share * nbytes * beta_s_per_B)


IN_SWITCH = frozenset(
    row.name for rows in ALGORITHMS.values() for row in rows.values() if row.in_switch
)
"""Algorithms in which switches add and copy."""
