"""Steps of real DistributedDataParallel over Gloo and shaped TCP links, beside simulated ones.

What the model takes from elsewhere, all of it measured apart from these runs: of the links, the
payload rate and the round trip of plain TCP (``linkcal*.csv``), less the share of the
acknowledgements that travel the other way; 0.35 ms of host time per step; and Gloo as its library
file has it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np

from perfmodel.errors import Fault
from perfmodel.library.carry import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine import simulate
from perfmodel.simulate.estimate import Estimator
from perfmodel.topology.gpus import load_gpu
from perfmodel.topology.model import Topology
from perfmodel.training.ddp import ddp_plan
from perfmodel.training.options import DdpOptions, cap_bytes
from perfmodel.validate.cells import Record, read_table
from perfmodel.validate.trainings import Case, Dataset
from perfmodel.workload.model import Layer, LayerTimes, Tensor, Workload

HOST_S = 0.35e-3
"""Host time of a step beyond its layers and collectives, measured on one process."""
COPY_BPS = 6e9
"""Rate at which gradients are copied into buckets on that host (measured copy of 4 MB)."""
ROUND_TRIP_S = 47e-6
"""Of 64 bytes over plain TCP on these links without added latency, where no file says it."""
ACKNOWLEDGED_BYTES = 66
"""Bytes of the acknowledgement of two segments (Ethernet, IP and TCP headers with timestamps)."""
SOURCE = "own runs of torch 2.13 DDP over gloo between network namespaces"
_PLAIN = {
    "mode": {"ddp"}, "topo": {"star", ""}, "accum": {"1", ""}, "straggler": {""},
    "scale": {"1", "1.0", ""}, "slow_host": {""}, "trunk_mbit": {""}, "cc": {"cubic", ""},
    "scenario": {"base", "latency", "timeline", "one_gloo_thread", "repeat", "accumulation", ""},
}  # fmt: skip
"""Values with which a run is one of plain DDP between alike hosts."""

Link = tuple[str, str, str]
"""Rate in Mbit/s, MTU and delay in microseconds, as numbers without trailing zeros."""


@dataclass(frozen=True, slots=True)
class Links:
    """What plain TCP reached on the links: payload in Mbit/s by (rate, MTU), round trip in us."""

    payload_mbit: Mapping[tuple[str, str], float]
    round_trip_us: Mapping[Link, float]


def gloo_dataset(folder: Path, faults: list[Fault]) -> Dataset | None:
    """Predict all plain runs of ``ddp*_iters.csv`` in a folder; None if there is no such table."""
    tables = sorted(folder.glob("ddp*_iters.csv"))
    if not tables or not (folder / "models.csv").is_file():
        return None
    records = [record for path in tables for record in read_table(path, faults)]
    models = _models(read_table(folder / "models.csv", faults))
    links = _links([r for p in sorted(folder.glob("linkcal*.csv")) for r in read_table(p, faults)])
    cases: list[Case] = []
    left: dict[str, int] = {}
    for record in records:
        cells = record.cells
        odd = next((k for k, allowed in _PLAIN.items() if cells.get(k, "") not in allowed), None)
        if odd is not None:
            reason = f"not plain DDP between alike hosts: {odd} {cells[odd]}"
        elif cells["model"] not in models:
            reason = f"no model {cells['model']!r} in models.csv"
        else:
            cases.append(_case(cells, models[cells["model"]], links))
            continue
        left[reason] = left.get(reason, 0) + 1
    if not cases:
        return None
    return Dataset("testbed-ddp", "DDP over Gloo on shaped links: step time", cases, left)


def _number(text: str) -> str:
    return f"{float(text or 0):g}"


def _case(cells: Mapping[str, str], model: tuple[Workload, LayerTimes], links: Links) -> Case:
    ranks, mtu = int(cells["n"]), cells["mtu"]
    link = (_number(cells["rate_mbit"]), _number(mtu), _number(cells["delay_us"]))
    payload = links.payload_mbit.get(link[:2], float(cells["payload_mbit"]))
    default_us = ROUND_TRIP_S * 1e6 + 2 * float(cells["delay_us"] or 0)
    round_trip_s = links.round_trip_us.get(link, default_us) * 1e-6
    rate_Bps = payload * 1e6 / 8 * (1 - ACKNOWLEDGED_BYTES / (2 * float(mtu)))
    known = _estimator(ranks, rate_Bps, round_trip_s / 2)
    plan = ddp_plan(
        *model,
        ranks=ranks,
        batch_per_gpu=1,
        options=_options(cells["bucket_cap_mb"]),
        comm_workers=known.machine.library.workers,
    )
    run = simulate(plan, known.machine, steps=3, estimator=known)
    name = (
        f"{cells['model']}, {ranks} ranks, {link[0]} Mbit/s, {link[2]} us, "
        f"cap {cells['bucket_cap_mb']} MB"
    )
    measured_s = float(cells["iter_ms_med"]) * 1e-3
    return Case(name, measured_s, run.step_time_s + HOST_S, "s", SOURCE)


@lru_cache(maxsize=64)
def _estimator(ranks: int, rate_Bps: float, latency_s: float) -> Estimator:
    """What is known of the collectives of one set of links."""
    return Estimator(Machine(star(ranks, rate_Bps, latency_s), load_library("gloo")))


def _options(cap_mb: str) -> DdpOptions:
    if cap_mb == "def":
        return DdpOptions(broadcast_buffers=False)
    cap = 1e12 if cap_mb == "inf" else cap_bytes(float(cap_mb))
    return DdpOptions(broadcast_buffers=False, bucket_cap_bytes=cap)


def star(ranks: int, rate_Bps: float, latency_s: float) -> Topology:
    """Processes that send at one rate into one ideal switch, whose side does not limit."""
    graph: nx.MultiDiGraph[str] = nx.MultiDiGraph()
    names = [f"n0/rank{number}" for number in range(ranks)]
    for name in names:
        graph.add_node(name, kind="gpu", host=0, local=name[3:])
    for name, kind in (("n0/cpu0", "cpu"), ("n0/switch", "nvswitch")):
        graph.add_node(name, kind=kind, host=0, local=name[3:])
    for number, name in enumerate(names):
        up: dict[str, Any] = {"bandwidth_Bps": rate_Bps, "latency_s": latency_s}
        down: dict[str, Any] = {"bandwidth_Bps": 1e15, "latency_s": 0.0}
        graph.add_edge(name, "n0/switch", index=2 * number, kind="nvlink", lanes=1, **up)
        graph.add_edge("n0/switch", name, index=2 * number + 1, kind="nvlink", lanes=1, **down)
    return Topology(
        name="star", graph=graph, ranks=tuple(names), gpu=load_gpu("cpu-process"), hosts=1,
        host_arcs=2 * ranks, gpu_p2p=True, gpudirect_rdma=True, staging_Bps=None, sources={},
        template="star", fabric="none",
    )  # fmt: skip


def _models(records: Sequence[Record]) -> dict[str, tuple[Workload, LayerTimes]]:
    """Tensors and emulated times of each model; a row per tensor, times at a layer's first."""
    by_model: dict[str, list[Mapping[str, str]]] = {}
    for record in records:
        by_model.setdefault(record.cells["model"], []).append(record.cells)
    return {name: _model(name, rows) for name, rows in by_model.items()}


def _model(name: str, rows: Sequence[Mapping[str, str]]) -> tuple[Workload, LayerTimes]:
    tensors: list[Tensor] = []
    layers: dict[str, list[int]] = {}
    times: list[tuple[float, float]] = []
    for row in rows:
        if row["name"] not in layers:
            times.append((float(row["fwd_ms"]) / 1e3, float(row["bwd_ms"]) / 1e3))
        layers.setdefault(row["name"], []).append(len(tensors))
        tensors.append(Tensor(f"{row['name']}.{row['tensor']}", (int(row["numel"]),)))
    forward, backward = np.array(times).T
    none = np.zeros(len(layers), dtype=np.int64)
    work = tuple(Layer(layer, tuple(owned)) for layer, owned in layers.items())
    return Workload(name, tuple(tensors), work), LayerTimes(
        forward, backward, none, none, 0.0, 0.0, 0, COPY_BPS, 0.0, "emulated"
    )


def _links(records: Sequence[Record]) -> Links:
    """Read payload rates (slope between the smallest and the largest message) and round trips."""
    messages: dict[tuple[str, str], list[tuple[float, float]]] = {}
    round_trips: dict[Link, float] = {}
    for record in records:
        cells = record.cells
        if cells.get("cc", "cubic") != "cubic" or cells["rate_mbit"] in {"", "none"}:
            continue
        link = (_number(cells["rate_mbit"]), _number(cells["mtu"]), _number(cells["delay_us"]))
        time_us = float(cells["t_us_med"])
        if cells["kind"] == "rtt64":
            round_trips[link] = time_us
        elif cells["kind"] == "oneway" and link[2] == "0" and int(cells["bytes"]) >= 2**20:
            messages.setdefault(link[:2], []).append((float(cells["bytes"]), time_us))
    payload = {
        key: (max(sizes)[0] - min(sizes)[0]) * 8 / (max(sizes)[1] - min(sizes)[1])
        for key, sizes in messages.items()
        if len(sizes) > 1
    }
    return Links(payload, round_trips)
