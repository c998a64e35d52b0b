"""The store: the same rows whatever happens to the processes that write it."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import load_scenario
from perfmodel.studies.sweep import Answer, Store, run_sweep, variants
from perfmodel.studies.sweep import cache_key as keys
from perfmodel.studies.sweep import run as running

TEXT = """# Which cap?
perfmodel: 1
model: {file: model.csv}
compute: {source: file, times: times.csv, precision: fp32}
cluster: {node: ethernet-10g, nodes: 2, fabric: one-switch}
training: {batch_per_gpu: 8}
sweep: {grid: {strategy.bucket_cap: [1 MiB, 2 MiB], what_if.compute: [1, 2, 3]}}
"""


@pytest.fixture
def scenario_file(tmp_path: Path) -> Path:
    (tmp_path / "model.csv").write_text("name,shape,dtype\na.weight,1000000,fp32\n")
    (tmp_path / "times.csv").write_text("name,forward,backward\na,1 ms,2 ms\n")
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    return path


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
            "a": ok, "b": Answer("failed", "wörds\nof two lines")
        }  # fmt: skip
    with Store(path) as again:
        assert again.find({"a": 0}) == {"a": ok}
    assert [row[:2] for row in rows(path)] == [("a", "ok"), ("b", "failed")]


def test_a_store_is_in_write_ahead_mode(tmp_path: Path) -> None:
    with Store(tmp_path / "s.sqlite") as store:
        assert store._base.execute("PRAGMA journal_mode").fetchone() == ("wal",)


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
    from perfmodel.studies.sweep import worker as answering

    real = answering.run_scenario

    def sometimes(scenario, **more):
        if scenario.what_if.compute == 2:
            raise ZeroDivisionError("division by zero")
        return real(scenario, **more)

    monkeypatch.setattr(answering, "run_scenario", sometimes)
    swept = run_sweep(variants(load_scenario(scenario_file)), jobs=1)
    assert [one.status for one in swept.answers] == ["ok", "failed", "ok"] * 2
    assert swept.answers[1].message == "ZeroDivisionError: division by zero"


# ---------------------------------------------------------------- what a key depends on


def keys_of(path: Path, **grid) -> list[str]:
    found = variants(load_scenario(path), grid=grid or {"what_if.compute": [1, 2]})
    return [keys.key_of(v, "", "1") for v in found]


def test_a_key_is_the_question(scenario_file: Path, tmp_path: Path) -> None:
    first = keys_of(scenario_file)
    assert len(set(first)) == 2
    assert keys_of(scenario_file) == first
    scenario_file.write_text(TEXT.replace("# Which cap?", "# Another comment: which?\n\n"))
    assert keys_of(scenario_file) == first
    renamed = tmp_path / "other.yaml"
    renamed.write_text(TEXT)
    assert keys_of(renamed) == first


@pytest.mark.parametrize("name", ["model.csv", "times.csv"])
def test_a_key_is_what_files_say(scenario_file: Path, name: str) -> None:
    before = keys_of(scenario_file)
    file = scenario_file.parent / name
    text = file.read_text()
    file.write_text(text.replace("1", "2"))
    assert not set(keys_of(scenario_file)) & set(before)
    file.write_text(text)
    assert keys_of(scenario_file) == before


@pytest.mark.parametrize("place", ["topologies/ethernet-10g.yaml", "topologies/gpus.yaml"])
def test_a_key_is_what_the_users_own_machines_say(
    scenario_file: Path, tmp_path: Path, monkeypatch, place: str
) -> None:
    """A template of one's own goes before the shipped one of that name."""
    monkeypatch.chdir(tmp_path)
    before = keys_of(scenario_file)
    own = tmp_path / place
    own.parent.mkdir()
    own.write_text("anything")
    assert not set(keys_of(scenario_file)) & set(before)


def test_a_key_is_the_profile_and_the_model(scenario_file: Path) -> None:
    (one, _) = variants(load_scenario(scenario_file), grid={"what_if.compute": [1, 2]})
    found = {keys.key_of(one, p, v) for p in ("", "profile") for v in ("1", "2")}
    assert len(found) == 4


def test_the_version_is_that_of_source_and_data(tmp_path: Path, monkeypatch) -> None:
    package, topologies = tmp_path / "perfmodel", tmp_path / "topologies"
    for path in (
        package / "studies" / "run" / "run.py",
        package / "cli" / "app.py",
        topologies / "a.yaml",
    ):
        path.parent.mkdir(parents=True)
        path.write_text("1")
    monkeypatch.setattr(keys, "__file__", str(package / "studies" / "sweep" / "cache_key.py"))
    monkeypatch.setattr(keys, "data_folder", lambda _: topologies)

    def version() -> str:
        keys.model_version.cache_clear()
        return keys.model_version()

    try:
        first = version()
        (package / "cli" / "app.py").write_text("2")
        assert version() == first
        (package / "studies" / "run" / "run.py").write_text("2")
        second = version()
        (topologies / "a.yaml").write_text("2")
        assert len({first, second, version()}) == 3
    finally:
        keys.model_version.cache_clear()


def test_nothing_that_the_version_leaves_out_is_used_by_a_step() -> None:
    code = (
        "import sys, perfmodel.studies.run, perfmodel.studies.sweep.worker; "
        "print(sorted(m for m in sys.modules if m.startswith('perfmodel.')))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(shown.stdout.replace("'", '"')))
    assert "perfmodel.simulate" in loaded
    folders = tuple(f"perfmodel.{folder.replace('/', '.')}" for folder in keys.NOT_MODEL)
    assert not [name for name in loaded if f"{name}.".startswith(folders)]


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
    assert "file" in refused(tmp_path)
    (tmp_path / "f").write_text("")
    assert refused(tmp_path / "f" / "s.sqlite")


# ---------------------------------------------------------------- several at once


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
            stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
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
    if kills < 10:
        time.sleep(chance.uniform(0, 2 * once_s))
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    kills += os.WIFSIGNALED(status)
    if not os.WIFSIGNALED(status):
        if kills == 10:
            break
        os.unlink(store)  # done too soon: once more from the start
print(kills)
"""


def test_ten_kills_leave_the_same_store(scenario_file: Path, tmp_path: Path) -> None:
    """SIGKILL at any moment, ten times on the way to the end; the rows are the same bytes."""
    grid = "strategy.bucket_cap: [1 MiB, 2 MiB, 3 MiB, 4 MiB], what_if.compute: [1, 2, 3, 4, 5]"
    text = TEXT[: TEXT.index("sweep:")] + f"sweep: {{grid: {{{grid}}}}}\n"
    scenario_file.write_text(text)
    killed, alone = tmp_path / "killed.sqlite", tmp_path / "alone.sqlite"
    shown = subprocess.run(
        [sys.executable, "-c", KILLED, str(scenario_file), str(killed), "20"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (shown.stdout.strip(), shown.stderr) == ("10", "")
    run_sweep(variants(load_scenario(scenario_file)), jobs=1, store=alone)
    assert rows(killed) == rows(alone)
    assert len(rows(killed)) == 20
