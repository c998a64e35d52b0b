"""Step times of training rows: the roofline on one GPU, DDP or Horovod simulated on several.

Machines, models and times of collectives are kept: rows of a table differ in batch, not in buckets.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache, partial
from typing import Literal

from perfmodel.library.corrections import kind_of_machine
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.library.settings import LibrarySettings
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.machine import bound_machines
from perfmodel.studies.run.result import Uncertainty
from perfmodel.studies.run.steps.simulate_step import collective_s
from perfmodel.studies.run.steps.uncertainty import chance_of_gpus
from perfmodel.topology.from_text.describe import find_host
from perfmodel.topology.from_text.match_template import HostText
from perfmodel.topology.model import Gpu, Topology
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.horovod import horovod_plan
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.validate.match import Allocation, build_cluster
from perfmodel.workload.compute_spread import Factors, overlap_slowdowns, slowest_factor, spread_of
from perfmodel.workload.memory.optimizer_states import OptimizerKernels
from perfmodel.workload.model import LayerTimes, scale_times, slow_device
from perfmodel.workload.roofline import layer_times, step_s
from reports.validation.trainings.rows.model_names import build_named, is_convolutional
from reports.validation.trainings.rows.parse import TrainingRow

STEPS = 3
_SEGMENTS = 8
"""Tasks per pass: layers are joined up to the end of a bucket, which moves no number."""
_SINCE_TF32 = ("ampere", "ada", "hopper", "blackwell")


def compute_precision(row: TrainingRow, gpu: Gpu) -> str:
    """Precision of the matrix work: fp32 is TF32 where GPU and software take that by themselves.

    NVIDIA's containers do, and so do releases of PyTorch before 1.12; later ones for convolutions.
    """
    has_tf32 = gpu.generation in _SINCE_TF32 and "tf32" in gpu.peak_flops
    if row.precision != "fp32" or not has_tf32:
        return row.precision
    plain = row.software.plain_matmul and not is_convolutional(row.model)
    return "fp32" if plain else "tf32"


def _optimizer_kernels(row: TrainingRow) -> OptimizerKernels:
    """How the optimizer of a row runs: NVIDIA's examples of transformers have one of Apex."""
    if row.fused_optimizer:
        return "fused"
    return "for-loop" if row.software.loops_over_tensors else "foreach"


def topology_of(row: TrainingRow) -> Topology:
    """Machine of a row; of nodes that give unlike numbers of GPUs, all GPUs of each."""
    return _topology(row.machine, len(row.shares), max(row.shares))


@lru_cache(maxsize=512)
def _topology(machine: HostText, nodes: int, gpus: int) -> Topology:
    return build_cluster(find_host(machine).node, Allocation(nodes, gpus), "")


@lru_cache(maxsize=64)
def _timer(machine: HostText, nodes: int, gpus: int, nccl: str | None) -> UncontendedTimer:
    settings = LibrarySettings(version=nccl)
    topology = _topology(machine, nodes, gpus)
    return UncontendedTimer(make_machine(topology, load_library("nccl"), settings=settings))


@lru_cache(maxsize=64)
def _bound_timers(
    machine: HostText, nodes: int, gpus: int, nccl: str | None
) -> tuple[UncontendedTimer, ...]:
    """Timers of both ends of the interval of collectives."""
    likely = _timer(machine, nodes, gpus, nccl)
    return tuple(likely.on(each) for each in bound_machines(likely.machine))


def timer_of(row: TrainingRow, network: Literal[0, 1] | None = None) -> UncontendedTimer:
    """Times of collectives on the machine and with the library of a row.

    `network`: as for `training_step_s`.
    """
    key = row.machine, len(row.shares), max(row.shares), row.software.nccl
    return _timer(*key) if network is None else _bound_timers(*key)[network]


def row_layer_times(row: TrainingRow) -> LayerTimes:
    """Predict the layers of a row on one GPU."""
    gpu = topology_of(row).gpu
    return layer_times(
        build_named(row.model),
        gpu,
        batch=row.batch,
        precision=compute_precision(row, gpu),
        optimizer="sgd-momentum" if is_convolutional(row.model) else "adam",
        optimizer_kernels=_optimizer_kernels(row),
        channels_last=row.channels_last,
        fused_attention=False,
    )


_layer_times = lru_cache(maxsize=1024)(row_layer_times)


@lru_cache(maxsize=8192)
def training_step_s(
    row: TrainingRow,
    compute: float = 1.0,
    slowdown: float | None = None,
    network: Literal[0, 1] | None = None,
) -> float:
    """Time of one micro-step whose compute takes `compute` times what the roofline says; seconds.

    Of steps with several micro-steps the mean; elsewhere that is the step.

    `slowdown`: of compute beside collectives; default: the GPU's.
    `network`: 0 for the quick end of the interval of collectives, 1 for the slow one.

    Raises
    ------
    PerfmodelError
        The machine cannot be built, or the model does not run on it.
    """
    times = scale_times(_layer_times(row), compute)
    accumulate = row.options.accumulate
    if row.gpus == accumulate == 1:
        return step_s(times)
    timer = timer_of(row, network)
    gpu = timer.machine.topology.gpu
    times = slow_device(times, slowest_factor(row.gpus, spread_of(gpu)))
    request = StepRequest(
        build_named(row.model),
        times,
        row.gpus,
        row.batch,
        comm_workers=timer.machine.library.workers,
        kernel_s=gpu.kernel_overhead_s,
        segments=_SEGMENTS,
        ranks_per_host=max(row.shares),
        collective_s=partial(collective_s, timer.machine, range(row.gpus), {}),
    )
    step = horovod_plan(request, row.horovod) if row.horovod else ddp_plan(request, row.options)
    plan = _on_ranks(step, row.shares)
    run = simulate(plan, timer.machine, steps=STEPS, timer=timer, overlap_slowdown=slowdown)
    return run.step_time_s / accumulate


def step_uncertainties(
    row: TrainingRow, compute: float = 1.0, spread: Factors | None = None
) -> tuple[Uncertainty, ...]:
    """A row's step with each uncertain number at both ends of its interval.

    `compute`: as for `training_step_s`. `spread`: factors on that; default: those of a prediction.
    """
    low, high = _layer_times(row).spread if spread is None else spread
    step_s = training_step_s(row, compute)
    ends = Uncertainty(
        "compute", training_step_s(row, compute * low), training_step_s(row, compute * high)
    )
    gpu = topology_of(row).gpu
    gpus = row.gpus, gpu.name
    parts = [ends, *chance_of_gpus(step_s, ends, (low, high), gpus, spread_of(gpu))]
    if row.gpus > 1:
        least, most = (training_step_s(row, compute, each) for each in overlap_slowdowns())
        kind = kind_of_machine(topology_of(row))
        parts += [
            Uncertainty("overlap", least, most),
            Uncertainty(
                f"network of {kind}",
                training_step_s(row, compute, network=0),
                training_step_s(row, compute, network=1),
            ),
        ]
    return tuple(parts)


def _on_ranks(plan: StepPlan, shares: tuple[int, ...]) -> StepPlan:
    """The plan on the first GPUs of each node, where nodes give unlike numbers of them."""
    most = max(shares)
    if set(shares) == {most}:
        return plan
    ranks = tuple(node * most + gpu for node, share in enumerate(shares) for gpu in range(share))
    return replace(
        plan,
        classes=tuple(replace(each, ranks=ranks) for each in plan.classes),
        communicators=tuple(replace(each, groups=(ranks,)) for each in plan.communicators),
    )
