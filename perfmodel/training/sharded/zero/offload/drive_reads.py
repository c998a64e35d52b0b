"""Buffers in host memory that parts of parameters are read into from drives, ahead of their use.

Written after ``partitioned_param_swapper.py`` and ``__prefetch_nvme_param_partitions`` of DeepSpeed
0.19.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from perfmodel.errors import PerfmodelError


@dataclass(frozen=True, slots=True)
class DriveRead:
    """Parts that are read; nothing waits for them yet."""

    tensors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DriveWait:
    """The host waits until all reads are done."""


class NoBufferError(PerfmodelError):
    """All buffers hold parts, where DeepSpeed stops ("Not enough buffers 0 for swapping 1")."""


@dataclass(slots=True)
class DriveBuffers:
    """Where parts are that lie on drives.

    `tensors`: whose parts lie there. `free`: buffers that hold none. `held`: parts in a buffer,
    which are there, or on their way.
    """

    tensors: frozenset[int]
    free: int
    held: dict[int, Literal["there", "on its way"]] = field(default_factory=dict)

    def is_away(self, tensor: int) -> bool:
        """Whether a part is on a drive alone."""
        return tensor in self.tensors and tensor not in self.held

    def fetch(self, tensors: Sequence[int]) -> list[DriveRead | DriveWait]:
        """Read the parts of a gather that are away, and wait for all reads if any are missing."""
        away = [each for each in tensors if self.is_away(each)]
        waits = bool(away) or any(self.held.get(each) == "on its way" for each in tensors)
        reads: list[DriveRead | DriveWait] = [self.read(away)] if away else []
        if waits:
            self.held.update(dict.fromkeys(self.held, "there"))
            reads.append(DriveWait())
        return reads

    def read(self, tensors: Sequence[int]) -> DriveRead:
        """Begin to read parts. Raises `NoBufferError`: fewer buffers than parts."""
        if len(tensors) > self.free:
            raise NoBufferError
        self.free -= len(tensors)
        self.held.update(dict.fromkeys(tensors, "on its way"))
        return DriveRead(tuple(tensors))

    def ahead(
        self, queue: Iterable[tuple[int, int]], numel: Callable[[int], int], gathered: int
    ) -> list[DriveRead]:
        """Read what the queue has next: up to twice the elements that are being gathered."""
        chosen: list[int] = []
        considered = 0
        for tensor, _ in queue:
            if considered > 2 * gathered or len(chosen) >= self.free:
                break
            if self.is_away(tensor) and tensor not in chosen:
                chosen.append(tensor)
            considered += numel(tensor)
        return [self.read(chosen)] if chosen else []

    def release(self, tensor: int) -> None:
        """Give the buffer of a part back, whose parameter is freed."""
        if self.held.pop(tensor, None):
            self.free += 1
