"""The work of each captured layer, as the fields of a model file."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from perfmodel.torch_modules.kept_tensors import Kept
from perfmodel.torch_modules.layer_groups import LayerGroup
from perfmodel.torch_modules.trace.operators import Operator
from perfmodel.workload.kernels.shapes import Attention, Convolution, MatrixProduct
from perfmodel.workload.zoo.decoder_block import RMS_NORM_KERNELS, RMS_NORM_PASSES
from perfmodel.workload.zoo.layers import FUSED_LOSS_PASSES

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
