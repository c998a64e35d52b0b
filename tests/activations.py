"""Bytes that forward keeps for backward, added up by the functions that the package counts with."""

from __future__ import annotations

from typing import Any

from perfmodel.workload.memory.activations import (
    NO_NARROW_INPUTS,
    _by_block,
    _keeping,
    _kept_bytes,
)
from perfmodel.workload.memory.blocks import Offload, check_offload, held_bytes
from perfmodel.workload.memory.recompute import NO_RECOMPUTE, Recompute, check_recompute
from perfmodel.workload.model import Workload

DEFAULTS: dict[str, Any] = {
    "fused_attention": True,
    "kept_share": 1.0,
    "held_dtype": None,
    "compiled": False,
    "narrow": NO_NARROW_INPUTS,
}
"""Of `stored_bytes`, in the order in which `_keeping` takes them."""


def activation_bytes(
    workload: Workload,
    batch: int,
    precision: str,
    *,
    recompute: Recompute = NO_RECOMPUTE,
    offload: Offload = "none",
    **options: Any,
) -> float:
    """Bytes that a micro-batch keeps for backward at most: activations, and weights cast.

    Of recomputed blocks their inputs are kept, and while one is in hand what it would have kept.
    Options are those of `stored_bytes`.
    """
    assert options.keys() <= DEFAULTS.keys(), options
    keeping = _keeping(workload, batch, precision, *(DEFAULTS | options).values())
    check_recompute(workload, recompute)
    check_offload(workload, offload)
    each, hands, casts = _kept_bytes(workload, keeping, recompute)
    blocks = _by_block(workload, each) if offload != "none" else []
    held = held_bytes(blocks, offload) - sum(blocks) if blocks else 0.0
    return sum(each) + held + max(hands, default=0.0) + sum(casts)
