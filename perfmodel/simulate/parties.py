"""Which classes of ranks meet in which groups of a communicator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from perfmodel.library.carry import Group
from perfmodel.training.plan import Communicator, RankClass, StepPlan


class Party(NamedTuple):
    """Classes that meet, and the groups that start once they have.

    Groups that have a class in common start together, because a class moves as one; groups that
    have none start each by itself.
    """

    classes: tuple[str, ...]
    groups: tuple[Group, ...]


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
    together: list[tuple[set[int], list[Group]]] = []
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
