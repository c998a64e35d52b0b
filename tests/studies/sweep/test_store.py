"""The store: the same rows whatever happens to the processes that write it."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import load_scenario
from perfmodel.studies.sweep import Answer, Store, run_sweep, variants
from perfmodel.studies.sweep import run as running


def rows(path: Path) -> list[tuple[str, ...]]:
    base = sqlite3.connect(path)
    try:
        return base.execute("SELECT key, status, question, answer FROM answers").fetchall()
    finally:
        base.close()


def refused(path: Path) -> str:
    with pytest.raises(InputError) as caught:
        Store(path)
    (fault,) = caught.value.faults
    assert fault.field == "--store"
    assert fault.file == str(path)
    return fault.found


# ---------------------------------------------------------------- what is kept


def test_answers_come_back_to_the_bit(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "s.sqlite"
    ok = Answer("ok", step_time_s=0.1 + 0.2, low_s=5e-324, high_s=1e308, gpus=8, fits=True)
    with Store(path) as store:
        store.add("a", {"x": "1 MiB"}, ok)
        store.add("b", {"x": [1, {"y": None}]}, Answer("failed", "wörds\nof two lines"))
        store.add("a", {"x": 2}, Answer("failed", "the first answer stays"))
        assert store.find({"a": 0, "b": 0, "c": 0}) == {
            "a": ok,
            "b": Answer("failed", "wörds\nof two lines"),
        }
    with Store(path) as again:
        assert again.find({"a": 0}) == {"a": ok}
    assert [row[:2] for row in rows(path)] == [("a", "ok"), ("b", "failed")]


def test_a_store_is_in_write_ahead_mode(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        assert store._base.execute("PRAGMA journal_mode").fetchone() == (b"wal",)


def test_a_second_run_works_nothing_out(scenario_file: Path, monkeypatch) -> None:
    found = variants(load_scenario(scenario_file))
    path = scenario_file.parent / "s.sqlite"
    first = run_sweep(found, jobs=1, store=path)
    before = rows(path)
    assert (first.reused, len(before)) == (0, 6)

    def never(*_: object) -> None:
        raise AssertionError("worked out again")

    monkeypatch.setattr(running, "answer", never)
    second = run_sweep(found, jobs=1, store=path)
    assert second.reused == 6
    assert second.answers == first.answers
    assert rows(path) == before


def test_a_larger_grid_works_out_what_is_new(scenario_file: Path) -> None:
    scenario, path = load_scenario(scenario_file), scenario_file.parent / "s.sqlite"
    run_sweep(variants(scenario), jobs=1, store=path)
    more = variants(scenario, grid={"strategy.bucket_cap": ["2 MiB"], "what_if.compute": [3, 4]})
    swept = run_sweep(more, jobs=1, store=path)
    assert swept.reused == 1
    assert len(rows(path)) == 7
    assert swept == run_sweep(more, jobs=1, store=path).__class__(more, swept.answers, 1)


def test_failures_are_kept_with_their_message(scenario_file: Path, monkeypatch) -> None:
    path = scenario_file.parent / "s.sqlite"
    grid = {"cluster.node": ["ethernet-10g", "no-such-node"], "model.file": ["model.csv"]}
    swept = run_sweep(variants(load_scenario(scenario_file), grid=grid), jobs=1, store=path)
    assert [one.status for one in swept.answers] == ["ok", "failed"]
    assert "no-such-node" in swept.answers[1].message
    assert {row[1] for row in rows(path)} == {"ok", "failed"}
    assert run_sweep(swept.variants, jobs=1, store=path).reused == 2


def test_what_nobody_expected_fails_one_variant_alone(scenario_file: Path, monkeypatch) -> None:
    from perfmodel.studies.sweep import store as answering

    real = answering.run_scenario

    def sometimes(scenario, **more):
        if scenario.what_if.compute == 2:
            raise ZeroDivisionError("division by zero")
        return real(scenario, **more)

    monkeypatch.setattr(answering, "run_scenario", sometimes)
    swept = run_sweep(variants(load_scenario(scenario_file)), jobs=1)
    assert [one.status for one in swept.answers] == ["ok", "failed", "ok"] * 2
    assert swept.answers[1].message == "ZeroDivisionError: division by zero"


# ---------------------------------------------------------------- what is no store


def test_files_that_are_no_store(tmp_path: Path) -> None:
    text = tmp_path / "text.sqlite"
    text.write_text("not a database at all, and long enough to have a header" * 10)
    assert "no store" in refused(text)
    assert text.read_text().startswith("not a database")


def test_a_database_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    base = sqlite3.connect(path)
    base.execute("CREATE TABLE addresses (name TEXT)")
    base.commit()
    base.close()
    assert refused(path) == "another program's database"


def test_a_store_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "s.sqlite"
    Store(path).close()
    base = sqlite3.connect(path)
    base.execute("PRAGMA user_version=99")
    base.close()
    assert refused(path) == "a store of version 99"


def test_places_that_cannot_be_written(tmp_path: Path) -> None:
    assert refused(tmp_path) == "a folder"
    (tmp_path / "f").write_text("")
    assert refused(tmp_path / "f" / "s.sqlite")


MOUNT = shutil.which("mount") or "mount"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 200 KiB; skip where this process may mount none."""
    place = tmp_path / "disk"
    place.mkdir()
    try:
        asked = [MOUNT, "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)]
        subprocess.run(asked, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no rights to mount a small file system: {error}")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_keeps_the_rows_that_fit(
    scenario_file: Path, small_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "answer", lambda *_, **_more: Answer("ok", step_time_s=1 / 3))
    found = variants(load_scenario(scenario_file), grid={"seed": [*range(200)]})
    path, seen = small_disk / "s.sqlite", [0]
    with pytest.raises(InputError, match=r"disk is full.*has room; what was stored .* is kept"):
        run_sweep(found, jobs=1, store=path, progress=lambda done, _: seen.append(done))
    assert 2 < seen[-1] < 200
    subprocess.run([MOUNT, "-o", "remount,size=4m", str(small_disk)], check=True)
    again = run_sweep(found, jobs=1, store=path)
    assert again.reused == seen[-1]
    assert len(rows(path)) == 200


# ---------------------------------------------------------------- several at once


@pytest.mark.slow
def test_two_processes_may_share_a_store(scenario_file: Path) -> None:
    path, alone = scenario_file.parent / "s.sqlite", scenario_file.parent / "alone.sqlite"
    code = (
        "import sys; from perfmodel.scenario import load_scenario; "
        "from perfmodel.studies.sweep import run_sweep, variants; "
        "print(sys.stdin.readline()); "
        "run_sweep(variants(load_scenario(sys.argv[1])), jobs=1, store=sys.argv[2])"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(scenario_file), str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    ends = [threading.Thread(target=one.communicate, args=("go\n",)) for one in both]
    for end in ends:
        end.start()
    for end in ends:
        end.join()
    assert [one.returncode for one in both] == [0, 0]
    run_sweep(variants(load_scenario(scenario_file)), jobs=1, store=alone)
    assert rows(path) == rows(alone)


KILLED = """
import os, random, signal, sys, time
from perfmodel.scenario import load_scenario
from perfmodel.studies.sweep import run_sweep, variants
found = variants(load_scenario(sys.argv[1]))
store, seed = sys.argv[2], int(sys.argv[3])
chance, began = random.Random(seed), time.monotonic()
run_sweep(found[:2], jobs=1)  # everything is imported and read
once_s = time.monotonic() - began
kills = 0
for at in range(100):
    child = os.fork()
    if child == 0:
        run_sweep(found, jobs=1, store=store)
        os._exit(0)
    if kills < 5:
        time.sleep(chance.uniform(0, 2 * once_s))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    kills += os.WIFSIGNALED(status)
    if not os.WIFSIGNALED(status):
        if kills == 5:
            break
        os.unlink(store)  # done too soon: once more from the start
print(kills)
"""


@pytest.mark.slow
def test_kills_leave_the_same_store(scenario_file: Path, tmp_path: Path) -> None:
    """SIGKILL at any moment, five times on the way to the end; the rows are the same bytes."""
    grid = "strategy.bucket_cap: [1 MiB, 2 MiB, 3 MiB, 4 MiB], what_if.compute: [1, 2, 3, 4, 5]"
    text = scenario_file.read_text()
    text = text[: text.index("sweep:")] + f"sweep: {{grid: {{{grid}}}}}\n"
    scenario_file.write_text(text)
    killed, alone = tmp_path / "killed.sqlite", tmp_path / "alone.sqlite"
    shown = subprocess.run(
        [sys.executable, "-c", KILLED, str(scenario_file), str(killed), "20"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (shown.stdout.strip(), shown.stderr) == ("5", "")
    run_sweep(variants(load_scenario(scenario_file)), jobs=1, store=alone)
    assert rows(killed) == rows(alone)
    assert len(rows(killed)) == 20
