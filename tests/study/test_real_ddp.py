"""Simulated steps beside real ones: PyTorch 2.13 DDP over gloo and shaped TCP links.

Own measurements. ``real_ddp_runs.csv`` holds 84 runs of real DistributedDataParallel between
network namespaces of one machine: 2 and 4 ranks, 200 to 1000 Mbit/s, two models
(``real_ddp_models.csv``: tensors, and compute times emulated by sleeping), seven bucket caps;
median step times, no added latency. ``real_ddp_latency_runs.csv`` holds 40 more, with 1 ms added
one way.

What the model takes from elsewhere, all of it measured apart from these runs: of the links, plain
TCP's payload rate less the share of the acknowledgements that travel the other way (66 bytes per
two segments), and half of its round trip; 0.35 ms of host time per step; and Gloo as
``library/gloo.yaml`` has it, whose time per ring step is that of bare all-reduces of two processes.
What it leaves out, and the errors that remain with latency: the shapers let up to 64 KB through at
once after a pause, and a ready message of one bucket waits behind the data of another.
"""

from __future__ import annotations

import csv
import statistics
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from perfmodel.library.carry import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine import simulate
from perfmodel.topology.model import Topology
from perfmodel.training.buckets import ddp_buckets
from perfmodel.training.ddp import ddp_plan
from perfmodel.training.options import DdpOptions, cap_bytes
from perfmodel.workload.model import Layer, LayerTimes, Tensor, Workload

Row = dict[str, str]

ROUND_TRIP_S = 47e-6
"""Of 64 bytes over plain TCP on these links without added latency."""
HOST_S = 0.35e-3
COPY_BPS = 6e9


def rows(name: str) -> list[Row]:
    return list(csv.DictReader(Path(__file__).with_name(name).read_text().splitlines()))


def model(name: str) -> tuple[Workload, LayerTimes]:
    tensors: list[Tensor] = []
    layers: dict[str, list[int]] = {}
    times: list[tuple[float, float]] = []
    for row in rows("real_ddp_models.csv"):
        if row["model"] != name:
            continue
        if row["layer"] not in layers:
            times.append((float(row["forward_ms"]) / 1e3, float(row["backward_ms"]) / 1e3))
        layers.setdefault(row["layer"], []).append(len(tensors))
        tensors.append(Tensor(f"{row['layer']}.{row['tensor']}", (int(row["numel"]),)))
    forward, backward = np.array(times).T
    none = np.zeros(len(layers), dtype=np.int64)
    work = tuple(Layer(layer, tuple(owned)) for layer, owned in layers.items())
    return Workload(name, tuple(tensors), work), LayerTimes(
        forward, backward, none, none, 0.0, 0.0, 0, COPY_BPS, 0.0, "emulated"
    )


def options(cap_mb: str) -> DdpOptions:
    if cap_mb == "def":
        return DdpOptions(broadcast_buffers=False)
    cap = 1e12 if cap_mb == "inf" else cap_bytes(float(cap_mb))
    return DdpOptions(broadcast_buffers=False, bucket_cap_bytes=cap)


@pytest.mark.parametrize(
    "row", rows("real_ddp_runs.csv")[::6], ids=lambda row: row["bucket_cap_mb"]
)
def test_buckets_are_those_of_the_real_runs(row: Row) -> None:
    workload, _ = model(row["model"])
    found = [bucket.nbytes for bucket in ddp_buckets(workload, options(row["bucket_cap_mb"]))]
    assert found == [int(nbytes) for nbytes in row["bucket_bytes"].split()]


def errors(name: str, switched_topology: Callable[..., Topology]) -> list[float]:
    """Relative errors of the predicted step times of recorded runs."""
    found = []
    library = load_library("gloo")
    for row in rows(name):
        ranks = int(row["ranks"])
        acknowledged = 1 - 66 / (2 * float(row["mtu"]))
        rate_Bps = float(row["payload_mbit"]) * 1e6 / 8 * acknowledged
        round_trip_s = float(row.get("round_trip_us", ROUND_TRIP_S * 1e6)) / 1e6
        machine = switched_topology([rate_Bps] * ranks, [round_trip_s / 2] * ranks)
        plan = ddp_plan(
            *model(row["model"]),
            ranks=ranks,
            batch_per_gpu=1,
            options=options(row["bucket_cap_mb"]),
            comm_workers=library.workers,
        )
        run = simulate(plan, Machine(machine, library), steps=3)
        found.append(abs((run.step_time_s + HOST_S) * 1e3 / float(row["step_ms"]) - 1))
    return found


def test_step_times_are_within_one_percent_in_the_median(
    switched_topology: Callable[..., Topology],
) -> None:
    """Median error at most 1 %, 90th percentile at most 3 %, over all runs; with latency apart.

    Reached: 0.4 and 0.9 % without added latency, 0.9 and 4.5 % with it, 0.4 and 2.0 % of all.
    """
    without = errors("real_ddp_runs.csv", switched_topology)
    latency = errors("real_ddp_latency_runs.csv", switched_topology)
    assert (len(without), len(latency)) == (84, 40)
    for found, most in ((without, 0.015), (latency, 0.05), (without + latency, 0.03)):
        assert statistics.median(found) < 0.01
        assert statistics.quantiles(found, n=10)[-1] < most
    assert max(without + latency) < 0.08
