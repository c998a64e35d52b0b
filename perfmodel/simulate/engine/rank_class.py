"""Rank classes in simulated time: which of them take part in a collective, and their compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import simpy

from perfmodel.arrays import FloatArray, RankGroup, rank_array
from perfmodel.errors import SimulationError
from perfmodel.training.plan.step_plan import Communicator, RankClass, StepPlan, Task


class Participants(NamedTuple):
    """Classes that take part in a collective, and the groups that start once all have arrived.

    Groups that have a class in common start together, because a class is simulated as one; others
    start independently.
    """

    classes: tuple[str, ...]
    groups: tuple[RankGroup, ...]


def participants_of(plan: StepPlan) -> Mapping[str, Mapping[str, Participants]]:
    """Return the participants by communicator and class; none for classes without members."""
    if len(plan.classes) == 1:
        alone = (plan.classes[0].name,)
        return {c.name: {alone[0]: Participants(alone, c.groups)} for c in plan.communicators}
    class_of_rank = _class_of_ranks(plan.classes)
    return {c.name: _of_communicator(c, plan.classes, class_of_rank) for c in plan.communicators}


def _class_of_ranks(classes: tuple[RankClass, ...]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Index of the class of every rank; -1: none."""
    ranks = [np.asarray(each.ranks, dtype=np.int64) for each in classes]
    class_of_rank = np.full(
        1 + max(int(part.max(initial=-1)) for part in ranks), -1, dtype=np.int64
    )
    for number, part in enumerate(ranks):
        class_of_rank[part] = number
    return class_of_rank


def _of_communicator(
    communicator: Communicator,
    classes: tuple[RankClass, ...],
    class_of_rank: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> Mapping[str, Participants]:
    kinds = _kinds_of_groups(communicator.groups, class_of_rank)
    members_of = {kind: set(np.frombuffer(kind, dtype=np.int64).tolist()) - {-1} for kind in kinds}
    together: list[set[int]] = []
    for members in filter(None, members_of.values()):
        for other in [part for part in together if not part.isdisjoint(members)]:
            together.remove(other)
            members = members | other  # noqa: PLW2901  # those of the kind stay what they are
        together.append(members)
    place_of = {number: place for place, members in enumerate(together) for number in members}
    groups: list[list[RankGroup]] = [[] for _ in together]
    for group, kind in zip(communicator.groups, kinds, strict=True):
        for number in islice(members_of[kind], 1):
            groups[place_of[number]].append(group)
    return {
        name: participants
        for place, members in enumerate(together)
        for participants in [
            Participants(tuple(classes[i].name for i in sorted(members)), tuple(groups[place]))
        ]
        for name in participants.classes
    }


def _kinds_of_groups(
    groups: Sequence[RankGroup], class_of_rank: np.ndarray[tuple[int], np.dtype[np.int64]]
) -> list[bytes]:
    """Classes of the ranks of each group, in order, as bytes: few groups of many are unlike."""
    lengths = [len(group) for group in groups]
    ranks = (
        rank_array(groups[0])
        if len(groups) == 1
        else np.fromiter(chain.from_iterable(groups), np.int64, sum(lengths))
    )
    in_table = ranks < len(class_of_rank)
    of_ranks = np.where(in_table, class_of_rank[np.where(in_table, ranks, 0)], -1)
    return [part.tobytes() for part in np.split(of_ranks, np.cumsum(lengths)[:-1])]


def class_factor(task: Task, factors: float | FloatArray) -> float:
    """Return the factor on a task's work for its class, given that of each rank, or of all.

    Raises `SimulationError`: ranks differ.
    """
    each = np.asarray(factors)
    if each.size > 1 and (each != each.flat[0]).any():
        raise SimulationError(
            f"{task.name}: ranks of class {task.rank_class!r} differ; split the class first"
        )
    return float(each.flat[0])


@dataclass(slots=True, eq=False)
class Work:
    """Pieces of work that one stream of a class does in a row; times of the simulation.

    Lists are by piece. `ready_s`: before which it does not start. `left_s`: what is left of it, in
    seconds without slowdown. `start_s`, `end_s`: of those that have started, and ended.
    """

    ready_s: list[float]
    left_s: list[float]
    start_s: list[float] = field(default_factory=list)
    end_s: list[float] = field(default_factory=list)

    def go_on(self, since_s: float, until_s: float, factor: float) -> None:
        """Work from one time to another, `factor` times slower; the last piece ends at the end."""
        at, now_s, last = len(self.end_s), since_s, len(self.left_s) - 1
        while at <= last:
            if len(self.start_s) == at:
                start_s = max(now_s, self.ready_s[at])
                if start_s >= until_s:
                    return
                self.start_s.append(start_s)
                now_s = start_s
            end_s = now_s + self.left_s[at] * factor
            if end_s > until_s or (end_s == until_s and at == last):
                self.left_s[at] = max(0.0, self.left_s[at] - (until_s - now_s) / factor)
                return
            self.end_s.append(end_s)
            now_s, at = end_s, at + 1

    def ends_s(self, now_s: float, factor: float) -> float:
        """When the last piece ends, `factor` times slower from now on."""
        for at in range(len(self.end_s), len(self.left_s)):
            if at >= len(self.start_s):
                now_s = max(now_s, self.ready_s[at])
            now_s += self.left_s[at] * factor
        return now_s


@dataclass(slots=True, eq=False)
class ComputeResource:
    """Compute of a rank class, `slowdown` times slower while a collective of it is in progress."""

    env: simpy.Environment
    slowdown: float
    """1 or more."""
    _factor: float = 1.0
    _communicating: int = 0
    _running: dict[simpy.Event, _Running] = field(default_factory=dict)

    def compute(self, work: Work) -> simpy.Event:
        """Start some work; the event fires when it is done."""
        running = _Running(work, self.env.event(), self.env.now)
        self._schedule(running)
        return running.done

    def communicate(self, change: int) -> None:
        """Count collectives in progress: +1 when one starts, -1 when one ends."""
        before = self._factor
        self._communicating += change
        self._factor = self.slowdown if self._communicating else 1.0
        if self._factor != before:
            others, self._running = self._running, {}
            for running in others.values():
                running.work.go_on(running.since_s, self.env.now, before)
                running.since_s = self.env.now
                self._schedule(running)

    def _schedule(self, running: _Running) -> None:
        now_s = self.env.now
        end = self.env.timeout(max(0.0, running.work.ends_s(now_s, self._factor) - now_s))
        self._running[end] = running
        end.callbacks.append(self._finish)

    def _finish(self, end: simpy.Event) -> None:
        """Finish the work that ends now, unless it has been scheduled again since."""
        running = self._running.pop(end, None)
        if running is not None:
            running.work.go_on(running.since_s, np.inf, self._factor)
            running.work.end_s[-1] = self.env.now
            running.done.succeed()


@dataclass(slots=True)
class _Running:
    work: Work
    done: simpy.Event
    since_s: float
