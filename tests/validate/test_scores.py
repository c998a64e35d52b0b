"""Scores, intervals and coverage on made-up points whose right answers are known by hand."""

import math

import numpy as np
import pytest

from perfmodel.library.corrections import (
    Spread,
    band_of,
    datasheet_interval_s,
    familiarity,
    kind_of_machine,
    load_spread,
)
from perfmodel.topology.templates.build import build_topology
from perfmodel.validate.scores import (
    LARGE,
    DataPoint,
    by_band,
    even_weights,
    score,
    weighted_quantile,
)
from reports.validation.score.breakdowns import on_common
from reports.validation.score.coverage import coverage, judged, limits, spread_of
from reports.validation.trainings.model import Case, Dataset


def point(sweep="a", error=0.1, nbytes=2**20, **more):
    usual = {
        "sweep": sweep,
        "table": sweep,
        "machine": "m",
        "op": "all_reduce",
        "mode": "datasheet",
        "nbytes": nbytes,
        "measured_s": 1.0,
        "predicted_s": 1 + error,
        "interval_s": None,
        "counted": True,
    }
    return DataPoint(**(usual | more))


def test_errors_are_relative_to_what_was_measured():
    assert point(error=-0.25).error == pytest.approx(-0.25)
    assert point(measured_s=2.0, predicted_s=3.0).error == pytest.approx(0.5)


def test_bands_meet_at_256_kib_and_64_mib():
    assert [band_of(n) for n in (8, 2**18 - 1, 2**18, 2**26, 2**26 + 1)] == [
        "latency",
        "latency",
        "buckets",
        "buckets",
        "bandwidth",
    ]


def test_every_sweep_weighs_the_same():
    points = [point("long", 0.1, 2**20 + i) for i in range(9)] + [point("short", 0.5)]
    assert even_weights(points).sum() == pytest.approx(2)
    found = score(points)
    assert found.sweeps == 2
    assert found.points == 10
    assert found.median_abs_error == pytest.approx(0.1)
    assert found.p90_abs_error == pytest.approx(0.5)
    assert found.p90_of_points == pytest.approx(0.1)


@pytest.mark.parametrize(("share", "value"), [(0.1, 1.0), (0.25, 1.0), (0.5, 2.0), (0.9, 4.0)])
def test_quantiles_by_weight(share, value):
    assert weighted_quantile(np.array([4.0, 1.0, 2.0, 3.0]), np.ones(4), share) == value


def test_a_heavy_value_is_the_median():
    assert weighted_quantile(np.array([1.0, 5.0]), np.array([1.0, 3.0]), 0.5) == 5.0


def test_bands_and_what_is_not_counted():
    points = [
        point(error=0.1),
        point(error=0.3, nbytes=64),
        point("no", 9.0, counted=False),
        point(error=0.2, nbytes=2**30),
    ]
    found = by_band(points)["datasheet"]
    assert found["latency"].median_abs_error == pytest.approx(0.3)
    assert found["buckets"].median_abs_error == pytest.approx(0.1)
    assert found[LARGE].points == 2


def test_modes_are_compared_on_the_same_sweeps():
    points = [point("a", 0.1), point("b", 0.9), point("a", 0.2, mode="transferred")]
    found = on_common(points)
    assert found["datasheet"][LARGE].median_abs_error == pytest.approx(0.1)
    assert found["transferred"][LARGE].sweeps == 1


def test_coverage_and_its_confidence():
    inside, outside = (0.5, 1.5), (2.0, 3.0)
    points = [point("a", interval_s=inside), point("b", interval_s=outside), point("c")]
    found = coverage(points)
    assert (found.sweeps, found.points, found.share) == (2, 2, 0.5)
    assert (found.low, found.high) == (0.0, 1.0)
    sure = coverage([point(str(n), interval_s=inside) for n in range(30)])
    assert (sure.share, sure.low) == (1.0, 1.0)
    assert coverage([point()]) is None
    alone = coverage([point(interval_s=inside)])
    assert (alone.share, alone.low, alone.high) == (1.0, 0.0, 1.0), "one sweep makes nothing sure"


def test_limits_hold_eight_of_ten_and_widen_with_few_sweeps():
    many = [
        point(str(n), measured_s=math.exp(z), error=0.0)
        for n, z in enumerate(np.linspace(-1, 1, 201))
    ]
    low, high = limits(many)
    assert low == pytest.approx(-0.8, abs=0.03)
    assert high == pytest.approx(0.8, abs=0.03)
    few = limits([many[n] for n in (40, 80, 100, 120, 160)])  # -0.6 to 0.6: all that was seen
    assert few == pytest.approx((-0.6, 0.6))
    some = limits(many[::20])  # 11 sweeps: beyond the plain quantile of 0.8
    assert some[1] == pytest.approx(0.8, abs=0.21)
    assert some[1] >= 0.8
    assert limits([]) is None


def test_limits_always_hold_the_prediction_itself():
    slow = [point(str(n), measured_s=2.0, error=0.0) for n in range(5)]
    low, high = limits(slow)
    assert low < 0 < high == pytest.approx(math.log(2))


def noisy(rng, count=40, sizes=6, spread=0.3):
    """Sweeps of which each is off by its own factor: residuals within a sweep are alike."""
    points = []
    for number in range(count):
        off = rng.normal(0, spread)
        for size in range(sizes):
            measured = math.exp(off + rng.normal(0, 0.03))
            machine = f"kind {number % 4}"
            points.append(
                point(f"s{number}", 0.0, 2 ** (12 + 3 * size), measured_s=measured, machine=machine)
            )
    return points


def test_judged_coverage_is_near_eighty_percent():
    found = coverage(judged(noisy(np.random.default_rng(1))))
    assert found.sweeps == 40
    assert 0.7 < found.share < 0.92
    assert found.low < 0.8 < found.high


def test_no_interval_has_seen_its_own_sweep():
    points = [point(f"s{n}", error=0.0, measured_s=1.01) for n in range(6)]
    wild = point("wild", error=0.0, measured_s=50.0)
    (seen,) = (p for p in judged([*points, wild]) if p.sweep == "wild")
    assert seen.interval_s[1] < 2.0


def test_a_new_kind_gets_a_wider_interval():
    rng = np.random.default_rng(2)
    points = [*noisy(rng), point("alone", 0.0, machine="unique", measured_s=1.1)]
    table = spread_of(points, "test")
    width = {
        name: math.log(bands["buckets"][1] / bands["buckets"][0])
        for name, bands in table.factors.items()
    }
    assert width["new"] > width["few"]
    assert table.seen["kind 0, all_reduce"] == 10


def test_the_shipped_spread_is_complete_and_known_machines_are_narrower():
    table = load_spread()
    assert table.probability == 0.8
    assert set(table.factors) == {"several", "few", "new"}
    for bands in table.factors.values():
        for low, high in bands.values():
            assert low <= 1 <= high
    one = build_topology("dgx-a100")
    assert kind_of_machine(one) == "ampere, NVSwitch, one host"
    assert familiarity(table, one, "all_reduce") == "several"
    assert familiarity(table, one, "all_to_all") == "few"
    low, high = datasheet_interval_s(one, "all_reduce", 2**25, 1e-3)
    assert low < 1e-3 < high


def test_a_machine_nobody_has_seen():
    table = load_spread()
    empty = Spread(source="x", probability=0.8, factors=table.factors, seen={"other, x": 1})
    assert familiarity(empty, build_topology("dgx-a100"), "all_reduce") == "new"


def test_datasets_of_trainings():
    cases = [Case(str(n), 100.0, 100.0 + n, "samples/s") for n in range(1, 11)]
    found = Dataset("x", "X", cases, {"why": 3})
    assert found.median_abs_error == pytest.approx(0.055)
    assert found.p90_abs_error == pytest.approx(0.09)
    assert Dataset("x", "X", (), {"why": 3}).to_json()["median_abs_error"] is None
