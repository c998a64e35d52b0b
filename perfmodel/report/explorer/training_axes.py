"""Sliders of how a scenario trains: GPUs, batch, accumulation, communication hook, degrees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from perfmodel.errors import InputError, PerfmodelError
from perfmodel.report.common import quantities
from perfmodel.report.explorer.stops import BETWEEN, Axis, Settings, Stop, place_stops
from perfmodel.scenario import Scenario, change_scenario
from perfmodel.scenario.strategies.ddp import Hook
from perfmodel.studies.run.prepared import prepare
from perfmodel.studies.run.result.model import Result
from perfmodel.studies.run.run import run_scenario

MOST_SIZES = 4

_FEW_NODES = 4
"""From so many nodes on, sizes between simulated ones are interpolated. Below, each is a case of
its own: a part of a node is wired unlike the whole, and the share (n - 1)/n of a ring's bytes that
leaves a node grows from 1/2 to 3/4."""

_FACTORS = ((1, 4), (1, 2), (1, 1), (2, 1), (4, 1))
"""Factors on batch, micro-steps and degrees; values that are no whole numbers are left out."""

_HOOKS: Mapping[str, tuple[str, Any]] = {
    "none": ("none", "none"),
    "fp16": ("fp16", "fp16"),
    "powersgd": ("PowerSGD, rank 4", {"kind": "powersgd", "rank": 4}),
}
"""Label and section of DDP's hooks, by falling number of bytes sent."""

_REDUCED = {"fsdp": "reduce_dtype", "zero": "communication_data_type"}
"""Field of the type that gradients travel in, by strategy."""

_OF_TENSORS: Mapping[str, Any] = {
    "sequence_parallel": False,
    "overlap": None,
    "parallel_loss": True,
}
"""Fields that only a tensor group has, as they are without one."""

Size = tuple[int, int]
"""GPUs and nodes."""


def training_axes(scenario: Scenario, result: Result) -> Iterator[Axis]:
    """Yield sliders of what the scenario's strategy has, in the order of the page."""
    if result.main.gpus > 1:
        yield from _hooks(scenario)
    if result.main.server_use is None:
        yield from _accumulation(scenario, result)
        yield from _batches(scenario)
    yield from _degrees(scenario)


def _make_axis(
    scenario: Scenario, key: str, name: str, own: float, stops: Sequence[Stop]
) -> Iterator[Axis]:
    """Yield a slider over the stops that the scenario can be prepared with, if there are two."""
    possible = [stop for stop in stops if stop.value == own or _is_possible(scenario, stop)]
    if len(possible) > 1:
        baseline = [stop.value for stop in possible].index(own)
        yield Axis(key, name, place_stops(possible, ()), baseline)


def _is_possible(scenario: Scenario, stop: Stop) -> bool:
    """Whether the strategy takes a setting, everything else being as it is."""
    try:
        prepare(change_scenario(scenario, {"scale": None, **stop.settings}))
    except PerfmodelError:
        return False
    return True


def _around(own: int) -> list[int]:
    """Whole numbers around one, which is among them."""
    return [own * up // down for up, down in _FACTORS if own * up % down == 0]


# ---------------------------------------------------------------- hook


def _hooks(scenario: Scenario) -> Iterator[Axis]:
    strategy = scenario.strategy
    if strategy.kind == "ddp":
        yield from _ddp_hooks(scenario, strategy.hook)
    elif strategy.kind in _REDUCED:
        field = _REDUCED[strategy.kind]
        own = getattr(strategy, field)
        types = [own, *(name for name in ("fp32", "bf16") if name != own)]
        stops = [
            Stop(0.0, name or "as parameters", 1.0 + at, {f"strategy.{field}": name})
            for at, name in enumerate(types)
        ]
        yield from _make_axis(scenario, "hook", "Gradients travel in", 1.0, stops)


def _ddp_hooks(scenario: Scenario, own: Hook) -> Iterator[Axis]:
    """Hooks of DDP; the scenario's own as it is written, in the place of its kind."""
    written = (scenario.origin.content.get("strategy") or {}).get("hook") or "none"
    choices = dict(_HOOKS)
    if not _has_fp32(scenario):
        del choices["fp16"]
    if own.kind == "allreduce":
        del choices["none"]
        choices = {"allreduce": ("all-reduce", written), **choices}
    label = f"PowerSGD, rank {own.rank}" if own.kind == "powersgd" else own.kind.replace("_", " ")
    choices[own.kind] = (label, written)
    stops = [
        Stop(0.0, text, 1.0 + at, {"strategy.hook": section})
        for at, (text, section) in enumerate(choices.values())
    ]
    place = 1.0 + list(choices).index(own.kind)
    yield from _make_axis(scenario, "hook", "Communication hook", place, stops)


def _has_fp32(scenario: Scenario) -> bool:
    """Whether there are gradients that can travel narrower."""
    prepared = prepare(change_scenario(scenario, {"scale": None}))
    return any(tensor.dtype == "fp32" for tensor in prepared.job.workload.tensors)


# ---------------------------------------------------------------- batch


def _accumulation(scenario: Scenario, result: Result) -> Iterator[Axis]:
    """Micro-batches of a step: more samples under weak scaling, smaller ones under strong."""
    strategy = scenario.strategy
    if "accumulate" not in type(strategy).model_fields:
        return
    stops = [
        Stop(
            0.0,
            quantities.counted(count, "micro-batch", "micro-batches"),
            float(count),
            {"strategy.accumulate": count},
        )
        for count in _around(strategy.accumulate)
    ]
    name = "Gradient accumulation" if result.main.mixture is None else "Micro-batches of a step"
    yield from _make_axis(scenario, "accumulate", name, float(strategy.accumulate), stops)


def _batches(scenario: Scenario) -> Iterator[Axis]:
    training = scenario.training
    if scenario.compute.source != "roofline":  # times of layers that were measured at one batch
        return
    if training.batch_per_gpu is not None:
        own, field, name = training.batch_per_gpu, "batch_per_gpu", "Batch per GPU"
        if not scenario.parallel.is_plain or scenario.accumulate > 1:
            name = "Samples of a micro-batch"
    else:
        own, field, name = training.global_batch or 1, "global_batch", "Global batch"
    stops = [
        Stop(0.0, f"{count:,}", float(count), {f"training.{field}": count})
        for count in _around(own)
    ]
    yield from _make_axis(scenario, "batch", name, float(own), stops)


# ---------------------------------------------------------------- degrees


def _degrees(scenario: Scenario) -> Iterator[Axis]:
    """Degrees that the scenario has already; its GPUs stay, data-parallel ranks change."""
    parallel = scenario.parallel
    written = scenario.origin.content.get("parallel") or {}
    pipeline, context = (_section(written, name) for name in ("pipeline", "context"))
    of_tensors = {name: written[name] for name in _OF_TENSORS if name in written}

    def tensor(degree: int) -> Settings:
        fields = of_tensors if degree > 1 else {name: _OF_TENSORS[name] for name in of_tensors}
        return {"parallel.tensor": degree, **{f"parallel.{k}": v for k, v in fields.items()}}

    def stages(count: int) -> Settings:
        return {"parallel.pipeline": {**pipeline, "stages": count} if count > 1 else 1}

    def tokens(degree: int) -> Settings:
        return {"parallel.context": {**context, "degree": degree} if degree > 1 else 1}

    def experts(degree: int) -> Settings:
        return {"parallel.expert": degree}

    rows: tuple[tuple[str, str, int, Callable[[int], Settings]], ...] = (
        ("tensor", "Tensor degree", parallel.tensor, tensor),
        ("pipeline", "Pipeline stages", parallel.pipeline.stages, stages),
        ("context", "Context degree", parallel.context.degree, tokens),
        ("expert", "Expert degree", parallel.expert, experts),
    )
    for key, name, own, settings in rows:
        degrees = _around(own) if own > 1 else ()
        stops = [Stop(0.0, quantities.gpus(each), float(each), settings(each)) for each in degrees]
        yield from _make_axis(scenario, key, name, float(own), stops)


def _section(written: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a section as written; nothing where its degree stands alone."""
    section = written.get(name)
    return section if isinstance(section, Mapping) else {}


# ---------------------------------------------------------------- GPUs


def _cluster_sizes(scenario: Scenario, result: Result) -> list[Size]:
    """Sizes of the curve; powers of two of nodes where the scenario has only one size."""
    if scenario.scale is not None:
        return [(point.gpus, point.nodes) for point in result.points]
    nodes, each = result.main.nodes, result.main.gpus // result.main.nodes
    if scenario.cluster.graph is not None:
        return [(result.main.gpus, nodes)]
    powers = [2**power for power in range(nodes.bit_length()) if 2**power < nodes]
    return [
        (count * each, count)
        for count in (*powers, nodes)
        if _divides(scenario, count * each)
        and (count == nodes or _has_what_events_name(scenario, count))
    ]


def _has_what_events_name(scenario: Scenario, nodes: int) -> bool:
    """Whether a scenario can be asked for fewer nodes: events may name what only more of them have.

    On a scaling curve such events are left out, but a slider that shows a size shows all of it.
    """
    if not (scenario.events or scenario.cluster.mixed):
        return True
    try:
        run_scenario(change_scenario(scenario, {"scale": None, "cluster.nodes": nodes}))
    except InputError:
        return False
    return True


def _spread_sizes(sizes: Sequence[Size]) -> list[Size]:
    """At most `MOST_SIZES`: both ends, and others evenly between them."""
    if len(sizes) <= MOST_SIZES:
        return list(sizes)
    step = (len(sizes) - 1) / (MOST_SIZES - 1)
    return [sizes[round(number * step)] for number in range(MOST_SIZES)]


def _divides(scenario: Scenario, gpus: int) -> bool:
    """Whether degrees divide so many GPUs, and the data-parallel ranks a global batch."""
    ranks, rest = divmod(gpus, scenario.parallel.gpus_per_replica)
    total = scenario.training.global_batch
    return not rest and (total is None or total % (ranks * scenario.accumulate) == 0)


def gpu_axis(scenario: Scenario, result: Result) -> Axis:
    """Sizes of the cluster, the largest of which the scenario asks about."""
    sizes = _spread_sizes(_cluster_sizes(scenario, result))
    each = result.main.gpus // result.main.nodes

    def stop(at: float, gpus: int, nodes: int) -> Stop:
        size = {"cluster.nodes": nodes, "cluster.gpus_per_node": min(gpus, each)}
        size = size if scenario.cluster.graph is None else {}
        return Stop(at, quantities.gpus(gpus), float(gpus), size)

    points = [stop(float(at), gpus, nodes) for at, (gpus, nodes) in enumerate(sizes)]
    between = []
    for (low, nodes), (high, more) in pairwise(sizes):
        if low != nodes * each or nodes < _FEW_NODES:
            continue
        counts = {round(nodes * (more / nodes) ** share) for share in BETWEEN}
        between += [
            stop(0.5, count * each, count)
            for count in sorted(counts)
            if low < count * each < high and _divides(scenario, count * each)
        ]
    return Axis("gpus", "GPUs", place_stops(points, between), len(points) - 1)
