"""Published models, built from the formulas of their architecture; see `build_model`.

Tensors and their order are those of torchvision and Hugging Face; a test holds the digests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.workload.model import Workload
from perfmodel.workload.shard import WHOLE, Shard
from perfmodel.workload.zoo import (
    amoebanet,
    bert,
    convolution_nets,
    decoder_sizes,
    depthwise_nets,
    dit,
    dlrm,
    expert_decoder,
    flux,
    image_stack,
    llama,
    t5,
    text_decoder,
    unet,
    whisper,
)
from perfmodel.workload.zoo.buildable import Buildable, build
from perfmodel.workload.zoo.expert_settings import ExpertSettings

_IMAGES: Mapping[str, tuple[Callable[..., Workload], int]] = {
    **{
        f"resnet{depth}": (partial(convolution_nets.resnet, depth), 224)
        for depth in convolution_nets.RESNET_DEPTHS
    },
    **{
        f"vgg{depth}": (partial(convolution_nets.vgg, depth), 224)
        for depth in convolution_nets.VGG_DEPTHS
    },
    "alexnet": (convolution_nets.alexnet, 224),
    **{
        name: (partial(amoebanet.amoebanet, name, **sizes), 224)
        for name, sizes in amoebanet.AMOEBANETS.items()
    },
    "inception-v3": (convolution_nets.inception_v3, 299),
    "vit-b-16": (image_stack.vit_b_16, 224),
    **{
        name: (partial(image_stack.vit, name), s.image)
        for name, s in image_stack.VIT_SHAPES.items()
    },
    **{
        name: (partial(image_stack.clip, name), s.image.image)
        for name, s in image_stack.CLIP_SHAPES.items()
    },
    **{
        name: (partial(depthwise_nets.convnext, name, **sizes), 224)
        for name, sizes in depthwise_nets.CONVNEXTS.items()
    },
    **{
        name: (partial(depthwise_nets.efficientnet, name, **sizes), sizes["image_size"])
        for name, sizes in depthwise_nets.EFFICIENTNETS.items()
    },
    unet.SDXL: (unet.unet, 1024),
    dit.DIT: (dit.dit, 256),
    **{name: (partial(flux.flux, name), 1024) for name in flux.FLUX_SHAPES},
}
"""Image models: their function, and the image size that their authors trained with."""

_SEQUENCES: Mapping[str, tuple[Callable[..., Workload], int]] = {
    **{name: (partial(bert.bert, name), bert.POSITIONS) for name in bert.SHAPES},
    **{
        name: (partial(text_decoder.gpt, name), shape.positions)
        for name, shape in text_decoder.GPT_SHAPES.items()
    },
    **{name: (partial(llama.llama, name), s.positions) for name, s in decoder_sizes.SHAPES.items()},
    **{
        name: (partial(expert_decoder.expert_decoder, name), shape.decoder.positions)
        for name, shape in decoder_sizes.EXPERT_SHAPES.items()
    },
    **{name: (partial(t5.t5, name), t5.INPUTS) for name in t5.SHAPES},
    **{
        name: (partial(whisper.whisper, name), s.targets)
        for name, s in whisper.WHISPER_SHAPES.items()
    },
}
"""Sequence models: their function, and the sequence that their authors trained with."""

_ROWS: Mapping[str, Callable[..., Workload]] = {
    name: partial(dlrm.dlrm, name, **sizes) for name, sizes in dlrm.DLRMS.items()
}
"""Models of rows of a table, which have no size to choose."""

_UNLIMITED = frozenset({*decoder_sizes.SHAPES, *decoder_sizes.EXPERT_SHAPES, *t5.SHAPES})
"""Models whose positions, rotary or relative, have no table of limited length."""


def zoo_names() -> tuple[str, ...]:
    """Names that `build_model` knows."""
    return (*_IMAGES, *_SEQUENCES, *_ROWS)


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
    return build(
        zoo_model(name),
        dtype=dtype,
        image_size=image_size,
        sequence_length=sequence_length,
        shard=shard,
        experts=experts,
    )


def zoo_model(name: str) -> Buildable:
    """Return a model of the zoo before it is built.

    Raises `InputError`: an unknown name.
    """
    if name not in zoo_names():
        raise InputError(Fault("model", repr(name), allowed_names(zoo_names(), name)))
    if name in _IMAGES:
        make, default = _IMAGES[name]
        return Buildable(name, make, default, "image")
    if name in _ROWS:
        return Buildable(name, _ROWS[name], 1, "row")
    make, default = _SEQUENCES[name]
    return Buildable(
        name,
        make,
        default,
        longest=None if name in _UNLIMITED else default,
        has_experts=name in decoder_sizes.EXPERT_SHAPES,
    )
