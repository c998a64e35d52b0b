"""Figures hold the numbers of the result and nothing else."""

from __future__ import annotations

import base64
import json
from dataclasses import replace

import numpy as np
import pytest

from perfmodel.report.common import figures
from perfmodel.report.common.document import Figure
from perfmodel.report.common.html import render_block
from perfmodel.studies.run.result import Result


def by_name(figure: object) -> dict[str, object]:
    return {trace.name: trace for trace in figure.data}  # type: ignore[attr-defined]


@pytest.mark.slow
def test_breakdown_adds_up_to_the_step(result: Result) -> None:
    figure = figures.draw_breakdown(result)
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
    figure = figures.draw_breakdown(replace(result, points=(slow, *result.points[1:])))
    for point in range(len(result.points)):
        assert sum(trace.y[point] for trace in figure.data) == pytest.approx(100.0)


def test_breakdown_of_one_size_lies_and_adds_up_to_the_step(result: Result) -> None:
    figure = figures.draw_breakdown(replace(result, points=result.points[-1:]))
    total = sum(trace.x[0] for trace in figure.data)
    assert total == pytest.approx(1000 * result.main.step_time_s)
    assert "(ms)" in figure.layout.xaxis.title.text
    assert figure.layout.height < 200


def test_memory_bar_adds_up_and_shows_the_capacity(result: Result) -> None:
    figure = figures.draw_memory(result.main.memory)
    total = sum(trace.x[0] for trace in figure.data)
    assert total == pytest.approx(result.main.memory.total_bytes / 2**30)
    assert figure.layout.shapes[0].x0 == pytest.approx(80e9 / 2**30)


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
    assert figures.log_ticks(3.5, 14) == [4, 6, 8, 10]  # 5 and 10 alone would be no scale


@pytest.mark.parametrize(("longest", "unit"), [(0.0005, "us"), (0.1, "ms"), (3.0, "s")])
def test_time_unit(longest: float, unit: str) -> None:
    assert figures.time_unit(longest)[0].replace("\N{MICRO SIGN}", "u") == unit


def test_pages_hold_no_more_digits_than_a_screen_shows() -> None:
    figure = figures.new_figure(100)
    figure.add_scatter(
        x=[0.123456789012, 1 / 3],
        y=[1e-9 / 3, 2],
        hovertext=["a > b </script> 0.123456789012\N{NO-BREAK SPACE}ms", "\\u003e"],
    )
    html = render_block(Figure(figure, "digits", "d"))
    assert "0.1234568,0.3333333" in html
    assert "3.333333e-10" in html
    assert "0.123456789012\N{NO-BREAK SPACE}ms" in html  # texts stay
    assert html.count("</script>") == 1  # what a script contains cannot end it
    assert "a > b \\u003c/script>" in html
    assert "\\\\u003e" in html  # a backslash of a text is no escape


def test_long_lists_are_packed_and_hold_what_they_held() -> None:
    """What `texts` of page.js and plotly make of a packed list is the list."""
    hovers = [f'a "quoted" \\ name {n % 3}<br>{n % 5} more' for n in range(50)]
    starts, rows = [n / 7 for n in range(50)], [float(n % 4) for n in range(50)]
    large = [100.0 * n for n in range(50)]  # whole, and too large for a byte
    figure = figures.new_figure(100)
    figure.add_bar(base=starts, x=large, y=rows, hovertext=hovers)
    html = render_block(Figure(figure, "packed", "d"))
    (parts, numbers), _ = json.JSONDecoder().raw_decode(
        "[" + html.partition('"hovertext":texts(')[2].partition(")")[0] + "]"
    )
    assert len(parts) == 8
    assert ["<br>".join(parts[at] for at in each) for each in numbers] == hovers
    for name, dtype, values in (("base", "<f4", starts), ("x", "<f4", large), ("y", "<i1", rows)):
        start = f'"{name}":{{"dtype":"{dtype[1:]}","bdata":"'
        packed = base64.b64decode(html.partition(start)[2].partition('"')[0])
        assert np.frombuffer(packed, dtype) == pytest.approx(np.array(values), rel=5e-7)


def test_lists_with_gaps_stay_as_they_are() -> None:
    """Of lines with breaks between them, of whose numbers half are negative."""
    drawing = f'{{"y":[{"-0.25,1.5," * 300}null,2.0]}}'
    assert figures.pack(drawing) == drawing
