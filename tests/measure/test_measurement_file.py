"""Files of measurements: written, read, refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from perfmodel.errors import InputError
from perfmodel.measure.job import (
    Measurement,
    summarise_times,
)
from tests.measure.measured_files import read_measurement, write_measurement


def measurement(**changes):
    rows = (
        summarise_times("schedule", 4, [3.0, 1.0, 2.0]),
        summarise_times("library", 4, [1.0], "x"),
    )
    known = {
        "backend": "gloo",
        "collective": "all_reduce",
        "algorithm": "ring",
        "ranks": 4,
        "started": "2026-01-01T00:00:00+00:00",
        "seconds": 1.0,
        "command": "perfmodel measure ring",
        "machine": {"cpu": "x"},
        "versions": {"torch": "2"},
        "rows": rows,
    }
    return Measurement(**(known | changes))


def test_a_measurement_survives_its_file(tmp_path):
    path = tmp_path / "m.json"
    write_measurement(measurement(), path)
    assert read_measurement(path) == measurement()
    assert read_measurement(path).times("schedule") == ((4, 2.0),)
    assert read_measurement(path).times("library", "y") == ()
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]


def test_a_file_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    path = tmp_path / "m.json"
    write_measurement(measurement(), path)
    monkeypatch.setattr(Path, "replace", lambda *a: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(InputError, match=r"m\.json"):
        write_measurement(measurement(note="new"), path)
    assert read_measurement(path) == measurement()
    assert [p.name for p in tmp_path.iterdir()] == ["m.json"]


def test_broken_files_are_refused(tmp_path):
    path = tmp_path / "m.json"
    path.write_text("{")
    with pytest.raises(InputError, match=r"m\.json:2: file: found .* allowed: YAML"):
        read_measurement(path)
    path.write_text(json.dumps(measurement().model_dump() | {"ranks": "many"}))
    with pytest.raises(InputError, match="ranks"):
        read_measurement(path)


def test_every_fault_of_a_file_is_said_at_once(tmp_path):
    path = tmp_path / "m.json"
    document = measurement().model_dump()
    rows = [dict(document["rows"][0]) for _ in range(5)]
    rows[0]["median_s"] = 0.0
    rows[1]["p90_s"] = rows[1]["min_s"] / 2
    rows[2]["min_s"] = float("inf")
    rows[3]["nbytes"] = -1
    document |= {"rows": rows, "started": "yesterday", "ranks": 0, "seconds": -1.0}
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        read_measurement(path)
    assert {fault.file for fault in caught.value.faults} == {str(path)}
    assert {fault.field for fault in caught.value.faults} == {
        "started",
        "ranks",
        "seconds",
        "rows.0.median_s",
        "rows.1",
        "rows.2.min_s",
        "rows.3.nbytes",
    }


def test_recorded_files_can_be_read():
    folder = Path(__file__).parents[2] / "reports" / "measured"
    found = [read_measurement(path) for path in sorted(folder.glob("*.json"))]
    assert found
    assert all(made.times("schedule") for made in found if made.backend != "device")


def test_quantiles_are_numpys():
    times = np.random.default_rng(0).random(37).tolist()
    found = summarise_times("schedule", 4, times).model_dump()
    for name, share in (
        ("min_s", 0),
        ("p10_s", 10),
        ("p25_s", 25),
        ("median_s", 50),
        ("p90_s", 90),
    ):
        assert found[name] == pytest.approx(np.percentile(times, share), rel=1e-12)
