"""Published steps of language models that one GPU's compute decides: utilisation of its peak.

Rows of one GPU, or of one node with NVSwitch, as throughput of one of its GPUs; communication is
left out. What the table states of sharding, accumulation and recomputation is counted.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

import numpy as np

from perfmodel.errors import Fault, InputError, PerfmodelError, allowed_names
from perfmodel.files.csv_rows import read_table
from perfmodel.studies.run.evidence import make_setting
from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.validate.match import one_line
from perfmodel.workload.kernels.shapes import Attention
from perfmodel.workload.memory.optimizer_states import OptimizerKernels
from perfmodel.workload.model import LayerTimes, Workload, scale_times
from perfmodel.workload.model_changes import fuse_by_hand
from perfmodel.workload.roofline import by_first_flash, layer_times, step_s
from perfmodel.workload.zoo.decoder_sizes import DecoderShape
from perfmodel.workload.zoo.llama import llama
from perfmodel.workload.zoo.text_decoder import gpt, gpt_shape
from reports.validation.trainings.model import Case, Dataset, TrainingRun
from reports.validation.trainings.series import ONE_GPU

TITLE = "Model FLOP/s utilisation of LLM steps"
NO_OPTIMIZER = "none"
"""The row is a difference of two steps: the optimizer is not in it."""
LLM = "llm-"
"""How the names of these datasets begin."""


def llm_datasets(path: Path, faults: list[Fault]) -> list[Dataset]:
    """Predict the rows of ``llm_steps.csv``, a dataset for each table that they come from."""
    tables: dict[str, list[tuple[TrainingRun, Case]]] = {}
    omitted: dict[str, dict[str, int]] = {}
    for record in read_table(path, faults) if path.is_file() else ():
        cells = record.cells
        table = cells["table"]
        try:
            run = llm_run(cells)
            tables.setdefault(table, []).append((run, _utilisation(cells, run)))
        except PerfmodelError as error:
            reasons = omitted.setdefault(table, {})
            reason = f"model or GPU is not known: {one_line(error, 100)}"
            reasons[reason] = reasons.get(reason, 0) + 1
    return [
        Dataset(
            f"{LLM}{name}",
            f"{TITLE}, {name}",
            [case for _, case in rows],
            omitted.get(name, {}),
            [run for run, _ in rows],
        )
        for name, rows in tables.items()
    ]


def llm_run(cells: Mapping[str, str]) -> TrainingRun:
    """Predict a row."""
    workload, gpu = llm_workload(cells), load_gpu(cells["gpu"])
    times = llm_times(cells, workload, gpu)
    samples = _count(cells, "batch") * _count(cells, "accumulation")
    predicted = samples / llm_step_s(cells, workload, times)
    low, high = (
        samples / llm_step_s(cells, workload, scale_times(times, by))
        for by in reversed(times.spread)
    )
    published, precision = float(cells["samples_per_s"]), cells["precision"]
    if not 0 < published < math.inf:
        raise InputError(Fault("samples_per_s", cells["samples_per_s"], "a number above zero"))
    return TrainingRun(
        model=f"{cells['model']}, {cells['sequence_length']} tokens",
        gpu=cells["gpu"],
        nodes=1,
        gpus=1,
        batch=_count(cells, "batch"),
        precision=precision,
        network=ONE_GPU,
        published=published,
        predicted=predicted,
        intervals={"one_gpu": (low, high)},
        source=cells["source"],
        setting=make_setting(workload, gpu, precision, (), "", 1, _count(cells, "batch")),
    )


def _utilisation(cells: Mapping[str, str], run: TrainingRun) -> Case:
    """Operations of the model over those of the GPU's peak; per cent."""
    percent = 100 * model_flops(llm_workload(cells)) / load_gpu(run.gpu).peak_flops[run.precision]
    name = f"{run.model}, {run.gpu}, batch {run.batch}, {run.precision}"
    return Case(name, run.published * percent, run.predicted * percent, "% MFU", run.source)


def llm_workload(cells: Mapping[str, str]) -> Workload:
    """Build the model of a row from its dimensions, with what its kernels leave apart."""
    workload = _unfused_workload(cells)
    return fuse_by_hand(workload) if cells["compiled"] == "by_hand" else workload


def _unfused_workload(cells: Mapping[str, str]) -> Workload:
    layers, width, heads, kv, mlp, vocabulary, tokens = (
        _count(cells, name)
        for name in (
            "layers",
            "width",
            "heads",
            "kv_heads",
            "mlp_width",
            "vocabulary",
            "sequence_length",
        )
    )
    if cells["family"] == "gpt":
        return gpt(
            cells["model"],
            dtype=cells["dtype"],
            sequence_length=tokens,
            shape=gpt_shape(layers, width, heads, tokens, vocabulary),
            dropout=cells["dropout"] == "1",
        )
    shape = DecoderShape(layers, width, heads, kv, mlp, vocabulary, tokens)
    return llama(cells["model"], dtype=cells["dtype"], sequence_length=tokens, shape=shape)


def _count(cells: Mapping[str, str], name: str) -> int:
    """Read a whole number from 1 on."""
    if not re.fullmatch(r"[1-9]\d{0,8}", cells[name]):
        raise InputError(Fault(name, repr(cells[name]), "a whole number, 1 or more"))
    return int(cells[name])


def llm_times(cells: Mapping[str, str], workload: Workload, gpu: Gpu) -> LayerTimes:
    """Predict the layers of one micro-batch."""
    times = layer_times(
        workload,
        gpu,
        batch=_count(cells, "batch"),
        precision=cells["precision"],
        optimizer="adamw",
        optimizer_kernels=_optimizer_kernels(cells["optimizer_kernels"]),
        fused_attention=cells["attention"] != "materialised" and "flash_2",
        compiled=cells["compiled"] != "0",
    )
    return by_first_flash(workload, times) if cells["attention"] == "flash-1" else times


def _optimizer_kernels(text: str) -> OptimizerKernels:
    """How the optimizer runs, as the column says."""
    for kernels in get_args(OptimizerKernels):
        if text == kernels:
            return cast("OptimizerKernels", kernels)
    if text == NO_OPTIMIZER:
        return "fused"
    allowed = (*get_args(OptimizerKernels), NO_OPTIMIZER)
    raise InputError(Fault("optimizer_kernels", repr(text), allowed_names(allowed, text)))


def llm_step_s(cells: Mapping[str, str], workload: Workload, times: LayerTimes) -> float:
    """Time of one step on one GPU; seconds.

    Recomputation repeats forward of every layer between embedding and head. Gradients of further
    micro-batches are added to those of the first; an optimizer that is sharded has its share.
    """
    shards = 1.0 if cells["sharded"] == "none" else float(_count(cells, "gpus"))
    if cells["optimizer_kernels"] == NO_OPTIMIZER:
        shards = math.inf
    if cells["recompute"] == "1":
        again = np.ones(len(times.forward_s), dtype=np.int64)
        again[[0, -1]] = 0
        times = replace(
            times,
            backward_s=times.backward_s + again * times.forward_s,
            backward_kernels=times.backward_kernels + again * times.forward_kernels,
        )
    micro_step_s = step_s(replace(times, optimizer_s=0.0, optimizer_kernels=0))
    further = _count(cells, "accumulation") - 1
    added_s = 0.0 if cells["sharded"] == "all" else 1.5 * workload.nbytes / times.copy_Bps
    return (further + 1) * micro_step_s + further * added_s + times.optimizer_s / shards


def model_flops(workload: Workload) -> float:
    """Operations of a sample, forward and backward, masked scores not counted."""
    return 3.0 * sum(
        layer.matmul_flops
        * (0.5 if isinstance(layer.matrix, Attention) and layer.matrix.causal else 1.0)
        for layer in workload.layers
    )
