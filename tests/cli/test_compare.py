"""``perfmodel compare``: what it prints and writes."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.report.comparison_text import change
from perfmodel.studies.compare import Change

TEXT = """# Is <b>this</b> better?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp16}
cluster: {node: ethernet-10g, nodes: 2, fabric: one-switch}
training: {batch_per_gpu: 32}
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    return str(path)


def called(*words: str, code: int = 0):
    found = CliRunner().invoke(app, ["compare", *words, "-j", "1"])
    assert found.exit_code == code, (found.stdout, found.stderr, found.exception)
    return found


def labels(*words: str) -> list[str]:
    return [side["label"] for side in json.loads(called(*words, "--json").stdout)["sides"]]


def test_each_set_is_a_variation_of_one_scenario(file: str) -> None:
    assert labels(file, "--set", "what_if.compute=2", "--set", "strategy.bucket_cap=5 MiB") == [
        "mine",
        "what_if.compute=2",
        "strategy.bucket_cap=5 MiB",
    ]


def test_with_sets_several_fields(file: str) -> None:
    document = json.loads(
        called(file, "--with", "what_if.compute=2; training.batch_per_gpu=64", "--json").stdout
    )
    assert [field["field"] for field in document["fields"]] == [
        "training.batch_per_gpu",
        "what_if.compute",
    ]


def test_fields_of_other_commands_are_listed_with_the_command(file: str, tmp_path: Path) -> None:
    plan = "plan: {target: {samples: %s}, candidates: [{name: a, node: dgx-a100, nodes: [1]}]}\n"
    names = []
    for samples in ("1e6", "2e6"):
        names.append(str(tmp_path / f"plan-{samples}.yaml"))
        Path(names[-1]).write_text(TEXT + plan % samples)
    shown = called(*names, "--json")
    fields = {f["field"]: f["acts_only_in"] for f in json.loads(shown.stdout)["fields"]}
    assert fields == {"plan.target.samples": "`perfmodel plan`"}
    fields = json.loads(called(file, "--set", "seed=5", "--json").stdout)["fields"]
    assert [(f["field"], f["acts_only_in"]) for f in fields] == [("seed", None)]


def test_with_several_scenarios_set_is_for_all(file: str, tmp_path: Path) -> None:
    other = tmp_path / "other.yaml"
    other.write_text(TEXT.replace("nodes: 2", "nodes: 3"))
    document = json.loads(called(file, str(other), "--set", "seed=5", "--json").stdout)
    assert [field["field"] for field in document["fields"]] == ["cluster.nodes"]
    assert [side["gpus"] for side in document["sides"]] == [2, 3]


def test_scenarios_of_one_name_keep_their_paths(file: str, tmp_path: Path) -> None:
    other = tmp_path / "deeper" / "mine.yaml"
    other.parent.mkdir()
    other.write_text(TEXT)
    assert labels(file, str(other)) == [file, str(other)]
    assert labels(file, file) == [file, f"{file} (2)"]


@pytest.mark.slow
def test_the_terminal_says_what_changed(file: str) -> None:
    shown = called(file, "--set", "what_if.network_bandwidth=4", "--attribute").stdout
    winner, first = shown.splitlines()[:2]
    assert winner.startswith("what_if.network_bandwidth=4 is the quickest: ")
    assert "less time per sample (" in winner
    assert first.startswith("what_if.network_bandwidth=4: a step takes ")
    assert "shorter (" in first
    assert "exposed communication" in first
    assert "The limit moves from " in first
    for words in ("an infinitely fast network", "no latency", "compute twice as fast", "saved"):
        assert words in shown


@pytest.mark.slow
def test_the_folder_has_page_csv_and_json(file: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    hostile = "library.env={NCCL_ALGO: Ring}"
    shown = called(file, "--with", f"{hostile}; what_if.compute=2", "--attribute", "-o", str(out))
    assert "compare.html" in shown.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "compare.csv",
        "compare.html",
        "compare.json",
        "result.xlsx",
    ]
    page = (out / "compare.html").read_text()
    assert "Is &lt;b&gt;this&lt;/b&gt; better?" in page
    assert "<b>this</b>" not in page
    document = json.loads((out / "compare.json").read_text())
    with (out / "compare.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["step_time_s"]) for row in rows] == [
        side["step_time_s"] for side in document["sides"]
    ]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "SCENARIO: found one scenario alone"),
        (["--set", "strategy.bucket_kap=5 MiB"], "bucket_kap"),
        (["--set", "seed=-1", "--set", "cluster.nodes=0"], "cluster.nodes"),
        (["resnet50-dgx-a100", "--with", "seed=1"], "--with: found several scenarios"),
        (["--with", " ; "], "--with: found nothing"),
        (["--set", "seed=1", "-o", "/proc/none/x"], "-o"),
    ],
)
def test_wrong_input_is_said(file: str, words: list[str], said: str) -> None:
    shown = called(file, *words, code=2)
    assert said in shown.stderr


def test_all_faults_of_all_variations_at_once(file: str) -> None:
    shown = called(file, "--set", "seed=-1", "--with", "cluster.nodes=0; model.name=x", code=2)
    assert len(shown.stderr.strip().splitlines()) == 2


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (Change(0.82, (0.8, 0.85)), "18 % shorter (15 % to 20 %)"),
        (
            Change(1.05, (0.97, 1.2)),
            "5.0 % longer, which is within the interval (3.0 % shorter to 20 % longer)",
        ),
        (Change(1.0, (1.0, 1.0)), "no change"),
        (Change(1.0, None), "no change"),
        (Change(3.0, None), "200 % longer (no interval is known)"),
        (Change(1.004, (1.002, 1.006)), "0.40 % longer (0.20 % to 0.60 %)"),
        (Change(250.0, (8.0, 291.0)), "250 times as long (8.00 to 291)"),
        (Change(0.004, (0.003, 0.5)), "99.6 % shorter (50 % to 99.7 %)"),
    ],
)
def test_changes_in_words(one: Change, said: str) -> None:
    assert change(one, "longer", "shorter").replace("\N{NO-BREAK SPACE}", " ") == said
