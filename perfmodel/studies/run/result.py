"""Result of a run: one SizeResult per cluster size, with all that reports need."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from perfmodel.studies.run.usage import (
    CommunicationUse,
    HotSpot,
    LayoutUse,
    LinkEnds,
    LinkUse,
    Memory,
    ServerUse,
)
from perfmodel.timeline import Timeline
from perfmodel.topology.model import Topology
from perfmodel.workload.model import Sample

if TYPE_CHECKING:
    import pandas as pd

    from perfmodel.studies.run.evidence import Evidence
    from perfmodel.training.words import Words

Scaling = Literal["weak", "strong"]

Interval = tuple[float, float]
"""Low and high end of 80 %."""


@dataclass(frozen=True, slots=True)
class BucketTime:
    """One gradient bucket in the measured step; times in seconds from the start of the step.

    `ready_s`: its last gradient is in the bucket. `start_s`: its all-reduce begins (it may wait
    for the bucket before it). `end_s`: reduced.
    """

    index: int
    nbytes: int
    ready_s: float
    start_s: float
    end_s: float
    parameters: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Uncertainty:
    """A step with one number at both ends of its 80 % interval; seconds.

    `origin`: what is uncertain.
    `is_shared`: whether another step with this origin has the same error; else it has one of its
        own.
    `low_s`, `high_s`: the step with that number at its low and at its high end. A higher number
        can make the step shorter.
    """

    origin: str
    low_s: float
    high_s: float
    is_shared: bool = True

    def logs(self, step_s: float) -> tuple[float, float]:
        """Return logarithms of both ends over the likely step."""
        return math.log(self.low_s / step_s), math.log(self.high_s / step_s)


@dataclass(frozen=True, slots=True)
class Relief:
    """What a step saves where parts of the machine were no limit; seconds.

    `what`: what would have to be so, in words ("infinitely fast network and PCIe").
    `parts`: names of these parts.
    `what_if`: the fields of ``what_if`` that make it so; none for the host's launches.
    """

    what: str
    parts: tuple[str, ...]
    what_if: Mapping[str, str | float | bool]
    saves_s: float


Limit = Literal["compute", "host", "event", "communication"]
"""What limits a step: kernels; the host, which launches them; an event; or communication, by links,
by latency, by the library or by servers."""


@dataclass(frozen=True, slots=True)
class Bottleneck:
    """What limits a step.

    `text`: links by the part that somebody buys; `path`: by their ends.
    `links`: that both name, in their order.
    """

    limit: Limit
    text: str
    path: str
    links: tuple[LinkEnds, ...] = ()


@dataclass(frozen=True, slots=True)
class SizeResult:
    """A training step at one cluster size. Times in seconds, of one step in steady state.

    `first_step_time_s`: the first iteration (before DDP rebuilds its buckets).
    `compute_s`: time during which the busiest class computes (forward, backward, copies,
        optimizer).
    `comm_s`: time during which communication is in flight.
    `exposed_comm_s`: the part of `comm_s` during which no compute runs.
    `breakdown_s`: where the step goes; parts add up to `step_time_s`: "forward", "backward",
        "copies", "optimizer", "slowdown" (compute made slower by overlap), "exposed communication",
        "bubble" (a stage waits for the others), "idle".
    `samples_per_s`: over all GPUs.
    `scaling_efficiency`: throughput over that of `efficiency_base` GPUs scaled up linearly.
    `bottleneck`: what saves most of the step where it is no limit: links by the part that somebody
        buys ("host 0's NIC"), latency, the host or an event; "compute" where nothing but compute
        saves more than 1 %.
    `bottleneck_path`: the same with links by their ends ("n0/nic0 -> fabric/leaf0 (ethernet)").
    `limit`: what kind of thing the bottleneck is.
    `limiting_links`: the links that it names, in their order.
    `interval_s`: 80 % interval of `step_time_s`; None where none is known.
    `uncertainties`, `evidence`: what it is made of, and records near it; None where it is.
    `scaling_efficiency_interval`: 80 %; errors that both sizes share cancel in it as far as they
        do. None where either size has no interval.
    `mode`: fidelity, and how ranks were simulated ("flow, 1 rank class").
    `disturbance`: cost of events and other jobs; None where there are none.
    `notes`: approximations of the simulation, with their size.
    `reliefs`: what a step saves without each of the limits that were tried, the largest first.
    `hot_spot`: a GPU that does more than the others; None where all are alike.
    `server_use`: where there are parameter servers: then a step is the time in which as many
        updates are made as there are workers, the harmonic mean of the workers' iterations.
    `communication`: what a rank communicates, by operation, in the order of the step.
    `mfu`: model FLOPs utilisation: matrix products of forward and backward (recomputation not
        counted, masked scores of attention counted) over what the GPUs could do at their dense
        peak; None where either is not known.
    `parallel_layout`: how the model is split, and its cost; None where each GPU has all of it.
    """

    gpus: int
    nodes: int
    step_time_s: float
    first_step_time_s: float
    compute_s: float
    comm_s: float
    exposed_comm_s: float
    breakdown_s: Mapping[str, float]
    samples_per_s: float
    scaling_efficiency: float
    bottleneck: str
    global_batch: int
    batch_per_gpu: int
    memory: Memory
    interval_s: tuple[float, float] | None
    buckets: tuple[BucketTime, ...]
    links: Sequence[LinkUse]
    timeline: Timeline
    mode: str
    disturbance: DisturbanceCost | None = None
    uncertainties: tuple[Uncertainty, ...] | None = None
    evidence: Evidence | None = None
    scaling_efficiency_interval: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    reliefs: tuple[Relief, ...] = ()
    hot_spot: HotSpot | None = None
    server_use: ServerUse | None = None
    communication: tuple[CommunicationUse, ...] = ()
    mfu: float | None = None
    parallel_layout: LayoutUse | None = None
    bottleneck_path: str = ""
    limit: Limit = "communication"
    limiting_links: tuple[LinkEnds, ...] = ()

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends in a step if all operations run on rings."""
        return sum(each.sent_bytes for each in self.communication)

    @property
    def relief(self) -> Relief | None:
        """What the bottleneck costs; None where it is compute or an event."""
        return None if self.limit in ("compute", "event") else next(iter(self.reliefs), None)


def with_bottleneck(
    point: SizeResult, bottleneck: Bottleneck, reliefs: tuple[Relief, ...]
) -> SizeResult:
    """Return the step with what limits it, and what it saves without each of its limits."""
    return replace(
        point,
        bottleneck=bottleneck.text,
        bottleneck_path=bottleneck.path,
        limit=bottleneck.limit,
        limiting_links=bottleneck.links,
        reliefs=reliefs,
    )


@dataclass(frozen=True, slots=True)
class Result:
    """Result of one scenario.

    Parameters
    ----------
    scenario, question, workload, strategy, machine : str
        Names for titles: file name, first comment line, model, strategy, machine.
    scaling : {"weak", "strong"}
    points : tuple of SizeResult
        By growing number of GPUs; the last one is the main size of the scenario.
    efficiency_base : int
        GPUs of the point that efficiency is relative to (1, or the smallest size).
    samples : Sample
        What one sample is.
    topology : Topology
        Of the last point.
    assumptions : tuple of str
    sources, provenance : mapping of str to str
        Sources of the numbers; digests, version, seed, fidelity.
    routing_cost : float
        How many times as long the largest bucket's all-reduce takes as without collisions of flows
        in the fabric.
    slowest_gpu : float
        How many times as long as a usual GPU the slowest of the last point's takes to compute.
    notes : tuple of str
        Of the assumptions, those on the model: what of a file is left out, or priced otherwise.
    search : MixtureSearch, optional
        How the parallel layout was found, where the scenario left it open.
    """

    scenario: str
    question: str
    workload: str
    strategy: str
    machine: str
    scaling: Scaling
    points: tuple[SizeResult, ...]
    efficiency_base: int
    samples: Sample
    topology: Topology
    assumptions: tuple[str, ...]
    sources: Mapping[str, str]
    provenance: Mapping[str, str]
    routing_cost: float = 1.0
    slowest_gpu: float = 1.0
    notes: tuple[str, ...] = ()
    search: LayoutSearch | None = None

    @property
    def main(self) -> SizeResult:
        """Result at the main size of the scenario."""
        return self.points[-1]

    @property
    def timeline(self) -> Timeline:
        """Spans of one step in steady state at the main size."""
        return self.main.timeline

    @property
    def summary(self) -> pd.DataFrame:
        """One row per cluster size; units in the column names."""
        import pandas as pd

        columns = (
            *("gpus", "nodes", "global_batch", "step_time_s", "compute_s", "comm_s"),
            *("exposed_comm_s", "samples_per_s", "scaling_efficiency", "bottleneck"),
        )
        return pd.DataFrame(
            [
                {name: getattr(point, name) for name in columns}
                | {"memory_bytes": point.memory.total_bytes, "fits": point.memory.fits}
                for point in self.points
            ]
        )

    def _repr_html_(self) -> str:
        """Show the summary in a notebook."""
        return self.summary._repr_html_()  # type: ignore[operator,no-any-return]


# ---------------------------------------------------------------- search of parallel layouts


@dataclass(frozen=True, slots=True)
class SimulatedLayout:
    """A parallel layout that was simulated on the way to the quickest one that fits.

    `text`: what it is, in words.
    `changes`: fields of the scenario that make it this parallel layout, as written in a file.
    `bound_s`: below which its step could not be; seconds.
    `memory_bytes`: of the fullest GPU.
    `parts_s`: of the step: compute, exposed communication by kind, bubble; seconds.
    """

    text: str
    changes: Mapping[str, Any]
    step_time_s: float
    bound_s: float
    memory_bytes: float
    parts_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class LayoutSearch:
    """How the quickest parallel layout that fits was found.

    `best`: by growing step time; the first one is the answer.
    `listed`: combinations of what the scenario lists; the other counts add up to it.
    `impossible`: degrees do not divide GPUs, batch or model, or a schedule does not allow them.
    `too_big`: did not fit where that was looked at.
    `bounded`: cannot be quicker, or were not looked at once `simulate` of them were simulated.
    `bounded_by_plan`: of these, by what waits for each other in their plan; the others by their
        kernels, exposed calls and bubble alone.
    `unproven`: how much quicker than the best, at most, any layout is that was left out; 0: none.
    `words`: what the user's program is told to train with the best.
    """

    best: tuple[SimulatedLayout, ...]
    listed: int
    impossible: int
    too_big: int
    bounded: int
    simulated: int
    unproven: float = 0.0
    bounded_by_plan: int = 0
    words: Mapping[str, Words] = field(default_factory=dict)

    @property
    def winner(self) -> SimulatedLayout:
        """The quickest one."""
        return self.best[0]


# ---------------------------------------------------------------- what events and other jobs cost


@dataclass(frozen=True, slots=True)
class EventCost:
    """Cost of one event or other job; times in seconds.

    `what`: description of the event.
    `without_s`: mean step time with all other disturbances, but not this one.
    `costs_s`: how much longer a step takes because of it, on average over the counted steps.
    """

    what: str
    without_s: float
    costs_s: float


@dataclass(frozen=True, slots=True)
class Wait:
    """Wait for the last rank of a collective, over the counted steps; times in seconds.

    `last`: the rank or the class of ranks that came last most often.
    `share`: of the counted steps, those in which it was the last; 0 to 1.
    `waited_s`: how long the other ranks waited, on average.
    `longest_s`: how long the first one waited, at most.
    """

    collective: str
    bucket: int | None
    last: str
    share: float
    waited_s: float
    longest_s: float


@dataclass(frozen=True, slots=True)
class BackgroundJobStep:
    """Another job on the same network; times in seconds.

    `step_time_s` is its mean while the main job's steps were counted; `alone_s` is its step on the
    same nodes with the network for itself.
    """

    name: str
    gpus: int
    step_time_s: float
    alone_s: float


@dataclass(frozen=True, slots=True)
class DisturbanceCost:
    """Cost of events and other jobs together; times in seconds.

    `steps_s`: the counted steps, one after the other; `SizeResult.step_time_s` is their mean.
    `undisturbed_s`: a step without any of the events.
    `mean_interval_s`: 80 % interval of the mean step under jitter; None where nothing is random.
    `events`: in the order of the scenario.
    `waits`: in the order of the step.
    """

    steps_s: tuple[float, ...]
    undisturbed_s: float
    mean_interval_s: tuple[float, float] | None
    events: tuple[EventCost, ...]
    waits: tuple[Wait, ...]
    jobs: tuple[BackgroundJobStep, ...] = ()

    @property
    def costs_s(self) -> float:
        """How much longer a step takes with all disturbances, on average."""
        return sum(self.steps_s) / len(self.steps_s) - self.undisturbed_s
