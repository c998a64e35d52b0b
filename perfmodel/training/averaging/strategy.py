"""Local SGD as a row of the table of strategies."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.scenario.strategies.ddp import LocalSgdStrategy
from perfmodel.training.averaging.rounds import averaged_bytes, hooked, local_sgd_plan
from perfmodel.training.ddp.strategy import ddp_memory
from perfmodel.training.memory.use import MemoryUse, Setup, replicated
from perfmodel.training.strategy import Strategy


def local_sgd_memory(setup: Setup) -> MemoryUse:
    """Add up what local SGD keeps on a GPU.

    The flat copy of all parameters is made after the optimizer, where activations are gone: what
    it takes beyond their room counts. The warm-up has the buckets of all gradients, too.
    """
    options = setup.options
    assert isinstance(options, LocalSgdStrategy)
    if setup.ranks == 1:
        return replicated(setup)
    with_buckets = options.gradient_gpus is not None or options.warmup_steps > 0
    use = ddp_memory(replace(setup, options=hooked(options))) if with_buckets else replicated(setup)
    nbytes, _ = averaged_bytes(setup.trained)
    return replace(use, gathered_bytes=max(0.0, nbytes - use.activations_bytes))


def _remarks(options: LocalSgdStrategy) -> tuple[str, ...]:
    steps = options.accumulate
    warm_up = ""
    if options.warmup_steps:
        warm_up = f" The {options.warmup_steps:,} steps of the warm-up are not in it."
    unit = "one optimizer step" if steps == 1 else f"a round of {steps:,} optimizer steps"
    sentence = f"A step is {unit}, with the averages of parameters in it; its samples are of all."
    rest = "How many more samples training needs with fewer averages is not modelled."
    return (f"{sentence}{warm_up} {rest}",)


LOCAL_SGD = Strategy("local SGD", local_sgd_plan, local_sgd_memory, remarks=_remarks)
