"""Figures hold the numbers of the result and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from perfmodel.report import figures
from perfmodel.report.palette import WORK, band_of, work_of
from perfmodel.report.timeline_figure import timeline
from perfmodel.result import Result


def by_name(figure: object) -> dict[str, object]:
    return {trace.name: trace for trace in figure.data}  # type: ignore[attr-defined]


def test_scaling_curve_and_its_ideal(result: Result) -> None:
    traces = by_name(figures.scaling(result))
    assert list(traces["predicted"].x) == [1, 8, 16, 64, 128, 256]  # type: ignore[attr-defined]
    speed = result.points[0].samples_per_s
    ideal = list(traces["linear scaling"].y)  # type: ignore[attr-defined]
    assert ideal == pytest.approx([speed * n for n in (1, 8, 16, 64, 128, 256)])


def test_ideal_line_starts_at_the_smallest_size_where_that_is_the_base(result: Result) -> None:
    later = replace(result, points=result.points[1:], efficiency_base=8)
    ideal = by_name(figures.scaling(later))["linear scaling"].y  # type: ignore[attr-defined]
    assert ideal[0] == pytest.approx(result.points[1].samples_per_s)


def test_scaling_kind_is_written_on_the_chart(result: Result) -> None:
    for kind in ("weak", "strong"):
        figure = figures.scaling(replace(result, scaling=kind))  # type: ignore[arg-type]
        assert f"{kind} scaling" in [note.text for note in figure.layout.annotations]


def test_error_bars_only_where_every_point_has_an_interval(result: Result) -> None:
    assert by_name(figures.scaling(result))["predicted"].error_y.array is None  # type: ignore[attr-defined]
    sure = replace(
        result,
        points=tuple(
            replace(p, interval_s=(p.step_time_s / 1.25, p.step_time_s * 2)) for p in result.points
        ),
    )
    bars = by_name(figures.scaling(sure))["predicted"].error_y  # type: ignore[attr-defined]
    assert bars.array[0] == pytest.approx(0.25 * result.points[0].samples_per_s)
    assert bars.arrayminus[0] == pytest.approx(0.5 * result.points[0].samples_per_s)


def test_breakdown_adds_up_to_the_step(result: Result) -> None:
    figure = figures.breakdown(result)
    total = sum(trace.y[-1] for trace in figure.data)
    assert total == pytest.approx(1000 * result.main.step_time_s)
    assert "(ms)" in figure.layout.yaxis.title.text


def test_breakdown_turns_to_shares_where_steps_differ_much(result: Result) -> None:
    first = result.points[0]
    slow = replace(
        first,
        step_time_s=10 * first.step_time_s,
        breakdown_s={part: 10 * time for part, time in first.breakdown_s.items()},
    )
    figure = figures.breakdown(replace(result, points=(slow, *result.points[1:])))
    for point in range(len(result.points)):
        assert sum(trace.y[point] for trace in figure.data) == pytest.approx(100.0)


def test_memory_bar_adds_up_and_shows_the_capacity(result: Result) -> None:
    figure = figures.memory(result.main.memory)
    total = sum(trace.x[0] for trace in figure.data)
    assert total == pytest.approx(result.main.memory.total_bytes / 2**30)
    assert figure.layout.shapes[0].x0 == pytest.approx(80e9 / 2**30)


def test_timeline_shades_and_labels_the_exposed_tail(
    result: Result, with_main: Callable[..., Result]
) -> None:
    figure = timeline(result.main)
    labels = [note.text.replace("\N{NO-BREAK SPACE}", " ") for note in figure.layout.annotations]
    exposed = result.main.exposed_comm_s
    assert f"<b>{1e3 * exposed:.2f} ms exposed</b>" in labels
    assert [label for label in labels if label.isdigit()] == ["0", "1", "2", "3", "4"]
    ((low, high),) = [(shape.x0, shape.x1) for shape in figure.layout.shapes]
    assert high - low == pytest.approx(1e3 * exposed)
    wait = by_name(figure)["exposed communication"]
    assert wait.x[0] == pytest.approx(1e3 * exposed)  # type: ignore[attr-defined]


def test_gpu_ticks_keep_both_ends_and_room(result: Result) -> None:
    points = [replace(result.main, gpus=8 * n) for n in range(1, 33)]
    ticks = figures.gpu_ticks(points)
    assert (ticks[0], ticks[-1]) == (8, 256)
    assert ticks == sorted(set(ticks))
    assert len(ticks) <= 12
    assert figures.gpu_ticks(points[:1]) == [8]


def test_log_ticks_are_round_and_inside() -> None:
    assert figures.log_ticks(800, 320_000) == [1e3, 3e3, 1e4, 3e4, 1e5, 3e5]
    assert figures.log_ticks(90, 600) == [100, 200, 500]


@pytest.mark.parametrize(("longest", "unit"), [(0.0005, "us"), (0.1, "ms"), (3.0, "s")])
def test_time_unit(longest: float, unit: str) -> None:
    assert figures.time_unit(longest)[0].replace("\N{MICRO SIGN}", "u") == unit


def test_every_kind_of_span_has_a_colour() -> None:
    for kind in ("forward", "backward", "copy", "optimizer", "communication", "issue", "wait"):
        assert work_of(kind) in WORK
    assert work_of("something new") == "host"
    assert len(set(WORK.values())) == len(WORK)


def test_bands_of_utilisation() -> None:
    assert [band_of(u) for u in (0.0, 0.001, 0.1, 0.25, 0.5, 0.51, 1.0, 1.2)] == [
        0, 1, 1, 2, 3, 4, 4, 4,
    ]  # fmt: skip
