"""The sliders of the what-if explorer: which settings are simulated, and the stops of each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
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
from perfmodel.scenario.sections.variants import INFINITE_FACTOR
from perfmodel.scenario.strategies.ddp import DdpStrategy, Hook
from perfmodel.studies.advise.changes import REDUCED_IN
from perfmodel.studies.run.resolve.resolved_scenario import resolve_names
from perfmodel.studies.run.resolve.what_if import BETWEEN_NODES
from perfmodel.studies.run.result import Result
from perfmodel.studies.run.run import run_scenario
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.topology.model import Topology
from perfmodel.training.ddp.options import DEFAULT_CAP_BYTES, FIRST_BUCKET_BYTES, MIB
from perfmodel.training.ddp.strategy import ddp_options


def _takes(scenario: Scenario, settings: Settings) -> bool:
    """Whether the strategy takes settings, everything else being as it is."""
    try:
        prepare(change_scenario(scenario, {"scale": None, **settings}))
    except PerfmodelError:
        return False
    return True


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


_OF_TENSORS: Mapping[str, Any] = {
    "sequence_parallel": False,
    "overlap": None,
    "parallel_loss": True,
}
"""Fields that only a tensor group has, as they are without one."""

Size = tuple[int, int]
"""GPUs and nodes."""

Counted = tuple[str, str, int, Callable[[int], str], Callable[[int], Settings]]
"""Key and name of a slider of whole numbers, the scenario's own, what one says and what it sets."""


def training_axes(scenario: Scenario, result: Result) -> Iterator[Axis]:
    """Yield sliders of what the scenario's strategy has, in the order of the page."""
    if result.main.gpus > 1:
        yield from _hooks(scenario)
    for key, name, own, write, settings in (*_batches(scenario, result), *_degrees(scenario)):
        around = [own * up // down for up, down in _FACTORS if own * up % down == 0]
        stops = (Stop(0.0, write(each), float(each), settings(each)) for each in around)
        yield from _make_axis(scenario, key, name, float(own), stops)


def _make_axis(
    scenario: Scenario, key: str, name: str, own: float, stops: Iterable[Stop]
) -> Iterator[Axis]:
    """Yield a slider over the stops that the scenario can be prepared with, if there are two."""
    possible = [stop for stop in stops if stop.value == own or _takes(scenario, stop.settings)]
    if len(possible) > 1:
        yield Axis(
            key, name, place_stops(possible, ()), [stop.value for stop in possible].index(own)
        )


# ---------------------------------------------------------------- hook


def _hooks(scenario: Scenario) -> Iterator[Axis]:
    strategy = scenario.strategy
    if strategy.kind == "ddp":
        title, field = "Communication hook", "hook"
        choices, own = _ddp_hooks(scenario, strategy.hook), strategy.hook.kind
    elif strategy.kind in REDUCED_IN:
        title, field = "Gradients travel in", REDUCED_IN[strategy.kind]
        own = getattr(strategy, field)
        choices = {name: (name or "as parameters", name) for name in (own, "fp32", "bf16")}
    else:
        return
    yield from _make_axis(
        scenario,
        "hook",
        title,
        1.0 + list(choices).index(own),
        (
            Stop(0.0, text, 1.0 + at, {f"strategy.{field}": value})
            for at, (text, value) in enumerate(choices.values())
        ),
    )


def _ddp_hooks(scenario: Scenario, own: Hook) -> dict[str, tuple[str, Any]]:
    """Hooks of DDP; the scenario's own as it is written, in the place of its kind."""
    written = scenario.origin.strategy.get("hook") or "none"
    choices = dict(_HOOKS)
    tensors = prepare(change_scenario(scenario, {"scale": None})).job.workload.tensors
    if all(tensor.dtype != "fp32" for tensor in tensors):
        del choices["fp16"]  # no gradient can travel narrower
    if own.kind == "allreduce":
        del choices["none"]
        choices = {"allreduce": ("all-reduce", written), **choices}
    label = f"PowerSGD, rank {own.rank}" if own.kind == "powersgd" else own.kind.replace("_", " ")
    return choices | {own.kind: (label, written)}


# ---------------------------------------------------------------- batch


def _batches(scenario: Scenario, result: Result) -> Iterator[Counted]:
    """Micro-batches of a step, and the samples of each or of all.

    More micro-batches are more samples under weak scaling, smaller ones under strong.
    """
    strategy, training = scenario.strategy, scenario.training
    if result.main.server_use is not None:
        return
    if "accumulate" in type(strategy).model_fields:
        yield (
            "accumulate",
            "Gradient accumulation"
            if result.main.parallel_layout is None
            else "Micro-batches of a step",
            strategy.accumulate,
            lambda count: quantities.counted(count, "micro-batch", "micro-batches"),
            lambda count: {"strategy.accumulate": count},
        )
    if scenario.compute.source != "roofline":  # times of layers that were measured at one batch
        return
    own, field, name = training.batch_per_gpu, "batch_per_gpu", "Batch per GPU"
    if own is None:
        own, field, name = training.global_batch or 1, "global_batch", "Global batch"
    elif not scenario.parallel.is_plain or scenario.strategy.accumulate > 1:
        name = "Samples of a micro-batch"
    yield "batch", name, own, "{:,}".format, lambda count: {f"training.{field}": count}


# ---------------------------------------------------------------- degrees


def _degrees(scenario: Scenario) -> Iterator[Counted]:
    """Degrees that the scenario has already; its GPUs stay, data-parallel ranks change."""
    parallel = scenario.parallel
    written = scenario.origin.content.get("parallel") or {}
    of_tensors = {name: written[name] for name in _OF_TENSORS if name in written}

    def tensor(degree: int) -> Settings:
        fields = {k: v if degree > 1 else _OF_TENSORS[k] for k, v in of_tensors.items()}
        return {"parallel.tensor": degree, **{f"parallel.{k}": v for k, v in fields.items()}}

    def section(name: str, field: str) -> Callable[[int], Settings]:
        """Write a section anew; nothing is kept of one whose degree stands alone."""
        kept = written[name] if isinstance(written.get(name), Mapping) else {}
        return lambda degree: {f"parallel.{name}": {**kept, field: degree} if degree > 1 else 1}

    rows: tuple[tuple[str, str, int, Callable[[int], Settings]], ...] = (
        ("tensor", "Tensor degree", parallel.tensor, tensor),
        ("pipeline", "Pipeline stages", parallel.pipeline.stages, section("pipeline", "stages")),
        ("context", "Context degree", parallel.context.degree, section("context", "degree")),
        ("expert", "Expert degree", parallel.expert, lambda each: {"parallel.expert": each}),
    )
    return (
        (key, name, own, quantities.gpus, settings) for key, name, own, settings in rows if own > 1
    )


# ---------------------------------------------------------------- GPUs


def _cluster_sizes(scenario: Scenario, result: Result) -> list[Size]:
    """Sizes of the curve; powers of two of nodes where the scenario has only one size."""
    if scenario.scale is not None:
        return [(point.gpus, point.nodes) for point in result.points]
    nodes, each = result.main.nodes, result.main.gpus // result.main.nodes
    if scenario.cluster.graph is not None:
        return [(result.main.gpus, nodes)]
    fewer = (2**power for power in range(nodes.bit_length()) if 2**power < nodes)
    return [
        (count * each, count)
        for count in (*fewer, nodes)
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


def _divides(scenario: Scenario, gpus: int) -> bool:
    """Whether degrees divide so many GPUs, and the data-parallel ranks a global batch."""
    ranks, rest = divmod(gpus, scenario.parallel.gpus_per_replica)
    total = scenario.training.global_batch
    return not rest and (total is None or total % (ranks * scenario.strategy.accumulate) == 0)


def gpu_axis(scenario: Scenario, result: Result) -> Axis:
    """Sizes of the cluster, the largest of which the scenario asks about.

    They are at most `MOST_SIZES`: both ends, and others evenly between them.
    """
    sizes = _cluster_sizes(scenario, result)
    step = max(1.0, (len(sizes) - 1) / (MOST_SIZES - 1))
    sizes = [sizes[round(number * step)] for number in range(min(MOST_SIZES, len(sizes)))]
    each = result.main.gpus // result.main.nodes

    def stop(at: float, gpus: int, nodes: int) -> Stop:
        size = {"cluster.nodes": nodes, "cluster.gpus_per_node": min(gpus, each)}
        size = size if scenario.cluster.graph is None else {}
        return Stop(at, quantities.gpus(gpus), float(gpus), size)

    points = [stop(float(at), gpus, nodes) for at, (gpus, nodes) in enumerate(sizes)]
    between = [
        stop(0.5, count * each, count)
        for (low, nodes), (high, more) in pairwise(sizes)
        if low == nodes * each and nodes >= _FEW_NODES
        for count in sorted({round(nodes * (more / nodes) ** share) for share in BETWEEN})
        if low < count * each < high and _divides(scenario, count * each)
    ]
    return Axis("gpus", "GPUs", place_stops(points, between), len(points) - 1)


QUICK_POINTS, LEAST_POINTS = 140, 54
"""Settings that are simulated at most, unless more are asked for; and how few suffice for both ends
of each slider and the baseline."""

CAPS = tuple(float(mib * MIB) for mib in (1, 5, 25, 50, 100, 400))
RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
DELAYS = (0.25, 1.0, 4.0)
"""Bucket caps, and factors on bandwidth and latency, that sliders offer beside the scenario's own:
a generation of hardware is about a factor of two, and latency matters least."""


def design_of(scenario: Scenario, result: Result, most: int = QUICK_POINTS) -> Design:
    """Sliders that make sense for a scenario, and at most `most` combinations to simulate.

    `most` is `LEAST_POINTS` or more.

    Buckets have one only under DDP with a uniform cap, the network only where there is one, GPUs
    only where there is more than one size; accumulation, hook, batch and degrees only where the
    strategy takes other values of them. The last axis is always that of GPUs.
    """
    return choose_design(
        [
            *_cap_axis(scenario, result),
            *training_axes(scenario, result),
            *(_network_axes(scenario) if result.main.nodes > 1 else ()),
            gpu_axis(scenario, result),
        ],
        most,
    )


# ---------------------------------------------------------------- buckets


def _cap_axis(scenario: Scenario, result: Result) -> Iterator[Axis]:
    """Caps from the smallest of `CAPS` to one that takes the whole model in one bucket."""
    total = sum(bucket.nbytes for bucket in result.main.buckets)
    if not isinstance(scenario.strategy, DdpStrategy) or not total:
        return
    options = ddp_options(scenario.strategy)
    if options.bucket_caps:
        return
    usual = FIRST_BUCKET_BYTES if options.bucket_cap is None else None  # naming a cap would drop it
    first = usual if options.first_bucket is None else options.first_bucket
    own = options.bucket_cap or float(DEFAULT_CAP_BYTES)
    whole = math.ceil(total / MIB) * float(MIB)
    caps = sorted({*(cap for cap in CAPS if cap < 0.8 * whole), whole, own})
    kept = {} if first is None else {"strategy.first_bucket": f"{first:.0f} B"}
    # Nothing between: a parameter goes into one bucket or the other, so that the time jumps.
    yield Axis(
        "cap",
        "Bucket cap",
        tuple(
            Stop(
                float(at),
                quantities.whole(quantities.size(nbytes)),
                nbytes,
                {"strategy.bucket_cap": f"{nbytes:.0f} B"} | kept,
            )
            for at, nbytes in enumerate(caps)
        ),
        caps.index(own),
    )


def _network_axes(scenario: Scenario) -> Iterator[Axis]:
    """Factors on the scenario's values; none on what is infinite or zero."""
    what_if, (rate_Bps, delay_s) = scenario.what_if, _adapter_rates(scenario)
    rate, delay = (
        (1.0, 1.0) if what_if is None else (what_if.network_bandwidth, what_if.network_latency)
    )

    def bandwidth(Bps: float) -> str:
        return f"{float(f'{Bps * 8 / 1e9:.3g}'):,g} Gbit/s"

    def latency(time_s: float) -> str:
        return quantities.whole(quantities.duration(time_s))

    if rate < INFINITE_FACTOR / max(RATES):
        yield _network_axis("bandwidth", RATES, rate, rate_Bps, bandwidth)
    if delay > 0:
        yield _network_axis("latency", DELAYS, delay, delay_s, latency)


def _network_axis(
    kind: str,
    factors: Sequence[float],
    own: float,
    nominal: float | None,
    write: Callable[[float], str],
) -> Axis:
    """A slider of factors on the scenario's own; `nominal`: value of factor 1, if it is known."""

    def stop(at: float, factor: float) -> Stop:
        times = f"\N{MULTIPLICATION SIGN}{factor:.3g}"
        settings = {f"what_if.network_{kind}": own * factor}
        if not nominal:
            return Stop(at, times, factor, settings)
        return Stop(at, write(nominal * (own * factor)), factor, settings, times)

    return Axis(
        kind, f"Network {kind} per adapter", stops_with_between(factors, stop), factors.index(1.0)
    )


# ---------------------------------------------------------------- network


def _adapter_rates(scenario: Scenario) -> tuple[float | None, float | None]:
    """Nominal bandwidth and latency of the links between nodes, if all have the same."""
    node = resolve_names(scenario)[0]
    links = () if isinstance(node, Topology) else node.links.values()
    rates = {(link.bandwidth, link.latency) for link in links if link.kind in BETWEEN_NODES}
    return rates.pop() if len(rates) == 1 else (None, None)
