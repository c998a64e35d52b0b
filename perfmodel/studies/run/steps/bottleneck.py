"""What limits a step: found by taking it away and simulating again."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.simulate.engine.run import Run
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.result import SizeResult
from perfmodel.training.plan import Collective, StepPlan

StepPart = Literal["network", "host"]

WORTH_NAMING = 0.02
"""Share of the step that something must cost to be called the bottleneck instead of compute."""

HOST = "host (launching kernels)"


@dataclass(frozen=True, slots=True)
class Suspects:
    """What the search needs: the run, its plan, and the step time without each part.

    Parameters
    ----------
    plan : StepPlan
    run : Run
    steps : int
    estimator : UncontendedTimer
    mine : ndarray of bool, shape (arcs,)
        Links that this job uses; others may carry bytes of somebody else.
    without : callable
    """

    plan: StepPlan
    run: Run
    steps: int
    estimator: UncontendedTimer
    mine: NDArray[np.bool_]
    without: Callable[[StepPart], float]


def bottleneck(point: SizeResult, suspects: Suspects) -> str:
    """Name what limits a step: "compute", the host, or a link (or what holds it back).

    The network or the host is the bottleneck if the step would be shorter by more than 2 %
    without it; of the two, the one that would save more. A link is named by the time that its
    bytes take; where even the busiest is idle most of the time, what keeps it so is named. An event
    that costs more than 2 %, and half or more of what the network or the host does, is named
    instead.
    """
    step_s = point.step_time_s
    saved: dict[StepPart, float] = {}
    if point.exposed_comm_s > WORTH_NAMING * step_s:
        saved["network"] = step_s - suspects.without("network")
    if point.breakdown_s["idle"] > WORTH_NAMING * step_s:
        saved["host"] = step_s - suspects.without("host")
    worst = max(saved, key=lambda part: saved[part], default=None)
    events = () if point.disturbance is None else point.disturbance.events
    event = max(events, key=lambda event: event.costs_s, default=None)
    least_s = max(WORTH_NAMING * step_s, 0.0 if worst is None else 0.5 * saved[worst])
    if event is not None and event.costs_s > least_s:
        return event.what
    if worst is None or saved[worst] <= WORTH_NAMING * step_s:
        return "compute"
    return HOST if worst == "host" else _link(point, suspects)


def _link(point: SizeResult, suspects: Suspects) -> str:
    arcs = suspects.estimator.machine.topology.arcs
    nbytes = suspects.run.counted.wire_bytes / suspects.steps
    usable = suspects.mine & (arcs.bandwidth_Bps > 0)  # not what is dead
    busy_s = np.divide(nbytes, arcs.bandwidth_Bps, out=np.zeros(len(arcs)), where=usable)
    label = arcs.label(int(np.argmax(busy_s)))
    algorithm, staged = _largest(suspects)
    if staged:
        return f"staging in host memory, over {label}"
    if busy_s.max() >= 0.5 * point.comm_s:
        return label
    return f"latency of the {algorithm}'s steps, over {label}"


def _largest(suspects: Suspects) -> tuple[str, bool]:
    """Algorithm that moves most, and whether staging caps its slowest edge."""
    groups = {c.name: c.groups for c in suspects.plan.communicators}
    works = [task.work for task in suspects.plan.tasks if isinstance(task.work, Collective)]
    moved = Counter[str]()
    for work in works:
        moved[work.op] += work.nbytes
    most = moved.most_common(1)[0][0]
    work = max((work for work in works if work.op == most), key=lambda work: work.nbytes)
    group = max(groups[work.communicator], key=len)
    way, _ = suspects.estimator.best(work.op, work.nbytes, group, work.root)
    staged = False
    for stage in way.stages:
        rates = suspects.estimator.rates(stage)
        slowest = int(np.argmin(rates))
        staged = staged or bool(rates[slowest] >= stage.cap_Bps[slowest] * (1 - 1e-9))
    return way.schedule.algorithm, staged
