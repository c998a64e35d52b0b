"""Steps of real DistributedDataParallel over Gloo and shaped TCP links, beside simulated ones.

Tables ``ddp*_iters.csv`` with a row per run, ``models.csv`` with their models, and optionally
``linkcal*.csv``: what plain TCP reached on the same links. What the model takes from them is only
the latter: payload rates and round trips, less the share of the acknowledgements that travel the
other way. Everything else comes from Gloo's library file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from perfmodel.errors import Fault
from perfmodel.files.csv_rows import Record, read_table
from perfmodel.library.machine import Machine
from perfmodel.scenario.strategies.ddp import CastHook
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.job_plan import host_work
from perfmodel.training.ddp.options import DdpOptions, cap_bytes
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.plan.builder import COMM, COMPUTE, GROUP, RANKS, TaskList
from perfmodel.training.plan.split_class import ClassPart, split
from perfmodel.training.plan.step_plan import Communicator, RankClass, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload
from reports.validation.trainings.model import Case, Dataset
from reports.validation.trainings.shaped_links import (
    Links,
    ShapedCluster,
    machine_of,
    measured_links,
    number,
    shaped_of,
)


@cache
def accumulation_order(tensors: int, *, leaf: bool = False) -> tuple[int, ...]:
    """Return in which order the gradients of a function's tensors are accumulated.

    Autograd keeps its tasks in a ``std::priority_queue`` by the index of each function;
    accumulations of gradients all have the same, highest index (torch 2.13,
    ``torch/csrc/autograd/engine.cpp`` and ``accumulate_grad.cpp``). The order of equals is that of
    the C++ library's heap (libstdc++, ``bits/stl_heap.h``): up to three in the order of the
    function's inputs, more in another.

    The function's first input leads to the function before it, as in layers that emulate others,
    or it is a leaf itself, as in the first layer.

    Examples
    --------
    >>> accumulation_order(3)
    (0, 1, 2)
    >>> accumulation_order(6)
    (0, 1, 4, 5, 3, 2)
    >>> accumulation_order(6, leaf=True)
    (1, 4, 5, 3, 0, 2)
    """
    heap: list[tuple[int, int]] = []
    for item in ((int(leaf), -1), *((1, index) for index in range(tensors))):
        heap.append(item)
        _sift_up(heap, len(heap) - 1, 0)
    order = [_pop(heap)[1] for _ in range(tensors + 1)]
    return tuple(index for index in order if index >= 0)


def _sift_up(heap: list[tuple[int, int]], hole: int, top: int) -> None:
    """Move an item up for as long as what is above it comes later (``__push_heap``)."""
    value = heap[hole]
    while hole > top and heap[(hole - 1) // 2][0] < value[0]:
        heap[hole] = heap[(hole - 1) // 2]
        hole = (hole - 1) // 2
    heap[hole] = value


def _pop(heap: list[tuple[int, int]]) -> tuple[int, int]:
    """Take the first item out (``pop_heap``: the last one fills the hole from below)."""
    first, last = heap[0], heap.pop()
    if not heap:
        return first
    hole, child = 0, 2
    while child < len(heap):
        if heap[child][0] < heap[child - 1][0]:
            child -= 1
        heap[hole] = heap[child]
        hole, child = child, 2 * (child + 1)
    if child == len(heap):
        heap[hole] = heap[child - 1]
        hole = child - 1
    heap[hole] = last
    _sift_up(heap, hole, 0)
    return first


CORES = 2
"""Of the machine on which all runs of one table took place, where no column says it."""
SOURCE = "own runs of torch 2.13 DDP over gloo between network namespaces"
MODES = ("ddp", "hook", "fp16", "flat", "pertensor", "none")
STEPS = 3
Model = tuple[Workload, LayerTimes]


def gloo_dataset(folder: Path, faults: list[Fault]) -> Dataset | None:
    """Predict all runs of ``ddp*_iters.csv`` in a folder; None if there is no such table."""
    tables = sorted(folder.glob("ddp*_iters.csv"))
    if not tables or not (folder / "models.csv").is_file():
        return None
    records = [record for path in tables for record in read_table(path, faults)]
    models = models_of(read_table(folder / "models.csv", faults))
    links = measured_links(
        [r for p in sorted(folder.glob("linkcal*.csv")) for r in read_table(p, faults)]
    )
    timers: dict[ShapedCluster, UncontendedTimer] = {}
    cases: list[Case] = []
    omitted: dict[str, int] = {}
    for record in records:
        reason = _reason_left_out(record.cells, models)
        if reason is None:
            cases.append(_case(record.cells, models[record.cells["model"]], links, timers))
        else:
            omitted[reason] = omitted.get(reason, 0) + 1
    if not cases:
        return None
    return Dataset("testbed-ddp", "DDP over Gloo on shaped links: step time", cases, omitted)


def _reason_left_out(cells: Mapping[str, str], models: Mapping[str, Model]) -> str | None:
    """Why a run cannot be expressed; None if it can."""
    if cells["model"] not in models:
        return f"no model {cells['model']!r} in models.csv"
    if cells.get("mode", "ddp") not in MODES:
        return f"mode {cells['mode']}"
    if cells.get("topo", "star") not in {"star", "tree", ""}:
        return f"topology {cells['topo']}"
    if not _is_number(cells["rate_mbit"]):
        return "links without a shaper"
    if not _is_number(cells["delay_us"] or "0"):
        return "hosts with unlike delays"
    return None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _case(
    cells: Mapping[str, str],
    model: Model,
    links: Links,
    timers: dict[ShapedCluster, UncontendedTimer],
) -> Case:
    measured_s = float(cells["iter_ms_med"]) * 1e-3
    return Case(_name(cells), measured_s, predicted_s(cells, model, links, timers), "s", SOURCE)


def _name(cells: Mapping[str, str]) -> str:
    rate, delay = number(cells["rate_mbit"]), number(cells["delay_us"])
    odd = [f"{k} {v}" for k, v in ((k, cells.get(k, "")) for k in _NAMED) if v not in _USUAL[k]]
    return ", ".join(
        [
            f"{cells['model']}, {cells['n']} ranks, {rate} Mbit/s, {delay} us",
            f"cap {cells['bucket_cap_mb']} MB",
            *odd,
        ]
    )


_USUAL = {
    "scenario": {"base", "latency", ""},
    "mode": {"ddp", ""},
    "accum": {"1", ""},
    "straggler": {""},
    "scale": {"1", "1.0", ""},
    "grad_view": {"0", ""},
    "topo": {"star", ""},
    "cc": {"cubic", ""},
    "gloo_threads": {"2", ""},
    "slow_host": {""},
    "trunk_mbit": {""},
}
_NAMED = tuple(_USUAL)


def predicted_s(
    cells: Mapping[str, str],
    model: Model,
    links: Links,
    timers: dict[ShapedCluster, UncontendedTimer],
) -> float:
    """Simulate the run of a row; seconds per step."""
    shaped = shaped_of(cells, links, int(cells.get("cores") or CORES))
    if shaped not in timers:
        timers[shaped] = UncontendedTimer(machine_of(shaped))
    timer = timers[shaped]
    plan = _plan(cells, model, timer.machine)
    return simulate(plan, timer.machine, steps=STEPS, timer=timer).step_time_s


def _plan(cells: Mapping[str, str], model: Model, machine: Machine) -> StepPlan:
    """The step of a row, with stragglers in classes of their own."""
    scale = float(cells.get("scale") or 1)
    plan = _step(cells, model, machine, scale)
    if cells.get("straggler"):
        rank, by = cells["straggler"].split(":")
        like = _step(cells, model, machine, scale * float(by))
        part = ClassPart(f"rank {rank}", (int(rank),), like=like)
        plan = split(plan, plan.classes[0].name, [part])
    return plan


def _step(cells: Mapping[str, str], model: Model, machine: Machine, scale: float) -> StepPlan:
    """The step of a rank whose compute takes `scale` times as long."""
    workload, times = model
    mode, ranks = cells.get("mode") or "ddp", int(cells["n"])
    times = replace(times, forward_s=times.forward_s * scale, backward_s=times.backward_s * scale)
    options = options_of(cells)
    library, topology = machine.library, machine.topology
    nbytes = [tensor.nbytes for tensor in workload.tensors]
    host = host_work(
        library,
        topology.gpu,
        topology.sockets,
        nbytes,
        ranks,
        views=options.gradient_as_bucket_view,
    )
    if mode in {"none", "flat", "pertensor"}:
        host_s = library.host_step if mode == "none" else host.step_s
        return _unbucketed_plan(workload, times, mode, ranks, host_s=host_s)
    request = StepRequest(
        workload,
        times,
        ranks,
        batch_per_gpu=1,
        comm_workers=library.workers,
        host_s=host.step_s,
        cast_Bps=host.cast_Bps,
        core=host.core,
    )
    return ddp_plan(request, options)


def _unbucketed_plan(
    workload: Workload, times: LayerTimes, mode: str, ranks: int, *, host_s: float
) -> StepPlan:
    """One step whose gradients are reduced one after the other once backward has ended.

    `mode`: nothing, one all-reduce of everything, or one for each tensor (the last of the model
        first), each waited for.
    `host_s`: what the process does at the end of a step.
    """
    tasks = TaskList(0.0, 0.0, times.copy_Bps)
    start = tasks.compute("forward", "forward", float(times.forward_s.sum()), RANKS)
    last = tasks.compute(
        "backward", "backward", float(times.backward_s.sum()), RANKS, after=(start,)
    )
    each = [tensor.nbytes for tensor in reversed(workload.tensors)]
    dtypes = {tensor.dtype for tensor in workload.tensors}
    dtype = dtypes.pop() if len(dtypes) == 1 else None
    reduced = {"none": [], "flat": [sum(each)], "pertensor": each}[mode] if ranks > 1 else []
    for index, nbytes in enumerate(reduced):
        last = tasks.collective(
            f"all-reduce {index}",
            "all_reduce",
            nbytes,
            RANKS,
            communicator=GROUP,
            key=f"tensors {index}",
            after=(last,),
            dtype=dtype,
        )
    end = tasks.compute("end of the step", "copy", host_s, RANKS, after=(last,), role="step_end")
    tasks.begin_after(end, (COMPUTE.name,))
    return tasks.plan(
        name=f"{mode}, {workload.name}",
        classes=(RankClass(RANKS, range(ranks)),),
        streams=(COMPUTE, COMM),
        communicators=(Communicator(GROUP, (range(ranks),)),) if reduced else (),
        samples=ranks,
    )


def options_of(cells: Mapping[str, str]) -> DdpOptions:
    """What DDP was called with: "def", "inf" (one bucket), a cap in MB, or several by "|"."""
    caps = cells.get("bucket_cap_mb") or "def"
    common = DdpOptions(
        broadcast_buffers=False,
        gradient_as_bucket_view=cells.get("grad_view") == "1",
        accumulate=int(cells.get("accum") or 1),
        hook=CastHook(kind="fp16" if cells.get("mode") == "fp16" else "none"),
    )
    if caps == "def":
        return common
    sizes = [1e12 if cap == "inf" else cap_bytes(float(cap)) for cap in caps.split("|")]
    if len(sizes) > 1:
        return common.model_copy(update={"bucket_caps": tuple(sizes)})
    return common.model_copy(update={"bucket_cap": sizes[0]})


def models_of(records: Sequence[Record]) -> dict[str, Model]:
    """Tensors and emulated times of each model; a row per tensor, times at a layer's first.

    The gradients of a layer come from one function of autograd.
    """
    by_model: dict[str, list[Mapping[str, str]]] = {}
    for record in records:
        by_model.setdefault(record.cells["model"], []).append(record.cells)
    return {name: _model(name, rows) for name, rows in by_model.items()}


def _model(name: str, rows: Sequence[Mapping[str, str]]) -> Model:
    tensors: list[ParameterTensor] = []
    layers: dict[str, list[int]] = {}
    times: list[tuple[float, float]] = []
    for row in rows:
        if row["name"] not in layers:
            times.append((float(row["fwd_ms"]) / 1e3, float(row["bwd_ms"]) / 1e3))
        layers.setdefault(row["name"], []).append(len(tensors))
        tensors.append(ParameterTensor(f"{row['name']}.{row['tensor']}", (int(row["numel"]),)))
    forward, backward = np.array(times).T
    none = np.zeros(len(layers), dtype=np.int64)
    work = tuple(
        Layer(layer, tuple(owned[at] for at in accumulation_order(len(owned), leaf=number == 0)))
        for number, (layer, owned) in enumerate(layers.items())
    )
    return Workload(name, tuple(tensors), work), LayerTimes(
        forward, backward, none, none, 0.0, 0.0, 0, np.inf, "emulated"
    )
