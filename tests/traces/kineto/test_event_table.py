"""Events of a trace as columns."""

from __future__ import annotations

import numpy as np

from perfmodel.traces.kineto.event_table import Events


def test_each_event_lies_in_one_of_successive_spans() -> None:
    start, number = np.array([0.0, 0.5, 1.0, 1.0, 2.0]), np.arange(5)
    events = Events(start, start + 0.1, *[number] * 5)
    parts = [events.within(at, at + 1.0) for at in range(3)]
    assert np.concatenate([part.row for part in parts]).tolist() == number.tolist()
