"""Simulated steps beside real ones: PyTorch 2.13 DDP over gloo and shaped TCP links.

``real_ddp_runs.csv`` holds 84 runs of real DistributedDataParallel between network namespaces of
one machine: 2 and 4 ranks, 200 to 1000 Mbit/s, two models (``real_ddp_models.csv``: tensors, and
compute times emulated by sleeping), seven bucket caps; median step times, no added
latency. What the model takes from elsewhere: the payload rate of the links less the share of the
acknowledgements that travel the other way (66 bytes per two segments), 0.1 ms of software per
ring step and 0.35 ms of host time per step, both measured apart from these runs.
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

STEP_LATENCY_S = 100e-6
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


def test_step_times_are_within_one_percent_in_the_median(
    switched_topology: Callable[..., Topology],
) -> None:
    """Median error at most 1 %, 90th percentile at most 3 %, over all runs."""
    errors = []
    for row in rows("real_ddp_runs.csv"):
        ranks = int(row["ranks"])
        acknowledged = 1 - 66 / (2 * float(row["mtu"]))
        rate_Bps = float(row["payload_mbit"]) * 1e6 / 8 * acknowledged
        machine = switched_topology([rate_Bps] * ranks, [STEP_LATENCY_S] * ranks)
        plan = ddp_plan(
            *model(row["model"]),
            ranks=ranks,
            batch_per_gpu=1,
            options=options(row["bucket_cap_mb"]),
        )
        run = simulate(plan, Machine(machine, load_library("plain")), steps=3)
        errors.append(abs((run.step_time_s + HOST_S) * 1e3 / float(row["step_ms"]) - 1))
    assert len(errors) == 84
    assert statistics.median(errors) < 0.01
    assert statistics.quantiles(errors, n=10)[-1] < 0.03
