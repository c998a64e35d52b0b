"""Whisper with Hugging Face's tensors: convolutions and an encoder of sound, a decoder of text."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial

from perfmodel.errors import raise_faults
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.model import ELEMENT_BYTES, Sample, Workload
from perfmodel.workload.shard import WHOLE, Shard, shard_faults, whole_faults
from perfmodel.workload.zoo.buildable import Buildable
from perfmodel.workload.zoo.image_layers import Image, convolution
from perfmodel.workload.zoo.layers import (
    MASK_BYTES,
    Module,
    Parameter,
    assemble,
    norm_parameters,
    weight_and_bias,
    with_work,
)
from perfmodel.workload.zoo.published import published_sizes
from perfmodel.workload.zoo.stack_block import (
    BLOCK_NAMES,
    StackShape,
    stack_blocks,
)
from perfmodel.workload.zoo.transformer import last_norm, token_tables, vocabulary_head

KERNEL, PER_TOKEN = 3, 2
"""Of both convolutions; frames of sound for one token, as the second one halves them."""


@dataclass(frozen=True, slots=True)
class WhisperShape:
    """Both stacks.

    `mels`: frequencies of a frame of sound; `sounds`: tokens of the encoder (two frames each).
    `targets`: tokens that the decoder has positions for.
    `tied`: whether the head is the decoder's embedding.
    """

    encoder_layers: int
    encoder: StackShape
    decoder_layers: int
    decoder: StackShape
    vocabulary: int = 51865
    mels: int = 80
    sounds: int = 1500
    targets: int = 448
    tied: bool = True


WHISPER_BLOCK = StackShape(
    0,
    0,
    0,
    BLOCK_NAMES["whisper-encoder"],
    biases=(True, False, True),
    wide_scores=False,
    scaled_queries=True,
    laid_anew=True,
)
"""What blocks of all sizes have in common."""


def _whisper(
    layers: int, width: int, heads: int, *, mels: int = 80, vocabulary: int = 51865
) -> WhisperShape:
    encoder = replace(WHISPER_BLOCK, width=width, heads=heads, mlp_width=4 * width)
    decoder = replace(encoder, names=BLOCK_NAMES["whisper-decoder"], causal=True)
    return WhisperShape(layers, encoder, layers, decoder, vocabulary, mels)


WHISPER_SHAPES = {
    name: _whisper(**sizes) for name, sizes in published_sizes("sound")["whisper"].items()
}


def whisper(
    name: str,
    *,
    dtype: str,
    sequence_length: int,
    shape: WhisperShape | None = None,
    shard: Shard = WHOLE,
) -> Workload:
    """Encoder of half a minute of sound, decoder of `sequence_length` tokens of text.

    Raises `InputError`: a share of it, which nobody's library has.
    """
    shape, s = shape or WHISPER_SHAPES[name], sequence_length
    raise_faults(shard_faults(shard) or whole_faults(shard, name, "its encoder is not split"))
    encoder, encoder_parameters = _encoder(shape)
    decoder, decoder_parameters = _decoder(shape, s)
    seconds = PER_TOKEN * shape.sounds / 100  # 100 frames a second
    return assemble(
        name,
        [*encoder, *decoder],
        dtype=dtype,
        sample=Sample("recording", f"of {seconds:g} s and {s} tokens of text"),
        source="Hugging Face WhisperForConditionalGeneration; Radford et al. 2022, "
        "arXiv 2212.04356",
        input_elements=float(PER_TOKEN * shape.sounds * shape.mels + s),
        output_elements=float(s * shape.vocabulary),
        registered=[*encoder_parameters, *decoder_parameters],
        shard=shard,
    )


def _encoder(shape: WhisperShape) -> tuple[list[Module], list[Parameter]]:
    """Parts in the order of forward, and parameters in that of registration.

    Positions of sounds are a table that is not trained.
    """
    root, h, tokens = "model.encoder", shape.encoder.width, shape.sounds
    frames = Image(shape.mels, 1, PER_TOKEN * tokens)
    widen, wide = sound_convolution(
        f"{root}.conv1", frames, h, stride=1, input_elements=frames.elements
    )
    halve, _ = sound_convolution(f"{root}.conv2", wide, h, stride=PER_TOKEN, input_elements=0)
    dropped, elements = shape.encoder.dropout, tokens * h
    # its result is added to positions, which needs none of it: the input of GELU alone is kept
    halve = with_work(
        halve,
        vector_bytes=halve.layer.vector_bytes
        + ELEMENT_BYTES * (passes_of("addition") + dropped * passes_of("dropout")) * elements,
        saved_elements=float(elements),
        saved_bytes=float(dropped * MASK_BYTES * elements),
        kernels=halve.layer.kernels + 1 + dropped,
    )
    blocks, ordered = stack_blocks(f"{root}.layers", shape.encoder_layers, shape.encoder, tokens)
    norm = last_norm(f"{root}.layer_norm", tokens, h)
    positions: Parameter = (f"{root}.embed_positions.weight", (tokens, h))
    return [widen, halve, *blocks, norm], [
        *widen.parameters,
        *halve.parameters,
        positions,
        *ordered,
        *norm.parameters,
    ]


def sound_convolution(
    name: str,
    sound: Image,
    channels: int,
    *,
    stride: int,
    input_elements: int,
    kernel: int = KERNEL,
    padding: int = 1,
    bias: bool = True,
    activated: bool = True,
) -> tuple[Module, Image]:
    """Convolve frames, GELU if `activated`.

    `input_elements`: of its input, where nobody else keeps it.
    """
    module, wide = convolution(
        name,
        sound,
        channels,
        (1, kernel),
        stride=stride,
        padding=(0, padding),
        norm=None if bias else "",
        relu=activated,
    )
    flat = weight_and_bias(name, channels, sound.channels, kernel, bias=bias)
    kept = float(2 * activated * wide.elements + input_elements)
    return replace(with_work(module, saved_elements=kept), parameters=flat), wide


def _decoder(shape: WhisperShape, s: int) -> tuple[list[Module], list[Parameter]]:
    """Parts in the order of forward, and parameters in that of registration."""
    root, h = "model.decoder", shape.decoder.width
    tables: tuple[Parameter, ...] = (
        (f"{root}.embed_tokens.weight", (shape.vocabulary, h)),
        (f"{root}.embed_positions.weight", (shape.targets, h)),
    )
    first = token_tables(
        f"{root}.embed_tokens", tables, s, h, dropout=shape.decoder.dropout, indexed=2
    )
    blocks, ordered = stack_blocks(
        f"{root}.layers", shape.decoder_layers, shape.decoder, s, source=shape.sounds
    )
    last = vocabulary_head(
        "proj_out",
        s,
        h,
        shape.vocabulary,
        norm=norm_parameters(f"{root}.layer_norm", h),
        tied=shape.tied,
        wide_loss=False,
        shard=WHOLE,
    )
    return [first, *blocks, last], [*tables, *ordered, *last.parameters]


MODELS = {
    name: Buildable(name, partial(whisper, name), shape.targets, longest=shape.targets)
    for name, shape in WHISPER_SHAPES.items()
}
"""Models of the zoo, with the sequence that their authors trained with."""
