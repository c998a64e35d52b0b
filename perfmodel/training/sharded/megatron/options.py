"""How Megatron-Core's data parallelism is set up, with its own names and defaults."""

from __future__ import annotations

from dataclasses import dataclass

from perfmodel.errors import Fault, InputError

LEAST_BUCKET_ELEMENTS, BUCKET_ELEMENTS_PER_RANK = 40_000_000, 1_000_000
"""Default bucket (``distributed_data_parallel.py``): the larger of the first, and the second times
the ranks."""


@dataclass(frozen=True, slots=True)
class MegatronOptions:
    """Options of ``DistributedDataParallelConfig``.

    `use_distributed_optimizer`: optimizer states are split over the ranks.
    `overlap_grad_reduce`: each bucket is reduced as soon as its gradients are ready; otherwise all
        of them are one bucket, reduced after backward.
    `overlap_param_gather`: parameters are gathered bucket by bucket, beside the next forward.
    `bucket_size`: elements; None: the default.
    `gradient_accumulation_fusion`: kernels of weight gradients of linear layers add to the
        gradient buffer; other gradients are added to it after they are made.
    `num_distributed_optimizer_instances`: groups of neighbours that hold all states between them.
    `accumulate`: micro-batches per step.
    Raises `InputError`: counts below 1.
    """

    use_distributed_optimizer: bool = False
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    bucket_size: int | None = None
    grad_reduce_in_fp32: bool = False
    average_in_collective: bool = False
    pad_buckets_for_high_nccl_busbw: bool = False
    gradient_accumulation_fusion: bool = True
    num_distributed_optimizer_instances: int = 1
    accumulate: int = 1

    def __post_init__(self) -> None:
        names = ("bucket_size", "num_distributed_optimizer_instances", "accumulate")
        counts = ((name, getattr(self, name)) for name in names)
        faults = [
            Fault(name, repr(count), "a whole number, 1 or more")
            for name, count in counts
            if count is not None and count < 1
        ]
        if faults:
            raise InputError(faults)

    def bucket_elements(self, ranks: int) -> int | None:
        """Elements after which a bucket is closed; None: all are one bucket."""
        if not self.overlap_grad_reduce:
            return None
        return self.bucket_size or max(LEAST_BUCKET_ELEMENTS, BUCKET_ELEMENTS_PER_RANK * ranks)

    def shard_ranks(self, ranks: int) -> int:
        """Ranks that optimizer states are split over: one of a cluster smaller than the instances.

        Raises `InputError`: instances that do not divide the ranks.
        """
        instances = min(self.num_distributed_optimizer_instances, ranks)
        if ranks % instances:
            name = "strategy.num_distributed_optimizer_instances"
            allowed = f"a divisor of the {ranks} GPUs"
            fault = Fault(name, repr(instances), allowed)
            raise InputError([fault])
        return ranks // instances if self.use_distributed_optimizer else 1
