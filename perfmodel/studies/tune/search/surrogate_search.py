"""The best list of caps where only the simulation knows: the recurrence proposes, it disposes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.studies.run.prepared import Stepped
from perfmodel.studies.tune.caps import Uniform, caps_mb, whole_caps_mb, windows_of
from perfmodel.studies.tune.choice.tie_breaking import FEWER
from perfmodel.studies.tune.objective.evaluator import SAME, Evaluator, Outcome, reduced
from perfmodel.studies.tune.objective.gradients import Cuts, Row
from perfmodel.studies.tune.objective.surrogate import StepSurrogate, neighbours
from perfmodel.studies.tune.search.exact import best_cuts, closed_by_whole
from perfmodel.studies.tune.search.local_search import improved, neighbours_of

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


def purse_of(bench: Evaluator, sample: Stepped, bound_s: float | None) -> Budget:
    """Return how much work may be spent.

    Parameters
    ----------
    sample : Stepped
        A step that was simulated.
    bound_s : float, optional
        That no step is below; seconds.
    """
    ranks = sum(len(each.ranks) for each in sample.plan.classes) if sample.counted > 1 else 0
    crowded = any(one.beside or one.traffic for one in bench.prepared.sized.happening)
    weight = sample.steps * (1 + ranks / 200) * (CROWD if crowded else 1)
    if bench.costs.in_order:  # message by message
        weight *= MESSAGES * bench.prepared.size.gpus
    per_step = weight * len(sample.plan.tasks)
    shared = TASKS_OF_SHARING if bench.workers > 1 else 3
    shared = SHARING_IN_CROWD if crowded else shared
    least = (FEWEST_IN_CROWD if crowded else FEWEST) * (
        per_step + weight * shared * len(reduced(sample))
    )
    target_s = 0.0 if bound_s is None else bound_s * (1 + NEAR)
    work = WORK_BY_MESSAGE if bench.costs.in_order else WORK
    return Budget(max(work, least), per_step, weight * shared, target_s)


@dataclass
class MainDtype:
    """Gradients of the dtype that has most bytes, which lists are made for.

    Where all gradients are of one dtype these are all, and groups of them are the buckets. Else
    the others fill buckets of their own, with the same caps.
    """

    bench: Evaluator
    row: Row
    clock: StepSurrogate
    lists: dict[Cuts, tuple[float, ...] | None] = field(default_factory=dict)
    steps_s: dict[Cuts, float] = field(default_factory=dict)

    def caps(self, cuts: Cuts) -> tuple[float, ...] | None:
        """Return the list that makes groups of neighbours; None if none does."""
        if cuts not in self.lists:
            windows = windows_of(self.row, self.row.groups(cuts))
            self.lists[cuts] = None if windows is None else caps_mb(windows)
        return self.lists[cuts]

    def guess(self, cuts: Cuts, share: float = 1.0) -> float:
        """Step time by the recurrence."""
        costs = self.bench.costs
        return self.clock.step_s(neighbours(self.clock, cuts), lambda n: share * costs.time_s(n))

    def simulate(self, cuts: Cuts) -> float:
        """Step time by the simulation; infinite if no list makes these groups."""
        if cuts not in self.steps_s:
            caps = self.caps(cuts)
            step_s = float("inf") if caps is None else self.outcome(caps).step_time_s
            self.steps_s[cuts] = step_s
        return self.steps_s[cuts]

    def outcome(self, caps: tuple[float, ...]) -> Outcome:
        """Simulate a list."""
        return self.bench.simulate(self.bench.listed(caps))


def leading(bench: Evaluator) -> MainDtype:
    """Find the dtype with most bytes."""
    row, clock = bench.row, bench.clock
    if row.single:
        return MainDtype(bench, row, clock)
    share: dict[str, int] = {}
    for dtype, nbytes in zip(row.dtypes, row.nbytes, strict=True):
        share[dtype] = share.get(dtype, 0) + nbytes
    dtype = max(share, key=lambda name: share[name])
    mine = [place for place, each in enumerate(row.dtypes) if each == dtype]
    part = Row(
        tuple(row.tensors[i] for i in mine),
        tuple(row.nbytes[i] for i in mine),
        tuple(row.dtypes[i] for i in mine),
        row.flipped,
    )
    ready = tuple(clock.ready_s[i] for i in mine)
    out = tuple(clock.out_s[i] for i in mine)
    return MainDtype(bench, part, replace(clock, row=part, ready_s=ready, out_s=out))


def simulate_uniform(bench: Evaluator, uniforms: Sequence[Uniform], purse: Budget) -> None:
    """Simulate caps for all buckets: every one, or those that the recurrence holds for best."""
    affordable = FOR_CAPS * purse.left
    order = uniforms
    if sum(purse.cost(len(one.groups)) for one in uniforms) > affordable:
        few = max(1, int(affordable / purse.cost(4)) // 4)
        usual = [one for cap in USUAL_MB for one in uniforms if one.window.holds(cap)]
        spread = uniforms[len(uniforms) // 4 :: max(1, len(uniforms) // few)]
        ranked = sorted(uniforms, key=lambda one: bench.guess(one.groups))
        first = (*usual, *ranked) if few < len(usual) else (*spread, *usual, *ranked)
        order = list(dict.fromkeys(first))
    kept = purse.left - affordable
    for one in order:
        is_too_much = purse.left - purse.cost(len(one.groups)) < kept
        if is_too_much and bench.tried.keys() & {each.groups for each in uniforms}:
            return
        purse.pay(len(one.groups))
        bench.simulate(bench.uniform(one.cap_mb))


def list_by_simulation(bench: Evaluator, purse: Budget, uniform: Sequence[Uniform]) -> Cuts:
    """Return the best groups of neighbours that were found.

    Parameters
    ----------
    bench : Evaluator
    purse : Budget
    uniform : sequence of Uniform
        To start from, beside what the recurrence proposes.
    """
    lead = leading(bench)
    starts = list(dict.fromkeys((*_proposals(lead), *_as_cuts(lead, uniform))))
    rated: list[tuple[float, Cuts]] = []
    for cuts in starts:
        if lead.caps(cuts) is not None and (not rated or purse.pay(len(cuts))):
            rated.append((lead.simulate(cuts), cuts))
    rated = sorted(rated) or [(lead.simulate((len(lead.row),)), (len(lead.row),))]
    best_s, best = rated[0]
    for _, start in rated[:STARTS]:
        found_s, found = _climbed(lead, start, purse)
        if found_s < best_s * (1 - SAME):
            best_s, best = found_s, found
    if bench.workers == 1:
        return best
    of_caps_s = min((bench.tried[one.groups].step_time_s for one in uniform), default=best_s)
    return _fewer(lead, max(best_s, min(best_s * (1 + FEWER), of_caps_s)), purse)


def _fewer(lead: MainDtype, limit_s: float, purse: Budget) -> Cuts:
    """Return the list with fewest buckets that is within a limit, by taking more ends away."""
    _, _, best = min((len(c), step_s, c) for c, step_s in lead.steps_s.items() if step_s <= limit_s)
    purse.left = max(purse.left, FOR_FEWER * purse.cost(len(best)))
    moved = True
    while moved:
        moved = False
        ends = best[:-1]
        for other in sorted(
            ((*ends[:i], *best[i + 1 :]) for i in range(len(ends))), key=lead.guess
        ):
            if lead.caps(other) is None:
                continue
            if other not in lead.steps_s and not purse.pay(len(other)):
                return best
            if lead.simulate(other) <= limit_s:
                best, moved = other, True
                break
    return best


def _proposals(lead: MainDtype) -> Iterator[Cuts]:
    """What the recurrence holds for best, if all-reduces took this or that share of their time."""
    costs = lead.bench.costs
    for share in SHARES if lead.bench.workers > 1 else SHARES[:1]:
        ways = best_cuts(lead.clock, lambda n, s=share: s * costs.estimate(n), keep=LABELS)  # type: ignore[misc]
        yield from ways[:3]
        yield improved(ways[0], lambda cuts, s=share: lead.guess(cuts, s))  # type: ignore[misc]


def _as_cuts(lead: MainDtype, uniform: Iterable[Uniform]) -> Iterator[Cuts]:
    for one in uniform:
        mine = [tuple(t for t in group if t in lead.row.places) for group in one.groups]
        yield lead.row.cuts(tuple(group for group in mine if group))


def _climbed(lead: MainDtype, cuts: Cuts, purse: Budget) -> tuple[float, Cuts]:
    """Follow small changes that help, those first that the recurrence likes."""
    best_s = lead.simulate(cuts)
    seen = {cuts}
    moved = True
    while moved:
        moved = False
        near = [c for c in dict.fromkeys(neighbours_of(cuts, every=False)) if c not in seen]
        for other in sorted(near, key=lead.guess):
            if lead.caps(other) is None:
                continue
            if best_s <= purse.target_s or not purse.pay(len(other)):
                return best_s, cuts
            seen.add(other)
            found_s = lead.simulate(other)
            if found_s < best_s * (1 - GAIN):
                best_s, cuts, moved = found_s, other, True
                break
    return best_s, cuts


def whole_list_by_simulation(
    bench: Evaluator, purse: Budget, best: Cuts
) -> tuple[float, ...] | None:
    """Return the best list of whole MiB that was found."""
    lead = leading(bench)
    allowed = closed_by_whole(lead.row)
    costs = bench.costs
    ways = best_cuts(lead.clock, costs.estimate, allowed=allowed, keep=LABELS)[:4]
    found: list[tuple[float, tuple[float, ...]]] = []
    lists = [whole_caps_mb(w) for c in ways if (w := windows_of(lead.row, lead.row.groups(c)))]
    near = lead.caps(best) or ()
    lists += [tuple(max(1, round(cap)) for cap in near), tuple(max(1, int(cap)) for cap in near)]
    for caps in dict.fromkeys(one for one in lists if one):
        if not found or purse.pay(len(caps)):
            whole = tuple(float(cap) for cap in caps)
            found.append((lead.outcome(whole).step_time_s, whole))
    return min(found)[1] if found else None
