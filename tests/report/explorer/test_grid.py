"""The explorer's grid: which points, exact on them, and how far off interpolation is between."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from perfmodel.report.common.html import render_block
from perfmodel.report.explorer.axes import Axis, Stop, axes_of
from perfmodel.report.explorer.grid import Grid, corners, explore, value_at
from perfmodel.report.explorer.section import explorer_section, to_data
from perfmodel.scenario import Scenario, change_scenario, load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result.model import Result

ASKED = "bucket-size-slow-ethernet"


def axis(key: str, values: list[float], asked: int = 0) -> Axis:
    """An axis with one stop in the middle (of the logarithms) between each two points."""
    points = [Stop(float(at), f"{value:g}", value, {}) for at, value in enumerate(values)]
    middles = [
        Stop(low.at + 0.5, "between", math.sqrt(low.value * high.value), {})
        for low, high in itertools.pairwise(points)
    ]
    return Axis(key, key, tuple(sorted([*points, *middles], key=lambda stop: stop.at)), asked)


def grid_of(axes: tuple[Axis, ...], step_s: Callable[..., float], waits: float = 0.4) -> Grid:
    def row(values: tuple[float, ...]) -> Mapping[str, Any]:
        step = step_s(*values)
        return {
            "step_time_s": step, "low_s": 0.9 * step, "high_s": None,
            "exposed_comm_s": waits * step, "bottleneck": "compute", "fits": True,
        }  # fmt: skip

    all_of = itertools.product(*([stop.value for stop in one.points] for one in axes))
    return Grid(axes, tuple(row(values) for values in all_of), 1.0, 1.0)


TWO = (axis("cap", [1.0, 4.0, 16.0]), axis("bandwidth", [0.5, 1.0, 2.0, 8.0]))


def test_on_a_point_every_number_is_the_points_own_to_the_bit() -> None:
    grid = grid_of(TWO, lambda cap, rate: 0.1 + cap / rate / 3)
    for at, place in enumerate(itertools.product(range(3), range(4))):
        where = tuple(map(float, place))
        assert list(corners(grid.axes, where)) == [(at, 1.0)]
        for column in ("step_time_s", "low_s", "exposed_comm_s"):
            assert value_at(grid, where, column) == grid.rows[at][column]  # type: ignore[index]
    assert value_at(grid, (0.0, 0.0), "high_s") is None


@pytest.mark.parametrize("place", [(0.5, 0.0), (1.25, 1.5), (2.0, 2.75), (0.1, 0.9)])
def test_powers_of_the_settings_are_interpolated_exactly(place: tuple[float, float]) -> None:
    # Theory: the logarithm of c * cap**a * rate**b is linear in the logarithms of both.
    def step_s(cap: float, rate: float) -> float:
        return 0.3 * cap**0.7 / rate

    def value(values: list[float], at: float) -> float:
        low = min(math.floor(at), len(values) - 2)
        return values[low] * (values[low + 1] / values[low]) ** (at - low)

    grid = grid_of(TWO, step_s)
    wanted = step_s(value([1, 4, 16], place[0]), value([0.5, 1, 2, 8], place[1]))
    assert value_at(grid, place, "step_time_s") == pytest.approx(wanted, rel=1e-12)
    assert value_at(grid, place, "exposed_comm_s") == pytest.approx(0.4 * wanted, rel=1e-12)


def test_weights_add_up_and_nothing_exposed_stays_nothing() -> None:
    grid = grid_of(TWO, lambda cap, rate: 0.1 + cap / rate, waits=0.0)
    around = list(corners(grid.axes, (0.25, 2.5)))
    assert len(around) == 4
    assert sum(weight for _, weight in around) == pytest.approx(1.0)
    assert value_at(grid, (0.25, 2.5), "exposed_comm_s") == 0.0


def test_next_to_a_point_that_failed_nothing_is_known() -> None:
    grid = grid_of(TWO, lambda cap, rate: cap / rate)
    broken = Grid(grid.axes, (None, *grid.rows[1:]), 1.0, 1.0)
    assert value_at(broken, (0.5, 0.5), "step_time_s") is None
    assert value_at(broken, (1.5, 0.5), "step_time_s") is not None


# ---------------------------------------------------------------- axes


@pytest.fixture(scope="module")
def asked() -> Scenario:
    return load_scenario(ASKED)


@pytest.fixture(scope="module")
def answer(asked: Scenario) -> Result:
    return run_scenario(asked)


def test_axes_stand_where_the_scenario_asks(asked: Scenario, answer: Result) -> None:
    axes = {one.key: one for one in axes_of(asked, answer)}
    assert list(axes) == ["cap", "bandwidth", "latency", "gpus"]
    labels = {key: one.points[one.baseline].label.replace("\xa0", " ") for key, one in axes.items()}
    # PyTorch's default cap; a 10 Gbit/s adapter of 20 us (topologies/ethernet-10g.yaml).
    assert labels == {
        "cap": "25 MiB", "bandwidth": "10 Gbit/s (\xd71)", "latency": "20 \xb5s (\xd71)",
        "gpus": "8 GPUs",
    }  # fmt: skip
    assert axes["cap"].points[axes["cap"].baseline].settings == {
        "strategy.bucket_cap": "26214400 B", "strategy.first_bucket": "1048576 B",
    }  # fmt: skip
    total = sum(bucket.nbytes for bucket in answer.main.buckets)
    assert 0 <= axes["cap"].points[-1].value - total < 2**20  # all in one bucket
    assert [point.value for point in axes["gpus"].points] == [1, 2, 4, 8]


@pytest.mark.parametrize("most", [54, 60, 100, 200, 1000])
def test_points_are_bounded_and_keep_ends_and_what_is_asked(
    asked: Scenario, answer: Result, most: int
) -> None:
    axes, full = axes_of(asked, answer, most), axes_of(asked, answer, 10**6)
    assert math.prod(map(len, axes)) <= most
    for one, whole in zip(axes, full, strict=True):
        assert one.points[0].value == whole.points[0].value
        assert one.points[-1].value == whole.points[-1].value
        assert one.points[one.baseline].value == whole.points[whole.baseline].value
        places = [stop.at for stop in one.stops]
        assert places == sorted(places)
        values = [stop.value for stop in one.stops]
        assert values == sorted(values)


def test_axes_that_mean_nothing_are_left_out(asked: Scenario) -> None:
    one_node = load_scenario("gpt2-xl-pcie-p2p")
    assert [a.key for a in axes_of(one_node, run_scenario(one_node))] == ["cap", "gpus"]
    listed = change_scenario(
        asked, {"strategy.bucket_caps": ["1 MiB", "30 MiB"], "scale": {"gpus": [8]}}
    )
    assert [a.key for a in axes_of(listed, run_scenario(listed))] == [
        "bandwidth", "latency", "gpus",
    ]  # fmt: skip


def test_sizes_without_what_events_name_are_no_points() -> None:
    """Node 5 of 32 is slow: a page that shows 1, 2 or 4 nodes would show nothing."""
    here = load_scenario("straggler")
    answer = run_scenario(here)
    assert [stop.value for stop in axes_of(here, answer)[-1].points] == [64, 128, 256]
    here = change_scenario(here, {"events": []})
    assert axes_of(here, answer)[-1].points[0].value == 8


def test_words_about_the_network_stand_only_where_it_can_be_moved(
    explored: Grid, answer: Result
) -> None:
    assert "Network bandwidth and latency are" in render_block(explorer_section(answer, explored))
    one_node = change_scenario(
        load_scenario("resnet50-dgx-a100"), {"cluster.nodes": 1, "scale": {"gpus": [1, 8]}}
    )
    alone = run_scenario(one_node)
    axes = axes_of(one_node, alone, 12)  # as few as there may be: only words matter
    text = render_block(explorer_section(alone, explore(one_node, alone, axes, jobs=1)))
    assert "Network bandwidth and latency are" not in text


def test_a_cap_is_never_between_simulated_ones(asked: Scenario, explored: Grid) -> None:
    # A parameter goes into one bucket or the other: between two caps the time jumps.
    cap, rates = axes_of(asked, run_scenario(asked))[:2]
    assert cap.stops == cap.points
    assert len(rates.stops) > len(rates.points)
    assert all(one.place[0].is_integer() for one in explored.checks)


def test_pages_do_not_show_where_the_scenario_lies() -> None:
    field = "events.0.degrade.link: found 'n3/nic0'; allowed: a device"
    grid = grid_of(TWO, lambda cap, rate: cap / rate)
    for where in ("/home/ann/my runs/degraded.yaml:9: ", "C:\\x\\degraded.yaml: ", ""):
        assert to_data(replace(grid, failed=where + field))["failed"] == field
    assert to_data(replace(grid, failed="does not fit"))["failed"] == "does not fit"


def test_an_own_cap_and_own_factors_are_where_sliders_stand(asked: Scenario) -> None:
    own = {"strategy.bucket_cap": "7 MiB", "what_if.network_bandwidth": 2.0, "scale": {"gpus": [8]}}
    here = change_scenario(asked, own)
    axes = {one.key: one for one in axes_of(here, run_scenario(here))}
    cap = axes["cap"].points[axes["cap"].baseline]
    assert (cap.value, cap.settings) == (7 * 2**20, {"strategy.bucket_cap": "7340032 B"})
    rate = axes["bandwidth"].points[axes["bandwidth"].baseline]
    assert rate.settings == {"what_if.network_bandwidth": 2.0}
    assert rate.label.startswith("20 Gbit/s")


# ---------------------------------------------------------------- the real thing


@pytest.fixture(scope="module")
def explored(asked: Scenario, answer: Result) -> Grid:
    return explore(asked, answer, axes_of(asked, answer, 54), jobs=1)


def test_where_the_scenario_asks_the_grid_is_its_answer(explored: Grid, answer: Result) -> None:
    main = answer.main
    assert value_at(explored, explored.baseline, "step_time_s") == main.step_time_s
    assert value_at(explored, explored.baseline, "exposed_comm_s") == main.exposed_comm_s
    ends_s = (value_at(explored, explored.baseline, end) for end in ("low_s", "high_s"))
    assert main.interval_s == tuple(ends_s)
    assert explored.failed == ""


def test_every_size_of_the_curve_is_on_the_grid(explored: Grid, answer: Result) -> None:
    *others, gpus = explored.axes
    here = tuple(float(one.baseline) for one in others)
    for number, point in enumerate(gpus.points):
        wanted = next(p for p in answer.points if p.gpus == point.value)
        assert value_at(explored, (*here, float(number)), "step_time_s") == wanted.step_time_s


def test_error_stated_is_that_of_simulations_held_out(asked: Scenario, explored: Grid) -> None:
    assert len(explored.checks) >= 8
    worst = max(explored.checks, key=lambda one: one.error)
    assert explored.worst_error == worst.error > 0
    # Simulated here once more, by hand, without the sweep.
    settings: dict[str, Any] = {}
    for one, at in zip(explored.axes, worst.place, strict=True):
        settings |= next(stop.settings for stop in one.stops if stop.at == at)
    simulated = run_scenario(change_scenario(asked, settings)).main.step_time_s
    guessed = value_at(explored, worst.place, "step_time_s")
    assert guessed is not None
    assert abs(guessed / simulated - 1) == pytest.approx(worst.error, rel=1e-12)


def test_interpolation_along_the_network_is_close(asked: Scenario) -> None:
    # The default's spacing, a factor of two in bandwidth. Where compute begins to hide all
    # communication there is a kink, which no smooth curve follows.
    fixed = {"strategy.bucket_caps": ["1 MiB", "25 MiB"], "scale": {"gpus": [8]}}
    here = change_scenario(asked, fixed)
    found = run_scenario(here)
    grid = explore(here, found, axes_of(here, found), jobs=1)
    assert [(one.key, len(one)) for one in grid.axes] == [
        ("bandwidth", 6), ("latency", 3), ("gpus", 1),
    ]  # fmt: skip
    along = sorted(one.error for one in grid.checks if one.axis == "bandwidth")
    assert len(along) == 5
    assert along[2] < 0.015
    assert along[-1] < 0.08
    assert grid.worst_error < 0.12
