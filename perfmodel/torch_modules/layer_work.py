"""The work of each captured layer, as the fields of a model file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perfmodel.torch_modules.layer_groups import LayerGroup, layer_of_place
from perfmodel.torch_modules.operators import Operator
from perfmodel.torch_modules.step_recorder import StepTrace
from perfmodel.workload.kernels.shapes import Attention, Convolution, MatrixProduct
from perfmodel.workload.zoo.decoder_block import RMS_NORM_KERNELS, RMS_NORM_PASSES
from perfmodel.workload.zoo.layers import FUSED_LOSS_PASSES

WIDE, HALF = 4, 2
"""Bytes of an element in fp32, and in half precision."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Elements and bytes that a layer keeps, of the whole batch (fields as of `Layer`)."""

    saved_elements: float
    stream_elements: float
    copied_elements: float
    saved_bytes: float


@dataclass(frozen=True, slots=True)
class _Totals:
    """Bytes that a layer keeps: in all, and those in half precision."""

    nbytes: float = 0.0
    half_bytes: float = 0.0


def kept_by_layers(
    groups: Sequence[LayerGroup],
    wide: StepTrace,
    narrow: tuple[Sequence[LayerGroup], StepTrace] | None,
    autocast: tuple[Sequence[LayerGroup], StepTrace] | None,
) -> list[Kept]:
    """Return what each layer keeps.

    `wide`, `narrow`, `autocast`: the step in fp32, in bf16 and under autocast, with its layers;
    without the others real numbers are taken to be as narrow as the compute.
    """
    in_wide = _totals(groups, wide)
    if narrow is None or autocast is None:
        return _by_type(groups, wide)
    names = [group.name for group in groups]
    in_narrow, in_autocast = _as_named(names, *narrow), _as_named(names, *autocast)
    solved = map(_solve, in_wide, in_narrow, in_autocast)
    return [
        _as_copies(each) if group.matrix and isinstance(group.matrix.shape, Convolution) else each
        for group, each in zip(groups, solved, strict=True)
    ]


def _as_copies(layer: Kept) -> Kept:
    """State what a layer of a convolution keeps in fp32 under autocast as kept and copied.

    Streams of such layers are taken to be as narrow as the compute (see `Layer`).
    """
    stream = layer.stream_elements
    return Kept(
        layer.saved_elements + stream, 0.0, layer.copied_elements + stream, layer.saved_bytes
    )


def _as_named(
    names: Sequence[str], groups: Sequence[LayerGroup], trace: StepTrace
) -> list[_Totals]:
    """Totals of the layers of these names; casts that make a layer count for the one before it."""
    places = {name: place for place, name in enumerate(names)}
    totals, at = [_Totals()] * len(names), 0
    for group, own in zip(groups, _totals(groups, trace), strict=True):
        at = places.get(group.name, at)
        before = totals[at]
        totals[at] = _Totals(before.nbytes + own.nbytes, before.half_bytes + own.half_bytes)
    return totals


def _solve(wide: _Totals, narrow: _Totals, autocast: _Totals) -> Kept:
    """Four sums of four unknowns, of which none may be negative."""
    elements = max(0.0, (wide.nbytes - narrow.nbytes) / (WIDE - HALF))
    fixed = max(0.0, wide.nbytes - WIDE * elements)
    stream = (autocast.nbytes - autocast.half_bytes - fixed) / WIDE
    stream = min(elements, max(0.0, stream))
    saved = elements - stream
    copied = max(0.0, autocast.half_bytes / HALF - saved)
    return Kept(saved, stream, copied, fixed)


def _totals(groups: Sequence[LayerGroup], trace: StepTrace) -> list[_Totals]:
    nbytes, half = [0.0] * len(groups), [0.0] * len(groups)
    layers = layer_of_place(groups)
    for tensor in trace.kept:
        layer = layers.get(tensor.place, len(groups) - 1)
        nbytes[layer] += tensor.nbytes
        half[layer] += tensor.nbytes * (tensor.dtype in {"bfloat16", "float16"})
    return [_Totals(*each) for each in zip(nbytes, half, strict=True)]


def _by_type(groups: Sequence[LayerGroup], trace: StepTrace) -> list[Kept]:
    elements, fixed = [0.0] * len(groups), [0.0] * len(groups)
    layers = layer_of_place(groups)
    for tensor in trace.kept:
        layer = layers.get(tensor.place, len(groups) - 1)
        if tensor.is_floating:
            size = {"float64": 8, "bfloat16": HALF, "float16": HALF}.get(tensor.dtype, WIDE)
            elements[layer] += tensor.nbytes / size
        else:
            fixed[layer] += tensor.nbytes
    return [Kept(each, 0.0, 0.0, nbytes) for each, nbytes in zip(elements, fixed, strict=True)]


ELEMENT_BYTES = 4
"""Layers state their traffic at 4 bytes per element (see `Layer`)."""

EXTRA_FUSED_PASSES: Mapping[str, float] = {"norm": 1.0, "map_norm": 1.0}
"""A fused normalisation over rows has the backward of one pass more (`zoo.layers`), one of maps
reads for its statistics once more."""


def layer_fields(
    group: LayerGroup, kept_tensors: Kept, batch: int, escaping: frozenset[int]
) -> dict[str, Any]:
    """Return the fields of one layer, per sample.

    `escaping`: storages that other layers read, or that are kept for backward.
    """
    matrix = group.matrix
    norms, rest = _split_norms(group)
    norm_bytes = sum(nbytes for _, nbytes, _ in norms)
    loss = sum(operator.nbytes for operator in rest if operator.kind == "loss")
    vector = norm_bytes + sum(operator.nbytes for operator in rest)
    fields: dict[str, Any] = {"name": group.name, "parameters": list(group.parameters)}
    fields["kernels"] = (matrix is not None) + len(rest) + sum(kernels for *_, kernels in norms)
    if matrix is not None and matrix.shape is not None:
        fields |= _shape_fields(matrix, batch)
        operands = ELEMENT_BYTES * (matrix.in_elements + matrix.out_elements)
        fields["operands"] = _size(operands / batch)
        fields["gradients"] = _gradients(group)
    weights = matrix.weight_elements if matrix else sum(o.weight_elements for o in rest)
    fields |= {
        "weights": int(weights),
        "vector": _size(vector / batch),
        "norm": _size(norm_bytes / batch),
        "wide_norm": any(wide for wide, *_ in norms),
        "wide": _size(loss / batch),
        "fused": _size(_fused_bytes(group, escaping) / batch),
        "fused_kernels": max(1, (matrix is not None) + _fused_kernels(group)),
        "activations": _size(ELEMENT_BYTES * kept_tensors.saved_elements / batch),
        "stream": _size(ELEMENT_BYTES * kept_tensors.stream_elements / batch),
        "copied": _size(ELEMENT_BYTES * kept_tensors.copied_elements / batch),
        "fixed": _size(kept_tensors.saved_bytes / batch),
    }
    if not any(operator.needs_gradient for operator in group.operators):
        fields["gradients"] = 0
    return _without_defaults(fields)


def _without_defaults(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the file takes anyway; what would be estimated stays, zero or not."""
    plain: Mapping[str, object] = {
        "norm": "0 B",
        "wide_norm": False,
        "wide": "0 B",
        "stream": "0 B",
        "copied": "0 B",
        "fixed": "0 B",
        "gradients": 2,
        "weights": 0,
        "parameters": [],
        "kernels": 1,
        "fused_kernels": 1,
    }
    return {
        name: value for name, value in fields.items() if name not in plain or plain[name] != value
    }


def _split_norms(
    group: LayerGroup,
) -> tuple[list[tuple[bool, float, int]], list[Operator]]:
    """Normalisations over rows (whether in fp32, bytes, kernels), and the other operators.

    One in single operations, told by its root, moves what was measured of such ones.
    """
    roots = {
        operator.path
        for operator in group.operators
        if operator.name == "aten.rsqrt" and operator.path
    }
    norms: list[tuple[bool, float, int]] = []
    rest = []
    for path in sorted(roots):
        own = [each for each in group.operators if each.path == path and each.kind != "matrix"]
        elements = max(each.out_elements for each in own)
        norms.append((True, ELEMENT_BYTES * RMS_NORM_PASSES * elements, RMS_NORM_KERNELS))
    for operator in group.operators:
        if operator.kind == "matrix" or operator.path in roots:
            continue
        if operator.kind == "norm":
            norms.append((False, operator.nbytes, 1))
        else:
            rest.append(operator)
    return norms, rest


def _gradients(group: LayerGroup) -> int:
    """Products of backward for each of forward; two at most, as many as a product has inputs."""
    flops = sum(each.flops for each in group.operators)
    backward = sum(each.backward_flops for each in group.operators)
    return min(2, round(backward / flops)) if flops else 0


def _fused_kernels(group: LayerGroup) -> int:
    """Kernels that are left of the others: one, and one more for statistics of feature maps."""
    own = [operator for operator in group.operators if operator.kind != "matrix"]
    return bool(own) + any(operator.kind == "map_norm" for operator in own)


def _fused_bytes(group: LayerGroup, escaping: frozenset[int]) -> float:
    """Traffic where the element-wise kernels of a layer are one: what comes in and goes out."""
    inside: set[int] = set()
    incoming: dict[int, int] = {}
    outgoing: dict[int, int] = {}
    extra = 0.0
    matrix_reads = {storage for storage, _ in group.matrix.reads} if group.matrix else set()
    for operator in group.operators:
        if operator.kind == "matrix":
            continue
        incoming |= {storage: nbytes for storage, nbytes in operator.reads if storage not in inside}
        inside |= {storage for storage, _ in operator.writes}
        outgoing |= {
            storage: nbytes
            for storage, nbytes in operator.writes
            if storage in escaping or storage in matrix_reads
        }
        extra += EXTRA_FUSED_PASSES.get(operator.kind, 0.0) * operator.nbytes / 2
        if operator.kind == "loss":
            return sum(nbytes for _, nbytes in operator.reads) * FUSED_LOSS_PASSES
    return extra + sum(incoming.values()) + sum(outgoing.values())


def _shape_fields(operator: Operator, batch: int) -> dict[str, Any]:
    match operator.shape:
        case MatrixProduct() as product:
            return {"product": _product_fields(product, batch)}
        case Convolution() as conv:
            return {"convolution": _convolution_fields(conv, batch)}
        case Attention() as attention:
            dropout = operator.scores is not None and operator.scores.dropout
            return {"attention": _attention_fields(attention, batch, dropout=dropout)}
    raise AssertionError(operator.shape)


def _product_fields(product: MatrixProduct, batch: int) -> dict[str, Any]:
    by_count = product.of_activations and product.count % batch == 0
    rows = product.rows if by_count else max(1, math.ceil(product.rows / batch))
    fields: dict[str, Any] = {"rows": rows, "columns": product.columns, "depth": product.depth}
    count = max(1, math.ceil(product.count / batch)) if by_count else product.count
    if count > 1:
        fields["count"] = count
    if product.has_bias:
        fields["bias"] = True
    if product.of_activations:
        fields["activations"] = True
    return fields


def _convolution_fields(conv: Convolution, batch: int) -> dict[str, Any]:
    images = max(1, conv.images // batch)  # frames of one sample stand below each other
    fields: dict[str, Any] = {
        "in_channels": conv.in_channels,
        "out_channels": conv.out_channels,
        "in_size": [images * conv.in_size[0], conv.in_size[1]],
        "out_size": [images * conv.out_size[0], conv.out_size[1]],
        "kernel": list(conv.kernel),
    }
    return fields | ({"groups": conv.groups} if conv.groups > 1 else {})


def _attention_fields(attention: Attention, batch: int, *, dropout: bool) -> dict[str, Any]:
    windows = max(1, attention.sequences // batch)  # of one sample, each with its own heads
    fields: dict[str, Any] = {
        "tokens": attention.tokens,
        "heads": windows * attention.heads,
        "head_size": attention.head_size,
    }
    if attention.kv_heads != attention.heads:
        fields["kv_heads"] = windows * attention.kv_heads
    optional = {"causal": attention.causal, "keys": attention.keys, "dropout": dropout}
    optional["value_head_size"] = attention.value_head_size
    return fields | {name: value for name, value in optional.items() if value}


def _size(nbytes: float) -> str:
    """Write a size with its unit, exactly where it is whole."""
    return f"{nbytes:.12g} B"


def escaping_storages(groups: Sequence[LayerGroup], saved: frozenset[int]) -> list[frozenset[int]]:
    """Return for each layer the storages that outlive it: read by another, or kept for backward."""
    readers: dict[int, set[int]] = {}
    for index, group in enumerate(groups):
        for operator in group.operators:
            for storage, _ in operator.reads:
                readers.setdefault(storage, set()).add(index)
    return [
        saved | {storage for storage, indices in readers.items() if indices - {index}}
        for index in range(len(groups))
    ]
