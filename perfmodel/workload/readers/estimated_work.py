"""Activations and memory traffic of layers whose file states operations and parameters alone.

Unknown is not zero: a model that keeps no activations fits any GPU. The rule is arithmetic as far
as it goes (``estimated_work.yaml``); shares of it are those of the models of the zoo.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from perfmodel.files import read_yaml
from perfmodel.workload.kernels.shapes import Attention, Convolution, MatrixKernel, MatrixProduct
from perfmodel.workload.model import ELEMENT_BYTES, Layer, LayerKind, ParameterTensor, Workload
from perfmodel.workload.readers.spec import ConvolutionSpec, LayerSpec, ProductSpec

TIED_WITHIN = 1e-3
"""Relative difference of operations for which a layer without parameters multiplies a table."""


estimate_rule = cache(partial(read_yaml, Path(__file__).with_suffix(".yaml")))
"""Reads the constants by which traffic and activations are estimated; the file says each."""


_Kept = tuple[float, float, float]
"""Elements that a layer keeps for backward, per sample: low, likely and high."""


def complete_work(workload: Workload, specs: Sequence[LayerSpec]) -> Workload:
    """Return the workload with estimates of what its file does not state.

    `specs`: of its layers.
    Work that is stated stays. `Workload.kept_range` says how far activations may be off.
    """
    layers, ranges, rows = list[Layer](), list[_Kept](), 0.0
    tables = [
        tensor
        for layer in workload.layers
        if not layer.matmul_flops
        for tensor in _tensors(workload, layer)
    ]
    for layer, spec in zip(workload.layers, specs, strict=True):
        own = _tensors(workload, layer)
        # biases and gains are vectors; where numel alone is stated, the largest is the weight
        weights = (
            [tensor for tensor in own if len(tensor.shape) > 1]
            or _tied(layer, tables, rows)
            or sorted(own, key=lambda tensor: tensor.numel)[-1:]
        )
        elements = sum(tensor.numel for tensor in weights)
        rows = layer.matmul_flops / (2 * elements) if elements and layer.matmul_flops else rows
        completed, kept = _complete(layer, spec, weights, rows)
        layers.append(completed)
        ranges.append(kept)
    estimated = sum(
        spec.activations is None and layer.matmul_flops > 0
        for layer, spec in zip(layers, specs, strict=True)
    )
    return replace(
        workload,
        layers=tuple(layers),
        kept_range=_range(ranges),
        notes=_notes(estimated, len(layers), _range(ranges)),
        is_estimated=estimated > 0,
    )


def _tensors(workload: Workload, layer: Layer) -> list[ParameterTensor]:
    return [workload.tensors[index] for index in layer.tensors]


def _tied(layer: Layer, tables: Sequence[ParameterTensor], rows: float) -> list[ParameterTensor]:
    """Return the table whose product with all rows has a layer's operations: a tied head."""
    return [
        table
        for table in tables
        if math.isclose(layer.matmul_flops, 2 * rows * table.numel, rel_tol=TIED_WITHIN)
    ][:1]


def _sides(tensor: ParameterTensor) -> float:
    """Columns before and after a product with a weight; a square one where numel alone tells."""
    return float(sum(tensor.shape[:2])) if len(tensor.shape) > 1 else 2 * math.sqrt(tensor.numel)


def _complete(
    layer: Layer, spec: LayerSpec, weights: Sequence[ParameterTensor], rows: float
) -> tuple[Layer, _Kept]:
    """Estimate one layer; `rows`: of its product, or of the last product before it."""
    stated = None if spec.activations is None else spec.activations / ELEMENT_BYTES
    if not layer.matmul_flops:
        elements = stated or 0.0
        return replace(layer, saved_elements=elements), (elements, elements, elements)
    is_conv = any(len(tensor.shape) > 2 for tensor in weights)
    shares = estimate_rule()["shares"]["conv" if is_conv else "linear"]
    kept, moved = _estimate(layer, shares, weights, rows)
    if stated is not None:
        kept = (stated, stated, stated)
    operands, passes = ELEMENT_BYTES * moved, ELEMENT_BYTES * shares["passes"] * moved
    return replace(
        layer,
        matmul_bytes=operands if spec.operands is None else spec.operands,
        vector_bytes=passes if spec.vector is None else spec.vector,
        weight_elements=float(
            sum(tensor.numel for tensor in weights) if spec.weights is None else spec.weights
        ),
        saved_elements=kept[1],
        kind="conv" if is_conv and layer.matrix is None else layer.kind,
    ), kept


def _estimate(
    layer: Layer, shares: Mapping[str, Any], weights: Sequence[ParameterTensor], rows: float
) -> tuple[_Kept, float]:
    """Return the elements kept, and those that the matrix kernel reads and writes."""
    rule, moved = estimate_rule(), _moved(layer, weights, rows)
    if not moved:
        few, usual, many = (
            layer.matmul_flops / each for each in reversed(rule["sideless"]["operations"])
        )
        return (few, usual, many), usual / shares["kept"][1]
    low, likely, high = (share * moved for share in shares["kept"])
    widen = rule["unshaped"]["widen"] if any(len(tensor.shape) == 1 for tensor in weights) else 1.0
    return (low / widen, likely, high * widen), moved


def _moved(layer: Layer, weights: Sequence[ParameterTensor], rows: float) -> float:
    """Elements that the product reads and writes beside its weight; 0 where nothing tells.

    A product without a weight multiplies activations: of scores and of sums in attention, each of
    rows^2 x width multiply-accumulates, hence 4 x rows x width elements are flops / rows.
    """
    if weights:
        return rows * sum(map(_sides, weights))
    return layer.matmul_flops / rows if rows else 0.0


def _range(kept: Sequence[_Kept]) -> tuple[float, float]:
    low, likely, high = (sum(each[end] for each in kept) for end in range(3))
    return (low / likely, high / likely) if likely else (1.0, 1.0)


def _notes(estimated: int, layers: int, kept_range: tuple[float, float]) -> tuple[str, ...]:
    if not estimated:
        return ()
    low, high = (100 * (end - 1) for end in kept_range)
    note = (
        f"The model's file states no activations for {estimated} of {layers} layers: they and "
        "the memory traffic of these layers are estimated from operations and weights, activations "
        f"from {low:+.0f} to {high:+.0f} %; `activations`, `operands` and `vector` of a layer "
        "state them."
    )
    return (note,)


def make_layer(spec: LayerSpec, index: Mapping[str, int]) -> Layer:
    """Turn a layer of the file into one of a workload.

    `index`: place of each parameter.
    """
    matrix = _make_matrix(spec)
    stated_flops = 0.0 if matrix is None else matrix.flops
    return Layer(
        spec.name,
        tuple(index[name] for name in spec.parameters),
        matmul_flops=stated_flops if spec.matmul_flops is None else spec.matmul_flops,
        vector_bytes=spec.vector or 0.0,
        matmul_bytes=spec.operands or 0.0,
        weight_elements=float(spec.weights or 0),
        kernels=spec.kernels,
        kind=_KINDS.get(type(matrix), "linear"),
        score_elements=float(matrix.heads * matrix.tokens * matrix.all_keys)
        if isinstance(matrix, Attention)
        else 0.0,
        matrix=matrix,
        norm_bytes=spec.norm,
        wide_norm=spec.wide_norm,
        wide_bytes=spec.wide,
        fused_bytes=spec.fused,
        fused_kernels=spec.fused_kernels,
        stream_elements=spec.stream / ELEMENT_BYTES,
        copied_elements=spec.copied / ELEMENT_BYTES,
        saved_bytes=spec.fixed,
        score_dropout=spec.attention.dropout if spec.attention else True,
        gradients=spec.gradients,
    )


_KINDS: Mapping[type, LayerKind] = {Convolution: "conv", Attention: "attention"}


def _make_matrix(spec: LayerSpec) -> MatrixKernel | None:
    if spec.product:
        return MatrixProduct(**_renamed(spec.product))
    if spec.convolution:
        return Convolution(**_renamed(spec.convolution))
    if spec.attention is None:
        return None
    fields = {name: each for name, each in spec.attention if name != "dropout"}
    fields["kv_heads"] = spec.attention.kv_heads or spec.attention.heads
    return Attention(**fields)


def _renamed(stated: ProductSpec | ConvolutionSpec) -> dict[str, Any]:
    """Fields of a kernel under the names that they have in its shape."""
    names = {"bias": "has_bias", "activations": "of_activations"}
    return {names.get(name, name): each for name, each in stated}
