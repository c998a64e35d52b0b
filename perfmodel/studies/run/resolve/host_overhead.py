"""What a step takes of the host: CPU time of its process, and rates of its memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.errors import TopologyError
from perfmodel.library.machine import Machine
from perfmodel.library.model import CommLibrary
from perfmodel.topology.model import Drives, Gpu, Sockets
from perfmodel.training.strategy import NO_CORE_WORK, CoreWork


@dataclass(frozen=True, slots=True)
class HostWork:
    """CPU time of a step of DistributedDataParallel beyond layers and collectives.

    `step_s`: after the last gradients are reduced: Python, and copies and memory of all gradients.
    `cast_Bps`: rate at which a compressing hook converts gradients.
    `copies_Bps`: instead of the GPU's rate of copies to and from buckets: infinite where `step_s`
        holds the time of these copies.
    `core`: core time that backward needs.
    """

    step_s: float = 0.0
    cast_Bps: float | None = None
    copies_Bps: float | None = None
    core: CoreWork = NO_CORE_WORK


def host_work(
    library: CommLibrary,
    gpu: Gpu,
    sockets: Sockets,
    gradients_bytes: Sequence[float],
    ranks: int,
    *,
    views: bool,
    copies_measured: bool = False,
) -> HostWork:
    """Compute the CPU time of a step in each of several processes.

    `library`: holds the measured numbers.
    `gpu`: for real ones the time is zero.
    `sockets`: the cores that all processes share; more processes than cores take turns.
    `gradients_bytes`: of each tensor of one rank.
    `views`: gradients are views of their buckets: what is copied to a bucket is not copied back.
    `copies_measured`: the model's own times state the rate of copies, which is kept.
    """
    if gpu.generation != "cpu":
        return HostWork()
    in_turn = 1.0 if sockets.cores is None else max(1.0, ranks / sockets.cores)
    python_s = (library.host_step + len(gradients_bytes) * library.host_tensor) / sockets.core_speed
    core = CoreWork(library.core_layer, library.core_gradient, library.host_copies or math.inf)
    casts_Bps = None if library.host_casts is None else library.host_casts / in_turn
    if library.host_copies is None or copies_measured:
        return HostWork(python_s * in_turn, casts_Bps, core=core)
    copied_s = sum(gradients_bytes) / library.host_copies * (0.5 if views else 1.0)
    return HostWork((python_s + copied_s) * in_turn, casts_Bps, math.inf, core)


# ---------------------------------------------------------------- memory of the host

HOST_MEMORY_BPS = 2 * 204.8e9
"""Memory bandwidth of a host where the topology has no memory: two CPUs, each with eight channels
of DDR4-3200 (AMD EPYC 7002 data sheet). Assumption: element-wise work on all cores reaches it."""


@dataclass(frozen=True, slots=True)
class HostMemory:
    """Shares of one GPU while all GPUs of its host do the same; bytes per second.

    `link_Bps`: of the way between a GPU and its host's memory, one direction; None where the
        topology has no such way.
    `memory_Bps`: of the memory bandwidth of the host's CPUs.
    `drives`: of the drives' rates; their capacity is the host's. None where it states none.
    `capacity_bytes`: of all memory of the host, not of a share; None where it is not stated.
    """

    link_Bps: float | None
    memory_Bps: float
    drives: Drives | None = None
    capacity_bytes: float | None = None


NO_HOST_MEMORY = HostMemory(None, HOST_MEMORY_BPS)


def host_memory(machine: Machine) -> HostMemory:
    """Find the rates of the first host, whose GPUs share what their ways have in common."""
    topology, router = machine.topology, machine.router
    gpus = topology.ranks[: topology.gpus_per_host]
    rates = topology.arcs.bandwidth_Bps
    try:
        ends = {gpu: router.nearest_cpu(gpu) for gpu in gpus}
        memories = {cpu: router.memory_of(cpu) for cpu in ends.values()}
        routes = [router.route(gpu, memories[cpu] or cpu) for gpu, cpu in ends.items()]
        inside = [router.route(cpu, memory) for cpu, memory in memories.items() if memory]
    except TopologyError:
        return NO_HOST_MEMORY
    users = Counter(arc for route in routes for arc in route)
    link_Bps = min((float(rates[arc]) / number for arc, number in users.items()), default=None)
    total_Bps = sum(float(rates[list(route)].min()) for route in inside) or HOST_MEMORY_BPS
    drives = topology.drives
    if drives is not None:
        shares = (drives.read_Bps / len(gpus), drives.write_Bps / len(gpus))
        drives = Drives(*shares, drives.capacity_bytes)
    return HostMemory(link_Bps, total_Bps / len(gpus), drives, topology.host_memory_bytes)
