"""What the static hash of a fabric costs, where flows collide in it.

A hash of each flow (ECMP) is the default everywhere but on InfiniBand, which routes adaptively: the
results of `run`, `collective` and `plan` name the routing where it makes collectives much slower.
It needs nothing but the topology, so that shapes, fabric files and listed cables are alike.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import numpy as np

from perfmodel.arrays import FloatArray, sending_s
from perfmodel.library.lowering.lowered import LoweredCollective, add_traffic, stage_bytes
from perfmodel.library.machine import Machine
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.steps.simulate_step import timer_of
from perfmodel.studies.run.steps.sized_job import SizedJob
from perfmodel.topology.routing.clos import Ints
from perfmodel.topology.templates.spec import ROUTINGS_OF
from perfmodel.units import format_bytes

NAMED_COST_RATIO = 1.1
"""Time of a collective with the hash over that without collisions, from which it is named."""
DRAWN, SEARCHED = 400_000, 8_000
"""Ways that are drawn by hash, of all flows together, to average over: where they are computed, and
where they have to be searched. Links then carry what they would if flows were spread over all ways,
within a few percent."""


def routing_cost(sized: SizedJob, nbytes: int) -> float:
    """How many times as long an all-reduce takes because of collisions, timed alone; from 1."""
    if not nbytes or len(sized.allocation.own) < 2:
        return 1.0
    timer = timer_of(sized.setup(), ())
    return hash_cost(timer, timer.best("all_reduce", nbytes, sized.allocation.own)[0])


def hash_cost(timer: UncontendedTimer, lowered: LoweredCollective) -> float:
    """How many times as long a collective takes as if flows were spread over all their ways.

    1 on fabrics that cannot spread them.
    """
    machine = timer.machine
    if "adaptive" not in ROUTINGS_OF.get(machine.topology.fabric, ("adaptive",)):
        return 1.0
    arcs, first = machine.topology.arcs, machine.topology.first_cable
    hashed, trunks = np.zeros(len(arcs)), first + 2 * _ports(machine)
    add_traffic(hashed, lowered)
    busy_s = sending_s(hashed, arcs.bandwidth_Bps)
    inside_s, edges_s = busy_s[trunks:].max(initial=0.0), busy_s[first:trunks].max(initial=0.0)
    # no link between switches is busier than a host's own
    if inside_s <= NAMED_COST_RATIO * edges_s:
        return 1.0
    spread = _spread_traffic(machine, lowered, hashed)
    # Links between switches get faster by what spreading saves on the busiest of them. Then it is
    # busy for as long as if traffic were spread, and a flow may be faster than one cable is.
    more = np.ones(len(arcs))
    more[trunks:] = inside_s / sending_s(spread, arcs.bandwidth_Bps)[trunks:].max()
    even = machine.topology.with_arcs(replace(arcs, bandwidth_Bps=arcs.bandwidth_Bps * more))
    return max(
        1.0,
        timer.time_s(lowered) / UncontendedTimer(replace(machine, topology=even)).time_s(lowered),
    )


def _ports(machine: Machine) -> int:
    """Ports of all hosts; their cables are the fabric's first (`perfmodel.topology.fabric`)."""
    return (
        sum(d.kind == "nic" for d in machine.topology.devices.of_host(0)) * machine.topology.hosts
    )


def _spread_traffic(machine: Machine, lowered: LoweredCollective, hashed: FloatArray) -> FloatArray:
    """Bytes on each link if every flow between hosts took all of its ways alike."""
    first, ports = machine.topology.first_cable, _ports(machine)
    nbytes = _bytes_between_ports(lowered, first, ports)
    pairs = np.array(sorted(nbytes), dtype=np.int64).reshape(-1, 2)
    if not len(pairs):
        return hashed
    draws = max(16, (DRAWN if machine.topology.tiers is not None else SEARCHED) // len(pairs))
    src, dst = np.repeat(pairs, draws, axis=0).T
    lengths, arcs = machine.router.across(src, dst, np.arange(len(src)))
    share = np.repeat([nbytes[a, b] / draws for a, b in pairs.tolist()], draws)
    return np.bincount(arcs, np.repeat(share, lengths), minlength=len(hashed)).astype(np.float64)


def _bytes_between_ports(
    lowered: LoweredCollective, first: int, ports: int
) -> dict[tuple[int, int], float]:
    """Bytes that go from one port of a host to another's; not those that end at a switch."""
    between: dict[tuple[int, int], float] = defaultdict(float)
    for stage in lowered.stages:
        edges, sent = stage.edges, stage_bytes(lowered, stage)
        on_cables = (edges.arcs >= first) & (edges.arcs < first + 2 * ports)
        owner = np.repeat(np.arange(len(edges)), np.diff(edges.pointers))[on_cables]
        port: Ints = (edges.arcs[on_cables] - first) // 2
        for at in np.flatnonzero(owner[1:] == owner[:-1]).tolist():
            between[int(port[at]), int(port[at + 1])] += float(sent[owner[at]])
    return between


def describe_routing(cost: float, nbytes: int, op: str = "all_reduce") -> tuple[str, ...]:
    """Name the routing where it makes a collective of this size more than 10 % slower."""
    if cost <= NAMED_COST_RATIO:
        return ()
    name = f"{'an' if op.startswith('a') else 'a'} {op.replace('_', '-')}"
    note = (
        f"The fabric sends each flow one way by a static hash (ECMP), and flows collide: {name} of "
        f"{format_bytes(nbytes)} alone takes {cost:.2g} times as long as if every flow were spread "
        "over all its ways (`cluster.fabric.routing: adaptive`)."
    )
    return (note,)
