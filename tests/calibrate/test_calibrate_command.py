"""``perfmodel calibrate`` as a user meets it."""

import json

import pytest
from typer.testing import CliRunner

from perfmodel.calibrate import read_profile
from perfmodel.cli import app
from perfmodel.errors import InputError


def written(folder, **fields):
    names = ("min_s", "p10_s", "p25_s", "median_s", "p75_s", "p90_s")
    rows = [
        {"what": "schedule", "nbytes": n, "repeats": 9} | dict.fromkeys(names, 6 * (1e-4 + n / 3e9))
        for n in (2**10, 2**14, 2**18, 2**20, 2**22, 2**24)
    ]
    known = {
        "perfmodel": 1, "kind": "measurement", "backend": "gloo", "collective": "all_reduce",
        "algorithm": "ring", "ranks": 4, "started": "2026-01-02T03:04:05+00:00", "seconds": 1.0,
        "command": "made up", "machine": {}, "versions": {}, "rows": rows,
    }  # fmt: skip
    path = folder / f"m{len(list(folder.iterdir()))}.json"
    path.write_text(json.dumps(known | fields))
    return str(path)


def run(*words):
    return CliRunner().invoke(app, ["calibrate", *map(str, words)])


def test_a_profile_is_printed_and_written(tmp_path):
    out, plot = tmp_path / "mine.yaml", tmp_path / "fit.html"
    done = run(written(tmp_path), "--topology", "cpu-loopback", "-o", out, "--plot", plot)
    assert done.exit_code == 0, done.output
    assert "our schedule, measured on 4 ranks, 1 run" in done.stdout
    assert "absolute error: median 0.0 %" in done.stdout
    assert "cannot tell launch of ring" in done.stdout
    profile = read_profile(out)
    assert profile.name == "mine"
    assert profile.source[0].file == "m0.json"
    assert "plotly" in plot.read_text()


def test_json_is_the_profile(tmp_path):
    out = tmp_path / "p.yaml"
    done = run(written(tmp_path), "--topology", "cpu-loopback", "-o", out, "--json")
    assert json.loads(done.stdout) == read_profile(out).model_dump(mode="json")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"topology": "dgx-a100"}, "topology: found 'dgx-a100'; allowed: 'cpu-loopback'"),
        ({"ranks": 17}, "2 to 16 ranks"),
        ({"backend": "device"}, "found 'device'"),
        ({"rows": []}, "no row that says how a collective did"),
        ({"collectiv": "x"}, "an unknown field"),
    ],
)
def test_wrong_files_end_with_code_2(tmp_path, fields, words):
    out = tmp_path / "p.yaml"
    done = CliRunner().invoke(
        app,
        ["calibrate", written(tmp_path, **fields), "--topology", "cpu-loopback", "-o", str(out)],
    )
    assert done.exit_code == 2
    assert words in done.stderr
    assert not out.exists()
    assert "Traceback" not in done.stderr


def test_an_unknown_profile_lists_those_that_there_are():
    with pytest.raises(InputError, match="profile: found 'nothing-like-it'"):
        read_profile("nothing-like-it")
