"""What a step saves without each of its limits: what-ifs of the machine's parts, simulated.

Links are tried by kind, then latency and the library's own rates. Only kinds are tried whose
busiest link is busy for long enough to matter: an idle link holds nothing up, however slow. Where
several limits follow each other closely, as a NIC and the PCIe link beside it, none of them alone
saves much; then the fewest that together save half of what no communication at all would save.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter

import numpy as np

from perfmodel.arrays import sending_s
from perfmodel.memo import once
from perfmodel.scenario.sections.variants import WhatIf
from perfmodel.simulate.engine.engine import BY_SENDS
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.disturbance import Disturbance
from perfmodel.studies.run.resolve.what_if import BANDWIDTHS_INSIDE, BETWEEN_NODES, apply_what_if
from perfmodel.studies.run.result import Relief, SizeResult
from perfmodel.studies.run.steps.retimed_steps import RetimedSteps, Step
from perfmodel.studies.run.steps.simulate_step import (
    ReportedRun,
    SimulationSetup,
    simulate_steps,
    timer_of,
)
from perfmodel.studies.run.steps.sized_job import SizedJob
from perfmodel.training.plan.step_plan import Collective, StepPlan

WORTH_NAMING = 0.01
"""Share of the step that something must save to be called a bottleneck: less is within what any
change to a machine brings, and predictions are not that sharp."""

IDLE_WORTH_NAMING = 0.05
"""Share of the step that a device waits from which the host may be its bottleneck: 1 to 2 % go to
the check of scaled gradients in every step in fp16, which no other host would save."""

WORTH_SEARCHING = 0.02
"""Share of the step that communication has to take before its limits are searched for."""

RIVAL_SHARE = 0.25
"""Savings of a limit against the largest, from which it may be the largest among events, too."""

DOUBT, DOUBTED_STEP = 0.03, 2e-3
"""Shares of savings and of the step by which savings may be off in a run that is timed again, a few
times what they were: 0.004 and 3e-4."""

MOST_OF_IT = 0.5
"""Share of what no communication would save from which a limit explains the wait."""


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """A part of the machine that may be no limit.

    `kinds`: of its links; none for what is no link.
    `text`: a machine of which it is none, where it is no link.
    """

    name: str
    what_if: Mapping[str, str | float | bool]
    kinds: frozenset[str] = frozenset()
    text: str = ""


def _links_part(name: str, field: str) -> Part:
    return Part(
        name,
        {field: "infinite"},
        frozenset(kind for kind, own in BANDWIDTHS_INSIDE.items() if own == field),
    )


NETWORK = Part("network", {"network_bandwidth": "infinite"}, BETWEEN_NODES)
MEMORY = _links_part("host memory", "memory_bandwidth")
LINKS = (
    NETWORK,
    _links_part("NVLink", "nvlink_bandwidth"),
    _links_part("PCIe", "pcie_bandwidth"),
    _links_part("links of CPUs", "cpu_bandwidth"),
    MEMORY,
)
LATENCY = Part(
    "latency", {"network_latency": 0.0, "node_latency": 0.0, "launch": 0.0}, text="no latency"
)
LIBRARY = Part(
    "the library's own rates",
    {"library_rates": "infinite"},
    text="a library without rates of its own",
)
HOST = Part("launching kernels", {}, text="kernels launched in no time")
COMMUNICATION = Part("communication", {"communication": False}, text="no communication at all")
PARTS: Mapping[str, Part] = {
    part.name: part for part in (*LINKS, LATENCY, LIBRARY, HOST, COMMUNICATION)
}


def join_words(words: Sequence[str]) -> str:
    """List words as a sentence does: "a, b and c"."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def describe_parts(parts: Sequence[Part]) -> str:
    """Describe a machine of which these parts are no limit.

    Examples
    --------
    >>> describe_parts([NETWORK, PARTS["PCIe"], LATENCY])
    'infinitely fast network and PCIe, and no latency'
    """
    links = [part.name for part in parts if part in LINKS]
    *first, last = [
        *([f"infinitely fast {join_words(links)}"] if links else []),
        *(part.text for part in parts if part.text),
    ]
    # "and" within the links asks for a comma before the next.
    return f"{', '.join(first)}{',' if ' and ' in first[0] else ''} and {last}" if first else last


def simulate_reliefs(sized: SizedJob, again: RetimedSteps, point: SizeResult) -> tuple[Relief, ...]:
    """Simulate the step without each limit that may matter; the one that saves most first.

    Communication is looked into where more than 2 % of the step wait for it or are slowed by it.
    """
    reported, step_s, reliefs = again.base, point.step_time_s, list[Relief]()
    if point.breakdown_s["idle"] > IDLE_WORTH_NAMING * step_s:
        saves_s = reported.step_s - reported.simulate_again(
            sized.disturbances,
            replace(reported.setup, plan_for=lambda gpu: sized.plan_for(gpu, launches=False)),
        )
        reliefs.append(Relief(describe_parts([HOST]), (HOST.name,), {}, saves_s))
    waits_s = point.exposed_comm_s + point.breakdown_s["slowdown"]
    if point.exposed_comm_s > 0 and waits_s > WORTH_SEARCHING * step_s:
        reliefs += _relieve_communication(sized, again)
    return by_savings(reliefs)


def by_savings(reliefs: Iterable[Relief]) -> tuple[Relief, ...]:
    """Return what saves most first."""
    return tuple(sorted(reliefs, key=lambda relief: -relief.saves_s))


def _relieve_communication(sized: SizedJob, again: RetimedSteps) -> list[Relief]:
    """Find the limits of communication at fidelity "flow".

    Where steps differ, those of the steps without what varies are found, and the largest simulated
    with it.
    """
    reported, setup, varies = again.base, again.base.setup, again.base.counted > 1
    setup = replace(setup, fidelity="flow") if setup.fidelity in BY_SENDS else setup
    if setup is reported.setup and not varies:
        return _Search(sized, again).reliefs()
    steady = simulate_steps(setup, sized.steady_disturbances, sized.settled)
    reliefs = by_savings(_Search(sized, RetimedSteps(steady, sized.steady_disturbances)).reliefs())
    if not varies or not reliefs:
        return list(reliefs)
    if setup is not reported.setup:  # savings are differences of steps of one fidelity
        reported = simulate_steps(setup, sized.disturbances, reported.steps, reported.counted)
    whole = _Search(sized, RetimedSteps(reported, sized.disturbances))
    first = next((each for each in reliefs if len(each.parts) == 1), None)
    return [
        whole.relieve(*(PARTS[name] for name in each.parts))
        for each in reliefs
        if each is first or each.saves_s >= RIVAL_SHARE * reliefs[0].saves_s
    ]


@dataclass
class _Search:
    """The limits of communication in a run with some disturbances."""

    sized: SizedJob
    again: RetimedSteps
    _steps_s: dict[frozenset[Part], float] = field(default_factory=dict)
    """Simulated steps without sets of parts."""
    _near_steps: dict[frozenset[Part], Step] = field(default_factory=dict)
    _setups: dict[frozenset[Part], tuple[SimulationSetup, Sequence[Disturbance]]] = field(
        default_factory=dict
    )

    def reliefs(self) -> list[Relief]:
        """Return what limits save alone, and several where none alone explains the wait."""
        free = self.relieve(COMMUNICATION)
        timer = timer_of(self.again.base.setup, self.again.disturbances)
        busy_s = _busy_by_part(timer, self.again.base)
        others = (LATENCY, LIBRARY) if _has_rates(self.again.base.plan, timer) else (LATENCY,)
        most_s = self._most_s(busy_s, others)
        reliefs = self._relieve_singly(
            {part: min(free.saves_s, most_s[part]) for part in (LATENCY, *busy_s, *others)}
        )
        if max((relief.saves_s for relief in reliefs), default=0.0) < MOST_OF_IT * free.saves_s:
            links = sorted(busy_s, key=lambda part: -busy_s[part])
            reliefs.append(self._relieve_together([*links, *others], free))
        return reliefs

    def _relieve_singly(self, most_s: Mapping[Part, float]) -> list[Relief]:
        """Simulate single limits, the promising first, until none left can save as much.

        `most_s`: most that each may save; seconds.
        """
        reliefs: list[Relief] = []
        best_s = WORTH_NAMING * self.again.base.step_s
        untried = sorted(most_s, key=lambda part: -most_s[part])
        while untried := [part for part in untried if most_s[part] > best_s]:
            # what saves too little together saves too little alone
            several = len(reliefs) == 1 and len(untried) > 2
            if several and not self.saves_enough(best_s, untried):
                break
            reliefs.append(self.relieve(untried.pop(0)))
            best_s = max(best_s, reliefs[-1].saves_s)
        return reliefs

    def _most_s(self, busy_s: Mapping[Part, float], others: Sequence[Part]) -> dict[Part, float]:
        """Most that each limit alone may save; seconds.

        Communication takes as long as the busiest of the other kinds of link, at least; and links
        that are busy now here, now there, hold it up for about twice as long as one of them is.
        """
        comm_s = self.again.base.parts.comm_s

        def left_s(part: Part | None) -> float:
            return max((busy_s[other] for other in busy_s if other is not part), default=0.0)

        return {
            part: min(2 * busy_s[part], comm_s - left_s(part)) for part in busy_s
        } | dict.fromkeys(others, comm_s - left_s(None))

    def _relieve_together(self, order: Sequence[Part], free: Relief) -> Relief:
        """Take limits away one after the other, until half of the wait is gone.

        Then leave out those that the others do not need.
        """
        enough_s, parts = MOST_OF_IT * free.saves_s, list(order[:1])
        for part in order[1:]:
            parts.append(part)
            if self.saves_enough(enough_s, parts):
                break
        else:
            return free  # what is left is the library's own work
        for part in parts[:-1]:
            fewer = [each for each in parts if each is not part]
            if len(fewer) > 1 and self.saves_enough(enough_s, fewer):
                parts = fewer
        return self.relieve(*parts)

    def relieve(self, *parts: Part) -> Relief:
        """Return the step as if these parts of the machine were no limit, as simulated."""
        near, names = self._near(parts), tuple(part.name for part in parts)
        if near.is_exact:
            step_s = near.step_s
        else:
            setup, disturbances = self._without(parts)
            step_s = once(
                self._steps_s,
                frozenset(parts),
                partial(self.again.base.simulate_again, disturbances, setup),
            )
        self._setups.pop(frozenset(parts), None)  # with all that is known of its collectives
        return Relief(
            describe_parts(parts), names, _fields_of(parts), self.again.base.step_s - step_s
        )

    def saves_enough(self, enough_s: float, parts: Sequence[Part]) -> bool:
        """Whether a step saves so much without these limits; simulated where that is not sure."""
        step_s = self.again.base.step_s
        saves_s = step_s - self._near(parts).step_s
        if not abs(saves_s - enough_s) > max(DOUBT * enough_s, DOUBTED_STEP * step_s):
            saves_s = self.relieve(*parts).saves_s
        if saves_s < enough_s:
            self._setups.pop(frozenset(parts), None)
        return saves_s >= enough_s

    def _near(self, parts: Sequence[Part]) -> Step:
        return once(
            self._near_steps, frozenset(parts), partial(self.again.step_s, *self._without(parts))
        )

    def _without(self, parts: Sequence[Part]) -> tuple[SimulationSetup, Sequence[Disturbance]]:
        """Return the setup and the disturbances where some parts are no limit."""
        return once(self._setups, frozenset(parts), partial(self._set_up, parts))

    def _set_up(self, parts: Sequence[Part]) -> tuple[SimulationSetup, Sequence[Disturbance]]:
        setup = self.again.base.setup
        if COMMUNICATION in parts:
            return replace(setup, fidelity="free"), self.again.disturbances
        machine = apply_what_if(WhatIf.model_validate(_fields_of(parts)), setup.machine)
        return setup.on(machine), self.sized.moved_disturbances(machine, self.again.disturbances)


def _fields_of(parts: Iterable[Part]) -> dict[str, str | float | bool]:
    return {name: value for part in parts for name, value in part.what_if.items()}


def _busy_by_part(timer: UncontendedTimer, reported: ReportedRun) -> dict[Part, float]:
    """How long the busiest link of each kind is busy in a step, where it is at all; seconds.

    Memory through which copies are staged counts as busy all the time: their rate is no link's.
    """
    topology, arcs = timer.machine.topology, timer.machine.topology.arcs
    rates_Bps, nbytes = arcs.bandwidth_Bps, reported.run.counted.wire_bytes / reported.steps
    links_s = sending_s(np.where(rates_Bps > 0, nbytes, 0.0), rates_Bps)
    busy_s = {part: float(links_s[arcs.kinds.among(part.kinds)].max(initial=0.0)) for part in LINKS}
    if topology.staging_Bps is not None:
        busy_s[MEMORY] = max(busy_s.values())
    return {part: time_s for part, time_s in busy_s.items() if time_s > 0}


def _has_rates(plan: StepPlan, timer: UncontendedTimer) -> bool:
    """Whether a limit of the library's, and no link, sets the rate of a collective or its sums."""
    if any(
        each.reduce_rate is not None or each.host_step > 0
        for each in timer.machine.library.protocols.values()
    ):
        return True
    works = [task.work for task in plan.tasks if isinstance(task.work, Collective)]
    largest = {work.op: work for work in sorted(works, key=attrgetter("nbytes"))}
    calls = ((each, max(plan.groups_of[each.communicator], key=len)) for each in largest.values())
    lowered = (
        timer.best(work.op, work.nbytes, group, work.root)[0]
        for work, group in calls
        if len(group) > 1
    )
    return any(
        np.any(timer.rates(stage) >= stage.cap_Bps * (1 - 1e-9))
        for each in lowered
        for stage in each.stages
    )
