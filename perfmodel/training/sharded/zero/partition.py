"""What each rank owns, and what is sent of each bucket of gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.workload.model import Workload

ALIGNED_ELEMENTS = 2
"""The flat parameters are padded to so many elements per rank (``nccl_start_alignment_factor`` in
deepspeed/runtime/zero/stage_1_and_2.py)."""


@dataclass(frozen=True, slots=True)
class FlatPartition:
    """Parameters one after the other, in equal parts.

    `starts`: first element of each tensor.
    `elements`: of all, padding included.
    """

    starts: dict[int, int]
    elements: int
    ranks: int

    @property
    def part_elements(self) -> int:
        """Elements that each rank owns."""
        return self.elements // self.ranks

    def owners(self, tensor: int, numel: int) -> Iterator[tuple[int, int]]:
        """Yield rank and number of elements of each piece of a tensor."""
        first, end = self.starts[tensor], self.starts[tensor] + numel
        while first < end:
            rank = first // self.part_elements
            stop = min(end, (rank + 1) * self.part_elements)
            yield rank, stop - first
            first = stop


def partition(workload: Workload, options: ZeroStrategy, ranks: int) -> FlatPartition:
    """Lay out the trained parameters as ``DeepSpeedZeroOptimizer`` does."""
    order = sorted(workload.ready_order)
    if options.round_robin_gradients:
        order = [tensor for rank in range(ranks) for tensor in order[rank::ranks]]
    sizes = [workload.tensors[tensor].numel for tensor in order]
    ends = list(accumulate(sizes, initial=0))
    unit = ALIGNED_ELEMENTS * ranks
    return FlatPartition(dict(zip(order, ends, strict=False)), -(-ends[-1] // unit) * unit, ranks)


def part_elements(workload: Workload, tensors: Sequence[int], ranks: int) -> int:
    """Elements of a rank's part of some parameters, each of them padded."""
    return sum(-(-workload.tensors[tensor].numel // ranks) for tensor in tensors)


def sub_groups(
    workload: Workload, options: ZeroStrategy, ranks: int
) -> tuple[tuple[int, ...], ...]:
    """Parameters that the optimizer updates at once (``_create_fp16_sub_groups``)."""
    groups: list[list[int]] = [[]]
    elements = 0
    for tensor in sorted(workload.ready_order):
        groups[-1].append(tensor)
        elements += part_elements(workload, (tensor,), ranks)
        if elements >= options.sub_group_size:
            groups.append([])
            elements = 0
    return tuple(tuple(group) for group in groups if group)


@dataclass(frozen=True, slots=True)
class Sending:
    """A collective of a bucket: its elements, and the rank that they go to; None: all ranks."""

    elements: int
    owner: int | None = None


@dataclass(frozen=True, slots=True)
class GradientBucket:
    """Gradients that are reduced together.

    `is_oversized`: one gradient that is larger than a bucket, and is not copied into one.
    """

    index: int
    tensors: tuple[int, ...]
    elements: int
    is_oversized: bool
    sendings: tuple[Sending, ...]


def gradient_buckets(
    workload: Workload, options: ZeroStrategy, layout: FlatPartition | None, order: Sequence[int]
) -> tuple[GradientBucket, ...]:
    """Fill buckets in some order of gradients: one is closed before it would hold too much.

    `layout`: None: buckets are sent whole.
    """
    members: list[list[int]] = []
    elements = 0
    for tensor in order:
        numel = workload.tensors[tensor].numel
        if not members or elements + numel > options.reduce_bucket_size:
            members.append([])
            elements = 0
        members[-1].append(tensor)
        elements += numel
    owned = layout if options.reduce_scatter and options.contiguous_gradients else None
    buckets = []
    for index, tensors in enumerate(members):
        elements = sum(workload.tensors[tensor].numel for tensor in tensors)
        sendings: tuple[Sending, ...] = (Sending(elements),)
        if owned is not None:
            sendings = tuple(_to_owners(workload, options, owned, tensors))
        oversized = elements > options.reduce_bucket_size
        buckets.append(GradientBucket(index, tuple(tensors), elements, oversized, sendings))
    return tuple(buckets)


def _to_owners(
    workload: Workload, options: ZeroStrategy, layout: FlatPartition, tensors: Sequence[int]
) -> Iterator[Sending]:
    """Send the pieces of a bucket, of one owner after the other, or of all owners at once.

    A collective is closed once it holds more than a bucket (``average_tensor`` and
    ``allreduce_and_scatter`` in stage_1_and_2.py).
    """
    pieces: dict[int | None, list[int]] = {}
    previous = -1
    for tensor in tensors:
        for rank, numel in layout.owners(tensor, workload.tensors[tensor].numel):
            sizes = pieces.setdefault(None if options.use_multi_rank_bucket_allreduce else rank, [])
            if rank == previous:
                sizes[-1] += numel
            else:
                sizes.append(numel)
            previous = rank
    for owner, sizes in pieces.items():
        elements = 0
        for number, numel in enumerate(sizes, 1):
            elements += numel
            if elements > options.reduce_bucket_size or (elements and number == len(sizes)):
                yield Sending(elements, owner)
                elements = 0
