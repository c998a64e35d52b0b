"""Layers of the zoo's models, one `Module` each, and `assemble`, which makes a model of them.

The ready order of a module is the order in which PyTorch's autograd completes its gradients, which
is not simply the reverse of registration: convolutions and normalisations complete the gradient of
the weight before that of the bias, linear maps that of the bias first (the weight's passes a
transpose). Observed with post-accumulate-grad hooks on PyTorch 2.13; tests repeat it with torch.

Memory traffic counts passes over a tensor: a pass reads or writes each element once.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.workload.kernels.shapes import MatrixProduct
from perfmodel.workload.layer_calls import LayerCall
from perfmodel.workload.model import (
    ELEMENT_BYTES,
    Buffers,
    Kept,
    Layer,
    ParameterTensor,
    Sample,
    Workload,
)
from perfmodel.workload.shard import WHOLE, Shard


@dataclass(frozen=True, slots=True)
class ActivationFunction:
    """Work of an activation function.

    `passes`: over its elements, forward.
    `kernels`: launched by forward.
    `saved`: elements kept for each of its input, with its result, which the next map reads.
    `wide`: those of them that autocast has in fp32.
    """

    passes: int = 2
    kernels: int = 1
    saved: int = 2
    wide: int = 0

    @property
    def narrow(self) -> int:
        """Those kept at the precision of the compute."""
        return self.saved - self.wide


ONE_KERNEL = ActivationFunction()
"""Keeps its input; the next map keeps its result."""

GATED = ActivationFunction(passes=5, kernels=2, saved=4)
"""A function of one half (read and written), times the other; keeps both, its result and theirs."""

CLAMPED = ActivationFunction(passes=16, kernels=7, saved=7)
"""Of experts, as GPT-OSS's: gate and branch clamped, the gate scaled, its sigmoid, their product,
one added to the branch, and the product. Keeps both as they were, the gate clamped, its sigmoid,
their product, the branch plus one, and the result."""

ACTIVATIONS: Mapping[str, ActivationFunction] = {
    **dict.fromkeys(("gelu", "gelu_pytorch_tanh", "silu", "swish"), ONE_KERNEL),
    # its backward reads the result alone
    "relu": ActivationFunction(saved=1),
    "relu2": ActivationFunction(passes=4, kernels=2, saved=2),
    # a function of its own, of nine operations, which keeps its input and works all out again
    "bloom_gelu": ActivationFunction(passes=21, kernels=9),
    # scaled, sigmoid, product: keeps the sigmoid as well
    "quick_gelu": ActivationFunction(passes=7, kernels=3, saved=3),
    # cubed, scaled, added, scaled, tanh, plus 1, halved, product: keeps half of its input, the
    # tanh, and that plus 1 as well; autocast runs powers, and what follows from them, in fp32
    "gelu_new": ActivationFunction(passes=18, kernels=8, saved=5, wide=3),
}
"""By Hugging Face's name."""


MASK_BYTES, INDEX_BYTES = 1, 8
"""Bytes that are kept of a dropped-out element, and of an index."""
NORM_BYTES = 8
"""Mean and inverse deviation of a row, which a normalisation keeps in fp32."""


Parameter = tuple[str, tuple[int, ...]]
"""Name and shape of a tensor that a module registers."""


@dataclass(frozen=True, slots=True)
class Module:
    """A layer, the parameters that it registers, and which gradients its backward completes.

    `layer`: with no tensor indices yet.
    `parameters`: name and shape, in registration order.
    `ready`: names in the order in which their gradients are complete.
    `buffers`: that it registers.
    `of_experts`: names of those parameters that hold experts.
    """

    layer: Layer
    parameters: tuple[Parameter, ...] = ()
    ready: tuple[str, ...] = ()
    buffers: tuple[Buffers, ...] = ()
    of_experts: frozenset[str] = frozenset()


def in_order(parts: Iterable[Module], order: Sequence[str], start: int) -> list[Parameter]:
    """Return all parameters in the order in which a family registers its modules.

    `start`: names of a path before those in `order`.
    """

    def place(parameter: Parameter) -> int:
        return order.index(
            parameter[0].removesuffix(".weight").removesuffix(".bias").split(".", start)[start]
        )

    return sorted((each for part in parts for each in part.parameters), key=place)


def with_work(part: Module, **changes: Any) -> Module:
    """Return a part whose layer differs in some fields."""
    return replace(part, layer=replace(part.layer, **changes))


def more_work(part: Module, **more: float) -> Module:
    """Return a part whose layer has more of some fields."""
    sums = {field: (getattr(part.layer, field) or 0) + each for field, each in more.items()}
    return with_work(part, **sums)


def rename(name: str, replaced: Sequence[Sequence[str]]) -> str:
    """Return a name with what stands for each pattern in it, one after the other."""
    for pattern, own in replaced:
        name = re.sub(pattern, own, name)
    return name


def renamed(part: Module, replaced: Sequence[Sequence[str]]) -> Module:
    """Return a part whose layer and parameters have other names."""
    return replace(
        with_work(part, name=rename(part.layer.name, replaced)),
        parameters=tuple((rename(name, replaced), shape) for name, shape in part.parameters),
        ready=tuple(rename(name, replaced) for name in part.ready),
    )


def weight_and_bias(prefix: str, *weight: int, bias: bool = True) -> tuple[Parameter, ...]:
    """Parameters of a linear map or convolution whose first dimension is its output."""
    parameters = ((f"{prefix}.weight", weight), (f"{prefix}.bias", weight[:1]))
    return parameters if bias else parameters[:1]


def norm_parameters(prefix: str, width: int) -> tuple[Parameter, ...]:
    """Parameters of a normalisation."""
    return weight_and_bias(prefix, width)


def names(parameters: Iterable[Parameter]) -> tuple[str, ...]:
    """Return the names alone: the ready order of convolutions and normalisations."""
    return tuple(name for name, _ in parameters)


def numels(parameters: Iterable[Parameter]) -> tuple[int, ...]:
    """Return the elements of each."""
    return tuple(math.prod(shape) for _, shape in parameters)


def names_reversed(parameters: Sequence[Parameter]) -> tuple[str, ...]:
    """Return the names from the last to the first: the ready order of linear maps."""
    return names(reversed(parameters))


def linear(
    name: str,
    tokens: int,
    inputs: int,
    outputs: int,
    *,
    parameters: tuple[Parameter, ...] | None = None,
    ready: tuple[str, ...] | None = None,
    vector_elements: float = 0.0,
    norm_elements: float = 0.0,
    wide_norm: bool = False,
    wide_elements: float = 0.0,
    fused_elements: float = 0.0,
    saved_elements: float = 0.0,
    stream_elements: float = 0.0,
    copied_elements: float = 0.0,
    narrow_elements: float = 0.0,
    saved_bytes: float = 0.0,
    fused_kept: Kept | None = None,
    kernels: int = 1,
    gradients: int = 2,
    calls: tuple[LayerCall, ...] = (),
) -> Module:
    """One matrix product of every token with a weight, and the element-wise work around it.

    `tokens`, `inputs`, `outputs`: of one sample: rows, columns before and after.
    `parameters`: in registration order; those of a map with a bias if not given.
    `ready`: ready order; the reverse of `parameters` if not given.
    `vector_elements`: element passes of the other kernels, per sample.
    `norm_elements`: those of normalisations over rows, beside `vector_elements`.
    `wide_norm`: whether these are single operations in fp32.
    `wide_elements`: part of `vector_elements` that is fp32 in any precision.
    `fused_elements`: of all of them, where a compiler makes each chain one kernel.
    `saved_elements`, `stream_elements`, `copied_elements`, `narrow_elements`, `saved_bytes`: kept
        (see `Layer`).
    `fused_kept`: instead of these where a compiler fuses (see `Layer`).
    `kernels`: with the matrix product.
    `gradients`: products of its backward (see `Layer`).
    `calls`: collectives among the ranks that share it.
    """
    parameters = weight_and_bias(name, outputs, inputs) if parameters is None else parameters
    return Module(
        Layer(
            name=name,
            matmul_flops=2.0 * tokens * inputs * outputs,
            matmul_bytes=float(ELEMENT_BYTES * tokens * (inputs + outputs)),
            vector_bytes=ELEMENT_BYTES * (vector_elements + norm_elements),
            weight_elements=float(inputs * outputs),
            saved_elements=saved_elements,
            stream_elements=stream_elements,
            copied_elements=copied_elements,
            narrow_elements=narrow_elements,
            saved_bytes=saved_bytes,
            kernels=kernels,
            matrix=MatrixProduct(tokens, outputs, inputs, has_bias=_has_bias(parameters)),
            norm_bytes=ELEMENT_BYTES * norm_elements,
            wide_norm=wide_norm,
            wide_bytes=ELEMENT_BYTES * wide_elements,
            fused_bytes=ELEMENT_BYTES * fused_elements,
            fused_kernels=1 + (fused_elements > 0),
            fused_kept=fused_kept,
            gradients=gradients,
            calls=calls,
        ),
        parameters,
        names_reversed(parameters) if ready is None else ready,
    )


def _has_bias(parameters: Sequence[Parameter]) -> bool:
    """Whether a linear map is among parameters with a bias: one beside a matrix, or alone."""
    shapes = dict(parameters)
    return any(
        len(shapes.get(f"{name.removesuffix('bias')}weight", (0, 0))) > 1
        for name in shapes
        if name.endswith(".bias")
    )


def assemble(
    name: str,
    parts: Sequence[Module],
    *,
    dtype: str,
    sample: Sample,
    source: str,
    input_elements: float,
    output_elements: float,
    registered: Sequence[Parameter] | None = None,
    buffers: tuple[Buffers, ...] = (),
    notes: tuple[str, ...] = (),
    shard: Shard = WHOLE,
    stream_elements: float = 0.0,
    routed_share: float = 1.0,
) -> Workload:
    """Turn parts in execution order into a workload.

    `registered`: all parameters in registration order, where that is not the order of the parts.
    `buffers`: that belong to no part.
    `notes`: what is estimated.
    `shard`: which part of the model it is.
    `stream_elements`: as of `Workload`.
    `routed_share`: part of the experts that a token is routed to.
    """
    order = registered or [parameter for part in parts for parameter in part.parameters]
    index = {parameter: position for position, (parameter, _) in enumerate(order)}
    groups = [*buffers, *(group for part in parts for group in part.buffers)]
    of_experts = frozenset(parameter for part in parts for parameter in part.of_experts)
    return Workload(
        name=name,
        tensors=tuple(
            ParameterTensor(parameter, shape, dtype, parameter in of_experts)
            for parameter, shape in order
        ),
        layers=tuple(
            replace(
                part.layer,
                tensors=tuple(index[parameter] for parameter in part.ready),
                calls=tuple(call for call in part.layer.calls if call.ranks > 1),
            )
            for part in parts
        ),
        sample=sample,
        buffers=tuple(
            Buffers(
                dtype,
                sum(group.tensors for group in groups if group.dtype == dtype),
                sum(group.nbytes for group in groups if group.dtype == dtype),
            )
            for dtype in dict.fromkeys(group.dtype for group in groups)
        ),
        output_elements=output_elements,
        input_elements=input_elements,
        source=source,
        notes=notes,
        shard=shard,
        stream_elements=stream_elements,
        routed_share=routed_share,
    )


def _joined_kept(layers: Sequence[Layer]) -> Kept | None:
    """What maps that were joined keep together, compiled; None where they state nothing."""
    stated = [layer.fused_kept for layer in layers if layer.fused_kept is not None]
    if len(stated) < len(layers):
        return None
    return Kept(
        saved_elements=sum(each.saved_elements for each in stated),
        stream_elements=sum(each.stream_elements for each in stated),
        saved_bytes=sum(each.saved_bytes for each in stated),
    )


def join_maps(parts: Sequence[Module], joined_name: str) -> Module:
    """Join maps of one input to one product, as libraries of model parallelism run them.

    The input is kept once. Gradients get ready together, those of the last map first.
    """
    first, layers = parts[0].layer, [part.layer for part in parts]
    products = [layer.matrix for layer in layers]
    columns = sum(each.columns for each in products if isinstance(each, MatrixProduct))
    assert isinstance(first.matrix, MatrixProduct)

    def total(field: str) -> float:
        return float(sum(getattr(layer, field) for layer in layers))

    reads = ELEMENT_BYTES * first.matrix.rows * first.matrix.depth
    summed = (
        "matmul_flops",
        "vector_bytes",
        "weight_elements",
        "saved_elements",
        "norm_bytes",
        "wide_bytes",
        "stream_elements",
        "saved_bytes",
        "narrow_elements",
    )
    sums: dict[str, Any] = {field: total(field) for field in summed}
    layer = replace(
        first,
        name=joined_name,
        **sums,
        matmul_bytes=total("matmul_bytes") - reads * (len(parts) - 1),
        fused_bytes=total("fused_bytes"),
        kernels=sum(layer.kernels for layer in layers) - len(parts) + 1,
        fused_kernels=sum(layer.fused_kernels for layer in layers) - len(parts) + 1,
        matrix=replace(first.matrix, columns=columns),
        calls=tuple(call for layer in layers for call in layer.calls),
        fused_kept=_joined_kept(layers),
    )
    return Module(
        layer,
        tuple(parameter for part in parts for parameter in part.parameters),
        tuple(name for part in reversed(parts) for name in part.ready),
    )
