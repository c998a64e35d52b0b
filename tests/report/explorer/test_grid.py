"""The explorer's grid: which points, exact on them, and how far off interpolation is between."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import hypothesis
import pytest
from hypothesis import strategies as st

from perfmodel.report.common.html import render_block
from perfmodel.report.explorer import grid as grid_module
from perfmodel.report.explorer.axes import design_of, gpu_axis, training_axes
from perfmodel.report.explorer.design import Axis, Design, Stop, choose_design
from perfmodel.report.explorer.grid import (
    TRIES,
    Grid,
    InterpolationCheck,
    check_estimates,
    draw_places,
    explore,
    simulate_places,
    value_at,
)
from perfmodel.report.explorer.section import (
    explorer_section,
    interpolation_sentence,
    to_data,
)
from perfmodel.scenario import Scenario, change_scenario, load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Result
from reports.explorer.measure import share_within

ASKED = "bucket-size-slow-ethernet"


def axis(key: str, values: list[float], asked: int = 0) -> Axis:
    """An axis with one stop in the middle (of the logarithms) between each two points."""
    points = [Stop(float(at), f"{value:g}", value, {}) for at, value in enumerate(values)]
    middles = [
        Stop(low.at + 0.5, "between", math.sqrt(low.value * high.value), {})
        for low, high in itertools.pairwise(points)
    ]
    return Axis(key, key, tuple(sorted([*points, *middles], key=lambda stop: stop.at)), asked)


def grid_of(
    axes: tuple[Axis, ...],
    step_s: Callable[..., float],
    waits: float = 0.4,
    groups: tuple[tuple[int, ...], ...] | None = None,
) -> Grid:
    def row(values: tuple[float, ...]) -> Mapping[str, Any]:
        step = step_s(*values)
        return {
            "step_time_s": step,
            "low_s": 0.9 * step,
            "high_s": None,
            "comm_s": waits * step,
            "exposed_comm_s": waits * step,
            "bottleneck": "compute",
            "fits": True,
            "samples": 2 * values[0],
            "memory_bytes": 8.0,
        }

    design = Design(axes, groups or (tuple(range(len(axes))),))
    points = ([axes[at].points[n].value for at, n in enumerate(point)] for point in design.points)
    return Grid(design, tuple(row(tuple(values)) for values in points), 10.0)


TWO = (axis("cap", [1.0, 4.0, 16.0]), axis("bandwidth", [0.5, 1.0, 2.0, 8.0]))


def test_on_a_point_every_number_is_the_points_own_to_the_bit() -> None:
    grid = grid_of(TWO, lambda cap, rate: 0.1 + cap / rate / 3)
    for at, place in enumerate(itertools.product(range(3), range(4))):
        where = tuple(map(float, place))
        assert grid.design.weights(where) == {at: 1.0}
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

    grid = grid_of(TWO, step_s, waits=1.0)  # all of it is communication: bytes over a rate
    wanted = step_s(value([1, 4, 16], place[0]), value([0.5, 1, 2, 8], place[1]))
    assert value_at(grid, place, "step_time_s") == pytest.approx(wanted, rel=1e-12)
    assert value_at(grid, place, "exposed_comm_s") == pytest.approx(wanted, rel=1e-12)


def test_weights_add_up_and_nothing_exposed_stays_nothing() -> None:
    grid = grid_of(TWO, lambda cap, rate: 0.1 + cap / rate, waits=0.0)
    around = grid.design.weights((0.25, 2.5))
    assert len(around) == 4
    assert sum(around.values()) == pytest.approx(1.0)
    assert value_at(grid, (0.25, 2.5), "exposed_comm_s") == 0.0


def test_next_to_a_point_that_failed_nothing_is_known() -> None:
    grid = grid_of(TWO, lambda cap, rate: cap / rate)
    broken = replace(grid, rows=(None, *grid.rows[1:]))
    assert value_at(broken, (0.5, 0.5), "step_time_s") is None
    assert value_at(broken, (1.5, 0.5), "step_time_s") is not None


# ---------------------------------------------------------------- estimates


KEYS = ("cap", "hook", "batch", "bandwidth", "gpus")
FIVE = tuple(axis(key, [1.0, 3.0, 9.0], 1) for key in KEYS)
PAIRS = tuple(itertools.combinations(range(5), 2))


@hypothesis.given(
    st.lists(st.floats(-1, 1), min_size=10, max_size=10), st.tuples(*[st.floats(0, 2)] * 5)
)
def test_effects_of_pairs_are_estimated_exactly_from_pairs(
    powers: list[float], place: tuple[float, ...]
) -> None:
    """Theory: a cut expansion to second order is exact for what has no higher interactions."""

    def step_s(*values: float) -> float:
        logs = [math.log(value) for value in values]
        effects = zip(powers, itertools.combinations(logs, 2), strict=True)
        return math.exp(math.fsum(power * a * b for power, (a, b) in effects))

    grid = grid_of(FIVE, step_s, waits=1.0, groups=PAIRS)
    weights = grid.design.weights(place)
    assert sum(weights.values()) == pytest.approx(1.0)
    whole = tuple(float(round(at)) for at in place)
    wanted = step_s(*(3.0**at for at in whole))
    assert value_at(grid, whole, "step_time_s") == pytest.approx(wanted, rel=1e-9)
    assert value_at(grid, whole, "samples") == pytest.approx(2 * 3.0 ** whole[0], rel=1e-9)


def test_kernels_of_pairs_add_up() -> None:
    """Theory: the same expansion, of times that add: a hook's kernels and the layers' own.

    The hook's do not depend on the batch; layers go with the batch and the micro-batches.
    """

    def step_s(cap: float, hook: float, batch: float, rate: float, gpus: float) -> float:
        return 0.2 * hook / cap + 0.05 * batch + 0.01 * gpus

    grid = grid_of(FIVE, step_s, waits=0.0, groups=PAIRS)
    place = (2.0, 2.0, 0.0, 0.0, 2.0)
    wanted = step_s(9.0, 9.0, 1.0, 1.0, 9.0)
    assert value_at(grid, place, "step_time_s") == pytest.approx(wanted, rel=1e-12)


def test_no_kernels_are_quicker_than_the_quickest_nearby() -> None:
    """Savings that were simulated apart may add up to more than there is."""
    grid = grid_of(FIVE, lambda *values: 1 / min(values), waits=0.0, groups=PAIRS)
    assert value_at(grid, (2.0,) * 5, "step_time_s") >= 1 / 9  # type: ignore[operator]


def test_communication_is_hidden_behind_the_rest_and_no_more_than_there_is() -> None:
    """Bandwidth alone hides nothing of 1 s, or all of 0.1 s behind at most 0.5 s."""
    axes = (axis("bandwidth", [1.0, 10.0, 100.0]), axis("gpus", [1.0]))
    grid = grid_of(axes, lambda rate, _: 1.0, groups=((0, 1),))
    rows = [
        {**row, "comm_s": comm, "exposed_comm_s": waits, "step_time_s": 2.0 + waits}
        for row, comm, waits in zip(grid.rows, (1.0, 0.1, 0.01), (0.5, 0.0, 0.0), strict=True)
        if row is not None
    ]
    grid = replace(grid, rows=tuple(rows))
    assert value_at(grid, (0.5, 0.0), "exposed_comm_s") == pytest.approx(10**-0.5 - 0.3)
    assert value_at(grid, (1.5, 0.0), "exposed_comm_s") == pytest.approx(0.0)
    assert value_at(grid, (1.5, 0.0), "step_time_s") == pytest.approx(2.0)


# ---------------------------------------------------------------- axes


@pytest.fixture(scope="module")
def asked() -> Scenario:
    return load_scenario(ASKED, ["model.name=resnet18"])


@pytest.fixture(scope="module")
def answer(asked: Scenario) -> Result:
    return run_scenario(asked)


@pytest.fixture(scope="module")
def everything(asked: Scenario, answer: Result) -> Design:
    """All sliders with all stops."""
    return design_of(asked, answer, 10**6)


def test_axes_stand_where_the_scenario_asks(answer: Result, everything: Design) -> None:
    axes = {one.key: one for one in everything.axes}
    labels = {key: one.points[one.baseline].label.replace("\xa0", " ") for key, one in axes.items()}
    # PyTorch's default cap; a 10 Gbit/s adapter of 20 us (topologies/ethernet-10g.yaml).
    assert labels == {
        "cap": "25 MiB",
        "hook": "none",
        "accumulate": "1 micro-batch",
        "batch": "64",
        "bandwidth": "10 Gbit/s (\xd71)",
        "latency": "20 \xb5s (\xd71)",
        "gpus": "8 GPUs",
    }
    assert axes["cap"].points[axes["cap"].baseline].settings == {
        "strategy.bucket_cap": "26214400 B",
        "strategy.first_bucket": "1048576 B",
    }
    total = sum(bucket.nbytes for bucket in answer.main.buckets)
    assert 0 <= axes["cap"].points[-1].value - total < 2**20  # all in one bucket
    assert [point.value for point in axes["gpus"].points] == [1, 2, 4, 8]


@pytest.mark.parametrize("most", [54, 70, 120, 1000])
def test_points_are_bounded_and_keep_ends_and_what_is_asked(
    asked: Scenario, answer: Result, everything: Design, most: int
) -> None:
    design = choose_design(everything.axes, most)
    assert len(design.points) <= most
    assert design.baseline in design.points
    for at, (one, whole) in enumerate(zip(design.axes, everything.axes, strict=True)):
        assert one.points[0].value == whole.points[0].value
        assert one.points[-1].value == whole.points[-1].value
        assert one.points[one.baseline].value == whole.points[whole.baseline].value
        places = [stop.at for stop in one.stops]
        assert places == sorted(places)
        values = [stop.value for stop in one.stops]
        assert values == sorted(values)
        for number in range(len(one)):  # every setting alone
            assert (*design.baseline[:at], number, *design.baseline[at + 1 :]) in design.points
    assert max(map(len, design.groups)) == {54: 1, 70: 2}.get(most, 3)


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
def test_axes_that_mean_nothing_are_left_out(asked: Scenario) -> None:
    one_node = load_scenario("gpt2-xl-pcie-p2p")
    training = ["hook", "accumulate", "batch"]
    keys = [a.key for a in design_of(one_node, run_scenario(one_node)).axes]
    assert keys == ["cap", *training, "gpus"]
    fixed = {"strategy.bucket_caps": ["1 MiB", "30 MiB"], "scale": {"gpus": [8]}}
    listed = change_scenario(asked, fixed)
    keys = [a.key for a in design_of(listed, run_scenario(listed)).axes]
    assert keys == [*training, "bandwidth", "latency", "gpus"]
    in_bf16 = change_scenario(asked, {**fixed, "model.dtype": "bf16"})
    hook = next(training_axes(in_bf16, run_scenario(in_bf16)))
    assert [point.label for point in hook.points] == ["none", "PowerSGD, rank 4"]


def test_sliders_of_training_stand_where_the_scenario_does(everything: Design) -> None:
    axes = {one.key: one for one in everything.axes}
    values = {key: [point.value for point in axes[key].points] for key in ("accumulate", "batch")}
    assert values == {"accumulate": [1, 2, 4], "batch": [16, 32, 64, 128, 256]}
    assert axes["batch"].points[axes["batch"].baseline].settings == {"training.batch_per_gpu": 64}
    sections = [point.settings["strategy.hook"] for point in axes["hook"].points]
    assert sections == ["none", "fp16", {"kind": "powersgd", "rank": 4}]


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
def test_degrees_have_sliders_where_the_strategy_has_them() -> None:
    own = {
        "strategy": {"kind": "megatron", "accumulate": 4},
        "model": {"name": "gpt2-medium", "sequence_length": 256},
        "parallel": {
            "tensor": 2,
            "sequence_parallel": True,
            "pipeline": 2,
            "vocabulary_multiple": 128,
        },
        "training": {"global_batch": 32},
        "scale": None,
    }
    here = change_scenario(load_scenario("gpt2-xl-pcie-p2p"), own)
    axes = {one.key: one for one in training_axes(here, run_scenario(here))}
    assert list(axes) == ["accumulate", "batch", "tensor", "pipeline"]
    alone = axes["tensor"].points[0]
    assert alone.settings == {"parallel.tensor": 1, "parallel.sequence_parallel": False}
    assert change_scenario(here, alone.settings).parallel.tensor == 1
    stages = [point.settings["parallel.pipeline"] for point in axes["pipeline"].points]
    assert stages == [1, {"stages": 2}]  # 4 stages of 2 GPUs are more than the host's 4


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
def test_sizes_without_what_events_name_are_no_points() -> None:
    """Node 5 of 32 is slow: a page that shows 1, 2 or 4 nodes would show nothing."""
    here = load_scenario("straggler")
    answer = run_scenario(here)
    assert [stop.value for stop in gpu_axis(here, answer).points] == [64, 128, 256]
    here = change_scenario(here, {"events": []})
    assert gpu_axis(here, answer).points[0].value == 8


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
def test_words_about_the_network_stand_only_where_it_can_be_moved(
    explored: Grid, answer: Result
) -> None:
    assert "Network bandwidth and latency are" in render_block(explorer_section(answer, explored))
    one_node = change_scenario(
        load_scenario("resnet50-dgx-a100"), {"cluster.nodes": 1, "scale": {"gpus": [1, 8]}}
    )
    alone = run_scenario(one_node)
    design = choose_design(design_of(one_node, alone).axes[-1:], 12)  # only words matter
    text = render_block(explorer_section(alone, explore(one_node, alone, design, jobs=1)))
    assert "Network bandwidth and latency are" not in text


def test_a_cap_is_never_between_simulated_ones(everything: Design, explored: Grid) -> None:
    # A parameter goes into one bucket or the other: between two caps the time jumps.
    between = [one.key for one in everything.axes if len(one.stops) > len(one)]
    assert between == ["bandwidth", "latency", "gpus"]
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
    axes = {one.key: one for one in design_of(here, run_scenario(here)).axes}
    cap = axes["cap"].points[axes["cap"].baseline]
    assert (cap.value, cap.settings) == (7 * 2**20, {"strategy.bucket_cap": "7340032 B"})
    rate = axes["bandwidth"].points[axes["bandwidth"].baseline]
    assert rate.settings == {"what_if.network_bandwidth": 2.0}
    assert rate.label.startswith("20 Gbit/s")


# ---------------------------------------------------------------- the real thing


@pytest.fixture(scope="module")
def explored(asked: Scenario, answer: Result, everything: Design) -> Grid:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grid_module, "draw_places", partial(draw_places, count=6))
        return explore(asked, answer, choose_design(everything.axes, 54), jobs=1)


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
    simulated = run_scenario(change_scenario(asked, {**settings, "scale": None})).main.step_time_s
    guessed = value_at(explored, worst.place, "step_time_s")
    assert guessed is not None
    assert abs(guessed / simulated - 1) == pytest.approx(worst.error, rel=1e-12)


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
def test_interpolation_along_the_network_is_close(asked: Scenario) -> None:
    # The default's spacing, a factor of two in bandwidth. Where compute begins to hide all
    # communication there is a kink, which no smooth curve follows.
    fixed = {"strategy.bucket_caps": ["1 MiB", "25 MiB"], "scale": {"gpus": [8]}}
    here = change_scenario(asked, fixed)
    found = run_scenario(here)
    network = design_of(here, found).axes[-3:]
    grid = explore(here, found, choose_design(network, 360), jobs=1)
    assert [(one.key, len(one)) for one in grid.axes] == [
        ("bandwidth", 6),
        ("latency", 3),
        ("gpus", 1),
    ]
    assert len(grid.checks) == 2 * TRIES
    assert sorted(one.error for one in grid.checks)[TRIES] < 0.015
    assert grid.worst_error < 0.12


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_the_note_holds_at_random_places(strategy: str) -> None:
    """At one in twenty places an estimate may be worse than the worst of twenty that were tried.

    `reports/explorer` has 200 places of five scenarios, of larger models.
    """
    flags = [
        "scale=null",
        "model.name=resnet18",
        "cluster.nodes=2",
        f"strategy={{kind: {strategy}}}",
    ]
    here = load_scenario(ASKED, flags)
    found = run_scenario(here)
    design = design_of(here, found, 54)
    grid = explore(here, found, design, jobs=1)
    places = list(draw_places(design, [len(design.axes)], 20, seed=7))
    rows, failed = simulate_places(here, design.axes, places, jobs=1)
    assert not failed
    checks = list(check_estimates(grid, places, rows))
    assert share_within(grid, checks) >= 0.8
    for place, row in zip(places, rows, strict=True):
        assert row is not None
        needs = value_at(grid, place, "memory_bytes")
        assert needs is not None
        assert row["fits"] or needs >= grid.room_bytes  # never shown as what fits


def test_what_does_not_fit_leaves_no_room_for_what_is_larger(
    asked: Scenario, answer: Result
) -> None:
    """A V100's 16 GB: at some batch ResNet-18 no longer fits, and nothing larger does."""
    large = change_scenario(asked, {"training.batch_per_gpu": 400, "scale": {"gpus": [8]}})
    found = run_scenario(large)
    axes = [axis for axis in design_of(large, found, 10**6).axes if axis.key in {"batch", "gpus"}]
    grid = explore(large, found, choose_design(axes, 54), jobs=1)
    sizes = [(row["memory_bytes"], row["fits"]) for row in grid.rows if row is not None]
    assert {fits for _, fits in sizes} == {True, False}
    assert all((size < grid.room_bytes) == fits for size, fits in sizes)
    assert grid.room_bytes < found.main.memory.capacity_bytes  # CUDA and NCCL take some


def test_the_note_says_what_was_measured(answer: Result) -> None:
    grid = grid_of(FIVE, lambda *values: sum(values), groups=PAIRS)
    checks = [InterpolationCheck((0.5,) * 5, 1 + at % 4, 1.0, 1.0 + at / 50) for at in range(8)]
    text = interpolation_sentence(replace(grid, checks=tuple(checks))).replace("\xa0", " ")
    assert "one or two sliders moved the step time was off by 5 % in the median of 4" in text
    assert "by 10 % at worst; with more the step time was off by 9 % in the median of 4" in text
    assert "and by 14 % at worst. Simulate a setting itself" in text
    assert "off by up to 10 %" in to_data(replace(grid, checks=tuple(checks)))["errors"][0].replace(
        "\xa0", " "
    )
