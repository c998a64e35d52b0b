"""Refuse clusters and runs that would take too much memory or time."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from perfmodel.arrays import RankGroup
from perfmodel.collectives.dependencies import messages_in
from perfmodel.errors import Fault, InputError
from perfmodel.library.lowering.lower import Algorithm, lower_collective, lower_message
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.machine import Machine
from perfmodel.scenario import ClusterSize, Scenario
from perfmodel.simulate.reference import MOST_SENDS
from perfmodel.simulate.sockets.core_work import PIECE_BYTES
from perfmodel.simulate.uncontended import MESSAGES, message_pairs
from perfmodel.topology.templates.build import MOST_GPUS

Groups = tuple[RankGroup, ...]

MESSAGE_SENDS = 5_000_000
"""Sends that fidelity "message" is allowed: half a minute, minutes where numba is missing.
A ring of 512 GPUs on 8 channels has 4.2 million."""
MOST_SOCKETS_S = 60.0
"""CPU time that messages on sockets are allowed, all simulations of a size together."""
SEND_S, LINK_S, PIECE_S = 10e-6, 4e-6, 5e-6
"""CPU time of a message on sockets, of each link that it crosses, and of each piece of it that a
receiver has to process where processes share cores. Measured on one core of an AMD EPYC: 18 us for
3 links, 40 to 55 us for 10, 79 to 105 us with 9 pieces."""


def check_message_size(
    machine: Machine,
    collectives: Iterable[tuple[str, int] | tuple[str, int, Groups]],
    field: str = "fidelity",
    *,
    fidelity: str = "message",
    algorithm: Algorithm | None = None,
    sockets: bool = False,
    by_cores: bool = False,
    simulations: float = 1.0,
) -> None:
    """Refuse a run of single messages whose sends would take minutes.

    `collectives`: operation and bytes, among all ranks or in each of some groups. Sends are those
        of the library's schedule: rings, pieces of trees and chains, segments.
    `fidelity`: "message", or another one that simulates sends.
    `algorithm`: as for `perfmodel.library.lowering.lower.lower_collective`.
    `sockets`: whether messages are on sockets, and so limited by their CPU time.
    `by_cores`: whether it simulates messages because ranks share cores, and not by its fidelity.
    `simulations`: how often all of them are simulated.
    Raises `InputError`: says how many sends there would be and what to use instead.
    """
    if len(machine.topology.ranks) < 2:
        return
    group = range(len(machine.topology.ranks))
    work_of: dict[tuple[str, int, Groups], tuple[int, float]] = {}
    sends, work_s = 0, 0.0
    most = MOST_SENDS if fidelity == "reference" else MESSAGE_SENDS
    requested = list(collectives)
    for number, (op, nbytes, *among) in enumerate(requested, 1):
        groups = among[0] if among else (group,)
        key = (op, nbytes, groups)
        if key not in work_of:
            lowered, copies = _sample(machine, op, nbytes, groups, algorithm)
            each = messages_in(lowered.schedule) * copies
            work_of[key] = (each, simulations * _sockets_s(machine, lowered, each))
        sends += work_of[key][0]
        work_s += work_of[key][1]
        if work_s > MOST_SOCKETS_S if sockets else sends > most:
            progress = f"{sends:,} sends in {number} of {len(requested)} collectives"
            allowed = f"at most {most:,} sends"
            if sockets:
                progress += f", {work_s:.0f} s of CPU time"
                allowed = f"at most {MOST_SOCKETS_S:.0f} s"
            simulated = "" if by_cores else f"'{fidelity}' for "
            why = "ranks that share cores" if by_cores else "ranks"
            instead = "fewer ranks" if by_cores else "use 'flow', fewer ranks"
            raise InputError(
                Fault(
                    field,
                    f"{simulated}{len(group)} {why} ({progress})",
                    f"{allowed}; {instead} or smaller buffers",
                )
            )


def _sample(
    machine: Machine, op: str, nbytes: int, groups: Groups, algorithm: Algorithm | None
) -> tuple[LoweredCollective, int]:
    """One of the collectives of some groups, and how many like it there are."""
    if op in MESSAGES:
        pairs = [pair for group in groups for pair in message_pairs(op, group)]
        return lower_message(machine, *pairs[0], nbytes), len(pairs)
    lowered = lower_collective(
        machine, op, nbytes, groups[0], root=groups[0][0], algorithm=algorithm
    )[0]
    return lowered, len(groups)


def _sockets_s(machine: Machine, lowered: LoweredCollective, messages: int) -> float:
    """Estimate the CPU time of simulating a collective of so many messages on sockets; seconds."""
    stages = lowered.stages
    edges = sum(len(stage.edges) for stage in stages)
    links = sum(len(stage.edges.arcs) for stage in stages) / max(1, edges)
    longest = max(
        (float(np.max(phase.nbytes)) for stage in stages for phase in stage.phases), default=0.0
    )
    pieces = 0.0 if machine.topology.sockets.cores is None else longest / PIECE_BYTES
    return messages * (SEND_S + LINK_S * links + PIECE_S * pieces)


MOST_SHARED_WORK = 6_400
"""GPUs of all jobs of a scenario with several, times their number: each change of rates is followed
by all of them, in simulations with and without each. Ten jobs of 64 V100s that train convolutions
take 80 s of CPU time, five of 64 A100s that train transformers half a minute."""
MOST_MEETINGS = 32_768
"""GPUs of all jobs of a scenario with few, times the cube of their number. Two jobs on 4,096 GPUs
take 11 s of CPU time (ResNet-50 beside VGG-16); transformers on 8,192 take minutes."""


def most_sharing_gpus(jobs: int) -> int:
    """GPUs that some jobs on one network may have in all."""
    return max(MOST_SHARED_WORK // jobs, MOST_MEETINGS // jobs**3)


def check_sharing_jobs(scenario: Scenario, size: ClusterSize) -> None:
    """Refuse jobs that share a network among more GPUs than can be followed in minutes."""
    if not scenario.jobs:
        return
    nodes = [size.nodes, *(job.nodes for job in scenario.jobs)]
    gpus = sum(nodes) * size.gpus_per_node
    most = most_sharing_gpus(len(nodes))
    if gpus > most:
        largest = nodes.index(max(nodes))
        field = f"jobs.{largest - 1}.nodes" if largest else "cluster.nodes"
        request = f"{max(nodes):,} nodes, of {gpus:,} GPUs in {len(nodes)} jobs"
        allowed = f"at most {most:,} GPUs in all jobs; a larger job runs without 'jobs'"
        raise InputError(scenario.origin.fault(field, request, allowed))


def check_cluster_size(gpus: int, field: str) -> None:
    """Refuse a cluster that would not fit a workstation's memory."""
    if gpus > MOST_GPUS:
        raise InputError(Fault(field, f"{gpus:,} GPUs", f"at most {MOST_GPUS:,} GPUs"))
