"""Measured corrections: factors on the costs that the library's file and datasheets give.

Factors apply to the launch, to each step by its kind of hop, and to the bytes on the wire. A
residual, which depends smoothly on the size, applies to the whole time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CollectiveContext:
    """What a residual may depend on."""

    op: str
    nbytes: int
    ranks: int
    hosts: int
    algorithm: str
    protocol: str


@dataclass(frozen=True)
class Corrections:
    """Factors on times (more than one: longer) and on rates (more than one: faster)."""

    launch: float = 1.0
    """On the time before the first byte moves."""
    uneven: float = 1.0
    """On what channels lose that do not run and end together (`Protocol.unevenness`)."""
    steps: Mapping[str, float] = field(default_factory=dict)
    """On what a step costs beyond its bytes, by "protocol/hop"."""
    rates: Mapping[str, float] = field(default_factory=dict)
    """On payload per byte on the wire, by "algorithm/protocol"."""
    issue: float = 1.0
    awaited: float = 1.0
    """`issue` and `awaited`: on the host's time to start a collective on one GPU, and on what a
    script that waits for each adds."""
    residual: Callable[[CollectiveContext], float] | None = None
    """Factor on the time of a collective in its context."""
