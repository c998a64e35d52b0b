"""How DistributedDataParallel is set up: its constructor's arguments and how it is called."""

from typing import Annotated

from pydantic import Field

from perfmodel.errors import Fault, InputError, refuse_if
from perfmodel.scenario.sections.base import Rules
from perfmodel.scenario.strategies.ddp import NO_HOOK, CastHook, DdpStrategy
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


Size = Annotated[float, Field(gt=0)]


class DdpOptions(DdpStrategy):
    """Options of ``torch.nn.parallel.DistributedDataParallel``: its section, and more.

    Sizes are numbers of bytes.

    `set_last_bucket_cap`: environment variable ``DDP_SET_LAST_BUCKET_CAP=1``: the small bucket is
        launched last.
    `layer_devices`: GPU of the process that each layer of the model is on, for a module over
        several (``device_ids=None``); without them all are on one.
    """

    bucket_cap: Size | None = None
    first_bucket: Size | None = None
    bucket_caps: Annotated[tuple[Size, ...], Field(min_length=1)] | None = None
    set_last_bucket_cap: bool = False
    layer_devices: tuple[int, ...] = ()

    def _rules(self) -> Rules:
        return (
            *super()._rules(),
            (
                self.mixed_precision is not None and self.layer_devices,
                (
                    "'mixed_precision' without a module on several GPUs: torch casts on a stream "
                    "of the first GPU, which the others do not wait for"
                ),
            ),
        )

    def ranks_of_group(self, ranks: int) -> int:
        """Return the ranks that reduce gradients with one another.

        Raises `InputError`: ranks that cannot be split into groups.
        """
        size = ranks if self.process_group_gpus is None else min(ranks, self.process_group_gpus)
        refuse_if(
            ranks % size,
            "strategy.process_group_gpus",
            str(size),
            f"a number that divides the {ranks} ranks",
        )
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
