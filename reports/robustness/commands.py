"""Sweeps as processes of the command line, and the rows that they store."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PARTS = ("perfmodel", "topologies", "scenarios")

VARIANTS = 12
MAIN = "from perfmodel.cli import main; main()"
QUESTION = f"sweep={{grid: {{seed: {list(range(VARIANTS))}}}}}"

Rows = dict[str, tuple[str, ...]]


def copy_sources(folder: Path) -> Path:
    """Copy what the command runs from.

    The key of an answer holds a digest of the model's source. An edit while this report runs made
    a sweep that went on compute all variants again, beside rows of the source before.
    """
    home = folder / "sources"
    for part in PARTS:
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, home / part, ignore=ignored)
    return home


def start(home: Path, *words: str, file_bytes: int | None = None) -> subprocess.Popen[str]:
    """Start a sweep of the command line, from copied sources."""

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # what runs behind a shell would ignore it
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    command = [sys.executable, "-P", "-c", MAIN, "sweep", "bucket-size-slow-ethernet"]
    return subprocess.Popen(  # noqa: S603
        [*command, "--set", QUESTION, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=prepare,  # noqa: PLW1509  (one thread)
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(home)},
    )


def describe(process: subprocess.Popen[str]) -> str:
    """How a command ended."""
    _, stderr = process.communicate(timeout=300)
    return f"exit {process.returncode}" + (", TRACEBACK" if "Traceback" in stderr else "")


def count_reused(process: subprocess.Popen[str]) -> int | None:
    """Return how many answers a sweep with ``--json`` took from its store; None if it failed."""
    stdout, _ = process.communicate(timeout=300)
    return int(json.loads(stdout)["reused"]) if process.returncode == 0 else None


def read_rows(store: Path) -> Rows:
    """Rows of a store by key.

    Raises `sqlite3.Error`: the file cannot be read, which is not the same as no rows.
    """
    with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True, timeout=60)) as base:
        return {row[0]: tuple(row[1:]) for row in base.execute("SELECT * FROM answers")}


def has_rows(store: Path, least: int) -> bool:
    """Whether a store that is being made has some rows already."""
    try:
        return len(read_rows(store)) >= least
    except sqlite3.OperationalError:  # no file, no tables, or just changing its mode
        return False
