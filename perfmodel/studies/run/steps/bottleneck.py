"""What limits a step: the part without which a simulated step is shorter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import attrgetter

import numpy as np

from perfmodel.arrays import FloatArray, sending_s
from perfmodel.memo import grouped
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.what_if import BETWEEN_NODES
from perfmodel.studies.run.result import Bottleneck, Relief, SizeResult
from perfmodel.studies.run.steps.reliefs import (
    HOST,
    LATENCY,
    LINKS,
    MEMORY,
    MOST_OF_IT,
    PARTS,
    WORTH_NAMING,
    join_words,
)
from perfmodel.studies.run.steps.simulate_step import ReportedRun, simulate_steps, timer_of
from perfmodel.studies.run.steps.sized_job import SizedJob
from perfmodel.studies.run.usage import LinkEnds
from perfmodel.topology.arcs import Device
from perfmodel.topology.model import Topology
from perfmodel.training.plan.step_plan import Collective, StepPlan

_TIER_NAMES = {
    "leaf": "leaf switch",
    "edge": "edge switch",
    "agg": "aggregation switch",
    "spine": "spine",
    "core": "core",
}
"""Switches of a fabric by the names that they begin with, from the hosts up."""

_AS_BUSY_SHARE = 0.9
"""Share of the busiest link's time from which a link is as busy: what limits one limits both."""


def ends_of(topology: Topology, arc: int) -> LinkEnds:
    """Return a link by its ends."""
    src, dst = topology.arcs.names[arc]
    return LinkEnds(
        src, dst, topology.arcs.kinds[arc], (topology.devices[src].kind, topology.devices[dst].kind)
    )


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
    sort, start = _sort_of(topology, arc), arc - (arc - first) % size
    alike = [at for at in range(size) if _sort_of(topology, start + at) == sort]
    busy = busy_s[first : first + topology.hosts * size].reshape(topology.hosts, size)[:, alike]
    used, as_busy = (busy > 0).any(axis=1), busy >= _AS_BUSY_SHARE * busy_s[arc]
    busiest = {
        name_link(topology, start + at)
        for at, is_so in zip(alike, as_busy.any(axis=0), strict=True)
        if is_so
    }
    everywhere = bool(as_busy[used].any(axis=1).all())
    if everywhere and len(busiest) > 1:
        return _NAMES[sort][1]
    name = name_link(topology, arc)
    several = everywhere and np.count_nonzero(used) > 1
    return re.sub(r"\bhost \d+", "each host", name) if several else name


def _blocks(topology: Topology, arc: int) -> tuple[int, int]:
    """Where links of hosts of the sort of `arc` begin, and how many each has; none of a trunk.

    Cables of hosts' ports are the first of a fabric, host by host (`perfmodel.topology.fabric`).
    """
    if arc < topology.first_cable:
        return 0, topology.host_arcs
    if not any(topology.devices[end].kind == "nic" for end in topology.arcs.names[arc]):
        return 0, 0
    return topology.first_cable, 2 * sum(
        topology.devices[end].kind == "nic"
        for end in {end for link in topology.arcs.names[: topology.host_arcs] for end in link}
    )


def _sort_of(topology: Topology, arc: int) -> str:
    """Key of `_NAMES`: kind of link, and for PCIe whose."""
    kind: str = topology.arcs.kinds[arc]
    if kind in BETWEEN_NODES:
        return "nic"
    if kind != "pcie":
        return kind
    ends = {topology.devices[end].kind for end in topology.arcs.names[arc]}
    return next((f"pcie {owner}" for owner in ("gpu", "nic", "pcie_switch") if owner in ends), kind)


_NAMES = {
    "nic": ("{nic}", "the hosts' NICs"),
    "upi": ("the link between {host}'s CPUs", "the links between CPUs"),
    "memory": ("{host}'s memory", "the hosts' memory"),
    "nvlink": ("NVLink of {gpus}", "the GPUs' NVLink"),
    "c2c": ("the CPU's link (C2C) of {gpus}", "the CPUs' links to GPUs (C2C)"),
    "pcie gpu": ("PCIe of {gpus}", "the GPUs' PCIe"),
    "pcie nic": ("PCIe of {nic}", "the NICs' PCIe"),
    "pcie pcie_switch": ("{pcie_switch}", "the hosts' PCIe switches"),
    "pcie": ("{host}'s PCIe", "the hosts' PCIe"),
}
"""One link of a sort, and the links of this sort in all hosts, by what `_sort_of` calls them."""
_PARTS = {"nic": "NIC", "pcie_switch": "PCIe switch"}
"""Parts of a host that a link is named after, by kind of device."""


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
    ends, sort = (topology.devices[src], topology.devices[dst]), _sort_of(topology, arc)
    parts = {
        each.kind: _part(topology, each, _PARTS[each.kind]) for each in ends if each.kind in _PARTS
    }
    if sort == "nic" and not parts:
        return _trunk(src, dst)
    return _NAMES[sort][0].format(host=_host(ends[0]), gpus=_gpus(topology, ends), **parts)


def _gpus(topology: Topology, ends: tuple[Device, Device]) -> str:
    """Name the GPUs at the ends of a link; all of a host where there is none."""
    gpus, host = [device for device in ends if device.kind == "gpu"], ends[0].host
    if len(gpus) == 2 and host == ends[1].host:
        return f"{_host(ends[0])}'s GPUs {' and '.join(_number(gpu.local) for gpu in gpus)}"
    if gpus:
        return _part(topology, gpus[-1], "GPU")
    return f"{_host(ends[0])}'s GPUs" if host >= 0 else "the rack's GPUs"


def _part(topology: Topology, device: Device, name: str) -> str:
    """Name a part of a host, with its number where the host has several."""
    first = device.host * topology.host_arcs
    ends = topology.arcs.names[first : first + topology.host_arcs] if device.host >= 0 else ()
    same_kind = {
        name for link in ends for name in link if topology.devices[name].kind == device.kind
    }
    number = f" {_number(device.local)}" if len(same_kind) > 1 else ""
    return f"{_host(device)}'s {name}{number}"


def _host(device: Device) -> str:
    return f"host {device.host}" if device.host >= 0 else "the fabric"


def _number(local: str) -> str:
    numbers = re.findall(r"\d+", local)
    return str(numbers[-1]) if numbers else local


def _trunk(src: str, dst: str) -> str:
    """Name a link between two switches by the lower one and the tier above."""
    local = {name: name.rpartition("/")[2] for name in (src, dst)}
    tier_of = {name: re.sub(r"\d.*", "", own).rstrip("-_") for name, own in local.items()}
    if not _TIER_NAMES.keys() >= set(tier_of.values()):
        return f"the cable between {src.removeprefix('fabric/')} and {dst.removeprefix('fabric/')}"
    lower, upper = sorted((src, dst), key=lambda name: list(_TIER_NAMES).index(tier_of[name]))
    low, high = (_TIER_NAMES[tier_of[name]] for name in (lower, upper))
    return f"{high}, {'up from' if src == lower else 'down to'} {low} {_number(local[lower])}"


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
    # Of an event's rivals, several limits together count for half.
    shares = (each.saves_s * (MOST_OF_IT if len(each.parts) > 1 else 1.0) for each in reliefs)
    elsewhere = beside_communication(point, reliefs, max(shares, default=0.0))
    if elsewhere is not None:
        return elsewhere
    timer = timer_of(reported.setup, sized.disturbances)
    topology = timer.machine.topology
    rows = _limits(reliefs[0], reported.plan, timer, _busy_s(sized, reported, timer))
    links = [ends_of(topology, int(np.argmax(busy_s))) for _, busy_s in rows]
    paths = [text.format(link) for (text, _), link in zip(rows, links, strict=True)]
    texts = [text.format(name_busiest(topology, busy_s)) for text, busy_s in rows]
    named = [link for (text, _), link in zip(rows, links, strict=True) if "{}" in text]
    return Bottleneck("communication", join_words(texts), " and ".join(paths), tuple(named))


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


def _limits(
    relief: Relief, plan: StepPlan, timer: UncontendedTimer, busy_s: FloatArray
) -> list[tuple[str, FloatArray]]:
    """Texts of the parts of a relief, each with a place for the busiest link of some.

    `busy_s`: how long each link is busy; that of the links that a text is about comes with it.
    """
    kinds, own = timer.machine.topology.arcs.kinds, timer.machine.library.name
    algorithm, staged = _largest_collective(plan, timer)
    over = "" if len(relief.parts) > 1 else ", over {}"
    texts = {LATENCY: f"latency of the {algorithm}'s steps{over}", **dict.fromkeys(LINKS, "{}")}
    if staged:
        texts[MEMORY] = "staging in host memory, over {}"
    library = f"{_LIBRARIES.get(own, own)} itself{over}"
    return [
        (
            texts.get(part, library),
            np.where(kinds.among(part.kinds), busy_s, -1.0) if part.kinds else busy_s,
        )
        for part in (PARTS[each] for each in relief.parts)
    ]


def _busy_s(sized: SizedJob, reported: ReportedRun, timer: UncontendedTimer) -> FloatArray:
    """How long each link is busy in a step; 0 for those with bytes of others alone; seconds."""
    rates_Bps, own_run = timer.machine.topology.arcs.bandwidth_Bps, reported.run
    if any(each.traffic or each.background_job for each in sized.disturbances):
        own = [d for d in sized.disturbances if not (d.traffic or d.background_job or d.jitter)]
        own_run = simulate_steps(reported.setup, own, reported.steps if own else 1).run
    usable = (own_run.counted.wire_bytes > 0) & (rates_Bps > 0)  # not dead ones
    nbytes = reported.run.counted.wire_bytes / reported.steps
    return sending_s(np.where(usable, nbytes, 0.0), rates_Bps)


def _largest_collective(plan: StepPlan, timer: UncontendedTimer) -> tuple[str, bool]:
    """Algorithm that moves most, and whether staging caps its slowest edge."""
    works = [task.work for task in plan.tasks if isinstance(task.work, Collective)]
    most = max(
        grouped((work.op, work) for work in works).values(),
        key=lambda same: sum(each.times * each.nbytes for each in same),
    )
    work = max(most, key=attrgetter("nbytes"))
    lowered, _ = timer.best(
        work.op, work.nbytes, max(plan.groups_of[work.communicator], key=len), work.root
    )
    slowest = [(stage, timer.rates(stage)) for stage in lowered.stages]
    return lowered.schedule.algorithm, any(
        rates.min() >= stage.cap_Bps[int(np.argmin(rates))] * (1 - 1e-9) for stage, rates in slowest
    )
