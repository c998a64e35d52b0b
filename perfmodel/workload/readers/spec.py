"""Schema of a user's model file in YAML: parameters, layers, measured times.

One file may hold all three; a file of times alone is used with a model of the zoo.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from perfmodel.files import Bandwidth, Bytes, Count, FileModel, Seconds, SizeOrNothing, check_rows
from perfmodel.units import format_bytes
from perfmodel.workload.readers.csv_tables import (
    MOST_ELEMENTS,
    TRAINABLE,
    parse_dtype,
    parse_shape,
)

Name = Annotated[str, Field(min_length=1)]
Shape = Annotated[tuple[int, ...], BeforeValidator(parse_shape)]
Dtype = Annotated[str, BeforeValidator(parse_dtype)]

Elements = Annotated[float, Field(ge=0, le=MOST_ELEMENTS)]

MOST_BUFFER_BYTES = 100e9
"""As much as a large GPU has memory; each 250 MiB of them is a broadcast of its own."""


def _check_buffers(nbytes: float) -> float:
    check_rows((nbytes > MOST_BUFFER_BYTES, f"at most {format_bytes(MOST_BUFFER_BYTES)}"))
    return nbytes


class ParameterSpec(FileModel):
    """One parameter tensor; its size is `shape` or `numel`."""

    name: Name
    shape: Shape | None = None
    numel: Annotated[int, Field(strict=True, gt=0, le=MOST_ELEMENTS)] | None = None
    dtype: Dtype = "fp32"
    requires_grad: bool = True
    layer: Name | None = None

    @model_validator(mode="after")
    def _sized(self) -> Self:
        elements, is_sized = math.prod(self.extents), self.shape is not None
        check_rows(
            (not is_sized and self.numel is None, "a shape such as [64, 3, 7, 7], or numel"),
            (
                is_sized and self.numel not in {None, elements},
                f"numel {elements}, the product of the shape",
            ),
            (
                self.requires_grad and self.dtype not in TRAINABLE,
                "requires_grad: false for whole numbers, which have no gradient",
            ),
        )
        return self

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape, or one dimension of `numel`."""
        return self.shape if self.shape is not None else (self.numel or 0,)


Size = Annotated[int, Field(strict=True, gt=0, le=MOST_ELEMENTS)]
Sides = tuple[Size, Size]


class ProductSpec(FileModel):
    """A product of (rows x depth) with (depth x columns), of one sample; `count` of them.

    `bias`: whether a vector is added to each row. `activations`: whether neither is a weight.
    """

    rows: Size
    columns: Size
    depth: Size
    count: Size = 1
    bias: bool = False
    activations: bool = False


class ConvolutionSpec(FileModel):
    """A convolution of one sample: channels, heights and widths before and after, its kernel.

    `bias`: whether a vector over its channels is added.
    """

    in_channels: Size
    out_channels: Size
    in_size: Sides
    out_size: Sides
    kernel: Sides
    groups: Size = 1
    bias: bool = False

    @model_validator(mode="after")
    def _check_groups(self) -> Self:
        channels = f"{self.in_channels} input and {self.out_channels} output channels"
        uneven = self.in_channels % self.groups or self.out_channels % self.groups
        check_rows((uneven, f"groups that divide {channels}"))
        return self


class AttentionSpec(FileModel):
    """Attention of one sample; without `kv_heads`, `keys` and `value_head_size` as the queries.

    `dropout`: whether scores are dropped out. `window`: tokens that a causal query sees at most.
    """

    tokens: Size
    heads: Size
    head_size: Size
    kv_heads: Size | None = None
    causal: bool = False
    keys: Size | None = None
    window: Size | None = None
    value_head_size: Size | None = None
    dropout: bool = False


class LayerSpec(FileModel):
    """One layer: its parameters in gradient-ready order, its measured times or its work.

    `product`, `convolution` or `attention` is the shape of its matrix kernel, which has
    ``matmul_flops`` unless these are stated. `weights` are elements read once per pass.
    Of `vector`, `norm` moves in normalisations over rows (in fp32 in any precision where
    `wide_norm`), `wide` in fp32 in any precision; `fused` is left of it where a compiler fuses.
    Kept beside `activations`: `stream`, in fp32 under autocast, `copied`, once more under autocast,
    both at 4 bytes per element, and `fixed`, bytes in any precision. `gradients`: products of
    backward for each of forward, 1 or 0 with frozen parameters.
    """

    name: Name
    parameters: tuple[Name, ...] = ()
    forward: Seconds | None = None
    backward: Seconds | None = None
    kernels: Count = 1
    matmul_flops: Annotated[float, Field(ge=0, le=1e24)] | None = None
    vector: SizeOrNothing | None = None
    operands: SizeOrNothing | None = None
    activations: SizeOrNothing | None = None
    product: ProductSpec | None = None
    convolution: ConvolutionSpec | None = None
    attention: AttentionSpec | None = None
    weights: Annotated[int, Field(strict=True, ge=0, le=MOST_ELEMENTS)] | None = None
    norm: SizeOrNothing = 0.0
    wide_norm: bool = False
    wide: SizeOrNothing = 0.0
    fused: SizeOrNothing | None = None
    fused_kernels: Count = 1
    stream: SizeOrNothing = 0.0
    copied: SizeOrNothing = 0.0
    fixed: SizeOrNothing = 0.0
    gradients: Literal[0, 1, 2] = 2

    @model_validator(mode="after")
    def _check_work(self) -> Self:
        shapes = [name for name in ("product", "convolution", "attention") if getattr(self, name)]
        parts, whole = self.norm + self.wide, self.vector or 0.0
        named = " and ".join(shapes)
        check_rows(
            (len(shapes) > 1, f"one of {named}: a layer has one matrix kernel"),
            (parts > whole * (1 + 1e-9), "norm and wide that are parts of vector"),
            (
                shapes and self.matmul_flops == 0,
                f"more than 0 matmul_flops of {named}, or none",
            ),
            (self.fused_kernels > 1 and self.fused is None, "fused beside fused_kernels"),
            (self.wide_norm and not self.norm, "norm beside wide_norm"),
        )
        return self


class BufferSpec(FileModel):
    """Buffers of one data type: how many there are, and bytes of all of them."""

    dtype: Dtype
    tensors: Count
    size: Annotated[Bytes, AfterValidator(_check_buffers)]


class ModelSpec(FileModel):
    """A model, its times, or both.

    ``matmul_flops``, ``vector`` (traffic of element-wise kernels), ``operands`` (activations that
    matrix kernels read and write) and a layer's ``activations`` (kept for backward) are per sample,
    bytes at 4 per element; without them they are estimated. ``activations`` of the model are
    measured, of a whole micro-batch. `buffer_groups` state buffers by data type.
    `inputs`, `outputs` and `stream` (what repeated blocks hand on) are elements of one sample.
    `sample` is what one is ("sequence of 512 tokens"), counted by its first word ("sequences");
    with `tokens_per_sample` plans can count in tokens. `device` is what its times were taken on: a
    GPU of the table; without it they hold for any machine.
    """

    perfmodel: Literal[1] = 1
    kind: Literal["model"] = "model"
    name: Name | None = None
    description: str = ""
    sample: Name = "sample"
    tokens_per_sample: Size | None = None
    parameters: tuple[ParameterSpec, ...] = ()
    layers: tuple[LayerSpec, ...] = ()
    buffers: Annotated[Bytes, AfterValidator(_check_buffers)] | None = None
    buffer_groups: tuple[BufferSpec, ...] = ()
    inputs: Elements = 0.0
    outputs: Elements = 0.0
    stream: Elements = 0.0
    launch: Seconds | None = None
    optimizer: Seconds | None = None
    activations: Bytes | None = None
    copy_rate: Bandwidth | None = None
    device: Name | None = None

    @model_validator(mode="after")
    def _check_buffer_groups(self) -> Self:
        both = self.buffers is not None and self.buffer_groups
        check_rows((both, "buffers or buffer_groups, not both"))
        return self
