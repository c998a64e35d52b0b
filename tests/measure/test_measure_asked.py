"""What can be asked of the command: jobs, flags, memory; no torch needed."""

import builtins
import json
import platform
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import perfmodel
from perfmodel.cli import app
from perfmodel.collectives import catalog
from perfmodel.errors import ExecutorUnavailable, InputError, ScheduleError
from perfmodel.files import find_file
from perfmodel.measure.environment import (
    CpuTime,
    describe_machine,
    describe_other_load,
    describe_versions,
)
from perfmodel.measure.job import MeasurementJob, make_schedules, measured_size
from perfmodel.measure.memory_check import PROCESS_BYTES, SIDE_BYTES, require_memory
from perfmodel.measure.processes.p2p import count_scratch, largest_scratch
from perfmodel.measure.record import read_measurement
from perfmodel.measure.reference import make_moves
from perfmodel.measure.run import count_hosts, measure, under_torchrun

SIZES = (1024, 4096)


def job(**changes):
    known = {"backend": "gloo", "algorithm": "ring", "collective": "all_reduce", "ranks": 4}
    return MeasurementJob(**(known | {"sizes": SIZES} | changes))


# ---------------------------------------------------------------- what is asked


def test_sizes_are_whole_elements_and_like_parts():
    assert measured_size(job(), 1023) == 1020
    assert measured_size(job(), 1) == 4
    assert measured_size(job(collective="all_gather", ranks=3, dtype="float64"), 100) == 96
    assert list(make_schedules(job(sizes=(1, 2, 7, 4096)))) == [4, 4096]


def test_wrong_jobs_say_what_is_allowed():
    with pytest.raises(
        InputError, match=r"(?s)--dtype.*did you mean 'float32'.*--ranks.*2 or more"
    ):
        make_schedules(job(dtype="float23", ranks=1))
    with pytest.raises(InputError, match="did you mean 'ring'"):
        make_schedules(job(algorithm="rnig"))
    with pytest.raises(ScheduleError, match="switch needs a switch that reduces"):
        make_schedules(job(algorithm="switch"))


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


@pytest.mark.parametrize("flags", [
    [],
    ["-b", "0.3 KiB", "-e", "1 MB", "-f", "1.37"],
    ["-b", "1449 B", "-e", "2898 B", "-f", "3.0000000000000004"],
    ["-b", "7 B", "-e", "7 B", "-f", "1e3"],
    ["--ranks", "3", "--collective", "all-reduce", "--dtype", "bfloat16", "--timeout", "1.5 min"],
    ["--repeats", "13", "--budget", "7 ms", "--topology", "cpu-loopback"],
    ["--budget", "0.123456789012345 s", "--backend", "device"],
    ["-b", "1 KiB", "-e", "1 GB", "-f", "1.23456789"],
    ["--runs", "3"],
])  # fmt: skip
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


def test_hosts_are_counted_as_torchrun_says(monkeypatch):
    assert count_hosts() == 1
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert count_hosts() is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert count_hosts() == 2


# ---------------------------------------------------------------- what fits


def test_sizes_beyond_memory_are_refused_beforehand(monkeypatch):
    pytest.importorskip("torch", reason="without it, that is said first")
    monkeypatch.setattr("perfmodel.measure.memory_check.free_memory_bytes", lambda: 10 << 30)
    result = CliRunner().invoke(app, ["measure", "ring", "-e", "4 TiB"])
    assert result.exit_code == 2
    # data, the buffer worked on, the library's and a quarter of scratch; four ranks of them
    wanted = "-e: found 4 TiB, which needs 52 TiB of memory in all; allowed: sizes that fit into "
    assert result.stderr.startswith(wanted + "the free 10 GiB"), result.stderr
    assert result.stdout == ""


def test_room_is_reckoned_from_ranks_and_buffers(monkeypatch):
    def free(nbytes):
        monkeypatch.setattr("perfmodel.measure.memory_check.free_memory_bytes", lambda: nbytes)

    def room(asked):
        require_memory(asked, list(make_schedules(asked).values()))

    asked = job(sizes=(1 << 20, 1 << 30))
    needed = 4 * (3 * (1 << 30) + (1 << 28) + PROCESS_BYTES)
    free(needed)
    room(asked)
    free(needed - 1)
    with pytest.raises(InputError, match="sizes: found 1 GiB"):
        room(asked)
    free(4 * (3 * (1 << 30) + PROCESS_BYTES))
    room(job(sizes=(1 << 30,), collective="all_gather"))  # no scratch, but a buffer to gather in
    free(4 * (2 * (1 << 30) + PROCESS_BYTES))
    with pytest.raises(InputError):
        room(job(sizes=(1 << 30,), collective="all_gather"))
    free(needed - 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    room(asked)
    free(None)  # a system that does not say
    room(job(sizes=(1 << 45,)))


class Devices:
    """As much of torch.cuda as the reckoning asks."""

    def __init__(self, nbytes):
        self.cuda, self.total_memory = self, nbytes

    def get_device_properties(self, device):
        return self

    def mem_get_info(self, device):
        return self.total_memory, self.total_memory


def test_room_on_devices(monkeypatch):
    monkeypatch.setattr("perfmodel.measure.memory_check.free_memory_bytes", lambda: 2 << 30)
    one = job(backend="nccl", sizes=(1 << 30,))
    made = list(make_schedules(one).values())
    needed = 3 * (1 << 30) + (1 << 28)
    require_memory(one, made, Devices(needed))  # each rank has a device of its own
    with pytest.raises(InputError, match="of the GPU's memory"):
        require_memory(one, made, Devices(needed - 1))
    shared = job(backend="device", sizes=(1 << 30,))
    needed = 4 * (2 * (1 << 30) + (1 << 28)) + 2 * ((1 << 30) + SIDE_BYTES)
    require_memory(shared, made, Devices(needed))
    monkeypatch.setattr("perfmodel.measure.memory_check.free_memory_bytes", lambda: (2 << 30) - 1)
    with pytest.raises(InputError) as caught:
        require_memory(shared, made, Devices(needed - 1))
    assert len(caught.value.faults) == 2  # neither on the GPU nor on the host


def test_scratch_of_the_neediest_rank_is_found():
    for algorithm, ranks in (("ring", 4), ("tree", 5), ("server", 4), ("recursive_doubling", 8)):
        rounds = make_moves(catalog.make("all_reduce", algorithm, ranks, 4 * 160, itemsize=4))
        assert largest_scratch(rounds) == max(count_scratch(rounds, r) for r in range(ranks))


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--timeout", "1e15 s"], "--timeout: found 1e+15 s; allowed: from 100 ms to 7 d"),
        (["--timeout", "1 us"], "from 100 ms to 7 d"),
        (["--budget", "1e15 s"], "--budget"),
        (["-e", "4096 PiB"], "-e: found 4096 PiB; allowed: up to 1 PiB"),
    ],
)
def test_values_out_of_range_exit_with_2(flags, said):
    result = CliRunner().invoke(app, ["measure", "ring", *flags])
    assert result.exit_code == 2
    assert said in result.stderr
    assert result.stdout == ""


def test_torchrun_is_recognised(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        assert not under_torchrun()
        monkeypatch.setenv(name, "1")
    assert under_torchrun()


def test_the_machine_is_described_without_names():
    said = describe_machine() | describe_versions()
    assert {"cpu", "cores", "os", "python", "numpy"} <= set(said)
    assert platform.node() not in " ".join(said.values()).split()
    assert "/" not in said["os"]


def test_other_work_is_what_neither_we_nor_our_children_did(monkeypatch):
    later = CpuTime(all_s=130.0, own_s=7.0, read_at_s=20.0)
    monkeypatch.setattr("perfmodel.measure.environment.read_cpu_time", lambda: later)
    # 30 s of processor time in 10 s on 4 cores, 5 s of them ours
    assert describe_other_load(CpuTime(100.0, 2.0, 10.0), 4) == "62 % of the cores"
    assert describe_other_load(None, 4) == ""


# ---------------------------------------------------------------- without torch


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


def test_importing_measure_does_not_import_torch():
    package = Path(perfmodel.__file__).parent
    files = [path.relative_to(package) for path in (package / "measure").rglob("*.py")]
    names = [".".join(path.with_suffix("").parts) for path in files if path.stem != "__init__"]
    assert "measure.processes.launcher" in names
    code = "".join(f"import perfmodel.{name}\n" for name in names)
    code += "import sys; assert 'torch' not in sys.modules"
    root = Path(perfmodel.__file__).parents[1]
    subprocess.run([sys.executable, "-c", code], check=True, cwd=root, timeout=60)


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
