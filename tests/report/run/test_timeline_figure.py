"""The figure of one step."""

from __future__ import annotations

import pytest

from perfmodel.report.run.drawings.timeline_figure import draw_timeline
from perfmodel.studies.run.result.model import Result


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
