"""Vision transformer as torchvision builds it."""

from __future__ import annotations

from perfmodel.errors import Fault, InputError
from perfmodel.workload.model import Workload
from perfmodel.workload.zoo.image_layers import CLASSES, Image, convolution, image_model
from perfmodel.workload.zoo.layers import (
    ADD_PASSES,
    FUSED_NORM_PASSES,
    JOIN_PASSES,
    NORM_PASSES,
    Module,
    Parameter,
    linear,
    names,
    names_reversed,
    norm_parameters,
    weight_and_bias,
)
from perfmodel.workload.zoo.transformer import (
    BlockParameters,
    BlockShape,
    embedding,
    pre_norm_block,
)

PATCH, LAYERS, WIDTH, HEADS, MLP_WIDTH = 16, 12, 768, 12, 3072
"""ViT-B/16: Dosovitskiy et al. 2020 (arXiv 2010.11929), table 1."""


def vit_b_16(*, dtype: str, image_size: int) -> Workload:
    """ViT-B/16; `image_size` also sets the length of the position embedding.

    Raises `InputError`: the image size is no multiple of the patch.
    """
    if image_size % PATCH:
        raise InputError(Fault("image_size", str(image_size), f"a multiple of {PATCH}"))
    tokens = (image_size // PATCH) ** 2 + 1
    patches, _ = convolution(
        "conv_proj", Image(3, image_size, image_size), WIDTH, PATCH, stride=PATCH, relu=False
    )
    block = BlockShape(tokens, WIDTH, HEADS, MLP_WIDTH, causal=False, dropout=False)
    parts = [patches, _positions(tokens)]
    for number in range(LAYERS):
        name = f"encoder.layers.encoder_layer_{number}"
        parts += pre_norm_block(name, block, _block_parameters(name))
    last_norm = norm_parameters("encoder.ln", WIDTH)
    head = weight_and_bias("heads.head", CLASSES, WIDTH)
    parts.append(
        linear(
            "heads.head",
            1,
            WIDTH,
            CLASSES,
            parameters=last_norm + head,
            ready=names_reversed(head) + names(last_norm),
            norm_elements=NORM_PASSES * tokens * WIDTH,
            fused_elements=FUSED_NORM_PASSES * tokens * WIDTH,
            saved_elements=float(tokens * WIDTH),
            kernels=2,
        )
    )
    # the class token belongs to the model itself and is registered before all modules
    token: Parameter = ("class_token", (1, 1, WIDTH))
    rest = [item for part in parts for item in part.parameters if item != token]
    return image_model(
        "vit-b-16",
        parts,
        dtype=dtype,
        image_size=image_size,
        source="torchvision vit_b_16; Dosovitskiy et al. 2020, arXiv 2010.11929",
        registered=[token, *rest],
    )


def _positions(tokens: int) -> Module:
    """Prepend the class token and add the position embedding."""
    parameters: tuple[Parameter, ...] = (
        ("class_token", (1, 1, WIDTH)),
        ("encoder.pos_embedding", (1, tokens, WIDTH)),
    )
    return embedding(
        "encoder.pos_embedding",
        parameters,
        names_reversed(parameters),
        vector_elements=(2 + ADD_PASSES) * tokens * WIDTH,
        fused_elements=float(JOIN_PASSES * tokens * WIDTH),
        saved_elements=0.0,
        kernels=2,
    )


def _block_parameters(prefix: str) -> BlockParameters:
    attention = f"{prefix}.self_attention"
    return BlockParameters(
        first_norm=norm_parameters(f"{prefix}.ln_1", WIDTH),
        qkv=(
            (f"{attention}.in_proj_weight", (3 * WIDTH, WIDTH)),
            (f"{attention}.in_proj_bias", (3 * WIDTH,)),
        ),
        projection=weight_and_bias(f"{attention}.out_proj", WIDTH, WIDTH),
        second_norm=norm_parameters(f"{prefix}.ln_2", WIDTH),
        widen=weight_and_bias(f"{prefix}.mlp.0", MLP_WIDTH, WIDTH),
        narrow=weight_and_bias(f"{prefix}.mlp.3", WIDTH, MLP_WIDTH),
    )
