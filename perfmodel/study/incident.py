"""One thing that happens around a job, as the report names it and as the simulators see it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.simulate.incidents import Beside, Traffic
from perfmodel.simulate.jitter import Jitter

BEFORE = -math.inf
"""A time before the start of the run."""


@dataclass(frozen=True, slots=True)
class LinkFault:
    """What is wrong with some links from one time to another; seconds since the settled state.

    Parameters
    ----------
    from_s, until_s : float
    bandwidth_Bps, latency_s : mapping of int to float
        New numbers by arc; a bandwidth of 0 lets traffic stand still.
    arcs : tuple of int
        Dead arcs.
    nodes : tuple of str
        Dead devices.
    """

    from_s: float
    until_s: float = math.inf
    bandwidth_Bps: Mapping[int, float] = field(default_factory=dict)
    latency_s: Mapping[int, float] = field(default_factory=dict)
    arcs: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Incident:
    """One event or other job, as the report names it and as the simulators see it.

    Parameters
    ----------
    what : str
        In words.
    place : str
        Field of the scenario.
    ranks : tuple of int
        Ranks of the topology that are slow or have another GPU.
    by : float
        How much slower they are.
    gpu : str, optional
        The GPU that they have instead.
    steps : frozenset of int, optional
        Counted steps in which they are slow; default: all.
    """

    what: str
    place: str
    ranks: tuple[int, ...] = ()
    by: float = 1.0
    gpu: str | None = None
    steps: frozenset[int] | None = None
    jitter: Jitter | None = None
    faults: tuple[LinkFault, ...] = ()
    traffic: tuple[Traffic, ...] = ()
    beside: Beside | None = None

    @property
    def moments_s(self) -> tuple[float, ...]:
        """When something begins or ends, since the settled state; seconds."""
        edges = [at for fault in self.faults for at in (fault.from_s, fault.until_s)]
        edges += [one.start_s for one in self.traffic if one.nbytes is not None]
        return tuple(at for at in edges if math.isfinite(at))

    @property
    def varies(self) -> bool:
        """Whether one step may be unlike another because of it."""
        bursts = any(one.nbytes is not None for one in self.traffic)
        return bool(self.moments_s or self.steps or self.jitter or self.beside or bursts)


def all_beside(active: Sequence[Incident], settled_s: float) -> Iterator[Beside]:
    """Other jobs of some incidents, in seconds since the start of the run.

    One without a start of its own has been there before.
    """
    for incident in active:
        if (one := incident.beside) is not None:
            yield replace(one, start_s=settled_s + one.start_s if one.start_s else 0.0)


def all_traffic(active: Sequence[Incident], settled_s: float) -> Iterator[Traffic]:
    """Traffic of some incidents, in seconds since the start of the run.

    A steady stream from the start has been there before.
    """
    for incident in active:
        for one in incident.traffic:
            steady = one.nbytes is None and one.start_s == 0
            yield Traffic(
                one.src, one.dst, one.rate_Bps, one.nbytes, one.every_s,
                0.0 if steady else settled_s + one.start_s,
            )  # fmt: skip
