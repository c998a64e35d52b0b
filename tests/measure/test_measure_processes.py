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
from perfmodel.measure.record import read_measurement
from perfmodel.measure.status import FAULT_VARIABLE

pytest.importorskip("torch", reason="runs real processes on gloo")

ROOT = str(Path(perfmodel.__file__).parents[1])
COMMAND = [sys.executable, "-W", "error", "-c", "from perfmodel.cli import main; main()", "measure"]
SMALL = ["ring", "-b", "4 B", "-e", "4 KiB", "-f", "32", "--repeats", "8"]


def start(*arguments, **environment):
    return subprocess.Popen(
        [*COMMAND, *arguments],
        env=os.environ | {"PYTHONPATH": ROOT} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


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


def test_a_run_writes_a_whole_file(tmp_path):
    path = tmp_path / "m.json"
    process = start(*SMALL, "--ranks", "2", "--topology", "dgx-a100", "-o", str(path), "--json")
    code, out, err = finish(process)
    assert code == 0, err
    found = read_measurement(path)
    assert json.loads(out) == json.loads(path.read_text())
    assert (found.backend, found.algorithm, found.ranks) == ("gloo", "ring", 2)
    assert found.topology == "dgx-a100"
    for what in ("schedule", "library"):
        assert [nbytes for nbytes, _ in found.times(what)] == [4, 128, 4096]
    assert {row.repeats for row in found.rows} == {8}
    assert found.versions["torch"]
    text = path.read_text()
    assert platform.node() not in text.split('"')
    assert str(tmp_path) not in text
    assert [entry.name for entry in tmp_path.iterdir()] == ["m.json"]


def test_a_rank_that_dies_is_named(tmp_path):
    path = tmp_path / "m.json"
    process = start(
        *SMALL, "--ranks", "2", "-o", str(path), **{FAULT_VARIABLE: "crash:1:warming up"}
    )
    code, out, err = finish(process)
    assert code == 1
    assert err.startswith("rank 1 died (killed by SIGKILL) while warming up, schedule of 4 B")
    assert "before posting round 1" in err
    assert out == ""
    assert not path.exists()


def test_a_rank_that_hangs_is_named():
    process = start(*SMALL, "--ranks", "2", "--timeout", "4 s", **{FAULT_VARIABLE: "hang:1:timing"})
    code, out, err = finish(process)
    assert code == 1
    assert err.startswith(
        "no rank advanced for 4 s; furthest behind: rank 1 (timing, schedule of 4 B, repeat 1, "
        "before posting round 1)"
    )
    assert out == ""


def test_wrong_data_end_the_run():
    process = start(*SMALL, "--ranks", "2", **{FAULT_VARIABLE: "corrupt:1:checking the data"})
    code, out, err = finish(process)
    assert code == 1
    assert "ring all_reduce of 4 bytes on 2 ranks: rank 1, chunk 1, element 0: found" in err
    assert out == ""


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


def test_children_do_not_outlive_a_killed_parent():
    process = start("ring", "--ranks", "2", "--budget", "1 h")
    until = time.monotonic() + 30
    while len(session_members(process.pid)) < 4 and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(1.0)
    process.kill()
    process.communicate(timeout=30)
    until = time.monotonic() + 20
    while session_members(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert session_members(process.pid) == []


def test_under_torchrun_rank_0_writes(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}  # fmt: skip
    processes = [
        start(*SMALL, "--ranks", "2", "-o", str(tmp_path / f"m{rank}.json"),
              **common, RANK=str(rank), LOCAL_RANK=str(rank))
        for rank in range(2)
    ]  # fmt: skip
    (code0, out0, err0), (code1, out1, err1) = [finish(process) for process in processes]
    assert (code0, code1) == (0, 0), (err0, err1)
    assert "schedule" in out0
    assert out1 == ""
    assert [entry.name for entry in tmp_path.iterdir()] == ["m0.json"]
