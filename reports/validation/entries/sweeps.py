"""Recorded sweeps of collectives that perfmodel does not ship: a prediction for each size."""

from __future__ import annotations

from collections.abc import Container, Sequence
from functools import partial
from pathlib import Path

from perfmodel.library.corrections import band_of, kind_of_machine
from perfmodel.topology.model import Topology
from perfmodel.validate.forecast import Forecast, Mode, Pair, Task, predict
from perfmodel.validate.read import find_sweeps, read_sweeps, sweeps_folder
from perfmodel.validate.run import match_all, prediction_tasks, shipped_folder
from reports.validation.entries.entry import Candidate, Collected, LeftOut, Prediction

TABLE = "nccl_sweeps"
QUANTITIES: dict[Mode, str] = {"datasheet": "time", "transferred": "time with a profile"}
"""From datasheets; with a profile of other runs of the hardware, where there are any."""
NETWORKS = {
    "infiniband": "InfiniBand",
    "roce": "RoCE",
    "efa": "EFA",
    "tcp": "TCP",
    "tcpx": "GPUDirect-TCPX",
    "tcpxo": "GPUDirect-TCPX",
    "omni-path": "Omni-Path",
}


def sweeps_in(folder: Path, in_place: Container[str] = (), *, transfer: bool = True) -> Collected:
    """Find the sweeps of a folder that do not ship.

    `in_place`: those that are judged by their times in place. `transfer`: whether to predict with
    profiles of other runs, too.
    """
    found, home = Collected(), find_sweeps(folder)
    if home is None:
        return found
    shipped = {sweep.id for sweep in read_sweeps(sweeps_folder(shipped_folder()))}
    pairs, unmatched = match_all(home)
    found.left_out += [LeftOut(TABLE, why) for id_, why in unmatched.items() if id_ not in shipped]
    tasks = prediction_tasks(pairs, home, None, transfer=transfer)
    for pair, task in zip(pairs, tasks, strict=True):
        if pair[0].id not in shipped:
            keys = frozenset(
                (_table(pair), _row(pair, row.nbytes), QUANTITIES["datasheet"])
                for row in pair[0].rows
            )
            run = partial(_predict_sweep, pair, task, pair[0].id in in_place)
            found.candidates.append(Candidate(keys, run, task.work))
    return found


def _table(pair: Pair) -> str:
    return pair[0].table or pair[0].id


def _row(pair: Pair, nbytes: int) -> str:
    return f"{pair[0].id}, {nbytes} B"


def _predict_sweep(pair: Pair, task: Task, in_place: bool) -> Sequence[Prediction] | str:
    sweep, matched = pair
    forecast = predict(task)
    if not isinstance(forecast, Forecast):
        return forecast
    group = class_of(matched.topology)
    predictions = []
    for mode, quantity in QUANTITIES.items():
        times = forecast.times.get(mode)
        for at, row in enumerate(sweep.rows if times is not None else ()):
            assert times is not None
            low_s, high_s = (times.interval_s[at] if times.interval_s else None) or (None, None)
            predictions.append(
                Prediction(
                    "collective",
                    group,
                    _table(pair),
                    _row(pair, row.nbytes),
                    quantity,
                    "s",
                    times.time_s[at],
                    low_s,
                    high_s,
                    (row.in_place_s if in_place else None) or row.time_s,
                    band_of(row.nbytes),
                )
            )
    return predictions


def class_of(topology: Topology) -> str:
    """Network that joins hosts; of one host what joins its GPUs."""
    if topology.hosts > 1:
        return NETWORKS.get(topology.network, topology.network)
    return "PCIe" if "PCIe" in kind_of_machine(topology) else "NVLink"
