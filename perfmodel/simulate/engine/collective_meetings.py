"""Collectives of a plan before and while they run: who has reached them, who is awaited.

A collective starts when all participating rank classes have reached it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from perfmodel.simulate.engine.background import CollectiveArrivals, arrivals_of
from perfmodel.simulate.engine.rank_class import Participants
from perfmodel.simulate.engine.task_graph import StreamState
from perfmodel.training.plan.step_plan import Collective, Compute, RankClass, Task

Member = tuple[StreamState, int, float]
"""A task of a collective: its stream, its index, and when it was ready."""

CollectiveInstance = tuple[int, str, str]
"""A collective of a step: step, key, first class that takes part."""


@dataclass(slots=True)
class ReachedCollective:
    """The tasks of a collective whose classes have reached it, and when each class did."""

    members: list[Member] = field(default_factory=list)
    arrived_s: dict[str, float] = field(default_factory=dict)


class CollectiveMeetings:
    """Who has reached which collective, and which of them are in progress.

    Parameters
    ----------
    participants : mapping
        By communicator and rank class: who takes part with it.
    classes : iterable of RankClass
        All rank classes of the plan.
    """

    def __init__(
        self, participants: Mapping[str, Mapping[str, Participants]], classes: Iterable[RankClass]
    ) -> None:
        self.in_progress: dict[CollectiveInstance, tuple[Task, tuple[str, ...]]] = {}
        self._participants = participants
        self._classes = {each.name: each for each in classes}
        self._pending: dict[CollectiveInstance, ReachedCollective] = {}

    def reach(
        self, step: int, work: Collective, participants: Participants, member: Member, now_s: float
    ) -> ReachedCollective | None:
        """Note that a class has reached a collective; return it once all classes have."""
        instance, name = (step, work.key, participants.classes[0]), member[0].rank_class
        pending = self._pending.setdefault(instance, ReachedCollective())
        pending.members.append(member)
        pending.arrived_s[name] = now_s
        if len(pending.arrived_s) < len(participants.classes):
            return None
        return self._pending.pop(instance)

    def arrivals(
        self, task: Task, step: int, reached: ReachedCollective, start_s: float
    ) -> CollectiveArrivals:
        """Return which class reached a collective last, and how long the others waited."""
        return arrivals_of(task, step, reached.arrived_s, self._classes, start_s)

    def missing(self, task: Task, step: int) -> str:
        """Name the class of a task, and the classes that its collective waits for."""
        mine = f" of {task.rank_class!r}" if len(self._classes) > 1 else ""
        if isinstance(task.work, Compute):
            return mine
        classes = self._participants[task.work.communicator][task.rank_class].classes
        pending = self._pending.get((step, task.work.key, classes[0]))
        if pending is None or task.rank_class not in pending.arrived_s:
            return mine
        missing = [repr(name) for name in classes if name not in pending.arrived_s]
        return f"{mine} for {', '.join(missing[:4])}"


def collective_text(task: Task, classes: tuple[str, ...]) -> str:
    """Name a collective, with the first of its classes."""
    return f"{task.name} ({', '.join(classes[:4])})"
