"""How fully sharded training is set up, with PyTorch's own names and defaults."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from perfmodel.errors import Fault, InputError

Wrap = Literal["block", "layer", "model"]
Prefetch = Literal["pre", "post", "none"]


@dataclass(frozen=True, slots=True)
class FsdpOptions:
    """Options of ``FullyShardedDataParallel`` (version 1) and ``fully_shard`` (version 2).

    `wrap`: what each unit holds (see `perfmodel.training.sharded.shard_units.wrap_units`).
    `reshard_after_forward`: whether units are freed between forward and backward. In version 1
        False is ``SHARD_GRAD_OP``.
    `regather_ranks`: ranks that hold a unit between them after forward, instead of all of a shard
        group (``reshard_after_forward=N``, version 2).
    `shard_ranks`: ranks that a unit is split over; the others hold copies (HSDP). None: all.
    `backward_prefetch`: when the next all-gather of backward is issued: before or after the layers
        of the unit in hand, or not before it is needed. Version 2 has "pre".
    `limit_all_gathers`: two units are gathered and not freed at most, in forward (version 1).
    `param_dtype`, `reduce_dtype`: what parameters and gradients travel in; None: their own.
    `accumulate`: micro-batches per step.
    `reduce_each`: whether each micro-batch reduces its gradients, or only the last one.
    Raises `InputError`: counts below 1.
    """

    version: Literal[1, 2] = 2
    wrap: Wrap = "block"
    reshard_after_forward: bool = True
    regather_ranks: int | None = None
    shard_ranks: int | None = None
    backward_prefetch: Prefetch = "pre"
    limit_all_gathers: bool = True
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    accumulate: int = 1
    reduce_each: bool = True

    def __post_init__(self) -> None:
        counts = (
            ("accumulate", self.accumulate),
            ("shard_ranks", self.shard_ranks),
            ("regather_ranks", self.regather_ranks),
        )
        faults = [
            Fault(name, repr(count), "a whole number, 1 or more")
            for name, count in counts
            if count is not None and count < 1
        ]
        if self.version == 1 and self.regather_ranks is not None:
            faults.append(Fault("regather_ranks", repr(self.regather_ranks), "none in version 1"))
        if faults:
            raise InputError(faults)
