"""Memory that has to be left beside a training: of CUDA, NCCL and the allocator."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.files import read_yaml

GIB = 2**30


def reserve_bytes(allocated_bytes: float, *, nccl: bool) -> float:
    """Bytes that have to be left: of the CUDA context, NCCL's buffers and unused remainders.

    `allocated_bytes`: what training takes.
    `nccl`: whether it communicates by NCCL, among several GPUs.
    """
    data = _constants()
    buffers = data["nccl"]
    connections = buffers["connections"] * buffers["channels"] if nccl else 0
    return float(
        GIB * data["cuda_context"]["GiB"]
        + connections * buffers["connection_bytes"]
        + unused_bytes(allocated_bytes)
    )


def unused_bytes(allocated_bytes: float) -> float:
    """Bytes that the allocator reserves beside those that it has given out."""
    return float(_constants()["allocator"]["share"] * allocated_bytes)


@cache
def _constants() -> Any:
    return read_yaml(Path(__file__).with_suffix(".yaml"))
