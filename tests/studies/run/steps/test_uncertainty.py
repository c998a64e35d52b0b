"""Intervals of steps and of ratios from independent uncertainties."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.scenario import load_scenario
from perfmodel.studies.run.result import Uncertainty
from perfmodel.studies.run.steps import sized_job
from perfmodel.studies.run.steps.retimed_steps import RetimedSteps
from perfmodel.studies.run.steps.sized_job import prepare, simulate_reported
from perfmodel.studies.run.steps.uncertainty import (
    ratio_interval,
    simulate_uncertainties,
    step_interval,
)

Z80 = 1.2815515655446004

widths = st.floats(0.0, 1.0)


def part(
    origin: str, step_s: float, low: float, high: float, *, shared: bool = True
) -> Uncertainty:
    """Make an uncertainty from half widths of the logarithm."""
    return Uncertainty(origin, step_s * math.exp(-low), step_s * math.exp(high), shared)


def test_independent_parts_are_those_of_drawn_products() -> None:
    """Against drawing: a product of two lognormal factors."""
    rng = np.random.default_rng(0)
    logs = rng.normal(0, 0.3 / Z80, 200_000) + rng.normal(0, 0.4 / Z80, 200_000)
    drawn = 2.0 * np.exp(np.quantile(logs, [0.1, 0.9]))
    parts = [part("a", 2.0, 0.3, 0.3), part("b", 2.0, 0.4, 0.4)]
    assert step_interval(2.0, parts) == pytest.approx(tuple(drawn), rel=0.01)
    assert step_interval(2.0, parts) == pytest.approx((2 * math.exp(-0.5), 2 * math.exp(0.5)))


@given(widths, widths, widths, widths)
def test_a_part_more_is_never_surer(a: float, b: float, c: float, d: float) -> None:
    few = step_interval(1.0, [part("a", 1.0, a, b)])
    more = step_interval(1.0, [part("a", 1.0, a, b), part("b", 1.0, c, d)])
    assert more[0] <= few[0] * (1 + 1e-12)
    assert more[1] >= few[1] * (1 - 1e-12)


@given(st.floats(0.1, 10), widths, widths)
def test_what_both_share_alike_cancels(ratio: float, low: float, high: float) -> None:
    a, b = part("compute", 1.0, low, high), part("compute", ratio, low, high)
    assert ratio_interval((ratio, [b]), (1.0, [a])) == pytest.approx((ratio, ratio))


@given(st.floats(0.1, 10), widths, widths, widths, widths)
def test_a_ratio_turned_around_has_its_interval_turned_around(
    b_s: float, a_low: float, a_high: float, b_low: float, b_high: float
) -> None:
    for shared in (True, False):
        a = (1.0, [part("x", 1.0, a_low, a_high, shared=shared)])
        b = (b_s, [part("x", b_s, b_low, b_high, shared=shared)])
        low, high = ratio_interval(b, a)
        assert low * (1 - 1e-12) <= b_s <= high * (1 + 1e-12)
        assert ratio_interval(a, b) == pytest.approx((1 / high, 1 / low))


def test_chance_is_never_shared() -> None:
    parts = [part("chance", 1.0, 0.3, 0.3, shared=False)]
    width = math.hypot(0.3, 0.3)
    assert ratio_interval((1.0, parts), (1.0, parts)) == pytest.approx(
        (math.exp(-width), math.exp(width))
    )


def relative_ends() -> tuple[float, float]:
    """Ends of the interval of a step of ResNet-50 on one node, over the step."""
    sized = prepare(load_scenario("resnet50-dgx-a100", ["cluster.nodes=1", "scale=null"]))
    reported = simulate_reported(sized)
    again = RetimedSteps(reported, sized.disturbances)
    low_s, high_s = step_interval(reported.step_s, simulate_uncertainties(sized, again) or ())
    return low_s / reported.step_s, high_s / reported.step_s


def test_ends_are_compared_with_as_many_steps_as_they_have(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step waits for the host, which the reported one does not: only ratios are alike."""
    usual = relative_ends()
    monkeypatch.setattr(sized_job, "MANY_TASKS", 1)
    assert relative_ends() == pytest.approx(usual, rel=1e-3)


def test_ends_of_a_run_by_messages_are_those_of_flows() -> None:
    """On sockets, where ends are simulated: a message of each send takes other times."""
    name, ratios = "resnet18-loopback-gloo", []
    for fidelity in ("flow", "message"):
        sized = prepare(load_scenario(name, ["scale=null"]), fidelity=fidelity)
        again = RetimedSteps(simulate_reported(sized), sized.disturbances)
        parts = simulate_uncertainties(sized, again) or ()
        step_s = again.base.step_s
        ratios.append([(each.low_s / step_s, each.high_s / step_s) for each in parts])
    flows, messages = ratios
    assert flows
    assert messages == [pytest.approx(each, rel=1e-12) for each in flows]


def test_a_host_that_is_hardly_waited_for_is_no_part_of_the_interval() -> None:
    """Kernels of large batches outlast what launches them, those of an image each do not."""
    sizes = {1024: "bert-large-v100-25g", 1: "resnet50-dgx-a100"}
    for batch, name in sizes.items():
        changes = ["cluster.nodes=2", "scale=null", f"training.batch_per_gpu={batch}"]
        sized = prepare(load_scenario(name, changes))
        again = RetimedSteps(simulate_reported(sized), sized.steady_disturbances)
        parts = simulate_uncertainties(sized, again) or ()
        assert any(each.origin.startswith("host of") for each in parts) is (batch == 1)
