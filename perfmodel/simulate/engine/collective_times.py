"""How long the collectives of a plan take, one after the other: alone, or among others.

Both know a plan of which at most one collective is in progress at a time
(`perfmodel.simulate.engine.rank_vectors.why_unsuited`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import simpy

from perfmodel.arrays import RankGroup
from perfmodel.errors import SimulationError, TopologyError
from perfmodel.library.machine import Machine
from perfmodel.simulate.engine.engine import Fidelity, Surroundings, on_network
from perfmodel.simulate.engine.plan_run import PlanRun
from perfmodel.simulate.flow.approximation import ApproximationNote
from perfmodel.simulate.network import (
    LinkCounters,
    Network,
    run_until,
    sum_counters,
    zero_counters,
)
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.training.plan.step_plan import Collective, StepPlan, Task


@dataclass
class TimesAlone:
    """Times of collectives without other traffic, each worked out once."""

    plan: StepPlan
    timer: UncontendedTimer
    fidelity: Fidelity | Literal["free"]
    _notes: dict[str, ApproximationNote] = field(default_factory=dict)
    _cache: dict[Collective, tuple[float, LinkCounters]] = field(default_factory=dict)
    _uses: Counter[Collective] = field(default_factory=Counter)

    @property
    def others_step_ends_s(self) -> Mapping[str, tuple[float, ...]]:
        """None: there are no other jobs."""
        return {}

    @property
    def notes(self) -> tuple[ApproximationNote, ...]:
        """Where what was simulated is an approximation, one of each kind."""
        return tuple(self._notes.values())

    def takes_s(self, _tasks: Sequence[Task], work: Collective, _start_s: float) -> float:
        """Return the duration of a collective of some tasks, whenever it starts; seconds."""
        if work not in self._cache:
            groups = groups_of(self.plan, work)

            def run(network: Network) -> Network:
                ended = network.collective(work.op, work.nbytes, groups, work.root, work.times)
                network.env.run(until=ended)
                return network

            network = on_network(self.timer, self.fidelity, run)
            self._cache[work] = (float(network.env.now), network.counted)
            self._notes |= {note.why: note for note in network.notes}
        self._uses[work] += 1
        return self._cache[work][0]

    def counted(self, _end_s: float) -> LinkCounters:
        """Return the bytes on each arc of all collectives so far."""
        total = zero_counters(len(self.timer.machine.topology.arcs))
        for work, times in self._uses.items():
            single = self._cache[work][1]
            total = sum_counters(
                total, LinkCounters(times * single.wire_bytes, times * single.payload_bytes)
            )
        return total


class TimesAmongOthers:
    """Times of collectives on a network that others use, too, or that changes.

    Simulated time goes on from the start of one collective to its end, and to the start of the
    next; what happens beside them happens at its time.
    """

    def __init__(
        self, plan: StepPlan, machine: Machine, network: Network, surroundings: Surroundings
    ) -> None:
        self._plan, self._network, self._env = plan, network, network.env
        self._in_progress: tuple[str, ...] = ()
        self._others: list[PlanRun] = surroundings.start(
            network, machine, lambda: self._in_progress
        )

    @property
    def others_step_ends_s(self) -> Mapping[str, tuple[float, ...]]:
        """Ends of the steps of other jobs that are over."""
        return {job.plan.name: job.completed_s for job in self._others}

    @property
    def notes(self) -> tuple[ApproximationNote, ...]:
        """Where what was simulated is an approximation."""
        return self._network.notes

    def takes_s(self, tasks: Sequence[Task], work: Collective, start_s: float) -> float:
        """Duration of a collective, whose start is not before the end of the one before."""
        self._go_on(start_s)
        classes = ", ".join(task.rank_class for task in tasks[:4])
        self._in_progress = (f"{tasks[0].name} ({classes})",)
        try:
            ended = self._network.collective(
                work.op, work.nbytes, groups_of(self._plan, work), work.root, work.times
            )
        except TopologyError as error:
            raise SimulationError(f"{self._in_progress[0]} cannot start: {error}") from error
        begun_s = self._env.now
        self._run(ended)
        self._in_progress = ()
        return float(self._env.now - begun_s)

    def counted(self, end_s: float) -> LinkCounters:
        """Return the bytes on each arc until the plan has ended, those of others included."""
        self._go_on(end_s)
        return self._network.counted

    def _go_on(self, until_s: float) -> None:
        if until_s > self._env.now:
            self._run(until_s)

    def _run(self, until: simpy.Event | float) -> None:
        run_until(self._env, until, lambda: f"{self._plan.name!r}: {', '.join(self._in_progress)}")


CollectiveTimes = TimesAlone | TimesAmongOthers
"""Times of the collectives of a plan, which are asked for in the order of their starts."""


def groups_of(plan: StepPlan, work: Collective) -> tuple[RankGroup, ...]:
    """Return the groups of ranks of a collective."""
    return next(c.groups for c in plan.communicators if c.name == work.communicator)
