"""Result of a run: one SizeResult per cluster size, with all that reports need."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from perfmodel.timeline import Timeline
from perfmodel.topology.model import Topology

if TYPE_CHECKING:
    import pandas as pd


Scaling = Literal["weak", "strong"]


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
class LinkUse:
    """Traffic over one directed link during one step.

    `nbytes` are bytes of payload. `utilisation`, 0 to 1, is the share of the step in which the link
    was busy, with payload, with what protocols add, or with what a slow protocol leaves unused.
    """

    src: str
    dst: str
    kind: str
    nbytes: float
    utilisation: float


@dataclass(frozen=True, slots=True)
class CommunicationUse:
    """One operation in a step, of a rank of the class that computes longest.

    `op`: "all_reduce", "all_gather", "reduce_scatter", "send" ...
    `functions`: times that it is called.
    `nbytes`: sizes of all calls, as nccl-tests counts them.
    `sent_bytes`: what a rank sends in them if they run on rings.
    `busy_s`: while at least one call is in flight.
    `exposed_s`: its part of the exposed communication; those of all operations add up to it.
    """

    op: str
    calls: int
    nbytes: int
    sent_bytes: float
    busy_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class DimensionUse:
    """Communication of one dimension of a mixture in a step.

    `dimension`: "tensor", "context", "expert", "pipeline" (messages of stages), "data" (gradients,
        and parameters that are sharded), or "all ranks" (the norm of all gradients).
    `ranks`: of each of its groups.
    `functions`, `sent_bytes`: of the rank that sends most; bytes as on rings.
    `exposed_s`: while a GPU neither computes nor has anything else to wait for, mean of stages;
        dimensions that are in flight together share that time.
    `links`: kinds of link that its messages cross.
    `between_hosts`: share of the neighbours in its groups that are on different hosts.
    """

    dimension: str
    ranks: int
    calls: int
    sent_bytes: float
    exposed_s: float
    links: tuple[str, ...]
    between_hosts: float


@dataclass(frozen=True, slots=True)
class StageUse:
    """What one stage of a pipeline does in a step; seconds.

    `rank_class`: its ranks in the timeline, the slowest ones where they differ.
    `busy_s`: while it computes. `exposed_s`: while it communicates and does not compute.
    `waits_s`: from the first pass of all stages to the last one, while it does neither.
    """

    stage: int
    rank_class: str
    busy_s: float
    exposed_s: float
    waits_s: float


@dataclass(frozen=True, slots=True)
class MixtureUse:
    """How a model is split over GPUs, and what that costs.

    `tensor`, `context`, `expert`, `pipeline`, `data`: degrees; `data` is what the others leave of
        the GPUs, and `expert` a part of data x context.
    `order`: of dimensions, as `parallel.order`.
    `schedule`: of the pipeline; None without stages.
    `micro_batches`: of each data-parallel rank in a step.
    `bubble`: from the first pass of all stages to the last one, the share of time in which a stage
        runs no pass and no collective of its layers, mean of stages, as simulated.
    `bubble_in_theory`: the same of stages of equal work and messages that take no time.
    `stages`: of the pipeline; none without.
    """

    tensor: int
    context: int
    expert: int
    pipeline: int
    data: int
    order: str
    schedule: str | None
    micro_batches: int
    bubble: float | None
    bubble_in_theory: float | None
    dimensions: tuple[DimensionUse, ...]
    stages: tuple[StageUse, ...] = ()


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes per GPU (the fullest one), and whether they fit.

    `low_bytes`, `high_bytes`: least and most of all parts together, where activations are
        estimated; None: they are counted.
    `reserve_bytes`: what CUDA, NCCL and the allocator take beside.
    `idle_bytes`: part of it that the allocator keeps for the streams of communication.
    `stages_bytes`: all parts together, of a GPU of each stage of a pipeline; none without.
    """

    parameters_bytes: float
    gradients_bytes: float
    optimizer_bytes: float
    buckets_bytes: float
    activations_bytes: float
    gathered_bytes: float
    capacity_bytes: float
    temporary_bytes: float = 0.0
    idle_bytes: float = 0.0
    stages_bytes: tuple[float, ...] = ()
    advice: tuple[str, ...] = ()
    low_bytes: float | None = None
    high_bytes: float | None = None
    reserve_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """Sum of all parts."""
        return (
            self.parameters_bytes
            + self.gradients_bytes
            + self.optimizer_bytes
            + self.buckets_bytes
            + self.activations_bytes
            + self.gathered_bytes
            + self.temporary_bytes
        )

    @property
    def fits(self) -> bool:
        """Whether the parts fit the device's memory, the high end of what is estimated too."""
        return self._most_bytes <= self.capacity_bytes

    @property
    def may_fit(self) -> bool:
        """Whether the parts fit at the low end of what is estimated."""
        least = self.total_bytes if self.low_bytes is None else self.low_bytes
        return least <= self.capacity_bytes

    @property
    def tight(self) -> bool:
        """Whether the parts fit, but not with what CUDA, NCCL and the allocator take."""
        return self.fits and self._most_bytes + self.reserve_bytes > self.capacity_bytes

    @property
    def _most_bytes(self) -> float:
        return self.total_bytes if self.high_bytes is None else self.high_bytes


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
class HotSpot:
    """A GPU that does more than the others, which wait for it: device 0 of nn.DataParallel.

    `gpu`: its name.
    `busy_s`, `others_busy_s`: time of a step in which it computes, and in which each other does.
    `link_bytes`, `others_link_bytes`: over its links in a step, both directions, and over those of
        another GPU on average.
    `only_there_bytes`: memory that only it needs: optimizer states and reduced gradients.
    """

    gpu: str
    busy_s: float
    others_busy_s: float
    link_bytes: float
    others_link_bytes: float
    only_there_bytes: float


@dataclass(frozen=True, slots=True)
class Staleness:
    """By how many updates gradients came late; bytes of gradients count.

    `mean`, `p50`, `p90`, `p99`, `most`: updates that others had made to the same parameters between
        the worker's reading them and its gradient's being applied.
    `histogram`: (first, last, share): shares of gradients by numbers of updates; they add up to 1.
    `most_ahead`: iterations that a worker was ahead of the slowest as it went on, at most; None
        where workers wait for nobody.
    """

    mean: float
    p50: int
    p90: int
    p99: int
    most: int
    histogram: tuple[tuple[int, int, float], ...]
    most_ahead: int | None


@dataclass(frozen=True, slots=True)
class ServerUse:
    """What parameter servers and their workers do.

    `mode`: "synchronous", "asynchronous" or "bounded".
    `workers`: that push and pull: GPUs, or nodes whose GPUs add up their gradients.
    `updates_per_s`: of the parameters: with each gradient, or synchronous with the sum of all.
    `most_updates_per_s`: that computing, the busiest link and the busiest server allow, whichever
        is least; `bound_by` names it.
    `server_busy`: of each server, share of the time in which it updates.
    `queue_wait_s`: mean time of a push in the queue of its server; seconds.
    `worker_wait`: mean share of a worker's time in which it waits for answers.
    `fastest_s`, `slowest_s`: time per iteration of the fastest and of the slowest worker.
    `server_bytes`: memory of the fullest server.
    `updates_interval_per_s`: 80 % interval of `updates_per_s`; None: not simulated.
    """

    mode: str
    workers: int
    servers: tuple[str, ...]
    updates_per_s: float
    most_updates_per_s: float
    bound_by: str
    staleness: Staleness
    server_busy: tuple[float, ...]
    queue_wait_s: float
    worker_wait: float
    fastest_s: float
    slowest_s: float
    server_bytes: float
    updates_interval_per_s: tuple[float, float] | None = None


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
    `interval_s`: 80 % interval of `step_time_s`; None where none is known.
    `uncertainties`: what it is made of; None where it is.
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
    `mixture`: how the model is split, and what that costs; None where each GPU has all of it.
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
    links: tuple[LinkUse, ...]
    timeline: Timeline
    mode: str
    disturbance: DisturbanceCost | None = None
    uncertainties: tuple[Uncertainty, ...] | None = None
    scaling_efficiency_interval: tuple[float, float] | None = None
    notes: tuple[str, ...] = ()
    reliefs: tuple[Relief, ...] = ()
    hot_spot: HotSpot | None = None
    server_use: ServerUse | None = None
    communication: tuple[CommunicationUse, ...] = ()
    mfu: float | None = None
    mixture: MixtureUse | None = None
    bottleneck_path: str = ""

    @property
    def sent_bytes(self) -> float:
        """Bytes that a rank sends in a step if all operations run on rings."""
        return sum(each.sent_bytes for each in self.communication)

    @property
    def relief(self) -> Relief | None:
        """What the bottleneck costs; None where it is compute or an event."""
        events = () if self.disturbance is None else self.disturbance.events
        is_event = any(event.what == self.bottleneck for event in events)
        return None if is_event or self.bottleneck == "compute" else next(iter(self.reliefs), None)


@dataclass(frozen=True, slots=True)
class SimulatedMixture:
    """A mixture that was simulated on the way to the quickest one that fits.

    `text`: what it is, in words.
    `changes`: fields of the scenario that make it this mixture, as written in a file.
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
class MixtureSearch:
    """How the quickest mixture that fits was found.

    `best`: by growing step time; the first one is the answer.
    `listed`: combinations of what the scenario lists; the other counts add up to it.
    `impossible`: degrees do not divide GPUs, batch or model, or a schedule does not allow them.
    `too_big`: did not fit where that was looked at.
    `bounded`: cannot be quicker, or were not looked at once `simulate` of them were simulated.
    `unproven`: how much quicker than the best, at most, any mixture is that was left out; 0: none.
    """

    best: tuple[SimulatedMixture, ...]
    listed: int
    impossible: int
    too_big: int
    bounded: int
    simulated: int
    unproven: float = 0.0

    @property
    def winner(self) -> SimulatedMixture:
        """The quickest one."""
        return self.best[0]


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
    samples : str
        What one sample is ("image").
    topology : Topology
        Of the last point.
    assumptions : tuple of str
    sources : mapping of str to str
        Sources of the numbers.
    provenance : mapping of str to str
        Digests, version, seed, fidelity.
    routing_cost : float
        How many times as long the largest bucket's all-reduce takes as without collisions of flows
        in the fabric.
    slowest_gpu : float
        How many times as long as a usual GPU the slowest of the last point's computes, which a
        step waits for.
    search : MixtureSearch, optional
        How the mixture was found, where the scenario left it open.
    """

    scenario: str
    question: str
    workload: str
    strategy: str
    machine: str
    scaling: Scaling
    points: tuple[SizeResult, ...]
    efficiency_base: int
    samples: str
    topology: Topology
    assumptions: tuple[str, ...]
    sources: Mapping[str, str]
    provenance: Mapping[str, str]
    routing_cost: float = 1.0
    slowest_gpu: float = 1.0
    search: MixtureSearch | None = None

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

        return pd.DataFrame([self._row(point) for point in self.points])

    def _row(self, point: SizeResult) -> dict[str, Any]:
        return {
            "gpus": point.gpus,
            "nodes": point.nodes,
            "global_batch": point.global_batch,
            "step_time_s": point.step_time_s,
            "compute_s": point.compute_s,
            "comm_s": point.comm_s,
            "exposed_comm_s": point.exposed_comm_s,
            "samples_per_s": point.samples_per_s,
            "scaling_efficiency": point.scaling_efficiency,
            "bottleneck": point.bottleneck,
            "memory_bytes": point.memory.total_bytes,
            "fits": point.memory.fits,
        }

    def _repr_html_(self) -> str:
        """Show the summary in a notebook."""
        return self.summary._repr_html_()  # type: ignore[operator,no-any-return]
