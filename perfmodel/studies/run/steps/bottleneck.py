"""What limits a step: the part without which a simulated step is shorter."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from perfmodel.arrays import FloatArray
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.result.model import Bottleneck, Relief, SizeResult
from perfmodel.studies.run.result.usage import LinkEnds
from perfmodel.studies.run.steps.reliefs import (
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
from perfmodel.topology.arcs import Device
from perfmodel.topology.model import Topology
from perfmodel.training.plan.step_plan import Collective, StepPlan

BETWEEN_HOSTS = frozenset({"ethernet", "infiniband"})

_TIERS = ("leaf", "edge", "agg", "spine", "core")
"""Switches of a fabric by the names that they begin with, from the hosts up."""
_TIER_NAMES = {
    "leaf": "leaf switch",
    "edge": "edge switch",
    "agg": "aggregation switch",
    "spine": "spine",
    "core": "core",
}


_AS_BUSY = 0.9
"""Share of the busiest link's time from which a link is as busy: what limits one limits both."""

Ends = tuple[tuple[str, Device], tuple[str, Device]]
"""Both devices of a link, each with its name."""
ByKind = Mapping[str, tuple[str, Device]]
"""The same by the kind of device; of two same_kind, the second."""


def ends_of(topology: Topology, arc: int) -> LinkEnds:
    """Return a link by its ends."""
    src, dst = topology.arcs.names[arc]
    kinds = topology.devices[src].kind, topology.devices[dst].kind
    return LinkEnds(src, dst, topology.arcs.kinds[arc], kinds)


def name_busiest(topology: Topology, busy_s: FloatArray) -> str:
    """Name the busiest link, with its like: "the hosts' NICs" where all of them are as busy.

    Parameters
    ----------
    topology : Topology
    busy_s : ndarray, shape (arcs,)
        How long each link is busy in a step; seconds. Of links that are not asked about, 0 or less.
    """
    arc = int(np.argmax(busy_s))
    first, size = _blocks(topology, arc)
    if not size or first + topology.hosts * size > len(busy_s):
        return name_link(topology, arc)
    parts = _parts_like(topology, arc, arc - (arc - first) % size, size)
    busy = busy_s[first : first + topology.hosts * size].reshape(topology.hosts, size)
    busy = busy[:, list(parts)]
    used, as_busy = (busy > 0).any(axis=1), busy >= _AS_BUSY * busy_s[arc]
    somewhere = as_busy.any(axis=0)
    busiest = {part for part, is_so in zip(parts.values(), somewhere, strict=True) if is_so}
    everywhere = bool(as_busy[used].any(axis=1).all())
    if not everywhere or (np.count_nonzero(used) == 1 and len(busiest) == 1):
        return name_link(topology, arc)
    if len(busiest) == 1:
        return re.sub(r"\bhost \d+", "each host", name_link(topology, arc))
    return _PLURALS[_sort_of(topology, arc)]


def _blocks(topology: Topology, arc: int) -> tuple[int, int]:
    """Where links of hosts of the sort of `arc` begin, and how many each has; none of a trunk.

    Cables of hosts' ports are the first of a fabric, host by host (`perfmodel.topology.fabric`).
    """
    if arc < topology.first_cable:
        return 0, topology.host_arcs
    ends = topology.arcs.names[arc]
    if not any(topology.devices[end].kind == "nic" for end in ends):
        return 0, 0
    inside = {end for link in topology.arcs.names[: topology.host_arcs] for end in link}
    return topology.first_cable, 2 * sum(topology.devices[end].kind == "nic" for end in inside)


def _parts_like(topology: Topology, arc: int, start: int, size: int) -> dict[int, str]:
    """Links of a host that are of one sort with `arc`, by place in its block: the part of each."""
    sort = _sort_of(topology, arc)
    return {
        place: name_link(topology, start + place)
        for place in range(size)
        if _sort_of(topology, start + place) == sort
    }


def _sort_of(topology: Topology, arc: int) -> str:
    """Key of `_PLURALS`: kind of link, and for PCIe whose."""
    kind = topology.arcs.kinds[arc]
    if kind in BETWEEN_HOSTS:
        return "nic"
    if kind != "pcie":
        return kind
    ends = {topology.devices[end].kind for end in topology.arcs.names[arc]}
    return next((f"pcie {owner}" for owner in ("gpu", "nic", "pcie_switch") if owner in ends), kind)


_PLURALS = {
    "nic": "the hosts' NICs",
    "upi": "the links between CPUs",
    "memory": "the hosts' memory",
    "nvlink": "the GPUs' NVLink",
    "c2c": "the CPUs' links to GPUs (C2C)",
    "pcie gpu": "the GPUs' PCIe",
    "pcie nic": "the NICs' PCIe",
    "pcie pcie_switch": "the hosts' PCIe switches",
    "pcie": "the hosts' PCIe",
}
"""Links of one sort in all hosts, by what `_sort_of` calls them."""


def name_link(topology: Topology, arc: int) -> str:
    """Name a link by the part that somebody buys.

    Parameters
    ----------
    topology : Topology
    arc : int
        Number of the link, in either direction.

    Examples
    --------
    >>> from perfmodel.topology import build_cluster
    >>> cluster = build_cluster("v100-x8-25g", nodes=2, fabric="one-switch")
    >>> name_link(cluster, cluster.arcs.names.index(("n1/nic0", "fabric/switch0")))
    "host 1's NIC"
    """
    src, dst = topology.arcs.names[arc]
    kind = topology.arcs.kinds[arc]
    ends = (src, topology.devices[src]), (dst, topology.devices[dst])
    by_kind: ByKind = {device.kind: (name, device) for name, device in ends}
    if kind in BETWEEN_HOSTS:
        if "nic" in by_kind:
            return _part(topology, by_kind["nic"][1], "NIC")
        return _trunk(src, dst)
    host = _host(ends[0][1])
    whole = {"upi": f"the link between {host}'s CPUs", "memory": f"{host}'s memory"}
    if kind in whole:
        return whole[kind]
    if kind == "nvlink":
        return f"NVLink of {_gpus(topology, by_kind, ends)}"
    if kind == "c2c":
        return f"the CPU's link (C2C) of {_gpus(topology, by_kind, ends)}"
    return _on_pcie(topology, by_kind, ends)


def _on_pcie(topology: Topology, by_kind: ByKind, ends: Ends) -> str:
    if "gpu" in by_kind:
        return f"PCIe of {_gpus(topology, by_kind, ends)}"
    if "nic" in by_kind:
        return f"PCIe of {_part(topology, by_kind['nic'][1], 'NIC')}"
    if "pcie_switch" in by_kind:
        return _part(topology, by_kind["pcie_switch"][1], "PCIe switch")
    return f"{_host(ends[0][1])}'s PCIe"


def _gpus(topology: Topology, by_kind: ByKind, ends: Ends) -> str:
    numbers = [_number(device.local) for _, device in ends if device.kind == "gpu"]
    if len(numbers) == 2 and ends[0][1].host == ends[1][1].host:
        return f"{_host(ends[0][1])}'s GPUs {numbers[0]} and {numbers[1]}"
    if "gpu" not in by_kind:
        return f"{_host(ends[0][1])}'s GPUs" if ends[0][1].host >= 0 else "the rack's GPUs"
    return _part(topology, by_kind["gpu"][1], "GPU")


def _part(topology: Topology, device: Device, name: str) -> str:
    """Name a part of a host, with its number where the host has several."""
    first = device.host * topology.host_arcs
    ends = topology.arcs.names[first : first + topology.host_arcs] if device.host >= 0 else ()
    same_kind = {
        name for link in ends for name in link if topology.devices[name].kind == device.kind
    }
    several = len(same_kind) > 1
    return f"{_host(device)}'s {name}{f' {_number(device.local)}' if several else ''}"


def _host(device: Device) -> str:
    return f"host {device.host}" if device.host >= 0 else "the fabric"


def _number(local: str) -> str:
    numbers = re.findall(r"\d+", local)
    return str(numbers[-1]) if numbers else local


def _trunk(src: str, dst: str) -> str:
    """Name a link between two switches by the lower one and the tier above."""
    ends = [(_tier(name), name) for name in (src, dst)]
    (low, lower), (high, _) = sorted(ends, key=lambda end: _rank(end[0]))
    if low not in _TIERS or high not in _TIERS:
        return f"the cable between {src.removeprefix('fabric/')} and {dst.removeprefix('fabric/')}"
    number = _number(lower.rpartition("/")[2])
    direction = "up from" if src == lower else "down to"
    return f"{_TIER_NAMES[high]}, {direction} {_TIER_NAMES[low]} {number}"


def _tier(name: str) -> str:
    return re.sub(r"\d.*", "", name.rpartition("/")[2]).rstrip("-_")


def _rank(tier: str) -> int:
    return _TIERS.index(tier) if tier in _TIERS else len(_TIERS)


# ---------------------------------------------------------------- what limits a step

_LIBRARIES = {"nccl": "NCCL", "gloo": "Gloo", "mpi": "MPI"}


def name_bottleneck(
    sized: SizedJob, reported: ReportedRun, point: SizeResult, reliefs: Sequence[Relief]
) -> Bottleneck:
    """Name what limits a step: "compute", the host, an event, latency, or links.

    It is what saves most where it is no limit (`reliefs`, the largest first), or an event that
    costs more than any single limit; compute where that is no more than 1 % of the step. Of the
    links of a kind, it is the one that its bytes keep busy for longest, or all in hosts alike.
    """
    elsewhere = beside_communication(point, reliefs, _rival_s(reliefs))
    if elsewhere is not None:
        return elsewhere
    best = reliefs[0]
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


def beside_communication(
    point: SizeResult, reliefs: Sequence[Relief], rival_s: float
) -> Bottleneck | None:
    """Name an event, compute or the host; None where communication limits the step.

    `rival_s`: what an event has to cost to be named.
    """
    least_s = WORTH_NAMING * point.step_time_s
    events = () if point.disturbance is None else point.disturbance.events
    event = max(events, key=lambda event: event.costs_s, default=None)
    if event is not None and event.costs_s > max(least_s, rival_s):
        return Bottleneck("event", event.what, event.what)
    if not reliefs or reliefs[0].saves_s <= least_s:
        return Bottleneck("compute", "compute", "compute")
    if reliefs[0].parts == (HOST.name,):
        return Bottleneck("host", f"host ({HOST.name})", f"host ({HOST.name})")
    return None


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
