"""The report of `python -m reports.validation` on a small folder of sweeps."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.library.corrections import datasheet_interval_s, load_spread
from reports.validation.__main__ import validate as report
from reports.validation.pages.page import write_validation
from reports.validation.run import to_json, validate
from tests.validate.small_records import write_records


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def found(folder):
    return validate(folder, transfer=False)


def test_all_baselines_are_compared(found):
    answer = to_json(found)
    modes = {d["mode"] for d in answer["datasets"]}
    assert modes == {"datasheet", "nccl tuner", "alpha-beta"}
    assert answer["by_band"]["datasheet"]["256 KiB and up"]["sweeps"] == 2
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_alpha_beta_is_the_formula(found):
    """8 GPUs, 12 NVLinks of 25 GB/s, 1.98 us a step: 14 steps and 1.75 S / B."""
    (one,) = (p for p in found.predicted if p.sweep.id == "one")
    expected = 14 * 1.98e-6 + 268435456 * 1.75 / 300e9
    assert one.forecast.times["alpha-beta"].time_s[-1] == pytest.approx(expected)
    (two,) = (p for p in found.predicted if p.sweep.id == "two")
    expected = 30 * 1.98e-6 + 268435456 * 1.875 / 400e9  # 8 NICs of 400 Gbit/s limit the ring
    assert two.forecast.times["alpha-beta"].time_s[-1] == pytest.approx(expected)


def test_the_headline_of_other_data_is_of_the_shipped_constants(found):
    """No constant was fitted to these sweeps: there is nothing to leave out."""
    assert to_json(found)["headline_mode"] == "datasheet"


def test_an_unseen_folder_is_judged_by_the_shipped_intervals(found):

    (first, *_) = (p for p in found.judged if p.sweep == "one")
    topology = next(p.matched.topology for p in found.predicted if p.sweep.id == "one")
    expected = datasheet_interval_s(topology, "all_reduce", first.nbytes, first.predicted_s)
    assert first.interval_s == expected


def test_the_report(found, tmp_path):
    page = write_validation(found, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert "default-src 'none'" in text
    assert "prefers-color-scheme: dark" in text
    for name in ("one", "two", "vague", "odd"):
        assert name in text
    markdown = (tmp_path / "validation.md").read_text()
    assert "| datasheet | 2 |" in markdown
    assert "not predicted: odd" in markdown
    assert json.loads((tmp_path / "validation.json").read_text()) == to_json(found)
    lines = (tmp_path / "points.csv").read_text().splitlines()
    assert lines[0].startswith("sweep_id,counted,nbytes,way,measured_us,datasheet_us")
    assert len(lines) == 1 + 4 * 3


def test_a_spread_is_written_and_what_is_not_predicted_is_named(folder, tmp_path, capsys):
    out, spread = tmp_path / "report", tmp_path / "spread.yaml"
    report(folder, transfer=False, output=out, spread=spread)
    said = capsys.readouterr().out
    assert "NCCL's own formula" in said
    assert "not predicted: odd" in said
    assert "listed, not counted: vague" in said
    assert (out / "validation.html").is_file()
    assert load_spread(spread).seen["ampere, NVSwitch, one host, all_reduce"] == 1


@pytest.mark.slow
def test_the_program_refuses_what_is_wrong_in_words():
    command = [sys.executable, "-m", "reports.validation", "--data", "no-such-folder", "--json"]
    root = Path(__file__).parents[3]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=root)
    assert done.returncode == 2
    assert "no such folder" in done.stderr
    assert "Traceback" not in done.stderr
