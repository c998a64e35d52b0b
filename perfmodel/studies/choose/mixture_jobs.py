"""Jobs of mixtures on one machine, and their simulated steps, some of them by worker processes.

Workers simulate the mixtures that a search would come to next, before it asks for them. So it finds
what it finds alone, and only what a better one found meanwhile rules out was simulated in vain.
"""

from __future__ import annotations

import pickle
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from perfmodel.errors import InputError
from perfmodel.files.spec import AS_WRITTEN
from perfmodel.scenario import Scenario, change_scenario
from perfmodel.scenario.strategies.strategy import AutoStrategy
from perfmodel.studies.choose.mixtures import MixtureCandidate
from perfmodel.studies.run.resolve.resolved_scenario import ResolvedScenario, resolve_scenario
from perfmodel.studies.run.resolve.training_job import expert_ranks_per_node, resolve_share
from perfmodel.studies.run.steps.sized_job import (
    ReportedRun,
    SizedJob,
    locate_errors,
    simulate_reported,
    size_job,
)
from perfmodel.studies.run.steps.step_parts import busiest_class, spans_by_step
from perfmodel.studies.sweep.executor import Workers, map_unordered
from perfmodel.timeline import Span, covered_s, exposed_s
from perfmodel.training.plan.step_plan import Dimension, dimension_of
from perfmodel.workload.model import Workload

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile


@dataclass
class MixtureJobs:
    """Jobs of mixtures on one machine: models are cut, and collectives timed, once.

    `base`: the job as if nothing were split.
    """

    inputs: ResolvedScenario
    scenario: Scenario
    section: AutoStrategy
    base: SizedJob
    _shares: dict[Hashable, Workload | InputError] = field(default_factory=dict)

    def make(self, candidate: MixtureCandidate) -> SizedJob:
        """Make the job of a mixture; raises `InputError`: the model cannot be split so."""
        changed = change_scenario(self.scenario, self.changes(candidate))
        split = (candidate.tensor, candidate.context, candidate.expert)
        on_node = expert_ranks_per_node(changed, self.base.size)
        key = (*split, candidate.sequence_parallel, on_node)
        if key not in self._shares:
            try:
                self._shares[key] = resolve_share(changed, self.inputs.workload, self.base.size)
            except InputError as error:
                self._shares[key] = error
        share = self._shares[key]
        if isinstance(share, InputError):
            raise share
        return self.base.with_scenario(changed, candidate.micro_batch, share)

    def changes(self, candidate: MixtureCandidate) -> dict[str, Any]:
        """Fields of the scenario that make it a mixture."""
        changes = candidate.changes(self.section)
        if candidate.tensor == 1:
            changes |= without_tensor(self.scenario)
        if candidate.expert == 1:
            changes |= without_expert_groups(self.scenario)
        return changes


def prepare_jobs(scenario: Scenario, profile: Profile | None, fidelity: str | None) -> MixtureJobs:
    """Look up all names but those of mixtures, and build the machine.

    Raises `InputError`: another strategy than ``auto``, or a name that does not resolve.
    """
    section = scenario.strategy
    if not isinstance(section, AutoStrategy):
        raise scenario.fault("strategy.kind", repr(section.kind), "'auto'")
    own = section.sharding[0]
    fields = own.model_dump(mode="json", exclude_defaults=True, context=AS_WRITTEN)
    kind = {"kind": own.kind, **fields}
    unsplit = {"strategy": kind, "training": {"batch_per_gpu": 1}}
    if max(section.tensor or [2]) > 1:  # by default, all that the node allows
        unsplit |= without_tensor(scenario)
    if max(section.expert or [2]) > 1:
        unsplit |= without_expert_groups(scenario)
    plain = change_scenario(scenario, unsplit)
    inputs = resolve_scenario(plain, profile, fidelity)
    return MixtureJobs(inputs, scenario, section, size_job(inputs, inputs.sizes[-1]))


def without_tensor(scenario: Scenario) -> dict[str, Any]:
    """Return the changes that take back what is stated of tensor parallelism."""
    parallel = scenario.parallel
    fields = type(parallel).model_fields
    changes = {f"parallel.{name}": fields[name].default for name in parallel.idle_fields}
    return changes | _experts_unstated(scenario, "tensor")


def without_expert_groups(scenario: Scenario) -> dict[str, Any]:
    """Return the changes that take back what is stated of GPUs that share experts."""
    section = scenario.model.experts
    changes = _experts_unstated(scenario, "dispatcher", "dispatch_dtype")
    if section is not None and section.capacity is None:  # a capacity drops tokens on one GPU, too
        changes |= _experts_unstated(scenario, "imbalance")
    return changes


def _experts_unstated(scenario: Scenario, *names: str) -> dict[str, Any]:
    """Return the changes that give fields of the model's experts their defaults."""
    section = scenario.model.experts
    if section is None:
        return {}
    fields = type(section).model_fields
    return {
        f"model.experts.{name}": fields[name].default
        for name in names
        if name in section.model_fields_set
    }


@dataclass(frozen=True, slots=True)
class SimulatedStep:
    """Time of a step and its parts (`step_causes`); seconds."""

    step_s: float
    parts_s: Mapping[str, float]


@dataclass
class Simulations:
    """Simulated steps of mixtures.

    `question`: what workers prepare their own jobs from (`as_question`).
    `ready`: steps, or why there is none, of what workers have simulated.
    """

    jobs: MixtureJobs
    workers: Workers
    question: bytes
    ready: dict[MixtureCandidate, SimulatedStep | InputError] = field(default_factory=dict)

    def step(self, candidate: MixtureCandidate, sized: SizedJob) -> SimulatedStep:
        """Step of a mixture; raises `InputError`: none can be planned."""
        step = self.ready.get(candidate)
        if isinstance(step, InputError):
            raise step
        return _simulate(sized) if step is None else step

    def begin(self, candidates: Sequence[MixtureCandidate]) -> None:
        """Let workers simulate what is not ready, if there are workers."""
        missing = [each for each in candidates if each not in self.ready]
        if self.workers.alone or len(missing) < 2:
            return
        calls = [(self.question, each) for each in missing]
        workers = self.workers
        self.ready.update(
            map_unordered(
                _simulate_candidate,
                calls,
                jobs=workers.jobs,
                backend=workers.backend,
                scheduler=workers.scheduler,
            )
        )


def as_question(scenario: Scenario, profile: Profile | None, fidelity: str | None) -> bytes:
    """What workers need to prepare jobs; equal bytes for each call, so that they do so once."""
    return pickle.dumps((scenario, profile, fidelity))


def _simulate(sized: SizedJob) -> SimulatedStep:
    reported = simulate_reported(sized)
    return SimulatedStep(reported.step_s, step_causes(reported))


@lru_cache(maxsize=1)
def _jobs_of(question: bytes) -> MixtureJobs:
    """Jobs of a worker's process."""
    return prepare_jobs(*pickle.loads(question))  # noqa: S301  (bytes of the process that asks)


def _simulate_candidate(
    question: bytes, candidate: MixtureCandidate
) -> tuple[MixtureCandidate, SimulatedStep | InputError]:
    """Simulate a mixture in a worker."""
    try:
        sized = _jobs_of(question).make(candidate)
        with locate_errors(sized):
            return candidate, _simulate(sized)
    except InputError as error:
        return candidate, error


# ---------------------------------------------------------------- causes of the time of a step

CALLS: tuple[Dimension, ...] = ("tensor", "context", "expert")
"""Dimensions of layers' collectives (`perfmodel.training.plan.layer_calls`)."""

Intervals = list[tuple[float, float]]


def step_causes(reported: ReportedRun) -> dict[str, float]:
    """Parts of the last counted step of the class that computes longest; seconds.

    They add up to the step. "data" is what gradients and parameters are exchanged for longer than
    kernels hide, "pipeline" messages between stages, "bubble" all other waiting.
    """
    at = reported.counted_steps[-1]
    spans = spans_by_step(reported.run)[at]
    kinds = {stream.name: stream.kind for stream in reported.plan.streams}
    busiest = busiest_class(spans, kinds)
    own = [span for span in spans if span.rank_class == busiest]
    on_device = [span for span in own if kinds[span.stream] == "compute"]
    exchanged = [span for span in own if kinds[span.stream] == "comm"]
    communicators = {each.name: each for each in reported.plan.communicators}
    kernels = _intervals([span for span in on_device if span.kind != "communication"])
    parts = {"compute": covered_s(kernels)}
    cover = list(kernels)
    sent = [span for span in on_device + exchanged if span.kind == "communication"]
    for name in CALLS:
        calls = [s for s in sent if dimension_of(communicators[s.communicator]) == name]
        parts[name] = exposed_s(_intervals(calls), cover)
        cover += _intervals(calls)
    messages = [s for s in exchanged if communicators[s.communicator].role == "stages"]
    others = [s for s in exchanged if communicators[s.communicator].role != "stages"]
    for cause, spans_of_cause in (("data", others), ("pipeline", messages)):
        busy = _intervals(spans_of_cause)
        parts[cause] = exposed_s(busy, cover)
        cover += busy
    parts["bubble"] = max(0.0, reported.run.step_times_s[at] - sum(parts.values()))
    return parts


def _intervals(spans: list[Span]) -> Intervals:
    return [(span.start_s, span.end_s) for span in spans]
