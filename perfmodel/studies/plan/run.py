"""Answer a scenario's plan: every candidate at every size, and every upgrade of them."""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.scenario import PlanSection, Scenario, scenario_digest
from perfmodel.studies.plan.assumptions import assumptions, cautions, sources
from perfmodel.studies.plan.candidates import (
    Hardware,
    PredictedStep,
    StepRequest,
    add_efficiency,
    checkpoint_bytes,
    describe_fabric,
    find_failures,
    find_hardware,
    list_requests,
    predict,
    sample_at_peak_s,
)
from perfmodel.studies.plan.decisions import (
    choose_answers,
    compare_upgrade,
    rank_upgrades,
    sure_fits,
)
from perfmodel.studies.plan.model import (
    PlanOption,
    PlanResult,
    Status,
    Step,
    Training,
    UpgradeOutcome,
)
from perfmodel.studies.plan.sensitivity import explain_dips, list_swings, measure_swings
from perfmodel.studies.plan.time_to_train import (
    compute_cost,
    compute_rates,
    describe_target,
    target_samples,
    train,
    upkeep_of,
)
from perfmodel.studies.run.resolve.training_job import resolve_workload
from perfmodel.units import format_bytes
from perfmodel.version import __version__
from perfmodel.workload.model import Workload

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile


@dataclass(frozen=True, slots=True)
class _Plan:
    """Data that all options share."""

    scenario: Scenario
    section: PlanSection
    hardware: dict[str, Hardware | str]
    bases: dict[str, float] = field(default_factory=dict)
    _workloads: dict[str, Workload] = field(default_factory=dict)

    def workload(self, scenario: Scenario) -> Workload:
        """Return the model of a variant; a candidate may set another dtype or sequence length."""
        key = scenario.model.model_dump_json()
        if key not in self._workloads:
            self._workloads[key] = resolve_workload(scenario)
        return self._workloads[key]


def plan_scenario(
    scenario: Scenario,
    *,
    profile: Profile | None = None,
    jobs: int | None = None,
    backend: str = "loky",
    scheduler: str | None = None,
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
    backend : {"loky", "dask", "ray"}
        Processes of this machine, or a cluster with a `scheduler`, as of `perfmodel sweep`.
    scheduler : str, optional
        Address of the cluster's.
    store : Path, optional
        File in which predicted steps are kept, as of `perfmodel sweep`.
    progress : callable, optional
        Called with (steps predicted, steps in all); what the answer depends on is simulated once
        there is one, and then counts as well.

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
    hardware = {c.name: find_hardware(scenario, c) for c in section.candidates}
    shared = _Plan(scenario, section, hardware)
    requests = list(list_requests(scenario))
    predict_all = partial(
        predict,
        scenario,
        profile=profile,
        jobs=jobs,
        backend=backend,
        scheduler=scheduler,
        store=store,
    )
    predictions = predict_all(requests, progress=progress)
    shared.bases.update(_find_bases(shared, predictions))
    result = _assemble_result(shared, workload, predictions, profile)
    if result.best is None:
        return result

    def answer(more: Sequence[StepRequest]) -> list[PlanOption]:
        swung = predict_all(
            more,
            progress=None if progress is None else partial(_after, progress, len(requests)),
        )
        return [_option(shared, prediction) for prediction in swung]

    swings = list(list_swings(scenario, result.best))
    return replace(result, sensitivities=measure_swings(result.best, swings, answer))


def _after(progress: Callable[[int, int], None], before: int, done: int, total: int) -> None:
    """Count on from the steps that were predicted before."""
    progress(before + done, before + total)


def _assemble_result(
    shared: _Plan,
    workload: Workload,
    predictions: Sequence[PredictedStep],
    profile: Profile | None,
) -> PlanResult:
    scenario, section = shared.scenario, shared.section
    plain = [p for p in predictions if p.request.upgrade is None and not p.request.alone]
    options = [_option(shared, prediction) for prediction in plain]
    budget = None if section.budget is None else section.budget.amount
    usable = [option for option in options if option.status == "ok"]
    scenarios = {(p.request.candidate.name, p.request.nodes): p.scenario for p in plain}
    return PlanResult(
        scenario=scenario.name,
        question=scenario.question,
        workload=workload.name,
        target=describe_target(section.target),
        samples=workload.sample,
        currency=section.paid_in,
        deadline_s=section.deadline,
        budget=budget,
        efficiency_base=_describe_base(scenario),
        options=tuple(options),
        answers=choose_answers(sure_fits(usable), section.deadline, budget),
        outcomes=_compare_upgrades(shared, predictions, options),
        cautions=(*cautions(scenario, options), *explain_dips(options, scenarios, profile)),
        assumptions=assumptions(scenario, options, shared.hardware),
        sources=sources(section, shared.hardware),
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


def _describe_base(scenario: Scenario) -> str:
    if scenario.training.scaling == "weak":
        return "relative to one GPU of the candidate"
    return "relative to the candidate's smallest size that fits"


def _find_bases(shared: _Plan, predictions: Sequence[PredictedStep]) -> dict[str, float]:
    """Return the samples per second and GPU at an efficiency of one, by candidate."""
    weak = shared.scenario.training.scaling == "weak"
    bases: dict[str, float] = {}
    for prediction in predictions:
        request, step = prediction.request, prediction.step
        name, hardware = request.candidate.name, shared.hardware[request.candidate.name]
        if step is None or isinstance(hardware, str) or request.upgrade is not None:
            continue
        # One GPU alone may lack the memory and still be what scaling is measured against.
        if weak == request.alone and (weak or step.fits) and name not in bases:
            gpus = 1 if request.alone else request.nodes * hardware.gpus_per_node
            bases[name] = step.samples_per_s / gpus
    return bases


def _option(shared: _Plan, prediction: PredictedStep) -> PlanOption:
    """Return the option of a prediction: one candidate at one size, perhaps upgraded."""
    candidate, nodes = prediction.request.candidate, prediction.request.nodes
    hardware = shared.hardware[candidate.name]
    if isinstance(hardware, str):
        return _make_option(prediction.request, None, "failed", hardware)
    gpus = nodes * hardware.gpus_per_node
    if prediction.step is None or prediction.scenario is None:
        return _make_option(prediction.request, gpus, "failed", prediction.reason)
    precision = prediction.scenario.compute.precision
    peak_s = sample_at_peak_s(shared.workload(prediction.scenario), hardware, precision)
    step = add_efficiency(prediction.step, gpus, shared.bases.get(candidate.name), peak_s)
    if not step.fits:
        has = format_bytes(hardware.gpu.memory_bytes)
        why = f"needs {format_bytes(step.memory_bytes)} of memory per GPU, which has {has}"
        if step.memory_bytes <= hardware.gpu.memory_bytes:
            why = f"may need more than {has} of memory per GPU: activations are estimated"
        return _make_option(prediction.request, gpus, "too big", why, step)
    return _price(shared, prediction, hardware, step)


def _price(shared: _Plan, prediction: PredictedStep, hardware: Hardware, step: Step) -> PlanOption:
    """Add time and cost of the training to a step that fits."""
    assert prediction.scenario is not None
    request = prediction.request
    gpus = request.nodes * hardware.gpus_per_node
    training = _train(shared, request, prediction.scenario, step)
    if isinstance(training, str):
        return _make_option(request, gpus, "failed", training, step)
    rent = None if request.upgrade is None else request.upgrade.price_per_gpu_hour
    rates = compute_rates(
        request.candidate,
        nodes=request.nodes,
        gpus_per_node=hardware.gpus_per_node,
        gpu_W=hardware.gpu.power_W,
        more_rent=0.0 if rent is None else rent.amount,
    )
    if rates.power_W is None and rates.energy_per_kWh:
        why = f"an energy price, but no data sheet says what a {hardware.gpu.name} draws"
        return _make_option(request, gpus, "failed", f"{why}: give power.per_gpu or per_node", step)
    cost = compute_cost(rates, training.wall_s, training.wall_interval_s, training.steps)
    return replace(_make_option(request, gpus, "ok", "", step), training=training, bill=cost)


def _train(shared: _Plan, request: StepRequest, scenario: Scenario, step: Step) -> Training | str:
    """Return the training to the target, or why there is none; upgrades are not simulated."""
    failures = find_failures(shared.scenario, request)
    if isinstance(failures, str):
        return failures
    workload = shared.workload(scenario)
    samples = target_samples(shared.scenario, workload)
    target, seed = shared.section.target, shared.scenario.seed
    if failures is None:
        return train(step, target, samples, None)
    compute = scenario.compute
    size = checkpoint_bytes(workload, compute.optimizer, master_weights=compute.master_weights)
    upkeep = upkeep_of(failures, request.candidate, request.nodes, step.step_time_s, size)
    runs = failures.runs if request.upgrade is None else 0
    return train(step, target, samples, upkeep, runs=runs, seed=seed)


def _make_option(
    request: StepRequest, gpus: int | None, status: Status, why: str, step: Step | None = None
) -> PlanOption:
    """Return an option without a training; `why` it has none, if it fails."""
    candidate = request.candidate
    return PlanOption(
        candidate.name,
        candidate.node,
        describe_fabric(candidate),
        request.nodes,
        gpus,
        status,
        why,
        step,
    )


def _compare_upgrades(
    shared: _Plan, predictions: Sequence[PredictedStep], options: Sequence[PlanOption]
) -> tuple[UpgradeOutcome, ...]:
    """Compare every upgrade of every option that runs without it."""
    usable = {(o.candidate, o.nodes): o for o in options if o.status == "ok"}
    outcomes: list[UpgradeOutcome] = []
    for prediction in predictions:
        request = prediction.request
        before = usable.get((request.candidate.name, request.nodes))
        if request.upgrade is None or before is None:
            continue
        after = _option(shared, prediction)
        outcomes.append(compare_upgrade(request.upgrade, request.candidate, before, after))
    return rank_upgrades(outcomes)
