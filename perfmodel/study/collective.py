"""What nccl-tests would print for a machine."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import simpy

from perfmodel.collectives.cost import bus_factor
from perfmodel.library.carry import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine import Fidelity
from perfmodel.simulate.estimate import Estimator
from perfmodel.simulate.flow import FlowNetwork
from perfmodel.simulate.message import MessageNetwork
from perfmodel.study.limits import check_message_size
from perfmodel.topology.model import Topology


def collective_rows(
    topology: Topology,
    *,
    op: str = "all_reduce",
    sizes: Iterable[int],
    algorithm: str = "auto",
    library: str = "nccl",
    fidelity: Fidelity = "flow",
    progress: Callable[[int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Time one collective over all ranks of a machine at several sizes.

    Parameters
    ----------
    topology : Topology
    op : str
    sizes : iterable of int
        As nccl-tests counts them; bytes.
    algorithm : {"auto", "ring"}
    library : str
    fidelity : {"flow", "message"}
    progress : callable, optional
        Called with (done, total).

    Returns
    -------
    list of dict
        One row per size with nbytes, time_s, algbw_Bps, busbw_Bps, algorithm, protocol, interval_s.

    Raises
    ------
    InputError
        Too many ranks for fidelity "message".
    """
    if algorithm not in {"auto", "ring"}:  # the command line allows no other
        raise ValueError(algorithm)
    machine = Machine(topology, load_library(library))
    wanted = list(sizes)
    if fidelity == "message":
        check_message_size(machine, len(wanted))
    rows = []
    for done, nbytes in enumerate(wanted):
        rows.append(_row(machine, op, nbytes, fidelity))
        if progress is not None:
            progress(done + 1, len(wanted))
    return rows


def _row(machine: Machine, op: str, nbytes: int, fidelity: Fidelity) -> dict[str, Any]:
    env = simpy.Environment()
    network = (FlowNetwork if fidelity == "flow" else MessageNetwork)(env, Estimator(machine))
    ranks = range(len(machine.topology.ranks))
    way = None
    if len(ranks) > 1:
        env.run(until=network.collective(op, nbytes, (ranks,), 0))
        way = network.estimator.best(op, nbytes, ranks, 0)[0]
    time_s = float(env.now)
    algbw_Bps = nbytes / time_s if time_s > 0 else 0.0
    return {
        "nbytes": nbytes,
        "time_s": time_s,
        "algbw_Bps": algbw_Bps,
        "busbw_Bps": algbw_Bps * bus_factor(op, len(ranks)),
        "algorithm": way.schedule.algorithm if way else "none",
        "protocol": way.protocol if way else "none",
        "interval_s": None,
    }
