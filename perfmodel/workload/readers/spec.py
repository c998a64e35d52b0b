"""Schema of a user's model file in YAML: parameters, layers, measured times.

One file may hold all three; a file of times alone is used with a model of the zoo.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from perfmodel.files import Bandwidth, Bytes, Count, FileModel, Seconds
from perfmodel.units import format_bytes
from perfmodel.workload.readers.fields import MOST_ELEMENTS, TRAINABLE, parse_dtype, parse_shape

Name = Annotated[str, Field(min_length=1)]
Shape = Annotated[tuple[int, ...], BeforeValidator(parse_shape)]
Dtype = Annotated[str, BeforeValidator(parse_dtype)]

MOST_BUFFER_BYTES = 100e9
"""As much as a large GPU has memory; each 250 MiB of them is a broadcast of its own."""


def _check_buffers(nbytes: float) -> float:
    if nbytes > MOST_BUFFER_BYTES:
        raise ValueError(f"at most {format_bytes(MOST_BUFFER_BYTES)}")
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
        if self.shape is None and self.numel is None:
            raise ValueError("a shape such as [64, 3, 7, 7], or numel")
        if None not in (self.shape, self.numel) and math.prod(self.extents) != self.numel:
            raise ValueError(f"numel {math.prod(self.extents)}, the product of the shape")
        if self.requires_grad and self.dtype not in TRAINABLE:
            raise ValueError("requires_grad: false for whole numbers, which have no gradient")
        return self

    @property
    def extents(self) -> tuple[int, ...]:
        """The shape, or one dimension of `numel`."""
        return self.shape if self.shape is not None else (self.numel or 0,)


class LayerSpec(FileModel):
    """One layer: its parameters in gradient-ready order, its measured times or its work."""

    name: Name
    parameters: tuple[Name, ...] = ()
    forward: Seconds | None = None
    backward: Seconds | None = None
    kernels: Count = 1
    matmul_flops: Annotated[float, Field(ge=0, le=1e24)] = 0.0
    vector: Bytes | None = None
    operands: Bytes | None = None
    activations: Bytes | None = None


class ModelSpec(FileModel):
    """A model, its times, or both.

    ``matmul_flops``, ``vector`` (traffic of element-wise kernels), ``operands`` (activations that
    matrix kernels read and write) and a layer's ``activations`` (kept for backward) are per sample,
    bytes at 4 per element; without them they are estimated. ``activations`` of the model are
    measured, of a whole micro-batch.
    """

    perfmodel: Literal[1] = 1
    kind: Literal["model"] = "model"
    name: Name | None = None
    description: str = ""
    sample: Name = "sample"
    parameters: tuple[ParameterSpec, ...] = ()
    layers: tuple[LayerSpec, ...] = ()
    buffers: Annotated[Bytes, AfterValidator(_check_buffers)] | None = None
    launch: Seconds | None = None
    optimizer: Seconds | None = None
    activations: Bytes | None = None
    copy_rate: Bandwidth | None = None
