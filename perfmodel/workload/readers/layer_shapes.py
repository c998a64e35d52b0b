"""A layer of a model file, with the shape of its matrix kernel."""

from __future__ import annotations

from collections.abc import Mapping

from perfmodel.workload.kernels.shapes import Attention, Convolution, MatrixKernel, MatrixProduct
from perfmodel.workload.model import Layer, LayerKind
from perfmodel.workload.readers.estimated_work import ELEMENT_BYTES
from perfmodel.workload.readers.spec import AttentionSpec, LayerSpec


def make_layer(spec: LayerSpec, index: Mapping[str, int]) -> Layer:
    """Turn a layer of the file into one of a workload.

    `index`: place of each parameter.
    """
    matrix = _make_matrix(spec)
    flops = spec.matmul_flops
    if flops is None:
        flops = 0.0 if matrix is None else matrix.flops
    attention = spec.attention
    return Layer(
        spec.name,
        tuple(index[name] for name in spec.parameters),
        matmul_flops=flops,
        vector_bytes=spec.vector or 0.0,
        matmul_bytes=spec.operands or 0.0,
        weight_elements=float(spec.weights or 0),
        kernels=spec.kernels,
        kind=_kind(spec),
        score_elements=_scores(attention) if attention else 0.0,
        matrix=matrix,
        norm_bytes=spec.norm,
        wide_norm=spec.wide_norm,
        wide_bytes=spec.wide,
        fused_bytes=spec.fused,
        fused_kernels=spec.fused_kernels,
        stream_elements=spec.stream / ELEMENT_BYTES,
        copied_elements=spec.copied / ELEMENT_BYTES,
        saved_bytes=spec.fixed,
        score_dropout=attention.dropout if attention else True,
        gradients=spec.gradients,
    )


def _kind(spec: LayerSpec) -> LayerKind:
    if spec.convolution:
        return "conv"
    return "attention" if spec.attention else "linear"


def _make_matrix(spec: LayerSpec) -> MatrixKernel | None:
    if spec.product:
        product = spec.product
        return MatrixProduct(
            product.rows,
            product.columns,
            product.depth,
            product.count,
            has_bias=product.bias,
            of_activations=product.activations,
        )
    if spec.convolution:
        conv = spec.convolution
        return Convolution(
            conv.in_channels,
            conv.out_channels,
            conv.in_size,
            conv.out_size,
            conv.kernel,
            groups=conv.groups,
        )
    return _make_attention(spec.attention) if spec.attention else None


def _make_attention(spec: AttentionSpec) -> Attention:
    return Attention(
        spec.tokens,
        spec.heads,
        spec.kv_heads or spec.heads,
        spec.head_size,
        spec.causal,
        keys=spec.keys,
        window=spec.window,
        value_head_size=spec.value_head_size,
    )


def _scores(spec: AttentionSpec) -> float:
    return float(spec.heads * spec.tokens * (spec.keys or spec.tokens))
