"""Cycles of Horovod's background thread: what each fuses and reduces.

Rules of horovod 0.28.1: ``RunLoopOnce`` (operations.cc) starts a cycle a cycle time after the last
one, or when that has ended; ``ComputeResponseList`` and ``FuseResponses`` (controller.cc) take what
has been handed over on all ranks, in the order in which it was last used, and fill buffers.

Gradients are handed over when backward has issued or computed them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from perfmodel.arrays import round_up
from perfmodel.scenario.strategies.strategy import HorovodStrategy
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES

WORD_BITS, WORD_BYTES = 64, 8


def buffer_bytes(threshold_bytes: float, ranks_per_host: int) -> int:
    """Round a fusion threshold up, so that ranks of a host can split the buffer.

    Examples
    --------
    >>> buffer_bytes(1000, 1), buffer_bytes(1000, 4), buffer_bytes(0, 8)
    (1024, 2048, 0)
    """
    unit = fixed_in("horovod", "largest_item_bytes") * fixed_in("horovod", "atomic_elements")
    return round_up(int(threshold_bytes), ranks_per_host * unit)


def bit_vector_bytes(tensors: int) -> int:
    """Bytes of the bit vector that says which cached tensors a rank has handed over."""
    return -(-(tensors + fixed_in("horovod", "status_bits")) // WORD_BITS) * WORD_BYTES


def fuse_tensors(
    nbytes: Sequence[int], dtypes: Sequence[str], handed: Sequence[int], limit: int
) -> list[tuple[int, ...]]:
    """Fuse what one cycle has: each buffer takes tensors in turn while they fit.

    A tensor of another dtype is skipped, and looked behind, while it and what is in the buffer
    would fit together; the first tensor for which they do not closes the buffer.

    Parameters
    ----------
    nbytes, dtypes : sequence
        Of all tensors, padded as in the buffer.
    handed : sequence of int
        Tensors of the cycle, in their order.
    limit : int
        Bytes of the buffer.
    """
    waiting, fused = list(handed), []
    while waiting:
        first, rest = waiting[0], iter(waiting[1:])
        members, size, skipped_bytes = [first], nbytes[first], 0
        skipped: list[int] = []
        for following in rest:
            if size + nbytes[following] <= limit and dtypes[following] == dtypes[first]:
                members.append(following)
                size += nbytes[following]
                continue
            skipped.append(following)
            skipped_bytes += nbytes[following]
            if size + skipped_bytes > limit:
                break
        waiting = [*skipped, *rest]
        fused.append(tuple(members))
    return fused


@dataclass(frozen=True, slots=True)
class Cycle:
    """A cycle that reduces something.

    `last`: position of the last tensor that it takes, in the order in which they are handed over.
    `agreed_s`: when the ranks have agreed on it.
    `waits_s`: how long that is after the last tensor was handed over and the cycle before had
        ended its work.
    `fused`: tensors of each reduction, in the order of reductions.
    """

    last: int
    agreed_s: float
    waits_s: float
    fused: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class FusionRules:
    """What the cycles of a job depend on, beside when gradients are handed over.

    `nbytes`, `dtypes`: of the tensors in the order in which they are handed over, as they travel.
    `padding`: of tensors in the buffer; bytes.
    `limit`: bytes of the buffer.
    `cycle_s`, `agreement_s`: least time of a cycle, and of agreeing on what is ready; seconds.
    `reduction_s`: time of the reduction of some tensors where the thread waits for it. None: it
        starts them and goes on.
    """

    nbytes: tuple[int, ...]
    dtypes: tuple[str, ...]
    padding: int
    limit: int
    cycle_s: float
    agreement_s: float
    reduction_s: Callable[[tuple[int, ...]], float] | None = None

    def fused_bytes(self, members: Sequence[int]) -> int:
        """Bytes that one reduction carries: a tensor alone needs no buffer, and no padding."""
        if len(members) == 1:
            return self.nbytes[members[0]]
        return sum(round_up(self.nbytes[member], self.padding) for member in members)


SETTLING_ITERATIONS = 8
"""Iterations after which the order of cached tensors is taken as it is."""


def run_cycles(
    rules: FusionRules, handed_s: Sequence[float], *, steady: bool = True
) -> tuple[Cycle, ...]:
    """Run the background thread through one backward.

    Cycles go on all the time, whatever the step does; here one has begun half a period before
    backward, the mean of all that can be. Within a cycle new tensors keep the order in which they
    were handed over, and cached ones that in which they were last used (``response_cache.cc``).

    Parameters
    ----------
    rules : FusionRules
    handed_s : sequence of float
        When each tensor is handed over, since the start of backward; rising; seconds.
    steady : bool
        Whether tensors are cached, and their order has settled.
    """
    order = list(range(len(handed_s)))
    cycles = _run_cycles(rules, handed_s, order)
    for _ in range(SETTLING_ITERATIONS if steady else 0):
        used = [member for cycle in cycles for members in cycle.fused for member in members]
        if used == order:
            break
        order, cycles = used, _run_cycles(rules, handed_s, used)
    return cycles


def _run_cycles(
    rules: FusionRules, handed_s: Sequence[float], order: Sequence[int]
) -> tuple[Cycle, ...]:
    sizes = [round_up(nbytes, rules.padding) for nbytes in rules.nbytes]
    rank = {member: place for place, member in enumerate(order)}
    period_s = max(rules.cycle_s, rules.agreement_s)  # from one idle cycle to the next
    cycles: list[Cycle] = []
    begin, tick_s, ended_s = 0, period_s / 2, 0.0
    while begin < len(handed_s):
        # the first start of a cycle at which something has been handed over
        idle = max(0.0, -(-(handed_s[begin] - tick_s) // period_s)) if period_s else 0.0
        tick_s = max(handed_s[begin], tick_s + idle * period_s)
        end = bisect_right(handed_s, tick_s, lo=begin)
        fused = fuse_tensors(
            sizes, rules.dtypes, sorted(range(begin, end), key=rank.__getitem__), rules.limit
        )
        agreed_s = tick_s + rules.agreement_s
        cycles.append(
            Cycle(end - 1, agreed_s, agreed_s - max(handed_s[end - 1], ended_s), tuple(fused))
        )
        ended_s = agreed_s
        if rules.reduction_s is not None:
            ended_s += sum(map(rules.reduction_s, fused))
        begin, tick_s = end, max(tick_s + rules.cycle_s, ended_s)
    return tuple(cycles)


def fusion_rules(request: StepRequest, options: HorovodStrategy) -> FusionRules:
    """Sizes and times that the cycles of a job depend on."""
    tensors = [request.workload.tensors[index] for index in request.workload.ready_order]
    dtypes = tuple("fp16" if is_cast(options, t.dtype) else t.dtype for t in tensors)
    rules = FusionRules(
        nbytes=tuple(t.numel * ITEM_BYTES[d] for t, d in zip(tensors, dtypes, strict=True)),
        dtypes=dtypes,
        padding=1 if request.blocking_wait else fixed_in("horovod", "batch_padding_bytes"),
        limit=buffer_bytes(options.fusion_threshold, request.ranks_per_host),
        cycle_s=options.cycle_time,
        agreement_s=agreement_s(request, options),
    )
    if not request.blocking_wait:
        return rules

    def reduction_s(members: tuple[int, ...]) -> float:
        size = rules.fused_bytes(members)
        return (2 * copy_s(request, size, len(members))) + request.collective_s(
            "all_reduce", size, None
        )

    return replace(rules, reduction_s=reduction_s)


def is_cast(options: HorovodStrategy, dtype: str) -> bool:
    """Whether gradients of a dtype are converted to 16 bits before they travel."""
    return options.compression == "fp16" and ITEM_BYTES[dtype] > ITEM_BYTES["fp16"]


def agreement_s(request: StepRequest, options: HorovodStrategy) -> float:
    """Time in which the threads of all ranks agree on what is ready, by the controller's library.

    With all tensors in the cache that is an all-reduce of a bit for each; else rank 0 also gathers
    sizes and requests, and broadcasts sizes and answers (``ComputeResponseList``).
    """
    tensors, library = len(request.workload.ready_order), options.controller
    bits = bit_vector_bytes(tensors) if options.cache_capacity else 0
    time_s = request.collective_s("all_reduce", bits, library) if bits else 0.0
    if request.iteration == "steady" and is_cached(request, options):
        return time_s
    for nbytes in (ITEM_BYTES["int32"], tensors * fixed_in("horovod", "request_bytes")):
        time_s += request.collective_s("gather", nbytes * request.ranks, library)
        time_s += request.collective_s("broadcast", nbytes, library)
    return time_s


def is_cached(request: StepRequest, options: HorovodStrategy) -> bool:
    """Whether the answers of all tensors stay in the cache, least recently used out first."""
    return len(request.workload.ready_order) <= options.cache_capacity


def handed_over_s(request: StepRequest, options: HorovodStrategy) -> tuple[float, ...]:
    """When each gradient is handed over, since the last backward began; seconds.

    That is when the host has issued its kernels; where issuing takes no time, or the thread copies
    gradients to the host, when the device has computed it.
    """
    times, tensors = request.times, request.workload.tensors
    adds = options.accumulate > 1
    handed: list[float] = []
    now = 0.0
    for index in reversed(range(len(request.workload.layers))):
        members = request.workload.layers[index].tensors
        if follows_device(request):
            now += times.backward_s[index]
            if adds:
                nbytes = sum(tensors[member].nbytes for member in members)
                now += 1.5 * nbytes / times.copy_Bps + len(members) * request.kernel_s
            now += casts_s(request, options, members)
        else:
            now += (
                times.layer_launches * times.backward_kernels[index]
                + (len(members) if adds else 0)
                + sum(is_cast(options, tensors[member].dtype) for member in members)
            ) * times.launch_s
        handed += [float(now)] * len(members)
    return tuple(handed)


def follows_device(request: StepRequest) -> bool:
    """Whether gradients are handed over when the device has computed them."""
    return request.times.launch_s <= 0 or request.blocking_wait


def casts_s(request: StepRequest, options: HorovodStrategy, members: Iterable[int]) -> float:
    """Time to convert gradients to 16 bits, a kernel each."""
    tensors = (request.workload.tensors[member] for member in members)
    cast = [tensor for tensor in tensors if is_cast(options, tensor.dtype)]
    moved = sum((t.nbytes + t.numel * ITEM_BYTES["fp16"]) / 2 for t in cast)
    return moved / request.times.copy_Bps + len(cast) * request.kernel_s


def copy_s(request: StepRequest, nbytes: int, count: int) -> float:
    """Time to copy tensors to or from the buffer; none for a tensor alone."""
    if count == 1:
        return 0.0
    kernels = (
        count if request.blocking_wait else -(-count // fixed_in("horovod", "tensors_per_copy"))
    )
    return nbytes / request.times.copy_Bps + kernels * request.kernel_s
