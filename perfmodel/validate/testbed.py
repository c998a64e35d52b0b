"""Steps of real DistributedDataParallel over Gloo and shaped TCP links, beside simulated ones.

Tables ``ddp*_iters.csv`` with a row per run, ``models.csv`` with their models, and optionally
``linkcal*.csv``: what plain TCP reached on the same links. What the model takes from them is only
the latter: payload rates and round trips, less the share of the acknowledgements that travel the
other way. Everything else stands in Gloo's library file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from perfmodel.errors import Fault
from perfmodel.library.carry import Machine
from perfmodel.simulate.engine import simulate
from perfmodel.simulate.estimate import Estimator
from perfmodel.study.host import host_work
from perfmodel.training.ddp import Hook, ddp_plan
from perfmodel.training.options import DdpOptions, cap_bytes
from perfmodel.training.plan import StepPlan
from perfmodel.training.split import Part, split
from perfmodel.validate.cells import Record, read_table
from perfmodel.validate.order import accumulation_order
from perfmodel.validate.shaped import Links, Shaped, machine_of, measured_links, number, shaped_of
from perfmodel.validate.trainings import Case, Dataset
from perfmodel.validate.unbucketed import unbucketed_plan
from perfmodel.workload.model import Layer, LayerTimes, Tensor, Workload

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
    known: dict[Shaped, Estimator] = {}
    cases: list[Case] = []
    left: dict[str, int] = {}
    for record in records:
        reason = _why_not(record.cells, models)
        if reason is None:
            cases.append(_case(record.cells, models[record.cells["model"]], links, known))
        else:
            left[reason] = left.get(reason, 0) + 1
    if not cases:
        return None
    return Dataset("testbed-ddp", "DDP over Gloo on shaped links: step time", cases, left)


def _why_not(cells: Mapping[str, str], models: Mapping[str, Model]) -> str | None:
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
    cells: Mapping[str, str], model: Model, links: Links, known: dict[Shaped, Estimator]
) -> Case:
    measured_s = float(cells["iter_ms_med"]) * 1e-3
    return Case(_name(cells), measured_s, predicted_s(cells, model, links, known), "s", SOURCE)


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
    "scenario": {"base", "latency", ""}, "mode": {"ddp", ""}, "accum": {"1", ""},
    "straggler": {""}, "scale": {"1", "1.0", ""}, "grad_view": {"0", ""}, "topo": {"star", ""},
    "cc": {"cubic", ""}, "gloo_threads": {"2", ""}, "slow_host": {""}, "trunk_mbit": {""},
}  # fmt: skip
_NAMED = tuple(_USUAL)


def predicted_s(
    cells: Mapping[str, str], model: Model, links: Links, known: dict[Shaped, Estimator]
) -> float:
    """Simulate the run of a row; seconds per step."""
    shaped = shaped_of(cells, links, int(cells.get("cores") or CORES))
    if shaped not in known:
        known[shaped] = Estimator(machine_of(shaped))
    estimator = known[shaped]
    plan = _plan(cells, model, estimator.machine)
    return simulate(plan, estimator.machine, steps=STEPS, estimator=estimator).step_time_s


def _plan(cells: Mapping[str, str], model: Model, machine: Machine) -> StepPlan:
    """The step of a row, with stragglers in classes of their own."""
    scale = float(cells.get("scale") or 1)
    plan = _step(cells, model, machine, scale)
    if cells.get("straggler"):
        rank, by = cells["straggler"].split(":")
        like = _step(cells, model, machine, scale * float(by))
        part = Part(f"rank {rank}", (int(rank),), like=like)
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
        library, topology.gpu, topology.sockets, nbytes, ranks,
        views=options.gradient_as_bucket_view,
    )  # fmt: skip
    if mode in {"none", "flat", "pertensor"}:
        host_s = library.host_step if mode == "none" else host.step_s
        return unbucketed_plan(workload, times, mode, ranks, host_s=host_s)
    hook: Hook = "fp16" if mode == "fp16" else "none"
    return ddp_plan(
        workload, times, ranks=ranks, batch_per_gpu=1, options=options, hook=hook,
        comm_workers=library.workers, host_s=host.step_s, cast_Bps=host.cast_Bps,
        core=host.core,
    )  # fmt: skip


def options_of(cells: Mapping[str, str]) -> DdpOptions:
    """What DDP was called with: "def", "inf" (one bucket), a cap in MB, or several by "|"."""
    caps = cells.get("bucket_cap_mb") or "def"
    common = DdpOptions(
        broadcast_buffers=False,
        gradient_as_bucket_view=cells.get("grad_view") == "1",
        accumulate=int(cells.get("accum") or 1),
    )
    if caps == "def":
        return common
    sizes = [1e12 if cap == "inf" else cap_bytes(float(cap)) for cap in caps.split("|")]
    if len(sizes) > 1:
        return replace(common, caps_list_bytes=tuple(sizes))
    return replace(common, bucket_cap_bytes=sizes[0])


def models_of(records: Sequence[Record]) -> dict[str, Model]:
    """Tensors and emulated times of each model; a row per tensor, times at a layer's first.

    The gradients of a layer come from one function of autograd.
    """
    by_model: dict[str, list[Mapping[str, str]]] = {}
    for record in records:
        by_model.setdefault(record.cells["model"], []).append(record.cells)
    return {name: _model(name, rows) for name, rows in by_model.items()}


def _model(name: str, rows: Sequence[Mapping[str, str]]) -> Model:
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
    work = tuple(
        Layer(layer, tuple(owned[at] for at in accumulation_order(len(owned), leaf=number == 0)))
        for number, (layer, owned) in enumerate(layers.items())
    )
    return Workload(name, tuple(tensors), work), LayerTimes(
        forward, backward, none, none, 0.0, 0.0, 0, np.inf, 0.0, "emulated"
    )
