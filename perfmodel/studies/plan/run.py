"""Answer a scenario's plan: every candidate at every size, and every upgrade of them."""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.errors import InputError
from perfmodel.memo import once
from perfmodel.scenario import PlanSection, Scenario, scenario_digest
from perfmodel.studies.plan.candidates import (
    Hardware,
    PredictedStep,
    StepRequest,
    describe_error,
    describe_fabric,
    find_failures,
    find_hardware,
    list_requests,
    predict,
    search_batches,
)
from perfmodel.studies.plan.decisions import (
    choose_answers,
    compare_upgrade,
    explain_dips,
    explain_gains,
    list_swings,
    measure_swings,
    rank_upgrades,
    sure_fits,
)
from perfmodel.studies.plan.export import assumptions, cautions, sources
from perfmodel.studies.plan.model import PlanOption, PlanResult, Step, Training, UpgradeOutcome
from perfmodel.studies.plan.prices import apply_list
from perfmodel.studies.plan.time_to_train import (
    compute_cost,
    describe_target,
    target_samples,
    train,
    upkeep_of,
)
from perfmodel.studies.run.resolve.training_job import resolve_workload
from perfmodel.studies.run.resolve.what_if import peak_of
from perfmodel.studies.sweep import run_sweep
from perfmodel.topology.model import Gpu
from perfmodel.units import format_bytes
from perfmodel.version import __version__
from perfmodel.workload.memory.optimizer_states import optimizer_state_bytes
from perfmodel.workload.model import Workload

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile


@dataclass(frozen=True, slots=True)
class _Plan:
    """Data that all options share; `listed`: sources of prices and rates of a list."""

    scenario: Scenario
    section: PlanSection
    hardware: dict[str, Hardware]
    listed: dict[str, str]
    bases: dict[str, tuple[float, Step]] = field(default_factory=dict)
    _workloads: dict[str, Workload] = field(default_factory=dict)

    def workload(self, scenario: Scenario) -> Workload:
        """Return the model of a variant; a candidate may set another dtype or sequence length."""
        return once(
            self._workloads, scenario.model.model_dump_json(), lambda: resolve_workload(scenario)
        )


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
        Processes; default: one per physical core, for what is worth them.
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
        raise scenario.fault(
            "plan", "nothing", "a section with target and candidates: see plan-gpt2-xl"
        )
    workload = resolve_workload(scenario)
    target_samples(scenario, workload)  # raises what would be wrong with every candidate
    hardware = {c.name: find_hardware(scenario, c) for c in section.candidates}
    section, listed = apply_list(scenario, section, hardware)
    sweep = partial(
        run_sweep,
        profile=profile,
        jobs=jobs,
        backend=backend,
        scheduler=scheduler,
        store=store,
        before={},  # an upgrade of what is no hardware takes the steps of what it upgrades
    )
    if section.search_batch:
        section = search_batches(
            scenario, section, lambda more: predict(scenario, more, partial(sweep, with_ends=False))
        )
    scenario = scenario.model_copy(update={"plan": section})
    shared = _Plan(scenario, section, hardware, listed)
    requests = list(list_requests(section, is_weak=scenario.training.scaling == "weak"))

    def predict_more(
        more: Sequence[StepRequest], before: int, *, with_ends: bool = False
    ) -> list[PredictedStep]:
        """Predict steps, by default their times alone; `before`: steps predicted before them."""

        def count(done: int, total: int) -> None:
            if progress is not None:
                progress(before + done, max(len(requests), before + total))

        return predict(scenario, more, partial(sweep, progress=count, with_ends=with_ends))

    options = [each for each in requests if each.upgrade is None and not each.alone]
    predictions = predict_more(options, 0, with_ends=True)
    predictions += predict_more([each for each in requests if each not in options], len(options))
    shared.bases.update(_find_bases(shared, predictions))
    result = _assemble_result(shared, workload, predictions, profile)
    if result.best is None:
        return result

    def answer(more: Sequence[StepRequest]) -> list[PlanOption]:
        return [_option(shared, prediction) for prediction in predict_more(more, len(requests))]

    return replace(
        result,
        sensitivities=measure_swings(result.best, list(list_swings(scenario, result.best)), answer),
    )


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
    base = (
        "one GPU of the candidate"
        if scenario.training.scaling == "weak"
        else "the candidate's smallest size that fits"
    )
    return PlanResult(
        scenario=scenario.name,
        question=scenario.question,
        workload=workload.name,
        target=describe_target(section.target),
        samples=workload.sample,
        currency=section.paid_in,
        deadline_s=section.deadline,
        budget=budget,
        efficiency_base=f"relative to {base}",
        options=tuple(options),
        answers=choose_answers(sure_fits(usable), section.deadline, budget),
        outcomes=_compare_upgrades(shared, predictions, usable),
        cautions=(
            *cautions(section, options),
            *explain_gains(options, {name: step for name, (_, step) in shared.bases.items()}),
            *explain_dips(options, scenarios, profile),
        ),
        assumptions=assumptions(section, options, shared.hardware),
        sources={**sources(section, shared.hardware), **shared.listed},
        provenance={
            "perfmodel": __version__,
            "scenario_sha256": scenario_digest(scenario),
            "plan_sha256": hashlib.sha256(section.model_dump_json().encode()).hexdigest(),
            "profile": profile.name if profile is not None else scenario.profile or "none",
            "seed": str(scenario.seed),
            "python": platform.python_version(),
        },
    )


def _find_bases(
    shared: _Plan, predictions: Sequence[PredictedStep]
) -> dict[str, tuple[float, Step]]:
    """Return samples per second and GPU at an efficiency of one, and that step, by candidate."""
    weak = shared.scenario.training.scaling == "weak"
    bases: dict[str, tuple[float, Step]] = {}
    for request, step in ((each.request, each.step) for each in predictions):
        hardware = shared.hardware[request.candidate.name]
        is_base = request.alone == weak and request.upgrade is None
        # One GPU alone may lack the memory and still be what scaling is measured against.
        if is_base and step and (weak or step.fits) and not isinstance(hardware, str):
            bases.setdefault(
                request.candidate.name,
                (step.samples_per_s / (1 if request.alone else request.nodes * hardware[0]), step),
            )
    return bases


def _option(shared: _Plan, prediction: PredictedStep) -> PlanOption:
    """Return the option of a prediction: one candidate at one size, perhaps upgraded."""
    request, scenario, step = prediction.request, prediction.scenario, prediction.step
    candidate, hardware = request.candidate, shared.hardware[request.candidate.name]
    failed = PlanOption(
        candidate.name,
        candidate.node,
        describe_fabric(candidate),
        request.nodes,
        None if isinstance(hardware, str) else request.nodes * hardware[0],
        "failed",
        hardware if isinstance(hardware, str) else prediction.reason,
    )
    if isinstance(hardware, str) or step is None or scenario is None:
        return failed
    gpus_per_node, gpu = hardware
    step = _add_efficiency(shared, step, hardware, request, scenario)
    failed = replace(failed, step=step)
    if not step.fits:
        has = format_bytes(gpu.memory_bytes)
        why = (
            f"may need more than {has} of memory per GPU: activations are estimated"
            if step.memory_bytes <= gpu.memory_bytes
            else f"needs {format_bytes(step.memory_bytes)} of memory per GPU, which has {has}"
        )
        return replace(failed, status="too big", reason=why)
    try:
        training = _train(shared, request, scenario, step)
    except InputError as error:
        training = describe_error(error)
    if isinstance(training, str):
        return replace(failed, reason=training)
    rent = None if request.upgrade is None else request.upgrade.price_per_gpu_hour
    bill = compute_cost(
        candidate,
        training,
        nodes=request.nodes,
        gpus_per_node=gpus_per_node,
        gpu_W=gpu.power_W,
        more_rent=0.0 if rent is None else rent.amount,
    )
    energy_price = None if candidate.power is None else candidate.power.energy_price
    if bill.power_W is None and energy_price and energy_price.amount:
        why = f"an energy price, but no data sheet says what a {gpu.name} draws"
        return replace(failed, reason=f"{why}: give power.per_gpu or per_node")
    return replace(failed, status="ok", reason="", training=training, bill=bill)


def _add_efficiency(
    shared: _Plan,
    step: Step,
    hardware: tuple[int, Gpu],
    request: StepRequest,
    scenario: Scenario,
) -> Step:
    """Add efficiency and model FLOPs utilisation, where they are known."""
    each = step.samples_per_s / (request.nodes * hardware[0])
    base_each, _ = shared.bases.get(request.candidate.name, (None, None))
    flops = shared.workload(scenario).training_flops
    peak = peak_of(scenario, hardware[1])
    return replace(
        step,
        efficiency=None if base_each is None else each / base_each,
        mfu=each * (flops / peak) if flops and peak else None,
    )


def _train(shared: _Plan, request: StepRequest, scenario: Scenario, step: Step) -> Training | str:
    """Return the training to the target, or why there is none; upgrades are not simulated."""
    workload, compute, upkeep, runs = shared.workload(scenario), scenario.compute, None, 0
    failures = find_failures(shared.scenario, request)
    if failures is not None:
        # Ranks of DistributedDataParallel all hold the same, so one of them writes it once.
        states_bytes = optimizer_state_bytes(
            workload, compute.optimizer, master_weights=compute.master_weights
        )
        size = float(workload.nbytes + workload.buffer_bytes + states_bytes)
        upkeep = upkeep_of(failures, request.candidate, request.nodes, step.step_time_s, size)
        runs = failures.runs if request.upgrade is None else 0
    samples, seed = target_samples(shared.scenario, workload), shared.scenario.seed
    return train(step, shared.section.target, samples, upkeep, runs=runs, seed=seed)


def _compare_upgrades(
    shared: _Plan, predictions: Sequence[PredictedStep], usable: Sequence[PlanOption]
) -> tuple[UpgradeOutcome, ...]:
    """Compare every upgrade of every option that runs without it."""
    before = {(option.candidate, option.nodes): option for option in usable}
    return rank_upgrades(
        compare_upgrade(
            prediction.request.upgrade,
            prediction.request.candidate,
            before[prediction.request.candidate.name, prediction.request.nodes],
            _option(shared, prediction),
        )
        for prediction in predictions
        if prediction.request.upgrade is not None
        and (prediction.request.candidate.name, prediction.request.nodes) in before
    )
