"""The command starts processes and leaves none behind, whatever happens to them."""

import json
import os
import platform
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

import perfmodel
from tests.measure.measured_files import read_measurement

pytest.importorskip("torch", reason="runs real processes on gloo")

ROOT = str(Path(perfmodel.__file__).parents[1])
COMMAND = [sys.executable, "-W", "error", "-c", "from perfmodel.cli import main; main()", "measure"]
SMALL = ["ring", "-b", "4 B", "-e", "4 KiB", "-f", "32", "--repeats", "8"]


def start(*arguments, command=COMMAND, **environment):
    return subprocess.Popen(
        [*command, *arguments],
        env=os.environ | {"PYTHONPATH": ROOT} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def start_broken(fault, *arguments):
    """The same, with a rank that breaks: ``how:rank:stage``."""
    script = str(Path(__file__).with_name("measure_with_fault.py"))
    return start(*fault.split(":"), *arguments, command=[sys.executable, "-W", "error", script])


def finish(process, timeout=90):
    """Exit code, stdout and stderr; whatever is left of its session is a fault."""
    try:
        out, err = process.communicate(timeout=timeout)
    finally:
        until = time.monotonic() + 5  # Python's tracker of resources leaves after its parent
        while (left := session_members(process.pid)) and time.monotonic() < until:
            time.sleep(0.05)
        for pid in left:
            os.kill(pid, signal.SIGKILL)
    assert left == [], "processes left behind"
    assert "Traceback" not in err, err
    return process.returncode, out, err


def session_members(session):
    """Living processes of a session; the ones that the command started never leave it."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def two_runs(tmp_path_factory):
    """What the command prints, and the folder it writes to."""
    folder = tmp_path_factory.mktemp("runs")
    where = ("--topology", "dgx-a100", "-o", str(folder / "m.json"))
    code, out, err = finish(start(*SMALL, "--ranks", "2", "--runs", "2", *where, "--json"))
    assert code == 0, err
    return out, folder


@pytest.mark.slow
def test_a_run_writes_a_whole_file(two_runs):
    _, folder = two_runs
    path = folder / "m-1.json"
    found = read_measurement(path)
    assert (found.backend, found.algorithm, found.ranks) == ("gloo", "ring", 2)
    assert found.topology == "dgx-a100"
    assert found.hosts == 1
    for what in ("schedule", "library"):
        assert [nbytes for nbytes, _ in found.times(what)] == [4, 128, 4096]
    assert {row.repeats for row in found.rows} == {8}
    assert found.versions["torch"]
    text = path.read_text()
    assert platform.node() not in text.split('"')
    assert str(folder) not in text


@pytest.mark.slow
def test_a_rank_that_dies_is_named(tmp_path):
    path = tmp_path / "m.json"
    process = start_broken("crash:1:warming up", *SMALL, "--ranks", "2", "-o", str(path))
    code, out, err = finish(process)
    assert code == 1
    assert err.startswith("rank 1 died (killed by SIGKILL) while warming up, schedule of 4 B")
    assert "before posting round 1" in err
    assert out == ""
    assert not path.exists()


@pytest.mark.slow
def test_a_rank_that_hangs_is_named():
    process = start_broken("hang:1:timing", *SMALL, "--ranks", "2", "--timeout", "4 s")
    code, out, err = finish(process)
    assert code == 1
    assert err.startswith(
        "no rank advanced for 4 s; furthest behind: rank 1 (timing, schedule of 4 B, repeat 1, "
        "before posting round 1)"
    )
    assert out == ""


@pytest.mark.slow
def test_wrong_data_end_the_run():
    process = start_broken("corrupt:1:checking the data", *SMALL, "--ranks", "2")
    code, out, err = finish(process)
    assert code == 1
    assert "ring all_reduce of 4 bytes on 2 ranks: rank 1, chunk 1, element 0: found" in err
    assert out == ""


@pytest.mark.slow
def test_ctrl_c_ends_everything(tmp_path):
    path = tmp_path / "m.json"
    process = start("ring", "--ranks", "2", "--budget", "1 h", "-o", str(path))
    until = time.monotonic() + 30
    while len(session_members(process.pid)) < 4 and time.monotonic() < until:  # and a tracker
        time.sleep(0.05)
    time.sleep(3.5)  # by then it times, unless the machine is very busy
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to the whole group
    code, out, _ = finish(process, timeout=30)
    assert code not in {0, 2}
    assert out == ""
    assert not path.exists()


@pytest.mark.slow
def test_children_do_not_outlive_a_killed_parent(tmp_path):
    """And clean up in its place."""
    process = start("ring", "--ranks", "2", "--budget", "1 h", TMPDIR=str(tmp_path))
    until = time.monotonic() + 30
    while len(session_members(process.pid)) < 4 and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(1.0)
    assert len(list(tmp_path.iterdir())) == 1
    process.kill()
    process.communicate(timeout=30)
    until = time.monotonic() + 20
    while session_members(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert session_members(process.pid) == []
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_under_torchrun_rank_0_writes(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port,
        "GLOO_SOCKET_IFNAME": "lo",
    }
    processes = [
        start(
            *SMALL,
            "--ranks",
            "2",
            "-o",
            str(tmp_path / f"m{rank}.json"),
            **common,
            RANK=str(rank),
            LOCAL_RANK=str(rank),
        )
        for rank in range(2)
    ]
    (code0, out0, err0), (code1, out1, err1) = [finish(process) for process in processes]
    assert (code0, code1) == (0, 0), (err0, err1)
    assert "schedule" in out0
    assert out1 == ""
    assert [entry.name for entry in tmp_path.iterdir()] == ["m0.json"]
    found = read_measurement(tmp_path / "m0.json")
    assert found.hosts == 1
    launcher = "torchrun --nnodes 1 --nproc-per-node 2 --no-python perfmodel measure ring "
    assert found.command.startswith(launcher)


def test_each_run_starts_anew_and_has_its_own_file(two_runs):
    out, folder = two_runs
    assert sorted(entry.name for entry in folder.iterdir()) == ["m-1.json", "m-2.json"]
    written = [json.loads((folder / f"m-{number}.json").read_text()) for number in (1, 2)]
    assert json.loads(out) == {"runs": written}
    first, second = (document["rows"] for document in written)
    assert first != second
    assert "--runs" not in written[0]["command"]  # each file says how to repeat its own run
