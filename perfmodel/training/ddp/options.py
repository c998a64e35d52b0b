"""How DistributedDataParallel is set up: its constructor's arguments and how it is called."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfmodel.errors import Fault, InputError
from perfmodel.scenario.strategies.ddp import NO_HOOK, CastHook, Hook, MixedPrecisionSection
from perfmodel.training.plan.step_plan import neighbours
from perfmodel.workload.model import ITEM_BYTES

MIB = 1024 * 1024
"""What PyTorch calls MB in ``bucket_cap_mb``; bytes (_MB_TO_BYTES in distributed.py)."""

DEFAULT_CAP_BYTES = 25 * MIB
"""Default bucket cap; bytes (_DEFAULT_BUCKET_CAP_MB in torch 2.13, distributed.py)."""

FIRST_BUCKET_BYTES = MIB
"""Default cap of the first bucket; bytes (kDefaultFirstBucketBytes in torch 2.13, reducer.hpp)."""


ONE_ALL_REDUCE = (
    "none, allreduce, fp16 or bf16: tune knows how the time of a bucket grows with its bytes "
    "where it is one all-reduce"
)


_Rule = tuple[str, bool, str, str]
"""What is refused: the field, whether it is so, what was found and what is allowed."""


@dataclass(frozen=True, slots=True)
class DdpOptions:
    """Options of ``torch.nn.parallel.DistributedDataParallel``.

    `bucket_cap_bytes`: ``bucket_cap_mb`` in bytes (see `cap_bytes`). Naming it drops the small
        first bucket, as in torch since the explicit cap counts for all buckets.
    `first_bucket_bytes`: cap of the first bucket (``dist._DEFAULT_FIRST_BUCKET_BYTES``); kept
        beside an explicit cap if given; bytes.
    `caps_list_bytes`: ``bucket_cap_mb_list`` (torch 2.13): a cap per bucket, the last for all that
        follow; wins over the two above; bytes.
    `find_unused_parameters`, `static_graph`, `gradient_as_bucket_view`, `broadcast_buffers`: as in
        PyTorch.
    `accumulate`: micro-batches per step; all but the last run under ``no_sync()``.
    `set_last_bucket_cap`: environment variable ``DDP_SET_LAST_BUCKET_CAP=1``: the small bucket is
        launched last.
    `hook`: communication hook.
    `batched_grad_copy`: a bucket is filled at once, when its last gradient is ready.
    `init_sync`: the constructor compares shapes and broadcasts parameters; and buffers, too, with
        `sync_buffers_at_start` (which ``broadcast_buffers=False`` unsets).
    `group_ranks`: ranks of each process group that trains on its own (``process_group``); None:
        all ranks are one.
    `join`, `throw_on_early_termination`: the step runs in the context of ``join()``.
    `joined_ranks`: the last ranks, which have run out of inputs.
    `mixed_precision`: as in PyTorch; None: layers run with the parameters themselves.
    `layer_devices`: GPU of the process that each layer of the model is on, for a module over
        several (``device_ids=None``); without them all are on one.
    Raises `InputError`: a cap that is not a number above zero, an empty list, no micro-batch, or
        what PyTorch fails at with mixed precision.
    """

    bucket_cap_bytes: float | None = None
    first_bucket_bytes: float | None = None
    caps_list_bytes: tuple[float, ...] | None = None
    find_unused_parameters: bool = False
    static_graph: bool = False
    gradient_as_bucket_view: bool = False
    broadcast_buffers: bool = True
    accumulate: int = 1
    set_last_bucket_cap: bool = False
    hook: Hook = NO_HOOK
    batched_grad_copy: bool = False
    init_sync: bool = True
    sync_buffers_at_start: bool = True
    group_ranks: int | None = None
    join: bool = False
    throw_on_early_termination: bool = False
    joined_ranks: int = 0
    mixed_precision: MixedPrecisionSection | None = None
    layer_devices: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        caps = [
            ("bucket_cap_bytes", self.bucket_cap_bytes),
            ("first_bucket_bytes", self.first_bucket_bytes),
            *((f"caps_list_bytes.{i}", cap) for i, cap in enumerate(self.caps_list_bytes or ())),
        ]
        rules: list[_Rule] = [
            (name, not (math.isfinite(cap) and cap > 0), repr(cap), "a finite size above zero")
            for name, cap in caps
            if cap is not None
        ]
        rules += self._refused()
        rules += self._refused_with_mixed_precision() if self.mixed_precision is not None else ()
        faults = [Fault(name, text, allowed) for name, is_wrong, text, allowed in rules if is_wrong]
        if faults:
            raise InputError(faults)

    def _refused(self) -> tuple[_Rule, ...]:
        group, joined, join = self.group_ranks, self.joined_ranks, self.join
        return (
            ("caps_list_bytes", self.caps_list_bytes == (), "an empty list", "at least one cap"),
            ("accumulate", self.accumulate < 1, repr(self.accumulate), "1 or more micro-batches"),
            (
                "group_ranks",
                group is not None and (group < 2 or join),
                str(group),
                "2 or more, and nothing with join: all ranks of a group would run out",
            ),
            ("joined_ranks", joined > 0 and not join, str(joined), "0 without join"),
            (
                "throw_on_early_termination",
                self.throw_on_early_termination and (joined > 0 or not join),
                "true",
                "false without join, or with joined ranks: it ends training when one joins",
            ),
        )

    def _refused_with_mixed_precision(self) -> tuple[_Rule, ...]:
        """What fails in torch 2.13 with mixed precision (each was run)."""
        with_mixed = "with mixed_precision"
        return (
            (
                "hook",
                self.hook != NO_HOOK,
                f"{self.hook.kind!r} {with_mixed}",
                "nothing: it has its own hook",
            ),
            (
                "accumulate",
                self.accumulate > 1,
                f"{self.accumulate} {with_mixed}",
                "1: under no_sync each forward adds hooks, and gradients are marked ready twice",
            ),
            (
                "find_unused_parameters",
                self.find_unused_parameters and not self.static_graph,
                f"true {with_mixed}",
                "false, or with static_graph: torch finds none of the cast parameters in the graph",
            ),
            (
                "joined_ranks",
                self.joined_ranks > 0,
                f"{self.joined_ranks} {with_mixed}",
                "0: ranks that have run out of inputs have no gradients to cast, and hang",
            ),
            (
                "mixed_precision",
                bool(self.layer_devices),
                f"a module on several GPUs {with_mixed}",
                (
                    "nothing: torch casts on a stream of the first GPU, "
                    "which the others do not wait for"
                ),
            ),
        )

    def ranks_of_group(self, ranks: int) -> int:
        """Return the ranks that reduce gradients with one another.

        Raises `InputError`: ranks that cannot be split into groups.
        """
        size = ranks if self.group_ranks is None else min(ranks, self.group_ranks)
        if ranks % size:
            allowed = f"a number that divides the {ranks} ranks"
            raise InputError(Fault("strategy.process_group_gpus", str(size), allowed))
        return size

    def groups(self, ranks: int) -> tuple[range, ...]:
        """Return the ranks of each process group."""
        return neighbours(ranks, self.ranks_of_group(ranks))

    @property
    def has_hook(self) -> bool:
        """Whether a communication hook reduces the buckets; that of mixed precision counts."""
        return self.hook != NO_HOOK or self.mixed_precision is not None

    @property
    def sent_item_bytes(self) -> int | None:
        """Bytes per element of the one all-reduce of a bucket; None where they are its own.

        Raises `InputError`: a hook with several collectives per bucket.
        """
        if not isinstance(self.hook, CastHook):
            raise InputError(Fault("strategy.hook", repr(self.hook.kind), ONE_ALL_REDUCE))
        if self.mixed_precision is not None:
            return ITEM_BYTES[self.mixed_precision.reduced_dtype]
        return ITEM_BYTES.get(self.hook.kind)

    @property
    def rebuilds(self) -> bool:
        """Whether DDP rebuilds its buckets once the order of gradients is known."""
        return self.static_graph or not self.find_unused_parameters


def cap_bytes(cap_mb: float) -> int:
    """Return the bytes that PyTorch makes of ``bucket_cap_mb``: MiB, cut to whole bytes.

    Examples
    --------
    >>> cap_bytes(25)
    26214400
    """
    return int(cap_mb * MIB)
