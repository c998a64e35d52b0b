"""All buckets that one cap for all can make: few, though caps are many."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

from perfmodel.training.buckets import ddp_buckets
from perfmodel.training.options import DdpOptions
from perfmodel.tune.caps import Window, nice_mb, uniform_window
from perfmodel.tune.row import Groups, Row
from perfmodel.workload.model import Workload


@dataclass(frozen=True, slots=True)
class Uniform:
    """Buckets that one ``bucket_cap_mb`` makes, and all caps that make them.

    Parameters
    ----------
    groups : tuple of tuple of int
        Tensors of each bucket, in launch order.
    window : Window
    """

    groups: Groups
    window: Window

    @property
    def cap_mb(self) -> float:
        """A short number among the caps; MiB."""
        return nice_mb(self.window)


def uniform_partitions(workload: Workload, row: Row, options: DdpOptions) -> tuple[Uniform, ...]:
    """Return every partition into buckets that some ``bucket_cap_mb`` makes, by growing cap.

    Buckets stay the same while the cap grows up to the smallest bucket that it closes; the next
    cap to look at is one byte more. So all caps are covered, and none is tried in vain.

    Parameters
    ----------
    workload : Workload
    row : Row
        Of the same workload and options.
    options : DdpOptions
        Whatever it says of caps does not count.
    """
    find = _neighbours if row.single else _by_dtype
    found: list[Uniform] = []
    cap = 1
    while True:
        groups = find(workload, row, options, cap)
        window = uniform_window(row, groups, cap)
        if found and found[-1].groups == groups:
            window = Window(found.pop().window.above_bytes, window.most_bytes)
        found.append(Uniform(groups, window))
        if math.isinf(window.most_bytes):
            return tuple(found)
        cap = int(window.most_bytes) + 1


def with_cap(options: DdpOptions, cap: float) -> DdpOptions:
    """Return the options with one cap for all buckets; bytes."""
    return replace(
        options, bucket_cap_bytes=float(cap), first_bucket_bytes=None, caps_list_bytes=None
    )


def with_caps(options: DdpOptions, caps: tuple[float, ...]) -> DdpOptions:
    """Return the options with a cap per bucket; bytes."""
    return replace(options, bucket_cap_bytes=None, first_bucket_bytes=None, caps_list_bytes=caps)


def as_default(options: DdpOptions) -> DdpOptions:
    """Return the options with PyTorch's default caps."""
    return replace(options, bucket_cap_bytes=None, first_bucket_bytes=None, caps_list_bytes=None)


def groups_of(workload: Workload, options: DdpOptions) -> Groups:
    """Return DDP's buckets in launch order."""
    return tuple(bucket.tensors for bucket in ddp_buckets(workload, options))


def _by_dtype(workload: Workload, row: Row, options: DdpOptions, cap: int) -> Groups:
    del row
    return groups_of(workload, with_cap(options, cap))


def _neighbours(workload: Workload, row: Row, options: DdpOptions, cap: int) -> Groups:
    """As `_by_dtype` where all share buckets: from each begin to where the cap is reached."""
    del workload, options
    tensors = row.tensors[::-1] if row.flipped else row.tensors
    nbytes = row.nbytes[::-1] if row.flipped else row.nbytes
    sums = [0]
    for each in nbytes:
        sums.append(sums[-1] + each)
    groups, begin = [], 0
    while begin < len(tensors):
        end = min(bisect_left(sums, sums[begin] + cap), len(tensors))
        groups.append(tensors[begin:end])
        begin = end
    return tuple(groups[::-1]) if row.flipped else tuple(groups)
