"""Bytes that forward keeps for backward, added up by the functions that the package counts with."""

from __future__ import annotations

from perfmodel.workload.memory.activations import (
    NO_NARROW_INPUTS,
    NarrowInputs,
    _by_block,
    _keeping,
    _kept_bytes,
)
from perfmodel.workload.memory.blocks import Offload, check_offload, held_bytes
from perfmodel.workload.memory.recompute import NO_RECOMPUTE, Recompute, check_recompute
from perfmodel.workload.model import Workload


def activation_bytes(
    workload: Workload,
    batch: int,
    precision: str,
    *,
    fused_attention: bool = True,
    kept_share: float = 1.0,
    recompute: Recompute = NO_RECOMPUTE,
    held_dtype: str | None = None,
    offload: Offload = "none",
    compiled: bool = False,
    narrow: NarrowInputs = NO_NARROW_INPUTS,
) -> float:
    """Bytes that forward keeps for backward: activations, and weights cast by autocast.

    Of recomputed blocks their inputs are kept, and while one is in hand what it would have kept.

    `batch`: samples of one micro-batch.
    `precision`: of the compute; "fp16" and "bf16" keep 2 bytes per element.
    `fused_attention`: otherwise softmax and dropout of all attention scores are kept too.
    `kept_share`: factor on what layers keep, for an end of `Workload.kept_range`.
    `held_dtype`: of the parameters that layers run with, where it is not their own.
    `offload`: blocks wait for backward in the memory of the host.
    `compiled`: a compiler decides what is kept.
    `narrow`: what layers that run in fp8 keep.
    Raises `InputError`: an unknown precision, or nothing of what is to be recomputed.
    """
    keeping = _keeping(
        workload, batch, precision, fused_attention, kept_share, held_dtype, compiled, narrow
    )
    check_recompute(workload, recompute)
    check_offload(workload, offload)
    each, hands, casts = _kept_bytes(workload, keeping, recompute)
    kept_total = sum(each) + max(hands, default=0.0) + sum(casts)
    if offload == "none":
        return kept_total
    blocks = _by_block(workload, each)
    return kept_total - sum(blocks) + held_bytes(blocks, offload)
