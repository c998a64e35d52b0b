"""Figures of a scaling curve hold its numbers, and intervals only where there are some."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.report.common.quantities import INTERVAL
from perfmodel.report.run import scaling
from perfmodel.studies.run.result import Result


def by_name(figure: object) -> dict[str, object]:
    return {trace.name: trace for trace in figure.data}  # type: ignore[attr-defined]


def with_intervals(result: Result, sizes: set[int]) -> Result:
    points = tuple(
        replace(
            p,
            interval_s=(p.step_time_s / 1.25, p.step_time_s * 2),
            scaling_efficiency_interval=(p.scaling_efficiency / 2, p.scaling_efficiency * 1.25),
        )
        if p.gpus in sizes
        else p
        for p in result.points
    )
    return replace(result, points=points)


def test_throughput_and_its_ideal(result: Result) -> None:
    traces = by_name(scaling.draw_throughput(result))
    assert list(traces["predicted"].x) == [1, 8, 16, 64, 128, 256]  # type: ignore[attr-defined]
    speed = result.points[0].samples_per_s
    ideal = list(traces["linear scaling"].y)  # type: ignore[attr-defined]
    assert ideal == pytest.approx([speed * n for n in (1, 8, 16, 64, 128, 256)])


def test_ideal_line_starts_at_the_smallest_size_where_that_is_the_base(result: Result) -> None:
    later = replace(result, points=result.points[1:], efficiency_base=8)
    ideal = by_name(scaling.draw_throughput(later))["linear scaling"].y  # type: ignore[attr-defined]
    assert ideal[0] == pytest.approx(result.points[1].samples_per_s)


def test_scaling_kind_is_written_on_the_chart(result: Result) -> None:
    for kind in ("weak", "strong"):
        figure = scaling.draw_throughput(replace(result, scaling=kind))  # type: ignore[arg-type]
        assert f"{kind} scaling" in [note.text for note in figure.layout.annotations]


def test_band_lies_only_over_sizes_with_an_interval(result: Result) -> None:
    assert INTERVAL not in by_name(scaling.draw_throughput(result))
    sure = with_intervals(result, {8, 16, 64, 256})
    bands = [t for t in scaling.draw_throughput(sure).data if t.name == INTERVAL]
    assert [list(band.x) for band in bands] == [[8, 16, 64, 64, 16, 8], [256, 256]]
    speed = result.points[1].samples_per_s
    assert bands[0].y[0] == pytest.approx(1.25 * speed)
    assert bands[0].y[-1] == pytest.approx(0.5 * speed)
    curve = by_name(scaling.draw_throughput(sure))["predicted"]
    assert list(curve.marker.symbol) == [  # type: ignore[attr-defined]
        "circle-open",
        "circle",
        "circle",
        "circle",
        "circle-open",
        "circle",
    ]


def test_step_time_and_efficiency_have_the_band_too(result: Result) -> None:
    sure = with_intervals(result, {8, 16, 64, 128, 256})
    step = by_name(scaling.draw_step_time(sure))[INTERVAL]
    assert step.y[0] == pytest.approx(2e3 * result.points[1].step_time_s)  # type: ignore[attr-defined]
    share = by_name(scaling.draw_efficiency(sure))[INTERVAL]
    assert share.y[0] == pytest.approx(125 * result.points[1].scaling_efficiency)  # type: ignore[attr-defined]


def test_strip_covers_the_axis_and_changes_with_the_bottleneck(result: Result) -> None:
    figure = scaling.draw_efficiency(result)
    strips = [shape for shape in figure.layout.shapes if shape.type == "rect"]
    assert len(strips) == 2  # compute on 1 GPU, then a link
    assert strips[0].x1 == strips[1].x0 == pytest.approx(8**0.5)
    assert strips[0].fillcolor != strips[1].fillcolor
    low, high = figure.layout.xaxis.range
    assert (strips[0].x0, strips[1].x1) == pytest.approx((10**low, 10**high))
