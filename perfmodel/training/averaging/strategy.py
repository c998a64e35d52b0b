"""Local SGD as a row of the table of strategies."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.scenario.strategies.ddp import LocalSgdStrategy
from perfmodel.training.averaging.options import LocalSgdOptions
from perfmodel.training.averaging.rounds import averaged_bytes, local_sgd_plan
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.strategy import ddp_memory
from perfmodel.training.memory.use import MemoryUse, Setup, replicated
from perfmodel.training.strategy import Strategy


def _options(section: LocalSgdStrategy) -> LocalSgdOptions:
    return LocalSgdOptions(
        period=section.period,
        levels=tuple((level.period, level.gpus) for level in section.levels),
        warmup_steps=section.warmup_steps,
        gradient_ranks=section.gradient_gpus,
        ddp=DdpOptions(
            bucket_cap_bytes=section.bucket_cap,
            gradient_as_bucket_view=section.gradient_as_bucket_view,
            broadcast_buffers=section.broadcast_buffers,
        ),
    )


def local_sgd_memory(setup: Setup) -> MemoryUse:
    """Add up what local SGD keeps on a GPU.

    The flat copy of all parameters is made after the optimizer, where activations are gone: what
    it takes beyond their room counts. The warm-up has the buckets of all gradients, too.
    """
    options = setup.options
    assert isinstance(options, LocalSgdOptions)
    if setup.ranks == 1:
        return replicated(setup)
    with_buckets = options.gradient_ranks is not None or options.warmup_steps > 0
    use = ddp_memory(replace(setup, options=options.hooked)) if with_buckets else replicated(setup)
    nbytes, _ = averaged_bytes(setup.trained)
    return replace(use, gathered_bytes=max(0.0, nbytes - use.activations_bytes))


def _remarks(options: LocalSgdOptions) -> tuple[str, ...]:
    steps = options.accumulate
    warm_up = ""
    if options.warmup_steps:
        warm_up = f" The {options.warmup_steps:,} steps of the warm-up are not in it."
    unit = "one optimizer step" if steps == 1 else f"a round of {steps:,} optimizer steps"
    sentence = f"A step is {unit}, with the averages of parameters in it; its samples are of all."
    rest = "How many more samples training needs with fewer averages is not modelled."
    return (f"{sentence}{warm_up} {rest}",)


LOCAL_SGD = Strategy(
    "local SGD", local_sgd_plan, local_sgd_memory, options=_options, remarks=_remarks
)
