"""Measured corrections: factors on the costs that the library's file and datasheets give.

Factors apply to the launch, to each step by its kind of hop, and to the bytes on the wire. A
residual, which depends smoothly on the size, applies to the whole time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class CollectiveContext:
    """What a residual may depend on.

    Parameters
    ----------
    op : str
    nbytes : int
    ranks : int
    hosts : int
    algorithm : str
    protocol : str
    """

    op: str
    nbytes: int
    ranks: int
    hosts: int
    algorithm: str
    protocol: str


@dataclass(frozen=True)
class Corrections:
    """Factors on times (more than one: longer) and on rates (more than one: faster).

    Parameters
    ----------
    launch : float
        On the time before the first byte moves.
    uneven : float
        On what channels lose that do not run and end together (`Protocol.unevenness`).
    steps : mapping of str to float
        On what a step costs beyond its bytes, by "protocol/hop".
    rates : mapping of str to float
        On payload per byte on the wire, by "algorithm/protocol".
    issue, awaited : float
        On the host's time to start a collective on one GPU, and on what a script that waits for
        each adds.
    residual : callable, optional
        Factor on the time of a collective in its context.
    """

    launch: float = 1.0
    uneven: float = 1.0
    steps: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, float] = field(default_factory=dict)
    issue: float = 1.0
    awaited: float = 1.0
    residual: Callable[[CollectiveContext], float] | None = None
