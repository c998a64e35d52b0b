"""Hooks that gather what each rank compressed: largest elements, signs, 8 bits.

Each rank receives what all others send, and adds it up itself.
"""

from __future__ import annotations

import math

from perfmodel.scenario.strategies.ddp import (
    OneBitHook,
    QuantizationHook,
    TopKHook,
)
from perfmodel.training.ddp.hooks.bucket_reduction import BucketReduction
from perfmodel.workload.model import ITEM_BYTES

SECTOR_BYTES = 32
"""Memory moves at least so much for an element that stands alone (CUDA C++ Programming Guide)."""

SELECT_PASSES = 6
"""Reads of all elements by ``torch.topk`` of 32-bit values: a radix select of 8 bits at a time,
one to count and one to gather (torch/csrc, ``TensorTopK.cu``)."""
SELECT_KERNELS = 14
"""Kernels of it: three per digit, and two to gather."""
SORT_PASSES = 4
"""Passes of a radix sort of the selected, 8 bits at a time."""

OBSERVER_KERNELS = 24
"""Small kernels of an observer and of scale and zero point from its extremes
(``torch/ao/quantization/observer.py``)."""


def largest_elements(hook: TopKHook, numel: int) -> int:
    """Elements of a bucket that are sent."""
    return max(1, math.ceil(hook.ratio * numel))


def reduce_largest(reduction: BucketReduction, hook: TopKHook) -> int:
    """Gather the largest elements and their places, and add them up; returns the last task."""
    dtype, ranks = reduction.bucket.dtype, reduction.ranks
    item, index = ITEM_BYTES[dtype], ITEM_BYTES[hook.index_dtype]
    nbytes, chosen = reduction.bucket.nbytes, largest_elements(hook, reduction.numel)
    # magnitudes, selection and sort; then the elements themselves, places in their dtype
    moved = 2 * nbytes + SELECT_PASSES * nbytes + SORT_PASSES * 2 * chosen * (item + 8)
    moved += chosen * (SECTOR_BYTES + item + 8 + index)
    kernels = 1 + SELECT_KERNELS + SORT_PASSES + 2
    if hook.use_error_feedback:  # adds the error; keeps what is not sent
        moved += 3 * nbytes + 2 * nbytes + chosen * SECTOR_BYTES
        kernels += 3
    ready = reduction.compress(moved, kernels)
    values = reduction.send("values of", "all_gather", ranks * chosen * item, dtype, after=(ready,))
    places = reduction.send(
        "places of", "all_gather", ranks * chosen * index, hook.index_dtype, after=(values,)
    )
    scattered = ranks * chosen * (index + item + 2 * SECTOR_BYTES)
    return reduction.call_back(
        "add up", nbytes + scattered + 2 * nbytes, 2 + ranks, after=(values, places)
    )


def packed_bytes(numel: int) -> int:
    """Bytes of so many signs."""
    return -(-numel // 8)


def reduce_signs(reduction: BucketReduction, hook: OneBitHook) -> int:
    """Gather signs and a scale, and add them up; returns the last task.

    All signs are read and added in one kernel, which is the fewest bytes.
    """
    nbytes, ranks = reduction.bucket.nbytes, reduction.ranks
    packed = packed_bytes(reduction.numel)
    moved, kernels = 2 * nbytes + packed, 2  # mean of magnitudes; signs into bits
    if hook.use_error_feedback:
        moved, kernels = moved + 3 * nbytes + 2 * nbytes, kernels + 2
    ready = reduction.compress(moved, kernels)
    scales = reduction.send("scales of", "all_gather", ranks * 4, "fp32", after=(ready,))
    signs = reduction.send("signs of", "all_gather", ranks * packed, "uint8", after=(scales,))
    return reduction.call_back("add up", ranks * packed + nbytes, 1, after=(scales, signs))


def quantised_channels(hook: QuantizationHook, numel: int) -> tuple[int, int]:
    """Scales of a bucket, and its elements with padding: a whole channel where none is needed."""
    if hook.kind == "quantization_pertensor":
        return 1, numel
    size = hook.channel_elements
    padded = numel + size - numel % size
    return padded // size, padded


def reduce_quantised(reduction: BucketReduction, hook: QuantizationHook) -> int:
    """Gather scales, then 8-bit elements, and add them up; returns the last task.

    Every operation is a pass of its own, per rank; with channels, operations of each channel are
    (``torch/distributed/algorithms/ddp_comm_hooks/quantization_hooks.py``). Python reads the
    scale, for which it waits.
    """
    ranks = reduction.ranks
    channels, padded = quantised_channels(hook, reduction.numel)
    per_channel = hook.kind == "quantization_perchannel"
    pad = 2 * 4 * padded if per_channel else 0
    ready = reduction.compress(reduction.bucket.nbytes + pad, OBSERVER_KERNELS + per_channel)
    reduction.hold_host((ready,))
    scales = reduction.send(
        "scales of", "all_gather", ranks * 2 * channels * 4, "fp32", after=(ready,)
    )
    # division, rounding, zero point, clamp: 4 bytes read and written; then to 8 bits
    quantised = reduction.call_back(
        "quantise",
        (4 * 8 + 5) * padded + ranks * padded,
        (4 * channels + 3 if per_channel else 5) + ranks,
        after=(scales,),
    )
    data = reduction.send("data of", "all_gather", ranks * padded, "uint8", after=(quantised,))
    # out of the gathered whole; to 32 bits, zero point, scale, sum; then the mean
    each = 2 + 5 + 8 + 8 + 12
    kernels = 1 + (3 * channels + 3 if per_channel else 4)
    return reduction.call_back(
        "add up",
        4 * padded + ranks * each * padded + 8 * padded,
        2 + ranks * kernels,
        after=(data,),
    )
