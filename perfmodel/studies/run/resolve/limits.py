"""Refuse clusters and runs that would take too much memory or time."""

from __future__ import annotations

from collections.abc import Iterable

from perfmodel.collectives.dependencies import messages_in
from perfmodel.errors import Fault, InputError
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import Machine
from perfmodel.scenario import ClusterSize, Scenario
from perfmodel.topology.templates.build import MOST_GPUS

MESSAGE_SENDS = 2_000_000
"""Sends that fidelity "message" is allowed: a minute or two, some seconds with the extra `fast`."""


def check_message_size(
    machine: Machine,
    collectives: Iterable[tuple[str, int]],
    field: str = "fidelity",
    *,
    algorithm: str | None = None,
    by_cores: bool = False,
) -> None:
    """Refuse a run of single messages whose sends would take minutes.

    `collectives`: among all ranks. Sends are those of the library's schedule: rings, pieces of
        trees and chains, segments.
    `algorithm`: as for `perfmodel.library.lowering.lower.lower_collective`.
    `by_cores`: whether it simulates messages because ranks share cores, and not by its fidelity.
    Raises `InputError`: says how many sends there would be and what to use instead.
    """
    if len(machine.topology.ranks) < 2:
        return
    group = range(len(machine.topology.ranks))
    sends_of: dict[tuple[str, int], int] = {}
    sends = 0
    requested = list(collectives)
    for number, (op, nbytes) in enumerate(requested, 1):
        if (op, nbytes) not in sends_of:
            lowered = lower_collective(
                machine, op, nbytes, group, root=group[0], algorithm=algorithm
            )[0]
            sends_of[op, nbytes] = messages_in(lowered.schedule)
        sends += sends_of[op, nbytes]
        if sends > MESSAGE_SENDS:
            progress = f"{sends:,} sends in {number} of {len(requested)} collectives"
            simulated = "" if by_cores else "'message' for "
            why = "ranks that share cores" if by_cores else "ranks"
            instead = "fewer ranks" if by_cores else "use 'flow', fewer ranks"
            raise InputError(
                Fault(
                    field,
                    f"{simulated}{len(group)} {why} ({progress})",
                    f"at most {MESSAGE_SENDS:,} sends; {instead} or smaller buffers",
                )
            )


MOST_SHARING_GPUS = 2_048
"""GPUs of all jobs of a scenario with several: a change of rates is followed through every step of
every ring, so that this many take a minute of CPU time (ResNet-50 beside VGG-16)."""


def check_sharing_jobs(scenario: Scenario, size: ClusterSize) -> None:
    """Refuse jobs that share a network among more GPUs than can be followed in a minute or so."""
    if not scenario.jobs:
        return
    nodes = [size.nodes, *(job.nodes for job in scenario.jobs)]
    gpus = sum(nodes) * size.gpus_per_node
    if gpus > MOST_SHARING_GPUS:
        largest = nodes.index(max(nodes))
        field = f"jobs.{largest - 1}.nodes" if largest else "cluster.nodes"
        request = f"{max(nodes):,} nodes, of {gpus:,} GPUs in {len(nodes)} jobs"
        allowed = (
            f"at most {MOST_SHARING_GPUS:,} GPUs in all jobs; a larger job runs without 'jobs'"
        )
        raise InputError(scenario.origin.fault(field, request, allowed))


def check_cluster_size(gpus: int, field: str) -> None:
    """Refuse a cluster that would not fit a workstation's memory."""
    if gpus > MOST_GPUS:
        raise InputError(Fault(field, f"{gpus:,} GPUs", f"at most {MOST_GPUS:,} GPUs"))
