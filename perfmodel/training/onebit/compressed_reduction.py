"""The compressed all-reduce: signs in one bit each and a scale, out and back.

As ``NcclBackend.compressed_allreduce`` of DeepSpeed 0.14.5 (deepspeed/runtime/comm/nccl.py): each
rank adds its error, takes signs and a scale, and keeps what is lost; an all-to-all brings each rank
the signs of its part from all, which it averages, adds its own error to and takes signs of again;
an all-gather brings all parts to all. Every operation is a kernel of its own, on fp32, and the host
waits for the device after signs are packed (``compress_by_chunk`` in
deepspeed/runtime/compression/cupy.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from perfmodel.training.ddp.hooks.bucket_reduction import GROUP
from perfmodel.training.plan.builder import TaskList
from perfmodel.training.plan.step_plan import Op

SCALE_BYTES = 4
"""An fp32: the norm over the square root of the number of elements."""
BITS = 8
"""Signs in a byte."""

PADDING = 8.0
"""``cat`` with zeros: bytes per element."""
ERROR_AND_SIGNS = 12 + 4 + (8 + 8 + 5 + 5 + 8 + 8 + 8 + 12) + (8 + 8 + 5) + 1 + 1 / 8
"""Bytes per element to compress: the error is added, a norm; sign, sum, bool, float, difference,
product, scale and what is lost; sign, sum and bool once more; packed."""
ERROR_AND_SIGNS_KERNELS = 14
UNPACKED = 1 / 8 + 1 + 5 + 8 + 8 + 8
"""Bytes per element to make numbers of signs: unpacked, float, difference, product, scale."""
UNPACKED_KERNELS = 5
SUM, COPY = 4.0, 8.0
"""Bytes per element read by the sum over ranks, and read and written by the last copy."""
STACKED = 2 / 8
"""Bytes per element of signs that are copied into one tensor."""


def padded_elements(elements: int, ranks: int) -> int:
    """Elements of a buffer whose parts are whole bytes on each rank (``corrected_tensor_size``).

    Examples
    --------
    >>> padded_elements(1000, 4)
    1024
    """
    unit = ranks * (ranks * BITS // math.gcd(ranks, BITS))
    return -(-elements // unit) * unit


@dataclass(frozen=True, slots=True)
class CompressedReduction:
    """A buffer of fp32 elements that all ranks average with one bit per element."""

    tasks: TaskList
    rank_class: str
    ranks: int
    elements: int
    name: str
    marks: dict[str, Any]

    def add(self, after: Iterable[int]) -> int:
        """Add its kernels and its four collectives; returns the last task."""
        padded = padded_elements(self.elements, self.ranks)
        part = padded // self.ranks
        packed, scales = padded // BITS, SCALE_BYTES * self.ranks
        moved = (ERROR_AND_SIGNS + STACKED) * padded
        pads = padded != self.elements
        compressed = self._compute(
            "compress", moved + pads * PADDING * padded, ERROR_AND_SIGNS_KERNELS + 1 + pads, after
        )
        waited = self._wait("compressed", compressed)
        sent = self._send("signs", "all_to_all", packed, "uint8", waited)
        sent = self._send("scales", "all_gather", scales, "fp32", sent)
        moved = (UNPACKED + SUM) * padded + ERROR_AND_SIGNS * part
        averaged = self._compute(
            "average", moved, UNPACKED_KERNELS + 1 + ERROR_AND_SIGNS_KERNELS, (sent,)
        )
        waited = self._wait("average", averaged)
        sent = self._send("signs of parts", "all_gather", packed, "uint8", waited)
        sent = self._send("scales of parts", "all_gather", scales, "fp32", sent)
        moved = (STACKED + UNPACKED + COPY) * padded
        return self._compute("decompress", moved, UNPACKED_KERNELS + 2, (sent,))

    def _compute(self, verb: str, moved: float, kernels: int, after: Iterable[int]) -> int:
        return add_passes(
            self.tasks, f"{verb} {self.name}", moved, kernels, self.rank_class, after, self.marks
        )

    def _wait(self, buffer: str, after: int) -> int:
        name = f"wait for {buffer} {self.name}"
        return self.tasks.wait(name, self.rank_class, after=(after,), **self.marks)

    def _send(self, sent: str, op: Op, nbytes: int, dtype: str, after: int) -> int:
        key = f"{sent} of {self.name}"
        return self.tasks.collective(
            f"{op.replace('_', '-')} {key}",
            op,
            nbytes,
            self.rank_class,
            communicator=GROUP,
            key=key,
            after=(after,),
            dtype=dtype,
            **self.marks,
        )


def add_passes(
    tasks: TaskList,
    name: str,
    moved: float,
    kernels: int,
    rank_class: str,
    after: Iterable[int],
    marks: dict[str, Any],
    kind: str = "copy",
) -> int:
    """Add kernels that read and write so many bytes of device memory."""
    issued = tasks.issue(name, kernels, rank_class, **marks)
    duration_s = moved / (2 * tasks.copy_Bps) + kernels * tasks.kernel_s
    return tasks.compute(name, kind, duration_s, rank_class, after=(*issued, *after), **marks)
