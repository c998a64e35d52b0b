"""The best list of caps where the surrogate is not exact: it proposes, the simulation decides."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.studies.run.prepared import StepEstimate
from perfmodel.studies.tune.caps import (
    Caps,
    Cuts,
    GradientOrder,
    UniformPartition,
    caps_mb,
    find_windows,
    integer_caps_mb,
)
from perfmodel.studies.tune.evaluator import (
    FEWER_TOLERANCE,
    Evaluator,
    Outcome,
    read_reductions,
)
from perfmodel.studies.tune.exact import allow_integer_caps, best_cuts, improve, neighbourhood
from perfmodel.studies.tune.model import STEP_ROUNDING, STEP_TOLERANCE
from perfmodel.studies.tune.surrogate import StepSurrogate, buckets_of_cuts

WORK = 400_000.0
"""Budget of simulated tasks: a few seconds."""
WORK_BY_MESSAGE = 1_600_000.0
"""The same where every message is simulated: some ten seconds."""
FEWEST, FEWEST_IN_CROWD = 16, 4
"""Fewest simulations of PyTorch's default; the latter where others use the network."""
TASKS_OF_SHARING = 40
"""Cost of an all-reduce that shares links with the next one; tasks."""
CROWD, SHARING_IN_CROWD = 8, 200
"""Cost of a task, and of an all-reduce, where others use the network; tasks."""
MESSAGES = 1.5
"""Cost of a task, per rank, where every message is simulated; tasks."""
FOR_CAPS = 0.6
"""Largest share of the budget for uniform caps, where not all of them can be simulated."""
USUAL_MB = (25.0, 50.0, 12.0, 100.0)
"""Caps that are simulated whatever the surrogate predicts, if only a few can be; MiB."""
SHARES = (1.0, 0.75, 0.5, 0.3)
"""Shares of an all-reduce's time that the surrogate counts, where several go on at a time."""
FOR_FEWER = 12
"""Simulations reserved for removing bucket ends that gain next to nothing."""
LABELS = 8
STARTS = 3
"""Lists that local search starts from."""
GAIN = 1e-5
"""Least relative gain of a step of local search."""


@dataclass
class Budget:
    """Work that is left for simulations.

    `remaining`: tasks.
    `per_step`: tasks of a simulation without its buckets.
    `target_s`: a step that is good enough; seconds.
    """

    remaining: float
    per_step: float
    per_bucket: float
    target_s: float

    def cost(self, buckets: int) -> float:
        """Cost of simulating a number of buckets; tasks."""
        return self.per_step + self.per_bucket * buckets

    def pay(self, buckets: int) -> bool:
        """Spend the cost of one simulation; False if the budget did not hold it."""
        self.remaining -= self.cost(buckets)
        return self.remaining >= 0


def make_budget(evaluator: Evaluator, stepped: StepEstimate, bound_s: float | None) -> Budget:
    """Return the budget of a search.

    `stepped`: a step that was simulated.
    `bound_s`: that no step is below; seconds.
    """
    ranks = sum(len(each.ranks) for each in stepped.plan.classes) if stepped.counted > 1 else 0
    crowded = any(d.background_job or d.traffic for d in evaluator.prepared.sized.disturbances)
    weight = stepped.steps * (1 + ranks / 200) * (CROWD if crowded else 1)
    if evaluator.allreduce.in_order:  # message by message
        weight *= MESSAGES * evaluator.prepared.size.gpus
    per_step = weight * len(stepped.plan.tasks)
    per_allreduce = TASKS_OF_SHARING if evaluator.workers > 1 else 3
    per_allreduce = SHARING_IN_CROWD if crowded else per_allreduce
    minimum = (FEWEST_IN_CROWD if crowded else FEWEST) * (
        per_step + weight * per_allreduce * len(read_reductions(stepped))
    )
    target_s = 0.0 if bound_s is None else bound_s * (1 + STEP_TOLERANCE)
    maximum = WORK_BY_MESSAGE if evaluator.allreduce.in_order else WORK
    return Budget(max(maximum, minimum), per_step, weight * per_allreduce, target_s)


@dataclass
class MainDtype:
    """Gradients of the dtype with most bytes, which the search varies the buckets of.

    Where all gradients share a dtype these are all of them. Else the other dtypes fill buckets of
    their own with the same caps.
    """

    evaluator: Evaluator
    gradients: GradientOrder
    surrogate: StepSurrogate
    lists: dict[Cuts, Caps | None] = field(default_factory=dict)
    steps_s: dict[Cuts, float] = field(default_factory=dict)

    def caps(self, cuts: Cuts) -> Caps | None:
        """Return the list of caps that makes contiguous groups; None if none does."""
        if cuts not in self.lists:
            windows = find_windows(self.gradients, self.gradients.groups(cuts))
            self.lists[cuts] = None if windows is None else caps_mb(windows)
        return self.lists[cuts]

    def predict_step_s(self, cuts: Cuts, share: float = 1.0) -> float:
        """Step time by the surrogate; seconds."""
        allreduce = self.evaluator.allreduce
        return self.surrogate.step_s(
            buckets_of_cuts(self.surrogate, cuts), lambda n: share * allreduce.time_s(n)
        )

    def simulate(self, cuts: Cuts) -> float:
        """Step time by the simulation; seconds, infinite if no list makes these groups."""
        if cuts not in self.steps_s:
            caps = self.caps(cuts)
            step_s = float("inf") if caps is None else self.outcome(caps).step_time_s
            self.steps_s[cuts] = step_s
        return self.steps_s[cuts]

    def outcome(self, caps: Caps) -> Outcome:
        """Simulate a list."""
        return self.evaluator.simulate(self.evaluator.list_options(caps))


def select_main_dtype(evaluator: Evaluator) -> MainDtype:
    """Return the gradients of the dtype with most bytes."""
    gradients, surrogate = evaluator.gradients, evaluator.surrogate
    if gradients.single_dtype:
        return MainDtype(evaluator, gradients, surrogate)
    share: dict[str, int] = {}
    for dtype, nbytes in zip(gradients.dtypes, gradients.nbytes, strict=True):
        share[dtype] = share.get(dtype, 0) + nbytes
    dtype = max(share, key=lambda name: share[name])
    mine = [position for position, each in enumerate(gradients.dtypes) if each == dtype]
    part = GradientOrder(
        tuple(gradients.tensors[i] for i in mine),
        tuple(gradients.nbytes[i] for i in mine),
        tuple(gradients.dtypes[i] for i in mine),
        gradients.reverse_filled,
    )
    ready = tuple(surrogate.ready_s[i] for i in mine)
    out = tuple(surrogate.out_s[i] for i in mine)
    return MainDtype(evaluator, part, replace(surrogate, gradients=part, ready_s=ready, out_s=out))


def simulate_uniform_caps(
    evaluator: Evaluator, partitions: Sequence[UniformPartition], budget: Budget
) -> None:
    """Simulate uniform caps: all, or within the budget those that the surrogate ranks first."""
    affordable = FOR_CAPS * budget.remaining
    order = partitions
    if sum(budget.cost(len(partition.groups)) for partition in partitions) > affordable:
        count = max(1, int(affordable / budget.cost(4)) // 4)
        usual = [p for cap in USUAL_MB for p in partitions if p.window.contains(cap)]
        spread = partitions[len(partitions) // 4 :: max(1, len(partitions) // count)]
        ranked = sorted(partitions, key=lambda p: evaluator.predict_step_s(p.groups))
        first = (*usual, *ranked) if count < len(usual) else (*spread, *usual, *ranked)
        order = list(dict.fromkeys(first))
    reserve = budget.remaining - affordable
    for partition in order:
        exceeds = budget.remaining - budget.cost(len(partition.groups)) < reserve
        if exceeds and evaluator.outcomes.keys() & {each.groups for each in partitions}:
            return
        budget.pay(len(partition.groups))
        evaluator.simulate(evaluator.uniform_options(partition.cap_mb))


def search_by_simulation(
    evaluator: Evaluator, budget: Budget, uniform_starts: Sequence[UniformPartition]
) -> Cuts:
    """Return the best contiguous groups found by local search from several starts.

    `uniform_starts`: starts beside those that the surrogate proposes.
    """
    main = select_main_dtype(evaluator)
    starts = list(dict.fromkeys((*_propose(main), *_to_cuts(main, uniform_starts))))
    rated: list[tuple[float, Cuts]] = []
    for cuts in starts:
        if main.caps(cuts) is not None and (not rated or budget.pay(len(cuts))):
            rated.append((main.simulate(cuts), cuts))
    rated = sorted(rated) or [(main.simulate((len(main.gradients),)), (len(main.gradients),))]
    best_s, best = rated[0]
    for _, start in rated[:STARTS]:
        near_s, cuts_near = _climb(main, start, budget)
        if near_s < best_s * (1 - STEP_ROUNDING):
            best_s, best = near_s, cuts_near
    if evaluator.workers == 1:
        return best
    starts_s = [evaluator.outcomes[p.groups].step_time_s for p in uniform_starts]
    uniform_s = min(starts_s, default=best_s)
    return _reduce_buckets(
        main, max(best_s, min(best_s * (1 + FEWER_TOLERANCE), uniform_s)), budget
    )


def _reduce_buckets(main: MainDtype, limit_s: float, budget: Budget) -> Cuts:
    """Return a list with as few buckets as a limit of the step time allows."""
    _, _, best = min((len(c), step_s, c) for c, step_s in main.steps_s.items() if step_s <= limit_s)
    budget.remaining = max(budget.remaining, FOR_FEWER * budget.cost(len(best)))
    improved = True
    while improved:
        improved = False
        ends = best[:-1]
        for candidate in sorted(
            ((*ends[:i], *best[i + 1 :]) for i in range(len(ends))), key=main.predict_step_s
        ):
            if main.caps(candidate) is None:
                continue
            if candidate not in main.steps_s and not budget.pay(len(candidate)):
                return best
            if main.simulate(candidate) <= limit_s:
                best, improved = candidate, True
                break
    return best


def _propose(main: MainDtype) -> Iterator[Cuts]:
    """Best groups by the surrogate, if all-reduces took a share of their time."""
    allreduce = main.evaluator.allreduce
    for share in SHARES if main.evaluator.workers > 1 else SHARES[:1]:

        def read(nbytes: IntArray, share: float = share) -> FloatArray:
            return share * allreduce.interpolate(nbytes)

        def rate(cuts: Cuts, share: float = share) -> float:
            return main.predict_step_s(cuts, share)

        candidates = best_cuts(main.surrogate, read, keep=LABELS)
        yield from candidates[:3]
        yield improve(candidates[0], rate)


def _to_cuts(main: MainDtype, partitions: Iterable[UniformPartition]) -> Iterator[Cuts]:
    for partition in partitions:
        main_tensors = main.gradients.positions
        groups = [tuple(t for t in group if t in main_tensors) for group in partition.groups]
        yield main.gradients.cuts(tuple(group for group in groups if group))


def _climb(main: MainDtype, cuts: Cuts, budget: Budget) -> tuple[float, Cuts]:
    """Take the first neighbour that is better, in the surrogate's order, until none is."""
    best_s = main.simulate(cuts)
    evaluated = {cuts}
    improved = True
    while improved:
        improved = False
        candidates = [
            c for c in dict.fromkeys(neighbourhood(cuts, every=False)) if c not in evaluated
        ]
        for candidate in sorted(candidates, key=main.predict_step_s):
            if main.caps(candidate) is None:
                continue
            if best_s <= budget.target_s or not budget.pay(len(candidate)):
                return best_s, cuts
            evaluated.add(candidate)
            step_s = main.simulate(candidate)
            if step_s < best_s * (1 - GAIN):
                best_s, cuts, improved = step_s, candidate, True
                break
    return best_s, cuts


def search_integer_list(evaluator: Evaluator, budget: Budget, best: Cuts) -> Caps | None:
    """Return the best list of whole MiB that was simulated; None without one."""
    main = select_main_dtype(evaluator)
    allowed = allow_integer_caps(main.gradients)
    allreduce = evaluator.allreduce
    candidates = best_cuts(main.surrogate, allreduce.interpolate, allowed=allowed, keep=LABELS)[:4]
    outcomes: list[tuple[float, Caps]] = []
    windows = [find_windows(main.gradients, main.gradients.groups(cuts)) for cuts in candidates]
    lists = [integer_caps_mb(each) for each in windows if each]
    lists += [tuple(max(1, f(cap)) for cap in main.caps(best) or ()) for f in (round, int)]
    for caps in dict.fromkeys(caps for caps in lists if caps):
        if not outcomes or budget.pay(len(caps)):
            integer_caps = tuple(float(cap) for cap in caps)
            outcomes.append((main.outcome(integer_caps).step_time_s, integer_caps))
    return min(outcomes)[1] if outcomes else None
