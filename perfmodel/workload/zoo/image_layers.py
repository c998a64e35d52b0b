"""Layers of models of images: convolutions with what follows them, pooling, a classifier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.errors import refuse_if
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.kernels.shapes import Convolution
from perfmodel.workload.model import ELEMENT_BYTES, Buffers, Layer, Sample, Workload
from perfmodel.workload.zoo.layers import (
    INDEX_BYTES,
    Module,
    Parameter,
    assemble,
    linear,
    more_work,
    names,
    norm_parameters,
    weight_and_bias,
    with_work,
)

IMAGENET_CLASSES = 1000
"""Classes of ImageNet."""


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


def output_size(
    image: Image,
    kernel: tuple[int, int],
    stride: int | Sequence[int],
    padding: tuple[int, int],
    layer: str,
) -> tuple[int, int]:
    """Height and width after a sliding window.

    Raises `InputError`: the image is too small for this layer.
    """
    steps = pair(stride)
    height = (image.height + 2 * padding[0] - kernel[0]) // steps[0] + 1
    width = (image.width + 2 * padding[1] - kernel[1]) // steps[1] + 1
    refuse_if(
        height < 1 or width < 1,
        "image_size",
        f"an image that is down to {image.height} x {image.width} before {layer!r}",
        "a larger image",
    )
    return height, width


def pair(value: int | Sequence[int]) -> tuple[int, int]:
    """Return (height, width) of a size that may be given once for both."""
    return (value, value) if isinstance(value, int) else (value[0], value[1])


def convolution(
    name: str,
    image: Image,
    channels: int,
    kernel: int | Sequence[int],
    *,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    groups: int = 1,
    norm: str | None = None,
    relu: bool = True,
    residual: bool = False,
    channels_last: bool = False,
) -> tuple[Module, Image]:
    """One convolution with what follows it: batch normalisation, residual addition, ReLU.

    Without `norm` the convolution has a bias; with "" it has neither. Multiply-accumulates: one per
    output element, input channel (of its group) and kernel position. Kept for backward: the
    convolution's output where batch normalisation needs it, and the activation (the next layer's
    input).

    `channels_last`: whether its images are laid out so in any case.
    """
    kernel = pair(kernel)
    height, width = output_size(image, kernel, stride, pair(padding), name)
    out = Image(channels, height, width)
    inputs = image.channels // groups
    parameters = weight_and_bias(name, channels, inputs, *kernel, bias=norm is None)
    passes = (
        (passes_of("batch_norm") if norm else 0)
        + relu * passes_of("activation")
        + residual * passes_of("addition")
    )
    normed = norm_parameters(norm, channels) if norm else ()
    fused = passes_of("batch_norm") + residual if norm else relu * passes_of("activation")
    # batch normalisation also counts its batches, for a fifth of a kernel's time of the host
    kernels = 1 + bool(norm) + relu + residual
    layer = Layer(
        name=name,
        matmul_flops=2.0 * out.elements * inputs * kernel[0] * kernel[1],
        matmul_bytes=float(ELEMENT_BYTES * (image.elements + out.elements)),
        vector_bytes=float(ELEMENT_BYTES * passes * out.elements),
        # ReLU and the addition join the kernel that applies the normalisation
        fused_bytes=float(ELEMENT_BYTES * fused * out.elements),
        fused_kernels=min(kernels, 1 + 2 * bool(norm) + (not norm and relu)),
        weight_elements=float(channels * inputs * kernel[0] * kernel[1]),
        saved_elements=float(out.elements * (bool(norm) + relu)),
        statistics_elements=float(out.elements * bool(norm)),
        kernels=kernels,
        kind="conv",
        matrix=Convolution(
            image.channels,
            channels,
            (image.height, image.width),
            (height, width),
            kernel,
            groups=groups,
            has_bias=norm is None,
            channels_last=channels_last,
        ),
    )
    ready = names(normed) + names(parameters)
    return Module(layer, parameters + normed, ready, norm_buffers(channels) if norm else ()), out


def norm_buffers(channels: int) -> tuple[Buffers, ...]:
    """Mean and variance of a batch normalisation, and its counter of batches."""
    return Buffers("fp32", 2, 2 * 4 * channels), Buffers("int64", 1, 8)


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
    return Module(
        Layer(
            name,
            vector_bytes=ELEMENT_BYTES * float(image.elements + out.elements) + index_bytes,
            saved_elements=out.elements,
            saved_bytes=index_bytes,
        )
    ), out


def adaptive_pooling(name: str, image: Image, size: int) -> tuple[Module, Image]:
    """Adaptive average pooling to `size` x `size`."""
    out = Image(image.channels, size, size)
    moved = float(image.elements + out.elements)
    return Module(Layer(name, vector_bytes=ELEMENT_BYTES * moved, saved_elements=out.elements)), out


def classifier(image: Image, prefix: str = "", *, classes: int = IMAGENET_CLASSES) -> list[Module]:
    """Average every channel, and map the averages to classes."""
    pool, pooled = adaptive_pooling(f"{prefix}avgpool", image, 1)
    return [pool, linear(f"{prefix}fc", 1, pooled.channels, classes)]


def hand_on(parts: Sequence[Module], elements: int) -> list[Module]:
    """Return the parts of a block, of which the last hands so many elements to the next block.

    Only where nothing else goes on beside them: there a pipeline may be cut.
    """
    return [*parts[:-1], with_work(parts[-1], output_elements=float(elements))]


def image_model(
    name: str,
    parts: Sequence[Module],
    *,
    dtype: str,
    image_size: int,
    source: str,
    registered: Sequence[Parameter] | None = None,
    classes: int = IMAGENET_CLASSES,
) -> Workload:
    """Turn parts in execution order into a model of square colour images.

    The first convolution keeps the image.
    """
    return assemble(
        name,
        [more_work(parts[0], saved_elements=3.0 * image_size**2), *parts[1:]],
        dtype=dtype,
        sample=Sample("image", is_image=True),
        source=source,
        input_elements=3.0 * image_size**2,
        output_elements=classes,
        registered=registered,
    )
