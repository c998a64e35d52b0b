"""How fully sharded training is set up, with PyTorch's own names and defaults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from perfmodel.errors import Fault, InputError

Wrap = Literal["block", "layer", "size", "model"]
Prefetch = Literal["pre", "post", "none"]
GradientSync = Literal["each", "last", "shards"]

MIN_WRAPPED = 100_000_000
"""``min_num_params`` of ``size_based_auto_wrap_policy`` (torch/distributed/fsdp/wrap.py)."""


@dataclass(frozen=True, slots=True)
class FsdpOptions:
    """Options of ``FullyShardedDataParallel`` (version 1) and ``fully_shard`` (version 2).

    `wrap`: what each unit holds (see `perfmodel.training.sharded.fsdp.units.wrap_units`).
    `wrap_elements`: least parameters of a unit with ``wrap="size"``; None: `MIN_WRAPPED`.
    `reshard_after_forward`: whether units are freed between forward and backward; or the number of
        ranks that hold a unit between them then, instead of all of a shard group (version 2). In
        version 1 False is ``SHARD_GRAD_OP``.
    `reshard_root`: whether the outermost unit is, too (``reshard_after_forward=True`` for it,
        version 2).
    `shard_gpus`: ranks that a unit is split over; the others hold copies (HSDP). None: all.
    `forward_prefetch`: units that are gathered before the layers of the unit in hand run, in
        forward (``forward_prefetch=True`` for 1 in version 1, ``set_modules_to_forward_prefetch``).
    `backward_prefetch`: when the next all-gather of backward is issued: before or after the layers
        of the unit in hand, or not before it is needed. Version 2 has "pre".
    `limit_all_gathers`: the host waits until a unit is freed before it gathers the second one after
        it (version 1).
    `param_dtype`, `reduce_dtype`: what parameters and gradients travel in; None: their own.
    `buffer_dtype`: what floating-point buffers are kept in; None: their own (version 1).
    `use_orig_params`: each parameter begins at a multiple of 16 bytes (version 1).
    `offload`: shards of parameters and gradients lie in host memory and the optimizer runs on the
        CPU (``CPUOffload``, ``CPUOffloadPolicy``).
    `sync_module_states`: rank 0's parameters and buffers are broadcast before the first step
        (version 1).
    `clip_norm`: whether gradients are clipped by their total norm before the optimizer.
    `accumulate`: micro-batches per step.
    `sync`: whether "each" micro-batch reduces its gradients, or only the "last" one and the others
        keep them whole (``no_sync``, ``set_requires_gradient_sync(False)``), or each reduces them
        to "shards" and the last one averages these over the copies
        (``set_requires_all_reduce(False)``, version 2 with copies).
    `reshard_after_backward`: whether units are freed after the backward of a micro-batch that does
        not reduce (version 2).
    `reduce_buffers`: reductions whose input is kept at once
        (``set_reduce_scatter_max_input_buffers``, version 2).
    `separate_reduce`: whether reductions have a communicator of their own
        (``set_separate_reduce_scatter_group``, version 2).
    Raises `InputError`: counts below 1, or options of the other version; all of them at once.
    """

    version: Literal[1, 2] = 2
    wrap: Wrap | tuple[str, ...] = "block"
    wrap_elements: int | None = None
    reshard_after_forward: bool | int = True
    reshard_root: bool = False
    shard_gpus: int | None = None
    forward_prefetch: int = 0
    backward_prefetch: Prefetch = "pre"
    limit_all_gathers: bool = True
    param_dtype: str | None = None
    reduce_dtype: str | None = None
    buffer_dtype: str | None = None
    use_orig_params: bool = False
    offload: bool = False
    sync_module_states: bool = False
    clip_norm: bool = False
    accumulate: int = 1
    sync: GradientSync = "each"
    reshard_after_backward: bool = True
    reduce_buffers: int = 1
    separate_reduce: bool = False

    def shard_ranks(self, ranks: int) -> int:
        """Ranks that a unit is split over: all of a cluster smaller than a shard group."""
        return min(self.shard_gpus or ranks, ranks)

    def __post_init__(self) -> None:
        faults = [*self._count_faults(), *self._version_faults()]
        if faults:
            raise InputError(faults)

    @property
    def regather_gpus(self) -> int | None:
        """Ranks that hold a unit between them after forward; None where that is no number."""
        number = self.reshard_after_forward
        return None if isinstance(number, bool) else number

    def _count_faults(self) -> Iterator[Fault]:
        counts = (
            ("accumulate", self.accumulate),
            ("wrap_elements", self.wrap_elements),
            ("shard_gpus", self.shard_gpus),
            ("reshard_after_forward", self.regather_gpus),
            ("reduce_buffers", self.reduce_buffers),
        )
        for name, count in counts:
            if count is not None and count < 1:
                yield Fault(name, repr(count), "a whole number, 1 or more")
        if self.forward_prefetch < 0:
            yield Fault("forward_prefetch", repr(self.forward_prefetch), "0 or more units")

    def _version_faults(self) -> Iterator[Fault]:
        if self.version == 1 and self.regather_gpus is not None:
            allowed = "true or false with version 1; a number of GPUs is for version 2"
            yield Fault("reshard_after_forward", repr(self.regather_gpus), allowed)
        default = FIELDS_OF_OTHER_VERSION[self.version]
        for name, (value, allowed) in default.items():
            if getattr(self, name) != value:
                yield Fault(name, repr(getattr(self, name)), allowed)
        if self.version == 1 and self.forward_prefetch > 1:
            allowed = "0 or 1 with version 1, which has forward_prefetch=True"
            yield Fault("forward_prefetch", repr(self.forward_prefetch), allowed)
        if self.version == 1 and self.sync == "shards":
            yield Fault("sync", "'shards'", "'each' or 'last' with version 1")
        yield from self._idle_faults()

    def _idle_faults(self) -> Iterator[Fault]:
        """Options that nothing would come of."""
        if self.wrap_elements is not None and self.wrap != "size":
            yield Fault("wrap_elements", repr(self.wrap_elements), "nothing without wrap: size")
        if not self.reshard_after_backward and self.sync != "last":
            allowed = "true unless sync: last, as micro-steps that reduce free their units always"
            yield Fault("reshard_after_backward", "false", allowed)
        if self.reshard_root and not self.reshard_after_forward:
            yield Fault("reshard_root", "true", "false with reshard_after_forward: false")


FIELDS_OF_OTHER_VERSION: dict[int, dict[str, tuple[object, str]]] = {
    1: {
        "reshard_root": (False, "false with version 1, whose root is never freed after forward"),
        "reshard_after_backward": (True, "true with version 1"),
        "reduce_buffers": (1, "1 with version 1"),
        "separate_reduce": (False, "false with version 1"),
    },
    2: {
        "backward_prefetch": ("pre", "'pre' with version 2, which gathers ahead always"),
        "limit_all_gathers": (True, "true with version 2, which has no rate limiter"),
        "buffer_dtype": (None, "nothing with version 2, which leaves buffers as they are"),
        "use_orig_params": (False, "false with version 2, which has no flat parameters"),
        "sync_module_states": (False, "false with version 2, which broadcasts nothing"),
    },
}
"""What each version lacks: its only value and what a fault says."""
