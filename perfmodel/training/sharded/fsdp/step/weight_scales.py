"""Scales of weights that torchao gathers in fp8 (torchao/float8/fsdp_utils.py).

Before a gather each rank casts its shard of each weight by the greatest value of the whole weight:
an all-reduce of one number for each weight, every time it is gathered (``fsdp_pre_all_gather``);
or, after the optimizer, one all-reduce for all of them
(``precompute_float8_dynamic_scale_for_fsdp``).
"""

from __future__ import annotations

from perfmodel.training.sharded.fsdp.step.sharded_step import (
    GATHER_COPIES,
    GATHERS,
    REDUCTIONS,
    SHARDS,
    ShardedStep,
    beside,
    communicate,
    copy_s,
    issue,
    run,
)
from perfmodel.training.sharded.shard_units import ShardUnit
from perfmodel.workload.model import ITEM_BYTES

AMAX_KERNELS = 7
"""Of one weight: absolute values, their maximum, and its scale in five kernels."""


def agree_on_scales(
    step: ShardedStep, unit: ShardUnit, ready: tuple[int, ...], *, backward: bool
) -> tuple[int, ...]:
    """Let ranks agree on the scale of each weight of a unit; returns what its cast waits for."""
    float8 = step.request.float8
    if float8 is None or float8.precompute_float8_dynamic_scale_for_fsdp:
        return ready
    item = ITEM_BYTES[step.sizes.own_dtype(unit)]
    phase = "backward" if backward else "forward"
    for weight in step.sizes.narrow_tensors(unit):
        name = f"greatest value of {weight.name}"
        issued = issue(step, name, AMAX_KERNELS)
        # read for its absolute values, which are written and read
        shard = 1.5 * weight.nbytes / step.shard_ranks
        ready = beside(
            step, name, copy_s(step, shard, AMAX_KERNELS), GATHER_COPIES, (*issued, *ready)
        )
        agreed = communicate(
            step,
            f"agree on the {name}",
            "all_reduce",
            item,
            dtype=step.sizes.own_dtype(unit),
            communicator=SHARDS,
            stream=GATHERS,
            after=ready,
            phase=phase,
        )
        ready = (agreed,)
    return ready


def add_scales(step: ShardedStep, end: int) -> int:
    """Agree on the scales of all weights, after the optimizer; returns the last task."""
    float8 = step.request.float8
    if float8 is None or not float8.precompute_float8_dynamic_scale_for_fsdp:
        return end
    units = [moment.unit for moment in step.walk if moment.kind == "enter" and moment.is_first]
    whole = [unit for unit in units if unit is not None]
    weights = [weight for unit in whole for weight in step.sizes.narrow_tensors(unit)]
    dtype = weights[0].dtype
    shards = sum(weight.nbytes for weight in weights) / step.shard_ranks
    name = "greatest values of weights"
    issued = issue(step, name, len(weights) + 1)
    norms = run(
        step, name, "copy", copy_s(step, shards / 2, len(weights) + 1), after=(*issued, end)
    )
    agreed = communicate(
        step,
        f"agree on {name}",
        "all_reduce",
        len(weights) * ITEM_BYTES[dtype],
        dtype=dtype,
        communicator=SHARDS,
        stream=REDUCTIONS,
        after=(norms,),
    )
    return run(
        step,
        "scales of weights",
        "copy",
        step.tasks.kernel_s * SCALE_KERNELS,
        after=(*issue(step, "scales", SCALE_KERNELS), agreed),
    )


SCALE_KERNELS = 4
"""Clamped, widened, divided into the greatest number of fp8, narrowed."""
