"""Models of equal blocks and machines of equal links, of which theory knows the times."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.testing.closed_forms import PassTimes
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.pipeline.pass_actions import PipelineSchedule
from perfmodel.training.pipeline.pipeline_plan import pipeline_plan
from perfmodel.training.pipeline.schedules import SCHEDULES
from perfmodel.training.pipeline.stage_passes import PartPlan, PipelineOptions
from perfmodel.training.pipeline.stage_workload import model_parts
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import Layer, LayerTimes, ParameterTensor, Workload
from tests.conftest import switched

WIDTH = 16
CHAINS = {kind: row for kind, row in SCHEDULES.items() if row.layout != "vocabulary"}
"""Schedules of models that are cut into parts one behind the other."""
Plan = Callable[[StepRequest, int], StepPlan]


def toy_model(
    blocks: int, times: Mapping[int, PassTimes], *, launch_s: float = 0.0
) -> tuple[Workload, LayerTimes]:
    """Blocks of one square map each, without optimizer; `times` by block."""
    workload = Workload(
        "toy",
        tuple(ParameterTensor(f"h.{i}.weight", (WIDTH, WIDTH)) for i in range(blocks)),
        tuple(
            Layer(f"h.{i}", (i,), matmul_flops=1.0, weight_elements=float(WIDTH**2))
            for i in range(blocks)
        ),
        stream_elements=2.0 * WIDTH,
    )
    each = [times[block] for block in range(blocks)]
    return workload, LayerTimes(
        np.array([float(t.forward) for t in each]),
        np.array([float(t.backward) for t in each]),
        np.ones(blocks, int),
        np.ones(blocks, int),
        launch_s,
        0.0,
        1,
        1e30,
        "toy",
        weight_gradient_s=np.array([float(t.weight_gradient) for t in each]),
    )


def plain_ddp(request: StepRequest, accumulate: int, **more: object) -> StepPlan:
    options = DdpOptions(accumulate=accumulate, gradient_as_bucket_view=True, **more)  # type: ignore[arg-type]
    return ddp_plan(request, options)


def toy_pipeline(
    schedule: PipelineSchedule,
    times: PassTimes | Mapping[int, PassTimes],
    *,
    ranks: int = 1,
    launch_s: float = 0.0,
    plan: Plan | None = None,
    blocks: int = 1,
    segments: int = 128,
    **options: object,
) -> StepPlan:
    """A pipeline of one block a part, or of `blocks` that take so long each."""
    count = blocks * schedule.parts
    by_block = dict.fromkeys(range(count), times) if isinstance(times, PassTimes) else times
    workload, layer_times = toy_model(count, by_block, launch_s=launch_s)
    copies = 2 if schedule.layout == "bidirectional" else 1
    accumulate = len(schedule.chunk_micro_batches(0))
    parts = [
        PartPlan(
            (plan or plain_ddp)(
                StepRequest(part.workload, part.times, copies * ranks, 1, segments=segments),
                accumulate,
            ),
            part,
        )
        for part in model_parts(workload, layer_times, schedule)
    ]
    settings = partial(replace, PipelineOptions(transfer_bytes=64))(**options)  # type: ignore[arg-type]
    return pipeline_plan(schedule, parts, settings)


def machine_of(ranks: int, bandwidth_Bps: float = 1e9) -> Machine:
    """So many GPUs on a switch, without latency."""
    return Machine(switched([bandwidth_Bps] * ranks, [0.0] * ranks), load_library("plain"))
