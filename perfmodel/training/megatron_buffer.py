"""Megatron-Core's gradient buffer, and the buckets that it is cut into.

Written after ``_ParamAndGradBuffer`` in megatron/core/distributed/param_and_grad_buffer.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from perfmodel.arrays import IntArray
from perfmodel.scenario.strategies.sharded import MegatronStrategy
from perfmodel.workload.model import Workload

ALIGNED_START, ALIGNED_END, BUSBW_END = 64, 128, 2**16
"""Elements: parameters begin, and buckets end, at multiples of these with a distributed optimizer;
the last with `pad_buckets_for_high_nccl_busbw`."""


@dataclass(frozen=True, slots=True)
class BufferBucket:
    """Part of the buffer.

    `tensors`: in the order of the buffer; `starts`: their first elements, from that of the bucket.
    `elements`: padding included; `narrow_elements`: of these, parameters that are gathered in fp8.
    `of_experts`: whether these are experts, whose gradients fewer ranks average.
    """

    index: int
    tensors: tuple[int, ...]
    starts: tuple[int, ...]
    elements: int
    narrow_elements: int = 0
    of_experts: bool = False


def buffer_buckets(
    workload: Workload,
    options: MegatronStrategy,
    ranks: int,
    narrow: frozenset[int] = frozenset(),
    expert_copies: int | None = None,
) -> tuple[BufferBucket, ...]:
    """Lay out gradients from the last parameter to the first, and close buckets that are full.

    `narrow`: parameters that are kept in fp8. They have a buffer of their own, and all buckets of
    the other one travel with its last (``partition_buckets``).
    `expert_copies`: ranks that hold the same experts, where ranks share experts: these have buffers
    of their own, after the others (``expert_parallel_buffers``).
    """
    trained = frozenset(workload.ready_order)
    if expert_copies is None:
        return _buffers(workload, options, ranks, trained, narrow)
    experts = frozenset(tensor for tensor in trained if workload.tensors[tensor].of_experts)
    dense = _buffers(workload, options, ranks, trained - experts, narrow - experts)
    shared = _buffers(workload, options, expert_copies, experts, narrow & experts)
    return dense + tuple(
        replace(bucket, index=len(dense) + bucket.index, of_experts=True) for bucket in shared
    )


def _buffers(
    workload: Workload,
    options: MegatronStrategy,
    ranks: int,
    trained: frozenset[int],
    narrow: frozenset[int],
) -> tuple[BufferBucket, ...]:
    """Buckets of some parameters, of which some are kept in fp8."""
    if not narrow:
        return _one_buffer(workload, options, ranks, trained)
    *first, last = _one_buffer(workload, options, ranks, narrow)
    joined = replace(last, narrow_elements=last.elements)
    for bucket in _one_buffer(workload, options, ranks, trained - narrow):
        end = joined.elements
        joined = replace(
            joined,
            tensors=joined.tensors + bucket.tensors,
            starts=(*joined.starts, *(end + start for start in bucket.starts)),
            elements=end + bucket.elements,
        )
    return (*(replace(each, narrow_elements=each.elements) for each in first), joined)


def _one_buffer(
    workload: Workload, options: MegatronStrategy, ranks: int, trained: Iterable[int]
) -> tuple[BufferBucket, ...]:
    """Buckets of the buffer of some parameters."""
    least, aligned, divisor = options.bucket_elements(ranks), 1, 1
    if options.use_distributed_optimizer:
        busbw = BUSBW_END if options.pad_buckets_for_high_nccl_busbw else 1
        aligned = ALIGNED_START
        divisor = math.lcm(options.shard_ranks(ranks), ALIGNED_END, busbw)
    buckets: list[BufferBucket] = []
    members: list[tuple[int, int]] = []
    end, order = 0, sorted(trained, reverse=True)
    for tensor in order:
        members.append((tensor, _padded(end, aligned)))
        end = members[-1][1] + workload.tensors[tensor].numel
        if (least is not None and end >= least) or tensor == order[-1]:
            tensors, starts = zip(*members, strict=True)
            buckets.append(BufferBucket(len(buckets), tensors, starts, _padded(end, divisor)))
            members, end = [], 0
    return tuple(buckets)


def _padded(elements: int, divisor: int) -> int:
    return -(-elements // divisor) * divisor


def owned_elements(
    workload: Workload, buckets: Iterable[BufferBucket], shard_ranks: int
) -> IntArray:
    """Elements of parameters, without padding, in each rank's parts of the buckets."""
    owned = np.zeros(shard_ranks, dtype=np.int64)
    for bucket in buckets:
        part = bucket.elements // shard_ranks
        for tensor, start in zip(bucket.tensors, bucket.starts, strict=True):
            stop = start + workload.tensors[tensor].numel
            first, last = start // part, (stop - 1) // part
            owned[first : last + 1] += part
            owned[first] -= start - first * part
            owned[last] -= (last + 1) * part - stop
    return owned
