"""Repeated blocks of a model, by the names of its tensors and layers."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import groupby

from perfmodel.errors import Fault, InputError
from perfmodel.workload.model import Workload

_NUMBERED = re.compile(r"\d+|(?:.*_)?(?:layer|block)_\d+|(?:stem|cell)\d+(?:_\w+)?")
"""Parts of a path that count: ``3`` of a ModuleList, ``encoder_layer_3`` of torchvision, and
``cell1_normal3`` of torchgpipe's AmoebaNet."""


def block_of(name: str) -> str | None:
    """Name of the repeated block that a tensor or layer stands in; None outside of any.

    That is its path up to its first number.

    Examples
    --------
    >>> block_of("model.layers.3.mlp.up_proj.weight")
    'model.layers.3'
    >>> block_of("layer1.0.conv1.weight")
    'layer1.0'
    >>> block_of("encoder.layers.encoder_layer_3.mlp.0.weight")
    'encoder.layers.encoder_layer_3'
    >>> block_of("lm_head.weight") is None
    True
    """
    parts = name.split(".")
    at = next((place for place, part in enumerate(parts) if _NUMBERED.fullmatch(part)), None)
    return None if at is None else ".".join(parts[: at + 1])


def repeated_blocks(workload: Workload) -> tuple[range, ...]:
    """Layers of each repeated block, in the order of forward.

    Layers of a block that others stand between count as several blocks.
    """
    names = [block_of(layer.name) for layer in workload.layers]
    blocks = []
    for name, places in groupby(range(len(names)), key=names.__getitem__):
        layers = list(places)
        if name is not None:
            blocks.append(range(layers[0], layers[-1] + 1))
    return tuple(blocks)


def only_blocks_fuse(workload: Workload) -> Workload:
    """Return the workload with nothing to fuse outside of its repeated blocks.

    As where each block is compiled, and the embedding, the head and the loss are not.
    Raises `InputError`: there are none.
    """
    inside = {index for block in repeated_blocks(workload) for index in block}
    if not inside:
        text = f"'blocks' for {workload.name!r}, which has no repeated blocks"
        raise InputError(Fault("compiled", text, "true or false"))
    layers = (
        layer
        if index in inside
        else replace(layer, fused_bytes=None, fused_kernels=1, fused_kept=None)
        for index, layer in enumerate(workload.layers)
    )
    return replace(workload, layers=tuple(layers))
