"""ZeRO as a row of the table of strategies."""

from __future__ import annotations

import json

from perfmodel.scenario.sections.strategies.zero import OffloadOptimizer, OffloadParam, ZeroStrategy
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.sharded.zero.memory import zero_memory
from perfmodel.training.sharded.zero.offload import check_offload
from perfmodel.training.sharded.zero.options import OptimizerOffload, ParameterOffload, ZeroOptions
from perfmodel.training.sharded.zero.sharded_parameters import sharded_parameters_plan
from perfmodel.training.sharded.zero.sharded_states import sharded_states_plan
from perfmodel.training.strategy import Setting, StepRequest, Strategy
from perfmodel.workload.model import Workload


def zero_plan(request: StepRequest, options: ZeroOptions) -> StepPlan:
    """Return one step of ZeRO training; of plain training for one rank.

    Raises `InputError`: second copies that do not divide the ranks.
    Raises `ScheduleError`: times that do not fit the workload.
    """
    if request.ranks == 1 and not options.offloads:
        return ddp_plan(request, DdpOptions(accumulate=options.accumulate))
    options = options.within(request.ranks)
    check_offload(request, options)
    if options.stage == 3:
        return sharded_parameters_plan(request, options)
    return sharded_states_plan(request, options)


def _options(section: ZeroStrategy) -> ZeroOptions:
    return ZeroOptions(
        stage=section.stage,
        reduce_bucket_size=section.reduce_bucket_size,
        reduce_scatter=section.reduce_scatter,
        use_multi_rank_bucket_allreduce=section.use_multi_rank_bucket_allreduce,
        overlap_comm=section.overlap_comm,
        contiguous_gradients=section.contiguous_gradients,
        round_robin_gradients=section.round_robin_gradients,
        prefetch_bucket_size=section.stage3_prefetch_bucket_size,
        param_persistence_threshold=section.stage3_param_persistence_threshold,
        max_live_parameters=section.stage3_max_live_parameters,
        max_reuse_distance=section.stage3_max_reuse_distance,
        sub_group_size=section.sub_group_size,
        allgather_sequential=section.stage3_allgather_sequential,
        offload_optimizer=_optimizer_offload(section.offload_optimizer),
        offload_param=_parameter_offload(section.offload_param),
        hpz_ranks=section.zero_hpz_partition_size,
        communication_data_type=section.communication_data_type,
        accumulate=section.accumulate,
    )


def _optimizer_offload(section: OffloadOptimizer | None) -> OptimizerOffload | None:
    if section is None:
        return None
    nvme = section.device == "nvme"
    reads, writes = section.pipeline_read, section.pipeline_write
    return OptimizerOffload(nvme, section.buffer_count, reads, writes)


def _parameter_offload(section: OffloadParam | None) -> ParameterOffload | None:
    if section is None:
        return None
    nvme = section.device == "nvme"
    return ParameterOffload(nvme, section.buffer_count, section.buffer_size, section.max_in_cpu)


def _settings(_: Workload, section: ZeroStrategy) -> tuple[Setting, ...]:
    """Sizes of what is reduced and gathered at once, and what goes on beside backward."""
    millions = (10, 50, 100, 200, 500, 1000)
    common = (
        Setting("reduce_bucket_size", tuple(n * 1_000_000 for n in millions), "elements"),
        Setting("overlap_comm", (None, False, True)),
    )
    if section.stage < 3:
        return (*common, Setting("round_robin_gradients", (False, True)))
    prefetched = (0, *(n * 1_000_000 for n in (1, 10, 50, 200, 1000)))
    return (
        *common,
        Setting("stage3_prefetch_bucket_size", prefetched, "elements"),
        Setting("stage3_param_persistence_threshold", (0, 10_000, 100_000, 1_000_000), "elements"),
        Setting("stage3_max_live_parameters", (100_000_000, 1_000_000_000, 3_000_000_000)),
    )


def _bucket_sizes(section: ZeroStrategy, _: int) -> Setting | None:
    """Elements that are reduced at once, where they are not stated: 500 million by default."""
    if "reduce_bucket_size" in section.model_fields_set:
        return None
    smaller, larger = (20, 50, 100, 200), (1000, 2000)
    sizes = [*(n * 1_000_000 for n in smaller), None, *(n * 1_000_000 for n in larger)]
    return Setting("reduce_bucket_size", tuple(sizes), "elements")


def _own_words(section: ZeroStrategy) -> tuple[str, ...]:
    """DeepSpeed's configuration."""
    values = section.model_dump(exclude_unset=True, exclude={"kind", "accumulate"})
    return (json.dumps({"zero_optimization": {"stage": section.stage, **values}}),)


def _remarks(options: ZeroOptions) -> tuple[str, ...]:
    sentences = []
    if options.offload_optimizer:
        sentences.append(
            "The optimizer runs on the CPUs at the rate of the host's memory, which its GPUs share "
            "as their ways to it."
        )
    if options.offload_param:
        sentences.append(
            "Parts of parameters are copied from pinned memory before they are gathered, and the "
            "host waits for each copy, as DeepSpeed does."
        )
    if options.uses_drives:
        sentences.append("The GPUs of a host share the rates of its drives evenly.")
    return tuple(sentences)


ZERO = Strategy(
    "ZeRO (DeepSpeed)",
    _options,
    zero_plan,
    zero_memory,
    lighter=(
        {"stage": 1},
        {"stage": 2},
        {"stage": 3},
        {"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}},
    ),
    assumptions=(
        "ZeRO follows DeepSpeed 0.19 with PyTorch 1.13 or later, in steps whose trace is complete",
    ),
    settings=_settings,
    bucket_sizes=_bucket_sizes,
    own_words=_own_words,
    remarks=_remarks,
)
