"""Which server holds which part of the parameters.

Sources: MXNet 1.9 src/kvstore/kvstore_dist.h (arrays of a bound or more are cut into equal parts
over all servers, others go to one by a hash of their key); TensorFlow 1.15
contrib/training/device_setter.py (`GreedyLoadBalancingStrategy` by bytes: the least loaded server);
BytePS 0.2 docs/env.md (tensors in partitions of at most 4,096,000 bytes, each with a server of its
own choice).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from perfmodel.workload.model import ParameterTensor

Assignment = Literal["greedy", "hash"]

HASH_FACTOR = 9973
"""Prime that a key is multiplied by (MXNet, kvstore_dist.h)."""

SPLIT_BYTES = 4_000_000
"""Tensors from which on MXNet cuts over all servers: MXNET_KVSTORE_BIGARRAY_BOUND, 1e6 elements."""


@dataclass(frozen=True, slots=True)
class Shard:
    """Part of a tensor on one server; `tensor` is its index."""

    tensor: int
    server: int
    elements: int


def shard(
    tensors: Sequence[ParameterTensor],
    servers: int,
    *,
    assignment: Assignment = "greedy",
    split_bytes: float = SPLIT_BYTES,
    slice_bytes: float | None = None,
) -> tuple[Shard, ...]:
    """Assign every element of every tensor to a server, in the order of the tensors.

    `assignment`: of what is not cut over all: to the server with fewest bytes so far, or by a hash.
    `split_bytes`: tensors of so many bytes are cut into equal parts over all servers.
    `slice_bytes`: instead, all tensors are cut into slices of at most so many bytes, each assigned
        alone.
    """
    load = [0.0] * servers
    shards: list[Shard] = []

    def assign(index: int, key: int, elements: int) -> None:
        server = key * HASH_FACTOR % servers
        if assignment == "greedy":
            server = load.index(min(load))
        add(index, server, elements)

    def add(index: int, server: int, elements: int) -> None:
        load[server] += elements * tensors[index].nbytes / max(1, tensors[index].numel)
        shards.append(Shard(index, server, elements))

    key = 0
    for index, tensor in enumerate(tensors):
        if slice_bytes is None and tensor.nbytes >= split_bytes and servers > 1:
            for server, elements in enumerate(even_parts(tensor.numel, servers)):
                add(index, server, elements)
            key += 1
            continue
        slices = 1 if slice_bytes is None else max(1, -(-tensor.nbytes // int(slice_bytes)))
        for elements in even_parts(tensor.numel, slices):
            assign(index, key, elements)
            key += 1
    return tuple(each for each in shards if each.elements)


def even_parts(elements: int, parts: int) -> list[int]:
    """Split a number into parts that differ by one at most.

    Examples
    --------
    >>> even_parts(10, 4)
    [3, 3, 2, 2]
    """
    least, larger = divmod(elements, parts)
    return [least + (part < larger) for part in range(parts)]
