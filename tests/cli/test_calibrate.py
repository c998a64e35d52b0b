"""``perfmodel calibrate`` as a user meets it."""

import json
import re

import pytest
from typer.testing import CliRunner

from perfmodel.calibrate import read_profile
from perfmodel.cli.app import app
from perfmodel.errors import InputError
from perfmodel.studies.run.collective import collective_rows
from perfmodel.topology.templates.build import build_topology


def written(folder, **fields):
    names = ("min_s", "p10_s", "p25_s", "median_s", "p75_s", "p90_s")
    rows = [
        {"what": "schedule", "nbytes": n, "repeats": 9} | dict.fromkeys(names, 6 * (1e-4 + n / 3e9))
        for n in (2**10, 2**14, 2**18, 2**20, 2**22, 2**24)
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
        "machine": {},
        "versions": {},
        "rows": rows,
    }
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
    assert re.search(r"all_reduce +4 +1 KiB ", done.stdout)
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


# ---------------------------------------------------------------- logs of other tools


def log(ranks, hosts, times):
    """What nccl-tests prints for an all-reduce; times in seconds by size."""
    head = "# size count type redop root time algbw busbw #wrong\n"
    model = "NVIDIA A100-SXM4-80GB"
    devices = "".join(
        f"#  Rank {r} Group 0 Pid {r} on h{r * hosts // ranks} device {r} [0x0] {model}\n"
        for r in range(ranks)
    )
    rows = "".join(
        f"{n} {n // 4} float sum -1 {1e6 * t:.2f} {n / t / 1e9:.2f} "
        f"{n / t / 1e9 * 2 * (ranks - 1) / ranks:.2f} 0\n"
        for n, t in times.items()
    )
    return "# Collective test starting: all_reduce_perf\n" + devices + head + rows


@pytest.fixture
def slow_log(tmp_path):
    """A host a quarter slower than the model says."""
    rows = collective_rows(build_topology("dgx-a100"), sizes=[2**n for n in range(12, 33, 4)])
    path = tmp_path / "slow.log"
    path.write_text(log(8, 1, {row["nbytes"]: 1.25 * row["time_s"] for row in rows}))
    return path


def test_a_log_of_nccl_tests_becomes_a_profile_that_predictions_take(slow_log, tmp_path):
    out, plot = tmp_path / "mine.yaml", tmp_path / "fit.html"
    done = run(slow_log, "--topology", "dgx-a100", "-o", out, "--plot", plot)
    assert done.exit_code == 0, done.output
    assert "a100-sxm4, 6 times of 1 runs" in done.stdout
    assert "cannot tell" in done.stdout
    assert read_profile(out).source[0].machine["gpu"] == "NVIDIA A100-SXM4-80GB"
    assert "slow.log" in plot.read_text()
    words = ["collective", "dgx-a100", "-b", "256MiB", "-e", "256MiB", "--json"]
    plain, measured = (
        json.loads(CliRunner().invoke(app, [*words, *more]).stdout)
        for more in ([], ["--profile", str(out)])
    )
    first, second = (answer["rows"][0] for answer in (plain, measured))
    assert second["time_s"] == pytest.approx(1.25 * first["time_s"], rel=0.05)
    low, high = second["interval_s"]
    assert low < second["time_s"] < high


def test_logs_and_flags_that_contradict_each_other_end_with_code_2(slow_log, tmp_path):
    out = tmp_path / "p.yaml"
    topo = tmp_path / "topo.txt"
    topo.write_text("      GPU0 GPU1\nGPU0  X  NV12\nGPU1  NV12 X\n")
    gloo = written(tmp_path)
    for words, said in (
        ([slow_log, "--nodes", "3"], "8 ranks on 3 nodes"),
        ([slow_log, "--gpus-per-node", "4"], "--gpus-per-node: found 4; allowed: 8"),
        ([slow_log, "--op", "all_gather"], "another multiple"),
        ([slow_log, "--op", "allreduce"], "did you mean 'all_reduce'?"),
        ([slow_log, topo], "nvidia-smi topo -m"),
        ([slow_log, slow_log], "given before"),
        ([slow_log, gloo], "a measurement of 'gloo' beside"),
        ([slow_log, "--library", "gloo"], "--library"),
    ):
        done = run(*words, "--topology", "dgx-a100", "-o", out)
        assert done.exit_code == 2, (words, done.output)
        assert said in done.stderr, (words, done.stderr)
        assert "Traceback" not in done.stderr
    assert not out.exists()
