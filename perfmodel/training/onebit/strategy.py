"""DeepSpeed's 1-bit optimizers as a row of the table of strategies."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.scenario.sections.strategies.onebit import OneBitStrategy
from perfmodel.training.memory.use import MemoryUse, Setup, replicated
from perfmodel.training.onebit.options import OneBitOptions
from perfmodel.training.onebit.step_plan import (
    check_dtypes,
    momentum_buffers,
    onebit_plan,
    padded_elements,
)
from perfmodel.training.strategy import Strategy

ERROR_BYTES = 4
"""Errors, momenta and what is made of them are fp32."""
PASSING = 3
"""Tensors of the whole buffer beside it while it is compressed: the sum, signs and the error."""
MORE_STATES = {"adam": 0, "zero_one_adam": 1, "lamb": 1}
"""States beside Adam's two: what was not exchanged yet, or the fresh variance."""


def onebit_memory(setup: Setup) -> MemoryUse:
    """Add up what a GPU keeps: Adam's states, the errors of both exchanges, and fp32 gradients.

    A model in fp16 has its gradients once more, flat and in fp32, when activations are gone; so do
    tensors that compression needs.

    Raises `InputError`: ranks or batch below 1, or parameters that these optimizers do not train.
    """
    options = setup.options
    assert isinstance(options, OneBitOptions)
    use = replicated(setup)
    if setup.ranks == 1:
        return use
    check_dtypes(setup.workload)
    buffers = momentum_buffers(setup.workload, options)
    elements = sum(buffers)
    padded = [padded_elements(buffer, setup.ranks) for buffer in buffers]
    errors = ERROR_BYTES * (sum(padded) + sum(padded) // setup.ranks)
    states = ERROR_BYTES * elements * (2 + MORE_STATES[options.optimizer])
    master = ERROR_BYTES * elements if setup.trained[0].dtype == "fp16" else 0
    passing = PASSING * ERROR_BYTES * max(padded)
    # the flat gradients; with LAMB the momenta of the step before
    passing += master + (ERROR_BYTES * elements if options.optimizer == "lamb" else 0)
    return replace(
        use,
        optimizer_bytes=states + master,
        buckets_bytes=float(errors),
        gathered_bytes=max(0.0, passing - use.activations_bytes),
    )


def _options(section: OneBitStrategy) -> OneBitOptions:
    return OneBitOptions(
        section.optimizer, section.freeze_step, section.local_steps, section.accumulate
    )


def _remarks(options: OneBitOptions) -> tuple[str, ...]:
    warm_up = f"The {options.freeze_step:,} steps of the warm-up all-reduce whole gradients after"
    lines = [f"{warm_up} backward, as the first step does; a step here is one after them."]
    if options.local_steps > 1:
        lines.append(
            f"A step is a round of {options.local_steps:,} optimizer steps with one exchange; its "
            "samples are of all."
        )
    return tuple(lines)


ONEBIT = Strategy(
    "1-bit optimizers (DeepSpeed)",
    _options,
    onebit_plan,
    onebit_memory,
    remarks=_remarks,
    assumptions=(
        "1-bit optimizers follow DeepSpeed 0.14 over NCCL, in kernels of one operation, unmeasured",
        "1-bit optimizers decay weights",
    ),
)
