"""Fully sharded training as a row of the table of strategies."""

from __future__ import annotations

from perfmodel.scenario.sections.strategies.fsdp import FsdpStrategy
from perfmodel.training.sharded.fsdp.memory import fsdp_memory
from perfmodel.training.sharded.fsdp.options import FsdpOptions
from perfmodel.training.sharded.fsdp.step_plan import fsdp_plan
from perfmodel.training.strategy import Setting, Strategy
from perfmodel.workload.model import Workload


def _options(section: FsdpStrategy) -> FsdpOptions:
    return FsdpOptions(
        version=section.version,
        wrap=section.wrap,
        wrap_elements=section.wrap_elements,
        reshard_after_forward=section.reshard_after_forward,
        reshard_root=section.reshard_root,
        regather_gpus=section.regather_gpus,
        shard_gpus=section.shard_gpus,
        forward_prefetch=section.forward_prefetch,
        backward_prefetch=section.backward_prefetch,
        limit_all_gathers=section.limit_all_gathers,
        param_dtype=section.param_dtype,
        reduce_dtype=section.reduce_dtype,
        buffer_dtype=section.buffer_dtype,
        use_orig_params=section.use_orig_params,
        offload=section.offload,
        sync_module_states=section.sync_module_states,
        clip_norm=section.clip_norm,
        accumulate=section.accumulate,
        sync=section.sync,
        reshard_after_backward=section.reshard_after_backward,
        reduce_buffers=section.reduce_buffers,
        separate_reduce=section.separate_reduce,
    )


def _held_dtype(options: FsdpOptions) -> str | None:
    return options.param_dtype


def _settings(_: Workload, section: FsdpStrategy) -> tuple[Setting, ...]:
    """What changes when things are gathered, and not what is computed."""
    common = (
        Setting("wrap", ("block", "layer", "model")),
        Setting("reshard_after_forward", (True, False)),
    )
    if section.version == 2:
        return common
    return (
        *common,
        Setting("backward_prefetch", ("pre", "post", "none")),
        Setting("limit_all_gathers", (True, False)),
    )


FSDP = Strategy(
    "fully sharded data parallel", _options, fsdp_plan, fsdp_memory, held_dtype=_held_dtype,
    settings=_settings, lighter=({}, {"reshard_after_forward": True}, {"offload": True}),
    assumptions=(
        "Gathers and reductions of units follow each other in PyTorch's order on one communicator.",
        "Shard groups are neighbours: a node's GPUs before those of the next one.",
    ),
)  # fmt: skip
