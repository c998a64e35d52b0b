"""What is told of a plan: the document of ``perfmodel plan --json``, the CSV table, assumptions.

Keys are a contract that other programs rely on: they are added to, never renamed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from statistics import NormalDist
from typing import Any

from perfmodel.arrays import Z80
from perfmodel.files import as_json, attributes, csv_text
from perfmodel.scenario import CandidateSection, PlanSection, PowerSection
from perfmodel.studies.plan.candidates import BATCH, Hardware
from perfmodel.studies.plan.model import PlanOption, PlanResult, UpgradeOutcome, Upkeep
from perfmodel.studies.plan.time_to_train import daly_s, young_s
from perfmodel.studies.run.steps.routing_cost import NAMED_COST_RATIO
from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.gpus import gpu_sources
from perfmodel.units import format_time

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
    "rests_on",
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
    "price_per_gpu_hour",
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
    """Return how much of an option's 80 % interval meets a deadline.

    "whole interval" if its slow end does; "expected" if the expected time does; "quick end" if only
    that does; else "no".
    """
    if deadline_s is None or option.training is None:
        return None
    low_s, high_s = option.training.wall_interval_s or (option.wall_s, math.inf)
    ends_s = {"whole interval": high_s, "expected": option.wall_s, "quick end": low_s}
    return next((met for met, end_s in ends_s.items() if end_s <= deadline_s), "no")


def probability_in_time(option: PlanOption, deadline_s: float | None) -> float | None:
    """Return the probability that a training meets a deadline; None where it has no interval.

    The logarithm of the wall time is taken as normal about the expected time, with a width of its
    own on either side, whose 80 % interval is the option's.
    """
    training = option.training
    if deadline_s is None or training is None or training.wall_interval_s is None:
        return None
    (low_s, high_s), late = training.wall_interval_s, deadline_s >= training.wall_s
    width = math.log(high_s / training.wall_s if late else training.wall_s / low_s) / Z80
    room = math.log(deadline_s / training.wall_s)
    return float(late) if width == 0 else NormalDist().cdf(room / width)


def option_to_json(option: PlanOption, plan: PlanResult) -> dict[str, Any]:
    """Write one candidate at one size; null where it has no such number."""
    sums, cost, budget = option.bill, option.cost, plan.budget
    upkeep = None if option.training is None else option.training.upkeep
    return {
        **attributes(option, "candidate node fabric nodes gpus status reason"),
        "pareto": option in plan.answers.pareto,
        "in_time": deadline_met(option, plan.deadline_s),
        "probability_in_time": probability_in_time(option, plan.deadline_s),
        "in_budget": None if budget is None or cost is None else cost <= budget,
        "step": None if option.step is None else asdict(option.step),
        "training": None
        if option.training is None
        else {
            **attributes(option.training, "samples steps work_s wall_s wall_interval_s goodput"),
            **{
                name: None if upkeep is None else value_of(upkeep)
                for name, value_of in _UPKEEP.items()
            },
            "simulated": option.training.simulated and asdict(option.training.simulated),
        },
        "cost": None if sums is None else asdict(sums) | {"total": sums.total},
    }


_UPKEEP: Mapping[str, Callable[[Upkeep], float | None]] = {
    "mtbf_s": lambda upkeep: upkeep.mtbf_s,
    "checkpoint_every_s": lambda upkeep: upkeep.interval_s,
    "checkpoint_steps": lambda upkeep: upkeep.checkpoint_steps,
    "checkpoint_write_s": lambda upkeep: upkeep.write_s,
    "young_s": lambda upkeep: young_s(upkeep.write_s, upkeep.mtbf_s),
    "daly_s": lambda upkeep: daly_s(upkeep.write_s, upkeep.mtbf_s),
    "restart_s": lambda upkeep: upkeep.restart_s,
    "nodes_there": lambda upkeep: upkeep.share,
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
    """Return which option it is, by candidate and size."""
    return None if option is None else attributes(option, "candidate nodes gpus")


def csv_rows(plan: PlanResult) -> list[dict[str, Any]]:
    """Return one flat row per option, by the names of `CSV_COLUMNS`."""
    return [_row(option_to_json(option, plan), plan.currency) for option in plan.options]


def _row(option: dict[str, Any], currency: str | None) -> dict[str, Any]:
    step, training, cost = (option[part] or {} for part in ("step", "training", "cost"))
    intervals = {
        "step_{}_s": step.get("interval_s"),
        "wall_{}_s": training.get("wall_interval_s"),
        "cost_{}": cost.get("interval"),
    }
    row = {
        **option,
        **step,
        **training,
        **cost,
        **{f"simulated_{name}": value for name, value in (training.get("simulated") or {}).items()},
        **{name.format("low"): ends[0] for name, ends in intervals.items() if ends},
        **{name.format("high"): ends[1] for name, ends in intervals.items() if ends},
        "cost": cost.get("total"),
        "cost_machines": cost.get("machines"),
        "cost_energy": cost.get("energy"),
        "cost_per_step": cost.get("per_step"),
        "currency": currency,
    }
    return {name: row.get(name) for name in CSV_COLUMNS}


def plan_csv(plan: PlanResult) -> str:
    """Write the table of options as CSV; empty where an option has no such number."""
    return csv_text(CSV_COLUMNS, (row.values() for row in csv_rows(plan)))


# ---------------------------------------------------------------- assumptions in sentences

HardwareByName = Mapping[str, Hardware]
"""Hardware of each candidate's node, or why it is not known."""


_SENTENCES = {
    "steps": "Step times are predictions by simulation, as of `perfmodel run` for each cluster; "
    "every step takes as long as a settled one, and the input pipeline never holds a GPU up.",
    "no failures": "Nothing ever fails and nothing is checkpointed (no `failures` given).",
    "failures": "Failures of nodes are independent, equally likely at any time, and each stops the "
    "whole job; checkpoints come {often}, training stands still while one is written, and goes on "
    "from the last one after the restart. A failed node is replaced within the restart.",
    "checkpoint": "A checkpoint holds parameters, buffers and optimizer states once, with fp32 "
    "master weights where parameters are narrower.",
    "formula": "Expected wall time is Daly's exponential formula; simulated trainings check it and "
    "give the spread that luck with failures has.",
    "intervals": "80 % intervals are of compute and communication{luck} carried through to days "
    "and costs. Prices and what upgrades save have none.",
    "prices": "Prices are the scenario file's, or of the list that it names (see the sources). A "
    "cluster is paid for from start to end of the training, failures included, and no longer; "
    "setting it up, storage, networks to the outside and people cost nothing here.",
    "purchase": "{name}: a node's price is spread over {years:g} years of which {percent:.3g} % "
    "are used, without interest and resale value; electricity is charged for the training only.",
    "batch": "{name}: the batch per GPU is {batch}, of those tried that surely fit the quickest to "
    "the target at its smallest size.",
    "spot": "{name}: a node is taken away after {stays} on average and another comes after {away}; "
    "the job restarts from its last checkpoint with the nodes that are there, as quickly by node "
    "as all of them together, and pays for these.",
    "upgrades": "An upgrade pays back by what each training costs less; the cluster is taken to "
    "train like this one after the other until then.",
}
"""What may be assumed beside the steps' own assumptions."""


def assumptions(
    plan: PlanSection, options: Sequence[PlanOption], hardware: HardwareByName
) -> tuple[str, ...]:
    """Return the assumptions beside those of the step, which `perfmodel run` gives."""
    failures, candidates = plan.failures, plan.candidates
    words = {
        "luck": " and luck with failures, as if independent," if failures else "",
        "often": "as often as given"
        if failures and failures.checkpoint_every
        else "at Daly's interval (2006), in whole steps",
    }
    conditions = {
        "no failures": failures is None,
        "failures": failures is not None,
        "checkpoint": failures is not None
        and failures.checkpoint_write is None
        and failures.checkpoint_size is None,
        "formula": failures is not None,
        "intervals": True,
        "prices": any(c.purchase or c.price_per_gpu_hour is not None for c in candidates),
    }
    return (
        _SENTENCES["steps"],
        *_describe_samples(plan, options),
        *(_SENTENCES[name].format(**words) for name, holds in conditions.items() if holds),
        *(
            _SENTENCES["purchase"].format(
                name=c.name, years=c.purchase.years, percent=100 * c.purchase.utilisation
            )
            for c in candidates
            if c.purchase is not None
        ),
        *([_SENTENCES["upgrades"]] if plan.upgrades else []),
        *(
            _SENTENCES["spot"].format(
                name=c.name,
                stays=format_time(c.spot.interrupted_every),
                away=format_time(c.spot.back_after),
            )
            for c in candidates
            if c.spot is not None
        ),
        *(
            _SENTENCES["batch"].format(name=c.name, batch=(c.set or {}).get(BATCH, "that given"))
            for c in candidates
            if plan.search_batch
        ),
        *(
            f"{candidate.name}: {_describe_draw(candidate, node[1])}."
            for candidate in candidates
            if not isinstance(node := hardware[candidate.name], str)
        ),
    )


def cautions(plan: PlanSection, options: Sequence[PlanOption]) -> tuple[str, ...]:
    """Return the assumptions that no reader should miss."""
    usable = [option for option in options if option.status == "ok"]
    tight = [option for option in usable if option.step and option.step.tight]
    chosen = "so no answer names it" if len(tight) < len(usable) else "and nothing else fits"
    collide = [
        (option, option.step.routing_cost)
        for option in options
        if option.step and option.step.routing_cost > NAMED_COST_RATIO
    ]
    powers = {c.name: (c, c.power or PowerSection()) for c in plan.candidates}
    priced = [c.name for c in plan.candidates if c.purchase or c.price_per_gpu_hour is not None]
    unpriced = [c.name for c in plan.candidates if c.name not in priced]
    bare = [name for name, (_, p) in powers.items() if p.per_node is None and p.factor <= 1]
    unlike = (
        f"The energy of {', '.join(bare)} is that of the GPUs alone, of the others that of whole "
        "nodes: give each candidate power.per_node or power.factor to compare them."
    )
    return (
        *_describe_samples(plan, options),
        *(
            f"{sizes}: memory is tight, CUDA, NCCL and the allocator may not fit beside "
            f"the training state; {chosen}. Try one step on such a machine before you buy."
            for _, sizes in _sizes(tight)
        ),
        *(
            f"{sizes}: the fabric sends each flow one way by a static hash (ECMP), and flows "
            "collide: the largest all-reduce takes up to "
            f"{max(cost for option, cost in collide if option.candidate == name):.2g} times as "
            "long as if every flow were spread over all its ways (`fabric: {routing: adaptive}`)."
            for name, sizes in _sizes([option for option, _ in collide])
        ),
        *([unlike] if 0 < len(bare) < len(powers) else []),
        *(
            f"{name} has no price, so no answer about costs names it: state price_per_gpu_hour or "
            "purchase."
            for name in (unpriced if priced else [])
        ),
        *(
            f"{name}: electricity costs nothing here (no power.energy_price is given)."
            for name, (candidate, power) in powers.items()
            if candidate.purchase and power.energy_price is None
        ),
    )


def _sizes(options: Sequence[PlanOption]) -> Iterator[tuple[str, str]]:
    """Yield the candidates of some options, and each with its numbers of nodes in words."""
    for name in dict.fromkeys(option.candidate for option in options):
        nodes = [f"{option.nodes:,}" for option in options if option.candidate == name]
        yield name, f"{name}, {', '.join(nodes)} node{'' if nodes == ['1'] else 's'}"


def _describe_samples(plan: PlanSection, options: Sequence[PlanOption]) -> Iterator[str]:
    batches = sorted({o.step.global_batch for o in options if o.step and o.status == "ok"})
    target = plan.target
    if batches and target.critical_batch is not None:
        reference = f" at a batch of {target.reference_batch:,}" if target.reference_batch else ""
        yield (
            "Samples grow with the global batch as 1 + batch / critical batch (McCandlish et al. "
            f"2018, arXiv 1812.06162), with the critical batch of {target.critical_batch:,} and "
            f"the target{reference or ' for small batches'} as given."
        )
    elif batches and batches[0] != batches[-1]:
        yield (
            f"The global batch is {batches[0]:,} to {batches[-1]:,} samples, and every batch is "
            "taken to need as many samples for the same result: whether the largest still "
            "trains as well is not modelled (target.critical_batch would)."
        )


def _describe_draw(candidate: CandidateSection, gpu: Gpu) -> str:
    power = candidate.power or PowerSection()
    losses = f", times a PUE of {power.pue:g}" if power.pue != 1 else ""
    free = "is in the rent" if candidate.price_per_gpu_hour else "is not charged for"
    charged = "" if power.energy_price else f"; its energy {free}"
    if power.per_node is not None:
        return f"a node draws {power.per_node:g} W all the time, as given{losses}{charged}"
    each = power.per_gpu or gpu.power_W
    if each is None:
        return f"what a {gpu.name} draws is not known, so its energy is not either"
    sheet = "the data sheet's most" if gpu.limited_rate == 1 else "its power limit"
    rest = (
        "and the rest of the node nothing"
        if power.factor == 1
        else f"times {power.factor:g} for the rest of the node"
    )
    source = "as given" if power.per_gpu else sheet
    return f"a GPU draws {each:g} W all the time, {source}, {rest}{losses}{charged}"


def sources(plan: PlanSection, hardware: HardwareByName) -> dict[str, str]:
    """Return the source of the power of each GPU, unless the file or a power limit gives it."""
    stated = {c.name for c in plan.candidates if c.power and (c.power.per_node or c.power.per_gpu)}
    nodes = (node for name, node in hardware.items() if name not in stated)
    return {
        f"power of {gpu.name}": gpu_sources(gpu.name)["power"]
        for gpu in (node[1] for node in nodes if not isinstance(node, str))
        if gpu.power_W is not None and gpu.limited_rate >= 1
    }
