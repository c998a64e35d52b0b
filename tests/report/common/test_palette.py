"""Colours of kinds of work and of bands of utilisation."""

from __future__ import annotations

from perfmodel.report.common.palette import WORK, band_of, work_of


def test_every_kind_of_span_has_a_colour() -> None:
    for kind in ("forward", "backward", "copy", "optimizer", "communication", "issue", "wait"):
        assert work_of(kind) in WORK
    assert work_of("something new") == "host"
    assert len(set(WORK.values())) == len(WORK)


def test_bands_of_utilisation() -> None:
    assert [band_of(u) for u in (0.0, 0.001, 0.1, 0.25, 0.5, 0.51, 1.0, 1.2)] == [
        0,
        1,
        1,
        2,
        3,
        4,
        4,
        4,
    ]
