"""Published models, built from the formulas of their architecture; see `build_model`.

Tensors and their order are those of torchvision and Hugging Face; a test holds the digests.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.workload.shard import WHOLE, Shard
from perfmodel.workload.zoo.buildable import Buildable, build

if TYPE_CHECKING:
    from collections.abc import Mapping

    from perfmodel.workload.model import Workload
    from perfmodel.workload.zoo.expert_settings import ExpertSettings

_FAMILIES = (
    *("convolution_nets", "bert", "text_decoder", "llama", "expert_decoder", "t5", "whisper"),
    *("image_stack", "depthwise_nets", "unet", "dit", "flux", "dlrm"),
)
"""Modules that have `MODELS`, those that are asked for most first: a run imports the others only
where its model is none of these."""


@cache
def _models(family: str) -> Mapping[str, Buildable]:
    models: Mapping[str, Buildable] = import_module(f"{__name__}.{family}").MODELS
    return models


def zoo_names() -> tuple[str, ...]:
    """Names that `build_model` knows."""
    return tuple(name for family in _FAMILIES for name in _models(family))


def build_model(
    name: str,
    *,
    dtype: str = "fp32",
    image_size: int | None = None,
    sequence_length: int | None = None,
    shard: Shard = WHOLE,
    experts: ExpertSettings | None = None,
) -> Workload:
    """Build a model of the zoo.

    Parameters
    ----------
    name : str
        One of `zoo_names`.
    dtype : str
        Of the parameters: "fp32" (also under autocast), "bf16" or "fp16".
    image_size : int, optional
        Height and width; 224 (Inception: 299) if not given. Image models only.
    sequence_length : int, optional
        Tokens of one sample; those of pre-training if not given (BERT and T5 512, GPT-2 1024, GPT-3
        2048, Llama 2 and Qwen 4096, Llama 3, Mistral and Gemma 8192, Gemma 3 32768). T5's decoder
        has those that span corruption leaves it: 114 of 512. Sequence models only.
    shard : Shard
        Which part of it one rank holds; all of it unless stated. Sequence models only.
    experts : ExpertSettings, optional
        How experts run. Models of experts only.

    Returns
    -------
    Workload

    Raises
    ------
    InputError
        Unknown name, dtype or size, or a size of the other kind of model.

    Examples
    --------
    >>> build_model("resnet50").parameters
    25557032
    """
    model = zoo_model(name)
    if model is None:
        raise InputError(Fault("model", repr(name), allowed_names(zoo_names(), name)))
    return build(
        model,
        dtype=dtype,
        image_size=image_size,
        sequence_length=sequence_length,
        shard=shard,
        experts=experts,
    )


def zoo_model(name: str) -> Buildable | None:
    """Return a model of the zoo before it is built; None: no model has this name."""
    return next((_models(each)[name] for each in _FAMILIES if name in _models(each)), None)
