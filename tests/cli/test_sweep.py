"""``perfmodel sweep``: what it prints, writes and returns."""

from __future__ import annotations

import builtins
import json
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario

TEXT = """# Which cap, and does it fit?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp16}
cluster: {node: ethernet-10g, nodes: 2, fabric: one-switch}
training: {batch_per_gpu: 8}
sweep:
  grid:
    strategy.bucket_cap: [null, 5 MiB]
    training.batch_per_gpu: [8, 100000]
"""
FIGURES = [
    "step_time_s",
    "low_s",
    "high_s",
    "compute_s",
    "comm_s",
    "exposed_comm_s",
    "samples_per_s",
    "gpus",
    "bottleneck",
    "memory_bytes",
    "fits",
    "tight",
    "routing_cost",
    "rests_on",
    "status",
    "message",
]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    return str(path)


def called(*words: str, code: int = 0):
    found = CliRunner().invoke(app, ["sweep", *words, "-j", "1"])
    assert found.exit_code == code, (found.stdout, found.stderr, found.exception)
    return found


@pytest.mark.slow
def test_json_says_what_was_set_and_found(file: str) -> None:
    document = json.loads(called(file, "--json").stdout)
    assert document["question"] == "Which cap, and does it fit?"
    assert document["fields"] == ["strategy.bucket_cap", "training.batch_per_gpu"]
    assert (document["count"], document["failed"], document["reused"]) == (4, 0, 0)
    first = document["variants"][0]
    assert list(first) == ["index", "set", "digest", *FIGURES]
    assert first["set"] == {"strategy.bucket_cap": None, "training.batch_per_gpu": 8}
    wanted = run_scenario(load_scenario(file)).main
    assert first["step_time_s"] == wanted.step_time_s
    assert [first["low_s"], first["high_s"]] == list(wanted.interval_s or ())
    assert first["bottleneck"] == wanted.bottleneck
    assert [v["fits"] for v in document["variants"]] == [True, False, True, False]


def test_the_terminal_shows_the_best_that_fits_first(file: str) -> None:
    shown = called(file)
    answer, *_, lacking, _, head, _, first, second, third, fourth = shown.stdout.splitlines()
    rows = [first, second, third, fourth]
    assert answer.startswith("Quickest of 4: ")
    assert lacking == "2 do not fit in memory."
    assert head.split()[:3] == ["strategy.bucket_cap", "training.batch_per_gpu", "GPUs"]
    assert [("does not fit" in row) for row in rows] == [False, False, True, True]
    assert "4 of 4 variants answered, fastest first" in shown.stderr


def test_many_rows_are_bounded(file: str, monkeypatch) -> None:
    from perfmodel.report import sweep

    monkeypatch.setattr(sweep, "MOST_TERMINAL_ROWS", 3)
    shown = called(file)
    _, table = shown.stdout.split("\n\n")
    assert len(table.splitlines()) == 2 + 3
    assert "4 of 4 variants answered, the 3 fastest are shown" in shown.stderr


def test_a_failing_variant_is_listed_and_the_code_says_so(file: str) -> None:
    wrong = "sweep={grid: {cluster.node: [ethernet-10g, nowhere]}}"
    shown = called(file, "--set", wrong, code=1)
    answer, table = shown.stdout.split("\n\n")
    assert "1 could not be answered." in answer
    assert len(table.splitlines()) == 2 + 1
    assert "1 of 2 variants answered" in shown.stderr
    assert "failed: cluster.node=nowhere: " in shown.stderr
    document = json.loads(called(file, "--set", wrong, "--json", code=1).stdout)
    assert [v["status"] for v in document["variants"]] == ["ok", "failed"]
    assert document["variants"][1]["step_time_s"] is None


@pytest.mark.slow
def test_csv_reads_back_to_the_bit(file: str, tmp_path: Path) -> None:
    csv = tmp_path / "out" / "t.csv"
    document = json.loads(called(file, "--csv", str(csv), "--json").stdout)
    # pandas before 3 does not read every digit of a number back, Python does
    table = pd.read_csv(csv, index_col="variant", converters={"step_time_s": float})
    assert list(table.columns) == [*document["fields"], *FIGURES]
    assert table["step_time_s"].tolist() == [v["step_time_s"] for v in document["variants"]]
    assert table["training.batch_per_gpu"].tolist() == [8, 100000, 8, 100000]


@pytest.mark.slow
def test_parquet_keeps_types_and_odd_values(file: str, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "t.parquet"
    odd = (
        "sweep={zip: {what_if.network_bandwidth: [1, 2.5, infinite], seed: [1, 2, 3], "
        "strategy: [{}, {hook: fp16}, {bucket_cap: 1 MiB}]}}"
    )
    called(file, "--set", odd, "--parquet", str(path))
    table = pd.read_parquet(path)
    assert table.index.name == "variant"
    assert table["what_if.network_bandwidth"].tolist() == ["1", "2.5", "infinite"]
    assert table["seed"].tolist() == [1, 2, 3]
    assert table["strategy"].tolist() == ["{}", '{"hook": "fp16"}', '{"bucket_cap": "1 MiB"}']
    assert table["fits"].dtype == bool
    assert table["step_time_s"].dtype == float


def test_parquet_without_pyarrow_is_refused_before_any_work(file: str, monkeypatch) -> None:
    real = builtins.__import__

    def without(name: str, *args, **more):
        if name.partition(".")[0] == "pyarrow":
            raise ImportError(name)
        return real(name, *args, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    shown = called(file, "--parquet", "t.parquet", code=2)
    assert "pip install 'perfmodel[parquet]'" in shown.stderr


@pytest.mark.slow
def test_a_store_is_used_again(file: str, tmp_path: Path) -> None:
    store = str(tmp_path / "s.sqlite")
    assert "from the store" not in called(file, "--store", store).stderr
    assert (
        "4 of 4 variants answered, 4 of them from the store"
        in called(file, "--store", store).stderr
    )


@pytest.mark.slow
def test_a_profile_is_another_question(tmp_path: Path) -> None:
    words = ["resnet18-loopback-gloo", "--set", "sweep={grid: {seed: [1]}}", "--json"]
    words += ["--set", "profile=null", "--store", str(tmp_path / "s.sqlite")]
    plain, again, measured = (
        json.loads(called(*words, *more).stdout)
        for more in ([], [], ["--profile", "epyc-2-cores-gloo-2-ranks"])
    )
    assert (plain["reused"], again["reused"], measured["reused"]) == (0, 1, 0)
    assert measured["variants"][0]["step_time_s"] != plain["variants"][0]["step_time_s"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--backend", "dask"], "--scheduler: found nothing"),
        (["--backend", "spark"], "--backend: found 'spark'"),
        (
            ["--backend", "dask", "--scheduler", "nonsense"],
            "--scheduler: found 'nonsense' (missing",
        ),
        (["--set", "sweep=null"], "sweep: found nothing"),
        (["--set", "sweep={grid: {cluster.nodes: [0]}}"], "cluster.nodes.0: found 0"),
    ],
)
def test_wrong_input_is_said_without_a_traceback(file: str, words: list[str], said: str) -> None:
    shown = called(file, *words, code=2)
    assert said in shown.stderr
    assert "Traceback" not in shown.stderr


def test_a_place_that_cannot_be_written_is_refused_before_the_work(
    file: str, tmp_path: Path, monkeypatch
) -> None:
    monkeypatch.setattr("perfmodel.studies.sweep.run_sweep", lambda *_, **__: pytest.fail("worked"))
    (tmp_path / "text").write_text("")
    found = called(
        file, "--csv", str(tmp_path / "text" / "x.csv"), "--parquet", str(tmp_path), code=2
    )
    assert "--csv: " in found.stderr
    assert "--parquet: " in found.stderr


@pytest.mark.slow
@pytest.mark.parametrize("name", ["s.sqlite", "./s.sqlite", "link", "s.sqlite-wal", "s.sqlite-shm"])
def test_a_table_never_replaces_the_store(
    file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.chdir(tmp_path)
    called(file, "--store", "s.sqlite")
    before = Path("s.sqlite").read_bytes()
    Path("link").symlink_to("s.sqlite")
    said = called(file, "--store", "s.sqlite", "--csv", name, code=2).stderr
    assert f"--csv: found '{Path(name)}'; allowed: another file than that of --store" in said
    assert Path("s.sqlite").read_bytes() == before


def test_outputs_and_inputs_are_different_files(file: str, tmp_path: Path) -> None:
    before = Path(file).read_text()
    table = str(tmp_path / "t")
    said = called(file, "--csv", file, "--parquet", table, "--store", table, code=2).stderr
    assert "--csv: found" in said
    assert "allowed: another file than that of the scenario" in said
    assert "--parquet: found" in said
    assert Path(file).read_text() == before
    assert not Path(table).exists()


@pytest.mark.slow
def test_the_folder_has_page_csv_and_json(file: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    shown = called(file, "-o", str(out))
    assert "sweep.html" in shown.stderr
    assert sorted(path.name for path in out.iterdir()) == [
        "result.xlsx",
        "sweep.csv",
        "sweep.html",
        "sweep.json",
    ]
    document = json.loads((out / "sweep.json").read_text())
    assert document == json.loads(called(file, "--json").stdout)
    assert len(pd.read_csv(out / "sweep.csv")) == 4
