"""How DistributedDataParallel is set up: its constructor's arguments and how it is called."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import get_args

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.scenario.sections.strategies.ddp import Hook
from perfmodel.workload.model import ITEM_BYTES

MIB = 1024 * 1024
"""What PyTorch calls MB in ``bucket_cap_mb``; bytes (_MB_TO_BYTES in distributed.py)."""

DEFAULT_CAP_BYTES = 25 * MIB
"""Default bucket cap; bytes (_DEFAULT_BUCKET_CAP_MB in torch 2.13, distributed.py)."""

FIRST_BUCKET_BYTES = MIB
"""Default cap of the first bucket; bytes (kDefaultFirstBucketBytes in torch 2.13, reducer.hpp)."""


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
    `hook`: communication hook that compresses each bucket to 16 bits.
    Raises `InputError`: a cap that is not a number above zero, an empty list, no micro-batch, or a
        hook that does not exist.
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
    hook: Hook = "none"

    def __post_init__(self) -> None:
        named = [
            ("bucket_cap_bytes", self.bucket_cap_bytes),
            ("first_bucket_bytes", self.first_bucket_bytes),
            *((f"caps_list_bytes.{i}", cap) for i, cap in enumerate(self.caps_list_bytes or ())),
        ]
        faults = [
            Fault(name, repr(cap), "a finite size above zero")
            for name, cap in named
            if cap is not None and not (math.isfinite(cap) and cap > 0)
        ]
        if self.caps_list_bytes is not None and not self.caps_list_bytes:
            faults.append(Fault("caps_list_bytes", "an empty list", "at least one cap"))
        if self.accumulate < 1:
            faults.append(Fault("accumulate", repr(self.accumulate), "1 or more micro-batches"))
        hooks = get_args(Hook)
        if self.hook not in hooks:
            faults.append(Fault("hook", repr(self.hook), allowed_names(hooks, self.hook)))
        if faults:
            raise InputError(faults)

    @property
    def sent_item_bytes(self) -> int | None:
        """Bytes per element that a compressing hook sends; None without a hook."""
        return None if self.hook == "none" else ITEM_BYTES[self.hook]

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
