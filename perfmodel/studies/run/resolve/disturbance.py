"""Events and other jobs as the simulators need them: slow ranks, link faults, traffic, jobs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.simulate.engine.background import BackgroundJob, Traffic
from perfmodel.simulate.ranks.jitter import Jitter

ALWAYS_S = -math.inf
"""Start of a fault that is there before the job starts."""


@dataclass(frozen=True, slots=True)
class LinkFault:
    """Links and devices that are degraded or dead from one time to another.

    `from_s`, `until_s`: since the settled state; seconds.
    `bandwidth_Bps`, `latency_s`: changed numbers by arc; at a bandwidth of 0 traffic waits.
    `arcs`: dead arcs.
    `nodes`: dead devices.
    """

    from_s: float
    until_s: float = math.inf
    bandwidth_Bps: Mapping[int, float] = field(default_factory=dict)
    latency_s: Mapping[int, float] = field(default_factory=dict)
    arcs: tuple[int, ...] = ()
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Disturbance:
    """One event, group of other GPUs, or other job.

    `description`: as reports name it.
    `origin`: field of the scenario.
    `ranks`: ranks of the topology that are slow or have another GPU.
    `by`: how many times slower they are.
    `gpu`: the GPU that they have instead.
    `steps`: counted steps in which they are slow; default: all.
    """

    description: str
    origin: str
    ranks: tuple[int, ...] = ()
    by: float = 1.0
    gpu: str | None = None
    steps: frozenset[int] | None = None
    jitter: Jitter | None = None
    faults: tuple[LinkFault, ...] = ()
    traffic: tuple[Traffic, ...] = ()
    background_job: BackgroundJob | None = None

    @property
    def moments_s(self) -> tuple[float, ...]:
        """When faults begin and end and bursts begin, since the settled state; seconds."""
        edges = [at for fault in self.faults for at in (fault.from_s, fault.until_s)]
        edges += [flow.start_s for flow in self.traffic if flow.nbytes is not None]
        return tuple(at for at in edges if math.isfinite(at))

    @property
    def varies(self) -> bool:
        """Whether steps may differ from one another because of it."""
        bursts = any(flow.nbytes is not None for flow in self.traffic)
        return bool(self.moments_s or self.steps or self.jitter or self.background_job or bursts)


def background_jobs(
    disturbances: Sequence[Disturbance], settled_s: float
) -> Iterator[BackgroundJob]:
    """List other jobs with their starts in seconds since the start of the run.

    A job that starts at 0 runs from the start of the run on, before the settled state.
    """
    for disturbance in disturbances:
        if (job := disturbance.background_job) is not None:
            yield replace(job, start_s=settled_s + job.start_s if job.start_s else 0.0)


def background_traffic(disturbances: Sequence[Disturbance], settled_s: float) -> Iterator[Traffic]:
    """List other traffic with its starts in seconds since the start of the run.

    A steady stream that starts at 0 runs from the start of the run on.
    """
    for disturbance in disturbances:
        for flow in disturbance.traffic:
            steady = flow.nbytes is None and flow.start_s == 0
            yield replace(flow, start_s=0.0 if steady else settled_s + flow.start_s)


def join_names(names: Sequence[str], most: int = 4) -> str:
    """List names for a description; of many the first ones, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
