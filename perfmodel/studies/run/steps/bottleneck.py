"""What limits a step: the part without which a simulated step is shorter."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.steps.simulate_step import simulate_steps, timer_of
from perfmodel.studies.run.steps.sized_job import ReportedRun, SizedJob
from perfmodel.training.step_plan import Collective, StepPlan

WORTH_NAMING = 0.02
"""Share of the step that something must cost to be called the bottleneck instead of compute."""

HOST = "host (launching kernels)"


def find_bottleneck(sized: SizedJob, reported: ReportedRun, point: SizeResult) -> str:
    """Name what limits a step: "compute", the host, or a link.

    The network or the host is the bottleneck if the step would be shorter by more than 2 %
    without it; of the two, the one that would save more. A link is named by the time that its
    bytes take; if even the busiest is idle most of the time, the cause is named, too. An event
    that costs more than 2 %, and half or more of what the network or the host does, is named
    instead.
    """
    step_s = point.step_time_s
    saved: dict[str, float] = {}
    if point.exposed_comm_s > WORTH_NAMING * step_s:
        saved["network"] = step_s - reported.simulate_again(sized.disturbances, free=True)
    if point.breakdown_s["idle"] > WORTH_NAMING * step_s:
        saved["host"] = step_s - _without_host_s(sized, reported)
    worst = max(saved, key=lambda part: saved[part], default=None)
    events = () if point.disturbance is None else point.disturbance.events
    event = max(events, key=lambda event: event.costs_s, default=None)
    least_s = max(WORTH_NAMING * step_s, 0.0 if worst is None else 0.5 * saved[worst])
    if event is not None and event.costs_s > least_s:
        return event.what
    if worst is None or saved[worst] <= WORTH_NAMING * step_s:
        return "compute"
    return HOST if worst == "host" else _name_link(sized, reported, point.comm_s)


def _without_host_s(sized: SizedJob, reported: ReportedRun) -> float:
    """Mean step if launching kernels took no time; seconds."""
    setup = replace(reported.setup, plan_for=lambda gpu: sized.plan_for(gpu, launches=False))
    return reported.simulate_again(sized.disturbances, setup)


def _name_link(sized: SizedJob, reported: ReportedRun, comm_s: float) -> str:
    timer = timer_of(reported.setup, sized.disturbances)
    arcs = timer.machine.topology.arcs
    nbytes = reported.run.counted.wire_bytes / reported.steps
    usable = _find_own_links(sized, reported) & (arcs.bandwidth_Bps > 0)  # not dead ones
    busy_s = np.divide(nbytes, arcs.bandwidth_Bps, out=np.zeros(len(arcs)), where=usable)
    label = arcs.label(int(np.argmax(busy_s)))
    algorithm, staged = _largest_collective(reported.plan, timer)
    if staged:
        return f"staging in host memory, over {label}"
    if busy_s.max() >= 0.5 * comm_s:
        return label
    return f"latency of the {algorithm}'s steps, over {label}"


def _find_own_links(sized: SizedJob, reported: ReportedRun) -> NDArray[np.bool_]:
    """Links that carry bytes of this job, and not only of other jobs or traffic."""
    run, disturbances = reported.run, sized.disturbances
    if any(each.traffic or each.background_job for each in disturbances):
        own = [
            each
            for each in disturbances
            if not (each.traffic or each.background_job or each.jitter)
        ]
        run = simulate_steps(reported.setup, own, reported.steps if own else 1)[1]
    return run.counted.wire_bytes > 0


def _largest_collective(plan: StepPlan, timer: UncontendedTimer) -> tuple[str, bool]:
    """Algorithm that moves most, and whether staging caps its slowest edge."""
    groups = {c.name: c.groups for c in plan.communicators}
    works = [task.work for task in plan.tasks if isinstance(task.work, Collective)]
    moved = Counter[str]()
    for work in works:
        moved[work.op] += work.nbytes
    most = moved.most_common(1)[0][0]
    work = max((work for work in works if work.op == most), key=lambda work: work.nbytes)
    group = max(groups[work.communicator], key=len)
    lowered, _ = timer.best(work.op, work.nbytes, group, work.root)
    staged = False
    for stage in lowered.stages:
        rates = timer.rates(stage)
        slowest = int(np.argmin(rates))
        staged = staged or bool(rates[slowest] >= stage.cap_Bps[slowest] * (1 - 1e-9))
    return lowered.schedule.algorithm, staged
