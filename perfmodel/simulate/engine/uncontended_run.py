"""A run whose collectives have their links for themselves: the longest path through its tasks.

Each collective takes as long as alone then, and nothing has to be stepped through. Whether they do
is seen from the times that follow: where some that share links are in progress at the same time,
the run is simulated.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations, product
from operator import itemgetter

import numpy as np
import simpy

from perfmodel.arrays import FloatArray
from perfmodel.errors import TopologyError
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.memo import once
from perfmodel.simulate.engine.background import CollectiveArrivals, arrivals_of
from perfmodel.simulate.engine.outcome import Run, TaskExecution
from perfmodel.simulate.engine.retiming import Retimed, works_s
from perfmodel.simulate.engine.step_graph import COLLECTIVE, StepGraph
from perfmodel.simulate.engine.task_graph import participants_of
from perfmodel.simulate.flow.alike_collectives import JoinedCollectives
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.network import CollectiveCall
from perfmodel.simulate.sharing.between_collectives import LinkSet, LinkSets
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.training.plan.step_plan import Collective, StepPlan

ROUNDING = 1e-9
"""Share of a link's rate by which sums of rates may be above it."""
MOST_LOADS = 1 << 21
"""Rates of collectives on links that are looked at, 8 bytes each."""


def run_uncontended(
    plan: StepPlan, graph: StepGraph, network: FlowNetwork, steps: int, slowdown: float
) -> Run | None:
    """Run a plan without simulating it; None where collectives meet, or it cannot finish.

    `graph`: of its steps; see `can_be_retimed`.
    """
    timer, works = network.timer, works_s(plan)
    if not _all_classes_come(plan, graph):
        return None
    try:
        alone_s = {call: _simulated_s(timer, call) for call in dict.fromkeys(graph.calls) if call}
    except TopologyError:  # no way between two ranks: a simulation says for which collective
        return None
    own_s = [
        alone_s[call] if call else works[at]
        for call, at in zip(graph.calls, graph.first, strict=True)
    ]
    times = Retimed(graph, graph.kinds, *graph.times_s(np.array(own_s), graph.kinds, slowdown))
    if np.isnan(times.ends_s).any() or are_crowded(timer, times):
        return None
    network.count_alone(filter(None, graph.calls))
    return Run(
        sorted(_executions(plan, times, steps), key=itemgetter(3)),
        tuple(times.step_ends_s.tolist()),
        network,
        tuple(_arrivals(plan, times)) if len(plan.classes) > 1 else (),
        graph=graph,
        is_uncontended=True,
    )


def _all_classes_come(plan: StepPlan, graph: StepGraph) -> bool:
    """Whether each class that takes part in a collective has one task in it."""
    participants = participants_of(plan)
    return all(
        sorted(plan.tasks[at].rank_class for at in own)
        == sorted(participants[work.communicator][plan.tasks[own[0]].rank_class].classes)
        for own in graph.tasks
        if isinstance(work := plan.tasks[own[0]].work, Collective)
    )


def times_alone_s(calls: Sequence[CollectiveCall | None], timer: UncontendedTimer) -> FloatArray:
    """Return the time of each collective with its links for itself, 0 of work; seconds.

    `calls`: None for work.
    """
    alone_s: dict[CollectiveCall | None, float] = {None: 0.0}
    for call in dict.fromkeys(calls):
        if call is not None:
            op, nbytes, groups, root, times = call
            alone_s[call] = times * max(timer.times_s(op, nbytes, groups, root), default=0.0)
    return np.array([alone_s[call] for call in calls])


def _share_links(timer: UncontendedTimer, pair: frozenset[CollectiveCall]) -> bool:
    """Whether two collectives have a link in common, or one runs twice at the same time."""
    one, other, *_ = (*pair, *pair)
    parts = product(_parts_of(timer, one), _parts_of(timer, other))
    return any(own.meets(each) for its, others in parts for own in its for each in others)


@dataclass
class KnownTimes:
    """How long collectives take that have their links for themselves, by their calls; seconds."""

    alone_s: dict[CollectiveCall, float] = field(default_factory=dict)


def _simulated_s(timer: UncontendedTimer, call: CollectiveCall) -> float:
    """Return the time of a collective, all of whose groups begin together; seconds."""

    def find() -> float:
        parts = combinations(_parts_of(timer, call), 2)
        if not any(own.meets(its) for one, other in parts for own in one for its in other):
            return float(times_alone_s([call], timer)[0])
        network = FlowNetwork(simpy.Environment(), timer)  # they share links with each other
        network.env.run(until=network.collective(*call))
        return float(network.env.now)

    return once(timer.keep(KnownTimes).alone_s, call, find)


def are_crowded(timer: UncontendedTimer, times: Retimed) -> bool:
    """Whether collectives in progress at the same time may want more of a link than it has."""
    capacity_Bps = timer.machine.topology.arcs.bandwidth_Bps * (1 + ROUNDING)
    loads_Bps, meet = dict[CollectiveCall, FloatArray](), dict[frozenset[CollectiveCall], bool]()
    for calls in times.together():
        pairs = [frozenset((own, calls[-1])) for own in calls[:-1]]
        if not any(once(meet, pair, partial(_share_links, timer, pair)) for pair in pairs):
            continue
        many = len(loads_Bps | dict.fromkeys(calls)) * len(capacity_Bps) > MOST_LOADS
        if (
            many
            or (
                sum(once(loads_Bps, each, partial(_load_Bps, timer, each)) for each in calls)
                > capacity_Bps
            ).any()
        ):
            return True
    return False


def _load_Bps(timer: UncontendedTimer, call: CollectiveCall) -> FloatArray:
    """Return how fast a collective sends over each link at most, if it is alone; shape (links,)."""
    links = len(timer.machine.topology.arcs)
    load_Bps = np.zeros(links)
    for lowered in _begun_by(timer, call):
        most_Bps = np.zeros(links)
        for leg in timer.timed_legs(lowered):
            stage, rates_Bps = leg.expand()
            each_Bps = np.repeat(rates_Bps, np.diff(stage.edges.pointers))
            of_leg_Bps = np.bincount(stage.edges.arcs, each_Bps, minlength=links)
            np.maximum(most_Bps, of_leg_Bps, out=most_Bps)
        load_Bps += most_Bps
    return load_Bps


def _parts_of(timer: UncontendedTimer, call: CollectiveCall) -> list[list[LinkSet]]:
    """Return the links of each stage of the collectives that a call begins."""
    sets = timer.keep_laid(LinkSets)
    return [
        [once(sets, stage.edges, partial(LinkSet, stage.edges.arcs)) for stage in lowered.stages]
        for lowered in _begun_by(timer, call)
    ]


def _begun_by(timer: UncontendedTimer, call: CollectiveCall) -> list[LoweredCollective]:
    joined, (op, nbytes, groups, root, times) = timer.keep(JoinedCollectives), call
    number = joined.number_of(groups)
    return joined.of(timer, op, nbytes, groups, root, number=number, times=times)


def _executions(plan: StepPlan, times: Retimed, steps: int) -> Iterator[TaskExecution]:
    node_of, tasks = times.graph.node_of, plan.tasks
    begins_s, ends_s = (
        each.reshape(steps, -1)[:, node_of].tolist() for each in (times.begins_s, times.ends_s)
    )
    for step, (own_s, before_s) in enumerate(zip(ends_s, ([], *ends_s), strict=False)):
        for at, task in enumerate(tasks):
            ready_s = max([own_s[each] for each in task.after], default=0.0)
            if step and task.after_previous:
                ready_s = max(ready_s, *[before_s[each] for each in task.after_previous])
            yield task, step, begins_s[step][at], own_s[at], ready_s, 1.0


def _arrivals(plan: StepPlan, times: Retimed) -> Iterator[CollectiveArrivals]:
    """Yield when the classes of each collective arrived, in the order in which these began."""
    graph, classes = times.graph, {each.name: each for each in plan.classes}
    meeting = np.flatnonzero((graph.kinds == COLLECTIVE) & (np.diff(graph.classes_from) > 1))
    for node in meeting[np.argsort(times.begins_s[meeting], kind="stable")]:
        step, number = divmod(int(node), len(graph.tasks))
        own = graph.tasks[number]
        arrived_s = {plan.tasks[at].rank_class: _reached_s(times, step, at) for at in own}
        begun_s = float(times.begins_s[node])
        yield arrivals_of(plan.tasks[own[0]], step, arrived_s, classes, begun_s)


def _reached_s(times: Retimed, step: int, task: int) -> float:
    """Return when a task came to the head of its stream, and what it waits for had ended."""
    graph, count = times.graph, len(times.graph.tasks)
    same, before = graph.dependencies[task]
    nodes = [graph.node_of[at] + step * count for at in same]
    nodes += [graph.node_of[at] + (step - 1) * count for at in before if step]
    return float(times.ends_s[nodes].max(initial=0.0))
