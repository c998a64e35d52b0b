"""NCCL's choice on a machine: what it would run for an operation, a size and a group."""

from __future__ import annotations

import numpy as np

from perfmodel.library.carried import Group, Machine
from perfmodel.library.nccl.system import System, system_of
from perfmodel.library.nccl.tuner import Prediction, predictions


def system_on(machine: Machine, group: Group) -> System:
    """What NCCL knows of a group; looked up once for all groups of the same GPUs on each host."""

    def found() -> System:
        seen = machine.decides_on or machine
        return system_of(seen.topology, seen.router, group, machine.settings)

    def of_this_shape() -> System:
        ranks, size = np.asarray(group, dtype=np.int64), machine.topology.gpus_per_host
        hosts, counts = np.unique(ranks // size, return_counts=True)
        local = tuple((ranks % size).tolist())
        of_one = local[: len(local) // len(hosts)]
        alike = bool((counts == counts[0]).all()) and local == of_one * len(hosts)
        if not alike or machine.topology.dead:
            return found()
        return machine.known(("nccl system", of_one, len(hosts)), found)

    return machine.known(("nccl system", group), of_this_shape)


def choices(machine: Machine, op: str, nbytes: float, group: Group) -> tuple[Prediction, ...]:
    """NCCL's estimates for this machine, its choice first.

    Parameters
    ----------
    machine : Machine
    op : str
        One of `perfmodel.library.nccl.tuner.OPS`.
    nbytes : float
    group : range or tuple of int
        Ranks of the topology, at least two.

    Raises
    ------
    InputError
        No such operation, or the environment leaves nothing that can run here.
    """
    return predictions(system_on(machine, group), op, nbytes, machine.settings)
