"""``perfmodel tune`` as a reader meets it."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app

RUN = CliRunner()
SMALL = (
    "bucket-size-slow-ethernet",
    "--set",
    "scale=null",
    "--set",
    "model.name=resnet18",
    "--set",
    "cluster.nodes=2",
)


@pytest.mark.slow
def test_json_is_the_documented_contract() -> None:
    answer = RUN.invoke(app, ["tune", *SMALL, "--json", "--horovod"])
    assert answer.exit_code == 0
    found = json.loads(answer.stdout)
    assert {"default", "best_uniform", "curve", "best_list", "best_integer_list"} <= set(found)
    assert {"lower_bound_s", "words", "plateau", "assumptions", "provenance"} <= set(found)
    assert found["best_uniform"]["bucket_cap_mb"] > 0
    assert found["best_list"]["step_time_s"] <= found["best_uniform"]["step_time_s"]
    assert found["lower_bound_s"] <= found["best_list"]["step_time_s"]
    assert found["curve"][-1]["high_mb"] is None
    assert found["horovod"]["snippet"].startswith("HOROVOD_FUSION_THRESHOLD=")
    assert found["recommended"].keys() == {"keep", "choices", "unsure"}
    assert found["recommended"]["keep"] == "default"
    assert "DistributedDataParallel(model)" in found["words"]["pytorch"]["text"]


def test_the_terminal_says_what_to_paste() -> None:
    answer = RUN.invoke(app, ["tune", *SMALL, "--set", "strategy.gradient_as_bucket_view=true"])
    assert answer.exit_code == 0
    assert "PyTorch's default" in answer.stdout
    pasted = [line for line in answer.stdout.splitlines() if "DistributedDataParallel(" in line]
    assert len(pasted) == 1
    assert all("gradient_as_bucket_view=True" in line for line in pasted)


@pytest.mark.slow
def test_files_are_written(tmp_path: Path) -> None:
    answer = RUN.invoke(app, ["tune", *SMALL, "-o", str(tmp_path / "out")])
    assert answer.exit_code == 0
    page = (tmp_path / "out" / "tune.html").read_text()
    assert "Best list" in page
    assert "http" not in page.split("<main>")[1].split("<script")[0]
    data = json.loads((tmp_path / "out" / "tune.json").read_text())
    rows = list(csv.DictReader((tmp_path / "out" / "curve.csv").read_text().splitlines()))
    assert len(rows) == len(data["curve"])
    assert float(rows[0]["step_time_s"]) == data["curve"][0]["step_time_s"]


@pytest.mark.slow
def test_several_scenarios_share_a_cap(tmp_path: Path) -> None:
    other = "resnet50-dgx-a100"
    sets = ["--set", "scale=null", "--set", "model.name=resnet18", "--set", "cluster.nodes=2"]
    command = ["tune", "bucket-size-slow-ethernet", other, *sets]
    answer = RUN.invoke(app, [*command, "--json", "-o", str(tmp_path)])
    assert answer.exit_code == 0
    found = json.loads(answer.stdout)
    assert len(found["scenarios"]) == len(found["best"]["regrets"]) == 2
    assert found["best"]["worst_regret"] == max(found["best"]["regrets"])
    assert (tmp_path / "tune.html").exists()
    assert "For all 2: keep PyTorch's default" in RUN.invoke(app, command).stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["dataparallel-dgx1"], "strategy.kind"),
        (["bucket-size-slow-ethernet", "--set", "scale=null", "--set", "cluster.nodes=1"], "1 GPU"),
        (["nonesuch"], "SCENARIO"),
        ([*SMALL, "--set", "strategy.bucket_cap=5"], "unit"),
    ],
)
def test_wrong_input_is_said_in_a_line(arguments: list[str], words: str) -> None:
    answer = RUN.invoke(app, ["tune", *arguments])
    assert answer.exit_code == 2
    assert words in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.slow
def test_settings_of_another_strategy(tmp_path: Path) -> None:
    """The same contract on the terminal, as JSON and as a page."""
    horovod = [*SMALL, "--set", "strategy.kind=horovod"]
    answer = RUN.invoke(app, ["tune", *horovod, "--json", "-o", str(tmp_path / "out")])
    assert answer.exit_code == 0
    found = json.loads(answer.stdout)
    assert {"default", "asked", "best", "gain", "curve", "tried", "too_large"} <= set(found)
    assert found["best"]["step_time_s"] <= found["default"]["step_time_s"]
    assert found["tried"] == len(found["curve"])
    assert found == json.loads((tmp_path / "out" / "tune.json").read_text())
    assert found["snippet"] in (tmp_path / "out" / "tune.html").read_text()
    said = RUN.invoke(app, ["tune", *horovod])
    assert said.exit_code == 0
    assert found["snippet"] in said.stdout
    assert all(line in said.stdout for line in found["words"]["horovod"]["text"].splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--all-sizes", "--horovod"], ["--all-sizes", "--horovod"]),
        (["resnet50-dgx-a100"], ["several scenarios"]),
        (["--set", "strategy.fusion_threshold=64"], ["fusion_threshold", "no unit"]),
        (["--set", "strategy.cycle_time=-1 ms"], ["cycle_time", "zero or more"]),
        (["--set", "strategy.allreduce=ring"], ["allreduce", "'flat'"]),
        (["--set", "strategy.bucket_cap=5 MiB"], ["bucket_cap"]),
    ],
)
def test_what_settings_cannot_be_is_said_in_a_line(arguments: list[str], words: list[str]) -> None:
    command = ["tune", SMALL[0], *arguments, *SMALL[1:], "--set", "strategy.kind=horovod"]
    answer = RUN.invoke(app, command)
    assert answer.exit_code == 2
    assert all(word in answer.stderr for word in words)
    assert "Traceback" not in answer.stderr
