"""Megatron-Core's gradient buffer, and the buckets that it is cut into.

Written after ``_ParamAndGradBuffer`` in megatron/core/distributed/param_and_grad_buffer.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from perfmodel.arrays import IntArray
from perfmodel.training.sharded.megatron.options import MegatronOptions
from perfmodel.workload.model import Workload

ALIGNED_START, ALIGNED_END, BUSBW_END = 64, 128, 2**16
"""Elements: parameters begin, and buckets end, at multiples of these with a distributed optimizer;
the last with `pad_buckets_for_high_nccl_busbw`."""


@dataclass(frozen=True, slots=True)
class BufferBucket:
    """Part of the buffer.

    `tensors`: in the order of the buffer; `starts`: their first elements, from that of the bucket.
    `elements`: padding included.
    """

    index: int
    tensors: tuple[int, ...]
    starts: tuple[int, ...]
    elements: int


def buffer_buckets(
    workload: Workload, options: MegatronOptions, ranks: int
) -> tuple[BufferBucket, ...]:
    """Lay out gradients from the last parameter to the first, and close buckets that are full."""
    pads = options.use_distributed_optimizer
    least = options.bucket_elements(ranks)
    divisor = math.lcm(options.shard_ranks(ranks), ALIGNED_END) if pads else 1
    if pads and options.pad_buckets_for_high_nccl_busbw:
        divisor = math.lcm(divisor, BUSBW_END)
    buckets: list[BufferBucket] = []
    members: list[tuple[int, int]] = []
    end = 0
    order = sorted(workload.ready_order, reverse=True)
    for tensor in order:
        start = _padded(end, ALIGNED_START) if pads else end
        members.append((tensor, start))
        end = start + workload.tensors[tensor].numel
        if (least is not None and end >= least) or tensor == order[-1]:
            tensors, starts = zip(*members, strict=True)
            buckets.append(BufferBucket(len(buckets), tensors, starts, _padded(end, divisor)))
            members, end = [], 0
    return tuple(buckets)


def _padded(elements: int, divisor: int) -> int:
    return -(-elements // divisor) * divisor


def owned_elements(
    workload: Workload, buckets: tuple[BufferBucket, ...], shard_ranks: int
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
