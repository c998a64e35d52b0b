"""The training steps of a plan: one scenario per candidate, size and upgrade, predicted as a sweep.

First the requests and their scenarios, then the predictions, then what follows from a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from perfmodel.errors import InputError, PerfmodelError
from perfmodel.scenario import (
    CandidateSection,
    FailureSection,
    PlanSection,
    Scenario,
    UpgradeSection,
    change_scenario,
)
from perfmodel.studies.plan.model import Step
from perfmodel.studies.plan.time_to_train import samples_at
from perfmodel.studies.sweep import Answer, SweepResult
from perfmodel.studies.sweep.variants import make_variant
from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.build import build_topology, load_node

LONGEST_ALLOWED = 120
"""Most characters of an error's list of allowed values."""


@dataclass(frozen=True, slots=True)
class StepRequest:
    """One training step to predict.

    `alone`: whether on one GPU of the candidate; its efficiency is relative to that step.
    """

    candidate: CandidateSection
    nodes: int
    upgrade: UpgradeSection | None = None
    alone: bool = False

    @property
    def changes(self) -> dict[str, Any]:
        """Fields of the scenario to set."""
        candidate, fabric = self.candidate, self.candidate.fabric
        return {
            "plan": None,
            "sweep": None,
            "scale": None,
            "cluster": {
                "node": candidate.node,
                "nodes": self.nodes,
                "gpus_per_node": 1 if self.alone else candidate.gpus_per_node,
                "fabric": None if fabric is None else fabric.model_dump(exclude_none=True),
            },
            **(candidate.set or {}),
            **self.upgraded(of_plan=False),
        }

    def upgraded(self, *, of_plan: bool) -> dict[str, Any]:
        """Return what the upgrade sets: fields of the plan, such as a faster storage, or others."""
        fields = self.upgrade.set.items() if self.upgrade else ()
        return {key: value for key, value in fields if key.startswith("plan.") == of_plan}

    @property
    def labels(self) -> dict[str, object]:
        """Labels of the variant in a sweep."""
        return {
            "candidate": self.candidate.name,
            "nodes": self.nodes,
            **({} if self.upgrade is None else {"upgrade": self.upgrade.name}),
            **({"gpus_per_node": 1} if self.alone else {}),
        }


Hardware = tuple[int, Gpu] | str
"""Number and kind of GPUs of a candidate's node, or why these are not known."""


@dataclass(frozen=True, slots=True)
class PredictedStep:
    """The outcome of a request.

    `scenario`: None where the changes make none.
    `step`: None where it failed, and then `reason` says why.
    """

    request: StepRequest
    scenario: Scenario | None
    step: Step | None
    reason: str = ""


def list_requests(plan: PlanSection, *, is_weak: bool) -> Iterator[StepRequest]:
    """Yield all steps to predict: candidates by size, their upgrades, and one GPU alone of each.

    `is_weak`: whether the batch per GPU is kept, so that one GPU alone can be compared.
    """
    for candidate in plan.candidates:
        yield from (StepRequest(candidate, nodes) for nodes in candidate.nodes)
        if is_weak:
            yield StepRequest(candidate, 1, alone=True)
        for upgrade in plan.upgrades:
            if upgrade.candidates is None or candidate.name in upgrade.candidates:
                yield from (StepRequest(candidate, nodes, upgrade) for nodes in candidate.nodes)


BATCH = "training.batch_per_gpu"
LEAST_GAIN = 1.01
"""Times as quick as a smaller batch a larger one has to be."""


def search_batches(
    scenario: Scenario,
    plan: PlanSection,
    predict_all: Callable[[Sequence[StepRequest]], Sequence[PredictedStep]],
) -> PlanSection:
    """Give each candidate the batch per GPU that is quickest to the target and surely fits.

    At its smallest size: twice as large as long as that is quicker, then half as much more. What
    does not fit there with the batch that is given keeps it.

    Raises `InputError`: a global batch is given, which is no candidate's to choose.
    """
    scenario.refuse_if(
        scenario.training.batch_per_gpu is None,
        "plan.search_batch",
        "true",
        "training.batch_per_gpu instead of a global batch",
    )
    best: dict[str, tuple[StepRequest, float]] = {}

    def is_better(predicted: PredictedStep) -> bool:
        """Keep a step that surely fits and is quicker than those before it."""
        request, step = predicted.request, predicted.step
        if step is None or not step.fits or step.tight:
            return False
        speed = step.samples_per_s / samples_at(plan.target, 1.0, step.global_batch)
        _, before = best.get(request.candidate.name, (request, 0.0))
        if speed > LEAST_GAIN * before:
            best[request.candidate.name] = request, speed
        return speed > LEAST_GAIN * before

    tried = [StepRequest(candidate, candidate.nodes[0]) for candidate in plan.candidates]
    for factor in (2.0, 1.5):
        while tried:
            tried = [
                _larger(scenario, each.request, factor)
                for each in predict_all(tried)
                if is_better(each)
            ]
        tried = [_larger(scenario, request, 1.5) for request, _ in best.values()]
    return plan.model_copy(
        update={
            "candidates": tuple(
                best[c.name][0].candidate if c.name in best else c for c in plan.candidates
            )
        }
    )


def _larger(scenario: Scenario, request: StepRequest, factor: float) -> StepRequest:
    """Return the same request with a larger batch."""
    fields = request.candidate.set or {}
    batch = fields.get(BATCH, scenario.training.batch_per_gpu) or 1
    changes = {"set": {**fields, BATCH: round(batch * factor)}}
    return replace(request, candidate=request.candidate.model_copy(update=changes))


def find_failures(scenario: Scenario, request: StepRequest) -> FailureSection | None:
    """Return the failures of a request; None where nothing fails.

    Raises `InputError`: what its upgrade sets makes no plan.
    """
    changes = request.upgraded(of_plan=True)
    plan = change_scenario(scenario, changes).plan if changes else scenario.plan
    return None if plan is None else plan.failures


def find_hardware(scenario: Scenario, candidate: CandidateSection) -> Hardware:
    """Return the hardware of a candidate's node, or why it is not known."""
    try:
        host = build_topology(load_node(scenario.origin.beside("plan.candidates", candidate.node)))
    except PerfmodelError as error:
        return describe_error(error)
    return candidate.gpus_per_node or len(host.ranks), host.gpu


def describe_error(error: PerfmodelError) -> str:
    """Describe an error in one line, without file and line, which would be those of the plan.

    Examples
    --------
    >>> from perfmodel.errors import Fault
    >>> describe_error(InputError(Fault("cluster.node", "'dgx'", "a node", "mine.yaml", 3)))
    "cluster.node: found 'dgx'; allowed: a node"
    """
    if not isinstance(error, InputError):
        return str(error).replace("\n", "; ")
    return "; ".join(
        f"{fault.field}: found {fault.found}; allowed: {_shorten(fault.allowed)}"
        for fault in error.faults
    )


def _shorten(allowed: str) -> str:
    """Shorten a long list of names, but keep the suggestion at its end."""
    if len(allowed) <= LONGEST_ALLOWED:
        return allowed
    _, meant, hint = allowed.rpartition(" (did you mean")
    return f"{allowed[:LONGEST_ALLOWED].rpartition(',')[0]}, ...{meant}{hint if meant else ''}"


def describe_fabric(candidate: CandidateSection) -> str:
    """Describe the network between nodes: its kind, and the settings that are given.

    Examples
    --------
    >>> one = CandidateSection(name="a", node="dgx-a100", nodes=[2], fabric="rail-optimised")
    >>> describe_fabric(one)
    'rail-optimised'
    """
    if candidate.fabric is None:
        return "none"
    text = ", ".join(
        f"{name.replace('_', ' ')} {f'{value:g}' if isinstance(value, float) else value}"
        for name, value in candidate.fabric.model_dump(exclude_none=True, exclude={"kind"}).items()
    )
    return f"{candidate.fabric.kind}{f' ({text})' if text else ''}"


def predict(
    scenario: Scenario, requests: Sequence[StepRequest], sweep: Callable[..., SweepResult]
) -> list[PredictedStep]:
    """Predict steps; one that fails has a reason and stops no other.

    `scenario`: with a plan.
    `sweep`: `perfmodel.studies.sweep.run_sweep` with its options.
    """
    variants = [
        make_variant(scenario, at, each.changes, labels=each.labels, describe=describe_error)
        for at, each in enumerate(requests)
    ]
    file = f"{scenario.origin.place}: "  # of the plan itself, as of each line of a message
    return [
        PredictedStep(
            request,
            variant.scenario,
            _step(answer),
            "; ".join(line.removeprefix(file) for line in answer.message.splitlines()),
        )
        for request, variant, answer in zip(
            requests, variants, sweep(variants).answers, strict=True
        )
    ]


def _step(answer: Answer) -> Step | None:
    if answer.step_time_s is None or answer.samples_per_s is None:
        return None
    low_s, high_s = answer.low_s, answer.high_s
    return Step(
        step_time_s=answer.step_time_s,
        interval_s=None if low_s is None or high_s is None else (low_s, high_s),
        samples_per_s=answer.samples_per_s,
        global_batch=round(answer.samples_per_s * answer.step_time_s),
        exposed_comm_s=answer.exposed_comm_s or 0.0,
        bottleneck=answer.bottleneck or "",
        memory_bytes=answer.memory_bytes or 0.0,
        fits=bool(answer.fits),
        tight=bool(answer.tight),
        routing_cost=answer.routing_cost or 1.0,
        rests_on=answer.rests_on,
    )
