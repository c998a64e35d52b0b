"""The axes of the what-if explorer: which settings are simulated, and the stops of each slider."""

from __future__ import annotations

import math
from collections.abc import Sequence

from perfmodel.report.common import quantities
from perfmodel.report.explorer.design import Design, choose_design
from perfmodel.report.explorer.stops import Axis, Stop, stops_with_between
from perfmodel.report.explorer.training_axes import gpu_axis, training_axes
from perfmodel.scenario import Scenario
from perfmodel.scenario.sections.variants import INFINITE
from perfmodel.scenario.strategies.ddp import DdpStrategy
from perfmodel.studies.run.resolve.resolved_scenario import resolve_names
from perfmodel.studies.run.resolve.what_if import BETWEEN_NODES
from perfmodel.studies.run.result.model import Result
from perfmodel.topology.model import Topology
from perfmodel.training.ddp.options import DEFAULT_CAP_BYTES, FIRST_BUCKET_BYTES, DdpOptions
from perfmodel.training.ddp.strategy import ddp_options

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
