"""What limits workers and servers: links, updates, the host or an event, by what-ifs simulated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from perfmodel.arrays import FloatArray
from perfmodel.scenario.sections.variants import WhatIf
from perfmodel.studies.run.loops.loop_job import LoopJob
from perfmodel.studies.run.loops.loop_metrics import LoopMetrics
from perfmodel.studies.run.resolve.what_if import apply_what_if
from perfmodel.studies.run.result.model import Bottleneck, Relief, SizeResult
from perfmodel.studies.run.steps.bottleneck import beside_communication, ends_of, name_link
from perfmodel.studies.run.steps.reliefs import (
    COMMUNICATION,
    HOST,
    LATENCY,
    LINKS,
    MOST_OF_IT,
    WORTH_NAMING,
    WORTH_SEARCHING,
    Part,
    describe_parts,
)

SERVERS = "updates"
"""Name of the part that is the servers' own work."""

BUSY = 0.25
"""Share of the time that a link has to be busy for the kind of it to be tried."""


def simulate_loop_reliefs(metrics: LoopMetrics) -> tuple[Relief, ...]:
    """Simulate the loops without each limit that may matter; the one that saves most first."""
    step_s, breakdown_s = metrics.step_s(), metrics.breakdown_s
    reliefs: list[Relief] = []
    if breakdown_s["idle"] > WORTH_NAMING * step_s:
        job = replace(metrics.job, launches=False)
        reliefs.append(_relief(metrics, job, describe_parts([HOST]), HOST.name, {}))
    if breakdown_s["exposed communication"] > WORTH_SEARCHING * step_s:
        reliefs += _relieve_communication(metrics)
    return tuple(sorted(reliefs, key=lambda relief: -relief.saves_s))


def _relieve_communication(metrics: LoopMetrics) -> list[Relief]:
    """Try servers that update in no time, and links of each kind that are busy."""
    reliefs = []
    if max(metrics.server_busy) > WORTH_NAMING:
        job = replace(metrics.job, idle_servers=True)
        reliefs.append(_relief(metrics, job, "servers that update in no time", SERVERS, {}))
    kinds, busy = metrics.job.machine.topology.arcs.kinds, _busy(metrics)
    most_busy = {part: busy[kinds.among(part.kinds)].max(initial=0.0) for part in LINKS}
    reliefs += [_relieve_part(metrics, part) for part in LINKS if most_busy[part] > BUSY]
    best_s = max((relief.saves_s for relief in reliefs), default=0.0)
    waits_s = metrics.breakdown_s["exposed communication"]
    if best_s < MOST_OF_IT * waits_s:
        reliefs.append(_relieve_part(metrics, LATENCY))
        free = replace(metrics.job, free=True, idle_servers=True)
        text = describe_parts([COMMUNICATION])
        relief = _relief(metrics, free, text, COMMUNICATION.name, dict(COMMUNICATION.what_if))
        reliefs.append(replace(relief, parts=(COMMUNICATION.name, SERVERS)))
    return reliefs


def _busy(metrics: LoopMetrics) -> FloatArray:
    """Share of the time in which each link is busy."""
    arcs, run = metrics.job.machine.topology.arcs, metrics.run
    rates = arcs.bandwidth_Bps
    shares: FloatArray = np.divide(
        run.counted.wire_bytes, rates * run.length_s, out=np.zeros(len(arcs)), where=rates > 0
    )
    return shares


def _relieve_part(metrics: LoopMetrics, part: Part) -> Relief:
    sized, job = metrics.job.sized, metrics.job
    machine = apply_what_if(WhatIf.model_validate(part.what_if), sized.ensemble.likely)
    other = sized.on_machine(machine)
    disturbances = other.moved_disturbances(machine, job.disturbances)
    changed = replace(job, sized=other, disturbances=disturbances)
    return _relief(metrics, changed, describe_parts([part]), part.name, dict(part.what_if))


def _relief(
    metrics: LoopMetrics,
    job: LoopJob,
    text: str,
    name: str,
    what_if: dict[str, str | float | bool],
) -> Relief:
    step_s = LoopMetrics(job, job.run()).step_s()
    return Relief(text, (name,), what_if, metrics.step_s() - step_s)


def loop_bottleneck(
    metrics: LoopMetrics, point: SizeResult, reliefs: Sequence[Relief]
) -> Bottleneck:
    """Name what limits: "compute", the host, the servers' updates, an event, latency or a link.

    It is what saves most where it is no limit, if that is more than 1 % of the step.
    """
    rival_s = max((relief.saves_s for relief in reliefs), default=0.0)
    elsewhere = beside_communication(point, reliefs, rival_s)
    if elsewhere is not None:
        return elsewhere
    name = reliefs[0].parts[0]
    busy = metrics.server_busy
    if name == SERVERS:
        server = metrics.run.plan.servers[int(np.argmax(busy))]
        updates = f"updates at {server.name} ({server.device})"
        return Bottleneck("communication", updates, updates)
    topology = metrics.job.machine.topology
    arcs = topology.arcs
    kinds = next((part.kinds for part in LINKS if part.name == name), None)
    shares = _busy(metrics)
    if kinds is not None:
        shares = np.where(arcs.kinds.among(kinds), shares, -1.0)
    busiest = int(np.argmax(shares))
    part, ends = name_link(topology, busiest), ends_of(topology, busiest)
    over = ""
    if kinds is None:
        over = ("latency of messages" if name == LATENCY.name else "messages") + ", over "
    return Bottleneck("communication", f"{over}{part}", f"{over}{ends}", (ends,))
