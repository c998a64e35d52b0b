"""`choose_mixture`: the quickest mixture that fits, by branch and bound over all that are listed.

Mixtures are taken by their lower bounds: first what a step of each takes at least is worked out,
then memory, and what is left at the head of the queue is simulated, until the next bound is not
below the best simulated step. So nothing that was left out can be quicker, unless the number of
simulations ends the search.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from perfmodel.errors import InputError
from perfmodel.scenario import Scenario, change_scenario
from perfmodel.scenario.sections.strategies.auto import AutoStrategy
from perfmodel.studies.choose.mixtures import MixtureCandidate, list_mixtures
from perfmodel.studies.choose.step_bound import StepBounds
from perfmodel.studies.choose.step_causes import step_causes
from perfmodel.studies.run.resolve.job.memory_estimate import estimate_memory
from perfmodel.studies.run.resolve.job.model_share import resolve_share
from perfmodel.studies.run.resolve.resolved_scenario import ResolvedScenario, resolve_scenario
from perfmodel.studies.run.result.memory import Memory
from perfmodel.studies.run.result.searched_mixtures import MixtureSearch, SimulatedMixture
from perfmodel.studies.run.steps.sized_job import (
    SizedJob,
    locate_errors,
    simulate_reported,
    size_job,
)
from perfmodel.workload.model import Workload

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

LISTED = 10
"""Simulated mixtures that are shown."""
AT_LEAST = 1 - 1e-9
"""Share of its lower bound that no step is below: sums of floats differ in the last digits."""

Progress = Callable[[str], None]


@dataclass
class _Jobs:
    """Jobs of mixtures on one machine: models are cut, and collectives timed, once.

    `base`: the job as if nothing were split.
    """

    inputs: ResolvedScenario
    scenario: Scenario
    section: AutoStrategy
    base: SizedJob
    _shares: dict[tuple[int, int, int, bool], Workload | InputError] = field(default_factory=dict)

    def make(self, candidate: MixtureCandidate) -> SizedJob:
        """Make the job of a mixture; raises `InputError`: the model cannot be split so."""
        changed = change_scenario(self.scenario, candidate.changes(self.section))
        split = (candidate.tensor, candidate.context, candidate.expert)
        key = (*split, candidate.sequence_parallel)
        if key not in self._shares:
            try:
                self._shares[key] = resolve_share(changed, self.inputs.workload, self.base.size)
            except InputError as error:
                self._shares[key] = error
        share = self._shares[key]
        if isinstance(share, InputError):
            raise share
        return self.base.with_scenario(changed, candidate.micro_batch, share)

    def memory(self, sized: SizedJob) -> Memory:
        """Memory of the fullest GPU."""
        others = tuple(each.gpu for each in sized.disturbances if each.gpu is not None)
        return estimate_memory(sized.job, sized.size.gpus, sized.batch, others)


@dataclass
class _Counts:
    impossible: int = 0
    too_big: int = 0
    simulated: int = 0


@dataclass(frozen=True, order=True, slots=True)
class _Queued:
    """A mixture in the queue. `checked`: whether it fits, and the bound is that of its plan."""

    bound_s: float
    number: int
    checked: bool = False
    memory: Memory | None = field(default=None, compare=False)


def choose_mixture(
    scenario: Scenario,
    *,
    profile: Profile | None = None,
    fidelity: str | None = None,
    exhaustive: bool = False,
    progress: Progress | None = None,
) -> MixtureSearch:
    """Find the quickest mixture that fits.

    Parameters
    ----------
    scenario : Scenario
        With strategy ``auto``.
    profile : Profile, optional
        Measured numbers instead of datasheets'.
    fidelity : {"flow", "message"}, optional
        Instead of the scenario's.
    exhaustive : bool
        Whether to simulate all that fits, whatever its lower bound.
    progress : callable, optional
        Called with the next stage, in words.

    Raises
    ------
    InputError
        Another strategy, a name that does not resolve, or no mixture that the model, the GPUs and
        the batch allow and that fits; names file, line and field.
    """
    section = scenario.strategy
    if not isinstance(section, AutoStrategy):
        raise scenario.fault("strategy.kind", repr(section.kind), "'auto'")
    say = progress or (lambda _: None)
    jobs = _prepare(scenario, section, profile, fidelity)
    candidates, divided = list_mixtures(scenario, section, jobs.base.size, jobs.inputs.workload)
    counts = _Counts(impossible=divided)
    bounds = StepBounds(scenario.compute.precision, jobs.make)
    say(f"{len(candidates):,} mixtures")
    queue: list[_Queued] = []
    refused: InputError | None = None
    for number, candidate in enumerate(candidates):
        try:
            queue.append(_Queued(bounds.lower_bound_s(candidate), number))
        except InputError as error:
            counts.impossible += 1
            refused = error
    heapq.heapify(queue)
    say(f"{len(queue):,} bounds")
    search = _Search(jobs, bounds, candidates, counts, say)
    search.run(queue, exhaustive=exhaustive)
    if not search.simulated:
        raise _nothing(scenario, search, refused)
    return search.result(divided + len(candidates), queue)


def _prepare(
    scenario: Scenario, section: AutoStrategy, profile: Profile | None, fidelity: str | None
) -> _Jobs:
    """Look up all names but those of mixtures, and build the machine."""
    own = section.sharding[0]
    kind = {"kind": own.kind, **own.model_dump(mode="json", exclude_defaults=True)}
    plain = change_scenario(scenario, {"strategy": kind, "training": {"batch_per_gpu": 1}})
    inputs = resolve_scenario(plain, profile, fidelity)
    return _Jobs(inputs, scenario, section, size_job(inputs, inputs.sizes[-1]))


@dataclass
class _Search:
    """The search: what was simulated so far, and the least memory of what does not fit."""

    jobs: _Jobs
    bounds: StepBounds
    candidates: list[MixtureCandidate]
    counts: _Counts
    say: Progress
    simulated: list[tuple[float, int, SimulatedMixture]] = field(default_factory=list)
    least: tuple[float, int] | None = None
    refused: InputError | None = None

    @property
    def best_s(self) -> float:
        """Quickest step so far; seconds."""
        return min((step_s for step_s, _, _ in self.simulated), default=float("inf"))

    def run(self, queue: list[_Queued], *, exhaustive: bool) -> None:
        """Simulate what may be the quickest, until nothing else may."""
        most = len(self.candidates) if exhaustive else self.jobs.section.simulate
        while queue and self.counts.simulated < most:
            if not exhaustive and queue[0].bound_s * AT_LEAST >= self.best_s:
                break
            head = heapq.heappop(queue)
            try:
                again = self._look(head)
            except InputError as error:
                self.counts.impossible += 1
                self.refused = error
                continue
            if again is not None:
                heapq.heappush(queue, again)

    def _look(self, head: _Queued) -> _Queued | None:
        """Check a mixture, or simulate one that is checked."""
        candidate = self.candidates[head.number]
        sized = self.jobs.make(candidate)
        with locate_errors(sized):
            if head.checked and head.memory is not None:
                self._simulate(head, candidate, sized, head.memory)
                return None
            if self._holds_too_much(candidate, sized):
                self.counts.too_big += 1
                return None
            if candidate.pipeline > 1:
                sized.job.mixture.pipeline_schedule(candidate.micro_batches)
            memory = self.jobs.memory(sized)
            if not memory.fits or memory.tight:
                self.counts.too_big += 1
                needed = (memory.total_bytes + memory.reserve_bytes, head.number)
                self.least = needed if self.least is None else min(self.least, needed)
                return None
            bound_s = head.bound_s
            if candidate.pipeline == 1:
                bound_s = max(bound_s, self.bounds.busiest_stream_s(sized))
            return _Queued(bound_s, head.number, True, memory)

    def _holds_too_much(self, candidate: MixtureCandidate, sized: SizedJob) -> bool:
        """Whether parameters and gradients alone do not fit, where each GPU holds them whole."""
        whole = sized.job.scenario.strategy.kind in ("ddp", "megatron")
        least = 2 * sized.job.workload.nbytes / candidate.pipeline
        return whole and least > sized.job.gpu.memory_bytes

    def _simulate(
        self, head: _Queued, candidate: MixtureCandidate, sized: SizedJob, memory: Memory
    ) -> None:
        reported = simulate_reported(sized)
        section, data = self.jobs.section, sized.size.gpus // candidate.gpus_per_replica
        self.counts.simulated += 1
        self.simulated.append((
            reported.step_s,
            head.number,
            SimulatedMixture(
                text=candidate.describe(section, data),
                changes=candidate.changes(section),
                step_time_s=reported.step_s,
                bound_s=head.bound_s,
                memory_bytes=memory.total_bytes,
                parts_s=step_causes(reported),
            ),
        ))  # fmt: skip
        self.say(f"{self.counts.simulated} simulated, the best {self.best_s:.4g} s")

    def result(self, listed: int, queue: list[_Queued]) -> MixtureSearch:
        """What the search came to."""
        ranked = [mixture for _, _, mixture in sorted(self.simulated, key=lambda each: each[:2])]
        lowest_s = min((each.bound_s for each in queue), default=float("inf"))
        return MixtureSearch(
            best=tuple(ranked[:LISTED]),
            listed=listed,
            impossible=self.counts.impossible,
            too_big=self.counts.too_big,
            bounded=len(queue),
            simulated=self.counts.simulated,
            unproven=max(0.0, 1 - lowest_s / ranked[0].step_time_s),
        )


def _nothing(scenario: Scenario, search: _Search, refused: InputError | None) -> InputError:
    """Say why there is no answer: nothing fits, or nothing is possible."""
    counts = search.counts
    if counts.too_big and search.least is None:
        allowed = "more GPUs, or other lists: parameters and gradients alone are larger than a GPU"
        return scenario.fault("strategy", f"{counts.too_big:,} mixtures, none fits", allowed)
    if search.least is not None:
        needed, number = search.least
        candidate = search.candidates[number]
        gpus = search.jobs.base.size.gpus
        mixture = candidate.describe(search.jobs.section, gpus // candidate.gpus_per_replica)
        text = f"{counts.too_big:,} mixtures, none of which fits"
        allowed = (
            f"more GPUs, or other lists: the least memory, {needed / 2**30:.1f} GiB of "
            f"{search.jobs.base.job.gpu.memory_bytes / 2**30:.1f} GiB with what CUDA, NCCL and "
            f"the allocator take, has {mixture}"
        )
        return scenario.fault("strategy", text, allowed)
    last = search.refused or refused
    reason = "degrees that divide GPUs, batch and blocks of the model"
    if last is not None:
        fault = last.faults[0]
        reason = f"for one, {fault.field}: found {fault.found}; allowed: {fault.allowed}"
    return scenario.fault("strategy", f"{counts.impossible:,} mixtures, all impossible", reason)
