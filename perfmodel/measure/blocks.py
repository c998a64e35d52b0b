"""A copy by so many thread blocks: what a collective that holds few multiprocessors can move."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

triton: Any = None
tl: Any = None
if importlib.util.find_spec("triton") is not None:  # comes with torch's CUDA wheels, not alone
    triton = importlib.import_module("triton")
    tl = importlib.import_module("triton.language")

COUNTS = (1, 2, 4, 8, 16, 24, 32, 64)
"""Numbers of blocks to try; NCCL runs 1 to 32 channels, each of one block."""


def _copy(src, dst, count):  # type: ignore[no-untyped-def]
    # 1024 elements at a time: 8 for each of Triton's default 128 threads.
    for begin in range(tl.program_id(0) * 1024, count, tl.num_programs(0) * 1024):
        at = begin + tl.arange(0, 1024)
        tl.store(dst + at, tl.load(src + at, mask=at < count), mask=at < count)


def copy_kernel() -> Any:
    """A kernel ``[(blocks,)](src, dst, elements)``; None without Triton."""
    return None if triton is None else triton.jit(_copy)
