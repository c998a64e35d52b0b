"""Repeated blocks of a model, by the names of its layers, and how they wait in the host's memory.

With offloading, what blocks keep for backward waits for it in the memory of the host. ``blocking``
is ``torch.autograd.graph.save_on_cpu(pin_memory=True)`` without the parameters: copies run in the
stream of the layers, before and behind them. ``overlapped`` copies in streams of their own
(torchtune's ``OffloadActivations`` with streams, Transformer Engine's CPU offloading): forward
waits where the copies of the block before are not done, backward for what comes back, one block
ahead. The last block stays on the GPU, as its backward begins at once.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from itertools import groupby
from typing import Literal

from perfmodel.errors import Fault, InputError, failed, raise_faults, refuse_if
from perfmodel.workload.model import LayerTimes, Workload

Offload = Literal["none", "blocking", "overlapped"]

BLOCKS_AHEAD = 1
"""Blocks that copies may be behind forward, or ahead of backward."""


def check_offload(workload: Workload, offload: Offload) -> None:
    """Raise InputError where there is nothing to offload block by block."""
    if offload == "none":
        return
    text, allowed = f"{offload!r} for {workload.name!r}", "'none', or activations of each layer"
    blocks = len(repeated_blocks(workload))
    faults = failed(
        (blocks < 2, "offload_activations", f"{text}, which has no repeated blocks", "'none'"),
        (
            blocks > 1 and not workload.states_activations,
            "offload_activations",
            f"{text}, of which no activations are known",
            allowed,
        ),
    )
    raise_faults(faults)


def add_offload(
    workload: Workload,
    times: LayerTimes,
    block_bytes: Sequence[float],
    offload: Offload,
    link_Bps: float | None,
) -> LayerTimes:
    """Return the times with copies to the host in forward, and back in backward.

    `block_bytes`: what each block keeps.
    `link_Bps`: rate of copies to the host, one way, while all of its GPUs copy.
    Raises `InputError`: nothing to offload, or no way to the host.
    """
    check_offload(workload, offload)
    if offload == "none":
        return times
    if link_Bps is None:
        allowed = "'none', or a node whose topology connects GPUs with CPUs"
        raise InputError(Fault("offload_activations", repr(offload), allowed))
    blocks = repeated_blocks(workload)
    copies_s = [nbytes / link_Bps for nbytes in block_bytes[:-1]] + [0.0]
    forward_s, backward_s = times.forward_s.copy(), times.backward_s.copy()
    forward = [float(forward_s[block.start : block.stop].sum()) for block in blocks]
    backward = [float(backward_s[block.start : block.stop].sum()) for block in blocks]
    if offload == "blocking":
        waits, returns = copies_s, copies_s
    else:
        waits = _waits(forward, copies_s)
        returns = _waits(backward[::-1], copies_s[::-1], fetches=True)[::-1]
    for block, wait_s, return_s in zip(blocks, waits, returns, strict=True):
        forward_s[block[-1]] += wait_s
        backward_s[block[-1]] += return_s
    return replace(times, forward_s=forward_s, backward_s=backward_s)


def _waits(
    compute_s: Sequence[float], copies_s: Sequence[float], *, fetches: bool = False
) -> list[float]:
    """How long each block in turn waits for copies that run one after the other.

    Forward: a block ends when the copy of the block `BLOCKS_AHEAD` before it is done.
    Backward (`fetches`): a block begins when its copy is, which began when the block
    `BLOCKS_AHEAD` before it did.
    """
    starts, ends, copied, waits = [0.0], [0.0], [0.0], []
    for place, (own_s, copy_s) in enumerate(zip(compute_s, copies_s, strict=True)):
        begin_s = ends[-1]
        if fetches:
            copied.append(
                max(copied[-1], starts[max(0, len(starts) - BLOCKS_AHEAD)] if place else 0.0)
                + copy_s
            )
            waits.append(max(0.0, copied[-1] - begin_s))
            starts.append(begin_s + waits[-1])
            ends.append(starts[-1] + own_s)
            continue
        end_s = begin_s + own_s
        behind_s = copied[max(0, place - BLOCKS_AHEAD + 1)] if place >= BLOCKS_AHEAD else 0.0
        waits.append(max(0.0, behind_s - end_s))
        ends.append(end_s + waits[-1])
        copied.append(max(copied[-1], ends[-1]) + copy_s)
    return waits


def held_bytes(block_bytes: Sequence[float], offload: Offload) -> float:
    """Bytes of blocks that are on the GPU at once.

    The one in hand; with copies beside it also the one on its way.
    """
    if offload == "none":
        return sum(block_bytes)
    return sum(
        sorted(block_bytes, reverse=True)[: 1 if offload == "blocking" else 1 + BLOCKS_AHEAD]
    )


_NUMBERED = re.compile(r"\d+|(?:.*_)?(?:layer|block)_\d+|(?:stem|cell)\d+(?:_\w+)?")
"""Parts of a path that count: ``3`` of a ModuleList, ``encoder_layer_3`` of torchvision, and
``cell1_normal3`` of torchgpipe's AmoebaNet."""


@cache
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
    runs = groupby(range(len(names)), key=names.__getitem__)
    blocks = [list(layers) for name, layers in runs if name is not None]
    return tuple(range(block[0], block[-1] + 1) for block in blocks)


def only_blocks_fuse(workload: Workload) -> Workload:
    """Return the workload with nothing to fuse outside of its repeated blocks.

    As where each block is compiled, and the embedding, the head and the loss are not.
    Raises `InputError`: there are none.
    """
    inside = {index for block in repeated_blocks(workload) for index in block}
    refuse_if(
        not inside,
        "compiled",
        f"'blocks' for {workload.name!r}, which has no repeated blocks",
        "true or false",
    )
    return replace(
        workload,
        layers=tuple(
            layer
            if index in inside
            else replace(layer, fused_bytes=None, fused_kernels=1, fused_kept=None)
            for index, layer in enumerate(workload.layers)
        ),
    )
