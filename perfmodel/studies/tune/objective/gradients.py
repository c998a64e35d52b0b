"""The gradients of a model in the order in which DDP reduces them, and contiguous groups."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from perfmodel.training.ddp.buckets import ddp_buckets
from perfmodel.training.ddp.options import DdpOptions
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


def order_gradients(workload: Workload, options: DdpOptions) -> GradientOrder:
    """Return the gradients of a workload in the order in which DDP reduces them.

    `options`: whether PyTorch rebuilds its buckets in the order in which gradients get ready.
    """
    single = DdpOptions(
        bucket_cap_bytes=1.0,
        find_unused_parameters=options.find_unused_parameters,
        static_graph=options.static_graph,
    )
    buckets = ddp_buckets(workload, single)
    return GradientOrder(
        tensors=tuple(bucket.tensors[0] for bucket in buckets),
        nbytes=tuple(bucket.nbytes for bucket in buckets),
        dtypes=tuple("fp32" if b.dtype == "tf32" else b.dtype for b in buckets),
        reverse_filled=not options.rebuilds,
    )
