"""The best list of caps where only the simulation knows: the recurrence proposes, it disposes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.studies.run.prepared import Stepped
from perfmodel.studies.tune.caps import UniformPartition, caps_mb, find_windows, integer_caps_mb
from perfmodel.studies.tune.choice.tie_breaking import FEWER
from perfmodel.studies.tune.objective.evaluator import SAME, Evaluator, Outcome, read_reductions
from perfmodel.studies.tune.objective.gradients import Cuts, GradientOrder
from perfmodel.studies.tune.objective.surrogate import StepSurrogate, buckets_of_cuts
from perfmodel.studies.tune.search.exact import allow_integer_caps, best_cuts
from perfmodel.studies.tune.search.local_search import improve, neighbourhood

WORK = 400_000.0
"""Work to simulate in all, in tasks: a few seconds."""
WORK_BY_MESSAGE = 1_600_000.0
"""The same where every message is simulated: some ten seconds."""
FEWEST, FEWEST_IN_CROWD = 16, 4
"""Simulations of PyTorch's default, whatever one costs; fewer where others use the network."""
TASKS_OF_SHARING = 40
"""Tasks that an all-reduce is worth which shares links with the next one."""
CROWD, SHARING_IN_CROWD = 8, 200
"""Tasks that a task, and an all-reduce, are worth where others use the network."""
MESSAGES = 1.5
"""Tasks that a task is worth, per rank, where every message is simulated."""
FOR_CAPS = 0.6
"""Share of the work that caps for all buckets may take, if they are too many for all."""
USUAL_MB = (25.0, 50.0, 12.0, 100.0)
"""Caps that are simulated whatever the recurrence says of them, if no more than a few can be."""
SHARES = (1.0, 0.75, 0.5, 0.3)
"""Of an all-reduce's time that counts, where several go on at a time."""
FOR_FEWER = 12
"""Simulations that are left for taking ends away that gain next to nothing."""
LABELS = 8
STARTS = 3
"""Lists that are improved step by step."""
NEAR = 5e-4
"""Relative distance from the lower bound at which a list is good enough."""
GAIN = 1e-5
"""Relative gain that is worth following."""


@dataclass
class Budget:
    """Work that is left for simulations.

    Parameters
    ----------
    left : float
        Tasks.
    per_step : float
        Tasks of a step beside its buckets, times steps.
    per_bucket : float
    target_s : float
        A step that is good enough; seconds.
    """

    left: float
    per_step: float
    per_bucket: float
    target_s: float

    def cost(self, buckets: int) -> float:
        """Tasks that simulating so many buckets takes."""
        return self.per_step + self.per_bucket * buckets

    def pay(self, buckets: int) -> bool:
        """Take the work of one simulation, if there is enough."""
        self.left -= self.cost(buckets)
        return self.left >= 0


def make_budget(evaluator: Evaluator, stepped: Stepped, bound_s: float | None) -> Budget:
    """Return how much work may be spent.

    Parameters
    ----------
    stepped : Stepped
        A step that was simulated.
    bound_s : float, optional
        That no step is below; seconds.
    """
    ranks = sum(len(each.ranks) for each in stepped.plan.classes) if stepped.counted > 1 else 0
    crowded = any(
        disturbance.beside or disturbance.traffic
        for disturbance in evaluator.prepared.sized.happening
    )
    weight = stepped.steps * (1 + ranks / 200) * (CROWD if crowded else 1)
    if evaluator.allreduce.in_order:  # message by message
        weight *= MESSAGES * evaluator.prepared.size.gpus
    per_step = weight * len(stepped.plan.tasks)
    per_allreduce = TASKS_OF_SHARING if evaluator.workers > 1 else 3
    per_allreduce = SHARING_IN_CROWD if crowded else per_allreduce
    minimum = (FEWEST_IN_CROWD if crowded else FEWEST) * (
        per_step + weight * per_allreduce * len(read_reductions(stepped))
    )
    target_s = 0.0 if bound_s is None else bound_s * (1 + NEAR)
    maximum = WORK_BY_MESSAGE if evaluator.allreduce.in_order else WORK
    return Budget(max(maximum, minimum), per_step, weight * per_allreduce, target_s)


@dataclass
class MainDtype:
    """Gradients of the dtype that has most bytes, which lists are made for.

    Where all gradients are of one dtype these are all, and groups of them are the buckets. Else
    the others fill buckets of their own, with the same caps.
    """

    evaluator: Evaluator
    gradients: GradientOrder
    surrogate: StepSurrogate
    lists: dict[Cuts, tuple[float, ...] | None] = field(default_factory=dict)
    steps_s: dict[Cuts, float] = field(default_factory=dict)

    def caps(self, cuts: Cuts) -> tuple[float, ...] | None:
        """Return the list that makes groups of neighbours; None if none does."""
        if cuts not in self.lists:
            windows = find_windows(self.gradients, self.gradients.groups(cuts))
            self.lists[cuts] = None if windows is None else caps_mb(windows)
        return self.lists[cuts]

    def predict_step_s(self, cuts: Cuts, share: float = 1.0) -> float:
        """Step time by the recurrence."""
        allreduce = self.evaluator.allreduce
        return self.surrogate.step_s(
            buckets_of_cuts(self.surrogate, cuts), lambda n: share * allreduce.time_s(n)
        )

    def simulate(self, cuts: Cuts) -> float:
        """Step time by the simulation; infinite if no list makes these groups."""
        if cuts not in self.steps_s:
            caps = self.caps(cuts)
            step_s = float("inf") if caps is None else self.outcome(caps).step_time_s
            self.steps_s[cuts] = step_s
        return self.steps_s[cuts]

    def outcome(self, caps: tuple[float, ...]) -> Outcome:
        """Simulate a list."""
        return self.evaluator.simulate(self.evaluator.list_options(caps))


def select_main_dtype(evaluator: Evaluator) -> MainDtype:
    """Find the dtype with most bytes."""
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
    """Simulate caps for all buckets: every one, or those that the recurrence holds for best."""
    affordable = FOR_CAPS * budget.left
    order = partitions
    if sum(budget.cost(len(partition.groups)) for partition in partitions) > affordable:
        count = max(1, int(affordable / budget.cost(4)) // 4)
        usual_caps = [
            partition
            for cap in USUAL_MB
            for partition in partitions
            if partition.window.contains(cap)
        ]
        spread = partitions[len(partitions) // 4 :: max(1, len(partitions) // count)]
        ranked = sorted(
            partitions, key=lambda partition: evaluator.predict_step_s(partition.groups)
        )
        first = (
            (*usual_caps, *ranked) if count < len(usual_caps) else (*spread, *usual_caps, *ranked)
        )
        order = list(dict.fromkeys(first))
    reserve = budget.left - affordable
    for partition in order:
        exceeds = budget.left - budget.cost(len(partition.groups)) < reserve
        if exceeds and evaluator.outcomes.keys() & {each.groups for each in partitions}:
            return
        budget.pay(len(partition.groups))
        evaluator.simulate(evaluator.uniform_options(partition.cap_mb))


def search_by_simulation(
    evaluator: Evaluator, budget: Budget, uniform_starts: Sequence[UniformPartition]
) -> Cuts:
    """Return the best groups of neighbours that were found.

    Parameters
    ----------
    evaluator : Evaluator
    budget : Budget
    uniform_starts : sequence of UniformPartition
        To start from, beside what the recurrence proposes.
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
        if near_s < best_s * (1 - SAME):
            best_s, best = near_s, cuts_near
    if evaluator.workers == 1:
        return best
    uniform_s = min(
        (evaluator.outcomes[partition.groups].step_time_s for partition in uniform_starts),
        default=best_s,
    )
    return _reduce_buckets(main, max(best_s, min(best_s * (1 + FEWER), uniform_s)), budget)


def _reduce_buckets(main: MainDtype, limit_s: float, budget: Budget) -> Cuts:
    """Return the list with fewest buckets that is within a limit, by taking more ends away."""
    _, _, best = min((len(c), step_s, c) for c, step_s in main.steps_s.items() if step_s <= limit_s)
    budget.left = max(budget.left, FOR_FEWER * budget.cost(len(best)))
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
    """What the recurrence holds for best, if all-reduces took this or that share of their time."""
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
        groups = [
            tuple(t for t in group if t in main.gradients.positions) for group in partition.groups
        ]
        yield main.gradients.cuts(tuple(group for group in groups if group))


def _climb(main: MainDtype, cuts: Cuts, budget: Budget) -> tuple[float, Cuts]:
    """Follow small changes that help, those first that the recurrence likes."""
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


def search_integer_list(
    evaluator: Evaluator, budget: Budget, best: Cuts
) -> tuple[float, ...] | None:
    """Return the best list of whole MiB that was found."""
    main = select_main_dtype(evaluator)
    allowed = allow_integer_caps(main.gradients)
    allreduce = evaluator.allreduce
    candidates = best_cuts(main.surrogate, allreduce.interpolate, allowed=allowed, keep=LABELS)[:4]
    outcomes: list[tuple[float, tuple[float, ...]]] = []
    lists = [
        integer_caps_mb(windows)
        for cuts in candidates
        if (windows := find_windows(main.gradients, main.gradients.groups(cuts)))
    ]
    best_caps = main.caps(best) or ()
    lists += [
        tuple(max(1, round(cap)) for cap in best_caps),
        tuple(max(1, int(cap)) for cap in best_caps),
    ]
    for caps in dict.fromkeys(caps for caps in lists if caps):
        if not outcomes or budget.pay(len(caps)):
            integer_caps = tuple(float(cap) for cap in caps)
            outcomes.append((main.outcome(integer_caps).step_time_s, integer_caps))
    return min(outcomes)[1] if outcomes else None
