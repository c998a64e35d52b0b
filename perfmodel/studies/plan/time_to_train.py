"""From a target and a step time to a whole training: samples, steps, wall time with failures."""

from __future__ import annotations

import math
from dataclasses import dataclass

from perfmodel.scenario import (
    CandidateSection,
    FailureSection,
    PowerSection,
    Scenario,
    TargetSection,
)
from perfmodel.studies.plan.failures import (
    HOPELESS,
    MOST_FAILURES,
    Upkeep,
    daly_s,
    expected_wall_s,
    job_mtbf_s,
    round_to_steps,
    simulate_walls,
    summarise,
    widen_by_luck,
)
from perfmodel.studies.plan.model import Cost, Interval, Step, Training
from perfmodel.units import format_time
from perfmodel.workload.model import Workload


def target_samples(scenario: Scenario, workload: Workload) -> float:
    """Samples of the target at its reference batch.

    Raises `InputError`: tokens of a model whose samples are no sequences.
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
    each = workload.sample.tokens
    if each is None:
        problem = f"tokens, but a sample of {workload.name} is no sequence: one {workload.sample}"
        allowed = "samples, a transformer of the zoo, or a model file with tokens_per_sample"
        raise scenario.fault(field, problem, allowed)
    return each


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


def describe_target(target: TargetSection) -> str:
    """Describe the target in words.

    Examples
    --------
    >>> describe_target(TargetSection(tokens=300e9))
    '300 billion tokens'
    """
    if target.samples is not None:
        return f"{_format_count(target.samples)} samples"
    if target.tokens is not None:
        return f"{_format_count(target.tokens)} tokens"
    assert target.dataset is not None
    epochs = f"{target.epochs:g} epoch{'' if target.epochs == 1 else 's'}"
    return f"{epochs} of {_format_count(target.dataset.count)} {target.dataset.unit}"


def _format_count(count: float) -> str:
    for scale, name in ((1e12, " trillion"), (1e9, " billion"), (1e6, " million")):
        if count >= scale:
            return f"{count / scale:.6g}{name}"
    return f"{count:,.0f}"


def train(
    step: Step,
    target: TargetSection,
    samples: float,
    upkeep: tuple[Upkeep, int] | None,
    *,
    runs: int = 0,
    seed: int = 0,
) -> Training | str:
    """Return the training that reaches the target, or why it never ends.

    `samples`: that the target takes at its reference batch.
    `upkeep`: see `upkeep_of`; None where nothing fails.
    `runs`, `seed`: of the simulation; with 0 runs the interval leaves the spread of failures out.
    """
    needed = samples_at(target, samples, step.global_batch)
    steps = steps_for(needed, step.global_batch)
    work_s = steps * step.step_time_s
    ends = step.interval_s
    if upkeep is None:
        of_steps = None if ends is None else (steps * ends[0], steps * ends[1])
        return Training(needed, steps, work_s, work_s, of_steps, 1.0)
    failing, every = upkeep
    wall_s = expected_wall_s(work_s, failing)
    if not wall_s <= HOPELESS * work_s:
        return _explain_hopeless(failing)
    interval, summary = None, None
    if ends is not None:
        low_s, high_s = (expected_wall_s(steps * end, failing) for end in ends)
        interval = _enclose(wall_s, low_s, high_s)
    if runs and wall_s <= MOST_FAILURES * failing.mtbf_s:
        walls_s, failures = simulate_walls(work_s, failing, runs=runs, seed=seed)
        summary = summarise(walls_s, failures)
        if interval is not None:
            low, high = (end_s / wall_s for end_s in interval)
            interval = _enclose(wall_s, *widen_by_luck(walls_s, low, high))
    return Training(
        samples=needed,
        steps=steps,
        work_s=work_s,
        wall_s=wall_s,
        wall_interval_s=interval,
        goodput=work_s / wall_s,
        upkeep=failing,
        checkpoint_steps=every,
        simulated=summary,
    )


def _enclose(wall_s: float, low_s: float, high_s: float) -> Interval:
    """Widen an interval to hold the expected time: rare failures may all be beyond its end."""
    return min(low_s, wall_s), max(high_s, wall_s)


def _explain_hopeless(upkeep: Upkeep) -> str:
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
    """Return failures and checkpoints of one option, and the steps between checkpoints.

    `checkpoint`: size by the model; bytes. Unused where the file gives size or time.
    """
    mtbf_s = job_mtbf_s(candidate.mtbf_per_node or failures.mtbf_per_node, nodes)
    write_s = failures.checkpoint_write
    if write_s is None:
        assert failures.storage_bandwidth is not None
        write_s = (failures.checkpoint_size or checkpoint) / failures.storage_bandwidth
    wanted_s = failures.checkpoint_every or daly_s(write_s, mtbf_s)
    every, interval_s = round_to_steps(wanted_s, step_time_s)
    return Upkeep(mtbf_s, write_s, failures.restart, interval_s), every


# ---------------------------------------------------------------- cost and energy of a training

HOURS_PER_YEAR = 365.25 * 24
JOULES_PER_KWH = 3.6e6


@dataclass(frozen=True, slots=True)
class Rates:
    """Cost per hour and power of a cluster, in the plan's currency.

    `machines`: rent, or the purchase over the hours in which it is used.
    `energy_per_kWh`: 0 where none is charged.
    `power_W`: with the building's losses.
    """

    machines: float | None
    energy_per_kWh: float
    power_W: float | None
    outlay: float | None


def compute_rates(
    candidate: CandidateSection,
    *,
    nodes: int,
    gpus_per_node: int,
    gpu_W: float | None,
    more_rent: float = 0.0,
) -> Rates:
    """Return the cost per hour and the power of a candidate at one size.

    `nodes`, `gpus_per_node`: as they are used; a node is bought and powered as a whole.
    `gpu_W`: data-sheet power of one GPU; watts.
    `more_rent`: per GPU and hour, for an upgrade.
    """
    machines, outlay = None, None
    if candidate.price_per_gpu_hour is not None:
        machines = nodes * gpus_per_node * candidate.price_per_gpu_hour.amount
    if candidate.purchase is not None:
        bought = candidate.purchase
        outlay = nodes * bought.price_per_node.amount
        machines = outlay / (bought.years * HOURS_PER_YEAR * bought.utilisation)
    if machines is not None:
        machines += nodes * gpus_per_node * more_rent
    power = candidate.power or PowerSection()
    price = 0.0 if power.energy_price is None else power.energy_price.amount
    drawn = node_W(power, gpus_per_node, gpu_W)
    whole = None if drawn is None else nodes * drawn * power.pue
    return Rates(machines, price, whole, outlay)


def node_W(power: PowerSection, gpus_per_node: int, gpu_W: float | None) -> float | None:
    """Return the power of one node under load; watts, None where it is not known."""
    if power.per_node is not None:
        return power.per_node
    each = power.per_gpu or gpu_W
    return None if each is None else gpus_per_node * each * power.factor


def compute_cost(rates: Rates, wall_s: float, interval_s: Interval | None, steps: int) -> Cost:
    """Return the cost of a training.

    `wall_s`: how long the cluster is rented or in use; seconds.
    `interval_s`: of `wall_s`.
    """
    energy_kWh = None if rates.power_W is None else rates.power_W * wall_s / JOULES_PER_KWH
    energy = 0.0 if energy_kWh is None else energy_kWh * rates.energy_per_kWh
    if rates.machines is None:
        return Cost(None, None, None, None, rates.outlay, energy_kWh, rates.power_W)
    machines = rates.machines * wall_s / 3600
    total = machines + energy
    ends = None
    if interval_s is not None:  # every part of the cost grows with the time
        ends = total * interval_s[0] / wall_s, total * interval_s[1] / wall_s
    return Cost(machines, energy, ends, total / steps, rates.outlay, energy_kWh, rates.power_W)
