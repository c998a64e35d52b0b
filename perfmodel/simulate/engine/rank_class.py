"""Rank classes in simulated time: which of them take part in a collective, and their compute."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import NamedTuple

import numpy as np
import simpy

from perfmodel.arrays import RankGroup, rank_array
from perfmodel.training.plan.step_plan import Communicator, RankClass, StepPlan


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


@dataclass(slots=True, eq=False)
class _Work:
    done: simpy.Event
    left_s: float
    since_s: float


@dataclass(slots=True, eq=False)
class ComputeResource:
    """Compute of a rank class, `slowdown` times slower while a collective of it is in progress."""

    env: simpy.Environment
    slowdown: float
    """1 or more."""
    _factor: float = 1.0
    _communicating: int = 0
    _running: dict[simpy.Event, _Work] = field(default_factory=dict)

    def compute(self, duration_s: float) -> simpy.Event:
        """Start work that takes `duration_s` without slowdown; the event fires when it is done."""
        if self.slowdown == 1.0 or duration_s == 0.0:
            return self.env.timeout(duration_s)
        work = _Work(self.env.event(), duration_s, self.env.now)
        self._schedule(work)
        return work.done

    def communicate(self, change: int) -> None:
        """Count collectives in progress: +1 when one starts, -1 when one ends."""
        before = self._factor
        self._communicating += change
        self._factor = self.slowdown if self._communicating else 1.0
        if self._factor != before:
            running, self._running = self._running, {}
            for work in running.values():
                work.left_s -= (self.env.now - work.since_s) / before
                work.since_s = self.env.now
                self._schedule(work)

    def _schedule(self, work: _Work) -> None:
        end = self.env.timeout(max(0.0, work.left_s) * self._factor)
        self._running[end] = work
        end.callbacks.append(self._finish)

    def _finish(self, end: simpy.Event) -> None:
        """Finish the work that ends now, unless it has been scheduled again since."""
        work = self._running.pop(end, None)
        if work is not None:
            work.done.succeed()
