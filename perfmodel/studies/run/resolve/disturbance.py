"""Events and other jobs as the simulators need them: slow ranks, link faults, traffic, jobs.

So are processes of the user's.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.errors import Fault, InputError, describe_type
from perfmodel.files import collect_faults
from perfmodel.own_functions import check_function
from perfmodel.simulate.engine.background import BackgroundJob, Traffic
from perfmodel.simulate.engine.own_processes import A_PROCESS, OwnProcess
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
    """One event, group of other GPUs, other job, or process of the user's.

    `description`: as reports name it.
    `origin`: field of the scenario.
    `ranks`: ranks of the topology that are slow or have another GPU.
    `by`: how many times slower they are.
    `gpu`: the GPU that they have instead.
    `steps`: counted steps in which they are slow; default: all.
    `counted`: steps that are counted beside a process.
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
    process: OwnProcess | None = None
    counted: int = 1

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
        others = self.background_job or self.process
        return bool(self.moments_s or self.steps or self.jitter or others or bursts)


def background_jobs(
    disturbances: Sequence[Disturbance], settled_s: float
) -> Iterator[BackgroundJob]:
    """List other jobs with their starts in seconds since the start of the run.

    A job that starts at 0 runs from the start of the run on, before the settled state.
    """
    for disturbance in disturbances:
        if (job := disturbance.background_job) is not None:
            yield replace(job, start_s=settled_s + job.start_s if job.start_s else 0.0)


def own_processes(disturbances: Sequence[Disturbance], settled_s: float) -> Iterator[OwnProcess]:
    """List processes of the user's, which begin with the settled state."""
    for disturbance in disturbances:
        if disturbance.process is not None:
            yield replace(disturbance.process, start_s=settled_s)


COUNTED_STEPS = 20
"""Steps that are counted beside a process of the user's, whose end nobody knows."""


def as_disturbances(processes: Any, steps: Any = None) -> tuple[Disturbance, ...]:
    """Check processes of the user's; one need not stand in a list.

    `steps`: that are counted beside them; None: `COUNTED_STEPS`.
    Raises `InputError`: what is no function of (env, network), or no number of steps; all faults.
    """
    single = callable(processes) or not isinstance(processes, Iterable)
    listed = [processes] if single else list(processes)
    faults: list[Fault] = []
    for number, function in enumerate(listed):
        with collect_faults(faults):
            check_function(f"processes.{number}", function, "(env, network)", A_PROCESS)
    counted = COUNTED_STEPS if steps is None else steps
    if isinstance(counted, bool) or not isinstance(counted, int) or counted < 1:
        faults.append(Fault("steps", describe_type(steps), "a whole number of steps, 1 or more"))
    if faults:
        raise InputError(faults)
    return tuple(
        Disturbance(f"process {own.name}", own.field, process=own, counted=counted)
        for own in (
            OwnProcess(function, f"processes.{number}") for number, function in enumerate(listed)
        )
    )


def process_at(disturbance: Disturbance, *, is_main: bool) -> Disturbance:
    """Return a process at one size; at smaller ones it may name devices that are not there."""
    assert disturbance.process is not None
    return replace(disturbance, process=replace(disturbance.process, strict=is_main))


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
