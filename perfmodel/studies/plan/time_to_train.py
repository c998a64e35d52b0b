"""From a target and a step time to a whole training: its wall time with failures, and its cost.

A synchronous job stops when any of its nodes fails. Failures come as a Poisson process; training
goes on from the last checkpoint after a restart, in which it may fail again. Young's and Daly's
formulas give the mean of the wall time; simulated trainings give its spread, and check the
formulas.

Sources: J. W. Young, A first order approximation to the optimum checkpoint interval, CACM 17(9),
1974; J. T. Daly, A higher order estimate of the optimum checkpoint interval for restart dumps,
Future Generation Computer Systems 22(3), 2006.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from perfmodel.arrays import FloatArray, IntArray, round_bits
from perfmodel.scenario import (
    CandidateSection,
    FailureSection,
    PowerSection,
    Scenario,
    TargetSection,
)
from perfmodel.studies.plan.model import Capacity, Cost, Simulated, Step, Training, Upkeep
from perfmodel.studies.run.result import Interval
from perfmodel.units import format_time
from perfmodel.workload.model import Workload

MOST_WALL_OVER_WORK = 100.0
"""Wall time over work beyond which a training counts as never finishing."""

MOST_FAILURES = 20_000
"""Most failures of one training, on average, that are simulated (a second for all runs). Beyond it
the spread of the wall time is negligible."""

INTERVAL_PERCENTILES = (10.0, 90.0)
"""Percentiles of the 80 % interval."""


# ---------------------------------------------------------------- samples and steps of a target


def target_samples(scenario: Scenario, workload: Workload) -> float:
    """Return the samples of the target at its reference batch.

    Raises `InputError`: tokens of a model whose samples are no sequences.
    """
    assert scenario.plan is not None
    target = scenario.plan.target
    if target.samples is not None:
        return float(target.samples)
    if target.tokens is not None:
        return target.tokens / _tokens(scenario, workload, "plan.target.tokens")
    assert target.dataset is not None
    count = float(target.dataset.count)
    if target.dataset.unit == "tokens":
        count /= _tokens(scenario, workload, "plan.target.dataset")
    return (target.epochs or 0.0) * count


def _tokens(scenario: Scenario, workload: Workload, field: str) -> int:
    if workload.sample.tokens is None:
        raise scenario.fault(
            field,
            f"tokens, but a sample of {workload.name} is no sequence: one {workload.sample}",
            "samples, a transformer of the zoo, or a model file with tokens_per_sample",
        )
    return workload.sample.tokens


def samples_at(target: TargetSection, samples: float, global_batch: int) -> float:
    """Return the samples that a global batch takes for the same result.

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
    """Return the whole steps that go through so many samples."""
    return max(1, math.ceil(samples / global_batch * (1 - 1e-12)))


def describe_target(target: TargetSection) -> str:
    """Describe the target in words.

    Examples
    --------
    >>> describe_target(TargetSection(tokens=300e9))
    '300 billion tokens'
    """
    if target.dataset is not None:
        epochs = f"{target.epochs:g} epoch{'' if target.epochs == 1 else 's'}"
        return f"{epochs} of {_format_count(target.dataset.count)} {target.dataset.unit}"
    unit = "samples" if target.samples is not None else "tokens"
    return f"{_format_count(target.samples or target.tokens or 0.0)} {unit}"


def _format_count(count: float) -> str:
    for scale, name in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million")):
        if count >= scale:
            return f"{count / scale:.6g}{name}"
    return f"{count:,.0f}"


# ---------------------------------------------------------------- failures and checkpoints


def young_s(write_s: float, mtbf_s: float) -> float:
    """Return Young's checkpoint interval, sqrt(2 write mtbf); seconds of training.

    Examples
    --------
    >>> young_s(300.0, 86400.0) / 60
    120.0
    """
    return math.sqrt(2 * write_s * mtbf_s)


def daly_s(write_s: float, mtbf_s: float) -> float:
    """Return Daly's checkpoint interval; seconds of training.

    sqrt(2 d M) (1 + sqrt(d / 2M) / 3 + (d / 2M) / 9) - d with d the time to write and M the mean
    time between failures, and M where d is 2M or more.

    Examples
    --------
    >>> round(daly_s(300.0, 86400.0) / 60)
    117
    """
    if write_s >= 2 * mtbf_s:
        return mtbf_s
    part = write_s / (2 * mtbf_s)
    return young_s(write_s, mtbf_s) * (1 + math.sqrt(part) / 3 + part / 9) - write_s


def upkeep_of(
    failures: FailureSection,
    candidate: CandidateSection,
    nodes: int,
    step_time_s: float,
    checkpoint: float,
) -> Upkeep:
    """Return failures and checkpoints of one option; any of its nodes stops the job.

    `checkpoint`: size by the model; bytes. Unused where the file gives size or time.
    """
    each_s = candidate.mtbf_per_node or failures.mtbf_per_node or math.inf
    mtbf_s, share, capacity = each_s / nodes, 1.0, None
    if (spot := candidate.spot) is not None:
        capacity = Capacity(nodes, spot.interrupted_every, spot.back_after, each_s)
        share = capacity.stays_s / (capacity.stays_s + capacity.away_s)
        # as many nodes come as go
        mtbf_s = 1 / (nodes * share * (1 / each_s + 2 / capacity.stays_s))
    write_s = failures.checkpoint_write
    if write_s is None:
        assert failures.storage_bandwidth is not None
        write_s = (failures.checkpoint_size or checkpoint) / failures.storage_bandwidth
    steps = max(1, round((failures.checkpoint_every or daly_s(write_s, mtbf_s)) / step_time_s))
    return Upkeep(mtbf_s, write_s, failures.restart, steps * step_time_s, steps, capacity, share)


def expected_wall_s(work_s: float, upkeep: Upkeep) -> float:
    """Return the expected wall time of a training with failures; seconds, infinite on overflow.

    Daly's M e^(R/M) (e^((t + d)/M) - 1) for each interval t and the checkpoint d after it. The last
    interval is what is left of the work, so that the sum is exact where `interval_s` does not
    divide it; a checkpoint after it holds the result.

    `work_s`: training time without failures and checkpoints, above zero; seconds.
    """
    mtbf_s, interval_s = upkeep.mtbf_s, upkeep.interval_s
    whole = math.floor(work_s / interval_s + 1e-9)
    rest_s = work_s - whole * interval_s
    try:
        again = mtbf_s * math.exp(upkeep.restart_s / mtbf_s)
        full = math.expm1((interval_s + upkeep.write_s) / mtbf_s) if whole else 0.0
        is_left = rest_s > 1e-9 * interval_s  # less is rounding
        last = math.expm1((rest_s + upkeep.write_s) / mtbf_s) if is_left else 0.0
        return again * (whole * full + last)
    except OverflowError:
        return math.inf


def simulate_walls(
    work_s: float, upkeep: Upkeep, *, runs: int, seed: int
) -> tuple[FloatArray, IntArray]:
    """Simulate trainings, each with failures of its own, from failure to failure.

    Nodes of a spot offer come and go; each time the job restarts with those that are there.

    `work_s`: training time without failures and checkpoints; seconds.
    Returns wall times in seconds and numbers of failures, each of shape (runs,).
    """
    draws = np.random.default_rng(seed)
    walls_s, saved_s = np.zeros(runs), np.zeros(runs)
    failures = np.zeros(runs, dtype=np.int64)
    going, restart_s = np.arange(runs), 0.0
    offer = upkeep.capacity or Capacity(1, math.inf, math.inf, upkeep.mtbf_s)
    present = np.full(runs, offer.nodes)
    while going.size:
        leaving, coming = present / offer.stays_s, (offer.nodes - present) / offer.away_s
        rate = leaving + coming + present / offer.mtbf_s
        lasts_s = round_bits(draws.exponential(1 / rate))[going]
        share = present[going] / offer.nodes
        left_s = (work_s - saved_s[going]) / np.maximum(share, 1e-9)  # none left: next to never
        pieces = np.maximum(1, np.ceil(left_s / upkeep.interval_s - 1e-9))
        needed_s = restart_s + left_s + pieces * upkeep.write_s
        done = lasts_s >= needed_s
        whole = np.floor((lasts_s - restart_s) / (upkeep.interval_s + upkeep.write_s))
        walls_s[going] += np.where(done, needed_s, lasts_s)
        saved_s[going] += np.clip(whole, 0, pieces - 1) * upkeep.interval_s * share
        if upkeep.capacity is not None:
            event = rate * draws.random(runs)
            present += np.where(event < leaving, -1, event < leaving + coming)
        failures[going] += ~done
        going, restart_s = going[~done], upkeep.restart_s
    return walls_s, failures


def summarise(walls_s: FloatArray, failures: IntArray) -> Simulated:
    """Return mean and spread of simulated trainings."""
    count = len(walls_s)
    low_s, high_s = np.percentile(walls_s, INTERVAL_PERCENTILES)
    return Simulated(
        runs=count,
        mean_s=float(walls_s.mean()),
        error_s=float(walls_s.std(ddof=1) / math.sqrt(count)) if count > 1 else 0.0,
        low_s=float(low_s),
        high_s=float(high_s),
        failures=float(failures.mean()),
    )


def widen_by_luck(walls_s: FloatArray, low: float, high: float) -> tuple[float, float]:
    """Return the 80 % interval of wall times, the uncertainty of the step time included.

    `walls_s`: at the likely step time; seconds; shape (runs,).
    `low`, `high`: ends of the 80 % interval of the step time over the likely one. Its logarithm is
        taken as normal, with a width of its own on either side, and as independent of failures.
    """
    count, quantile = len(walls_s), NormalDist().inv_cdf
    end = quantile(INTERVAL_PERCENTILES[1] / 100)
    sigmas = np.array([quantile((at + 0.5) / count) / end for at in range(count)])
    factors = round_bits(np.exp(np.where(sigmas < 0, -math.log(low), math.log(high)) * sigmas))
    low_s, high_s = np.percentile(walls_s * factors, INTERVAL_PERCENTILES, method="hazen")
    return float(low_s), float(high_s)


def train(
    step: Step,
    target: TargetSection,
    samples: float,
    upkeep: Upkeep | None,
    *,
    runs: int = 0,
    seed: int = 0,
) -> Training | str:
    """Return the training that reaches the target, or why it never ends.

    `samples`: that the target takes at its reference batch.
    `upkeep`: None where nothing fails.
    `runs`, `seed`: of the simulation; with 0 runs the interval leaves the spread of failures out.
    """
    needed = samples_at(target, samples, step.global_batch)
    steps = steps_for(needed, step.global_batch)
    work_s = steps * step.step_time_s
    ends_s = None if step.interval_s is None else [steps * end_s for end_s in step.interval_s]
    if upkeep is None:
        return Training(
            needed, steps, work_s, work_s, None if ends_s is None else (ends_s[0], ends_s[1]), 1.0
        )
    wall_s = expected_wall_s(work_s / upkeep.share, upkeep)
    if not wall_s <= MOST_WALL_OVER_WORK * work_s:
        fails, writes, restarts = map(
            format_time, (upkeep.mtbf_s, upkeep.write_s, upkeep.restart_s)
        )
        return (
            f"it would take more than {MOST_WALL_OVER_WORK:g} times as long as without failures: "
            f"one comes every {fails} on average, a checkpoint takes {writes} and a restart "
            f"{restarts}"
        )
    summary = None
    interval = (
        None
        if ends_s is None
        else _enclose(wall_s, *(expected_wall_s(end_s / upkeep.share, upkeep) for end_s in ends_s))
    )
    if runs and wall_s <= MOST_FAILURES * upkeep.mtbf_s:
        walls_s, failures = simulate_walls(work_s, upkeep, runs=runs, seed=seed)
        summary = summarise(walls_s, failures)
        if interval is not None:
            low, high = (end_s / wall_s for end_s in interval)
            interval = _enclose(wall_s, *widen_by_luck(walls_s, low, high))
    return Training(needed, steps, work_s, wall_s, interval, work_s / wall_s, upkeep, summary)


def _enclose(wall_s: float, low_s: float, high_s: float) -> Interval:
    """Widen an interval to hold the expected time: rare failures may all be beyond its end."""
    return min(low_s, wall_s), max(high_s, wall_s)


# ---------------------------------------------------------------- cost and energy of a training

HOURS_PER_YEAR = 365.25 * 24
JOULES_PER_KWH = 3.6e6


def compute_cost(
    candidate: CandidateSection,
    training: Training,
    *,
    nodes: int,
    gpus_per_node: int,
    gpu_W: float | None,
    more_rent: float = 0.0,
) -> Cost:
    """Return the cost of a training on a candidate, which is rented or in use all the time.

    `nodes`, `gpus_per_node`: as they are used; a node is bought and powered as a whole.
    `gpu_W`: data-sheet power of one GPU; watts.
    `more_rent`: per GPU and hour, for an upgrade.
    """
    gpus, power, wall_s = nodes * gpus_per_node, candidate.power or PowerSection(), training.wall_s
    share = 1.0 if training.upkeep is None else training.upkeep.share
    hourly, outlay = None, None
    if candidate.price_per_gpu_hour is not None:
        hourly = gpus * candidate.price_per_gpu_hour.amount
    elif (bought := candidate.purchase) is not None:
        outlay = nodes * bought.price_per_node.amount
        hourly = outlay / (bought.years * HOURS_PER_YEAR * bought.utilisation)
    drawn_W = node_W(power, gpus_per_node, gpu_W)
    power_W = None if drawn_W is None else share * nodes * drawn_W * power.pue
    energy_kWh = None if power_W is None else power_W * wall_s / JOULES_PER_KWH
    if hourly is None:
        return Cost(None, None, None, None, outlay, energy_kWh, power_W)
    each = hourly / gpus + more_rent
    machines = share * gpus * each * wall_s / 3600
    energy = (energy_kWh or 0.0) * (power.energy_price.amount if power.energy_price else 0.0)
    total, ends = machines + energy, None
    if training.wall_interval_s is not None:  # every part of the cost grows with the time
        low_s, high_s = training.wall_interval_s
        ends = total * low_s / wall_s, total * high_s / wall_s
    return Cost(machines, energy, ends, total / training.steps, outlay, energy_kWh, power_W, each)


def node_W(power: PowerSection, gpus_per_node: int, gpu_W: float | None) -> float | None:
    """Return the power of one node under load; watts, None where it is not known."""
    if power.per_node is not None:
        return power.per_node
    each = power.per_gpu or gpu_W
    return None if each is None else gpus_per_node * each * power.factor
