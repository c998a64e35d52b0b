"""Which classes of ranks meet in which groups of a communicator.

One rank class in simulated time: its compute slows down while it communicates.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import simpy

from perfmodel.arrays import RankGroup
from perfmodel.training.plan import Communicator, RankClass, StepPlan


class Party(NamedTuple):
    """Classes that meet, and the groups that start once they have.

    Groups that have a class in common start together, because a class moves as one; groups that
    have none start each by itself.
    """

    classes: tuple[str, ...]
    groups: tuple[RankGroup, ...]


def parties(plan: StepPlan) -> Mapping[str, Mapping[str, Party]]:
    """By communicator, the party that each class meets; classes without members have none."""
    if len(plan.classes) == 1:
        alone = (plan.classes[0].name,)
        return {c.name: {alone[0]: Party(alone, c.groups)} for c in plan.communicators}
    home = _home(plan.classes)
    return {c.name: _parties_of(c, plan.classes, home) for c in plan.communicators}


def _home(classes: tuple[RankClass, ...]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Class of every rank; -1 for ranks of no class."""
    ranks = [np.asarray(each.ranks, dtype=np.int64) for each in classes]
    home = np.full(1 + max(int(part.max(initial=-1)) for part in ranks), -1, dtype=np.int64)
    for number, part in enumerate(ranks):
        home[part] = number
    return home


def _parties_of(
    communicator: Communicator,
    classes: tuple[RankClass, ...],
    home: np.ndarray[tuple[int], np.dtype[np.int64]],
) -> Mapping[str, Party]:
    together: list[tuple[set[int], list[RankGroup]]] = []
    for group in communicator.groups:
        ranks = np.asarray(group, dtype=np.int64)
        found = set(np.unique(home[ranks[ranks < len(home)]]).tolist()) - {-1}
        groups = [group]
        for other in [party for party in together if not party[0].isdisjoint(found)]:
            together.remove(other)
            found |= other[0]
            groups = other[1] + groups
        together.append((found, groups))
    return {
        name: party
        for members, groups in together
        for party in [Party(tuple(classes[i].name for i in sorted(members)), tuple(groups))]
        for name in party.classes
    }


@dataclass(slots=True, eq=False)
class _Work:
    done: simpy.Event
    left_s: float
    since_s: float
    version: int = 0


@dataclass(slots=True, eq=False)
class Device:
    """Runs compute at full speed, or `slowdown` times slower while a collective is under way.

    Parameters
    ----------
    env : simpy.Environment
    slowdown : float
        1 or more.
    """

    env: simpy.Environment
    slowdown: float
    _communicating: int = 0
    _running: list[_Work] = field(default_factory=list)

    def compute(self, duration_s: float) -> simpy.Event:
        """Start work that takes `duration_s` undisturbed; the event fires when it is done."""
        if self.slowdown == 1.0 or duration_s == 0.0:
            return self.env.timeout(duration_s)
        work = _Work(self.env.event(), duration_s, self.env.now)
        self._running.append(work)
        self._schedule(work)
        return work.done

    def communicate(self, change: int) -> None:
        """Count collectives under way: +1 when one starts, -1 when one ends."""
        before = self._factor
        self._communicating += change
        if self._factor != before:
            for work in self._running:
                work.left_s -= (self.env.now - work.since_s) / before
                work.since_s = self.env.now
                self._schedule(work)

    @property
    def _factor(self) -> float:
        return self.slowdown if self._communicating else 1.0

    def _schedule(self, work: _Work) -> None:
        work.version += 1
        version = work.version
        end = self.env.timeout(max(0.0, work.left_s) * self._factor)
        end.callbacks.append(lambda _: self._finish(work, version))

    def _finish(self, work: _Work, version: int) -> None:
        if version == work.version:
            self._running.remove(work)
            work.done.succeed()
