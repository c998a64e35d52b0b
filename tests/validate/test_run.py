"""``perfmodel validate`` as a user meets it, on a small folder."""

import json

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.report.validation import write_validation
from perfmodel.validate.forecast import partners
from perfmodel.validate.match import match
from perfmodel.validate.read import read_sweeps
from perfmodel.validate.run import shipped_folder, to_json, validate
from perfmodel.validate.scores import DataPoint, score
from tests.validate.small_records import HEADER, ROWS, TIMES, write_records


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_records(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def found(folder):
    return validate(folder, transfer=False)


def run(*arguments):
    return CliRunner().invoke(app, ["validate", *map(str, arguments)])


def test_json_as_the_design_has_it(found):
    answer = to_json(found)
    assert {"datasets", "median_abs_error", "p90_abs_error"} <= set(answer)
    (entry,) = (d for d in answer["datasets"] if d["id"] == "one" and d["mode"] == "datasheet")
    assert entry["points"] == 3
    assert 0 <= entry["median_abs_error"] <= entry["p90_abs_error"]
    modes = {d["mode"] for d in answer["datasets"]}
    assert modes == {"datasheet"}
    assert answer["by_band"]["datasheet"]["256 KiB and up"]["sweeps"] == 2
    assert json.loads(json.dumps(answer, allow_nan=False)) == answer


def test_nothing_is_skipped_silently(found):
    answer = to_json(found)
    assert "Gaudi 3" in answer["unmatched"]["odd"]
    assert answer["not_counted"] == {
        "vague": "not stated: NICs per host, the rate of a NIC",
        "old": "trust 2",
    }
    assert {one.sweep.id for one in found.predicted} == {"one", "two", "vague", "old"}


def test_the_median_is_that_of_counted_large_sizes(found):
    """Worked out anew from the points: two sweeps of two sizes each weigh the same."""
    errors = sorted(
        abs(p.predicted_s / p.measured_s - 1)
        for p in found.points
        if p.mode == "datasheet" and p.sweep in {"one", "two"} and p.nbytes >= 2**18
    )
    assert len(errors) == 4
    assert to_json(found)["median_abs_error"] == pytest.approx(errors[1])
    assert to_json(found)["p90_abs_error"] == pytest.approx(errors[3])


@pytest.mark.slow
def test_other_sweeps_of_the_same_hardware_are_used(folder):
    """Shipped logs of two DGX H100 class hosts on InfiniBand stand for the unseen one."""
    small = folder.parent / "small"
    (small / "nccl_sweeps").mkdir(parents=True)
    (small / "nccl_sweeps" / "META.csv").write_text(f"{HEADER}\n{ROWS[0]}\n")
    (small / "nccl_sweeps" / "one.csv").write_text("size_bytes,time_us\n1048576,90\n")
    found = validate(small)
    (one,) = found.predicted
    assert "transferred" in one.forecast.times, one.forecast.missing
    assert "a100_8gpu_sp_allreduce" in one.forecast.times["transferred"].note
    low, high = one.forecast.times["transferred"].interval_s[0]
    assert low <= one.forecast.times["transferred"].time_s[0] <= high


def test_a_copy_of_a_sweep_is_no_other_sweep():
    from dataclasses import replace

    sweeps = {sweep.id: sweep for sweep in read_sweeps(shipped_folder())}
    one, other = sweeps["aws_p5_2n_allreduce"], sweeps["aws_p5_2n_doeks_allreduce"]
    own = match(one)
    pairs = [(one, own), (replace(one, id="copy"), own), (other, match(other))]
    assert [sweep.id for sweep, _ in partners(one, own, pairs)] == [other.id]
    vague = replace(own, unstated=("NICs per host",))
    assert partners(one, own, [(other, vague)]) == []
    assert partners(one, own, [(replace(other, trust=2), own)]) == []
    assert partners(one, own, [(other, replace(own, op="reduce"))]) == []


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
    assert all(float(time_us) > 0 for line in lines[1:] for time_us in line.split(",")[4:])


def test_names_in_the_page_are_escaped(folder, tmp_path):
    root = tmp_path / "evil"
    root.mkdir()
    row = ROWS[0].replace("NVLink3 NVSwitch", "NVSwitch <script>alert(1)</script>")
    (root / "META.csv").write_text(f"{HEADER},source\n{row},<b>me</b>\n")
    (root / "one.csv").write_text(TIMES)
    page = write_validation(validate(root, transfer=False), tmp_path / "out").read_text()
    assert "<script>alert(1)" not in page
    assert "<b>me</b>" not in page


def test_names_of_sweeps_are_text_everywhere(tmp_path):
    name = "a' onfocus=alert(1)><img src=x onerror=alert(2)> [x](javascript:alert(3))"
    (tmp_path / "META.csv").write_text(f"{HEADER}\n{ROWS[0].replace('one', name, 1)}\n")
    (tmp_path / f"{name}.csv").write_text(TIMES)
    page = write_validation(validate(tmp_path, transfer=False), tmp_path / "out")
    assert "<img src=x" not in page.read_text()
    words = page.with_suffix(".md").read_text()
    assert "&lt;img src=x onerror=alert(2)>" in words
    assert "<img" not in words
    assert "\\[x\\](javascript" in words, "escaped, so that it is no link"


def test_the_command(folder, tmp_path):
    out = tmp_path / "report"
    done = run("--data", folder, "--no-transfer", "-o", out)
    assert done.exit_code == 0, done.output
    assert "Errors by size and mode" in done.stdout
    assert "Half of the times of collectives from 256 KiB on are within" in done.stdout
    assert "not predicted: odd" in done.stdout
    assert "listed, not counted: vague" in done.stdout
    assert (out / "validation.html").is_file()


def test_only_json_on_stdout(folder):
    done = run("--data", folder, "--no-transfer", "--json")
    assert json.loads(done.stdout)["data"].endswith("5 sweeps")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--data", "no-such-folder"), "no such folder"),
        (("--profile", "no-such-profile"), "--profile: found 'no-such-profile'"),
        (("-o", "pyproject.toml"), "-o"),
    ],
)
def test_wrong_input(arguments, said):
    done = run(*arguments, "--json")
    assert done.exit_code == 2
    assert said in done.output
    assert "Traceback" not in done.output


def test_faults_of_files_come_with_exit_code_two(tmp_path):
    (tmp_path / "META.csv").write_text(f"{HEADER}\n{ROWS[0]}\n{ROWS[1]}\n")
    (tmp_path / "one.csv").write_text("size_bytes,time_us\n1024,-1\n")
    done = run("--data", tmp_path, "--json")
    assert done.exit_code == 2
    assert "one.csv:2: time_us" in done.output
    assert "no two.csv" in done.output


def test_a_table_of_many_sweeps_weighs_as_much_as_one():
    """Sweeps of a table have the errors 0.1, 0.1, 0.1, another 0.5: the median lies between."""
    usual = {
        "machine": "m",
        "op": "all_reduce",
        "mode": "datasheet",
        "nbytes": 2**20,
        "measured_s": 1.0,
        "interval_s": None,
        "counted": True,
    }
    points = [DataPoint(sweep=f"s{n}", table="t", predicted_s=1.1, **usual) for n in range(3)] + [
        DataPoint(sweep=f"u{n}", table=f"u{n}", predicted_s=1.5, **usual) for n in range(2)
    ]
    assert score(points).median_abs_error == pytest.approx(0.5)
    assert score(points).sweeps == 5
