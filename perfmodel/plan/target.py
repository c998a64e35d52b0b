"""How many samples and steps a target takes."""

from __future__ import annotations

import math
import re

from perfmodel.errors import InputError
from perfmodel.scenario import Scenario, TargetSection
from perfmodel.workload.model import Workload

_SEQUENCE = re.compile(r"sequence of (\d+) tokens")


def tokens_per_sample(workload: Workload) -> int | None:
    """Tokens of one sample; None for a model whose samples are no sequences.

    A model of the zoo says it in the name of its sample.
    """
    match = _SEQUENCE.fullmatch(workload.sample)
    return int(match[1]) if match else None


def target_samples(scenario: Scenario, workload: Workload) -> float:
    """Samples of the target at its reference batch.

    Raises
    ------
    InputError
        Tokens of a model whose samples are no sequences.
    """
    assert scenario.plan is not None
    target = scenario.plan.target
    if target.samples is not None:
        return float(target.samples)
    if target.tokens is not None:
        return target.tokens / _tokens(scenario, workload, "plan.target.tokens")
    dataset = target.dataset
    assert dataset is not None
    count = float(dataset.count)
    if dataset.unit == "tokens":
        count /= _tokens(scenario, workload, "plan.target.dataset")
    return (target.epochs or 0.0) * count


def _tokens(scenario: Scenario, workload: Workload, field: str) -> int:
    each = tokens_per_sample(workload)
    if each is None:
        raise _no_sequence(scenario, workload, field)
    return each


def _no_sequence(scenario: Scenario, workload: Workload, field: str) -> InputError:
    found = f"tokens, but a sample of {workload.name} is no sequence: one {workload.sample}"
    return scenario.fault(field, found, "samples, or a transformer of the zoo")


def samples_at(target: TargetSection, samples: float, global_batch: int) -> float:
    """Samples that a global batch takes for the same result.

    E(B) = E_min (1 + B / B_crit), McCandlish et al. 2018 (arXiv 1812.06162), their equation for the
    trade between steps and examples solved for the examples; scaled so that the reference batch
    takes `samples`. Without a critical batch every batch takes the same.

    Examples
    --------
    >>> samples_at(TargetSection(samples=1000, critical_batch=256), 1000.0, 256)
    2000.0
    """
    if target.critical_batch is None:
        return samples
    more = 1 + global_batch / target.critical_batch
    return samples * more / (1 + (target.reference_batch or 0) / target.critical_batch)


def steps_for(samples: float, global_batch: int) -> int:
    """Whole steps that go through so many samples."""
    return max(1, math.ceil(samples / global_batch * (1 - 1e-12)))


def target_words(target: TargetSection) -> str:
    """Say the target as it was asked.

    Examples
    --------
    >>> target_words(TargetSection(tokens=300e9))
    '300 billion tokens'
    """
    if target.samples is not None:
        return f"{_many(target.samples)} samples"
    if target.tokens is not None:
        return f"{_many(target.tokens)} tokens"
    assert target.dataset is not None
    epochs = f"{target.epochs:g} epoch{'' if target.epochs == 1 else 's'}"
    return f"{epochs} of {_many(target.dataset.count)} {target.dataset.unit}"


def _many(count: float) -> str:
    for scale, name in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million")):
        if count >= scale:
            return f"{count / scale:.6g}{name}"
    return f"{count:,.0f}"
