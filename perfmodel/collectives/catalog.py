"""All algorithms by operation and name, made with one signature."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from perfmodel.collectives.algorithms import (
    all_to_all,
    chain,
    collnet,
    hierarchical,
    in_network,
    linear,
    nvls,
    parameter_server,
    pat,
    recursive_doubling,
    ring,
    tree,
)
from perfmodel.collectives.algorithms import ring as gloo
from perfmodel.collectives.schedule import Schedule, check_ranks
from perfmodel.errors import Fault, InputError, ScheduleError, allowed_names

Maker = Callable[..., Schedule]
"""``maker(ranks, nbytes, *, itemsize=4, **own)``; rooted operations take ``root`` too."""


def _send(ranks: int, nbytes: int, *, root: int = 0, itemsize: int = 4) -> Schedule:
    """`star.send` with the signature of the others."""
    if ranks != 2 or root != 0 or nbytes < 0 or nbytes % itemsize:
        raise ScheduleError(
            f"send of {nbytes} bytes from rank {root} among {ranks} ranks; allowed: whole "
            f"{itemsize}-byte elements from rank 0 among 2 ranks"
        )
    return linear.send(nbytes)


def _hierarchical(ranks: int, nbytes: int, *, itemsize: int = 4, groups: Any = None) -> Schedule:
    """`hierarchical.all_reduce`; groups of consecutive ranks near sqrt(N) by default."""
    chosen = _grouped(ranks, groups)
    return hierarchical.all_reduce(ranks, nbytes, groups=chosen, itemsize=itemsize)


def _grouped(ranks: int, groups: Any) -> Any:
    """Groups as given, or of consecutive ranks near sqrt(N)."""
    if groups is not None:
        return groups
    size = near_root(check_ranks(ranks))
    return [range(first, first + size) for first in range(0, ranks, size)]


def _torus(
    ranks: int,
    nbytes: int,
    *,
    itemsize: int = 4,
    rows: int | None = None,
    columns: int | None = None,
) -> Schedule:
    """`hierarchical.torus`; about as many rows as columns by default."""
    check_ranks(ranks)
    if columns is None:
        columns = near_root(ranks) if rows is None else ranks // max(rows, 1)
    if rows is None:
        rows = ranks // max(columns, 1)
    return hierarchical.torus(ranks, nbytes, rows=rows, columns=columns, itemsize=itemsize)


def _nvls_tree(ranks: int, nbytes: int, *, groups: Any = None, **own: Any) -> Schedule:
    """`nvls.tree_all_reduce`; groups of consecutive ranks near sqrt(N) by default."""
    return nvls.tree_all_reduce(ranks, nbytes, groups=_grouped(ranks, groups), **own)


def _collnet(ranks: int, nbytes: int, *, groups: Any = None, **own: Any) -> Schedule:
    """`collnet.chain_all_reduce`; groups of consecutive ranks near sqrt(N) by default."""
    return collnet.chain_all_reduce(ranks, nbytes, groups=_grouped(ranks, groups), **own)


def _collnet_direct(ranks: int, nbytes: int, *, groups: Any = None, **own: Any) -> Schedule:
    """`collnet.direct_all_reduce`; groups of consecutive ranks near sqrt(N) by default."""
    return collnet.direct_all_reduce(ranks, nbytes, groups=_grouped(ranks, groups), **own)


def near_root(ranks: int) -> int:
    """Return the divisor of N nearest to its square root from above: 8 -> 4, 12 -> 4, 7 -> 7.

    Examples
    --------
    >>> [near_root(n) for n in (1, 7, 8, 12, 16)]
    [1, 7, 4, 4, 4]
    """
    return ranks // max(d for d in range(1, math.isqrt(ranks) + 1) if ranks % d == 0)


def _frozen(table: dict[str, dict[str, Maker]]) -> Mapping[str, Mapping[str, Maker]]:
    return MappingProxyType({op: MappingProxyType(makers) for op, makers in table.items()})


ALGORITHMS: Final = _frozen(
    {
        "all_reduce": {
            "ring": ring.all_reduce,
            "bidirectional_ring": ring.bidirectional_all_reduce,
            "tree": tree.double_binary_tree,
            "binomial": tree.all_reduce,
            "recursive_doubling": recursive_doubling.all_reduce,
            "halving_doubling": recursive_doubling.halving_doubling,
            "rabenseifner": recursive_doubling.rabenseifner,
            "hierarchical": _hierarchical,
            "torus": _torus,
            "server": parameter_server.all_reduce,
            "gloo_ring": gloo.ring_all_reduce,
            "switch": in_network.all_reduce,
            "nvls": nvls.all_reduce,
            "nvls_tree": _nvls_tree,
            "collnet": _collnet,
            "collnet_direct": _collnet_direct,
        },
        "reduce_scatter": {
            "ring": ring.reduce_scatter,
            "bidirectional_ring": ring.bidirectional_reduce_scatter,
            "recursive_halving": recursive_doubling.reduce_scatter,
            "nvls": nvls.reduce_scatter,
            "pat": pat.reduce_scatter,
        },
        "all_gather": {
            "ring": ring.all_gather,
            "bidirectional_ring": ring.bidirectional_all_gather,
            "recursive_doubling": recursive_doubling.all_gather,
            "bruck": recursive_doubling.bruck_all_gather,
            "nvls": nvls.all_gather,
            "pat": pat.all_gather,
        },
        "broadcast": {"chain": chain.broadcast, "binomial": tree.broadcast},
        "reduce": {"chain": chain.reduce, "binomial": tree.reduce},
        "all_to_all": {
            "pairwise": all_to_all.pairwise,
            "bruck": all_to_all.bruck,
            "direct": all_to_all.direct,
            "batched": all_to_all.batched,
        },
        "scatter": {"star": linear.scatter},
        "gather": {"star": linear.gather},
        "send": {"direct": _send},
    }
)
"""Operation -> algorithm -> maker."""

ROOTED: Final = frozenset({"broadcast", "reduce", "scatter", "gather", "send"})
"""Operations whose makers take ``root``."""


def algorithms() -> tuple[str, ...]:
    """Names of all algorithms, sorted."""
    return tuple(sorted({name for makers in ALGORITHMS.values() for name in makers}))


def operations(algorithm: str) -> tuple[str, ...]:
    """Operations that an algorithm of this name does.

    Raises
    ------
    InputError
        No such algorithm.
    """
    name = algorithm.replace("-", "_")
    found = tuple(op for op, makers in ALGORITHMS.items() if name in makers)
    if not found:
        allowed = allowed_names(algorithms(), algorithm)
        raise InputError(Fault("algorithm", repr(algorithm), allowed))
    return found


def maker(op: str, algorithm: str) -> Maker:
    """Look up an algorithm.

    Raises
    ------
    InputError
        No such operation, or none of its algorithms has this name.
    """
    makers = ALGORITHMS.get(op.replace("-", "_"))
    if makers is None:
        raise InputError(Fault("op", repr(op), allowed_names(ALGORITHMS, op)))
    found = makers.get(algorithm.replace("-", "_"))
    if found is None:
        raise InputError(
            Fault("algorithm", repr(algorithm), f"for {op} {allowed_names(makers, algorithm)}")
        )
    return found


def make(
    op: str,
    algorithm: str,
    ranks: int,
    nbytes: int,
    *,
    itemsize: int = 4,
    root: int = 0,
    **own: Any,
) -> Schedule:
    """Plan a collective.

    Parameters
    ----------
    op, algorithm : str
        Keys of `ALGORITHMS`.
    ranks : int
    nbytes : int
        Size as nccl-tests counts it; bytes, whole elements.
    itemsize : int
    root : int
        For rooted operations; the others take 0 only.
    **own
        The algorithm's own parameters (``piece_bytes``, ``groups``, ``rows``, ``servers`` ...);
        each has a default.

    Raises
    ------
    InputError
        No such operation or algorithm; names the nearest.
    ScheduleError
        A number of ranks or a size that the algorithm does not allow.
    """
    made = maker(op, algorithm)
    if op.replace("-", "_") in ROOTED:
        return made(ranks, nbytes, itemsize=itemsize, root=root, **own)
    if root:
        raise ScheduleError(f"root {root} for {op}; allowed: 0, the operation has no root")
    return made(ranks, nbytes, itemsize=itemsize, **own)


def allows(op: str, algorithm: str, ranks: int) -> str | None:
    """Why an algorithm does not allow a number of ranks, or None if it does."""
    try:
        make(op, algorithm, ranks, 0)
    except ScheduleError as error:
        return str(error)
    return None
