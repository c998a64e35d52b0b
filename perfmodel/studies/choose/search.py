"""`find_layout`: the quickest layout that fits, by branch and bound over all that are listed.

Layouts are taken by their lower bounds: first what a step of each takes at least is worked out,
then memory, and what is left at the head of the queue is simulated, until the next bound is not
below the best simulated step. What recomputes is no quicker than the same layout that does not. So
nothing that was left out can be quicker, unless the number of simulations ends the search. Then the
winner is tried with other sizes of buckets.

With so many seconds, the search ends with the best so far, and says how much quicker a layout that
was left out may be.

Worker processes simulate the layouts that a search would come to next, before it asks for them. So
it finds what it finds alone, and only what a better one found meanwhile rules out was simulated in
vain.
"""

from __future__ import annotations

import heapq
import math
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, lru_cache
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from perfmodel.errors import InputError
from perfmodel.memo import T, once
from perfmodel.scenario import Scenario
from perfmodel.studies.choose.layouts import (
    LayoutCandidate,
    LayoutJobs,
    list_layouts,
    prepare_jobs,
    result_of,
    result_or_error,
    step_causes,
)
from perfmodel.studies.choose.step_bound import StepBounds
from perfmodel.studies.run.result import LayoutSearch, SimulatedLayout
from perfmodel.studies.run.steps.simulate_step import ReportedRun
from perfmodel.studies.run.steps.sized_job import SizedJob, locate_errors, simulate_reported
from perfmodel.studies.run.usage import Memory
from perfmodel.studies.sweep.executor import ALONE, Workers, map_unordered
from perfmodel.training.strategies import STRATEGIES
from perfmodel.training.words import words_of

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

MOST_LISTED = 10
"""Simulated layouts that are shown."""
HIDDEN_SHARE = 0.01
"""Share of a step below which what reductions expose is not worth more simulations; `tune` keeps
the library's buckets for less, too."""
SURE_SHARE_OF_BOUND = 1 - 1e-9
"""Share of its lower bound that no step is below: sums of floats differ in the last digits."""

Progress = Callable[[str], None]


# ---------------------------------------------------------------- simulated steps


SimulatedStep = tuple[float, Mapping[str, float]]
"""Time of a step, and its parts (`step_causes`); seconds."""


@lru_cache(maxsize=1)
def _jobs_of(question: bytes) -> LayoutJobs:
    """Jobs of a worker's process."""
    return prepare_jobs(*pickle.loads(question))  # noqa: S301  (bytes of the process that asks)


def _simulate_candidate(
    question: bytes, candidate: LayoutCandidate
) -> tuple[LayoutCandidate, SimulatedStep | InputError]:
    """Simulate a layout in a worker."""

    def simulate() -> SimulatedStep:
        sized = _jobs_of(question).make(candidate)
        with locate_errors(sized):
            reported = simulate_reported(sized)
            return reported.step_s, step_causes(reported)

    return candidate, result_or_error(simulate)


# ---------------------------------------------------------------- the search


@dataclass(frozen=True, order=True, slots=True)
class _Queued:
    """A layout in the queue.

    `memory`: once it was checked.
    `needed_bytes`: where it does not fit; infinite where that was plain at once.
    `planned`: whether the bound is that of its plan, or of one that it is no quicker than.
    """

    bound_s: float
    number: int
    memory: Memory | None = field(default=None, compare=False)
    needed_bytes: float | None = field(default=None, compare=False)
    planned: bool = field(default=False, compare=False)
    sized: SizedJob | None = field(default=None, compare=False)


def choose_layout(scenario: Scenario, **settings: Any) -> LayoutSearch:
    """Say how the quickest layout that fits was found; `settings`: as of `find_layout`."""
    return find_layout(scenario, **settings)[0]


def find_layout(
    scenario: Scenario,
    *,
    profile: Profile | None = None,
    fidelity: str | None = None,
    exhaustive: bool = False,
    progress: Progress | None = None,
    workers: Workers | None = None,
    seconds: float = math.inf,
) -> tuple[LayoutSearch, SizedJob, ReportedRun | None]:
    """Find the quickest layout that fits.

    Returns how it was found, its job, and the run of its steps unless a worker has simulated it.

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
    seconds : float
        After which nothing more is simulated, once something that fits was.

    Raises
    ------
    InputError
        Another strategy, a name that does not resolve, or no layout that the model, the GPUs and
        the batch allow and that fits; names file, line and field.
    """
    say, until_s = progress or (lambda _: None), time.monotonic() + seconds
    jobs = prepare_jobs(scenario, profile, fidelity)
    candidates, divided = list_layouts(
        jobs.scenario, jobs.section, jobs.base.size, jobs.inputs.workload
    )
    bounds = StepBounds(scenario.compute.precision, jobs.make)
    say(f"{len(candidates):,} layouts")
    question = pickle.dumps((scenario, profile, fidelity))  # equal bytes for each call
    search = _Search(jobs, bounds, candidates, say, workers or ALONE, question, divided, until_s)
    queue = [each for each in map(search.bound, range(len(candidates))) if each is not None]
    heapq.heapify(queue)
    say(f"{len(queue):,} bounds")
    search.run(queue, exhaustive=exhaustive)
    if search.winner is None:
        raise scenario.fault("strategy", *search.nothing())
    if jobs.section.buckets:
        search.tune_buckets()
    return search.result(divided + len(candidates), queue), *search.winner


@dataclass
class _Search:
    """The search: what was simulated so far, and what became of the other layouts.

    `question`: what workers prepare their own jobs from, pickled: the same bytes for each call, so
        that they do so once.
    `ready`: steps, or why there is none, of what workers have simulated.
    `impossible`, `too_big`: how many layouts were.
    `until_s`: when it ends at the latest, by the monotonic clock.
    `winner`: job and run of the quickest so far.
    `least`: the least memory of what does not fit, and the number of that layout.
    `refused`: the last error of an impossible layout.
    `checks`: by the number of a layout what `_check` said of it.
    """

    jobs: LayoutJobs
    bounds: StepBounds
    candidates: list[LayoutCandidate]
    say: Progress
    workers: Workers
    question: bytes
    impossible: int
    until_s: float
    too_big: int = 0
    winner: tuple[SizedJob, ReportedRun | None] | None = None
    simulated: list[tuple[float, int, SimulatedLayout]] = field(default_factory=list)
    least: tuple[float, int] = (math.inf, 0)
    refused: InputError | None = None
    checks: dict[int, _Queued | InputError] = field(default_factory=dict)
    ready: dict[LayoutCandidate, SimulatedStep | InputError] = field(default_factory=dict)

    @cached_property
    def numbers(self) -> dict[LayoutCandidate, int]:
        """Numbers of the layouts that are listed."""
        return {each: number for number, each in enumerate(self.candidates)}

    @property
    def best_s(self) -> float:
        """Quickest step so far; seconds."""
        return min((step_s for step_s, _, _ in self.simulated), default=math.inf)

    @property
    def _is_late(self) -> bool:
        return self.winner is not None and time.monotonic() >= self.until_s

    def bound(self, number: int) -> _Queued | None:
        """Return a layout with its lower bound for the queue; None if it is impossible."""
        candidate = self.candidates[number]
        bound_s = self._possible(result_or_error(lambda: self.bounds.lower_bound_s(candidate)))
        return None if bound_s is None else _Queued(bound_s, number)

    def _possible(self, outcome: T | InputError) -> T | None:
        """Return an outcome; None where it is an error, by which a layout is impossible."""
        if not isinstance(outcome, InputError):
            return outcome
        self.impossible += 1
        self.refused = outcome
        return None

    def run(self, queue: list[_Queued], *, exhaustive: bool) -> None:
        """Simulate what may be the quickest, until nothing else may."""
        most = len(self.candidates) if exhaustive else self.jobs.section.simulate
        while queue and len(self.simulated) < most and not self._is_late:
            if not exhaustive and queue[0].bound_s * SURE_SHARE_OF_BOUND >= self.best_s:
                break
            if queue[0].memory is not None:
                self._begin_next(queue, most - len(self.simulated), exhaustive=exhaustive)
            head = heapq.heappop(queue)
            again = (None if exhaustive else self._bound_by_less(head)) or self._look(head)
            if again is not None:
                heapq.heappush(queue, again)

    def _begin_next(self, queue: list[_Queued], most: int, *, exhaustive: bool) -> None:
        """Let workers simulate the head of the queue, and what would follow if it were no better.

        Nothing that the search does later depends on it, but for how soon it has steps.
        """
        most = min(most, self.workers.at_once)
        ahead, following = list(queue), list[LayoutCandidate]()
        if most < 2 or self.candidates[queue[0].number] in self.ready:
            return
        while ahead and len(following) < most:
            head = heapq.heappop(ahead)
            if not exhaustive and head.bound_s * SURE_SHARE_OF_BOUND >= self.best_s:
                break
            if head.memory is not None:
                following.append(self.candidates[head.number])
                continue
            again = self._check(head)
            if isinstance(again, _Queued) and again.needed_bytes is None:
                heapq.heappush(ahead, again)
        self._begin(following)

    def _begin(self, candidates: Sequence[LayoutCandidate]) -> None:
        """Let workers simulate what is not ready, if there are workers."""
        calls = [(self.question, each) for each in candidates if each not in self.ready]
        if not self.workers.alone and len(calls) > 1:
            self.ready.update(map_unordered(_simulate_candidate, calls, **asdict(self.workers)))

    def _bound_by_less(self, head: _Queued) -> _Queued | None:
        """Return a layout with a higher bound by the one that recomputes nothing, if there is one.

        It is not quicker. Once the other was simulated, only a plan could say that it may be nearly
        as quick: that is taken to be as much longer as its kernels are.
        """
        own = self.candidates[head.number]
        less = self.numbers.get(replace(own, recompute="none"), head.number)
        known = self.checks.get(less)
        if less == head.number or not isinstance(known, _Queued) or known.needed_bytes is not None:
            return None
        bound_s = known.bound_s
        if any(number == less for _, number, _ in self.simulated):
            of_less_s = self.bounds.lower_bound_s(self.candidates[less])
            bound_s += self.bounds.lower_bound_s(own) - of_less_s
        return replace(head, bound_s=bound_s, planned=True) if bound_s > head.bound_s else None

    def _look(self, head: _Queued) -> _Queued | None:
        """Simulate a layout that is checked, or return it checked if it is possible and fits."""
        memory = head.memory
        if memory is not None:
            self._possible(result_or_error(lambda: self._simulate(head, memory)))
            return None
        checked = self._possible(self._check(head))
        if checked is not None and checked.needed_bytes is not None:
            self.too_big += 1
            self.least = min(self.least, (checked.needed_bytes, head.number))
            return None
        return checked

    def _check(self, head: _Queued) -> _Queued | InputError:
        """Return a layout with its memory and the bound of its plan; worked out once."""
        return once(
            self.checks, head.number, lambda: result_or_error(lambda: self._check_anew(head))
        )

    def _check_anew(self, head: _Queued) -> _Queued:
        candidate = self.candidates[head.number]
        sized = self.jobs.make(candidate)
        whole = sized.job.scenario.strategy.kind in ("ddp", "megatron")
        with locate_errors(sized):
            # Where each GPU holds them whole, parameters and gradients alone may not fit.
            least_bytes = 2 * sized.job.workload.nbytes / candidate.pipeline
            if whole and least_bytes > sized.job.gpu.memory_bytes:
                return replace(head, needed_bytes=math.inf)
            if candidate.pipeline > 1:
                sized.job.parallel_layout.pipeline_schedule(candidate.micro_batches)
            memory = sized.memory()
            if not memory.fits or memory.tight:
                return replace(head, needed_bytes=memory.total_bytes + memory.reserve_bytes)
            plan_s = self.bounds.plan_s(sized)
            return _Queued(
                max(head.bound_s, plan_s),
                head.number,
                memory,
                planned=True,
                sized=sized if plan_s < self.best_s else None,
            )

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
        if setting is None or winner.parts_s["data"] < HIDDEN_SHARE * step_s:
            return
        variants = [
            replace(best, bucket_size=None if size is None else (setting.field, size))
            for size in setting.values
        ]
        middle = setting.values.index(None)
        self._begin([variants[middle - 1], variants[middle + 1]])
        for further in (variants[middle + 1 :], variants[:middle][::-1]):
            if list(takewhile(self._is_quicker, further)):
                return

    def _is_quicker(self, candidate: LayoutCandidate) -> bool:
        """Simulate one more layout if it fits; return whether it is the best so far."""
        before_s = self.best_s
        if len(self.simulated) >= self.jobs.section.simulate or self._is_late:
            return False
        self.candidates.append(candidate)
        head = self.bound(len(self.candidates) - 1)
        checked = None if head is None else self._look(head)
        if checked is not None:
            self._look(checked)
        return self.best_s < before_s

    def _simulate(self, head: _Queued, memory: Memory) -> None:
        candidate = self.candidates[head.number]
        sized = head.sized or self.jobs.make(candidate)
        with locate_errors(sized):
            ready, reported = self.ready.get(candidate), None
            if ready is None:
                reported = simulate_reported(sized)
                ready = reported.step_s, step_causes(reported)
            step_s, parts_s = result_of(ready)
        simulated = SimulatedLayout(
            text=self._describe(candidate),
            changes=self.jobs.changes(candidate),
            step_time_s=step_s,
            bound_s=head.bound_s,
            memory_bytes=memory.total_bytes,
            parts_s=parts_s,
        )
        if (step_s, head.number) < min(
            (each[:2] for each in self.simulated), default=(math.inf, 0)
        ):
            self.winner = sized, reported
        self.simulated.append((step_s, head.number, simulated))
        self.say(f"{len(self.simulated)} simulated, the best {self.best_s:.4g} s")

    def _describe(self, candidate: LayoutCandidate) -> str:
        return candidate.describe(
            self.jobs.section, self.jobs.base.size.gpus // candidate.gpus_per_replica
        )

    def result(self, listed: int, queue: list[_Queued]) -> LayoutSearch:
        """Return what the search came to."""
        assert self.winner is not None  # else there is no result
        winner = self.winner[0]
        ranked = [layout for _, _, layout in sorted(self.simulated, key=lambda each: each[:2])]
        return LayoutSearch(
            best=tuple(ranked[:MOST_LISTED]),
            listed=listed,
            impossible=self.impossible,
            too_big=self.too_big,
            bounded=len(queue),
            bounded_by_plan=sum(each.planned for each in queue),
            simulated=len(self.simulated),
            unproven=max(
                0.0,
                1 - min((each.bound_s for each in queue), default=math.inf) / ranked[0].step_time_s,
            ),
            words={}
            if winner.job.gpu.accelerator
            else words_of(winner.job.scenario, winner.size.gpus, winner.size.nodes),
        )

    def nothing(self) -> tuple[str, str]:
        """Say why there is no answer, nothing fits or is possible; and what is allowed."""
        needed, number = self.least
        if self.too_big and math.isinf(needed):
            return (
                f"{self.too_big:,} parallel layouts, none fits",
                "more GPUs, or other lists: parameters and gradients alone are larger than a GPU",
            )
        if self.too_big:
            return f"{self.too_big:,} parallel layouts, none of which fits", (
                f"more GPUs, or other lists: the least memory, {needed / 2**30:.1f} GiB of "
                f"{self.jobs.base.job.gpu.memory_bytes / 2**30:.1f} GiB with what CUDA, NCCL and "
                f"the allocator take, has {self._describe(self.candidates[number])}"
            )
        reason = "degrees that divide GPUs, batch and blocks of the model"
        if self.refused is not None:
            fault = self.refused.faults[0]
            reason = f"for one, {fault.field}: found {fault.found}; allowed: {fault.allowed}"
        return f"{self.impossible:,} parallel layouts, all impossible", reason
