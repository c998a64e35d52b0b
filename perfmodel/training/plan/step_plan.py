"""StepPlan: one training step as tasks on streams, the only input of the engine.

Names are for people, and tell classes, streams, communicators and keys apart. Whatever else depends
on a task or a communicator stands in fields: nothing is read out of a name.

A plan names *classes* of identical ranks, not ranks: data-parallel training of 100,000
GPUs is one class, nn.DataParallel is two, a pipeline is one per stage. ``reports/decisions``
has the check that FSDP, tensor, pipeline and asynchronous training fit.

LoopPlan: workers that loop on their own and servers that are queues, the engine's other input.

Where the workers of a `StepPlan` share a step, those of a LoopPlan share none: each runs its work
over and over, and between two iterations exchanges state with servers. A server serves what arrives
in the order in which it arrives. How far workers may drift apart is the plan's `slack`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

Op = Literal[
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "all_to_all",
    "scatter",
    "gather",
    "send",
    "send_recv",
]

CommunicatorRole = Literal[
    "replicas",
    "tensor",
    "context",
    "expert",
    "expert_rail",
    "expert_node",
    "expert_copies",
    "amaxes",
    "servers",
    "stages",
    "embedding_holders",
    "all_stages",
]
"""What ranks of a communicator share.

"replicas": gradients or parameters, as data-parallel ranks do. "tensor" to "expert_node": layers
(`perfmodel.workload.layer_calls.CallGroup`). "expert_copies": gradients of the same experts.
"amaxes": greatest values of fp8 tensors. "servers": rows of tables that the first rank of each
group holds, which is of no class where its host is its own. "stages": messages of two stages of a
pipeline. "embedding_holders": the gradient of an embedding that the first and the last stage hold.
"all_stages": numbers that all ranks of a pipeline agree on.
"""

PASSES = ("forward", "backward")
"""Kinds of tasks that run layers."""

TaskRole = Literal["compress", "copy_out", "weight_gradient", "step_end"]
"""What a task does, where more depends on it than its kind says.

"compress": makes a bucket smaller before it is sent. "copy_out": copies a reduced bucket into its
gradients. "weight_gradient": the part of a backward that makes gradients of weights, where it is
split. "step_end": what the host does once a step has ended.
"""


@dataclass(frozen=True, slots=True)
class RankClass:
    """Ranks that do the same work at the same time.

    `ranks`: all of its members.
    """

    name: str
    ranks: range | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Stream:
    """A queue that starts its tasks in plan order, `workers` at a time.

    `name`: unique within its class; "host" streams model the CPU thread that issues work.
    `kind`: compute streams slow down while a comm stream of the same class is busy.
    `workers`: 1 for a CUDA stream; 2 for Gloo's two worker threads.
    """

    name: str
    kind: Literal["compute", "comm", "host", "copy"]
    workers: int = 1


@dataclass(frozen=True, slots=True)
class Communicator:
    """A set of ranks that run collectives together.

    `groups`: the groups that run each collective at the same time (one for data parallelism; one
        per node for tensor parallelism inside nodes). Ring order is rank order within a group.
    `role`: what its ranks share.
    """

    name: str
    groups: tuple[range | tuple[int, ...], ...]
    role: CommunicatorRole = "replicas"


@dataclass(frozen=True, slots=True)
class Compute:
    """Work on one device (or on the host), `duration_s` without slowdown."""

    duration_s: float


@dataclass(frozen=True, slots=True)
class Collective:
    """A collective: starts when every class of its communicator has reached it.

    "send" is a message from the first rank of each group of two to the second; messages of all
    groups start together. (The stages of a pipeline: each rank sends to its counterpart.)
    "send_recv": each rank sends to the next of its group, the last to the first (ring attention).

    `nbytes`: size as nccl-tests counts it (all-reduce: the buffer; all-gather and reduce-scatter:
        the whole, over all ranks; send and send_recv: one message).
    `key`: tasks of different classes with the same key are the same collective.
    `root`: rank that sends or receives everything, for rooted operations.
    `dtype`: of its elements, as in `perfmodel.workload.model.ITEM_BYTES`; None where it has bytes
        of several or none in particular.
    `times`: so many alike, one directly after the other, as one task.
    """

    op: Op
    nbytes: int
    communicator: str
    key: str
    root: int = 0
    dtype: str | None = None
    times: int = 1


@dataclass(frozen=True, slots=True)
class Task:
    """One piece of a step.

    `name`: shown on the timeline.
    `kind`: "forward", "backward", "optimizer", "copy", "issue", "wait", "communication" ...
    `rank_class`, `stream`: where it runs.
    `after`: tasks of this step (indices) that must have ended.
    `after_previous`: tasks of the previous step that must have ended.
    `bucket`: DDP bucket (or FSDP unit) that it belongs to.
    `acquires`, `releases`: semaphore taken before it starts and given back when it ends.
    `core_s`: work of the process of each rank on a core after the task. It delays only what needs
        that core.
    `layers`: of the workload (indices) whose forward or backward it runs, in the order in which it
        does; collectives of these layers have them, too.
    `role`: what it does, where its kind does not say it.
    `issues`: of the host's work, the name of the task that it issues.
    """

    name: str
    kind: str
    rank_class: str
    stream: str
    work: Compute | Collective
    after: tuple[int, ...] = ()
    after_previous: tuple[int, ...] = ()
    bucket: int | None = None
    micro_batch: int = 0
    acquires: str | None = None
    releases: str | None = None
    core_s: float = 0.0
    layers: tuple[int, ...] = ()
    role: TaskRole | None = None
    issues: str = ""

    def moved(
        self,
        work: Compute | Collective | None = None,
        after: tuple[int, ...] | None = None,
        *,
        rank_class: str | None = None,
        micro_batch: int | None = None,
        after_previous: tuple[int, ...] | None = None,
    ) -> Task:
        """Return the task with other work in another place, in half of the time of `replace`."""
        return Task(
            self.name,
            self.kind,
            rank_class or self.rank_class,
            self.stream,
            work or self.work,
            self.after if after is None else after,
            self.after_previous if after_previous is None else after_previous,
            self.bucket,
            self.micro_batch if micro_batch is None else micro_batch,
            self.acquires,
            self.releases,
            self.core_s,
            self.layers,
            self.role,
            self.issues,
        )


@dataclass(frozen=True, slots=True)
class StepPlan:
    """A training step.

    `streams`: each class has its own copy of every stream.
    `tasks`: in an order in which the host could issue them: `after` points to earlier tasks only.
    `samples`: samples that one step trains, over all ranks.
    `semaphores`: name and capacity; one per class.
    """

    name: str
    classes: tuple[RankClass, ...]
    streams: tuple[Stream, ...]
    communicators: tuple[Communicator, ...]
    tasks: tuple[Task, ...]
    samples: int
    semaphores: tuple[tuple[str, int], ...] = ()

    @property
    def stream_kinds(self) -> dict[str, str]:
        """Kind of each stream by its name."""
        return {each.name: each.kind for each in self.streams}

    @property
    def groups_of(self) -> dict[str, tuple[range | tuple[int, ...], ...]]:
        """Groups of each communicator by its name."""
        return {each.name: each.groups for each in self.communicators}


def follow_previous(tasks: list[Task], places: Sequence[int]) -> None:
    """Let tasks of a plan that has been rewritten wait for those of the step before it.

    `places`: of each task of the plan as it was, its index in `tasks`.
    """
    for at, task in enumerate(tasks):
        if task.after_previous:
            tasks[at] = task.moved(after_previous=tuple(places[i] for i in task.after_previous))


def extrapolate(plan: StepPlan, other: StepPlan, share: float) -> StepPlan | None:
    """Return a plan whose times are off those of a plan by a share of what another's are off.

    Times of work are linear in the factors on times of layers and of launches: from the plans of
    two factors follows that of any third one. None where the plans differ in more than times.
    """
    if len(plan.tasks) != len(other.tasks):
        return None
    tasks = list[Task]()
    for task, changed in zip(plan.tasks, other.tasks, strict=True):
        own, its = task.work, changed.work
        if isinstance(own, Compute) and isinstance(its, Compute):
            duration_s = own.duration_s + share * (its.duration_s - own.duration_s)
            own = own if own == its else Compute(max(0.0, duration_s))
        elif own != its:
            return None
        tasks.append(task if own is task.work else task.moved(own))
    return replace(plan, tasks=tuple(tasks))


def neighbours(ranks: int, size: int) -> tuple[range, ...]:
    """Groups of so many ranks with consecutive numbers."""
    return tuple(range(first, first + size) for first in range(0, ranks, size))


def strides(ranks: int, size: int) -> tuple[range, ...]:
    """Groups of the ranks in the same place of all groups of neighbours."""
    return tuple(range(first, ranks, size) for first in range(size))


Dimension = Literal["tensor", "context", "expert", "pipeline", "servers", "data", "all ranks"]

DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
"""In the order in which reports list them; "data": gradients, and parameters that are sharded."""

_DIMENSION_OF: Mapping[CommunicatorRole, Dimension] = {
    "replicas": "data",
    "tensor": "tensor",
    "context": "context",
    "expert": "expert",
    "expert_rail": "expert",
    "expert_node": "expert",
    "expert_copies": "data",
    "amaxes": "data",
    "servers": "servers",
    "stages": "pipeline",
    "embedding_holders": "pipeline",
    "all_stages": "all ranks",
}


def dimension_of(communicator: Communicator) -> Dimension:
    """Dimension whose ranks a communicator joins.

    A gradient of the embedding that both ends of a pipeline hold is the pipeline's.

    Examples
    --------
    >>> dimension_of(Communicator("pairs", ((0, 1), (2, 3)), "expert_rail"))
    'expert'
    """
    return _DIMENSION_OF[communicator.role]


def has_stages(plan: StepPlan) -> bool:
    """Whether a plan has a pipeline's stages, which wait for each other's messages."""
    return any(dimension_of(each) == "pipeline" for each in plan.communicators)


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A piece of an iteration on the worker's device; pieces run one after the other.

    `kind`: as of `perfmodel.training.plan.step_plan.Task`.
    `duration_s`: on the device.
    `host_s`: of the host, which issues pieces in order, ahead of the device where it can.
    `needs`: exchanges (indices) whose answer to the iteration before has to be there.
    `sends`: exchanges that begin when it has ended.
    """

    name: str
    kind: str
    duration_s: float
    host_s: float = 0.0
    needs: tuple[int, ...] = ()
    sends: tuple[int, ...] = ()
    micro_batch: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """State that a worker sends to a server once an iteration, and gets back changed.

    `server`: index in `LoopPlan.servers`.
    `push_bytes`, `pull_bytes`: to the server and back.
    `each_s`: time of the server for what one worker sent; seconds.
    `all_s`: with `LoopPlan.together`: its time once all workers have sent theirs; seconds.
    `local_bytes`: that the GPUs of a worker with several add up before, and share afterwards.
    `before_s`, `after_s`: time of this, known once the plan is placed: one exchange after the
        other, beside the device; seconds.
    """

    name: str
    server: int
    push_bytes: float
    pull_bytes: float
    each_s: float
    all_s: float = 0.0
    local_bytes: float = 0.0
    before_s: float = 0.0
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker.

    `ranks`: its GPUs; its messages begin and end at the first.
    `scale`: factor on its time on the device.
    `like`: index of the list of items in `LoopPlan.items` that it runs.
    `start_s`: when it begins; seconds since the start of the run.
    """

    name: str
    ranks: tuple[int, ...]
    scale: float = 1.0
    like: int = 0
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Server:
    """A queue that serves one exchange at a time, first come first served.

    `host`: number among the hosts that have servers.
    `on_gpu`: whether it works on the first GPU of its host, or on the host's CPU.
    `device`: by name in a topology; empty until the plan is placed on one.
    """

    name: str
    host: int
    on_gpu: bool = False
    device: str = ""


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """Workers, servers, and what they exchange.

    `items`: of an iteration, for each kind of worker the same but for durations.
    `slack`: iterations that a worker may be ahead of the slowest: the answer to its n-th push waits
        until all have pushed n - slack times. None: it never waits; 0: all stay together.
    `together`: a server answers once all workers have pushed and it has worked on the sum.
    `samples`: that all workers together train in an iteration of each.
    """

    name: str
    workers: tuple[Worker, ...]
    servers: tuple[Server, ...]
    items: tuple[tuple[WorkItem, ...], ...]
    exchanges: tuple[Exchange, ...]
    samples: int
    slack: int | None = None
    together: bool = False
