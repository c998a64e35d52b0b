"""Fully sharded training as a row of the table of strategies."""

from __future__ import annotations

from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.training.sharded.fsdp.memory import fsdp_memory
from perfmodel.training.sharded.fsdp.step_plan import fsdp_plan
from perfmodel.training.strategy import Setting, Strategy
from perfmodel.workload.model import Workload


def _held_dtype(options: FsdpStrategy) -> str | None:
    return options.param_dtype


def _settings(_: Workload, section: FsdpStrategy) -> tuple[Setting, ...]:
    """What is gathered at once, and when: nothing that changes what is computed."""
    wraps = ("block", "layer", "size", "model")
    own = () if section.wrap in wraps else (section.wrap,)
    common = (
        Setting("wrap", (*wraps, *own)),
        Setting("reshard_after_forward", (True, False)),
        Setting("forward_prefetch", (0, 1, 2)),
    )
    if section.version == 2:
        return (*common, Setting("reshard_root", (False, True)))
    return (
        *common,
        Setting("backward_prefetch", ("pre", "post", "none")),
        Setting("limit_all_gathers", (True, False)),
    )


_STRATEGIES = {
    (True, False): "FULL_SHARD",
    (False, False): "SHARD_GRAD_OP",
    (True, True): "HYBRID_SHARD",
    (False, True): "_HYBRID_SHARD_ZERO2",
}


def _own_words(section: FsdpStrategy) -> tuple[str, ...]:
    """Arguments of the constructor, for each module that is a unit."""
    if section.version == 2:
        lines = [f"fully_shard(module, reshard_after_forward={section.reshard_after_forward})"]
        if section.forward_prefetch:
            units = int(section.forward_prefetch)
            lines.append(f"module.set_modules_to_forward_prefetch(next_modules[:{units}])")
        return tuple(lines)
    copies = section.shard_gpus is not None
    prefetch = (
        "None"
        if section.backward_prefetch == "none"
        else (f"BackwardPrefetch.BACKWARD_{section.backward_prefetch.upper()}")
    )
    name = _STRATEGIES[bool(section.reshard_after_forward), copies]
    arguments = (
        f"sharding_strategy=ShardingStrategy.{name}",
        f"backward_prefetch={prefetch}",
        f"forward_prefetch={bool(section.forward_prefetch)}",
        f"limit_all_gathers={section.limit_all_gathers}",
    )
    return (f"FullyShardedDataParallel(model, {', '.join(arguments)})",)


FSDP = Strategy(
    "fully sharded data parallel",
    fsdp_plan,
    fsdp_memory,
    held_dtype=_held_dtype,
    lighter=({}, {"reshard_after_forward": True}, {"offload": True}),
    assumptions=(
        "Gathers and reductions of units follow each other in PyTorch's order on one communicator.",
        "Shard groups are neighbours: a node's GPUs before those of the next one.",
    ),
    settings=_settings,
    own_words=_own_words,
)
