"""Infer the collective and the number of ranks of a table from names and bandwidths in a log."""

from __future__ import annotations

import re
from collections.abc import Sequence

OPS = {
    "all_reduce": "all_reduce", "allreduce": "all_reduce",
    "all_gather": "all_gather", "allgather": "all_gather",
    "reduce_scatter": "reduce_scatter", "reducescatter": "reduce_scatter",
    "broadcast": "broadcast", "reduce": "reduce", "scatter": "scatter", "gather": "gather",
    "alltoall": "all_to_all", "all_to_all": "all_to_all", "sendrecv": "send_recv",
    "send_recv": "send_recv",
}  # fmt: skip
"""Spellings of collectives, in the executables' names and in rccl-tests' records."""

_PERF = re.compile(r"\b([a-z_]+?)_perf\b")
_IN_NAME = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|broadcast|all_?to_?all|reduce|scatter|gather"
)

Points = Sequence[tuple[float, float]]
"""algbw and busbw as printed; GB/s."""


def op_named(text: str) -> str | None:
    """Return the collective of the last executable that a text names."""
    ops = [OPS[name] for name in _PERF.findall(text) if name in OPS]
    return ops[-1] if ops else None


def op_of_file(name: str) -> str | None:
    """Return the collective that a file's name contains."""
    match = _IN_NAME.search(name.lower().replace("-", "_"))
    return OPS.get(match.group(0)) if match else None


def factor_of(points: Points) -> tuple[float, float] | None:
    """Bus bandwidth over algorithm bandwidth, and how far rounding may have moved it.

    From the row with the most digits; None where too few were printed.
    """
    exact = [(alg, bus) for alg, bus in points if alg >= 0.2 and bus > 0]
    if not exact:
        return None
    alg, bus = max(exact)
    return bus / alg, 0.01 + 0.01 / min(alg, bus)


def ops_allowed(points: Points, ranks: int | None, redop: str, root: str | None) -> set[str]:
    """Collectives whose bus bandwidth is such a multiple of the algorithm bandwidth.

    Source of the factors: nccl-tests ``doc/PERFORMANCE.md``.
    """
    adds = redop not in {"", "none"}
    allowed = {"all_reduce", "reduce_scatter", "reduce"} if adds else {
        "all_gather", "broadcast", "all_to_all", "scatter", "gather", "send_recv"
    }  # fmt: skip
    if root is not None and int(root) < 0:
        allowed -= {"reduce"}
    measured = factor_of(points)
    if measured is None or ranks is None or ranks < 2:
        return allowed
    factor, off = measured
    share = (ranks - 1) / ranks
    expected = {"all_reduce": 2 * share, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0}
    return {op for op in allowed if abs(factor / expected.get(op, share) - 1.0) < off}


def ranks_of_factor(op: str, points: Points) -> int | None:
    """Number of ranks that a bus factor implies; None where it is ambiguous."""
    measured = factor_of(points)
    if measured is None or op in {"broadcast", "reduce", "send_recv"}:
        return None
    share, off = measured[0] / (2 if op == "all_reduce" else 1), measured[1]
    near = round(1.0 / max(1.0 - share, 1e-3))
    unique = off < 0.4 / near**2 + 0.012  # the next number of ranks would differ
    return near if 2 <= near <= 16 and unique and abs(share * near / (near - 1) - 1) < off else None
