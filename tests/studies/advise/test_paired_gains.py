"""Intervals of gains against steps drawn in pairs: the same network and compute for both."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from scipy.interpolate import RegularGridInterpolator

from perfmodel.arrays import Z80, FloatArray
from perfmodel.library.corrections import CollectiveContext, spread_factors
from perfmodel.library.machine import Corrections, Machine
from perfmodel.report.advice import narrow_gains
from perfmodel.scenario import change_scenario, load_scenario
from perfmodel.studies.advise.model import Advice, Proposed, Trial, find_narrow_gains
from perfmodel.studies.compare import gain_of
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.steps.one_size import simulate_size
from perfmodel.studies.run.steps.simulate_step import simulate_steps
from perfmodel.studies.run.steps.sized_job import SizedJob, size_job
from perfmodel.studies.sweep.variants import without_curve
from perfmodel.topology.model import Topology
from perfmodel.workload.model import Sample

HOOK: Mapping[str, Any] = {"strategy.hook": "fp16"}
KERNELS: Mapping[str, Any] = {"compute.channels_last": True, "compute.compiled": True}
NETWORK = (-2.5, -Z80, 0.0, Z80, 2.5)
COMPUTE = (-Z80, 0.0, Z80)
"""Standard normal numbers at which steps are simulated: of the network and of compute."""


@dataclass(frozen=True)
class Simulated:
    """The point that perfmodel reports, and steps over the grid of uncertain numbers."""

    point: SizeResult
    steps_s: FloatArray
    topology: Topology


def with_network(machine: Machine, z: float) -> Machine:
    """Return the machine whose collectives are off by the same quantile of recorded errors."""

    def factor(context: CollectiveContext) -> float:
        low, high = spread_factors(machine.topology, context.op, context.nbytes)
        return math.exp(z / Z80 * (math.log(high) if z > 0 else -math.log(low)))

    return machine.with_corrections(Corrections(residual=factor))


def step_s(sized: SizedJob, compute_z: float, network_z: float) -> float:
    low, high = sized.compute_spread
    by = math.exp(compute_z / Z80 * (math.log(high) if compute_z > 0 else -math.log(low)))
    setup = sized.with_compute(by).setup().on(with_network(sized.ensemble.likely, network_z))
    return simulate_steps(replace(setup, fidelity="flow"), (), sized.settled).step_time_s


def simulated(changes: Mapping[str, Any]) -> Simulated:
    scenario = without_curve(load_scenario("bucket-size-slow-ethernet"))
    inputs = resolve_scenario(change_scenario(scenario, changes), None, None)
    sized = size_job(inputs, inputs.sizes[-1])
    grid = np.array([[step_s(sized, c, n) for n in NETWORK] for c in COMPUTE])
    point = simulate_size(sized, with_first=False, with_limits=False)
    return Simulated(point, grid, sized.ensemble.likely.topology)


@pytest.fixture(scope="module")
def base() -> Simulated:
    return simulated({})


@pytest.fixture(scope="module")
def hook() -> Simulated:
    return simulated(HOOK)


@pytest.fixture(scope="module")
def together() -> Simulated:
    return simulated(HOOK | KERNELS)


def drawn_gains(base: Simulated, other: Simulated) -> tuple[float, float]:
    """10 % and 90 % of the ratios of steps, each pair with the same network and compute."""
    rng = np.random.default_rng(0)
    draws = np.column_stack(
        [
            rng.normal(size=20_000).clip(COMPUTE[0], COMPUTE[-1]),
            rng.normal(size=20_000).clip(NETWORK[0], NETWORK[-1]),
        ]
    )
    below, above = (
        RegularGridInterpolator((COMPUTE, NETWORK), np.log(each.steps_s))(draws)
        for each in (other, base)
    )
    low, high = np.quantile(np.exp(above - below), [0.1, 0.9])
    return float(low), float(high)


def test_the_hook_alone_is_as_unsure_as_drawn_pairs(base: Simulated, hook: Simulated) -> None:
    """Over a quick network its step is compute, which the hook does not shorten."""
    interval = gain_of(base.point, hook.point).interval
    assert interval == pytest.approx(drawn_gains(base, hook), abs=0.05)
    assert interval is not None
    assert interval[1] - interval[0] > 0.4


def test_with_quicker_kernels_it_is_as_sure_as_drawn_pairs(
    base: Simulated, together: Simulated
) -> None:
    """Both steps wait for the network at each of its likely rates, which cancels in the ratio."""
    interval = gain_of(base.point, together.point).interval
    assert interval == pytest.approx(drawn_gains(base, together), abs=0.03)
    assert interval is not None
    assert interval[1] - interval[0] < 0.2, "a third of what the hook alone has"


def trial_of(base: Simulated, other: Simulated, *texts: str) -> Trial:
    changes = tuple(Proposed(text, {}, text) for text in texts)
    return Trial(changes, other.point, other.point.memory, gain_of(base.point, other.point))


def test_why_several_are_surer_is_said_with_steps_at_both_ends(
    base: Simulated, hook: Simulated, together: Simulated
) -> None:
    alone = trial_of(base, hook, "fp16 hook")
    joined = trial_of(base, together, "fp16 hook", "channels-last layout")
    advice = Advice(
        scenario=load_scenario("bucket-size-slow-ethernet"),
        workload="",
        machine="",
        topology=base.topology,
        samples=Sample("image"),
        base=base.point,
        adapter_Bps=None,
        adapters=0,
        trials=(alone,),
        together=(joined,),
        power=(),
        full_power_W=None,
        too_big=(),
        refused=(),
        hourly=None,
        words={},
        simulated=0,
        provenance={},
    )
    (reason,) = find_narrow_gains(advice)
    assert reason.origin.startswith("network")
    middle = COMPUTE.index(0.0)
    for end, at in ((reason.least, NETWORK.index(-Z80)), (reason.most, NETWORK.index(Z80))):
        expected = [each.steps_s[middle, at] for each in (base, hook, together)]
        assert [end.base_s, end.alone_s, end.together_s] == pytest.approx(expected, rel=1e-3)
        assert end.together == pytest.approx(expected[0] / expected[2], rel=2e-3)
    (sentence,) = narrow_gains(advice)
    assert "channels-last layout: the network is uncertain" in sentence
    assert not list(find_narrow_gains(replace(advice, together=(alone,))))
    assert not list(
        find_narrow_gains(replace(advice, together=(replace(alone, changes=joined.changes),)))
    )
