"""The work of each captured layer, as the fields of a model file."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfmodel.memo import grouped
from perfmodel.torch_modules.layer_groups import LayerGroup, layer_of_place
from perfmodel.torch_modules.operators import Operator
from perfmodel.torch_modules.step_recorder import KeptTensor, StepTrace
from perfmodel.workload.kernels.element_wise import kernels_of, passes_of
from perfmodel.workload.kernels.shapes import Attention, Convolution, MatrixProduct
from perfmodel.workload.model import ELEMENT_BYTES, Kept

WIDE, HALF = 4, 2
"""Bytes of an element in fp32, and in half precision."""
ITEM_BYTES = {"float64": 8, "bfloat16": HALF, "float16": HALF}
"""Of real numbers that are no fp32."""


NUMBER_BYTES = 16
"""Traffic of an operator on a number of 64 bits: batch normalisation counts its batches for a fifth
of the host's time for a kernel of a layer."""


def kept_by_layers(
    groups: Sequence[LayerGroup],
    wide: StepTrace,
    narrow: tuple[Sequence[LayerGroup], StepTrace] | None,
    autocast: tuple[Sequence[LayerGroup], StepTrace] | None,
) -> list[Kept]:
    """Return what each layer keeps of the whole batch.

    `wide`, `narrow`, `autocast`: the step in fp32, in bf16 and under autocast, with its layers;
    without the others real numbers are taken to be as narrow as the compute.
    """
    if narrow is None or autocast is None:
        return [
            Kept(elements, saved_bytes=nbytes)
            for elements, nbytes in _sums(groups, wide, _elements_and_bytes)
        ]
    names = [group.name for group in groups]
    solved = map(
        _solve,
        _sums(groups, wide, _all_and_half),
        _as_named(names, *narrow),
        _as_named(names, *autocast),
    )
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
        layer.saved_elements + stream, 0.0, layer.saved_bytes, layer.copied_elements + stream
    )


def _as_named(
    names: Sequence[str], groups: Sequence[LayerGroup], trace: StepTrace
) -> list[list[float]]:
    """Bytes of the layers of these names; casts that make a layer count for the one before it."""
    places = {name: place for place, name in enumerate(names)}
    totals, at = [[0.0, 0.0] for _ in names], 0
    for group, own in zip(groups, _sums(groups, trace, _all_and_half), strict=True):
        at = places.get(group.name, at)
        totals[at] = [before + more for before, more in zip(totals[at], own, strict=True)]
    return totals


def _solve(wide: Sequence[float], narrow: Sequence[float], autocast: Sequence[float]) -> Kept:
    """Four sums of four unknowns, of which none may be negative.

    Each: bytes that a layer keeps in all, and those in half precision.
    """
    elements = max(0.0, (wide[0] - narrow[0]) / (WIDE - HALF))
    fixed = max(0.0, wide[0] - WIDE * elements)
    stream = min(elements, max(0.0, (autocast[0] - autocast[1] - fixed) / WIDE))
    saved = elements - stream
    return Kept(saved, stream, fixed, max(0.0, autocast[1] / HALF - saved))


def _sums(
    groups: Sequence[LayerGroup],
    trace: StepTrace,
    measure: Callable[[KeptTensor], tuple[float, float]],
) -> list[list[float]]:
    """Sums of both measures of all tensors that a layer keeps, layer by layer."""
    sums, layers = [[0.0, 0.0] for _ in groups], layer_of_place(groups)
    for tensor in trace.kept:
        own = sums[layers.get(tensor.place, len(groups) - 1)]
        own[:] = [before + each for before, each in zip(own, measure(tensor), strict=True)]
    return sums


def _all_and_half(tensor: KeptTensor) -> tuple[float, float]:
    """Bytes of a tensor, and those of it in half precision."""
    return tensor.nbytes, tensor.nbytes * (ITEM_BYTES.get(tensor.dtype) == HALF)


def _elements_and_bytes(tensor: KeptTensor) -> tuple[float, float]:
    """Elements of real numbers, or bytes of what has as many in any precision."""
    elements = tensor.nbytes / ITEM_BYTES.get(tensor.dtype, WIDE)
    return (elements, 0.0) if tensor.is_floating else (0.0, tensor.nbytes)


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
    fields: dict[str, Any] = {
        "name": group.name,
        "parameters": list(group.parameters),
        "kernels": (matrix is not None)
        + sum(operator.nbytes > NUMBER_BYTES for operator in rest)
        + sum(kernels for *_, kernels in norms),
    }
    if matrix is not None and matrix.shape is not None:
        operands = ELEMENT_BYTES * (matrix.in_elements + matrix.out_elements)
        fields |= {kind: _stated(shape) for kind, shape in _shape_fields(matrix, batch).items()}
        fields |= {"operands": _size(operands / batch), "gradients": _gradients(group)}
    own = [operator for operator in group.operators if operator.kind != "matrix"]
    # of the others one is left, and one more for statistics of feature maps
    left = bool(own) + any(operator.kind == "map_norm" for operator in own)
    fields |= {
        "weights": int(matrix.weight_elements if matrix else sum(o.weight_elements for o in rest)),
        "vector": _size(vector / batch),
        "norm": _size(norm_bytes / batch),
        "wide_norm": any(wide for wide, *_ in norms),
        "wide": _size(loss / batch),
        "fused": _size(_fused_bytes(group, escaping) / batch),
        "fused_kernels": max(1, min(fields["kernels"], (matrix is not None) + left)),
        "activations": _size(ELEMENT_BYTES * kept_tensors.saved_elements / batch),
        "stream": _size(ELEMENT_BYTES * kept_tensors.stream_elements / batch),
        "copied": _size(ELEMENT_BYTES * kept_tensors.copied_elements / batch),
        "fixed": _size(kept_tensors.saved_bytes / batch),
    }
    if not any(operator.needs_gradient for operator in group.operators):
        fields["gradients"] = 0
    return _stated(fields)


DEFAULTS: Mapping[str, object] = {
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
    "count": 1,
    "groups": 1,
    "bias": False,
    "activations": False,
    "causal": False,
    "dropout": False,
    "kv_heads": None,
    "keys": None,
    "value_head_size": None,
}
"""What the file takes anyway; what would be estimated is stated, zero or not."""


def _stated(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out what the file takes anyway."""
    return {
        name: value
        for name, value in fields.items()
        if name not in DEFAULTS or DEFAULTS[name] != value
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
    others = [
        operator
        for operator in group.operators
        if operator.kind != "matrix" and operator.path not in roots
    ]
    widest = {
        path: max(o.out_elements for o in group.operators if o.path == path and o.kind != "matrix")
        for path in sorted(roots)
    }
    norms: list[tuple[bool, float, int]] = [
        (True, ELEMENT_BYTES * passes_of("rms_norm") * elements, kernels_of("rms_norm"))
        for elements in widest.values()
    ]
    norms += [(False, operator.nbytes, 1) for operator in others if operator.kind == "norm"]
    return norms, [operator for operator in others if operator.kind != "norm"]


def _gradients(group: LayerGroup) -> int:
    """Return how many products of backward a layer has for each of forward: 0, 1 or 2."""
    flops = sum(each.flops for each in group.operators)
    backward = sum(each.backward_flops for each in group.operators)
    return min(2, round(backward / flops)) if flops else 0


def _fused_bytes(group: LayerGroup, escaping: frozenset[int]) -> float:
    """Traffic where the element-wise kernels of a layer are one: what comes in and goes out."""
    inside, incoming, outgoing = set[int](), dict[int, int](), dict[int, int]()
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
            return float(sum(nbytes for _, nbytes in operator.reads) * passes_of("fused_loss"))
    return extra + sum(incoming.values()) + sum(outgoing.values())


def _shape_fields(operator: Operator, batch: int) -> dict[str, Any]:
    """Return the shape of a matrix kernel, of one sample."""
    match operator.shape:
        case MatrixProduct() as product:
            by_count = product.of_activations and product.count % batch == 0
            rows, count = product.rows, product.count
            return {
                "product": {
                    "rows": rows if by_count else max(1, math.ceil(rows / batch)),
                    "columns": product.columns,
                    "depth": product.depth,
                    "count": max(1, math.ceil(count / batch)) if by_count else count,
                    "bias": product.has_bias,
                    "activations": product.of_activations,
                }
            }
        case Convolution() as conv:
            images = max(1, conv.images // batch)  # frames of one sample stand below each other
            return {
                "convolution": {
                    "in_channels": conv.in_channels,
                    "out_channels": conv.out_channels,
                    "in_size": [images * conv.in_size[0], conv.in_size[1]],
                    "out_size": [images * conv.out_size[0], conv.out_size[1]],
                    "kernel": list(conv.kernel),
                    "groups": conv.groups,
                    "bias": conv.has_bias,
                }
            }
        case Attention() as attention:
            # windows of one sample, each with its own heads
            windows = max(1, attention.sequences // batch)
            heads, pairs = windows * attention.heads, windows * attention.kv_heads
            return {
                "attention": {
                    "tokens": attention.tokens,
                    "heads": heads,
                    "head_size": attention.head_size,
                    "kv_heads": None if pairs == heads else pairs,
                    "causal": attention.causal,
                    "keys": attention.keys,
                    "dropout": operator.score_dropout,
                    "value_head_size": attention.value_head_size,
                }
            }
    raise AssertionError(operator.shape)


def _size(nbytes: float) -> str:
    """Write a size with its unit, exactly where it is whole."""
    return f"{nbytes:.12g} B"


def escaping_storages(groups: Sequence[LayerGroup], saved: frozenset[int]) -> list[frozenset[int]]:
    """Return for each layer the storages that outlive it: read by another, or kept for backward."""
    readers = grouped(
        (storage, index)
        for index, group in enumerate(groups)
        for operator in group.operators
        for storage, _ in operator.reads
    )
    return [
        saved | {storage for storage, indices in readers.items() if set(indices) - {index}}
        for index in range(len(groups))
    ]
