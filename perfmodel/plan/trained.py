"""From a step to a whole training: samples, steps, failures, wall time."""

from __future__ import annotations

from perfmodel.plan.failures import (
    HOPELESS,
    Upkeep,
    daly_s,
    expected_wall_s,
    in_whole_steps,
    job_mtbf_s,
)
from perfmodel.plan.model import Interval, Step, Training
from perfmodel.plan.simulated import MOST_FAILURES, simulate_walls, summed_up, with_luck
from perfmodel.plan.target import samples_at, steps_for
from perfmodel.scenario import CandidateSection, FailureSection, TargetSection
from perfmodel.units import format_time


def train(
    step: Step,
    target: TargetSection,
    samples: float,
    upkeep: tuple[Upkeep, int] | None,
    *,
    runs: int = 0,
    seed: int = 0,
) -> Training | str:
    """Train to the target, or say why that never ends.

    Parameters
    ----------
    step : Step
    target : TargetSection
    samples : float
        That the target takes at its reference batch.
    upkeep : (Upkeep, steps between checkpoints) or None
        See `upkeep_of`; None where nothing fails.
    runs, seed : int
        Of the simulation; 0 runs for none, and then luck is not in the interval.
    """
    wanted = samples_at(target, samples, step.global_batch)
    steps = steps_for(wanted, step.global_batch)
    work_s = steps * step.step_time_s
    ends = step.interval_s
    if upkeep is None:
        of_steps = None if ends is None else (steps * ends[0], steps * ends[1])
        return Training(wanted, steps, work_s, work_s, of_steps, 1.0)
    kept, every = upkeep
    wall_s = expected_wall_s(work_s, kept)
    if not wall_s <= HOPELESS * work_s:
        return _hopeless(kept)
    interval, seen = None, None
    if ends is not None:
        low_s, high_s = (expected_wall_s(steps * end, kept) for end in ends)
        interval = _around(wall_s, low_s, high_s)
    if runs and wall_s <= MOST_FAILURES * kept.mtbf_s:
        walls_s, failures = simulate_walls(work_s, kept, runs=runs, seed=seed)
        seen = summed_up(walls_s, failures)
        if interval is not None:
            low, high = (end_s / wall_s for end_s in interval)
            interval = _around(wall_s, *with_luck(walls_s, low, high))
    return Training(
        samples=wanted,
        steps=steps,
        work_s=work_s,
        wall_s=wall_s,
        wall_interval_s=interval,
        goodput=work_s / wall_s,
        upkeep=kept,
        checkpoint_steps=every,
        simulated=seen,
    )


def _around(wall_s: float, low_s: float, high_s: float) -> Interval:
    """An interval with the expected time in it: rare failures may all be beyond its end."""
    return min(low_s, wall_s), max(high_s, wall_s)


def _hopeless(upkeep: Upkeep) -> str:
    fails, writes, restarts = (
        format_time(time_s) for time_s in (upkeep.mtbf_s, upkeep.write_s, upkeep.restart_s)
    )
    return (
        f"it would take more than {HOPELESS:g} times as long as without failures: one comes every "
        f"{fails} on average, a checkpoint takes {writes} and a restart {restarts}"
    )


def upkeep_of(
    failures: FailureSection,
    candidate: CandidateSection,
    nodes: int,
    step_time_s: float,
    checkpoint: float,
) -> tuple[Upkeep, int]:
    """How one option fails and saves, and the steps from checkpoint to checkpoint.

    Parameters
    ----------
    failures : FailureSection
    candidate : CandidateSection
    nodes : int
    step_time_s : float
    checkpoint : float
        Size that the model says; bytes. Unused where the file says size or time.
    """
    mtbf_s = job_mtbf_s(candidate.mtbf_per_node or failures.mtbf_per_node, nodes)
    write_s = failures.checkpoint_write
    if write_s is None:
        assert failures.storage_bandwidth is not None
        write_s = (failures.checkpoint_size or checkpoint) / failures.storage_bandwidth
    wanted_s = failures.checkpoint_every or daly_s(write_s, mtbf_s)
    every, interval_s = in_whole_steps(wanted_s, step_time_s)
    return Upkeep(mtbf_s, write_s, failures.restart, interval_s), every
