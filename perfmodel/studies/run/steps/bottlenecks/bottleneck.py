"""What limits a step: the part without which a simulated step is shorter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.result.link_use import LinkEnds
from perfmodel.studies.run.result.model import Bottleneck, Relief, SizeResult
from perfmodel.studies.run.steps.bottlenecks.link_names import ends_of, name_busiest
from perfmodel.studies.run.steps.bottlenecks.reliefs import (
    HOST,
    LATENCY,
    LINKS,
    MEMORY,
    MOST_OF_IT,
    PARTS,
    WORTH_NAMING,
)
from perfmodel.studies.run.steps.simulate_step import simulate_steps, timer_of
from perfmodel.studies.run.steps.sized_job import ReportedRun, SizedJob
from perfmodel.training.plan.step_plan import Collective, StepPlan

_LIBRARIES = {"nccl": "NCCL", "gloo": "Gloo", "mpi": "MPI"}


def name_bottleneck(
    sized: SizedJob, reported: ReportedRun, point: SizeResult, reliefs: Sequence[Relief]
) -> Bottleneck:
    """Name what limits a step: "compute", the host, an event, latency, or links.

    It is what saves most where it is no limit (`reliefs`, the largest first), or an event that
    costs more than any single limit; compute where that is no more than 1 % of the step. Of the
    links of a kind, it is the one that its bytes keep busy for longest, or all in hosts alike.
    """
    least_s = WORTH_NAMING * point.step_time_s
    best = reliefs[0] if reliefs else None
    events = () if point.disturbance is None else point.disturbance.events
    event = max(events, key=lambda event: event.costs_s, default=None)
    if event is not None and event.costs_s > max(least_s, _rival_s(reliefs)):
        return Bottleneck("event", event.what, event.what)
    if best is None or best.saves_s <= least_s:
        return Bottleneck("compute", "compute", "compute")
    if best.parts == (HOST.name,):
        return Bottleneck("host", f"host ({HOST.name})", f"host ({HOST.name})")
    topology = timer_of(reported.setup, sized.disturbances).machine.topology

    links: list[LinkEnds] = []

    def by_ends(busy_s: FloatArray) -> str:
        links.append(ends_of(topology, int(np.argmax(busy_s))))
        return str(links[-1])

    bought = partial(name_busiest, topology)
    parts, ends = (list(_name_parts(sized, reported, best, name)) for name in (bought, by_ends))
    listed = ", ".join(parts[:-1])
    text = " and ".join(filter(None, [listed, parts[-1]]))
    return Bottleneck("communication", text, " and ".join(ends), tuple(links))


def _rival_s(reliefs: Sequence[Relief]) -> float:
    """What an event has to cost to be named; several limits together count for half. Seconds."""
    shares = (each.saves_s * (MOST_OF_IT if len(each.parts) > 1 else 1.0) for each in reliefs)
    return max(shares, default=0.0)


def _name_parts(
    sized: SizedJob, reported: ReportedRun, relief: Relief, name: Callable[[FloatArray], str]
) -> Iterator[str]:
    """Name the parts of a relief: links by `name`, the rest over the busiest link.

    `name`: of the busiest of links, from how long each is busy.
    """
    timer = timer_of(reported.setup, sized.disturbances)
    arcs = timer.machine.topology.arcs
    busy_s, own = _busy_s(sized, reported, timer), timer.machine.library.name
    algorithm, staged = _largest_collective(reported.plan, timer)

    def over() -> str:
        return "" if len(relief.parts) > 1 else f", over {name(busy_s)}"

    for part in (PARTS[each] for each in relief.parts):
        if part in LINKS:
            label = name(np.where(arcs.kinds.among(part.kinds), busy_s, -1.0))
            copies = part is MEMORY and staged
            yield f"staging in host memory, over {label}" if copies else label
        elif part is LATENCY:
            yield f"latency of the {algorithm}'s steps{over()}"
        else:
            yield f"{_LIBRARIES.get(own, own)} itself{over()}"


def _busy_s(sized: SizedJob, reported: ReportedRun, timer: UncontendedTimer) -> FloatArray:
    """How long each link that carries bytes of this job is busy in a step; seconds."""
    arcs = timer.machine.topology.arcs
    nbytes = reported.run.counted.wire_bytes / reported.steps
    usable = _find_own_links(sized, reported) & (arcs.bandwidth_Bps > 0)  # not dead ones
    return np.divide(nbytes, arcs.bandwidth_Bps, out=np.zeros(len(arcs)), where=usable)


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
        moved[work.op] += work.times * work.nbytes
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
