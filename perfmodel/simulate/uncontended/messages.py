"""Who sends to whom in operations between pairs of ranks, and roots of groups."""

from __future__ import annotations

from perfmodel.arrays import RankGroup

MESSAGES = frozenset({"send", "send_recv"})
"""Operations that are messages between pairs of ranks, all at once."""


def message_pairs(op: str, group: RankGroup) -> list[tuple[int, int]]:
    """Who sends to whom in "send", and in "send_recv" around the group."""
    if op == "send":
        return [(group[0], group[1])]
    return [(group[at - 1], group[at]) for at in range(len(group))]


def root_in(group: RankGroup, groups: tuple[RankGroup, ...], root: int) -> int:
    """Return the root of one of several groups: the rank at the same place as in its own."""
    if root in group:
        return root
    return next((group[own.index(root)] for own in groups if root in own), root)
