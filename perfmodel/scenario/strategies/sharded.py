"""Sharded training of PyTorch (FullyShardedDataParallel, fully_shard) and Megatron-Core."""

from collections.abc import Iterable
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from perfmodel.errors import Fault, FieldErrors, refuse_if
from perfmodel.files import Bytes, Count
from perfmodel.scenario.sections.base import (
    Elements,
    FloatType,
    Index,
    MicroSteps,
    Name,
    Rules,
    StrategyModel,
    Switch,
    as_text,
)

Units = Annotated[Index, BeforeValidator(lambda value: int(value) if value is True else value)]
"""A number of units; true for one."""


_FIELDS_OF_OTHER_VERSION: dict[int | str, dict[str, tuple[object, str]]] = {
    1: {
        "reshard_root": (False, "false with version 1, whose root is never freed after forward"),
        "reshard_after_backward": (True, "true with version 1"),
        "reduce_buffers": (1, "1 with version 1"),
        "separate_reduce": (False, "false with version 1"),
        "suggested_communication_unit_size": (None, "nothing with version 1"),
        "fsdp_double_buffer": (False, "false with version 1"),
    },
    2: {
        "limit_all_gathers": (True, "true with version 2, which has no rate limiter"),
        "buffer_dtype": (None, "nothing with version 2, which leaves buffers as they are"),
        "use_orig_params": (False, "false with version 2, which has no flat parameters"),
        "sync_module_states": (False, "false with version 2, which broadcasts nothing"),
        "suggested_communication_unit_size": (None, "nothing with version 2"),
        "fsdp_double_buffer": (False, "false with version 2"),
    },
    "megatron": {
        "reshard_after_forward": (True, "true with version megatron"),
        "reshard_root": (False, "false with version megatron, whose root stays whole for a step"),
        "shard_gpus": (None, "nothing with version megatron"),
        "forward_prefetch": (0, "0 with version megatron, which goes by elements"),
        "backward_prefetch": ("pre", "'pre' with version megatron, which goes by elements"),
        "reduce_buffers": (1, "1 with version megatron, which goes by elements"),
        "limit_all_gathers": (True, "true with version megatron, which has no rate limiter"),
        "buffer_dtype": (None, "nothing with version megatron, which leaves buffers as they are"),
        "use_orig_params": (False, "false with version megatron"),
        "sync_module_states": (False, "false with version megatron"),
        "offload": (False, "false with version megatron"),
        "sync": ("each", "'each' with version megatron, which reduces gradients of each"),
        "separate_reduce": (False, "false with version megatron"),
    },
}
"""What each version lacks: its only value and what a fault says."""


class FsdpStrategy(StrategyModel):
    """FullyShardedDataParallel (version 1) or fully_shard (version 2), with PyTorch's names.

    Version "megatron" is Megatron-FSDP (``optim_grads_params``), with those of its
    ``DistributedDataParallelConfig``.
    """

    kind: Literal["fsdp"]
    version: Literal[1, 2, "megatron"] = Field(
        default=2, description="2: fully_shard, one tensor at a time; megatron: Megatron-FSDP"
    )
    wrap: (
        Literal["block", "layer", "auto", "size", "model"]
        | Annotated[tuple[Name, ...], Field(min_length=1)]
    ) = Field(
        default="block",
        description="what is gathered at once: each block, each layer, buckets that PyTorch's "
        "compiler fills by itself (SimpleFSDP with auto_bucketing), modules by their size, the "
        "whole model, or a list of paths such as 'model.layers.*' and 'lm_head'",
    )
    bucket_cap: Bytes | None = Field(
        default=None,
        description="of a bucket, with 'wrap: auto'; default: what the compiler takes to saturate "
        "links (pre_bucketing_fsdp_collectives_bucket_cap_mb)",
    )
    wrap_elements: Count | None = Field(
        default=None,
        description="parameters of a unit, at least, with 'wrap: size'; default: 100,000,000",
    )
    reshard_after_forward: Switch | Count = Field(
        default=True,
        description="false: units stay whole until backward (SHARD_GRAD_OP); a number: so many "
        "GPUs hold a unit between them (version 2)",
    )
    reshard_root: Switch = Field(
        default=False, description="the outermost unit is freed after forward, too (version 2)"
    )
    shard_gpus: Count | None = Field(
        default=None, description="GPUs that a unit is split over, the others hold copies (HSDP)"
    )
    forward_prefetch: Units = Field(
        default=0, description="units gathered before the layers of the one in hand; true for one"
    )
    backward_prefetch: Literal["pre", "post", "none"] | Count = Field(
        default="pre",
        description="the unit before is gathered before the layers of the one in hand, after them, "
        "or when it is needed; a number: so many units, before (version 2)",
    )
    limit_all_gathers: Switch = True
    param_dtype: FloatType | None = Field(
        default=None, description="that parameters are gathered in; default: their own"
    )
    reduce_dtype: FloatType | None = Field(
        default=None, description="that gradients are reduced in; default: 'param_dtype'"
    )
    buffer_dtype: FloatType | None = Field(
        default=None, description="that buffers are kept in (version 1)"
    )
    use_orig_params: Switch = Field(
        default=False, description="parameters begin at multiples of 16 bytes (version 1)"
    )
    offload: Switch = Field(
        default=False,
        description="parameters, gradients and optimizer states lie in host memory, and the "
        "optimizer runs there",
    )
    sync_module_states: Switch = Field(
        default=False, description="rank 0's states are broadcast before the first step (version 1)"
    )
    clip_norm: Switch = Field(
        default=False, description="gradients are clipped by their norm over all GPUs"
    )
    accumulate: MicroSteps = 1
    sync: Literal["each", "last", "shards"] = Field(
        default="each",
        description="micro-steps that reduce gradients: each; the last one (no_sync); or each to "
        "shards, and the last one over copies (version 2)",
    )
    reshard_after_backward: Switch = Field(
        default=True,
        description="false: units stay whole after micro-steps that reduce nothing (version 2)",
    )
    reduce_buffers: Count = Field(
        default=1, description="inputs of reductions that are kept at once (version 2)"
    )
    separate_reduce: Switch = Field(
        default=False, description="reductions have a communicator of their own (version 2)"
    )
    suggested_communication_unit_size: Elements | None = Field(
        default=None,
        description="elements: units are gathered ahead until half as many are under way, and "
        "layers wait where reductions have more; default: 1,000,000,000, or of two units if these "
        "are larger (version megatron)",
    )
    fsdp_double_buffer: Switch = Field(
        default=False, description="two units at once, at most (version megatron)"
    )

    def _field_rules(self) -> Iterable[tuple[str, object, str]]:
        """Rows of a field, whether its value is refused, and what is allowed."""
        first, others = self.version == 1, _FIELDS_OF_OTHER_VERSION[self.version]
        return (
            (
                "reshard_after_forward",
                first and self.regather_gpus is not None,
                "true or false with version 1; a number of GPUs is for version 2",
            ),
            *((name, getattr(self, name) != only, text) for name, (only, text) in others.items()),
            (
                "forward_prefetch",
                first and self.forward_prefetch > 1,
                "0 or 1 with version 1, which has forward_prefetch=True",
            ),
            (
                "backward_prefetch",
                isinstance(self.backward_prefetch, int) == first
                and self.backward_prefetch != "pre",
                "'pre', 'post' or 'none' with version 1, 'pre' or a number with version 2",
            ),
            ("sync", first and self.sync == "shards", "'each' or 'last' with version 1"),
            (
                "wrap",
                first and self.wrap == "auto",
                "another way with version 1: no compiler fills its units",
            ),
            (
                "bucket_cap",
                self.bucket_cap is not None and self.wrap != "auto",
                "nothing without wrap: auto",
            ),
            (
                "wrap_elements",
                self.wrap_elements is not None and self.wrap != "size",
                "nothing without wrap: size",
            ),
            (
                "reshard_after_backward",
                not self.reshard_after_backward and self.sync != "last",
                "true unless sync: last, as micro-steps that reduce free their units always",
            ),
            (
                "reshard_root",
                self.reshard_root and not self.reshard_after_forward,
                "false with reshard_after_forward: false",
            ),
        )

    @model_validator(mode="after")
    def _check_fields(self) -> "FsdpStrategy":
        faults = [
            Fault(name, as_text(getattr(self, name)), allowed)
            for name, is_refused, allowed in self._field_rules()
            if is_refused
        ]
        if faults:
            raise FieldErrors(faults)
        return self

    @property
    def unit_elements(self) -> int:
        """Least parameters of a unit with ``wrap: size``.

        By default ``min_num_params`` of ``size_based_auto_wrap_policy``
        (torch/distributed/fsdp/wrap.py).
        """
        return self.wrap_elements or 100_000_000

    def shard_ranks(self, ranks: int) -> int:
        """Ranks that a unit is split over: all of a cluster smaller than a shard group."""
        return min(self.shard_gpus or ranks, ranks)

    @property
    def units_ahead(self) -> int:
        """Units that backward gathers before the layers of the one in hand."""
        ahead = self.backward_prefetch
        return int(
            ahead == "pre" and self.version != "megatron" if isinstance(ahead, str) else ahead
        )

    @property
    def regather_gpus(self) -> int | None:
        """Ranks that hold a unit between them after forward; None where that is no number."""
        number = self.reshard_after_forward
        return None if isinstance(number, bool) else number


class MegatronStrategy(StrategyModel):
    """``DistributedDataParallelConfig`` of Megatron-Core, with its own names and defaults.

    The model trains in the dtype of its tensors (``--bf16`` is ``model.dtype: bf16``).
    """

    kind: Literal["megatron"]
    use_distributed_optimizer: Switch = Field(
        default=False, description="optimizer states are split over the GPUs"
    )
    layer_wise_distributed_optimizer: Switch = Field(
        default=False,
        description="each GPU updates whole tensors, as many as the others (dist_muon)",
    )
    overlap_grad_reduce: Switch = Field(
        default=False, description="gradients are reduced beside backward, bucket by bucket"
    )
    overlap_param_gather: Switch = Field(
        default=False, description="parameters are gathered beside the next forward"
    )
    bucket_size: Elements | None = Field(
        default=None,
        description="elements; by default 40 million, and at least a million for each GPU",
    )
    grad_reduce_in_fp32: Switch = False
    average_in_collective: Switch = False
    pad_buckets_for_high_nccl_busbw: Switch = False
    gradient_accumulation_fusion: Switch = Field(
        default=True, description="kernels of weight gradients add to the buffer themselves"
    )
    num_distributed_optimizer_instances: Count = Field(
        default=1, description="groups of GPUs that each hold all optimizer states"
    )
    accumulate: MicroSteps = 1

    def _rules(self) -> Rules:
        return (
            (
                self.use_distributed_optimizer and self.layer_wise_distributed_optimizer,
                "'use_distributed_optimizer' or 'layer_wise_distributed_optimizer', not both",
            ),
            *(
                (is_stated and not getattr(self, needed), f"{name!r} with '{needed}: true' alone")
                for name, is_stated, needed in (
                    (
                        "overlap_param_gather",
                        self.overlap_param_gather,
                        "use_distributed_optimizer",
                    ),
                    ("overlap_param_gather", self.overlap_param_gather, "overlap_grad_reduce"),
                    ("bucket_size", self.bucket_size is not None, "overlap_grad_reduce"),
                    (
                        "num_distributed_optimizer_instances",
                        self.num_distributed_optimizer_instances > 1,
                        "use_distributed_optimizer",
                    ),
                )
            ),
        )

    def bucket_elements(self, ranks: int) -> int | None:
        """Elements after which a bucket is closed; None: all are one bucket."""
        elements = self.bucket_size or default_bucket_elements(ranks)
        return elements if self.overlap_grad_reduce else None

    def shard_ranks(self, ranks: int) -> int:
        """Ranks that optimizer states are split over: one of a cluster smaller than the instances.

        Raises `InputError`: instances that do not divide the ranks.
        """
        instances = min(self.num_distributed_optimizer_instances, ranks)
        refuse_if(
            ranks % instances,
            "strategy.num_distributed_optimizer_instances",
            repr(instances),
            f"a divisor of the {ranks} GPUs",
        )
        return ranks // instances if self.use_distributed_optimizer else 1


def default_bucket_elements(ranks: int) -> int:
    """Elements of Megatron-Core's default bucket (``distributed_data_parallel.py``)."""
    return max(40_000_000, 1_000_000 * ranks)
