"""Wav2Vec2 with Hugging Face's tensors: convolutions of sound as it is, an encoder, a head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.errors import raise_faults
from perfmodel.workload.kernels.element_wise import kernels_of, passes_of
from perfmodel.workload.kernels.shapes import WIDE_BYTES
from perfmodel.workload.model import ELEMENT_BYTES, Layer, Sample, Workload
from perfmodel.workload.shard import WHOLE, Shard, shard_faults, whole_faults
from perfmodel.workload.zoo.image_layers import Image, convolution
from perfmodel.workload.zoo.layers import (
    INDEX_BYTES,
    MASK_BYTES,
    NORM_BYTES,
    Module,
    Parameter,
    assemble,
    linear,
    more_work,
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


def wav2vec2(
    name: str,
    *,
    dtype: str,
    sequence_length: int,
    convolutions: Sequence[tuple[int, int, int]],
    layers: int,
    block: StackShape,
    normed: bool,
    biased: bool,
    positions: tuple[int, int],
    masked: bool,
    vocabulary: int | None = None,
    codes: tuple[int, ...] | None = None,
    codes_dropout: bool = False,
    shard: Shard = WHOLE,
) -> Workload:
    """Encoder of so many frames of sound, each mapped to a letter.

    `convolutions`: channels, kernel and stride of each; `biased`: whether they have a bias;
        `normed`: whether each is normalised, and not the first alone.
    `positions`: kernel and groups of the convolution that stands for positions.
    `masked`: whether there is an embedding for what is masked.
    `vocabulary`, `codes`: of the head that spells, or of that which is pre-trained (see
        `contrastive_parts`); None: it has no such head.
    Raises `InputError`: a share of it, which nobody's library has.
    """
    raise_faults(shard_faults(shard) or whole_faults(shard, name, "its convolutions are not split"))
    s, h, samples = sequence_length, block.width, sequence_length
    for _, kernel, stride in reversed(convolutions):
        samples = (samples - 1) * stride + kernel
    root = "wav2vec2." * (vocabulary is not None or codes is not None)
    mask: tuple[Parameter, ...] = ((f"{root}masked_spec_embed", (h,)),) * masked
    extractor = f"{root}feature_extractor.conv_layers"
    features = _features(extractor, samples, convolutions, normed=normed, biased=biased)
    placed = _positions(f"{root}encoder.pos_conv_embed.conv", s, block, *positions)
    last, *_ = convolutions[-1]
    projected = _projection(f"{root}feature_projection", s, last, h, mask)
    norm = last_norm(f"{root}encoder.layer_norm", s, h)
    blocks, ordered = stack_blocks(f"{root}encoder.layers", layers, block, s)
    heads = contrastive_parts(s, h, last, codes, dropout=codes_dropout) if codes else []
    if vocabulary and not codes:
        heads = [
            vocabulary_head(
                "lm_head",
                s,
                h,
                vocabulary,
                norm=(),
                tied=False,
                biased=True,
                wide_loss=False,
                shard=WHOLE,
            )
        ]
    early, late = ([norm], []) if block.late_norms else ([], [norm])
    return assemble(
        name,
        [*features, projected, placed, *early, *blocks, *late, *heads[2::-1], *heads[3:]],
        dtype=dtype,
        sample=Sample("recording", f"of {samples / RATE_HZ:.3g} s"),
        source="Hugging Face Wav2Vec2; Baevski et al. 2020, arXiv 2006.11477",
        input_elements=float(samples),
        output_elements=float(s * (vocabulary or h)),
        registered=[
            *mask,
            *(each for part in features for each in part.parameters),
            *(each for each in projected.parameters if each not in mask),
            *placed.parameters,
            *norm.parameters,
            *ordered,
            *(each for part in heads for each in part.parameters),
        ],
        shard=shard,
        stream_elements=float(s * h),
    )


def contrastive_parts(
    s: int, h: int, features: int, codes: tuple[int, ...], *, dropout: bool
) -> list[Module]:
    """Take codes for each frame, and tell them from those of other frames, as the encoder says.

    `codes`: groups of them, codes of a group, elements of all that a frame takes, elements that are
        compared, and how many others are drawn for each frame.
    `dropout`: whether features are dropped out before they find their codes.
    In order of registration: codes, the map to their scores, those of the encoder and of codes.
    """
    groups, words, width, mapped, others = codes
    scores, pairs, read = s * groups * words, s * (others + 1), float(s * features)
    book: tuple[Parameter, ...] = (("quantizer.codevectors", (1, groups * words, width // groups)),)
    taken = Layer(
        "quantizer.codevectors",
        vector_bytes=float(ELEMENT_BYTES * passes_of("activation") * scores * width // groups),
        fused_bytes=float(ELEMENT_BYTES * passes_of("activation") * scores),
        saved_elements=float(scores),
        kernels=2,
    )
    return [
        Module(taken, book, names(book)),
        linear(
            "quantizer.weight_proj",
            s,
            features,
            groups * words,
            vector_elements=passes_of("gumbel_codes") * scores
            + dropout * passes_of("dropout") * read,
            wide_elements=float(passes_of("gumbel_codes") * scores),
            fused_elements=float(passes_of("addition") * scores),
            saved_elements=dropout * read,
            copied_elements=(not dropout) * read,
            saved_bytes=2 * WIDE_BYTES * scores
            + INDEX_BYTES * s * groups
            + dropout * MASK_BYTES * read,
            kernels=1 + dropout + kernels_of("gumbel_codes"),
        ),
        linear("project_hid", s, h, mapped, saved_elements=float(s * h)),
        linear(
            "project_q",
            s,
            width,
            mapped,
            vector_elements=(passes_of("compared_codes") + passes_of("compared_codes_wide"))
            * pairs
            * mapped,
            wide_elements=passes_of("compared_codes_wide") * pairs * mapped,
            fused_elements=float(passes_of("addition") * pairs * mapped),
            saved_elements=float(s * width),
            # the three that are divided and multiplied, five of each pair, the frame, and indices
            saved_bytes=float(
                WIDE_BYTES * (pairs * (3 * mapped + 5) + s * mapped) + (INDEX_BYTES + 1) * pairs
            ),
            kernels=1 + kernels_of("compared_codes"),
        ),
    ]


def _features(
    path: str,
    samples: int,
    convolutions: Sequence[tuple[int, int, int]],
    *,
    normed: bool,
    biased: bool,
) -> list[Module]:
    """Convolve sound again and again, GELU after each; normalise the first result, or each."""
    parts, sound = list[Module](), Image(1, 1, samples)
    for number, (channels, kernel, stride) in enumerate(convolutions):
        read, follows = sound.elements, normed or number == 0
        part, sound = sound_convolution(
            f"{path}.{number}.conv",
            sound,
            channels,
            kernel=kernel,
            stride=stride,
            padding=0,
            bias=biased,
            input_elements=read,
            activated=not follows,
        )
        parts += [
            part,
            *[group_norm(f"{path}.{number}.layer_norm", sound, activation=True)] * follows,
        ]
    return parts


def _projection(name: str, s: int, features: int, h: int, mask: tuple[Parameter, ...]) -> Module:
    """Normalise features, map them, and put the embedding of what is masked in some places."""
    norm = norm_parameters(f"{name}.layer_norm", features)
    own = weight_and_bias(f"{name}.projection", h, features)
    return linear(
        f"{name}.projection",
        s,
        features,
        h,
        parameters=norm + own + mask,
        ready=names(mask) + names_reversed(own) + names(norm),
        norm_elements=passes_of("norm") * s * features,
        fused_elements=passes_of("fused_norm") * s * features,
        saved_elements=float(s * features),
        stream_elements=float(s * features),
        saved_bytes=float(NORM_BYTES * s),
        kernels=2 + len(mask),
    )


def _positions(name: str, s: int, block: StackShape, kernel: int, groups: int) -> Module:
    """Convolve frames with those beside them, GELU, add; the weight is a length and a direction.

    What follows is dropped out, after the norm where that comes first.
    """
    h, drops = block.width, block.dropout
    part, out = convolution(
        name, Image(h, 1, s), h, (1, kernel), padding=(0, kernel // 2), groups=groups
    )
    own: tuple[Parameter, ...] = (
        (f"{name}.bias", (h,)),
        (f"{name}.parametrizations.weight.original0", (1, 1, kernel)),
        (f"{name}.parametrizations.weight.original1", (h, h // groups, kernel)),
    )
    moved = (passes_of("addition") + drops * passes_of("dropout")) * s * h
    part = more_work(part, vector_bytes=ELEMENT_BYTES * moved, kernels=2 + drops)
    return replace(
        with_work(
            part,
            saved_elements=float(s * h + out.elements),
            saved_bytes=float(MASK_BYTES * drops * s * h),
        ),
        parameters=own,
        ready=names((own[0], own[2], own[1])),
    )
