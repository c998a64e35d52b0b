"""Layers of the zoo's models, one `Module` each, and `assemble`, which makes a model of them.

The ready order of a module is the order in which PyTorch's autograd completes its gradients, which
is not simply the reverse of registration: convolutions and normalisations complete the gradient of
the weight before that of the bias, linear maps that of the bias first (the weight's passes a
transpose). Observed with post-accumulate-grad hooks on PyTorch 2.13; tests repeat it with torch.

Memory traffic counts passes over a tensor: a pass reads or writes each element once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.workload.kernels.shapes import Convolution, MatrixProduct
from perfmodel.workload.model import Buffers, FusedKept, Layer, ParameterTensor, Workload
from perfmodel.workload.shards.calls import LayerCall
from perfmodel.workload.shards.shard import WHOLE, Shard

ELEMENT_BYTES = 4
"""Layers state their traffic at 4 bytes per element (see `Layer`)."""

NORM_PASSES = 2
"""Layer normalisation, forward: read and write (a row fits on chip)."""
BATCH_NORM_PASSES = 3
"""Batch normalisation in training, forward: read for the statistics, read and write to apply."""
ACTIVATION_PASSES = 2
"""ReLU, GELU, tanh, softmax as one kernel: read and write."""
ADD_PASSES = 3
"""A residual addition: two reads and a write."""
LOSS_PASSES = 6
"""Cross entropy over logits, forward: 4.4 passes of fp32 measured on an A100 for
torch.nn.CrossEntropyLoss (linkedin/Liger-Kernel, benchmark data, "huggingface"), and 1.5 to cast
the logits from half precision."""
FUSED_NORM_PASSES = 3
"""A normalisation over rows as a compiler fuses it: read and written; its backward takes five
passes, which at 5/3 of forward (see `kernel_constants.yaml`) are those of three."""
FUSED_LOSS_PASSES = 1.5
"""Cross entropy as a compiler fuses it: half-precision logits read twice, for the greatest and for
the sum; their gradient is written in half precision."""
JOIN_PASSES = 3
"""A chain that ends in a residual addition, fused: two reads and a write."""
DROPPED_PASSES = 2
"""Stochastic depth: a factor for each sample; its draw and scale are tiny kernels of their own."""
DROPOUT_PASSES = 2.25
"""Read, write, and a mask of one byte for each element of four."""
MASK_BYTES, INDEX_BYTES, WIDE_BYTES = 1, 8, 4
"""Bytes that are kept of a dropped-out element, of an index, and of an element of a loss in fp32:
its softmax, of logits in any precision."""
NORM_BYTES = 8
"""Mean and inverse deviation of a row, which a normalisation keeps in fp32."""

CLASSES = 1000
"""Classes of ImageNet."""

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


@dataclass(frozen=True, slots=True)
class Image:
    """A feature map of one sample."""

    channels: int
    height: int
    width: int

    @property
    def elements(self) -> int:
        """Elements of the feature map."""
        return self.channels * self.height * self.width


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


def output_size(
    image: Image, kernel: tuple[int, int], stride: int, padding: tuple[int, int], layer: str
) -> tuple[int, int]:
    """Height and width after a sliding output_size.

    Raises `InputError`: the image is too small for this layer.
    """
    height = (image.height + 2 * padding[0] - kernel[0]) // stride + 1
    width = (image.width + 2 * padding[1] - kernel[1]) // stride + 1
    if height < 1 or width < 1:
        size_text = f"an image that is down to {image.height} x {image.width} before {layer!r}"
        raise InputError(Fault("image_size", size_text, "a larger image"))
    return height, width


def pair(value: int | tuple[int, int]) -> tuple[int, int]:
    """Return (height, width) of a size that may be given once for both."""
    return value if isinstance(value, tuple) else (value, value)


def convolution(
    name: str,
    image: Image,
    channels: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    groups: int = 1,
    norm: str | None = None,
    relu: bool = True,
    residual: bool = False,
) -> tuple[Module, Image]:
    """One convolution with what follows it: batch normalisation, residual addition, ReLU.

    Without `norm` the convolution has a bias. Multiply-accumulates: one per output element,
    input channel (of its group) and kernel position. Kept for backward: the convolution's output
    where batch normalisation needs it, and the activation (the next layer's input).
    """
    kernel = pair(kernel)
    height, width = output_size(image, kernel, stride, pair(padding), name)
    out = Image(channels, height, width)
    inputs = image.channels // groups
    parameters = weight_and_bias(name, channels, inputs, *kernel, bias=norm is None)
    passes = (BATCH_NORM_PASSES if norm else 0) + relu * ACTIVATION_PASSES + residual * ADD_PASSES
    normed = norm_parameters(norm, channels) if norm else ()
    fused = BATCH_NORM_PASSES + residual if norm else relu * ACTIVATION_PASSES
    layer = Layer(
        name=name,
        matmul_flops=2.0 * out.elements * inputs * kernel[0] * kernel[1],
        matmul_bytes=float(ELEMENT_BYTES * (image.elements + out.elements)),
        vector_bytes=float(ELEMENT_BYTES * passes * out.elements),
        # ReLU and the addition join the kernel that applies the normalisation
        fused_bytes=float(ELEMENT_BYTES * fused * out.elements),
        fused_kernels=1 + 2 * (norm is not None) + (norm is None and relu),
        weight_elements=float(channels * inputs * kernel[0] * kernel[1]),
        saved_elements=float(out.elements * ((norm is not None) + relu)),
        # batch normalisation also counts its batches, a kernel of its own
        kernels=1 + 2 * (norm is not None) + relu + residual,
        kind="conv",
        matrix=Convolution(
            image.channels,
            channels,
            (image.height, image.width),
            (height, width),
            kernel,
            groups=groups,
        ),
    )
    statistics = Buffers("fp32", 2, 2 * 4 * channels)  # mean and variance
    buffers = (statistics, Buffers("int64", 1, 8)) if norm else ()  # and a counter of batches
    return Module(layer, parameters + normed, names(normed) + names(parameters), buffers), out


def pooling(
    name: str,
    image: Image,
    kernel: int,
    *,
    stride: int = 1,
    padding: int = 0,
    indices: bool = True,
) -> tuple[Module, Image]:
    """Max pooling (keeps int64 indices for backward) or, without `indices`, average pooling."""
    out = Image(image.channels, *output_size(image, pair(kernel), stride, pair(padding), name))
    index_bytes = float(INDEX_BYTES * out.elements * indices)
    layer = Layer(
        name, vector_bytes=ELEMENT_BYTES * float(image.elements + out.elements) + index_bytes,
        saved_elements=out.elements, saved_bytes=index_bytes,
    )  # fmt: skip
    return Module(layer), out


def adaptive_pooling(name: str, image: Image, size: int) -> tuple[Module, Image]:
    """Adaptive average pooling to `size` x `size`."""
    out = Image(image.channels, size, size)
    moved = float(image.elements + out.elements)
    return Module(Layer(name, vector_bytes=ELEMENT_BYTES * moved, saved_elements=out.elements)), out


def linear(
    name: str,
    tokens: int,
    inputs: int,
    outputs: int,
    *,
    parameters: tuple[Parameter, ...],
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
    fused_kept: FusedKept | None = None,
    kernels: int = 1,
    calls: tuple[LayerCall, ...] = (),
) -> Module:
    """One matrix product of every token with a weight, and the element-wise work around it.

    `tokens`, `inputs`, `outputs`: of one sample: rows, columns before and after.
    `parameters`: in registration order.
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
    `calls`: collectives among the ranks that share it.
    """
    layer = Layer(
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
        calls=calls,
    )
    return Module(layer, parameters, names_reversed(parameters) if ready is None else ready)


def _has_bias(parameters: Sequence[Parameter]) -> bool:
    """Whether a linear map is among parameters with a bias: one beside a matrix, or alone."""
    shapes = dict(parameters)
    return any(
        len(shapes.get(f"{name.removesuffix('bias')}weight", (0, 0))) > 1
        for name in shapes
        if name.endswith(".bias")
    )


def classifier(image: Image, prefix: str = "", *, classes: int = CLASSES) -> list[Module]:
    """Average every channel, and map the averages to classes."""
    pool, pooled = adaptive_pooling(f"{prefix}avgpool", image, 1)
    head = weight_and_bias(f"{prefix}fc", classes, pooled.channels)
    return [pool, linear(f"{prefix}fc", 1, pooled.channels, classes, parameters=head)]


def image_model(
    name: str,
    parts: Sequence[Module],
    *,
    dtype: str,
    image_size: int,
    source: str,
    registered: Sequence[Parameter] | None = None,
) -> Workload:
    """Turn parts in execution order into a model of square colour images and ImageNet's classes.

    The first convolution keeps the image.
    """
    layer = parts[0].layer
    first = replace(layer, saved_elements=layer.saved_elements + 3.0 * image_size**2)
    return assemble(
        name, [replace(parts[0], layer=first), *parts[1:]], dtype=dtype, sample="image",
        source=source,
        input_elements=3.0 * image_size**2, output_elements=CLASSES, registered=registered,
    )  # fmt: skip


def assemble(
    name: str,
    parts: Sequence[Module],
    *,
    dtype: str,
    sample: str,
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
    of_experts = frozenset(parameter for part in parts for parameter in part.of_experts)
    return Workload(
        name=name,
        tensors=tuple(
            ParameterTensor(parameter, shape, dtype, parameter in of_experts)
            for parameter, shape in order
        ),
        layers=tuple(
            replace(part.layer, tensors=tuple(index[parameter] for parameter in part.ready))
            for part in parts
        ),
        sample=sample,
        buffers=_by_dtype([*buffers, *(group for part in parts for group in part.buffers)]),
        output_elements=output_elements,
        input_elements=input_elements,
        source=source,
        notes=notes,
        shard=shard,
        stream_elements=stream_elements,
        routed_share=routed_share,
    )


def _by_dtype(groups: Sequence[Buffers]) -> tuple[Buffers, ...]:
    dtypes = dict.fromkeys(group.dtype for group in groups)
    return tuple(
        Buffers(
            dtype,
            sum(group.tensors for group in groups if group.dtype == dtype),
            sum(group.nbytes for group in groups if group.dtype == dtype),
        )
        for dtype in dtypes
    )


def _joined_kept(layers: Sequence[Layer]) -> FusedKept | None:
    """What maps that were joined keep together, compiled; None where they state nothing."""
    stated = [layer.fused_kept for layer in layers if layer.fused_kept is not None]
    if len(stated) < len(layers):
        return None
    return FusedKept(
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
        "matmul_flops", "vector_bytes", "weight_elements", "saved_elements", "norm_bytes",
        "wide_bytes", "stream_elements", "saved_bytes", "narrow_elements",
    )  # fmt: skip
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
    )  # fmt: skip
    return Module(
        layer,
        tuple(parameter for part in parts for parameter in part.parameters),
        tuple(name for part in reversed(parts) for name in part.ready),
    )
