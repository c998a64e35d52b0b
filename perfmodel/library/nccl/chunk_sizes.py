"""How much of a buffer NCCL moves at a time, by algorithm, protocol and size of the message.

Source of the rules: NVIDIA/nccl 2.30.7 ``src/enqueue.cc`` (calcCollChunking, getAlgoInfo) and
``src/include/device.h``: a connection has a buffer of 8 steps; trees, NVLS and CollNet move one
step at a time, less where a message is so small that its pieces would not fill the pipeline.
"""

from __future__ import annotations

import math

KIB = 1 << 10

STEP_BYTES = {"ll": 32 * KIB, "ll128": 576_000, "simple": 512 * KIB}
"""Payload of one step: LL 512 threads x 8 lines x 8 bytes; LL128 120 elements x 640 threads x
8 bytes, of which 15/16 are payload; Simple an eighth of NCCL_BUFFSIZE (4 MiB)."""

PASSED_ON_BYTES = {"ll": (256, 4 * KIB), "ll128": (1_920, 38_400)}
"""Payload that a warp, and a block of all its warps, has passed on before it takes more: LL 32 and
512 threads x 8 bytes, LL128 32 and 640 threads x 64 bytes, of which 15/16 are payload
(``src/device/prims_ll.h``, ``prims_ll128.h``: each line carries its flag, so that nothing waits for
the end of a step)."""

LEAST_PARTS = 8
"""Parts at least that a longer message of LL or LL128 is passed on in, where warps have so much."""

NVLS_BYTES = 128 * KIB
"""NCCL_NVLS_CHUNKSIZE."""


def pieces_of_share(nbytes: float, shares: int, chunk: float) -> int:
    """In how many pieces each of equal shares is sent."""
    return max(1, math.ceil(nbytes / (shares * chunk)))


def tree_bytes(protocol: str, nbytes: float, channels: int, nodes: int, per_node: int) -> float:
    """Bytes that a tree moves at a time on each channel.

    LL and LL128 pass on lines as they come; the steps of LL128 are shorter for small messages.
    """
    chunk = float(STEP_BYTES.get(protocol, STEP_BYTES["simple"]))
    if protocol == "ll128":
        steps = 1 + math.floor(math.log2(nodes)) + 0.1 * per_node
        for fill, least in ((64, 128 * KIB), (16, 32 * KIB)):
            while nbytes // (channels * chunk) < steps * fill / per_node and chunk > least:
                chunk /= 2
    if protocol not in PASSED_ON_BYTES:
        return chunk
    least, most = PASSED_ON_BYTES[protocol]
    return min(chunk, max(float(least), min(float(most), nbytes / (channels * LEAST_PARTS))))


def nvls_bytes(nbytes: float, at_once: int) -> float:
    """Bytes that each head moves at a time on each channel; `at_once` heads times channels."""
    chunk = float(NVLS_BYTES)
    for fill, smaller in ((64, 64 * KIB), (8, 32 * KIB), (2, 16 * KIB)):
        if nbytes < fill * at_once * chunk:
            chunk = float(smaller)
    return chunk


def nvls_tree_bytes(nbytes: float, at_once: int, nodes: int) -> float:
    """As `nvls_bytes`, with trees between nodes (NCCL_NVLSTREE_MAX_CHUNKSIZE)."""
    chunk = float(64 * KIB if nodes >= 4 else NVLS_BYTES)
    for fill, smaller in ((4, 64 * KIB), (1, 32 * KIB)):
        if nbytes < fill * at_once * chunk:
            chunk = float(smaller)
    return chunk


def collnet_bytes(nbytes: float, channels: int, depth: int) -> float:
    """Bytes that CollNet moves at a time on each channel, `depth` steps below the network."""
    chunk = 256.0 * KIB
    for fill, least in ((64, 128 * KIB), (8, 64 * KIB), (1, 32 * KIB)):
        while nbytes // (channels * chunk) < depth * fill and chunk > least:
            chunk /= 2
    return chunk
