"""Priority scheduling: one training step as a StepPlan.

A step goes from backward to the forward that follows it: gradients are reduced piece by piece, in
the order of `perfmodel.training.priority`; each layer is updated when its own gradients
have arrived, and its forward runs at once, while those of later layers still travel.

ByteScheduler (SOSP 2019) and P3 (arXiv 1905.03960) cut tensors to pieces and send, of all that is
ready, the piece of the layer that the next forward runs first. With infinitely small pieces and one
link that order is the best there is: it is the rule of the largest delivery time for one machine
with release times (Jackson 1955; Horn 1974), where the delivery time of a piece is the rest of
forward from its layer on.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

from perfmodel.scenario.strategies.strategy import PriorityStrategy
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.memory_use import replicated
from perfmodel.training.plan.builder import COMPUTE, GROUP, HOST, RANKS, TaskList
from perfmodel.training.plan.forward_backward import (
    Segment,
    Step,
    add_backward_segment,
    add_forward,
    add_local_backward,
    add_step_end,
    visit_segments,
)
from perfmodel.training.plan.step_plan import (
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
)
from perfmodel.training.strategy import Setting, StepRequest, Strategy
from perfmodel.workload.model import ITEM_BYTES


@dataclass(frozen=True, slots=True)
class Partition:
    """A piece of a gradient.

    `tensor`: that it is cut from; `part`: its number among the pieces of that.
    `rank`: pieces of lower rank go first, of those that are ready.
    `ready_s`: when its gradient is there; seconds.
    """

    tensor: int
    part: int
    nbytes: int
    rank: int
    ready_s: float


def cut_bytes(nbytes: int, most_bytes: float, item_bytes: int) -> tuple[int, ...]:
    """Cut a size to pieces of at most so many bytes, whole elements each.

    Examples
    --------
    >>> cut_bytes(10, 4, 2), cut_bytes(10, 1, 2), cut_bytes(8, 100, 4)
    ((4, 4, 2), (2, 2, 2, 2, 2), (8,))
    """
    most = max(item_bytes, int(most_bytes) // item_bytes * item_bytes)
    whole, rest = divmod(nbytes, most)
    return (most,) * whole + ((rest,) if rest else ())


def send_order(
    partitions: Sequence[Partition], time_s: Callable[[int], float], credit_bytes: float
) -> tuple[int, ...]:
    """Order in which one queue sends pieces, as indices.

    Parameters
    ----------
    partitions : sequence of Partition
    time_s : callable
        Time of a piece of so many bytes; seconds.
    credit_bytes : float
        Bytes in flight at most, but for a single piece.
    """
    arrivals = deque(sorted(range(len(partitions)), key=lambda at: partitions[at].ready_s))
    waiting: list[tuple[int, int]] = []
    in_flight: deque[tuple[float, int]] = deque()
    flying_bytes, now, free_s = 0, 0.0, 0.0
    order: list[int] = []
    while arrivals or waiting:
        while arrivals and partitions[arrivals[0]].ready_s <= now:
            index = arrivals.popleft()
            heapq.heappush(waiting, (partitions[index].rank, index))
        while in_flight and in_flight[0][0] <= now:
            flying_bytes -= in_flight.popleft()[1]
        if not waiting:
            now = partitions[arrivals[0]].ready_s
            continue
        nbytes = partitions[waiting[0][1]].nbytes
        if in_flight and flying_bytes + nbytes > credit_bytes:
            now = in_flight[0][0]
            continue
        order.append(heapq.heappop(waiting)[1])
        free_s = max(now, free_s) + time_s(nbytes)
        in_flight.append((free_s, nbytes))
        flying_bytes += nbytes
    return tuple(order)


def priority_plan(request: StepRequest, options: PriorityStrategy) -> StepPlan:
    """Return one step of training with priority scheduling; of plain training for one rank.

    Raises `ScheduleError`: times that do not fit the workload.
    """
    tasks, ranks = TaskList.of(request), range(request.ranks)
    step = Step(request, DdpOptions(accumulate=options.accumulate), tasks, RANKS)
    ready = _add_backward(step)
    arrived = _add_pieces(step, options, ready) if request.ranks > 1 else {}
    _add_updates_and_forward(step, arrived)
    for micro_batch in range(step.last_micro_batch):
        add_local_backward(step, micro_batch)
        add_forward(step, micro_batch + 1)
    return tasks.plan(
        name=f"{options.order} scheduling, {request.workload.name}",
        classes=(RankClass(RANKS, ranks),),
        streams=(HOST, COMPUTE, Stream("comm", "comm")),
        communicators=(Communicator(GROUP, (ranks,)),) if request.ranks > 1 else (),
        samples=request.ranks * request.batch_per_gpu * options.accumulate,
    )


def _segments(step: Step, *, backward: bool) -> tuple[Segment, ...]:
    """Layers of a pass, joined to segments, with their tensors."""
    return visit_segments(
        step.request.workload,
        step.request.times,
        range(len(step.request.workload.layers)),
        at_most=step.resolution(step.last_micro_batch),
        backward=backward,
    )


def _add_backward(step: Step) -> dict[int, tuple[int, float]]:
    """Add backward; return for each tensor the task that ends its gradient, and when that is."""
    ready: dict[int, tuple[int, float]] = {}
    now, end = 0.0, -1
    for part in _segments(step, backward=True):
        end = add_backward_segment(step, part, step.last_micro_batch)
        work = step.tasks.tasks[end].work
        assert isinstance(work, Compute)
        now += work.duration_s
        ready |= dict.fromkeys(part.tensors, (end, now))
    add_step_end(step, end)
    return ready


def _add_pieces(
    step: Step, options: PriorityStrategy, ready: dict[int, tuple[int, float]]
) -> dict[int, list[int]]:
    """Cut all gradients to pieces, and add their all-reduces in the order in which they are sent.

    Returns those of each tensor. `ready`: the task that ends each gradient, and when that is.
    """
    request, tensors = step.request, step.request.workload.tensors
    forward = [index for layer in request.workload.layers for index in layer.tensors]
    pieces = [
        Partition(tensor, part, nbytes, rank, ready[tensor][1])
        for rank, tensor in enumerate(forward if options.order == "priority" else ready)
        for part, nbytes in enumerate(
            cut_bytes(
                tensors[tensor].nbytes, options.partition_size, ITEM_BYTES[tensors[tensor].dtype]
            )
        )
    ]
    piece_s = cache(lambda nbytes: request.collective_s("all_reduce", nbytes, None))
    arrived: dict[int, list[int]] = {tensor: [] for tensor in ready}
    for index in send_order(pieces, piece_s, options.credit_bytes):
        piece, tensor = pieces[index], tensors[pieces[index].tensor]
        sent = step.tasks.collective(
            f"all-reduce {tensor.name}, {piece.part}",
            "all_reduce",
            piece.nbytes,
            RANKS,
            communicator=GROUP,
            key=f"{tensor.name} {piece.part}",
            after=(ready[piece.tensor][0],),
            micro_batch=step.last_micro_batch,
            dtype=tensor.dtype,
        )
        arrived[piece.tensor].append(sent)
    return arrived


def _add_updates_and_forward(step: Step, arrived: dict[int, list[int]]) -> None:
    """Add each segment's share of the optimizer, once its gradients are there, and forward."""
    request, tasks, times = step.request, step.tasks, step.request.times
    trained = step.nbytes(request.workload.ready_order)
    for part in _segments(step, backward=False):
        waits = [end for tensor in part.tensors for end in arrived.get(tensor, ())]
        if part.tensors:
            name, share = f"update {part.name}", step.nbytes(part.tensors) / trained
            kernels = max(1, round(times.optimizer_kernels * share))
            after = dict.fromkeys((*tasks.issue(name, kernels, RANKS, after=waits), *waits))
            tasks.compute(name, "optimizer", times.optimizer_s * share, RANKS, after=after)
        name = f"forward {part.name}"
        tasks.launch(name, "forward", part.duration_s, part.kernels, RANKS, layers=part.indices)


# ---------------------------------------------------------------- the row


def priority_settings(*_: object) -> tuple[Setting, ...]:
    """The two numbers that ByteScheduler tunes, and P3's order against the usual one."""
    pieces = (2e5, 1e6, 4e6, 16e6, 64e6, 256e6)
    return (
        Setting("partition_size", pieces, "bytes"),
        Setting("credit", (None, *pieces), "bytes"),
        Setting("order", ("priority", "fifo")),
    )


PRIORITY = Strategy(
    "priority scheduling",
    priority_plan,
    replicated,
    assumptions=(
        (
            "Priority scheduling: the order of pieces is decided with times of layers and "
            "all-reduces that do not slow each other down; agreeing on it takes no time, and each "
            "layer's update takes its share of the optimizer's."
        ),
    ),
    settings=priority_settings,
)
