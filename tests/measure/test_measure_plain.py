"""Times, messages and files of measurements; no torch needed."""

import json
from pathlib import Path

import numpy as np
import pytest

from perfmodel.errors import InputError
from perfmodel.measure.job import MeasurementJob
from perfmodel.measure.processes import status as at
from perfmodel.measure.processes.worker import (
    MOST_REPEATS,
    PASSES,
    choose_repeats,
    compute_collective_times,
)
from perfmodel.measure.record import (
    Measurement,
    compute_quantiles,
    read_measurement,
    summarise_times,
    write_measurement,
)

SIZES = (1024, 4096)


def job(**changes):
    known = {"backend": "gloo", "algorithm": "ring", "collective": "all_reduce", "ranks": 4}
    return MeasurementJob(**(known | {"sizes": SIZES} | changes))


# ---------------------------------------------------------------- times


def test_a_collective_takes_from_the_last_start_to_the_last_end():
    spans = np.array([[[1.0, 5.0], [10.0, 11.0]], [[2.0, 4.0], [10.5, 12.0]]])
    assert compute_collective_times(spans, shared_clock=True) == [3.0, 1.5]
    assert compute_collective_times(spans, shared_clock=False) == [4.0, 1.5]


def test_repeats_keep_to_the_budget():
    costs = [0.001, 0.004, 0.1, 0.4]
    counts = choose_repeats(job(budget_s=20.0), costs)
    assert sum(c * n for c, n in zip(costs, counts, strict=True)) == pytest.approx(20, rel=0.15)
    assert counts == sorted(counts, reverse=True)
    assert all(count % PASSES == 0 for count in counts)
    assert choose_repeats(job(budget_s=1e9), costs) == [MOST_REPEATS] * 4
    assert choose_repeats(job(repeats=3), costs) == [3] * 4


# ---------------------------------------------------------------- what a rank is doing


def test_the_status_is_told_in_words():
    memory = [0] * (2 * at.FIELDS)
    status = at.Status(memory, 1)
    assert at.describe_status(memory, 1) == "starting Python and torch"
    status.stage(at.TIME)
    status.item(4096, 0, 2)
    status.step(at.POSTED, 4)
    assert str(status) == (
        "timing, schedule of 4 KiB, repeat 3, waiting for sends and receives of round 5"
    )
    status.item(1 << 20, 1, 0)
    status.step(at.LIBRARY)
    assert str(status) == "timing, library of 1 MiB, repeat 1, inside the library's collective"
    assert at.read_ticks(memory, 2) == [0, 4]


def test_progress_is_read_from_rank_0():
    memory = [0] * (2 * at.FIELDS)
    at.Status(memory, 0).progress(3, 10)
    assert at.read_progress(memory) == (3, 10)


# ---------------------------------------------------------------- the file


def measurement(**changes):
    rows = (
        summarise_times("schedule", 4, [3.0, 1.0, 2.0]),
        summarise_times("library", 4, [1.0], "x"),
    )
    known = {
        "backend": "gloo", "collective": "all_reduce", "algorithm": "ring", "ranks": 4,
        "started": "2026-01-01T00:00:00+00:00", "seconds": 1.0, "command": "perfmodel measure ring",
        "machine": {"cpu": "x"}, "versions": {"torch": "2"}, "rows": rows,
    }  # fmt: skip
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
    with pytest.raises(InputError, match="no JSON"):
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
        "started", "ranks", "seconds", "rows.0.median_s", "rows.1", "rows.2.min_s", "rows.3.nbytes",
    }  # fmt: skip


def test_recorded_files_can_be_read():
    folder = Path(__file__).parents[2] / "reports" / "measured"
    found = [read_measurement(path) for path in sorted(folder.glob("*.json"))]
    assert found
    assert all(made.times("schedule") for made in found if made.backend != "device")


def test_quantiles_are_numpys():
    times = np.random.default_rng(0).random(37).tolist()
    found = compute_quantiles(times)
    for name, share in (
        ("min_s", 0),
        ("p10_s", 10),
        ("p25_s", 25),
        ("median_s", 50),
        ("p90_s", 90),
    ):
        assert found[name] == pytest.approx(np.percentile(times, share), rel=1e-12)
