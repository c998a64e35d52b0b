"""Training with parameter servers: workers push gradients and pull parameters.

A worker runs forward and backward over and over; what it has computed of a gradient goes to the
server that holds those parameters, which runs the optimizer on them and sends them back (one
request, as ``ZPushPull`` of ps-lite and ``push_pull`` of BytePS). Synchronous servers add up the
gradients of all workers first. Sources: Li et al., "Scaling distributed machine learning with the
parameter server", OSDI 2014; bounded staleness: Ho et al., "More effective distributed ML via a
stale synchronous parallel parameter server", NIPS 2013.

Which server holds which part of the parameters is said by MXNet 1.9 src/kvstore/kvstore_dist.h
(arrays of a bound or more are cut into equal parts over all servers, others go to one by a hash of
their key); TensorFlow 1.15 contrib/training/device_setter.py (`GreedyLoadBalancingStrategy` by
bytes: the least loaded server); BytePS 0.2 docs/env.md (tensors in partitions of at most 4,096,000
bytes, each with a server of its own choice).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from perfmodel.memo import grouped
from perfmodel.scenario.strategies.servers import ParameterServerStrategy
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.memory_use import MemoryUse, Setup, replicated
from perfmodel.training.plan.forward_backward import (
    MANY_MICRO_BATCHES,
    Segment,
    backward_segments,
    forward_segments,
    visit_segments,
)
from perfmodel.training.plan.step_plan import Exchange, LoopPlan, Server, Worker, WorkItem
from perfmodel.training.server_rates import cpu_rate_Bps
from perfmodel.training.strategy import StepRequest, Strategy
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.memory import optimizer_bytes, optimizer_state_bytes
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor, Workload


@dataclass(frozen=True, slots=True)
class Shard:
    """Part of a tensor on one server; `tensor` is its index."""

    tensor: int
    server: int
    elements: int


def shard(
    tensors: Sequence[ParameterTensor],
    servers: int,
    *,
    assignment: Literal["greedy", "hash"] = "greedy",
    split_bytes: float | None = None,
    slice_bytes: float | None = None,
) -> tuple[Shard, ...]:
    """Assign every element of every tensor to a server, in the order of the tensors.

    `assignment`: of what is not cut over all: to the server with fewest bytes so far, or by a hash.
    `split_bytes`: tensors of so many bytes are cut into equal parts over all servers; of MXNet's
        default where it is not given.
    `slice_bytes`: instead, all tensors are cut into slices of at most so many bytes, each assigned
        alone.
    """
    load, cut_from = [0.0] * servers, split_bytes or fixed_in("mxnet", "split_bytes")
    shards: list[Shard] = []
    key = 0
    for index, tensor in enumerate(tensors):
        over_all = slice_bytes is None and tensor.nbytes >= cut_from and servers > 1
        slices = servers
        if not over_all:
            slices = 1 if slice_bytes is None else max(1, -(-tensor.nbytes // int(slice_bytes)))
        for number, elements in enumerate(even_parts(tensor.numel, slices)):
            server = number
            if not over_all:
                server = (
                    load.index(min(load))
                    if assignment == "greedy"
                    else ((key + number) * fixed_in("mxnet", "key_factor") % servers)
                )
            load[server] += elements * tensor.nbytes / max(1, tensor.numel)
            shards.append(Shard(index, server, elements))
        key += 1 if over_all else slices
    return tuple(each for each in shards if each.elements)


def even_parts(elements: int, parts: int) -> list[int]:
    """Split a number into parts that differ by one at most.

    Examples
    --------
    >>> even_parts(10, 4)
    [3, 3, 2, 2]
    """
    least, larger = divmod(elements, parts)
    return [least + (part < larger) for part in range(parts)]


MOST_PUSHES, MOST_OF_WORKER = 2048, 32
"""Messages to servers that an iteration of all workers, and of one, is simulated with, unless there
are more servers: neighbouring tensors travel together then."""


def server_count(options: ParameterServerStrategy, nodes: int) -> int:
    """How many servers there are for workers on so many nodes, one on each at most."""
    if options.placement == "colocated":
        return min(options.servers or nodes, nodes)
    return options.servers or 1


STALENESS_OF_MODE: Mapping[str, int | None] = {"synchronous": 0, "asynchronous": None}
"""Iterations that a worker may be ahead of the slowest; None: any."""


# ---------------------------------------------------------------- plan


class _Part(NamedTuple):
    """What a segment of backward has for one server: elements, and bytes of them."""

    segment: int
    server: int
    elements: int
    nbytes: float


def parameter_server_loops(request: StepRequest, options: ParameterServerStrategy) -> LoopPlan:
    """Return the loops of workers and servers.

    Raises `ScheduleError`: times that do not fit the workload.
    """
    each = max(1, request.ranks // request.nodes) if options.local_reduce else 1
    workers = tuple(
        Worker(f"worker {number}", tuple(range(first, first + each)))
        for number, first in enumerate(range(0, request.ranks, each))
    )
    servers = server_count(options, request.nodes)
    pushes = max(1, min(MOST_OF_WORKER, MOST_PUSHES // len(workers)))
    segments = backward_segments(
        request.workload, request.times, at_most=max(1, min(request.segments, pushes // servers))
    )
    parts = _parts(request, options, segments, servers, pushes)
    exchanges = tuple(_exchange(request, options, part, segments[part.segment]) for part in parts)
    return LoopPlan(
        name=f"parameter server, {request.workload.name}",
        workers=workers,
        servers=tuple(
            Server(f"server {number}", number, on_gpu=options.device == "gpu")
            for number in range(servers)
        ),
        items=(_items(request, options, segments, parts),),
        exchanges=exchanges,
        samples=request.ranks * request.batch_per_gpu * options.accumulate,
        slack=STALENESS_OF_MODE.get(options.mode, options.staleness),
        together=options.mode == "synchronous",
    )


def _parts(
    request: StepRequest,
    options: ParameterServerStrategy,
    segments: Sequence[Segment],
    servers: int,
    pushes: int,
) -> list[_Part]:
    """Cut what segments push by servers, and into slices as far as `pushes` of them allow."""
    order = sorted(request.workload.ready_order)  # keys are numbered as the model declares them
    segment_of = {tensor: at for at, each in enumerate(segments) for tensor in each.tensors}
    shared = _shards([request.workload.tensors[index] for index in order], servers, options)
    sent = grouped(((segment_of[order[each.tensor]], each.server), each) for each in shared)
    coarser = max(1, -(-sum(map(len, sent.values())) // pushes))
    parts: list[_Part] = []
    for key, shards in sorted(sent.items()):
        elements = sum(each.elements for each in shards)
        held = ((each.elements, request.workload.tensors[order[each.tensor]]) for each in shards)
        nbytes = sum(numel * tensor.nbytes / tensor.numel for numel, tensor in held)
        pieces = 1 if options.slice is None else max(1, len(shards) // coarser)
        parts += [
            _Part(*key, piece, nbytes * piece / elements) for piece in even_parts(elements, pieces)
        ]
    return [part for part in parts if part.elements]


def _shards(
    tensors: Sequence[ParameterTensor], servers: int, options: ParameterServerStrategy
) -> tuple[Shard, ...]:
    """Assign every element of some tensors to a server, as the strategy says."""
    return shard(
        tensors,
        servers,
        assignment=options.assignment,
        split_bytes=options.split_above,
        slice_bytes=options.slice,
    )


def _exchange(
    request: StepRequest, options: ParameterServerStrategy, part: _Part, segment: Segment
) -> Exchange:
    sent = part.nbytes
    if options.gradient_dtype is not None:
        sent = part.elements * ITEM_BYTES[options.gradient_dtype]
    trained = sum(request.workload.tensors[index].numel for index in request.workload.ready_order)
    # the optimizer reads and writes memory in one pass; a copied byte is read and written
    moved = optimizer_bytes(request.workload, request.optimizer, "fused") / max(1, trained)
    rate_Bps = (
        cpu_rate_Bps(options.threads, options.memory_bandwidth)
        if options.device == "cpu"
        else 2 * request.times.copy_Bps
    )
    update_s = part.elements * moved / rate_Bps
    each_s, all_s = (
        ((sent + (passes_of("addition") - 1) * part.nbytes) / rate_Bps, update_s)
        if options.mode == "synchronous"
        else (update_s, 0.0)
    )
    return Exchange(
        name=segment.name,
        server=part.server,
        push_bytes=sent,
        pull_bytes=part.nbytes,
        each_s=each_s,
        all_s=all_s,
        local_bytes=part.nbytes if options.local_reduce else 0.0,
    )


def _items(
    request: StepRequest,
    options: ParameterServerStrategy,
    segments: Sequence[Segment],
    parts: Sequence[_Part],
) -> tuple[WorkItem, ...]:
    """Forward and backward of all micro-batches; the last backward pushes."""
    workload, times = request.workload, request.times
    coarse = 8 if options.accumulate <= MANY_MICRO_BATCHES else 1
    last, casts = options.accumulate - 1, options.gradient_dtype is not None
    pushed = [
        tuple(i for i, p in enumerate(parts) if p.segment == at) for at in range(len(segments))
    ]
    needs = pushed[::-1]
    if not options.overlap:  # all are pushed after the last segment, and awaited before the first
        everything = tuple(range(len(parts)))
        pushed = [()] * (len(segments) - 1) + [everything]
        needs = [everything, *pushed[:-1]]
    items: list[WorkItem] = []
    for micro_batch in range(options.accumulate):
        is_first, is_last = micro_batch == 0, micro_batch == last
        forward = forward_segments(workload, times, at_most=coarse)
        if is_first:  # the same groups of layers as backward's segments, in the order of forward
            forward = tuple(
                part
                for layers in [segment.indices[::-1] for segment in reversed(segments)]
                for part in visit_segments(workload, times, layers, at_most=1, backward=False)
            )
        backward = segments if is_last else backward_segments(workload, times, at_most=coarse)
        waits = needs if is_first else [()] * len(forward)
        sends = pushed if is_last else [()] * len(backward)
        items += [
            _item(request, "forward", part, micro_batch, needs=awaited)
            for part, awaited in zip(forward, waits, strict=True)
        ]
        items += [
            _item(request, "backward", part, micro_batch, sends=sent, casts=casts and is_last)
            for part, sent in zip(backward, sends, strict=True)
        ]
    return tuple(items)


def _item(
    request: StepRequest,
    kind: Literal["forward", "backward"],
    part: Segment,
    micro_batch: int,
    *,
    needs: tuple[int, ...] = (),
    sends: tuple[int, ...] = (),
    casts: bool = False,
) -> WorkItem:
    duration_s, kernels = part.duration_s, part.kernels
    nbytes = sum(request.workload.tensors[tensor].nbytes for tensor in part.tensors)
    own = len(part.tensors) if kind == "backward" else 0
    # gradients are added up in place: two values read, one written; casts write half as much
    for copies, applies in ((1.5, micro_batch > 0), (0.75, casts)):
        if own and applies:
            duration_s += copies * nbytes / request.times.copy_Bps + own * request.kernel_s
            kernels += own
    return WorkItem(
        f"{kind} {part.name}",
        kind,
        duration_s,
        kernels * request.times.launch_s,
        needs,
        sends,
        micro_batch,
    )


# ---------------------------------------------------------------- memory


def parameter_server_memory(setup: Setup) -> MemoryUse:
    """Add up what a worker keeps on its GPU: no optimizer states, unless it serves, too.

    A server on a worker's GPU has its part of the parameters, of the states and of the sum of
    gradients there. A 16-bit copy of all gradients may be on its way.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    use = replace(replicated(setup), optimizer_bytes=0.0)
    options: ParameterServerStrategy = setup.options
    compressed = 0
    if options.gradient_dtype is not None:
        compressed = (
            sum(tensor.numel for tensor in setup.trained) * ITEM_BYTES[options.gradient_dtype]
        )
    if options.device == "cpu" or options.placement != "colocated":
        return replace(use, buckets_bytes=float(compressed))
    share = most_held(setup.workload, options, options.servers or 1)
    copies = 2 if options.mode == "synchronous" else 1
    return replace(
        use,
        optimizer_bytes=share * optimizer_state_bytes(setup.workload, setup.optimizer),
        buckets_bytes=compressed + share * use.gradients_bytes * copies,
    )


def most_held(workload: Workload, options: ParameterServerStrategy, servers: int) -> float:
    """Share of the trained parameters' elements that the fullest server has; 0 to 1."""
    tensors = [workload.tensors[index] for index in sorted(workload.ready_order)]
    held = [0] * servers
    for each in _shards(tensors, servers, options):
        held[each.server] += each.elements
    return max(held) / max(1, sum(held))


def server_bytes(
    workload: Workload, options: ParameterServerStrategy, optimizer: str, servers: int, workers: int
) -> float:
    """Memory of the fullest server: parameters, optimizer states, sum and what arrives; bytes.

    Of what arrives one gradient of each worker is there at once at most.
    """
    share = most_held(workload, options, servers)
    gradients = sum(workload.tensors[index].nbytes for index in workload.ready_order)
    copies = workers + 2 if options.mode == "synchronous" else workers + 1
    return share * (copies * gradients + optimizer_state_bytes(workload, optimizer))


REQUESTS = (
    "A push and the pull that answers it are one request; messages of a worker to a server follow "
    "each other, those of different pairs share links max-min fairly."
)
QUEUES = (
    "A server updates one message at a time, in order of arrival, at the rate of its memory and "
    "cores; that its traffic in memory slows down others on its host is left out."
)
EFFICIENCY = (
    "How much late gradients slow learning down, where servers do not wait for all workers, "
    "(statistical efficiency) is not modelled: updates per second of two settings are not alike."
)

PARAMETER_SERVER = Strategy(
    "a parameter server",
    None,
    parameter_server_memory,
    loops=parameter_server_loops,
    assumptions=(REQUESTS, QUEUES, EFFICIENCY),
)
