"""The best list of caps where the surrogate is not exact: it proposes, the simulation decides.

Where gradients of several dtypes share a list, a local search varies it cap by cap.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate

from perfmodel.arrays import FloatArray, IntArray
from perfmodel.memo import once
from perfmodel.studies.run.steps.simulate_step import ReportedRun
from perfmodel.studies.run.steps.step_parts import summed
from perfmodel.studies.tune.caps import (
    Caps,
    Cuts,
    GradientOrder,
    Groups,
    UniformPartition,
    Window,
    as_bytes,
    assign_buckets,
    caps_mb,
    find_windows,
    integer_caps_mb,
    round_cap_mb,
    with_caps,
)
from perfmodel.studies.tune.evaluator import (
    FEWER_TOLERANCE,
    Evaluator,
    read_reductions,
)
from perfmodel.studies.tune.exact import allow_integer_caps, best_cuts, improve, neighbourhood
from perfmodel.studies.tune.model import STEP_ROUNDING, STEP_TOLERANCE
from perfmodel.studies.tune.surrogate import StepSurrogate, buckets_of_cuts
from perfmodel.training.ddp.options import MIB

MOST_TASKS = 400_000.0
"""Budget of simulated tasks: a few seconds."""
MOST_TASKS_BY_MESSAGE = 1_600_000.0
"""The same where every message is simulated: some ten seconds."""
FEWEST_STEPS, FEWEST_STEPS_IN_CROWD = 16, 4
"""Fewest simulations of PyTorch's default; the latter where others use the network."""
TASKS_ALONE, TASKS_SHARING, TASKS_IN_CROWD = 3, 40, 200
"""Cost of an all-reduce: alone, where it shares links with the next one, and where others use the
network; tasks."""
CROWD_FACTOR = 8
"""Cost of a task where others use the network; tasks."""
COST_PER_RANK = 1.5
"""Cost of a task, per rank, where every message is simulated; tasks."""
SHARE_FOR_CAPS = 0.6
"""Largest share of the budget for uniform caps, where not all of them can be simulated."""
USUAL_CAPS_MB = (25.0, 50.0, 12.0, 100.0)
"""Caps that are simulated whatever the surrogate predicts, if only a few can be."""
TIME_SHARES = (1.0, 0.75, 0.5, 0.3)
"""Shares of an all-reduce's time that the surrogate counts, where several go on at a time."""
STEPS_FOR_FEWER = 12
"""Simulations reserved for removing bucket ends that gain next to nothing."""
PROPOSED_LABELS = 8
MOST_STARTS = 3
"""Lists that local search starts from."""
LEAST_CLIMB = 1e-5
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


def make_budget(evaluator: Evaluator, stepped: ReportedRun, bound_s: float | None) -> Budget:
    """Return the budget of a search.

    `stepped`: a step that was simulated.
    `bound_s`: that no step is below; seconds.
    """
    in_order = evaluator.allreduce.in_order  # then every message is simulated
    ranks = sum(len(each.ranks) for each in stepped.plan.classes) if stepped.counted > 1 else 0
    crowded = any(d.background_job or d.traffic for d in evaluator.sized.disturbances)
    weight = stepped.steps * (1 + ranks / 200) * (CROWD_FACTOR if crowded else 1)
    weight *= COST_PER_RANK * evaluator.sized.size.gpus if in_order else 1
    per_bucket = weight * (
        TASKS_IN_CROWD if crowded else TASKS_SHARING if evaluator.workers > 1 else TASKS_ALONE
    )
    per_step = weight * len(stepped.plan.tasks)
    least = (FEWEST_STEPS_IN_CROWD if crowded else FEWEST_STEPS) * (
        per_step + per_bucket * len(read_reductions(stepped))
    )
    target_s = 0.0 if bound_s is None else bound_s * (1 + STEP_TOLERANCE)
    most = MOST_TASKS_BY_MESSAGE if in_order else MOST_TASKS
    return Budget(max(most, least), per_step, per_bucket, target_s)


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

        def find() -> Caps | None:
            windows = find_windows(self.gradients, self.gradients.groups(cuts))
            return None if windows is None else caps_mb(windows)

        return once(self.lists, cuts, find)

    def predict_step_s(self, cuts: Cuts, share: float = 1.0) -> float:
        """Step time by the surrogate; seconds."""
        allreduce = self.evaluator.allreduce
        return self.surrogate.step_s(
            buckets_of_cuts(self.surrogate, cuts), lambda n: share * allreduce.time_s(n)
        )

    def simulate(self, cuts: Cuts) -> float:
        """Step time by the simulation; seconds, infinite if no list makes these groups."""
        caps = self.caps(cuts)
        return once(
            self.steps_s,
            cuts,
            lambda: float("inf") if caps is None else self.evaluator.list_step_s(caps),
        )


def select_main_dtype(evaluator: Evaluator) -> MainDtype:
    """Return the gradients of the dtype with most bytes."""
    gradients, surrogate = evaluator.gradients, evaluator.surrogate
    share = summed(zip(gradients.dtypes, gradients.nbytes, strict=True))
    largest = max(share, key=share.__getitem__)
    mine = [position for position, dtype in enumerate(gradients.dtypes) if dtype == largest]
    part = GradientOrder(
        tuple(gradients.tensors[i] for i in mine),
        tuple(gradients.nbytes[i] for i in mine),
        tuple(gradients.dtypes[i] for i in mine),
        gradients.reverse_filled,
    )
    return MainDtype(
        evaluator,
        part,
        replace(
            surrogate,
            gradients=part,
            ready_s=tuple(surrogate.ready_s[i] for i in mine),
            out_s=tuple(surrogate.out_s[i] for i in mine),
        ),
    )


def simulate_uniform_caps(
    evaluator: Evaluator, partitions: Sequence[UniformPartition], budget: Budget
) -> None:
    """Simulate uniform caps: all, or within the budget those that the surrogate ranks first."""
    affordable = SHARE_FOR_CAPS * budget.remaining
    reserve, order = budget.remaining - affordable, partitions
    if sum(budget.cost(len(partition.groups)) for partition in partitions) > affordable:
        count = max(1, int(affordable / budget.cost(4)) // 4)
        usual = [p for cap in USUAL_CAPS_MB for p in partitions if p.window.contains(cap)]
        spread = partitions[len(partitions) // 4 :: max(1, len(partitions) // count)]
        ranked = sorted(partitions, key=lambda p: evaluator.predict_step_s(p.groups))
        order = list(dict.fromkeys((*(spread if count >= len(usual) else ()), *usual, *ranked)))
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
    rated: list[tuple[float, Cuts]] = []
    for cuts in dict.fromkeys((*_propose(main), *_to_cuts(main, uniform_starts))):
        if main.caps(cuts) is not None and (not rated or budget.pay(len(cuts))):
            rated.append((main.simulate(cuts), cuts))
    whole = (len(main.gradients),)
    rated = sorted(rated) or [(main.simulate(whole), whole)]
    best_s, best = rated[0]
    for _, start in rated[:MOST_STARTS]:
        near_s, cuts_near = _climb(main, start, budget)
        if near_s < best_s * (1 - STEP_ROUNDING):
            best_s, best = near_s, cuts_near
    if evaluator.workers == 1:
        return best
    starts_s = (evaluator.outcomes[p.groups].step_time_s for p in uniform_starts)
    limit_s = max(best_s, min(best_s * (1 + FEWER_TOLERANCE), min(starts_s, default=best_s)))
    return _reduce_buckets(main, limit_s, budget)


def _reduce_buckets(main: MainDtype, limit_s: float, budget: Budget) -> Cuts:
    """Return a list with as few buckets as a limit of the step time allows."""
    _, _, best = min((len(c), step_s, c) for c, step_s in main.steps_s.items() if step_s <= limit_s)
    budget.remaining = max(budget.remaining, STEPS_FOR_FEWER * budget.cost(len(best)))
    found: Cuts | None = best
    known = set(main.steps_s)
    while found is not None:
        best, fewer = found, [(*found[:i], *found[i + 1 :]) for i in range(len(found) - 1)]
        found = _first_within(main, fewer, limit_s, known, budget)
    return best


def _climb(main: MainDtype, cuts: Cuts, budget: Budget) -> tuple[float, Cuts]:
    """Take the first neighbour that is better, in the surrogate's order, until none is."""
    best_s, known = main.simulate(cuts), {cuts}
    while best_s > budget.target_s:
        near = [c for c in dict.fromkeys(neighbourhood(cuts, every=False)) if c not in known]
        found = _first_within(main, near, best_s * (1 - LEAST_CLIMB), known, budget)
        if found is None:
            break
        best_s, cuts = main.simulate(found), found
    return best_s, cuts


def _first_within(
    main: MainDtype, candidates: Iterable[Cuts], limit_s: float, known: set[Cuts], budget: Budget
) -> Cuts | None:
    """Return the first candidate, in the surrogate's order, whose simulated step is short enough.

    `known`: what was paid for; extended here.
    None: no candidate is, or the budget does not hold the next.
    """
    for candidate in sorted(candidates, key=main.predict_step_s):
        if main.caps(candidate) is None:
            continue
        if candidate not in known and not budget.pay(len(candidate)):
            return None
        known.add(candidate)
        if main.simulate(candidate) <= limit_s:
            return candidate
    return None


def _propose(main: MainDtype) -> Iterator[Cuts]:
    """Best groups by the surrogate, if all-reduces took a share of their time."""
    allreduce = main.evaluator.allreduce
    for share in TIME_SHARES if main.evaluator.workers > 1 else TIME_SHARES[:1]:

        def read(nbytes: IntArray, share: float = share) -> FloatArray:
            return share * allreduce.interpolate(nbytes)

        candidates = best_cuts(main.surrogate, read, keep=PROPOSED_LABELS)
        yield from candidates[:3]
        yield improve(candidates[0], partial(main.predict_step_s, share=share))


def _to_cuts(main: MainDtype, partitions: Iterable[UniformPartition]) -> Iterator[Cuts]:
    for partition in partitions:
        groups = (
            tuple(t for t in group if t in main.gradients.positions) for group in partition.groups
        )
        yield main.gradients.cuts(tuple(filter(None, groups)))


def search_integer_list(evaluator: Evaluator, budget: Budget, best: Cuts) -> Caps | None:
    """Return the best list of whole MiB that was simulated; None without one."""
    main, read = select_main_dtype(evaluator), evaluator.allreduce.interpolate
    candidates = best_cuts(
        main.surrogate, read, allowed=allow_integer_caps(main.gradients), keep=PROPOSED_LABELS
    )[:4]
    windows = [find_windows(main.gradients, main.gradients.groups(cuts)) for cuts in candidates]
    lists = [integer_caps_mb(each) for each in windows if each]
    lists += [tuple(max(1, f(cap)) for cap in main.caps(best) or ()) for f in (round, int)]
    outcomes: list[tuple[float, Caps]] = []
    for caps in dict.fromkeys(tuple(map(float, caps)) for caps in lists if caps):
        if not outcomes or budget.pay(len(caps)):
            outcomes.append((evaluator.list_step_s(caps), caps))
    return min(outcomes)[1] if outcomes else None


# ---------------------------------------------------------------- lists that dtypes share

# The j-th cap closes the j-th bucket of each dtype, with the first gradient that brings it to the
# cap. So only caps that are sums of gradients from the start of one of these buckets differ.

Bytes = tuple[int, ...]

MOST_RATED_LISTS = 1500
"""Lists that the surrogate rates."""
CAP_SHIFTS = (-3, -2, -1, 1, 2, 3)
"""How far a cap is moved among those that differ."""
MOST_SIMULATED_LISTS = 12


def search_shared_lists(evaluator: Evaluator, starts: Sequence[Caps]) -> list[Caps]:
    """Return lists of caps, MiB, with the shortest steps by the surrogate, the best first.

    `evaluator`: of gradients of several dtypes.
    `starts`: lists to start from; MiB.
    """
    gradients = evaluator.gradients
    # Sizes of the gradients of each dtype, in the order in which they fill buckets.
    queues = [
        tuple(n for n, own in zip(gradients.nbytes, gradients.dtypes, strict=True) if own == dtype)
        for dtype in dict.fromkeys(gradients.dtypes)
    ]
    queues = [sizes[:: -1 if gradients.reverse_filled else 1] for sizes in queues]
    rated: dict[Groups, tuple[float, Bytes]] = {}

    def rate(caps: Bytes) -> tuple[float, Bytes]:
        groups = assign_buckets(
            evaluator.workload, with_caps(evaluator.options, tuple(map(float, caps)))
        )
        if groups not in rated:
            rated[groups] = evaluator.predict_step_s(groups), caps
        return rated[groups][0], caps

    for start in starts:
        best = rate(_normalise(queues, [int(cap) for cap in as_bytes(start)]))
        while len(rated) < MOST_RATED_LISTS:
            nearest = min(map(rate, _vary(queues, best[1])), default=best)
            if nearest[0] >= best[0]:
                break
            best = nearest
    return [_to_mib(queues, caps) for _, caps in sorted(rated.values())[:MOST_SIMULATED_LISTS]]


def _vary(queues: Sequence[Bytes], caps: Bytes) -> Iterator[Bytes]:
    """Yield the lists with one cap removed, replaced or inserted."""
    for at, (cap, sums) in enumerate(_sums_at_each(queues, caps)):
        current = bisect_left(sums, cap)
        yield _normalise(queues, (*caps[:at], *caps[at + 1 :]))
        for position in {current + by for by in CAP_SHIFTS} | {len(sums) // 2, len(sums) - 1}:
            if 0 <= position < len(sums) and position != current:
                yield _normalise(queues, (*caps[:at], sums[position], *caps[at + 1 :]))
                yield _normalise(queues, (*caps[:at], sums[position], *caps[at:]))


def _normalise(queues: Sequence[Bytes], caps: Sequence[int]) -> Bytes:
    """Return the list with one cap per bucket: the last one repeated, unused ones dropped."""
    remaining, normal = list(queues), list[int]()
    while any(remaining):
        cap = caps[min(len(normal), len(caps) - 1)] if caps else 1
        normal.append(cap)
        remaining = [_after_bucket(queue, cap) for queue in remaining]
    return tuple(normal)


def _sums_at_each(queues: Sequence[Bytes], caps: Bytes) -> Iterator[tuple[int, list[int]]]:
    """Yield each cap of a list with those that differ from it: sums of what is not in a bucket."""
    remaining = list(queues)
    for cap in caps:
        yield cap, sorted({nbytes for queue in remaining for nbytes in accumulate(queue)})
        remaining = [_after_bucket(queue, cap) for queue in remaining]


def _after_bucket(queue: Bytes, cap: int) -> Bytes:
    """Return the gradients after the bucket that a cap closes."""
    return queue[bisect_left(list(accumulate(queue)), cap) + 1 :]


def _to_mib(queues: Sequence[Bytes], caps: Bytes) -> Caps:
    """Write a list in short numbers, each cap within the range that makes the same buckets."""
    caps_mb = []
    for cap, sums in _sums_at_each(queues, caps):
        position = bisect_left(sums, cap)
        most = sums[position] if position < len(sums) else float(max(cap, MIB))
        caps_mb.append(round_cap_mb(Window(sums[position - 1] if position else 0, most)))
    while len(caps_mb) > 1 and caps_mb[-1] == caps_mb[-2]:
        caps_mb.pop()  # PyTorch repeats the last one
    return tuple(caps_mb)
