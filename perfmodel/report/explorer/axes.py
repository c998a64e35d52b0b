"""The sliders of the what-if explorer: which settings are simulated, and the stops of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

from perfmodel.errors import InputError, PerfmodelError
from perfmodel.report.common import quantities
from perfmodel.report.explorer.design import (
    BETWEEN,
    Axis,
    Design,
    Settings,
    Stop,
    choose_design,
    place_stops,
    stops_with_between,
)
from perfmodel.scenario import Scenario, change_scenario
from perfmodel.scenario.sections.strategies.ddp import DdpStrategy
from perfmodel.scenario.sections.strategies.gradient_hooks import Hook
from perfmodel.scenario.sections.studies.what_if import INFINITE
from perfmodel.studies.run.prepared import prepare
from perfmodel.studies.run.resolve.resolved_scenario import resolve_names
from perfmodel.studies.run.resolve.what_if import BETWEEN_NODES
from perfmodel.studies.run.result.model import Result
from perfmodel.studies.run.run import run_scenario
from perfmodel.topology.model import Topology
from perfmodel.training.ddp.options import DEFAULT_CAP_BYTES, FIRST_BUCKET_BYTES, DdpOptions
from perfmodel.training.ddp.strategy import ddp_options

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


MOST_POINTS, LEAST_POINTS = 480, 54
"""Settings that are simulated at most, each in a fraction of a second; and how few suffice for
both ends of each slider and the baseline."""

CAPS = tuple(mib * 2.0**20 for mib in (1, 5, 25, 50, 100, 400))
RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
DELAYS = (0.25, 1.0, 4.0)
"""Bucket caps, and factors on bandwidth and latency, that sliders offer beside the scenario's own:
a generation of hardware is about a factor of two, and latency matters least."""


def design_of(scenario: Scenario, result: Result, most: int = MOST_POINTS) -> Design:
    """Sliders that make sense for a scenario, and at most `most` combinations to simulate.

    `most` is `LEAST_POINTS` or more.

    Buckets have one only under DDP with a uniform cap, the network only where there is one, GPUs
    only where there is more than one size; accumulation, hook, batch and degrees only where the
    strategy takes other values of them. The last axis is always that of GPUs.
    """
    caps = _caps(scenario, result)
    rates, delays = _network_factors(scenario, result)
    axes = [_cap_axis(scenario, caps)] if caps else []
    axes += training_axes(scenario, result)
    if rates:
        axes.append(_factor_axis(scenario, "bandwidth", rates))
    if delays:
        axes.append(_factor_axis(scenario, "latency", delays))
    axes.append(gpu_axis(scenario, result))
    return choose_design(axes, most)


# ---------------------------------------------------------------- buckets


def _caps(scenario: Scenario, result: Result) -> list[float]:
    """Caps from the smallest of `CAPS` to one that takes the whole model in one bucket."""
    total = sum(bucket.nbytes for bucket in result.main.buckets)
    if not isinstance(scenario.strategy, DdpStrategy) or not total:
        return []
    options = ddp_options(scenario.strategy)
    if options.caps_list_bytes:
        return []
    mib = 2.0**20
    whole = math.ceil(total / mib) * mib
    return sorted({*(cap for cap in CAPS if cap < 0.8 * whole), whole, _cap_asked(options)})


def _cap_asked(options: DdpOptions) -> float:
    return options.bucket_cap_bytes or float(DEFAULT_CAP_BYTES)


def _cap_axis(scenario: Scenario, caps: Sequence[float]) -> Axis:
    assert isinstance(scenario.strategy, DdpStrategy)  # what else has caps
    options = ddp_options(scenario.strategy)
    first = options.first_bucket_bytes
    if options.bucket_cap_bytes is None and first is None:
        first = FIRST_BUCKET_BYTES  # naming a cap would drop it

    def stop(at: float, nbytes: float) -> Stop:
        settings = {"strategy.bucket_cap": f"{nbytes:.0f} B"}
        if first is not None:
            settings["strategy.first_bucket"] = f"{first:.0f} B"
        return Stop(at, quantities.whole(quantities.size(nbytes)), nbytes, settings)

    # Nothing between: a parameter goes into one bucket or the other, so that the time jumps.
    stops = tuple(stop(float(at), nbytes) for at, nbytes in enumerate(caps))
    return Axis("cap", "Bucket cap", stops, caps.index(_cap_asked(options)))


# ---------------------------------------------------------------- network


def _network_factors(scenario: Scenario, result: Result) -> tuple[list[float], list[float]]:
    """Factors on the scenario's values; none without a network, or if it is infinite or zero."""
    if result.main.nodes < 2:
        return [], []
    rate, delay = _factors(scenario)
    return list(RATES) if rate < INFINITE / max(RATES) else [], list(DELAYS) if delay > 0 else []


def _factors(scenario: Scenario) -> tuple[float, float]:
    """Factors on bandwidth and latency that the scenario itself has."""
    what_if = scenario.what_if
    return (1.0, 1.0) if what_if is None else (what_if.network_bandwidth, what_if.network_latency)


def _factor_axis(scenario: Scenario, kind: str, factors: Sequence[float]) -> Axis:
    rate, delay = _factors(scenario)
    baseline = rate if kind == "bandwidth" else delay
    rate_Bps, delay_s = _adapter_rates(scenario)

    def stop(at: float, factor: float) -> Stop:
        value = baseline * factor
        if kind == "bandwidth":
            text = "" if rate_Bps is None else f"{_round(rate_Bps * value * 8 / 1e9):,g} Gbit/s"
        else:
            text = "" if not delay_s else quantities.whole(quantities.duration(delay_s * value))
        times = f"\N{MULTIPLICATION SIGN}{factor:.3g}"
        settings = {f"what_if.network_{kind}": value}
        return Stop(at, text or times, factor, settings, times if text else "")

    return Axis(
        kind,
        f"Network {kind} per adapter",
        stops_with_between(factors, stop),
        list(factors).index(1.0),
    )


def _round(value: float) -> float:
    return float(f"{value:.3g}")


def _adapter_rates(scenario: Scenario) -> tuple[float | None, float | None]:
    """Nominal bandwidth and latency of the links between nodes, if all have the same."""
    node = resolve_names(scenario)[0]
    if isinstance(node, Topology):
        return None, None
    links = [link for link in node.links.values() if link.kind in BETWEEN_NODES]
    if len({(link.bandwidth, link.latency) for link in links}) != 1:
        return None, None
    return links[0].bandwidth, links[0].latency
