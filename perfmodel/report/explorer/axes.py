"""The axes of the what-if explorer: which settings are simulated, and the stops of each slider."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from perfmodel.errors import InputError
from perfmodel.report.common import quantities
from perfmodel.scenario import Scenario, change_scenario
from perfmodel.scenario.sections.strategies.ddp import DdpStrategy
from perfmodel.scenario.sections.studies.what_if import INFINITE
from perfmodel.studies.run.resolve.resolved_scenario import resolve_names
from perfmodel.studies.run.resolve.what_if import BETWEEN_NODES
from perfmodel.studies.run.result.model import Result
from perfmodel.studies.run.run import run_scenario
from perfmodel.training.ddp.options import DEFAULT_CAP_BYTES, FIRST_BUCKET_BYTES, DdpOptions
from perfmodel.training.ddp.strategy import ddp_options

MOST_POINTS, LEAST_POINTS = 360, 54
"""Settings that are simulated at most, each in a fraction of a second; and how few suffice for
both ends of each slider and the baseline."""

CAPS = tuple(mib * 2.0**20 for mib in (1, 5, 25, 50, 100, 400))
RATES = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
DELAYS = (0.25, 1.0, 4.0)
"""Bucket caps, and factors on bandwidth and latency, that sliders offer beside the scenario's own:
a generation of hardware is about a factor of two, and latency matters least."""

MOST_SIZES = 4

_FEW_NODES = 4
"""From so many nodes on, sizes between simulated ones are interpolated. Below, each is a case of
its own: a part of a node is wired unlike the whole, and the share (n - 1)/n of a ring's bytes that
leaves a node grows from 1/2 to 3/4."""

_BETWEEN = (0.25, 0.5, 0.75)

Settings = Mapping[str, Any]
"""Fields of a scenario and their values as written."""

Size = tuple[int, int]
"""GPUs and nodes."""


@dataclass(frozen=True, slots=True)
class Stop:
    """One position of a slider.

    `at`: position among the simulated points of the axis; whole where it is one of them.
    `label`: what the slider says there, with its unit.
    `value`: bytes, factor or GPUs.
    """

    at: float
    label: str
    value: float
    settings: Settings

    @property
    def short(self) -> str:
        """Label of an axis: without the part in brackets."""
        return self.label.partition(" (")[0]


@dataclass(frozen=True, slots=True)
class Axis:
    """One slider. `baseline` is the number of the point that the scenario itself sets."""

    key: str
    name: str
    stops: tuple[Stop, ...]
    baseline: int

    @property
    def points(self) -> tuple[Stop, ...]:
        """Stops that are simulated."""
        return tuple(stop for stop in self.stops if stop.at.is_integer())

    def __len__(self) -> int:
        return len(self.points)


def axes_of(scenario: Scenario, result: Result, most: int = MOST_POINTS) -> tuple[Axis, ...]:
    """Sliders that make sense for a scenario, whose points make at most `most` combinations.

    `most` is `LEAST_POINTS` or more.

    Buckets have one only under DDP with a uniform cap, the network only where there is one, GPUs
    only where there is more than one size. The last axis is always that of GPUs.
    """
    caps = _caps(scenario, result)
    rates, delays = _network_factors(scenario, result)
    sizes = _spread_sizes(_cluster_sizes(scenario, result))
    axes = [_cap_axis(scenario, caps)] if caps else []
    if rates:
        axes.append(_factor_axis(scenario, "bandwidth", rates))
    if delays:
        axes.append(_factor_axis(scenario, "latency", delays))
    axes.append(_gpu_axis(scenario, result, sizes))
    return _limit_points(axes, most)


def _limit_points(axes: Sequence[Axis], most: int) -> tuple[Axis, ...]:
    """Leave inner points out of the longest axis until there are few enough in all."""
    shortened = list(axes)
    while math.prod(map(len, shortened)) > most:
        longest = max(
            range(len(shortened)),
            key=lambda at: (len(_inner_points(shortened[at])), len(shortened[at])),
        )
        if not _inner_points(shortened[longest]):
            break
        shortened[longest] = _drop_point(shortened[longest])
    return tuple(shortened)


def _inner_points(axis: Axis) -> list[int]:
    """Points that may be left out: neither an end nor the baseline."""
    return [at for at in range(1, len(axis) - 1) if at != axis.baseline]


def _drop_point(axis: Axis) -> Axis:
    """Leave out the inner point whose neighbours are nearest to each other."""
    values = [math.log(point.value) for point in axis.points]
    dropped = min(_inner_points(axis), key=lambda at: values[at + 1] - values[at - 1])
    remaining = [point for at, point in enumerate(axis.points) if at != dropped]
    between = [stop for stop in axis.stops if not stop.at.is_integer()]
    return replace(
        axis,
        stops=_place_stops(remaining, between),
        baseline=axis.baseline - (dropped < axis.baseline),
    )


def _place_stops(points: Sequence[Stop], between: Iterable[Stop]) -> tuple[Stop, ...]:
    """Number the points, and place the stops between them by the logarithm of their value."""
    stops = [replace(point, at=float(number)) for number, point in enumerate(points)]
    for stop in between:
        for low, high in pairwise(stops[: len(points)]):
            if low.value < stop.value < high.value:
                share = math.log(stop.value / low.value) / math.log(high.value / low.value)
                stops.append(replace(stop, at=low.at + share))
    return tuple(sorted(stops, key=lambda stop: stop.at))


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
        return Stop(
            at, f"{text} ({times})" if text else times, factor, {f"what_if.network_{kind}": value}
        )

    return Axis(
        kind,
        f"Network {kind} per adapter",
        _stops_with_between(factors, stop),
        list(factors).index(1.0),
    )


def _round(value: float) -> float:
    return float(f"{value:.3g}")


def _adapter_rates(scenario: Scenario) -> tuple[float | None, float | None]:
    """Nominal bandwidth and latency of the links between nodes, if all have the same."""
    node = resolve_names(scenario)[0]
    links = [link for link in node.links.values() if link.kind in BETWEEN_NODES]
    if len({(link.bandwidth, link.latency) for link in links}) != 1:
        return None, None
    return links[0].bandwidth, links[0].latency


# ---------------------------------------------------------------- GPUs


def _cluster_sizes(scenario: Scenario, result: Result) -> list[Size]:
    """Sizes of the curve; powers of two of nodes where the scenario has only one size."""
    if scenario.scale is not None:
        return [(point.gpus, point.nodes) for point in result.points]
    nodes, each = result.main.nodes, result.main.gpus // result.main.nodes
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
    """Whether a global batch can be split over so many GPUs."""
    total = scenario.training.global_batch
    return total is None or total % (gpus * scenario.accumulate) == 0


def _gpu_axis(scenario: Scenario, result: Result, sizes: Sequence[Size]) -> Axis:
    each = result.main.gpus // result.main.nodes

    def stop(at: float, gpus: int, nodes: int) -> Stop:
        size = {"cluster.nodes": nodes, "cluster.gpus_per_node": min(gpus, each)}
        return Stop(at, quantities.gpus(gpus), float(gpus), size)

    points = [stop(float(at), gpus, nodes) for at, (gpus, nodes) in enumerate(sizes)]
    between = []
    for (low, nodes), (high, more) in pairwise(sizes):
        if low != nodes * each or nodes < _FEW_NODES:
            continue
        counts = {round(nodes * (more / nodes) ** share) for share in _BETWEEN}
        between += [
            stop(0.5, count * each, count)
            for count in sorted(counts)
            if low < count * each < high and _divides(scenario, count * each)
        ]
    return Axis("gpus", "GPUs", _place_stops(points, between), len(points) - 1)


def _stops_with_between(
    values: Sequence[float], stop: Callable[[float, float], Stop]
) -> tuple[Stop, ...]:
    points = [stop(float(at), value) for at, value in enumerate(values)]
    between = [
        stop(0.5, low * (high / low) ** share)
        for low, high in pairwise(values)
        for share in _BETWEEN
    ]
    return _place_stops(points, between)
