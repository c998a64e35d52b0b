"""Answer a scenario's plan: every candidate at every size, and every upgrade of them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.calibrate import Profile
from perfmodel.scenario import PlanSection, Scenario, scenario_digest
from perfmodel.studies.plan.assumptions import assumptions, cautions, sources
from perfmodel.studies.plan.candidates import (
    Hardware,
    Predicted,
    StepRequest,
    all_asked,
    checkpoint_bytes,
    fabric_words,
    failures_of,
    hardware_of,
    predict,
    rated,
    sample_at_peak_s,
)
from perfmodel.studies.plan.cost import bill, rates
from perfmodel.studies.plan.decisions import choose, outcome, ranked
from perfmodel.studies.plan.model import (
    PlanOption,
    PlanResult,
    Status,
    Step,
    Training,
    UpgradeOutcome,
)
from perfmodel.studies.plan.time_to_train import target_samples, target_words, train, upkeep_of
from perfmodel.studies.run.resolve.job import resolve_workload
from perfmodel.units import format_bytes
from perfmodel.version import __version__
from perfmodel.workload.model import Workload


@dataclass(frozen=True, slots=True)
class _Plan:
    """What all options share."""

    scenario: Scenario
    section: PlanSection
    hardware: dict[str, Hardware | str]
    bases: dict[str, float] = field(default_factory=dict)
    _workloads: dict[str, Workload] = field(default_factory=dict)

    def workload(self, scenario: Scenario) -> Workload:
        """The model of a variant; a candidate may train it with another dtype or length."""
        key = scenario.model.model_dump_json()
        if key not in self._workloads:
            self._workloads[key] = resolve_workload(scenario)
        return self._workloads[key]


def plan_scenario(
    scenario: Scenario,
    *,
    profile: Profile | None = None,
    jobs: int | None = None,
    store: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> PlanResult:
    """Answer a scenario's plan.

    Parameters
    ----------
    scenario : Scenario
        With a `plan:` section, read from a file.
    profile : Profile, optional
        Measured numbers instead of datasheets'.
    jobs : int, optional
        Processes; default: one per physical core.
    store : Path, optional
        File in which predicted steps are kept, as of `perfmodel sweep`.
    progress : callable, optional
        Called with (steps predicted, steps in all).

    Raises
    ------
    InputError
        No plan, or a target that the model has no meaning for. A candidate that is wrong is
        listed with the reason instead.
    """
    section = scenario.plan
    if section is None:
        allowed = "a section with target and candidates: see plan-gpt2-xl"
        raise scenario.fault("plan", "nothing", allowed)
    workload = resolve_workload(scenario)
    target_samples(scenario, workload)  # raises what would be wrong with every candidate
    hardware = {
        prediction.name: hardware_of(scenario, prediction) for prediction in section.candidates
    }
    shared = _Plan(scenario, section, hardware)
    predictions = predict(
        scenario, list(all_asked(scenario)), profile=profile, jobs=jobs, store=store,
        progress=progress,
    )  # fmt: skip
    shared.bases.update(_bases(shared, predictions))
    plain = [
        prediction
        for prediction in predictions
        if prediction.asked.upgrade is None and not prediction.asked.alone
    ]
    options = [_option(shared, prediction) for prediction in plain]
    budget = None if section.budget is None else section.budget.amount
    usable = [option for option in options if option.status == "ok"]
    return PlanResult(
        scenario=scenario.name,
        question=scenario.question,
        workload=workload.name,
        target=target_words(section.target),
        samples=workload.sample,
        currency=section.paid_in,
        deadline_s=section.deadline,
        budget=budget,
        efficiency_base=_base_words(scenario),
        options=tuple(options),
        answers=choose(usable, section.deadline, budget),
        outcomes=_outcomes(shared, predictions, options),
        cautions=cautions(scenario, options),
        assumptions=assumptions(scenario, options, hardware),
        sources=sources(section, hardware),
        provenance=_provenance(scenario, section, profile),
    )


def _provenance(
    scenario: Scenario, section: PlanSection, profile: Profile | None
) -> dict[str, str]:
    import hashlib

    return {
        "perfmodel": __version__,
        "scenario_sha256": scenario_digest(scenario),
        "plan_sha256": hashlib.sha256(section.model_dump_json().encode()).hexdigest(),
        "profile": profile.name if profile is not None else scenario.profile or "none",
        "seed": str(scenario.seed),
        "python": platform.python_version(),
    }


def _base_words(scenario: Scenario) -> str:
    if scenario.training.scaling == "weak":
        return "relative to one GPU of the candidate"
    return "relative to the candidate's smallest size that fits"


def _bases(shared: _Plan, predictions: Sequence[Predicted]) -> dict[str, float]:
    """Samples per second and GPU that are an efficiency of one, by candidate."""
    weak = shared.scenario.training.scaling == "weak"
    bases: dict[str, float] = {}
    for prediction in predictions:
        name, hardware = (
            prediction.asked.candidate.name,
            shared.hardware[prediction.asked.candidate.name],
        )
        if (
            prediction.step is None
            or isinstance(hardware, str)
            or prediction.asked.upgrade is not None
        ):
            continue
        # One GPU alone may lack the memory and still be what scaling is measured against.
        if weak == prediction.asked.alone and (weak or prediction.step.fits) and name not in bases:
            gpus = 1 if prediction.asked.alone else prediction.asked.nodes * hardware.gpus_per_node
            bases[name] = prediction.step.samples_per_s / gpus
    return bases


def _option(shared: _Plan, prediction: Predicted) -> PlanOption:
    """One candidate at one size, with whatever an upgrade changes."""
    candidate, nodes = prediction.asked.candidate, prediction.asked.nodes
    hardware = shared.hardware[candidate.name]
    if isinstance(hardware, str):
        return _refused(prediction.asked, None, "failed", hardware)
    gpus = nodes * hardware.gpus_per_node
    if prediction.step is None or prediction.scenario is None:
        return _refused(prediction.asked, gpus, "failed", prediction.reason)
    precision = prediction.scenario.compute.precision
    peak_s = sample_at_peak_s(shared.workload(prediction.scenario), hardware, precision)
    step = rated(prediction.step, gpus, shared.bases.get(candidate.name), peak_s)
    if not step.fits:
        has = format_bytes(hardware.gpu.memory_bytes)
        why = f"needs {format_bytes(step.memory_bytes)} of memory per GPU, which has {has}"
        return _refused(prediction.asked, gpus, "too big", why, step)
    return _paid(shared, prediction, hardware, step)


def _paid(shared: _Plan, prediction: Predicted, hardware: Hardware, step: Step) -> PlanOption:
    """Train to the target and add up the bill."""
    assert prediction.scenario is not None
    request = prediction.asked
    gpus = request.nodes * hardware.gpus_per_node
    training = _trained(shared, request, prediction.scenario, step)
    if isinstance(training, str):
        return _refused(request, gpus, "failed", training, step)
    rent = None if request.upgrade is None else request.upgrade.price_per_gpu_hour
    rates_held = rates(
        request.candidate,
        nodes=request.nodes,
        gpus_per_node=hardware.gpus_per_node,
        gpu_W=hardware.gpu.power_W,
        more_rent=0.0 if rent is None else rent.amount,
    )
    if rates_held.power_W is None and rates_held.energy_per_kWh:
        why = f"an energy price, but no data sheet says what a {hardware.gpu.name} draws"
        return _refused(request, gpus, "failed", f"{why}: give power.per_gpu or per_node", step)
    bill_sums = bill(rates_held, training.wall_s, training.wall_interval_s, training.steps)
    fabric = fabric_words(request.candidate)
    return PlanOption(
        request.candidate.name, request.candidate.node, fabric, request.nodes, gpus, "ok", "",
        step, training, bill_sums,
    )  # fmt: skip


def _trained(
    shared: _Plan, request: StepRequest, candidate_scenario: Scenario, step: Step
) -> Training | str:
    """Train to the target, or say why not; how far luck goes is not asked of upgrades."""
    failures = failures_of(shared.scenario, request)
    if isinstance(failures, str):
        return failures
    workload = shared.workload(candidate_scenario)
    samples = target_samples(shared.scenario, workload)
    target, seed = shared.section.target, shared.scenario.seed
    if failures is None:
        return train(step, target, samples, None)
    size = checkpoint_bytes(workload, candidate_scenario.compute.optimizer)
    upkeep = upkeep_of(failures, request.candidate, request.nodes, step.step_time_s, size)
    runs = failures.runs if request.upgrade is None else 0
    return train(step, target, samples, upkeep, runs=runs, seed=seed)


def _refused(
    request: StepRequest, gpus: int | None, status: Status, why: str, step: Step | None = None
) -> PlanOption:
    candidate = request.candidate
    return PlanOption(
        candidate.name,
        candidate.node,
        fabric_words(candidate),
        request.nodes,
        gpus,
        status,
        why,
        step,
    )


def _outcomes(
    shared: _Plan, predictions: Sequence[Predicted], options: Sequence[PlanOption]
) -> tuple[UpgradeOutcome, ...]:
    """Every upgrade of every option that runs as it is."""
    usable = {(o.candidate, o.nodes): o for o in options if o.status == "ok"}
    outcomes: list[UpgradeOutcome] = []
    for prediction in predictions:
        before = usable.get((prediction.asked.candidate.name, prediction.asked.nodes))
        if prediction.asked.upgrade is None or before is None:
            continue
        after = _option(shared, prediction)
        outcomes.append(
            outcome(prediction.asked.upgrade, prediction.asked.candidate, before, after)
        )
    return ranked(outcomes)
