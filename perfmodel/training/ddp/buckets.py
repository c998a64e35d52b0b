"""Gradient buckets, to the byte those that PyTorch's DistributedDataParallel makes.

The rules are those of torch 2.13 (``compute_bucket_assignment_by_size`` and
``Reducer::rebuild_buckets`` in torch/csrc/distributed/c10d/reducer.cpp;
``_BucketCapacityConfig`` in torch/nn/parallel/distributed.py). Tests compare with both.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perfmodel.errors import Fault, failed, raise_faults, refuse_if
from perfmodel.training.ddp.options import DEFAULT_CAP_BYTES, FIRST_BUCKET_BYTES, DdpOptions
from perfmodel.training.frameworks import fixed_in
from perfmodel.workload.model import ParameterTensor, Workload

Iteration = Literal["first", "steady"]

_SAME_STORAGE = {"tf32": "fp32"}  # tf32 is how fp32 is multiplied, not how it is stored


_SCALAR_TYPES = {
    "uint8": 0,
    "int8": 1,
    "int32": 3,
    "int64": 4,
    "fp16": 5,
    "fp32": 6,
    "fp64": 7,
    "bool": 11,
    "bf16": 15,
    "fp8": 24,
}
"""Numbers of torch's dtypes (c10/core/ScalarType.h; fp8 is Float8_e4m3fn)."""
_SLOTS = (13, 29, 59, 127)
"""Slots of a libstdc++ hash map as it grows (``_Prime_rehash_policy``)."""

_Key = tuple[str, int]
"""Dtype and device of a bucket."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Gradients that are reduced together.

    `index`: position in launch order.
    `nbytes`: size of the flat buffer; bytes.
    `tensors`: parameters in it (indices in registration order), as they lie in the buffer.
    `dtype`: one for all of them.
    `device`: one for all of them, too: of the GPUs of a process, counted from 0.
    """

    index: int
    nbytes: int
    tensors: tuple[int, ...]
    dtype: str
    device: int = 0


def assign_buckets(
    tensors: Sequence[ParameterTensor],
    caps_bytes: Sequence[int],
    order: Sequence[int] | None = None,
    *,
    sparse: Sequence[bool] | None = None,
    devices: Sequence[int] | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Split tensors into buckets as torch's ``_compute_bucket_assignment_by_size`` does.

    Each dtype on each device fills a bucket of its own. A bucket is closed once a tensor brings it
    to its cap or beyond, so tensors are never split and a bucket may exceed the cap by nearly its
    last tensor. Each dtype and device then moves on to the next cap and stays at the last one.

    `tensors`: in registration order.
    `caps_bytes`: caps of the first, second ... bucket of each dtype; bytes.
    `order`: indices of `tensors` in the order in which gradients get ready.
    `sparse`: per tensor (registration order): its gradient is sparse and is reduced on its own.
    `devices`: per tensor: GPU of the process that holds it; default: the same of all.
    Returns tensor indices of each bucket. Without `order`, sorted by their smallest index; with it,
        in the order in which they closed, then those that never did, as torch's hash map lists
        them (`_listed`): on one GPU the dtype that appeared last comes first.
    Raises `InputError`: no tensors, no caps, or an order or flags of another length.
    """
    _check_assignment(tensors, caps_bytes, order, sparse)
    in_order = range(len(tensors)) if order is None else order
    closed: list[tuple[int, ...]] = []
    filling: dict[str | _Key, list[int]] = {}
    filled_bytes: dict[str | _Key, int] = {}
    cap_position: dict[str | _Key, int] = {}
    for index in in_order:
        if sparse is not None and sparse[index]:
            closed.append((index,))
            continue
        dtype = _SAME_STORAGE.get(tensors[index].dtype, tensors[index].dtype)
        key: str | _Key = dtype if devices is None else (dtype, devices[index])
        filling.setdefault(key, []).append(index)
        filled_bytes[key] = filled_bytes.get(key, 0) + tensors[index].nbytes
        position = cap_position.get(key, 0)
        if filled_bytes[key] >= caps_bytes[position]:
            closed.append(tuple(filling[key]))
            filling[key], filled_bytes[key] = [], 0
            cap_position[key] = min(position + 1, len(caps_bytes) - 1)
    listed = reversed(filling) if devices is None else _listed(filling)
    closed += [tuple(filling[key]) for key in listed if filling[key]]
    return tuple(sorted(closed, key=min)) if order is None else tuple(closed)


def _listed(keys: Iterable[Any]) -> list[_Key]:
    """Keys in the order in which libstdc++'s ``std::unordered_map`` lists them.

    A new key goes to the front, unless one of its slot is there: then before these. With more
    slots, all go in again in the order of the list (``_M_insert_bucket_begin``, ``_M_rehash``).
    """
    listed: list[_Key] = []
    slots = _SLOTS[0]
    for key in keys:
        if len(listed) == slots:
            slots = _SLOTS[_SLOTS.index(slots) + 1]
            listed = _inserted([], listed, slots)
        listed = _inserted(listed, [key], slots)
    return listed


def _inserted(listed: list[_Key], keys: Iterable[_Key], slots: int) -> list[_Key]:
    """Insert keys into the list of a map of so many slots."""
    for key in keys:
        slot = _hash(key) % slots
        place = next((i for i, other in enumerate(listed) if _hash(other) % slots == slot), 0)
        listed = [*listed[:place], key, *listed[place:]]
    return listed


def _hash(key: _Key) -> int:
    """Hash of a bucket's dtype and CUDA device (``BucketKey::hash``; c10/util/hash.h, Device.h)."""
    seed = fixed_in("torch", "cuda_device_type") << 16 | key[1]
    return seed ^ (_SCALAR_TYPES[key[0]] + 0x9E3779B9 + (seed << 6) + (seed >> 2))


def bucket_caps(options: DdpOptions) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """Return the caps of the initial and of the rebuilt buckets; bytes.

    The second is None where PyTorch never rebuilds: unused parameters are looked for and the
    graph is not declared static.
    """
    if options.bucket_caps is not None:
        caps = tuple(int(cap) for cap in options.bucket_caps)
        return caps, caps if options.rebuilds else None
    cap = int(DEFAULT_CAP_BYTES if options.bucket_cap is None else options.bucket_cap)
    first = FIRST_BUCKET_BYTES if options.bucket_cap is None else cap
    if options.first_bucket is not None:
        first = int(options.first_bucket)
    if options.rebuilds:
        return (sys.maxsize,), (first, cap)
    return (first, cap) if first < cap else (cap,), None


def gradient_order(workload: Workload) -> tuple[int, ...]:
    """Return the trained tensors in the order in which backward completes their gradients.

    Raises `InputError`: a layer names a tensor that does not exist or that another layer has.
    """
    order, tensors = workload.ready_order, len(workload.tensors)
    faults = [
        Fault("layers", f"tensor {index}", f"an index from 0 to {tensors - 1}")
        for index in order
        if not 0 <= index < tensors
    ]
    if len(set(order)) < len(order):
        twice = sorted({index for index in order if order.count(index) > 1})
        faults.append(Fault("layers", f"tensors {twice} in several layers", "each in one layer"))
    raise_faults(faults)
    return order


def ddp_buckets(
    model: Workload | Sequence[ParameterTensor],
    options: DdpOptions,
    *,
    iteration: Iteration = "steady",
    ready_order: Sequence[int] | None = None,
) -> tuple[Bucket, ...]:
    """Return DDP's buckets in the order in which it launches them.

    `model`: of a workload, the tensors that stand in a layer; the others are not trained.
    `iteration`: the first backward runs with the initial buckets (by default one per dtype, so
        nothing overlaps); then they are rebuilt once, unless unused parameters are looked for. With
        ``static_graph`` the second iteration still runs with the initial ones.
    `ready_order`: order in which gradients got ready (rank 0 decides for all). Default: backward
        over the workload's layers, or the reverse of registration where there are none.
    Raises `InputError`: nothing to train, or `ready_order` is not an order of the trained tensors.
    """
    tensors, default_order = _trained(model)
    devices = tensor_devices(model, options) if isinstance(model, Workload) else None
    initial, rebuilt = bucket_caps(options)
    if iteration == "first" or rebuilt is None:  # filled as registered, launched in the reverse
        trained = sorted(default_order)
        own = assign_buckets(
            [tensors[index] for index in trained],
            initial,
            devices=devices and [devices[index] for index in trained],
        )
        groups = [tuple(trained[place] for place in group) for group in reversed(own)]
    else:
        order = _checked_order(default_order if ready_order is None else ready_order, default_order)
        # DDP_SET_LAST_BUCKET_CAP=1 fills from the end, so that the small bucket is launched last.
        step = -1 if options.set_last_bucket_cap else 1
        groups = [*assign_buckets(tensors, rebuilt, order[::step], devices=devices)[::step]]
    return tuple(
        Bucket(
            index=index,
            nbytes=sum(tensors[member].nbytes for member in group),
            tensors=group,
            dtype=tensors[group[0]].dtype,
            device=devices[group[0]] if devices else 0,
        )
        for index, group in enumerate(groups)
    )


def tensor_devices(workload: Workload, options: DdpOptions) -> list[int] | None:
    """Return the GPU of the process that each tensor is on: its layer's; None: there is one."""
    if not options.layer_devices:
        return None
    layers = zip(workload.layers, options.layer_devices, strict=False)
    placed = {tensor: device for layer, device in layers for tensor in layer.tensors}
    return [placed.get(tensor, 0) for tensor in range(len(workload.tensors))]


def _trained(
    model: Workload | Sequence[ParameterTensor],
) -> tuple[Sequence[ParameterTensor], tuple[int, ...]]:
    """Tensors by index, and the order in which those that are trained get ready."""
    tensors = model.tensors if isinstance(model, Workload) else model
    order = tuple(reversed(range(len(tensors))))
    if isinstance(model, Workload) and model.layers:
        order = gradient_order(model)
    refuse_if(not order, "tensors", "none to train", "at least one parameter tensor")
    return tensors, order


def _checked_order(order: Sequence[int], trained: Sequence[int]) -> tuple[int, ...]:
    missing, unknown = (sorted(set(a) - set(b)) for a, b in ((trained, order), (order, trained)))
    refuse_if(
        sorted(order) != sorted(trained),
        "ready_order",
        f"{len(order)} entries (missing {missing[:8]}, unknown {unknown[:8]})",
        f"each of the {len(trained)} trained tensors exactly once",
    )
    return tuple(order)


def _check_assignment(
    tensors: Sequence[ParameterTensor],
    caps_bytes: Sequence[int],
    order: Sequence[int] | None,
    sparse: Sequence[bool] | None,
) -> None:
    count, flags = len(tensors), len(tensors) if sparse is None else len(sparse)
    outside = any(not 0 <= index < count for index in order or ())
    raise_faults(
        failed(
            (not tensors, "tensors", "none", "at least one parameter tensor"),
            (not caps_bytes, "caps_bytes", "none", "at least one cap"),
            (flags != count, "sparse", f"{flags} flags", f"{count}, one per tensor"),
            (outside, "order", "an index out of range", f"0 to {count - 1}"),
        )
    )
