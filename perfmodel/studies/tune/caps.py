"""Caps of PyTorch's buckets: lists that make given buckets, and partitions that one cap makes.

PyTorch closes a bucket as soon as its bytes reach the cap. So the j-th cap of a list makes a bucket
of s bytes, b of them the last tensor's, if it is above s - b and not above s; the last bucket
closes with any cap above its bytes without its last tensor. One cap for all makes few partitions,
each for a range of caps.
"""

from __future__ import annotations

import functools
import itertools
import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from perfmodel.memo import grouped
from perfmodel.training.ddp.buckets import ddp_buckets
from perfmodel.training.ddp.options import MIB, DdpOptions, cap_bytes
from perfmodel.workload.model import Workload

Groups = tuple[tuple[int, ...], ...]
"""Buckets in launch order, each as tensor indices (registration order)."""
Cuts = tuple[int, ...]
"""Ends of contiguous groups: positions after their last gradient, the last one included."""


@dataclass(frozen=True)
class GradientOrder:
    """Trained tensors in the order in which their buckets are launched.

    `tensors`: indices in registration order.
    `nbytes`: sizes of their gradients.
    `dtypes`: what they are stored as.
    `reverse_filled`: whether buckets are filled from the end of the order: where PyTorch never
        rebuilds them, it fills them in registration order and launches the last one first.
    """

    tensors: tuple[int, ...]
    nbytes: tuple[int, ...]
    dtypes: tuple[str, ...]
    reverse_filled: bool

    def __len__(self) -> int:
        return len(self.tensors)

    @property
    def single_dtype(self) -> bool:
        """Whether all tensors share buckets, which then are contiguous groups."""
        return len(set(self.dtypes)) == 1

    @cached_property
    def sums(self) -> tuple[int, ...]:
        """Bytes before each position, and of all."""
        return (0, *itertools.accumulate(self.nbytes))

    @property
    def group_sizes(self) -> set[int]:
        """Bytes of all contiguous groups."""
        return {b - a for i, a in enumerate(self.sums) for b in self.sums[i + 1 :]}

    @cached_property
    def positions(self) -> dict[int, int]:
        """Position of each tensor."""
        return {tensor: position for position, tensor in enumerate(self.tensors)}

    def groups(self, cuts: Cuts) -> Groups:
        """Return contiguous groups as tensors, in the order in which they fill their buckets."""
        step = -1 if self.reverse_filled else 1
        return tuple(self.tensors[a:b][::step] for a, b in itertools.pairwise((0, *cuts)))

    def cuts(self, groups: Groups) -> Cuts:
        """Return the ends of contiguous groups."""
        return tuple(itertools.accumulate(len(group) for group in groups))

    def size(self, group: Sequence[int]) -> int:
        """Bytes of a group of tensors."""
        return sum(self.nbytes[self.positions[tensor]] for tensor in group)

    def window(self, group: Sequence[int]) -> Window:
        """Caps that close a bucket with a group's last tensor."""
        nbytes = self.size(group)
        return Window(nbytes - self.nbytes[self.positions[group[-1]]], nbytes)


def order_gradients(workload: Workload, options: DdpOptions) -> GradientOrder:
    """Return the gradients of a workload in the order in which DDP reduces them.

    `options`: whether PyTorch rebuilds its buckets in the order in which gradients get ready.
    """
    buckets = ddp_buckets(
        workload,
        DdpOptions(
            bucket_cap=1.0,
            find_unused_parameters=options.find_unused_parameters,
            static_graph=options.static_graph,
        ),
    )
    return GradientOrder(
        tensors=tuple(bucket.tensors[0] for bucket in buckets),
        nbytes=tuple(bucket.nbytes for bucket in buckets),
        dtypes=tuple("fp32" if b.dtype == "tf32" else b.dtype for b in buckets),
        reverse_filled=not options.rebuilds,
    )


# ---------------------------------------------------------------- caps of PyTorch's buckets

Caps = tuple[float, ...]
"""``bucket_cap_mb_list``; MiB."""

MOST_CAP_DIGITS = 9


@dataclass(frozen=True, slots=True)
class Window:
    """Range of equivalent caps: above `above_bytes`, at most `most_bytes`; whole bytes."""

    above_bytes: int
    most_bytes: float

    @property
    def low_mb(self) -> float:
        """Least ``bucket_cap_mb`` in it (PyTorch cuts to whole bytes); MiB."""
        return (self.above_bytes + 1) / MIB

    @property
    def high_mb(self) -> float:
        """First ``bucket_cap_mb`` beyond it; MiB."""
        return (self.most_bytes + 1) / MIB

    @property
    def exists(self) -> bool:
        """Whether any cap is in it."""
        return self.above_bytes < self.most_bytes

    def intersect(self, other: Window) -> Window:
        """Return the caps in this window and in another."""
        return Window(
            max(self.above_bytes, other.above_bytes), min(self.most_bytes, other.most_bytes)
        )

    def contains(self, cap_mb: float) -> bool:
        """Whether PyTorch makes the buckets of this window with a ``bucket_cap_mb``; MiB."""
        return self.above_bytes < cap_bytes(cap_mb) <= self.most_bytes


@dataclass(frozen=True, slots=True)
class UniformPartition:
    """Buckets that one ``bucket_cap_mb`` makes, and all caps that make them.

    `groups`: tensors of each bucket, in launch order.
    """

    groups: Groups
    window: Window

    @property
    def cap_mb(self) -> float:
        """A short number among the caps; MiB."""
        return round_cap_mb(self.window)


def cap_room(low_mb: float, high_mb: float) -> float:
    """Ratio of the first cap beyond a window to the least cap in it, at most two."""
    return min(high_mb, 2 * low_mb) / low_mb


def round_cap_mb(window: Window) -> float:
    """Return a number of few digits in a window, away from its ends if that costs no digit.

    Examples
    --------
    >>> round_cap_mb(Window(4 * MIB, 6.5 * MIB)), round_cap_mb(Window(9 * MIB, math.inf))
    (5.0, 10.0)
    """
    low, high = window.low_mb, window.high_mb
    if math.isinf(high):
        return float(math.ceil(low))
    middle = (low + high) / 2
    for digits in range(MOST_CAP_DIGITS):
        unit = 10.0**-digits
        near = (round(middle, digits), math.ceil(low / unit) * unit, math.floor(high / unit) * unit)
        for cap in (round(candidate, digits) for candidate in near):
            if cap > 0 and window.contains(cap):
                return cap
    return max(1, window.above_bytes + 1) / MIB  # a binary fraction: exact


def integer_cap_mb(window: Window) -> int | None:
    """Return a whole number of MiB in a window, if there is one."""
    number = max(1, window.above_bytes // MIB + 1)
    return number if window.contains(number) else None


def find_windows(gradients: GradientOrder, groups: Groups) -> tuple[Window, ...] | None:
    """Return the windows, bucket by bucket as they fill, that make given groups; None if none do.

    The caps of a list are those of the first, second ... bucket of *each* dtype.
    """
    by_dtype = grouped(
        (gradients.dtypes[gradients.positions[group[0]]], gradients.window(group))
        for group in (groups[::-1] if gradients.reverse_filled else groups)
    )
    for own in by_dtype.values():  # any larger cap makes the last bucket, too
        own[-1] = Window(own[-1].above_bytes, math.inf)
    windows = tuple(
        functools.reduce(Window.intersect, column)
        for column in itertools.zip_longest(*by_dtype.values(), fillvalue=Window(0, math.inf))
    )
    return windows if all(window.exists for window in windows) else None


def merge_last_windows(windows: Sequence[Window]) -> tuple[Window, ...]:
    """Merge the last windows, as PyTorch repeats the last cap."""
    merged = list(windows)
    while len(merged) > 1 and (common := merged[-2].intersect(merged[-1])).exists:
        merged[-2:] = [common]
    return tuple(merged)


def caps_mb(windows: Sequence[Window]) -> tuple[float, ...]:
    """Return ``bucket_cap_mb_list``, numbers of few digits."""
    return tuple(round_cap_mb(window) for window in merge_last_windows(windows))


def integer_caps_mb(windows: Sequence[Window]) -> tuple[int, ...] | None:
    """Return ``bucket_cap_mb_list`` of whole numbers; None where a window has none."""
    numbers = [integer_cap_mb(window) for window in merge_last_windows(windows)]
    return None if None in numbers else tuple(number for number in numbers if number)


def as_bytes(caps: Sequence[float]) -> tuple[float, ...]:
    """Return the bytes that PyTorch makes of a list of caps in MiB."""
    return tuple(float(cap_bytes(cap)) for cap in caps)


def format_caps(caps: Sequence[float]) -> str:
    """Format a list of caps as Python source, whole numbers without a point.

    Examples
    --------
    >>> format_caps((1.0, 2.5))
    '[1, 2.5]'
    """
    return f"[{', '.join(number(cap) for cap in caps)}]"


def number(value: float) -> str:
    """Format a cap in MiB, a whole number without a point."""
    return str(int(value)) if value == int(value) else repr(float(value))


def list_uniform_partitions(
    workload: Workload, gradients: GradientOrder, options: DdpOptions
) -> tuple[UniformPartition, ...]:
    """Return every partition into buckets that some ``bucket_cap_mb`` makes, by growing cap.

    Buckets stay the same while the cap grows up to the smallest bucket that it closes; the next
    cap is one byte more. So all caps are covered by as few assignments as there are partitions.

    `gradients`: of the same workload and options.
    `options`: their caps are ignored.
    """
    partitions: list[UniformPartition] = []
    cap = 1
    while True:
        groups = (
            _assign_contiguous(gradients, cap)
            if gradients.single_dtype
            else assign_buckets(workload, with_caps(options, for_all=float(cap)))
        )
        windows = [gradients.window(group) for group in groups]
        ends = [each.above_bytes if each.most_bytes >= cap else each.most_bytes for each in windows]
        window = Window(
            int(max(ends, default=0)),
            min((w.most_bytes for w in windows if w.most_bytes >= cap), default=math.inf),
        )
        if partitions and partitions[-1].groups == groups:
            window = Window(partitions.pop().window.above_bytes, window.most_bytes)
        partitions.append(UniformPartition(groups, window))
        if math.isinf(window.most_bytes):
            return tuple(partitions)
        cap = int(window.most_bytes) + 1


def with_caps(
    options: DdpOptions, caps: tuple[float, ...] | None = None, *, for_all: float | None = None
) -> DdpOptions:
    """Return the options with a cap per bucket, or one for all; bytes. Neither: PyTorch's own."""
    return options.model_copy(
        update={"bucket_cap": for_all, "first_bucket": None, "bucket_caps": caps}
    )


def assign_buckets(workload: Workload, options: DdpOptions) -> Groups:
    """Return DDP's buckets in launch order."""
    return tuple(bucket.tensors for bucket in ddp_buckets(workload, options))


def _assign_contiguous(gradients: GradientOrder, cap: int) -> Groups:
    """As `assign_buckets` where all share buckets: each goes on until it reaches the cap."""
    step = -1 if gradients.reverse_filled else 1
    tensors, sums = gradients.tensors[::step], [0, *accumulate(gradients.nbytes[::step])]
    groups, begin = [], 0
    while begin < len(tensors):
        end = min(bisect_left(sums, sums[begin] + cap), len(tensors))
        groups.append(tensors[begin:end])
        begin = end
    return tuple(groups[::step])
