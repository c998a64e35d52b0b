"""ZeRO as a row of the table of strategies, and its memory on GPUs, on their host and on drives.

Off the GPU, by element of a rank's part, in mixed precision with Adam: 4 of the fp32 parameter, 8
of its moments and 4 of its gradient, 2 of the gradient in 16 bits where it is kept for
accumulation, and 2 of the parameter with ``offload_param``: the 20 bytes of ZeRO-Infinity's
equation 2 (arXiv 2104.07857).
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.memory_use import MemoryUse, Setup, replicated
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.strategy import Setting, StepRequest, Strategy
from perfmodel.training.zero.fetches import persistent_tensors, trace_fetches
from perfmodel.training.zero.matrices import matrix_gathers, own_matrices, with_own_matrices
from perfmodel.training.zero.offload import (
    SWAPPED_STATES,
    check_offload,
    drive_tensors,
    part_elements,
    sub_groups,
    swaps_states,
)
from perfmodel.training.zero.sharded_parameters import sharded_parameters_plan
from perfmodel.training.zero.sharded_states import partition, sharded_states_plan
from perfmodel.workload.kernels.shapes import WIDE_BYTES
from perfmodel.workload.memory import optimizer_state_bytes
from perfmodel.workload.memory.optimizer_states import parameter_groups, without
from perfmodel.workload.model import ITEM_BYTES


def zero_plan(request: StepRequest, options: ZeroStrategy) -> StepPlan:
    """Return one step of ZeRO training; of plain training for one rank.

    Raises `InputError`: second copies that do not divide the ranks.
    Raises `ScheduleError`: times that do not fit the workload.
    """
    options, request = options.within(request.ranks), with_own_matrices(request, options)
    if request.ranks == 1 and not options.offloads:
        return ddp_plan(request, DdpOptions(accumulate=options.accumulate))
    check_offload(request, options)
    make = sharded_parameters_plan if options.stage == 3 else sharded_states_plan
    return make(request, options)


def zero_memory(setup: Setup) -> MemoryUse:
    """Add up what a rank keeps: parameters, its part of the states, and buffers.

    Buffers of gradients are allocated whole, `reduce_bucket_size` elements each, however small the
    model is (``setup_buckets``). Master copies in fp32 are kept whatever the model's dtype.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    options: ZeroStrategy = setup.options
    # stage 1 keeps each gradient where autograd put it; the others copy parts to a buffer
    use = replicated(setup, grows=options.stage == 1)
    options = options.within(setup.ranks)
    use = (_sharded_parameters if options.stage == 3 else _sharded_states)(setup, options, use)
    if not options.offloads:
        return _with_flat_gradients(setup, options, use)
    in_memory, on_drives = _off_gpu_bytes(setup, options)
    return replace(use, host_bytes=in_memory, drive_bytes=on_drives)


def _with_flat_gradients(setup: Setup, options: ZeroStrategy, use: MemoryUse) -> MemoryUse:
    """Add what a step makes of the own gradients: one tensor of them, and its copy in fp32.

    When it does, activations, buffers and the gradients of other ranks' parts are gone
    (``single_grad_partition`` in stage_1_and_2.py, ``_prepare_fp32_grad_for_sub_group`` in
    stage3.py). The allocator keeps their blocks, of which none is as large, and reserves both.
    """
    item = ITEM_BYTES[setup.trained[0].dtype]
    workload, ranks, is_whole = setup.workload, setup.ranks, options.stage < 3
    own = (
        partition(workload, options, ranks, setup.optimizer).part_elements
        if is_whole
        else max(
            part_elements(workload, group, ranks)
            for group in sub_groups(workload, options, ranks, setup.optimizer)
        )
    )
    gone = use.gradients_bytes - own * item if is_whole else use.gathered_bytes
    flat = max(
        0.0,
        own * (item + WIDE_BYTES * (item < WIDE_BYTES)),
        # before, of Muon's matrices: gradients, momenta, and what these are gathered into
        *(
            3.0 * elements * ITEM_BYTES[options.communication_data_type or setup.trained[0].dtype]
            for _, elements, _ in matrix_gathers(workload, options, ranks, setup.optimizer)
        ),
    )
    more = max(0.0, flat - use.activations_bytes - use.buckets_bytes - gone)
    return replace(use, temporary_bytes=more, idle_bytes=flat - more)


def _state_bytes(
    setup: Setup, options: ZeroStrategy, elements: int, matrices: int, momenta_bytes: float
) -> float:
    """Optimizer states of so many elements, and their fp32 copies; none that are offloaded.

    `matrices`: of these elements, those that are made orthogonal, whose only states are momenta.
    """
    if options.offload_optimizer:
        return 0.0
    setup = replace(
        setup,
        workload=without(
            setup.workload,
            parameter_groups(setup.workload, setup.optimizer).get("matrices", ()),
        ),
    )
    total = sum(tensor.numel for tensor in setup.trained)
    narrow = sum(t.numel for t in setup.trained if ITEM_BYTES[t.dtype] < WIDE_BYTES)
    states = optimizer_state_bytes(setup.workload, setup.optimizer) - narrow * WIDE_BYTES
    return (elements - matrices) * states / (total or 1) + elements * WIDE_BYTES + momenta_bytes


def _sharded_states(setup: Setup, options: ZeroStrategy, use: MemoryUse) -> MemoryUse:
    """Stages 1 and 2: parameters are whole, in one flat buffer.

    Offloaded, a buffer of the largest gradient stands for the own part. Without contiguous
    gradients those of a bucket are held, and their copy when it is sent.
    """
    item, offloaded = ITEM_BYTES[setup.trained[0].dtype], options.offload_optimizer
    layout = partition(setup.workload, options, setup.ranks, setup.optimizer)
    sizes = [tensor.numel for tensor in setup.trained]
    trained, largest = (rule(t.nbytes for t in setup.trained) for rule in (sum, max))
    own = largest if offloaded else layout.part_elements * item
    buffers = (2 if options.overlaps_backward else 1) * options.reduce_bucket_size
    if not (options.contiguous_gradients or offloaded):
        buffers = 2 * min(sum(sizes), max(options.reduce_bucket_size, *sizes))
    return replace(
        use,
        parameters_bytes=use.parameters_bytes - trained + sum(layout.groups.values()) * item,
        gradients_bytes=own if options.stage == 2 else trained + own,
        optimizer_bytes=_state_bytes(
            setup,
            options,
            layout.part_elements,
            layout.groups.get("matrices", 0) // setup.ranks,
            2.0
            * sum(
                setup.workload.tensors[matrix].nbytes
                for matrix in own_matrices(setup.workload, options, setup.ranks, setup.optimizer)
            ),
        ),
        buckets_bytes=buffers * item,
    )


def _sharded_parameters(setup: Setup, options: ZeroStrategy, use: MemoryUse) -> MemoryUse:
    """Stage 3: parts of parameters, persistent ones whole, and those that are gathered."""
    workload, ranks, holders = setup.workload, setup.ranks, options.zero_hpz_partition_size
    item = ITEM_BYTES[setup.trained[0].dtype]
    own, matrices = (
        part_elements(workload, each, ranks)
        for each in (
            workload.ready_order,
            parameter_groups(workload, setup.optimizer).get("matrices", ()),
        )
    )
    part = part_elements(workload, range(len(workload.tensors)), ranks)
    kept = sum(workload.tensors[each].numel for each in persistent_tensors(workload, options))
    if not options.offload_param:
        kept += part + (part * ranks // holders if holders > 1 else 0)
    largest = max(tensor.numel for tensor in setup.trained)
    # from the third micro-batch on they repeat
    few = options.model_copy(update={"accumulate": min(3, options.accumulate)})
    _, live = trace_fetches(workload, few, drive_tensors(workload, options, ranks))
    return replace(
        use,
        parameters_bytes=kept * item + workload.buffer_bytes,
        gradients_bytes=0.0 if options.offload_optimizer else own * item,
        optimizer_bytes=_state_bytes(
            setup,
            options,
            own,
            matrices,
            float(matrices * ITEM_BYTES[options.communication_data_type or setup.trained[0].dtype]),
        ),
        buckets_bytes=options.reduce_bucket_size * item + largest * item,
        gathered_bytes=(live + min(live, options.stage3_prefetch_bucket_size)) * item,
    )


# ---------------------------------------------------------------- off the GPU


def _off_gpu_bytes(setup: Setup, options: ZeroStrategy) -> tuple[float, float]:
    """Bytes in the memory of the host, and on its drives, of one rank."""
    item, workload = ITEM_BYTES[setup.trained[0].dtype], setup.workload
    state_bytes = (1 + SWAPPED_STATES) * WIDE_BYTES
    if options.stage < 3:
        accumulated = item if options.stage == 2 and options.accumulate > 1 else 0
        return (state_bytes + accumulated) * partition(
            workload, options, setup.ranks
        ).part_elements, 0.0
    in_memory, on_drives = _parameter_bytes(setup, options, item)
    offload = options.offload_optimizer
    if offload is not None:  # states by sub-group, the buffers for these, and gradients
        parts = [
            part_elements(workload, group, setup.ranks)
            for group in sub_groups(workload, options, setup.ranks)
        ]
        away = sum(part for part in parts if offload.nvme and swaps_states(part))
        buffers = offload.buffer_count * WIDE_BYTES * max(parts) if away else 0.0
        gradients = item * part_elements(workload, workload.ready_order, setup.ranks)
        in_memory += state_bytes * (sum(parts) - away) + buffers + gradients
        on_drives += float(state_bytes * away)
    return in_memory, on_drives


def _parameter_bytes(setup: Setup, options: ZeroStrategy, item: int) -> tuple[float, float]:
    """Parts of parameters, and buffers: to read them, and to write those of one sub-group."""
    offload, workload, ranks = options.offload_param, setup.workload, setup.ranks
    if offload is None:
        return 0.0, 0.0
    on_drives = drive_tensors(workload, options, ranks)
    away = part_elements(workload, sorted(on_drives), ranks)
    kept = part_elements(workload, range(len(workload.tensors)), ranks) - away
    if offload.nvme:
        written = [
            group for group in sub_groups(workload, options, ranks) if on_drives.intersection(group)
        ]
        # DeepSpeed 0.19 reserves whole parameters of the largest sub-group, not a rank's parts
        whole = (sum(workload.tensors[each].numel for each in group) for group in written)
        kept += offload.buffer_count * offload.buffer_size + max(whole, default=0)
    return float(item * kept), float(item * away)


# ---------------------------------------------------------------- the row


def _settings(section: ZeroStrategy, *_: int) -> tuple[Setting, ...]:
    """Sizes of what is reduced and gathered at once, and what goes on beside backward."""
    common = (
        Setting(
            "reduce_bucket_size",
            tuple(n * 10**6 for n in (10, 50, 100, 200, 500, 1000)),
            "elements",
        ),
        Setting("overlap_comm", (None, False, True)),
    )
    if section.stage < 3:
        return (*common, Setting("round_robin_gradients", (False, True)))
    return (
        *common,
        Setting(
            "stage3_prefetch_bucket_size",
            (0, *(n * 10**6 for n in (1, 10, 50, 200, 1000))),
            "elements",
        ),
        Setting("stage3_param_persistence_threshold", (0, 10_000, 100_000, 10**6), "elements"),
        Setting("stage3_max_live_parameters", (100 * 10**6, 1000 * 10**6, 3000 * 10**6)),
    )


def _bucket_sizes(section: ZeroStrategy, _: int) -> Setting | None:
    """Elements that are reduced at once, where they are not stated: 500 million by default."""
    if "reduce_bucket_size" in section.model_fields_set:
        return None
    return Setting(
        "reduce_bucket_size",
        tuple(None if n is None else n * 10**6 for n in (20, 50, 100, 200, None, 1000, 2000)),
        "elements",
    )


def _remarks(options: ZeroStrategy) -> tuple[str, ...]:
    remarks = (
        (
            options.offload_optimizer,
            (
                "The optimizer runs on the CPUs at the rate of the host's memory, which its GPUs "
                "share as their ways to it."
            ),
        ),
        (
            options.offload_param,
            (
                "Parts of parameters are copied from pinned memory before they are gathered, and "
                "the host waits for each copy, as DeepSpeed does."
            ),
        ),
        (options.uses_drives, "The GPUs of a host share the rates of its drives evenly."),
    )
    return tuple(sentence for applies, sentence in remarks if applies)


ZERO = Strategy(
    "ZeRO (DeepSpeed)",
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
    first_differs=lambda _options: False,
    remarks=_remarks,
)
