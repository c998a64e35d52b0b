"""Why a candidate scales worse at one size than at a larger one: a sentence for each.

More nodes rarely raise efficiency. Where they do, the library usually takes another algorithm for
its messages: NCCL's tuner compares estimates of its own, which may prefer what is slower.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from perfmodel.errors import PerfmodelError
from perfmodel.scenario import Scenario, change_scenario
from perfmodel.studies.plan.model import PlanOption
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.steps.one_size import simulate_size
from perfmodel.studies.run.steps.simulate_step import timer_of
from perfmodel.studies.run.steps.sized_job import SizedJob, size_job
from perfmodel.training.plan.step_plan import Collective
from perfmodel.training.strategies import STRATEGIES
from perfmodel.units import format_bytes, format_time

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile

DIP = 0.05
"""Efficiency that has to be missing beside a larger size, before a reader wonders."""
FASTER = 1.02
"""Times as quick as another algorithm makes a step before it is worth naming."""

_ALGORITHMS = {"ring": "Ring", "tree": "Tree"}
"""Algorithms that a user can ask for by NCCL_ALGO, as NCCL writes them."""

MiB = 2**20

Size = tuple[str, int]
"""A candidate and its nodes."""


@dataclass(frozen=True, slots=True)
class CommonCollective:
    """The kind of collective that takes most of a step's communication.

    `nbytes`: mean of its messages.
    """

    op: str
    algorithm: str
    nbytes: float
    time_s: float


def explain_dips(
    options: Sequence[PlanOption],
    scenarios: Mapping[Size, Scenario | None],
    profile: Profile | None,
) -> Iterator[str]:
    """Yield a sentence for each option that is much less efficient than a larger one."""
    for option, larger in _dips(options):
        own, other = (scenarios[each.candidate, each.nodes] for each in (option, larger))
        assert option.step is not None
        assert larger.step is not None
        assert own is not None  # it has a step
        assert other is not None
        low, high = (f"{100 * (e.step.efficiency or 0):.0f} %" for e in (option, larger) if e.step)
        text = (
            f"{option.candidate} is less efficient on {option.nodes:,} nodes ({low}) than on "
            f"{larger.nodes:,} ({high})"
        )
        reason = _other_algorithm(own, other, profile)
        if not reason:
            reason = (
                f"its limit there is {option.step.bottleneck}; on more {larger.step.bottleneck}"
            )
        yield f"{text}: {reason}."


def _dips(options: Sequence[PlanOption]) -> Iterator[tuple[PlanOption, PlanOption]]:
    """Options with the next larger one of the candidate, where that is much more efficient."""
    stepped = [each for each in options if each.step and each.step.efficiency is not None]
    for option, larger in pairwise(stepped):
        assert option.step is not None
        assert larger.step is not None
        more = (larger.step.efficiency or 0.0) - (option.step.efficiency or 0.0)
        if option.candidate == larger.candidate and option.nodes < larger.nodes and more >= DIP:
            yield option, larger


def _other_algorithm(smaller: Scenario, larger: Scenario, profile: Profile | None) -> str:
    """Say which algorithm makes the difference, and what the other would; "" where none does."""
    if STRATEGIES[smaller.strategy.kind].loops is not None:
        return ""  # its workers have no step of collectives in common
    try:
        sized = _sized(smaller, profile)
        own, other = _common_collective(sized), _common_collective(_sized(larger, profile))
        if own is None or other is None or own.algorithm == other.algorithm:
            return ""
        library = "NCCL" if smaller.library.name == "nccl" else smaller.library.name
        text = (
            f"there {library} prefers a {own.algorithm.replace('_', ' ')} ({_described(own)}), on "
            f"more nodes a {other.algorithm.replace('_', ' ')} ({_described(other)})"
        )
        return text + _if_named(smaller, other.algorithm, profile)
    except PerfmodelError:
        return ""


def _described(collective: CommonCollective) -> str:
    op, size = collective.op.replace("_", "-"), format_bytes(round(collective.nbytes / MiB) * MiB)
    return f"{size} of {op} in {format_time(collective.time_s)}"


def _if_named(scenario: Scenario, algorithm: str, profile: Profile | None) -> str:
    """Say how long the step is where the user names the algorithm, if that is shorter."""
    env = scenario.library.env
    if scenario.library.name != "nccl" or algorithm not in _ALGORITHMS or "NCCL_ALGO" in env:
        return ""
    name = _ALGORITHMS[algorithm]
    by_name = change_scenario(scenario, {"library.env": {**env, "NCCL_ALGO": name}})
    before_s, after_s = (
        simulate_size(_sized(each, profile), with_first=False, with_limits=False).step_time_s
        for each in (scenario, by_name)
    )
    if before_s < FASTER * after_s:
        return ""
    return (
        f"; with NCCL_ALGO={name} a step would take {format_time(after_s)} instead of "
        f"{format_time(before_s)} by this model, which is not NCCL's own estimate: worth measuring"
    )


def _sized(scenario: Scenario, profile: Profile | None) -> SizedJob:
    inputs = resolve_scenario(scenario, profile, None)
    return size_job(inputs, inputs.sizes[-1])


def _common_collective(sized: SizedJob) -> CommonCollective | None:
    """The operation and algorithm that take most time of a step; None without collectives."""
    plan, timer = sized.plan_for(None), timer_of(sized.setup(), sized.steady_disturbances)
    groups = {each.name: max(each.groups, key=len) for each in plan.communicators}
    total_s: defaultdict[tuple[str, str], float] = defaultdict(float)
    total_bytes, counts = Counter[tuple[str, str]](), Counter[tuple[str, str]]()
    for work in (task.work for task in plan.tasks if isinstance(task.work, Collective)):
        group = groups[work.communicator]
        if len(group) < 2:
            continue
        lowered, time_s = timer.best(work.op, work.nbytes, group, work.root)
        key = str(work.op), lowered.schedule.algorithm
        total_s[key] += time_s * work.times
        total_bytes[key] += work.nbytes * work.times
        counts[key] += work.times
    if not counts:
        return None
    most = max(total_s, key=lambda each: total_s[each])
    return CommonCollective(*most, total_bytes[most] / counts[most], total_s[most] / counts[most])
