"""`choose_mixture`: the quickest mixture that fits, by branch and bound over all that are listed.

Mixtures are taken by their lower bounds: first what a step of each takes at least is worked out,
then memory, and what is left at the head of the queue is simulated, until the next bound is not
below the best simulated step. So nothing that was left out can be quicker, unless the number of
simulations ends the search. Then the winner is tried with other sizes of buckets.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from perfmodel.errors import InputError
from perfmodel.scenario import Scenario
from perfmodel.studies.choose.mixture_jobs import (
    MixtureJobs,
    Simulations,
    as_question,
    prepare_jobs,
)
from perfmodel.studies.choose.mixtures import MixtureCandidate, list_mixtures
from perfmodel.studies.choose.step_bound import StepBounds
from perfmodel.studies.run.result.model import MixtureSearch, SimulatedMixture
from perfmodel.studies.run.result.usage import Memory
from perfmodel.studies.run.steps.sized_job import SizedJob, locate_errors
from perfmodel.studies.sweep.executor import ALONE, Workers
from perfmodel.training.strategies import STRATEGIES

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

LISTED = 10
"""Simulated mixtures that are shown."""
HIDDEN = 0.01
"""Share of a step below which what reductions expose is not worth more simulations; `tune` keeps
the library's buckets for less, too."""
AT_LEAST = 1 - 1e-9
"""Share of its lower bound that no step is below: sums of floats differ in the last digits."""

Progress = Callable[[str], None]


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


@dataclass(frozen=True, slots=True)
class _TooBig:
    """A mixture that does not fit; `needed_bytes`: None where that was plain at once."""

    needed_bytes: float | None = None


def choose_mixture(
    scenario: Scenario,
    *,
    profile: Profile | None = None,
    fidelity: str | None = None,
    exhaustive: bool = False,
    progress: Progress | None = None,
    workers: Workers | None = None,
) -> MixtureSearch:
    """Find the quickest mixture that fits.

    Parameters
    ----------
    scenario : Scenario
        With strategy ``auto``.
    profile : Profile, optional
        Measured numbers instead of datasheets'.
    fidelity : {"flow", "message", "reference"}, optional
        Instead of the scenario's.
    exhaustive : bool
        Whether to simulate all that fits, whatever its lower bound.
    progress : callable, optional
        Called with the next stage, in words.
    workers : Workers, optional
        Processes or a cluster that simulate ahead; default: this process alone. The answer is the
        same.

    Raises
    ------
    InputError
        Another strategy, a name that does not resolve, or no mixture that the model, the GPUs and
        the batch allow and that fits; names file, line and field.
    """
    say = progress or (lambda _: None)
    jobs = prepare_jobs(scenario, profile, fidelity)
    candidates, divided = list_mixtures(
        scenario, jobs.section, jobs.base.size, jobs.inputs.workload
    )
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
    simulations = Simulations(jobs, workers or ALONE, as_question(scenario, profile, fidelity))
    search = _Search(jobs, bounds, candidates, counts, say, simulations)
    search.run(queue, exhaustive=exhaustive)
    if jobs.section.buckets and search.simulated:
        search.tune_buckets()
    if not search.simulated:
        raise _nothing(scenario, search, refused)
    return search.result(divided + len(candidates), queue)


@dataclass
class _Search:
    """The search: what was simulated so far, and the least memory of what does not fit.

    `checks`: by the number of a mixture what `_check` said of it.
    """

    jobs: MixtureJobs
    bounds: StepBounds
    candidates: list[MixtureCandidate]
    counts: _Counts
    say: Progress
    simulations: Simulations
    simulated: list[tuple[float, int, SimulatedMixture]] = field(default_factory=list)
    least: tuple[float, int] | None = None
    refused: InputError | None = None
    checks: dict[int, _Queued | _TooBig | InputError] = field(default_factory=dict)

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
            if queue[0].checked:
                self._begin_next(queue, most - self.counts.simulated, exhaustive=exhaustive)
            head = heapq.heappop(queue)
            try:
                again = self._look(head)
            except InputError as error:
                self.counts.impossible += 1
                self.refused = error
                continue
            if again is not None:
                heapq.heappush(queue, again)

    def _begin_next(self, queue: list[_Queued], most: int, *, exhaustive: bool) -> None:
        """Let workers simulate the head of the queue, and what would follow if it were no better.

        Nothing that the search does later depends on it, but for how soon it has steps.
        """
        most = min(most, self.simulations.workers.at_once)
        ahead, following = list(queue), list[MixtureCandidate]()
        if most < 2 or self.candidates[queue[0].number] in self.simulations.ready:
            return
        while ahead and len(following) < most:
            head = heapq.heappop(ahead)
            if not exhaustive and head.bound_s * AT_LEAST >= self.best_s:
                break
            if head.checked:
                following.append(self.candidates[head.number])
            elif isinstance(again := self._check(head), _Queued):
                heapq.heappush(ahead, again)
        self.simulations.begin(following)

    def _look(self, head: _Queued) -> _Queued | None:
        """Check a mixture, or simulate one that is checked."""
        if head.checked and head.memory is not None:
            sized = self.jobs.make(self.candidates[head.number])
            with locate_errors(sized):
                self._simulate(head, sized, head.memory)
            return None
        checked = self._check(head)
        if isinstance(checked, InputError):
            raise checked
        if isinstance(checked, _Queued):
            return checked
        self.counts.too_big += 1
        if checked.needed_bytes is not None:
            needed = (checked.needed_bytes, head.number)
            self.least = needed if self.least is None else min(self.least, needed)
        return None

    def _check(self, head: _Queued) -> _Queued | _TooBig | InputError:
        """Whether a mixture is possible and fits, and the bound of its plan; worked out once."""
        if head.number not in self.checks:
            try:
                self.checks[head.number] = self._check_anew(head)
            except InputError as error:
                self.checks[head.number] = error
        return self.checks[head.number]

    def _check_anew(self, head: _Queued) -> _Queued | _TooBig:
        candidate = self.candidates[head.number]
        sized = self.jobs.make(candidate)
        with locate_errors(sized):
            if self._holds_too_much(candidate, sized):
                return _TooBig()
            if candidate.pipeline > 1:
                sized.job.mixture.pipeline_schedule(candidate.micro_batches)
            memory = sized.memory()
            if not memory.fits or memory.tight:
                return _TooBig(memory.total_bytes + memory.reserve_bytes)
            bound_s = head.bound_s
            if candidate.pipeline == 1:
                bound_s = max(bound_s, self.bounds.busiest_stream_s(sized))
            return _Queued(bound_s, head.number, True, memory)

    def tune_buckets(self) -> None:
        """Go from the winner's size of buckets to larger and smaller ones while these are quicker.

        Only where the section has it by default, and the winner does not hide all it reduces.
        """
        step_s, number, winner = min(self.simulated, key=lambda each: each[:2])
        best, section = self.candidates[number], self.jobs.section
        own = section.sharding[best.sharding]
        sizes_of = STRATEGIES[own.kind].bucket_sizes
        ranks = self.jobs.base.size.gpus // best.gpus_per_replica * best.context
        setting = None if sizes_of is None else sizes_of(own, ranks)
        if setting is None or winner.parts_s["data"] < HIDDEN * step_s:
            return
        variants = [
            replace(best, bucket_size=None if size is None else (setting.field, size))
            for size in setting.values
        ]
        middle = setting.values.index(None)
        self.simulations.begin([variants[middle - 1], variants[middle + 1]])
        for direction in (1, -1):
            at = middle + direction
            while 0 <= at < len(variants) and self._is_quicker(variants[at]):
                at += direction
            if at != middle + direction:
                return

    def _is_quicker(self, candidate: MixtureCandidate) -> bool:
        """Simulate one more mixture if it fits; whether it is the best so far."""
        before_s = self.best_s
        if self.counts.simulated >= self.jobs.section.simulate:
            return False
        self.candidates.append(candidate)
        try:
            bound_s = self.bounds.lower_bound_s(candidate)
            checked = self._look(_Queued(bound_s, len(self.candidates) - 1))
            if checked is not None:
                self._look(checked)
        except InputError as error:
            self.counts.impossible += 1
            self.refused = error
        return self.best_s < before_s

    def _holds_too_much(self, candidate: MixtureCandidate, sized: SizedJob) -> bool:
        """Whether parameters and gradients alone do not fit, where each GPU holds them whole."""
        whole = sized.job.scenario.strategy.kind in ("ddp", "megatron")
        least = 2 * sized.job.workload.nbytes / candidate.pipeline
        return whole and least > sized.job.gpu.memory_bytes

    def _simulate(self, head: _Queued, sized: SizedJob, memory: Memory) -> None:
        candidate = self.candidates[head.number]
        step = self.simulations.step(candidate, sized)
        section, data = self.jobs.section, sized.size.gpus // candidate.gpus_per_replica
        self.counts.simulated += 1
        self.simulated.append(
            (
                step.step_s,
                head.number,
                SimulatedMixture(
                    text=candidate.describe(section, data),
                    changes=self.jobs.changes(candidate),
                    step_time_s=step.step_s,
                    bound_s=head.bound_s,
                    memory_bytes=memory.total_bytes,
                    parts_s=step.parts_s,
                ),
            )
        )
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
