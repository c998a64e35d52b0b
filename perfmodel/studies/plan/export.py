"""A plan as plain data: the document that ``perfmodel plan --json`` prints, and the CSV table.

Keys are a contract that other programs rely on: they are added to, never renamed.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from statistics import NormalDist
from typing import Any

from perfmodel.arrays import Z80
from perfmodel.files import as_json, attributes, csv_text
from perfmodel.studies.plan.failures import daly_s, young_s
from perfmodel.studies.plan.model import PlanOption, PlanResult, Training, UpgradeOutcome

CSV_COLUMNS = (
    "candidate",
    "node",
    "fabric",
    "nodes",
    "gpus",
    "status",
    "reason",
    "pareto",
    "in_time",
    "probability_in_time",
    "in_budget",
    "step_time_s",
    "step_low_s",
    "step_high_s",
    "samples_per_s",
    "global_batch",
    "efficiency",
    "mfu",
    "exposed_comm_s",
    "bottleneck",
    "memory_bytes",
    "fits",
    "tight",
    "routing_cost",
    "samples",
    "steps",
    "work_s",
    "wall_s",
    "wall_low_s",
    "wall_high_s",
    "goodput",
    "mtbf_s",
    "checkpoint_every_s",
    "checkpoint_steps",
    "checkpoint_write_s",
    "simulated_mean_s",
    "simulated_low_s",
    "simulated_high_s",
    "cost",
    "cost_low",
    "cost_high",
    "cost_machines",
    "cost_energy",
    "cost_per_step",
    "outlay",
    "energy_kWh",
    "power_W",
    "currency",
)
"""One row per option; SI units but for kWh, money in the plan's currency."""


def to_json(plan: PlanResult) -> dict[str, Any]:
    """Write a plan as plain data; times in seconds, energy in kWh, every number finite."""
    answers = plan.answers
    chosen = "smallest_in_time cheapest_in_time fastest_in_budget fastest cheapest"
    document = {
        **attributes(
            plan,
            "scenario question workload target samples currency deadline_s budget efficiency_base",
        ),
        "samples": str(plan.samples),
        "options": [option_to_json(option, plan) for option in plan.options],
        "answers": {
            **{name: _key(option) for name, option in attributes(answers, chosen).items()},
            "pareto": [_key(option) for option in answers.pareto],
            "smallest_by_deadline": [_key(option) for option in answers.ladder],
        },
        "upgrades": [_outcome(outcome) for outcome in plan.outcomes],
        "sensitivities": [attributes(e, "what labels wall_s cost") for e in plan.sensitivities],
        **attributes(plan, "cautions assumptions sources provenance"),
    }
    return dict(as_json(document, "plan"))


def deadline_met(option: PlanOption, deadline_s: float | None) -> str | None:
    """How much of an option's 80 % interval meets a deadline.

    "whole interval" if its slow end does; "expected" if the expected time does; "quick end" if only
    that does; else "no".
    """
    if deadline_s is None or option.training is None:
        return None
    low_s, high_s = option.training.wall_interval_s or (option.wall_s, math.inf)
    if high_s <= deadline_s:
        return "whole interval"
    if option.wall_s <= deadline_s:
        return "expected"
    return "quick end" if low_s <= deadline_s else "no"


def probability_in_time(option: PlanOption, deadline_s: float | None) -> float | None:
    """Probability that a training meets a deadline; None where it has no interval.

    The logarithm of the wall time is taken as normal about the expected time, with a width of its
    own on either side, whose 80 % interval is the option's.
    """
    training = option.training
    if deadline_s is None or training is None or training.wall_interval_s is None:
        return None
    low_s, high_s = training.wall_interval_s
    late = deadline_s >= option.wall_s
    width = math.log(high_s / option.wall_s if late else option.wall_s / low_s) / Z80
    room = math.log(deadline_s / option.wall_s)
    if width == 0:
        return float(late)
    return NormalDist().cdf(room / width)


def option_to_json(option: PlanOption, plan: PlanResult) -> dict[str, Any]:
    """Write one candidate at one size; null where it has no such number."""
    sums, cost, budget = option.bill, option.cost, plan.budget
    return {
        **attributes(option, "candidate node fabric nodes gpus status reason"),
        "pareto": option in plan.answers.pareto,
        "in_time": deadline_met(option, plan.deadline_s),
        "probability_in_time": probability_in_time(option, plan.deadline_s),
        "in_budget": None if budget is None or cost is None else cost <= budget,
        "step": None if option.step is None else asdict(option.step),
        "training": None if option.training is None else _training(option.training),
        "cost": None if sums is None else asdict(sums) | {"total": sums.total},
    }


def _training(training: Training) -> dict[str, Any]:
    upkeep = training.upkeep
    return {
        **attributes(training, "samples steps work_s wall_s wall_interval_s goodput"),
        "mtbf_s": None if upkeep is None else upkeep.mtbf_s,
        "checkpoint_every_s": None if upkeep is None else upkeep.interval_s,
        "checkpoint_steps": training.checkpoint_steps,
        "checkpoint_write_s": None if upkeep is None else upkeep.write_s,
        "young_s": None if upkeep is None else young_s(upkeep.write_s, upkeep.mtbf_s),
        "daly_s": None if upkeep is None else daly_s(upkeep.write_s, upkeep.mtbf_s),
        "restart_s": None if upkeep is None else upkeep.restart_s,
        "simulated": None if training.simulated is None else asdict(training.simulated),
    }


def _outcome(outcome: UpgradeOutcome) -> dict[str, Any]:
    after = outcome.after
    return {
        "upgrade": outcome.upgrade,
        **(_key(outcome.before) or {}),
        **attributes(outcome, "pays saved_s saved price payback_s"),
        "step_time_s": None if after.step is None else after.step.step_time_s,
        "wall_s": None if after.training is None else after.training.wall_s,
        **attributes(after, "cost reason"),
    }


def _key(option: PlanOption | None) -> dict[str, Any] | None:
    """Which option, by candidate and size."""
    return None if option is None else attributes(option, "candidate nodes gpus")


def csv_rows(plan: PlanResult) -> list[dict[str, Any]]:
    """One flat row per option, by the names of `CSV_COLUMNS`."""
    return [_row(option_to_json(option, plan), plan.currency) for option in plan.options]


def _row(option: dict[str, Any], currency: str | None) -> dict[str, Any]:
    step, training, cost = (option[part] or {} for part in ("step", "training", "cost"))
    simulated = training.get("simulated") or {}
    row = {**option, **step, **training, "currency": currency}
    for name, ends in (
        ("step", step.get("interval_s")),
        ("wall", training.get("wall_interval_s")),
    ):
        row[f"{name}_low_s"], row[f"{name}_high_s"] = ends or (None, None)
    row |= {f"simulated_{end}_s": simulated.get(f"{end}_s") for end in ("mean", "low", "high")}
    row["cost"] = cost.get("total")
    row["cost_low"], row["cost_high"] = cost.get("interval") or (None, None)
    row |= {"cost_machines": cost.get("machines"), "cost_energy": cost.get("energy")}
    row |= {"cost_per_step": cost.get("per_step"), "outlay": cost.get("outlay")}
    row |= {"energy_kWh": cost.get("energy_kWh"), "power_W": cost.get("power_W")}
    return {name: row.get(name) for name in CSV_COLUMNS}


def plan_csv(plan: PlanResult) -> str:
    """Write the table of options as CSV; empty where an option has no such number."""
    return csv_text(CSV_COLUMNS, (row.values() for row in csv_rows(plan)))
