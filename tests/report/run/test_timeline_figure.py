"""The figure of one step."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from perfmodel.report.common.palette import WORK
from perfmodel.report.run.timeline import draw_timeline
from perfmodel.studies.run.result import Result
from perfmodel.timeline import Span, Timeline


def test_timeline_shades_and_labels_the_exposed_tail(result: Result) -> None:
    figure = draw_timeline(result.main)
    labels = [note.text.replace("\N{NO-BREAK SPACE}", " ") for note in figure.layout.annotations]
    exposed = result.main.exposed_comm_s
    assert f"<b>{1e3 * exposed:.2f} ms exposed</b>" in labels
    assert [label for label in labels if label.isdigit()] == ["0", "1", "2", "3", "4"]
    ((low, high),) = [(shape.x0, shape.x1) for shape in figure.layout.shapes]
    assert high - low == pytest.approx(1e3 * exposed)
    (wait,) = [trace for trace in figure.data if trace.name == "exposed communication"]
    assert wait.x[0] == pytest.approx(1e3 * exposed)


def test_short_messages_have_an_edge_of_their_own_colour(result: Result) -> None:
    """A pale edge of 0.7 pixels covers a bar of one pixel, and on a dark page it is black."""
    spans = [
        span._replace(end_s=span.start_s + 1e-4) if span.bucket == 1 else span
        for span in result.main.timeline.spans
    ]
    figure = draw_timeline(replace(result.main, timeline=Timeline(tuple(spans))))
    (messages,) = [trace for trace in figure.data if trace.name == "communication"]
    shares = [length / figure.layout.xaxis.range[1] for length in messages.x]
    own = WORK["communication"]
    expected = ["white" if share > 1 / 150 else own for share in shares]
    assert list(messages.marker.line.color) == expected
    assert expected.count(own) == 1


def test_many_rows_stand_close_and_fit_a_sheet_of_paper(result: Result) -> None:
    spans = [
        Span("f", "forward", f"stage {n}", "compute", 0, float(n), n + 1.0, 0.0) for n in range(16)
    ]
    timeline = Timeline(tuple(spans))
    height = draw_timeline(replace(result.main, timeline=timeline)).layout.height
    assert height < 900
    assert height > draw_timeline(result.main).layout.height


def test_one_of_many_spans_is_named_and_the_others_counted(result: Result) -> None:
    figure = draw_timeline(result.main)
    (forward,) = [trace for trace in figure.data if trace.name == "forward"]
    assert forward.hovertext[0].startswith("layer0 forward and 52 more<br>")
    assert "busy" in forward.hovertext[0]


def test_a_step_with_pieces_of_waiting_is_not_shaded_as_a_whole(result: Result) -> None:
    """Compute of 1.5 ms in every 2 ms: a quarter is exposed, in 495 pieces."""
    starts_s = [2e-3 * n for n in range(495)]
    spans = [Span("h", "backward", "all", "compute", 0, at, at + 1.5e-3, at) for at in starts_s]
    spans.append(Span("g", "communication", "all", "comm", 0, 0.0, 0.99, 0.0))
    point = replace(result.main, timeline=Timeline(tuple(spans)), step_time_s=0.99)
    figure = draw_timeline(point)
    assert not figure.layout.shapes
    labels = [note.text.replace("\N{NO-BREAK SPACE}", " ") for note in figure.layout.annotations]
    assert any(re.fullmatch("<b>24[78] ms exposed, in short pieces</b>", text) for text in labels)


def test_a_single_bucket_has_no_number(result: Result) -> None:
    spans = [s for s in result.main.timeline.spans if s.bucket is None or s.bucket == 0]
    figure = draw_timeline(replace(result.main, timeline=Timeline(tuple(spans))))
    assert [note.text for note in figure.layout.annotations if note.text.isdigit()] == []


def test_pointing_at_a_bar_shows_its_name_and_its_times(result: Result) -> None:
    """Times are those of the bar, which the browser writes: they are no texts of the page."""
    figure = draw_timeline(result.main)
    (messages,) = [trace for trace in figure.data if trace.name == "communication"]
    bucket = result.main.buckets[1]
    (at,) = [at for at, text in enumerate(messages.hovertext) if "bucket 1," in text]
    assert messages.base[at] == pytest.approx(1e3 * bucket.start_s)
    assert messages.base[at] + messages.x[at] == pytest.approx(1e3 * bucket.end_s)
    assert "%{hovertext}<br>%{base:.5~r} to %{x:.5~r}" in messages.hovertemplate


def test_labels_of_waiting_leave_each_other_room_on_a_phone(result: Result) -> None:
    """One at 14 % of the width runs to the right, one at 95 % to the left: each is 40 % long."""
    spans = [
        Span("c", "communication", "all", "comm", 0, 0.14, 0.20, 0.0),
        Span("c", "communication", "all", "comm", 0, 0.70, 0.95, 0.0),
        Span("f", "forward", "all", "compute", 0, 0.0, 0.14, 0.0),
        Span("b", "backward", "all", "compute", 0, 0.20, 0.70, 0.0),
        Span("o", "optimizer", "all", "compute", 0, 0.95, 1.0, 0.0),
    ]
    point = replace(result.main, timeline=Timeline(tuple(spans)), step_time_s=1.0)
    labels = [n.text for n in draw_timeline(point).layout.annotations if "exposed" in n.text]
    assert len(labels) == 1
    assert "250" in labels[0]
