"""Communication hooks of DistributedDataParallel, one class for each family."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_serializer, model_validator

from perfmodel.files import Count, FileModel
from perfmodel.scenario.sections.base import OrName, Switch
from perfmodel.units import MOST_COUNT


class CastHook(FileModel):
    """Each bucket in one all-reduce, as it is or in 16 bits.

    `none`: no hook: gradients are divided while they are copied into their bucket. `allreduce`:
    PyTorch's ``allreduce_hook``, which divides the bucket on its own.
    """

    kind: Literal["none", "allreduce", "fp16", "bf16"] = "none"

    @model_serializer
    def _write_name(self) -> str:
        return self.kind


class PowerSgdHook(FileModel):
    """``powerSGD_hook``, with the names of ``PowerSGDState``."""

    kind: Literal["powersgd"]
    rank: Count = Field(default=1, description="matrix_approximation_rank")
    start_iteration: Annotated[int, Field(strict=True, ge=0, le=MOST_COUNT)] = Field(
        default=1000, description="start_powerSGD_iter: steps before it reduce whole buckets"
    )
    min_compression_rate: Annotated[float, Field(strict=True, gt=0, le=1e9)] = 2.0
    use_error_feedback: Switch = True
    warm_start: Switch = True
    orthogonalization_epsilon: Annotated[float, Field(strict=True, ge=0, le=1)] = 0.0
    batch_tensors_with_same_shape: Switch = False
    wrapper: Literal["fp16", "bf16"] | None = Field(
        default=None, description="fp16_compress_wrapper or bf16_compress_wrapper around it"
    )

    @model_validator(mode="after")
    def _check_start(self) -> PowerSgdHook:
        if (self.use_error_feedback or self.warm_start) and self.start_iteration <= 1:
            raise ValueError(
                "a 'start_iteration' of 2 or more with 'use_error_feedback' or 'warm_start', as "
                "PyTorch asks for: buckets are rebuilt after the first step"
            )
        return self


class TopKHook(FileModel):
    """The largest gradients of each bucket and their places, gathered from all ranks.

    PyTorch has none; as in Deep Gradient Compression (Lin and others, ICLR 2018).
    """

    kind: Literal["topk"]
    ratio: Annotated[float, Field(strict=True, gt=0, le=1)] = Field(
        default=0.01, description="elements of a bucket that are sent"
    )
    use_error_feedback: Switch = True
    index_dtype: Literal["int32", "int64"] = "int32"


class OneBitHook(FileModel):
    """Signs of each bucket and one scale, gathered from all ranks.

    PyTorch has none; as in EF-signSGD (Karimireddy and others, ICML 2019).
    """

    kind: Literal["onebit"]
    use_error_feedback: Switch = True


class QuantizationHook(FileModel):
    """``quantization_pertensor_hook`` and ``quantization_perchannel_hook``: 8 bits, gathered."""

    kind: Literal["quantization_pertensor", "quantization_perchannel"]
    bucket_size: Count | None = Field(
        default=None, description="elements that share a scale, per channel; default: 512"
    )

    @property
    def channel_elements(self) -> int:
        """Elements that share a scale, where each channel has one."""
        return 512 if self.bucket_size is None else self.bucket_size

    @model_validator(mode="after")
    def _check_bucket_size(self) -> QuantizationHook:
        if self.kind == "quantization_pertensor" and self.bucket_size is not None:
            raise ValueError("no 'bucket_size' with 'quantization_pertensor', which has one scale")
        return self


NO_HOOK = CastHook()

Hook = CastHook | PowerSgdHook | TopKHook | OneBitHook | QuantizationHook


BATCHED = "batched_powersgd"


def _name_alone(value: object) -> object:
    section = {"kind": value} if isinstance(value, str) else value
    if not isinstance(section, Mapping):
        return value
    if section.get("kind") == BATCHED:
        raise ValueError(
            "'powersgd': batched_powerSGD_hook of torch 2.13 fails with an AssertionError in "
            "_orthogonalize, which takes batches of matrices only"
        )
    if section.get("kind") in ("post_local_sgd", "post_localSGD", "postlocalsgd"):
        raise ValueError(
            "'none': post-local SGD is 'strategy.kind: local_sgd' with 'warmup_steps', its hook "
            "and its averaging together"
        )
    return {"kind": "none", **section}


HookSection = Annotated[
    Annotated[Hook, Field(discriminator="kind")], BeforeValidator(_name_alone), OrName()
]
"""A hook by its `kind`, alone or with fields."""
