"""The table of algorithms, one row for each operation and algorithm, and how to look them up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, cast

from perfmodel.errors import (
    Fault,
    InputError,
    ScheduleError,
    allowed_names,
    check_schedule,
    look_up,
)

if TYPE_CHECKING:
    from perfmodel.collectives.schedule import Schedule

Maker = Callable[..., "Schedule"]
"""``maker(ranks, nbytes, *, itemsize=4, **own)``; rooted operations take ``root`` too."""

PROTOCOLS: Final = ("ll", "ll128", "simple")
"""Protocols of NCCL."""

SIMPLE: Final = ("simple",)


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One row of the table; functions are named and imported on first use."""

    name: str
    function: str
    """Of `perfmodel.collectives.algorithms`: "ring.all_reduce". Empty where NCCL's tuner weighs the
    algorithm but no schedule of it is modelled."""
    nccl: str = ""
    """Its name in NCCL's tuner; empty for what NCCL does not weigh."""
    protocols: tuple[str, ...] = PROTOCOLS
    """Those of NCCL in which it runs."""
    in_switch: bool = False
    """Whether switches add and copy."""

    @property
    def maker(self) -> Maker:
        """Function that plans it."""
        module, _, function = self.function.partition(".")
        imported = import_module(f"perfmodel.collectives.algorithms.{module}")
        return cast("Maker", getattr(imported, function))


_TABLE: Final = {
    "all_reduce": (
        Algorithm("ring", "ring.all_reduce", nccl="ring"),
        Algorithm("bidirectional_ring", "ring.bidirectional_all_reduce"),
        Algorithm("tree", "tree.double_binary_tree", nccl="tree"),
        Algorithm("binomial", "tree.all_reduce"),
        Algorithm("recursive_doubling", "recursive_doubling.all_reduce"),
        Algorithm("halving_doubling", "recursive_doubling.halving_doubling"),
        Algorithm("rabenseifner", "recursive_doubling.rabenseifner"),
        Algorithm("hierarchical", "hierarchical.all_reduce"),
        Algorithm("torus", "hierarchical.torus"),
        Algorithm("server", "linear.server_all_reduce"),
        Algorithm("all_pairs", "linear.all_pairs"),
        Algorithm("gloo_ring", "ring.ring_all_reduce"),
        Algorithm("switch", "sharp.switch_all_reduce", in_switch=True),
        Algorithm("nvls", "sharp.nvls_all_reduce", "nvls", SIMPLE, True),
        Algorithm("nvls_tree", "sharp.nvls_tree_all_reduce", "nvls_tree", SIMPLE, True),
        Algorithm("collnet", "sharp.chain_all_reduce", "collnet_chain", SIMPLE, True),
        Algorithm("collnet_direct", "sharp.direct_all_reduce", "collnet_direct", SIMPLE, True),
    ),
    "reduce_scatter": (
        Algorithm("ring", "ring.reduce_scatter", nccl="ring"),
        Algorithm("bidirectional_ring", "ring.bidirectional_reduce_scatter"),
        Algorithm("recursive_halving", "recursive_doubling.reduce_scatter"),
        Algorithm("nvls", "sharp.nvls_reduce_scatter", "nvls", SIMPLE, True),
        Algorithm("collnet_direct", "", "collnet_direct", SIMPLE, True),
        Algorithm("pat", "tree.pat_reduce_scatter", "pat", SIMPLE),
    ),
    "all_gather": (
        Algorithm("ring", "ring.all_gather", nccl="ring"),
        Algorithm("bidirectional_ring", "ring.bidirectional_all_gather"),
        Algorithm("recursive_doubling", "recursive_doubling.all_gather"),
        Algorithm("bruck", "recursive_doubling.bruck_all_gather"),
        Algorithm("nvls", "sharp.nvls_all_gather", "nvls", SIMPLE, True),
        Algorithm("collnet_direct", "", "collnet_direct", SIMPLE, True),
        Algorithm("pat", "tree.pat_all_gather", "pat", SIMPLE),
    ),
    "broadcast": (
        Algorithm("chain", "ring.broadcast", nccl="ring"),
        Algorithm("binomial", "tree.broadcast"),
    ),
    "reduce": (
        Algorithm("chain", "ring.reduce", nccl="ring"),
        Algorithm("binomial", "tree.reduce"),
    ),
    "all_to_all": (
        Algorithm("pairwise", "all_to_all.pairwise"),
        Algorithm("bruck", "all_to_all.bruck"),
        Algorithm("direct", "all_to_all.direct"),
        Algorithm("batched", "all_to_all.batched"),
    ),
    "scatter": (Algorithm("star", "linear.scatter"),),
    "gather": (Algorithm("star", "linear.gather"),),
    "send": (Algorithm("direct", "linear.send"),),
}

ALGORITHMS: Final[Mapping[str, Mapping[str, Algorithm]]] = MappingProxyType(
    {op: {row.name: row for row in rows if row.function} for op, rows in _TABLE.items()}
)
"""Operation -> name -> algorithm."""

NCCL_ALGORITHMS: Final[Mapping[str, Mapping[str, Algorithm]]] = MappingProxyType(
    {op: named for op, rows in _TABLE.items() if (named := {r.nccl: r for r in rows if r.nccl})}
)
"""Operation -> NCCL's name -> algorithm, in the order in which NCCL's tuner weighs them."""

NCCL_ALGO_NAMES: Final = tuple(
    dict.fromkeys(
        [name for row in NCCL_ALGORITHMS["all_reduce"].values() for name in (row.name, row.nccl)]
        + [name for rows in NCCL_ALGORITHMS.values() for name in rows]
    )
)
"""Names that ``NCCL_ALGO`` takes: NCCL's, and "collnet" for both CollNet algorithms."""

NCCL_ONLY: Final = frozenset(
    row.name
    for rows in ALGORITHMS.values()
    for row in rows.values()
    if row.in_switch or row.protocols == SIMPLE
)
"""Algorithms that need what only NCCL drives: NVSwitches and network switches that add; PAT."""

ROOTED: Final = frozenset({"broadcast", "reduce", "scatter", "gather", "send"})
"""Operations whose makers take ``root``."""


def algorithms() -> tuple[str, ...]:
    """Return the names of all algorithms, sorted."""
    return tuple(sorted({name for rows in ALGORITHMS.values() for name in rows}))


def operations(algorithm: str) -> tuple[str, ...]:
    """Return the operations that an algorithm of this name does.

    Raises `InputError`: no such algorithm.
    """
    name = algorithm.replace("-", "_")
    done = tuple(op for op, rows in ALGORITHMS.items() if name in rows)
    if not done:
        raise InputError(
            Fault("algorithm", repr(algorithm), allowed_names(algorithms(), algorithm))
        )
    return done


def find_algorithm(op: str, algorithm: str) -> Algorithm:
    """Look up the row of an operation and an algorithm.

    Raises `InputError`: no such operation, or none of its algorithms has this name.
    """
    rows = look_up(ALGORITHMS, op.replace("-", "_"), "op")
    return look_up(rows, algorithm.replace("-", "_"), "algorithm", f"for {op} ")


def maker(op: str, algorithm: str) -> Maker:
    """Return the function that plans an algorithm; faults as of `find_algorithm`."""
    return find_algorithm(op, algorithm).maker


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
    plan = maker(op, algorithm)
    if op.replace("-", "_") in ROOTED:
        return plan(ranks, nbytes, itemsize=itemsize, root=root, **own)
    check_schedule((root, f"root {root} for {op}; allowed: 0, the operation has no root"))
    return plan(ranks, nbytes, itemsize=itemsize, **own)


def allows(op: str, algorithm: str, ranks: int) -> str | None:
    """Return why an algorithm does not allow a number of ranks, or None if it does."""
    try:
        make(op, algorithm, ranks, 0)
    except ScheduleError as error:
        return str(error)
    return None


def bus_factor(collective: str, ranks: int) -> float:
    """Return busbw / algbw, as nccl-tests defines it (``doc/PERFORMANCE.md``)."""
    if ranks < 2:
        return 1.0
    whole = dict.fromkeys(("broadcast", "reduce", "send", "send_recv"), 1.0)
    return ({"all_reduce": 2 * (ranks - 1) / ranks} | whole).get(collective, (ranks - 1) / ranks)
