"""What a key of a stored answer depends on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.calibrate import Profile
from perfmodel.scenario import Scenario, load_scenario
from perfmodel.studies.sweep import run as keys
from perfmodel.studies.sweep import variants
from perfmodel.studies.sweep.store import Answer


def keys_of(path: Path, **grid) -> list[str]:
    found = variants(load_scenario(path), grid=grid or {"what_if.compute": [1, 2]})
    return [keys.make_key(v, "", "1") for v in found]


def test_a_key_is_the_question(scenario_file: Path, tmp_path: Path) -> None:
    first = keys_of(scenario_file)
    assert len(set(first)) == 2
    assert keys_of(scenario_file) == first
    text = scenario_file.read_text()
    scenario_file.write_text(text.replace("# Which cap?", "# Another comment: which?\n\n"))
    assert keys_of(scenario_file) == first
    renamed = tmp_path / "other.yaml"
    renamed.write_text(text)
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


@pytest.mark.parametrize(
    "place",
    ["topologies/ethernet-10g.yaml", "topologies/gpus.yaml", "topologies/more.yaml"],
)
def test_a_key_is_what_the_users_own_machines_say(
    scenario_file: Path, tmp_path: Path, monkeypatch, place: str
) -> None:
    """A template of one's own goes before the shipped one of that name."""
    monkeypatch.chdir(tmp_path)
    before = keys_of(scenario_file)
    own = tmp_path / place
    own.parent.mkdir()
    own.write_text("anything\nkind: gpus\n")
    assert not set(keys_of(scenario_file)) & set(before)


def test_a_key_is_the_profile_and_the_model(scenario_file: Path) -> None:
    (one, _) = variants(load_scenario(scenario_file), grid={"what_if.compute": [1, 2]})
    found = {keys.make_key(one, p, v) for p in ("", "profile") for v in ("1", "2")}
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
    monkeypatch.setattr(keys, "__file__", str(package / "studies" / "sweep" / "run.py"))
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


@pytest.mark.slow
def test_nothing_that_the_version_leaves_out_is_used_by_a_step() -> None:
    code = (
        "import sys, perfmodel.studies.run, perfmodel.studies.sweep.store; "
        "print(sorted(m for m in sys.modules if m.startswith('perfmodel.')))"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(shown.stdout.replace("'", '"')))
    assert "perfmodel.simulate" in loaded
    folders = tuple(f"perfmodel.{folder.replace('/', '.')}" for folder in keys.NOT_MODEL)
    assert not [name for name in loaded if f"{name}.".startswith(folders)]


def test_a_step_alone_is_the_same_step_and_no_stored_answer(
    scenario_file: Path, tmp_path: Path
) -> None:
    found = variants(load_scenario(scenario_file), grid={"what_if.compute": [1]})
    store = tmp_path / "answers.sqlite"
    steps, answers, again = (
        keys.run_sweep(found, jobs=1, store=store, with_ends=with_ends)
        for with_ends in (False, True, False)
    )
    assert (steps.reused, answers.reused, again.reused) == (0, 0, 1)
    ((step,), (answer,)) = steps.answers, answers.answers
    assert step.step_time_s == answer.step_time_s
    assert step.low_s is None
    assert answer.low_s is not None


def test_steps_of_answers_with_ends_are_not_simulated_again(
    scenario_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = variants(load_scenario(scenario_file), grid={"what_if.compute": [1, 2]})
    alone = keys.run_sweep(found, jobs=1, with_ends=False).answers
    asked: list[bool] = []
    answer = keys.answer

    def count(scenario: Scenario, profile: Profile | None, *, with_ends: bool) -> Answer:
        asked.append(with_ends)
        return answer(scenario, profile, with_ends=with_ends)

    monkeypatch.setattr(keys, "answer", count)
    before: dict[str, Answer] = {}
    keys.run_sweep(found[:1], jobs=1, before=before)
    assert keys.run_sweep(found, jobs=1, with_ends=False, before=before).answers == alone
    assert asked == [True, False]
    whole = keys.run_sweep(found, jobs=1, before=before).answers
    assert asked == [True, False, True]  # a step alone is no answer with ends
    assert all(each.low_s < each.step_time_s < each.high_s for each in whole)
