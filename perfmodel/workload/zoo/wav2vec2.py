"""Wav2Vec2 with Hugging Face's tensors: convolutions of sound as it is, and an encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from perfmodel.errors import raise_faults
from perfmodel.workload.model import ELEMENT_BYTES, Sample, Workload
from perfmodel.workload.shard import WHOLE, Shard, shard_faults, whole_faults
from perfmodel.workload.zoo.image_layers import Image, convolution
from perfmodel.workload.zoo.layers import (
    ADD_PASSES,
    DROPOUT_PASSES,
    FUSED_NORM_PASSES,
    MASK_BYTES,
    NORM_BYTES,
    NORM_PASSES,
    Module,
    Parameter,
    assemble,
    linear,
    names,
    names_reversed,
    norm_parameters,
    weight_and_bias,
    with_work,
)
from perfmodel.workload.zoo.stack_block import StackShape, stack_blocks
from perfmodel.workload.zoo.transformer import last_norm, vocabulary_head
from perfmodel.workload.zoo.unet import group_norm
from perfmodel.workload.zoo.whisper import sound_convolution

RATE_HZ = 16_000
"""Sampling rate of the sound (Baevski et al. 2020, arXiv 2006.11477, section 4)."""


@dataclass(frozen=True, slots=True)
class Wav2Vec2Shape:
    """Convolutions (channels, kernel, stride), the encoder's blocks, and how many there are.

    `normed`: whether each convolution is normalised, and not the first alone.
    `biased`: whether convolutions have a bias.
    `positions`: kernel and groups of the convolution that stands for positions.
    `masked`: whether there is an embedding for what is masked.
    `vocabulary`: of the head; None: there is none.
    """

    convolutions: Sequence[tuple[int, int, int]]
    layers: int
    block: StackShape
    normed: bool
    biased: bool
    positions: tuple[int, int]
    masked: bool
    vocabulary: int | None


def wav2vec2(
    name: str, *, dtype: str, sequence_length: int, shape: Wav2Vec2Shape, shard: Shard = WHOLE
) -> Workload:
    """Encoder of so many frames of sound, each mapped to a letter.

    Raises `InputError`: a share of it, which nobody's library has.
    """
    raise_faults(shard_faults(shard) or whole_faults(shard, name, "its convolutions are not split"))
    s, block, samples = sequence_length, shape.block, sequence_length
    for _, kernel, stride in reversed(shape.convolutions):
        samples = (samples - 1) * stride + kernel
    root, h = "wav2vec2." * (shape.vocabulary is not None), block.width
    mask: tuple[Parameter, ...] = ((f"{root}masked_spec_embed", (h,)),) * shape.masked
    features = _features(f"{root}feature_extractor.conv_layers", samples, shape)
    positions = _positions(f"{root}encoder.pos_conv_embed.conv", s, shape)
    projected = _projection(f"{root}feature_projection", s, shape, mask)
    norm = last_norm(f"{root}encoder.layer_norm", s, h)
    blocks, ordered = stack_blocks(f"{root}encoder.layers", shape.layers, block, s)
    head = vocabulary_head(
        "lm_head",
        s,
        h,
        shape.vocabulary or 1,
        norm=(),
        tied=False,
        biased=True,
        wide_loss=False,
        shard=WHOLE,
    )
    heads = [head] if shape.vocabulary else []
    early, late = ([norm], []) if block.late_norms else ([], [norm])
    return assemble(
        name,
        [*features, projected, positions, *early, *blocks, *late, *heads],
        dtype=dtype,
        sample=Sample("recording", f"of {samples / RATE_HZ:.3g} s"),
        source="Hugging Face Wav2Vec2ForCTC; Baevski et al. 2020, arXiv 2006.11477",
        input_elements=float(samples),
        output_elements=float(s * (shape.vocabulary or h)),
        registered=[
            *mask,
            *(each for part in features for each in part.parameters),
            *(each for each in projected.parameters if each not in mask),
            *positions.parameters,
            *norm.parameters,
            *ordered,
            *(each for part in heads for each in part.parameters),
        ],
        shard=shard,
        stream_elements=float(s * h),
    )


def _features(path: str, samples: int, shape: Wav2Vec2Shape) -> list[Module]:
    """Convolve sound again and again, GELU after each; normalise the first result, or each."""
    parts, sound = list[Module](), Image(1, 1, samples)
    for number, (channels, kernel, stride) in enumerate(shape.convolutions):
        normed, read = shape.normed or number == 0, sound.elements
        part, sound = sound_convolution(
            f"{path}.{number}.conv",
            sound,
            channels,
            kernel=kernel,
            stride=stride,
            padding=0,
            bias=shape.biased,
            input_elements=read,
            activated=not normed,
        )
        parts += [
            part,
            *[group_norm(f"{path}.{number}.layer_norm", sound, activation=True)] * normed,
        ]
    return parts


def _projection(name: str, s: int, shape: Wav2Vec2Shape, mask: tuple[Parameter, ...]) -> Module:
    """Normalise features, map them, and put the embedding of what is masked in some places."""
    h, (features, *_) = shape.block.width, shape.convolutions[-1]
    norm = norm_parameters(f"{name}.layer_norm", features)
    own = weight_and_bias(f"{name}.projection", h, features)
    return linear(
        f"{name}.projection",
        s,
        features,
        h,
        parameters=norm + own + mask,
        ready=names(mask) + names_reversed(own) + names(norm),
        norm_elements=NORM_PASSES * s * features,
        fused_elements=FUSED_NORM_PASSES * s * features,
        saved_elements=float(s * features),
        stream_elements=float(s * features),
        saved_bytes=float(NORM_BYTES * s),
        kernels=2 + shape.masked,
    )


def _positions(name: str, s: int, shape: Wav2Vec2Shape) -> Module:
    """Convolve frames with those beside them, GELU, add; the weight is a length and a direction.

    What follows is dropped out, after the norm where that comes first.
    """
    h, (kernel, groups), drops = shape.block.width, shape.positions, shape.block.dropout
    part, out = convolution(
        name, Image(h, 1, s), h, (1, kernel), padding=(0, kernel // 2), groups=groups
    )
    own: tuple[Parameter, ...] = (
        (f"{name}.bias", (h,)),
        (f"{name}.parametrizations.weight.original0", (1, 1, kernel)),
        (f"{name}.parametrizations.weight.original1", (h, h // groups, kernel)),
    )
    moved = (ADD_PASSES + drops * DROPOUT_PASSES) * s * h
    return replace(
        with_work(
            part,
            vector_bytes=part.layer.vector_bytes + ELEMENT_BYTES * moved,
            saved_elements=float(s * h + out.elements),
            saved_bytes=float(MASK_BYTES * drops * s * h),
            kernels=part.layer.kernels + 2 + drops,
        ),
        parameters=own,
        ready=names((own[0], own[2], own[1])),
    )
