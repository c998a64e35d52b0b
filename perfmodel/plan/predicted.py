"""Training steps of a plan's candidates, predicted all at once and on all cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from perfmodel.calibrate import Profile
from perfmodel.plan.asked import Asked, Hardware, scenario_of
from perfmodel.plan.model import Interval, Step
from perfmodel.scenario import Scenario, scenario_digest
from perfmodel.sweep import Answer, Variant, run_sweep
from perfmodel.workload.memory import optimizer_state_bytes
from perfmodel.workload.model import Workload

PASSES = 3
"""Forward products per training step: one forward, two of the same size backward."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A step that was asked for, and what became of it.

    Parameters
    ----------
    asked : Asked
    scenario : Scenario or None
        None where the changes make none.
    step : Step or None
        None where it failed, and then `reason` says why.
    """

    asked: Asked
    scenario: Scenario | None
    step: Step | None
    reason: str = ""


def predict(
    scenario: Scenario,
    wanted: Sequence[Asked],
    *,
    profile: Profile | None = None,
    jobs: int | None = None,
    store: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Predicted]:
    """Predict steps; what fails keeps its reason and stops no other.

    Parameters
    ----------
    scenario : Scenario
        With a plan.
    wanted : sequence of Asked
    profile, jobs, store, progress
        As for `perfmodel.sweep.run_sweep`.
    """
    variants = [_variant(at, one, scenario_of(scenario, one)) for at, one in enumerate(wanted)]
    swept = run_sweep(variants, jobs=jobs, store=store, profile=profile, progress=progress)
    return [
        Predicted(one, variant.scenario, _step(found), _shorter(found.message, scenario))
        for one, variant, found in zip(wanted, variants, swept.answers, strict=True)
    ]


def _variant(index: int, asked: Asked, made: Scenario | str) -> Variant:
    if isinstance(made, str):
        return Variant(index, asked.words, None, f"{index}: {made}", made)
    return Variant(index, asked.words, made, scenario_digest(made))


def _shorter(message: str, scenario: Scenario) -> str:
    """Leave out the file, which is the plan's own, and line breaks."""
    file = scenario.origin.file
    lines = (line.removeprefix(f"{file}: ") if file else line for line in message.splitlines())
    return "; ".join(lines)


def _step(found: Answer) -> Step | None:
    if found.status != "ok" or found.step_time_s is None or found.samples_per_s is None:
        return None
    interval: Interval | None = None
    if found.low_s is not None and found.high_s is not None:
        interval = found.low_s, found.high_s
    return Step(
        step_time_s=found.step_time_s,
        interval_s=interval,
        samples_per_s=found.samples_per_s,
        global_batch=round(found.samples_per_s * found.step_time_s),
        exposed_comm_s=found.exposed_comm_s or 0.0,
        bottleneck=found.bottleneck or "",
        memory_bytes=found.memory_bytes or 0.0,
        fits=bool(found.fits),
    )


def rated(step: Step, gpus: int, base_per_gpu: float | None, flops: float | None) -> Step:
    """Add efficiency and model FLOPs utilisation.

    Parameters
    ----------
    step : Step
    gpus : int
    base_per_gpu : float or None
        Samples per second and GPU that are an efficiency of one.
    flops : float or None
        Of one sample over the dense peak of one GPU; seconds.
    """
    each = step.samples_per_s / gpus
    return replace(
        step,
        efficiency=None if base_per_gpu is None else each / base_per_gpu,
        mfu=None if not flops else each * flops,
    )


def sample_at_peak_s(workload: Workload, hardware: Hardware, precision: str) -> float | None:
    """Time of one sample's products at a GPU's dense peak; None where either is not known; s."""
    flops = PASSES * sum(layer.matmul_flops for layer in workload.layers)
    peak = hardware.gpu.peak_flops.get(precision)
    return flops / peak if flops and peak else None


def checkpoint_bytes(workload: Workload, optimizer: str) -> float:
    """Size of a checkpoint: parameters, buffers and optimizer states, once.

    Ranks of DistributedDataParallel all hold the same, so one of them writes.
    """
    states = optimizer_state_bytes(workload, optimizer)
    return float(workload.nbytes + workload.buffer_bytes + states)
