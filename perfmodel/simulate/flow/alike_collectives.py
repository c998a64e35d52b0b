"""Collectives that groups of ranks run at the same time, as one; and one after another, as one.

Each tensor-parallel group of a thousand runs the same collective on links of its own. One job with
the edges of all of them takes the time of each, at the cost of one. So does one job for several in
a row: times of a collective are homogeneous in its bytes and latencies together.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from perfmodel.arrays import RankGroup, distinct
from perfmodel.collectives.schedule import Phase
from perfmodel.library.lowering.edges import join_edges
from perfmodel.library.lowering.lowered import LoweredCollective, Stage
from perfmodel.simulate.uncontended import UncontendedTimer

GroupsCollective = tuple[str, int, tuple[RankGroup, ...], int]
"""Operation, bytes, groups and root of a collective that several groups run at the same time."""


@dataclass
class JoinedCollectives:
    """Collectives of several groups as few, found once for all simulations of a machine."""

    _joined: dict[Hashable, tuple[tuple[RankGroup, ...], list[LoweredCollective]]] = field(
        default_factory=dict
    )

    def of(
        self, timer: UncontendedTimer, work: GroupsCollective, times: int
    ) -> list[LoweredCollective]:
        """Return `times` collectives of each group in a row, those of alike groups as one."""
        op, nbytes, groups, root = work
        key = (op, nbytes, id(groups), root, times)
        if key not in self._joined:  # the entry holds `groups`, so that its id stays unique
            joined = join_alike(timer.lower(op, nbytes, groups, root))
            self._joined[key] = groups, [in_a_row(lowered, times) for lowered in joined]
        return self._joined[key][1]


def join_alike(collectives: Sequence[LoweredCollective]) -> list[LoweredCollective]:
    """Join collectives that begin together, are alike and share no link, into as few as possible.

    Times and bytes on links stay what they are: rates of edges without common links do not depend
    on each other.
    """
    if len(collectives) == 1:
        return list(collectives)
    joined: list[tuple[Hashable, set[int], list[LoweredCollective]]] = []
    for lowered in collectives:
        likeness, links = _likeness(lowered), _links(lowered)
        for other, used_links, members in joined:
            if other == likeness and used_links.isdisjoint(links):
                used_links.update(links)
                members.append(lowered)
                break
        else:
            joined.append((likeness, links, [lowered]))
    return [_join(members) for _, _, members in joined]


def in_a_row(lowered: LoweredCollective, times: int) -> LoweredCollective:
    """Return `times` collectives, each begun when the one before has ended, as one."""
    if times == 1:
        return lowered
    return replace(
        lowered,
        launch_s=times * lowered.launch_s,
        uneven_s=times * lowered.uneven_s,
        stages=tuple(
            replace(
                stage,
                latency_s=times * stage.latency_s,
                phases=tuple(replace(p, nbytes=times * p.nbytes) for p in stage.phases),
            )
            for stage in lowered.stages
        ),
    )


def _links(lowered: LoweredCollective) -> set[int]:
    return {link for stage in lowered.stages for link in distinct(stage.edges.arcs).tolist()}


def _likeness(lowered: LoweredCollective) -> Hashable:
    """What collectives have in common that differ in their links only."""
    schedule = lowered.schedule
    phases = tuple(
        tuple(_phase_likeness(phase) for phase in stage.phases) for stage in lowered.stages
    )
    return (
        schedule.collective, schedule.algorithm, schedule.nbytes, schedule.ranks,
        schedule.switches, lowered.protocol, lowered.launch_s, lowered.wire_factor,
        lowered.credits, phases,
    )  # fmt: skip


def _phase_likeness(phase: Phase) -> Hashable:
    arrays = (phase.src, phase.dst, phase.channel, phase.nbytes, phase.first, phase.active)
    adds = phase.adds if isinstance(phase.adds, bool) else phase.adds.tobytes()
    numbers = (phase.repeat, phase.lag, phase.drained, phase.overwrites, adds)
    return (*(values.tobytes() for values in arrays), *numbers)


def _join(members: list[LoweredCollective]) -> LoweredCollective:
    """Join alike collectives; each has channels of its own, on which ranks have their places."""
    first = members[0]
    if len(members) == 1:
        return first
    stages = zip(*(lowered.stages for lowered in members), strict=True)
    return replace(first, stages=tuple(_join_stages(stage) for stage in stages))


def _join_stages(stages: Sequence[Stage]) -> Stage:
    phases = zip(*(stage.phases for stage in stages), strict=True)
    return Stage(
        phases=tuple(_join_phases(phase) for phase in phases),
        edges=join_edges([stage.edges for stage in stages]),
        latency_s=np.concatenate([stage.latency_s for stage in stages]),
        cap_Bps=np.concatenate([stage.cap_Bps for stage in stages]),
        load=np.concatenate([stage.load for stage in stages]),
    )


def _join_phases(phases: Sequence[Phase]) -> Phase:
    first = phases[0]
    channels = int(first.channel.max(initial=-1)) + 1
    return replace(
        first,
        src=np.concatenate([phase.src for phase in phases]),
        dst=np.concatenate([phase.dst for phase in phases]),
        channel=np.concatenate([p.channel + channels * at for at, p in enumerate(phases)]),
        nbytes=np.concatenate([phase.nbytes for phase in phases]),
        first=np.concatenate([phase.first for phase in phases]),
        active=np.concatenate([phase.active for phase in phases]),
        adds=first.adds
        if isinstance(first.adds, bool)
        else np.concatenate([np.asarray(phase.adds) for phase in phases]),
    )
