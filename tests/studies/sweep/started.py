"""Sweeps and clusters as processes of their own, each in a session that is ended as a whole."""

from __future__ import annotations

import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

MAIN = ("-c", "from perfmodel.cli import main; main()")


def start_sweep(*words: str, env: Mapping[str, str] | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *MAIN, "sweep", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **(env or {})},
    )


def started(tmp_path: Path, variants: int = 400) -> tuple[subprocess.Popen[str], Path]:
    """A sweep of the command line with two workers that has some answers already."""
    path, grid = tmp_path / "s.sqlite", f"sweep={{grid: {{seed: {list(range(variants))}}}}}"
    words = ("bucket-size-slow-ethernet", "--set", grid, "-j", "2", "--store", str(path))
    one = start_sweep(*words)
    assert until(lambda: count(path) >= 2 or one.poll() is not None, 120)
    return one, path


@contextmanager
def running(*command: str, log: Path, env: Mapping[str, str] | None = None) -> Iterator[int]:
    """A server of this Python, by its session; all of it is killed in the end."""
    with log.open("w") as sink:
        one = subprocess.Popen(
            [sys.executable, *command],
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **(env or {})},
        )
        try:
            yield one.pid
        finally:
            for _ in range(3):  # one may be starting another
                for each in members(one.pid):
                    with suppress(ProcessLookupError):
                        os.kill(each, signal.SIGKILL)
            one.wait()


def until(holds: Callable[[], bool], limit_s: float) -> bool:
    """Wait until something holds, and say whether it did in time."""
    end_s = time.monotonic() + limit_s
    while not (held := holds()) and time.monotonic() < end_s:
        time.sleep(0.05)
    return held


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


def count(path: Path) -> int:
    try:
        base = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    except sqlite3.Error:
        return 0
    try:
        return int(base.execute("SELECT count(*) FROM answers").fetchone()[0])
    except sqlite3.Error:
        return 0
    finally:
        base.close()


def members(session: int) -> list[int]:
    """Processes of a session that are not merely waiting to be buried."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                state = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(state[3]) == session and state[0] != "Z":
                found.append(int(folder.name))
    return found


def named(session: int, word: str) -> list[int]:
    """Processes of a session with a word in their command line."""
    found = []
    for one in members(session):
        with suppress(OSError):
            if word in (Path("/proc") / str(one) / "cmdline").read_text():
                found.append(one)
    return found


def gone(session: int) -> bool:
    return until(lambda: not members(session), 20)
