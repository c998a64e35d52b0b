"""Measuring without torch: moves, data, repeats, messages, files."""

import builtins
import json
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import perfmodel
from perfmodel.cli import app
from perfmodel.collectives import catalog, ring
from perfmodel.errors import DataMismatch, ExecutorUnavailable, InputError, ScheduleError
from perfmodel.measure import status as at
from perfmodel.measure.exchange import scratch_elements, staged_moves
from perfmodel.measure.job import Job, schedules, size_measured
from perfmodel.measure.machine import Busy, describe_machine, describe_versions, other_work
from perfmodel.measure.moves import Move, compare, elements, execute, moves, starting_data
from perfmodel.measure.rank import MOST_REPEATS, PASSES, collective_times, repeats_within
from perfmodel.measure.record import (
    Measurement,
    quantiles,
    read_measurement,
    row_of,
    write_measurement,
)
from perfmodel.measure.run import command_of, measure, under_torchrun

SIZES = (1024, 4096)


def job(**changes):
    known = {"backend": "gloo", "algorithm": "ring", "collective": "all_reduce", "ranks": 4}
    return Job(**(known | {"sizes": SIZES} | changes))


# ---------------------------------------------------------------- moves and data


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("algorithm", sorted(set(catalog.ALGORITHMS["all_reduce"]) - {"switch"}))
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_rounds_sum_on_numpy(algorithm, ranks, dtype):
    if catalog.allows("all_reduce", algorithm, ranks):
        pytest.skip("the algorithm does not allow this number of ranks")
    schedule = catalog.make(
        "all_reduce", algorithm, ranks, 8 * 37, itemsize=np.dtype(dtype).itemsize
    )
    buffers = starting_data(dtype, ranks, elements(schedule), seed=3)
    wanted = np.sum(buffers, axis=0, dtype=dtype)  # wraps around as the libraries do
    execute(moves(schedule), buffers)
    for buffer in buffers:
        assert buffer.dtype == wanted.dtype
        assert (buffer == wanted).all()


def test_sends_read_the_state_from_before_the_round():
    swap = [
        [Move(0, 1, slice(0, 1), slice(0, 1), False), Move(1, 0, slice(0, 1), slice(0, 1), False)]
    ]
    buffers = [np.array([1]), np.array([2])]
    execute(swap, buffers)
    assert [b.tolist() for b in buffers] == [[2], [1]]
    # what arrives overwrites what is being sent: it has to be kept aside
    assert [len(staged_moves(swap[0], rank)) for rank in range(2)] == [1, 1]


def test_arrivals_go_straight_into_the_buffer_where_nothing_reads():
    gather = moves(ring.all_gather(4, 4 * 16))
    assert scratch_elements(gather, 0) == 0
    assert scratch_elements(moves(ring.reduce_scatter(4, 4 * 16)), 0) == 4


@pytest.mark.parametrize(
    ("dtype", "exact"), [("float16", 2**11), ("bfloat16", 2**8), ("float32", 2**24)]
)
def test_numbers_for_floats_add_exactly(dtype, exact):
    data = starting_data(dtype, 7, 1000, seed=0)
    assert np.abs(data).sum(axis=0).max() <= exact
    assert np.abs(data).max() > exact // 8
    assert not (data[0] == data[1]).all()


def test_a_mismatch_names_rank_chunk_found_and_wanted():
    schedule = ring.all_reduce(4, 64)
    wanted = np.arange(16)
    found = wanted.copy()
    found[9] = 77
    compare(schedule, 2, wanted, wanted)
    with pytest.raises(DataMismatch, match=r"rank 2, chunk 2, element 1: found 77, wanted 9"):
        compare(schedule, 2, found, wanted)
    compare(schedule, 2, found, wanted, chunks=[0, 1, 3])


# ---------------------------------------------------------------- times


def test_a_collective_takes_from_the_last_start_to_the_last_end():
    spans = np.array([[[1.0, 5.0], [10.0, 11.0]], [[2.0, 4.0], [10.5, 12.0]]])
    assert collective_times(spans, shared_clock=True) == [3.0, 1.5]
    assert collective_times(spans, shared_clock=False) == [4.0, 1.5]


def test_repeats_keep_to_the_budget():
    costs = [0.001, 0.004, 0.1, 0.4]
    counts = repeats_within(job(budget_s=20.0), costs)
    assert sum(c * n for c, n in zip(costs, counts, strict=True)) == pytest.approx(20, rel=0.15)
    assert counts == sorted(counts, reverse=True)
    assert all(count % PASSES == 0 for count in counts)
    assert repeats_within(job(budget_s=1e9), costs) == [MOST_REPEATS] * 4
    assert repeats_within(job(repeats=3), costs) == [3] * 4


# ---------------------------------------------------------------- what is asked


def test_sizes_are_whole_elements_and_like_parts():
    assert size_measured(job(), 1023) == 1020
    assert size_measured(job(), 1) == 4
    assert size_measured(job(collective="all_gather", ranks=3, dtype="float64"), 100) == 96
    assert list(schedules(job(sizes=(1, 2, 7, 4096)))) == [4, 4096]


def test_wrong_jobs_say_what_is_allowed():
    with pytest.raises(
        InputError, match=r"(?s)--dtype.*did you mean 'float32'.*--ranks.*2 or more"
    ):
        schedules(job(dtype="float23", ranks=1))
    with pytest.raises(InputError, match="did you mean 'ring'"):
        schedules(job(algorithm="rnig"))
    with pytest.raises(ScheduleError, match="switch needs 1 switches that reduce"):
        schedules(job(algorithm="switch"))


def test_the_command_says_the_same_again():
    assert command_of(job()) == (
        "perfmodel measure ring --backend gloo --ranks 4 --collective all_reduce --dtype float32 "
        "-b '1 KiB' -e '4 KiB' -f 4 --budget '30 s'"
    )


def test_odd_sizes_are_said_exactly():
    assert "-b '1449 B' -e '2898 B' -f 2 " in command_of(job(sizes=(1449, 2898)))


def test_torchrun_is_recognised(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        assert not under_torchrun()
        monkeypatch.setenv(name, "1")
    assert under_torchrun()


def test_the_machine_is_described_without_names():
    said = describe_machine() | describe_versions()
    assert {"cpu", "cores", "os", "python", "numpy"} <= set(said)
    assert platform.node() not in " ".join(said.values()).split()
    assert "/" not in said["os"]


def test_other_work_is_what_neither_we_nor_our_children_did(monkeypatch):
    later = Busy(all_s=130.0, ours_s=7.0, at_s=20.0)
    monkeypatch.setattr("perfmodel.measure.machine.busy_now", lambda: later)
    # 30 s of processor time in 10 s on 4 cores, 5 s of them ours
    assert other_work(Busy(100.0, 2.0, 10.0), 4) == "62 % of the cores"
    assert other_work(None, 4) == ""


# ---------------------------------------------------------------- what a rank is doing


def test_the_status_is_told_in_words():
    memory = [0] * (2 * at.FIELDS)
    status = at.Status(memory, 1)
    assert at.describe(memory, 1) == "starting Python and torch"
    status.stage(at.TIME)
    status.item(4096, 0, 2)
    status.step(at.POSTED, 4)
    assert str(status) == (
        "timing, schedule of 4 KiB, repeat 3, waiting for sends and receives of round 5"
    )
    status.item(1 << 20, 1, 0)
    status.step(at.LIBRARY)
    assert str(status) == "timing, library of 1 MiB, repeat 1, inside the library's collective"
    assert at.ticks(memory, 2) == [0, 4]


def test_progress_is_read_from_rank_0():
    memory = [0] * (2 * at.FIELDS)
    at.Status(memory, 0).progress(3, 10)
    assert at.progress_of(memory) == (3, 10)


# ---------------------------------------------------------------- without torch


@pytest.fixture
def no_torch(monkeypatch):
    """Torch cannot be found, and importing it fails."""
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "torch" else find(name, *a)
    )
    real = builtins.__import__

    def refuse(name, *arguments, **options):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.parametrize("backend", ["gloo", "nccl", "device"])
def test_without_torch_it_says_how_to_get_it(no_torch, backend):
    with pytest.raises(ExecutorUnavailable, match=r"pip install 'perfmodel\[torch\]'"):
        measure(job(backend=backend))
    result = CliRunner().invoke(app, ["measure", "ring", "--backend", backend])
    assert result.exit_code == 2
    assert "pip install 'perfmodel[torch]'" in result.stderr
    assert result.stdout == ""


def test_importing_measure_does_not_import_torch():
    names = [path.stem for path in (Path(perfmodel.__file__).parent / "measure").glob("*.py")]
    assert "team" in names
    code = "".join(f"import perfmodel.measure.{name}\n" for name in names if name != "__init__")
    code += "import sys; assert 'torch' not in sys.modules"
    root = Path(perfmodel.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=60)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rnig"], "ALGORITHM: found 'rnig'"),
        (["ring", "--collective", "allreduce"], "--collective: found 'allreduce'"),
        (["ring", "--topology", "dgx-a1000"], "dgx-a100"),
        (["ring", "--budget", "30"], "--budget: found '30' (no unit)"),
        (["ring", "-b", "2 MiB", "-e", "1 MiB"], "-e: found '1 MiB'"),
        (["ring", "-o", "."], "(a folder)"),
        (["switch"], "switches that reduce"),
    ],
)
def test_wrong_flags_exit_with_2(arguments, said):
    result = CliRunner().invoke(app, ["measure", *arguments])
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stdout == ""


# ---------------------------------------------------------------- the file


def measurement(**changes):
    rows = (row_of("schedule", 4, [3.0, 1.0, 2.0]), row_of("library", 4, [1.0], "x"))
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


def test_quantiles_are_numpys():
    times = np.random.default_rng(0).random(37).tolist()
    found = quantiles(times)
    for name, share in (
        ("min_s", 0),
        ("p10_s", 10),
        ("p25_s", 25),
        ("median_s", 50),
        ("p90_s", 90),
    ):
        assert found[name] == pytest.approx(np.percentile(times, share), rel=1e-12)
