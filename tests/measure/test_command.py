"""The command ``perfmodel measure``: jobs, flags, output, missing torch."""

import builtins
import json
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import perfmodel
from perfmodel.cli.app import app
from perfmodel.errors import ExecutorUnavailable
from perfmodel.files import find_file
from perfmodel.measure.job import MeasurementJob
from perfmodel.measure.run import measure
from tests.measure.measured_files import read_measurement

SIZES = (1024, 4096)


def job(**changes):
    known = {"backend": "gloo", "algorithm": "ring", "collective": "all_reduce", "ranks": 4}
    return MeasurementJob(**(known | {"sizes": SIZES} | changes))


@pytest.fixture
def asked(monkeypatch):
    """Call the command; return the job that it would measure."""
    jobs = []
    monkeypatch.setattr("perfmodel.measure.run.measure", lambda job, _: jobs.append(job))

    def ask(arguments):
        result = CliRunner().invoke(app, ["measure", *arguments])
        assert result.exit_code == 0, result.output
        return jobs.pop()

    return ask


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["-b", "0.3 KiB", "-e", "1 MB", "-f", "1.37"],
        ["-b", "1449 B", "-e", "2898 B", "-f", "3.0000000000000004"],
        ["-b", "7 B", "-e", "7 B", "-f", "1e3"],
        [
            "--ranks",
            "3",
            "--collective",
            "all-reduce",
            "--dtype",
            "bfloat16",
            "--timeout",
            "1.5 min",
        ],
        ["--repeats", "13", "--budget", "7 ms", "--topology", "cpu-loopback"],
        ["--budget", "0.123456789012345 s", "--backend", "device"],
        ["-b", "1 KiB", "-e", "1 GB", "-f", "1.23456789"],
        ["--runs", "3"],
    ],
)
def test_the_command_asks_for_the_same_job_again(asked, flags):
    first = asked(["gloo-ring", *flags])
    words = shlex.split(first.command)
    assert words[:2] == ["perfmodel", "measure"]
    again = asked(words[2:])
    assert replace(again, budget_s=0, command="") == replace(first, budget_s=0, command="")
    if first.repeats is None:  # else the budget says nothing
        assert again.budget_s == first.budget_s
    assert again.command == first.command


def test_one_run_is_one_document_and_one_file(monkeypatch, tmp_path):
    recorded = Path(__file__).parents[2] / "reports" / "measured" / "gloo_ring_2_epyc.json"
    found = read_measurement(recorded)
    monkeypatch.setattr("perfmodel.measure.run.measure", lambda job, _: found)
    path = tmp_path / "m.json"
    result = CliRunner().invoke(app, ["measure", "ring", "-o", str(path), "--json"])
    assert result.exit_code == 0, result.output
    assert (
        json.loads(result.stdout) == json.loads(path.read_text()) == found.model_dump(mode="json")
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.json"]


def test_a_topology_of_ones_own_is_said_without_the_folders_of_this_machine(asked, tmp_path):
    own = tmp_path / "mine.yaml"
    own.write_text(find_file("cpu-loopback", "topologies").read_text())
    found = asked(["ring", "--topology", str(own)])
    assert found.topology == "mine"
    assert found.command.endswith("--topology mine.yaml")


def test_sizes_beyond_memory_are_refused_beforehand(monkeypatch):
    pytest.importorskip("torch", reason="without it, that is said first")
    monkeypatch.setattr("perfmodel.measure.run.free_memory_bytes", lambda: 10 << 30)
    result = CliRunner().invoke(app, ["measure", "ring", "-e", "4 TiB"])
    assert result.exit_code == 2
    # data, the buffer worked on, the library's and a quarter of scratch; four ranks of them
    wanted = "-e: found 4 TiB, which needs 52 TiB of memory in all; allowed: sizes that fit into "
    assert result.stderr.startswith(wanted + "the free 10 GiB"), result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--timeout", "1e15 s"], "--timeout: found '1e15 s' (beyond what there is)"),
        (["--timeout", "1 us"], "from 100 ms to 7 d"),
        (["--budget", "1e15 s"], "--budget"),
        (["-e", "4096 PiB"], "-e: found '4096 PiB' (beyond what there is)"),
    ],
)
def test_values_out_of_range_exit_with_2(flags, said):
    result = CliRunner().invoke(app, ["measure", "ring", *flags])
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


@pytest.fixture
def no_torch(monkeypatch):
    """Torch cannot be found, and importing it fails."""
    find = __import__("importlib.util").util.find_spec
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name, *a: None if name == "torch" else find(name, *a)
    )
    real = builtins.__import__

    def refuse(name, *arguments, **options):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(name)
        return real(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", refuse)


@pytest.mark.parametrize("backend", ["gloo", "nccl", "device"])
def test_without_torch_it_says_how_to_get_it(no_torch, backend):
    with pytest.raises(ExecutorUnavailable, match=r"pip install 'perfmodel\[torch\]'"):
        measure(job(backend=backend))
    result = CliRunner().invoke(app, ["measure", "ring", "--backend", backend])
    assert result.exit_code == 2
    assert "pip install 'perfmodel[torch]'" in result.stderr
    assert result.stdout == ""


@pytest.mark.slow
def test_importing_measure_does_not_import_torch():
    package = Path(perfmodel.__file__).parent
    files = [path.relative_to(package) for path in (package / "measure").rglob("*.py")]
    names = [".".join(path.with_suffix("").parts) for path in files if path.stem != "__init__"]
    assert "measure.launcher" in names
    code = "".join(f"import perfmodel.{name}\n" for name in names)
    code += "import sys; assert 'torch' not in sys.modules"
    root = Path(perfmodel.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=60)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["rnig"], "ALGORITHM: found 'rnig'"),
        (["ring", "--collective", "allreduce"], "--collective: found 'allreduce'"),
        (["ring", "--topology", "dgx-a1000"], "dgx-a100"),
        (["ring", "--budget", "30"], "--budget: found '30' (no unit)"),
        (["ring", "-b", "2 MiB", "-e", "1 MiB"], "-e: found '1 MiB'"),
        (["ring", "-o", "."], "(a folder)"),
        (["ring", "-o", "/proc/m.json"], "a place that can be written"),
        (["ring", "-o", "/dev/null"], "(a device or pipe)"),
        (["ring", "-o", "nowhere/m.json"], "a file in a folder that exists"),
        (["ring", "-o", "x" * 300], "a place that can be written"),
        (["switch"], "switch that reduces"),
    ],
)
def test_wrong_flags_exit_with_2(arguments, said):
    result = CliRunner().invoke(app, ["measure", *arguments])
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stdout == ""
