"""Measurements of another machine are refused or doubted; wrong places are told before the work."""

import json

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app


def written(folder, name="m.json", *, upto=2**24, **fields):
    names = ("min_s", "p10_s", "p25_s", "median_s", "p75_s", "p90_s")
    rows = [
        {"what": what, "nbytes": n, "repeats": 9} | dict.fromkeys(names, 6 * (1e-4 + n / 3e9))
        for n in (2**10, 2**14, 2**18, 2**20, 2**22, 2**24)
        if n <= upto  # large ones take their time to fit
        for what in ("schedule", "library")
    ]
    known = {
        "perfmodel": 1,
        "kind": "measurement",
        "backend": "gloo",
        "collective": "all_reduce",
        "algorithm": "ring",
        "ranks": 4,
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 1.0,
        "command": "made up",
        "machine": {"cpu": "some CPU", "cores": "2"},
        "versions": {},
        "rows": rows,
    }
    (folder / name).write_text(json.dumps(known | fields))
    return str(folder / name)


def run(*words):
    return CliRunner().invoke(app, ["calibrate", *map(str, words)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "template", "words"),
    [
        ({}, "dgx-a100", "allowed: GPUs that share a host; for 2 cores of some CPU see --topology"),
        ({"backend": "nccl"}, "cpu-loopback", "nccl between GPUs; allowed: gloo between processes"),
        ({"topology": "cpu-loopback"}, "dgx-a100", "found 'cpu-loopback'; allowed: 'dgx-a100'"),
        ({"hosts": 2}, "cpu-loopback", "hosts: found 2; allowed: 1"),
        ({"algorithm": "rnig"}, "cpu-loopback", "found 'rnig'"),
        ({"algorithm": "hierarchical", "collective": "broadcast"}, "cpu-loopback", "hierarchical"),
        ({"collective": "all_redcue"}, "cpu-loopback", "all_redcue"),
    ],
)
def test_another_machine_or_a_wrong_collective_is_refused_by_file(
    tmp_path, fields, template, words
):
    done = run(written(tmp_path, **fields), "--topology", template, "-o", tmp_path / "p.yaml")
    assert done.exit_code == 2
    assert words in done.stderr
    assert all(line.startswith(str(tmp_path / "m.json")) for line in done.stderr.splitlines())
    assert not (tmp_path / "p.yaml").exists()


@pytest.mark.slow
def test_doubts_are_told(tmp_path):
    one = written(tmp_path, "one.json", upto=2**18)
    disturbed = {"cpu": "some CPU", "cores": "64", "other_work": "5 % of the cores"}
    two = written(tmp_path, "two.json", upto=2**18, machine=disturbed)
    done = run(one, two, "--topology", "cpu-loopback", "-o", tmp_path / "p.yaml")
    assert done.exit_code == 0, done.output
    assert "does not say which template describes the machine" in done.stderr
    assert f"{two} was measured on cores 64, {one} on 2" in done.stderr
    assert f"other work kept 5 % of the cores busy while {two} was measured" in done.stderr
    calm = {"cpu": "some CPU", "cores": "2", "other_work": "4 % of the cores"}
    known = written(
        tmp_path, "known.json", upto=2**18, topology="cpu-loopback", hosts=1, machine=calm
    )
    quiet = run(known, "--topology", "cpu-loopback", "-o", tmp_path / "q.yaml")
    assert quiet.exit_code == 0
    assert "Mind" not in quiet.stderr


def test_places_are_tried_before_the_work(tmp_path):
    bad = ("-o", "/proc/x", "--plot", tmp_path)
    done = run(tmp_path / "there-is-none.json", "--topology", "cpu-loopback", *bad)
    assert done.exit_code == 2
    assert "-o: found '/proc/x'" in done.stderr
    assert "--plot: found" in done.stderr
    assert "there-is-none" not in done.stderr


def test_no_place_is_used_twice(tmp_path):
    """Not even by another name: a measurement must not be written over."""
    made = written(tmp_path)
    before = (tmp_path / "m.json").read_text()
    (tmp_path / "link").symlink_to(made)
    done = run(made, "--topology", "cpu-loopback", "-o", tmp_path / "link")
    assert done.exit_code == 2
    allowed = f"another file than that of {made}, which it would replace"
    assert f"-o: found '{tmp_path / 'link'}'; allowed: {allowed}" in done.stderr
    both = run(made, "--topology", "cpu-loopback", "-o", tmp_path / "p", "--plot", tmp_path / "p")
    assert both.exit_code == 2
    assert "--plot: found" in both.stderr
    assert (tmp_path / "m.json").read_text() == before
    assert not (tmp_path / "p").exists()


@pytest.mark.slow
def test_numbers_of_our_schedule_can_be_chosen(tmp_path):
    slow = json.loads((tmp_path / written(tmp_path, upto=2**20)).read_text())["rows"]
    for row in slow:
        factor = 2.0 if row["what"] == "schedule" else 1.0
        row.update({key: row[key] * factor for key in row if key.endswith("_s")})
    profile = tmp_path / "p.yaml"
    assert (
        run(written(tmp_path, rows=slow), "--topology", "cpu-loopback", "-o", profile).exit_code
        == 0
    )

    def busy(*words):
        return CliRunner().invoke(
            app,
            [
                "collective",
                "cpu-loopback",
                "--gpus-per-node",
                "4",
                "--library",
                "gloo",
                "-b",
                "1 MiB",
                "-e",
                "1 MiB",
                "--algorithm",
                "ring",
                "--json",
                *words,
            ],
        )

    chosen = busy("--profile", str(profile), "--profile-rows", "schedule")
    (row,) = json.loads(chosen.stdout)["rows"]
    assert row["time_s"] == pytest.approx(2 * 6 * (1e-4 + 2**20 / 3e9), rel=0.01)
    assert row["interval_s"] is not None
    usual = json.loads(busy("--profile", str(profile)).stdout)["rows"][0]
    assert usual["time_s"] < 0.9 * row["time_s"]
    without = busy("--profile-rows", "schedule")
    assert without.exit_code == 2
    assert "--profile-rows" in without.stderr


def test_matrices_that_tell_no_rate_of_a_link_are_named_with_the_reason(tmp_path):
    log = tmp_path / "copies.log"
    log.write_text(
        "[P2P (Peer-to-Peer) GPU Bandwidth Latency Test]\n"
        "Unidirectional P2P=Disabled Bandwidth Matrix (GB/s)\n"
        "   D\\D     0      1\n     0 1575.10  17.65\n     1  18.50 1594.01\n"
    )
    words = ["calibrate", str(log), "--topology", "dgx-a100", "-o", str(tmp_path / "p.yaml")]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "copies.log: matrix: found none that tells the rate of a link" in done.stderr
    assert "without peer access" in done.stderr
    assert not (tmp_path / "p.yaml").exists()
