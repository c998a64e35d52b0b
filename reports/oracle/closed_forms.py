"""Closed forms of what algorithms cost on uniform links, and bounds that no schedule can beat.

The model is Hockney's: every rank has one port that carries 1/beta bytes per second each way; what
it sends (or receives) at once shares the port; a step costs alpha and the bytes of its busiest
port; steps follow each other. Sources of the forms: Thakur, Rabenseifner and Gropp, IJHPCA 19(1),
2005; Patarasuk and Yuan, JPDC 69(2), 2009; Sanders et al., Parallel Computing 35(12), 2009. S is
the buffer, N the ranks, M the largest power of two up to N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from perfmodel.collectives.algorithms.all_to_all import RANKS_AT_ONCE
from perfmodel.collectives.algorithms.ring import PIECE_BYTES as CHAIN_BYTES
from perfmodel.collectives.algorithms.ring import SEGMENT_BYTES, segments
from perfmodel.collectives.algorithms.sharp import CHAIN_PIECE_BYTES as COLLNET_BYTES
from perfmodel.collectives.algorithms.sharp import NVLS_PIECE_BYTES as NVLS_BYTES
from perfmodel.collectives.algorithms.tree import PIECE_BYTES as TREE_BYTES
from perfmodel.collectives.catalog import ALGORITHMS, bus_factor, find_algorithm
from perfmodel.collectives.patterns import near_root, pieces_of


@dataclass(frozen=True, slots=True)
class Form:
    """A closed form.

    Parameters
    ----------
    steps : int
        Rounds of the schedule: factor of alpha.
    sent_bytes : float
        Bytes that the busiest rank sends in all.
    path_bytes : float
        Bytes of the busiest port of each step, added up: factor of beta.
    reduced_bytes : float
        Bytes that the busiest rank adds up in all: factor of gamma.
    """

    steps: int
    sent_bytes: float
    path_bytes: float
    reduced_bytes: float = 0.0


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
    name = find_algorithm(op, algorithm).name
    formula = FORMS[op.replace("-", "_")][name]
    return formula(ranks, nbytes, own) if ranks > 1 else Form(0, 0.0, 0.0)


def _power(ranks: int) -> tuple[int, int, int]:
    """M, log2 M, and 1 if N is no power of two."""
    doublings = ranks.bit_length() - 1
    return 1 << doublings, doublings, int(ranks != 1 << doublings)


def _height(ranks: int) -> int:
    """ceil(log2 N)."""
    return (ranks - 1).bit_length()


Shares = tuple[float, float, float, float]
"""Steps; and of S what is sent, what the paths carry, and what is added up."""


def _of_ranks(shares_of: Callable[[int], Shares]) -> Formula:
    """Return a form whose steps and shares of S depend on the number of ranks alone."""

    def formula(ranks: int, nbytes: float, _: Mapping[str, Any]) -> Form:
        steps, sent, path, reduced = shares_of(ranks)
        return Form(int(steps), sent * nbytes, path * nbytes, reduced * nbytes)

    return formula


def _all_parts(steps_of: Callable[[int], int], *, reduces: bool = False) -> Formula:
    """Return the form of every rank sending, and being sent, all parts of S but its own."""
    return _of_ranks(lambda n: (steps_of(n), _rest(n), _rest(n), _rest(n) * reduces))


def _rest(ranks: int) -> float:
    """Return all parts of S but one."""
    return (ranks - 1) / ranks


def _gloo_ring(ranks: int, nbytes: float, own: Mapping[str, Any]) -> Form:
    number, _ = segments(
        ranks, int(nbytes), segment_bytes=int(own.get("segment_bytes", SEGMENT_BYTES))
    )
    half = _rest(ranks) * nbytes
    return Form(2 * (ranks - 1) * (number // ranks), 2 * half, 2 * half, half)


def _in_pieces(
    default_bytes: int,
    parts_of: Callable[[int, int], int],
    shares_of: Callable[[int, int], Shares],
) -> Formula:
    """Return the form of S cut into pieces that follow each other.

    `parts_of`: parts that are cut each, by ranks and the size of a group. `shares_of`: steps beside
    one for each piece, and shares of S, of which the path is that of whole buffers.
    """

    def formula(ranks: int, nbytes: float, own: Mapping[str, Any]) -> Form:
        size = int(own.get("group_size", near_root(ranks)))
        pieces = pieces_of(
            int(nbytes), parts_of(ranks, size), int(own.get("piece_bytes", default_bytes)), 1
        )
        more, sent, path, reduced = shares_of(ranks, size)
        steps = int(more) + pieces
        return Form(steps, sent * nbytes, steps / pieces * (path * nbytes), reduced * nbytes)

    return formula


def _tree(ranks: int, _: int) -> Shares:
    # The busiest port carries one piece up and two down in one tree, one up in the other.
    at_once = min(ranks, 4) / 2
    return 2 * _height(ranks) - 1, at_once, at_once, 1.0 if ranks > 2 else 0.5


def _ring(ranks: int) -> Shares:
    return 2 * (ranks - 1), 2 * _rest(ranks), 2 * _rest(ranks), _rest(ranks)


def _recursive_doubling(ranks: int) -> Shares:
    _, doublings, fold = _power(ranks)
    sent = doublings + fold
    return doublings + 2 * fold, sent, sent + fold, sent


def _halving_doubling(ranks: int) -> Shares:
    members, doublings, fold = _power(ranks)
    half = _rest(members)
    return 2 * doublings + 2 * fold, 2 * half + fold, 2 * (half + fold), half + fold


def _rabenseifner(ranks: int) -> Shares:
    members, doublings, fold = _power(ranks)
    half = _rest(members)
    return 2 * doublings + 3 * fold, 2 * half + 1.5 * fold, 2 * (half + fold), half + fold / 2


def _two_level(size_of: str) -> Formula:
    def formula(ranks: int, nbytes: float, own: Mapping[str, Any]) -> Form:
        size, half = int(own.get(size_of, near_root(ranks))), _rest(ranks) * nbytes
        return Form(2 * (size - 1) + 2 * (ranks // size - 1), 2 * half, 2 * half, half)

    return formula


def _server(ranks: int, nbytes: float, own: Mapping[str, Any]) -> Form:
    servers = int(own.get("servers", 1))
    pushed = (ranks - 1) / servers * nbytes
    return Form(2, pushed + (servers - 1) / servers * nbytes, 2 * pushed, pushed)


def _nvls_tree(ranks: int, heads: int) -> Shares:
    nodes = ranks // heads
    # In one tree half a part up and twice half a part down, in the other half a part up.
    between = min(nodes, 4) / 2 * (nodes > 1) / heads
    sent = 1 + 1 / heads + between
    return 2 * _height(nodes) + 3, sent, sent, min(nodes - 1, 2) / 2 / heads


def _collnet(_: int, size: int) -> Shares:
    return 2 * size - 1, min(size, 2), min(size, 2), float(size > 1)


def _collnet_direct(_: int, size: int) -> Shares:
    sent = (2 * size - 1) / size
    return 3 if size > 1 else 1, sent, sent, _rest(size)


def _recursive_halving(ranks: int) -> Shares:
    members, doublings, fold = _power(ranks)
    # Members that a partner folded into have two parts; those parts are all at one end.
    halved = sum((1 << k) + min(ranks - members, 1 << k) for k in range(doublings)) / ranks
    return doublings + 2 * fold, fold or halved, halved + fold + fold / ranks, halved + fold


def _bruck_all_to_all(ranks: int) -> Shares:
    sent = sum(offset.bit_count() for offset in range(1, ranks)) / ranks
    return _height(ranks), sent, sent, 0.0


FORMS: Mapping[str, Mapping[str, Formula]] = {
    "all_reduce": {
        "ring": _of_ranks(_ring),
        "bidirectional_ring": _of_ranks(_ring),
        "tree": _in_pieces(TREE_BYTES, lambda *_: 2, _tree),
        "binomial": _of_ranks(lambda n: (2 * _height(n), _height(n), 2 * _height(n), _height(n))),
        "recursive_doubling": _of_ranks(_recursive_doubling),
        "halving_doubling": _of_ranks(_halving_doubling),
        "rabenseifner": _of_ranks(_rabenseifner),
        "hierarchical": _two_level("group_size"),
        "torus": _two_level("columns"),
        "server": _server,
        "all_pairs": lambda ranks, nbytes, _: _server(ranks, nbytes, {"servers": ranks}),
        "gloo_ring": _gloo_ring,
        "switch": _in_pieces(NVLS_BYTES, lambda *_: 1, lambda *_: (1, 1.0, 1.0, 0.0)),
        # through a switch, where the busiest port carries most of what is sent or received
        "nvls": _in_pieces(NVLS_BYTES, lambda n, _: n, lambda n, _: (3, 1 + 1 / n, 1 + 1 / n, 0.0)),
        "nvls_tree": _in_pieces(NVLS_BYTES, lambda n, size: size * min(n // size, 2), _nvls_tree),
        "collnet": _in_pieces(COLLNET_BYTES, lambda *_: 1, _collnet),
        "collnet_direct": _in_pieces(COLLNET_BYTES, lambda _, size: size, _collnet_direct),
    },
    "reduce_scatter": {
        "ring": _all_parts(lambda n: n - 1, reduces=True),
        "bidirectional_ring": _all_parts(lambda n: n - 1, reduces=True),
        "recursive_halving": _of_ranks(_recursive_halving),
        "nvls": _in_pieces(NVLS_BYTES, lambda n, _: n, lambda *_: (1, 1.0, 1.0, 0.0)),
        "pat": _all_parts(_height, reduces=True),
    },
    "all_gather": {
        "ring": _all_parts(lambda n: n - 1),
        "bidirectional_ring": _all_parts(lambda n: n - 1),
        "recursive_doubling": _all_parts(_height),
        "bruck": _all_parts(_height),
        "nvls": _in_pieces(NVLS_BYTES, lambda n, _: n, lambda n, _: (1, 1 / n, 1.0, 0.0)),
        "pat": _all_parts(_height),
    },
    "broadcast": {
        "chain": _in_pieces(CHAIN_BYTES, lambda *_: 1, lambda n, _: (n - 2, 1.0, 1.0, 0.0)),
        "binomial": _of_ranks(lambda n: (_height(n), _height(n), _height(n), 0.0)),
    },
    "reduce": {
        "chain": _in_pieces(CHAIN_BYTES, lambda *_: 1, lambda n, _: (n - 2, 1.0, 1.0, 1.0)),
        "binomial": _of_ranks(lambda n: (_height(n), 1.0, _height(n), _height(n))),
    },
    "all_to_all": {
        "pairwise": _all_parts(lambda n: n - 1),
        "bruck": _of_ranks(_bruck_all_to_all),
        "direct": _all_parts(lambda _: 1),
        "batched": _all_parts(lambda n: -(-(n - 1) // RANKS_AT_ONCE)),
    },
    "scatter": {
        "star": _of_ranks(lambda n: (1, _rest(n), _rest(n), 0.0)),
    },
    "gather": {
        "star": _of_ranks(lambda n: (1, 1 / n, _rest(n), 0.0)),
    },
    "send": {
        "direct": _of_ranks(lambda _: (1, 1.0, 1.0, 0.0)),
    },
}
"""Formulas by operation and algorithm, as in `perfmodel.collectives.catalog.ALGORITHMS`."""


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
        The algorithm's own parameters, as for `form`.

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
    senders |= {"bidirectional_ring": 2, "batched": ranks - 1, "all_pairs": ranks - 1}
    fewest = math.log(ranks) / math.log(1 + senders.get(algorithm.replace("-", "_"), 1))
    least = 2 if in_switch else math.ceil(fewest - 1e-9)
    return max(least * alpha_s, share * nbytes * beta_s_per_B)


IN_SWITCH = frozenset(
    row.name for rows in ALGORITHMS.values() for row in rows.values() if row.in_switch
)
"""Algorithms in which switches add and copy."""
