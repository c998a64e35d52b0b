"""Try what machines do to sweeps and files; count outcomes: `python -m reports.robustness.run`.

Writes `outcomes.csv` beside this file: what was tried, how it ended, how often. A full disk is the
limit RLIMIT_FSIZE (files may not grow beyond 40 KiB), which needs no rights.
"""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from random import Random

from perfmodel.errors import InputError
from perfmodel.files import csv_text, write_atomically
from perfmodel.studies.sweep import Store
from reports.robustness import damage

DAMAGES = 300
KILLS = 4
VARIANTS = 12

MAIN = "from perfmodel.cli import main; main()"
QUESTION = f"sweep={{grid: {{seed: {list(range(VARIANTS))}}}}}"


def damaged_stores(folder: Path) -> Iterator[str]:
    """Damage a store of eight rows in all ways, and read it."""
    (folder / "whole").mkdir()
    damage.make_store(folder / "whole")
    for at in range(DAMAGES):
        copy = Path(shutil.copytree(folder / "whole", folder / f"copy-{at}"))
        damage.KINDS[at % len(damage.KINDS)](copy, Random(at))  # noqa: S311  (not for secrets)
        try:
            with Store(copy / damage.NAME) as store:
                rows = store.find(damage.ANSWERS)
        except InputError:
            yield "refused with a message"
        except Exception as error:  # noqa: BLE001  (what is counted)
            yield f"TRACEBACK {type(error).__name__}"
        else:
            yield "right rows" if rows.items() <= damage.ANSWERS.items() else "WRONG ROWS"


def start(*words: str, file_bytes: int | None = None) -> subprocess.Popen[str]:
    """Start a sweep of the command line."""

    def limit() -> None:
        if file_bytes is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))

    command = [sys.executable, "-c", MAIN, "sweep", "bucket-size-slow-ethernet", "--set", QUESTION]
    return subprocess.Popen(  # noqa: S603
        [*command, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True, preexec_fn=limit,  # noqa: PLW1509  (one thread)
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )  # fmt: skip


def describe(process: subprocess.Popen[str]) -> str:
    """How a command ended."""
    _, stderr = process.communicate(timeout=300)
    return f"exit {process.returncode}" + (", TRACEBACK" if "Traceback" in stderr else "")


def count(store: Path) -> int:
    """Rows of a store; 0 where there is none yet."""
    try:
        with closing(sqlite3.connect(f"file:{store}?mode=ro", uri=True)) as base:
            return int(base.execute("SELECT count(*) FROM answers").fetchone()[0])
    except sqlite3.Error:
        return 0


def killed_sweeps(folder: Path) -> Iterator[str]:
    """Kill a sweep of two workers after a few answers, then let it end on the same store."""
    for at, sent in enumerate((signal.SIGKILL, signal.SIGINT) * (KILLS // 2)):
        store = folder / f"{at}.sqlite"
        process = start("--store", str(store), "-j", "2")
        while count(store) <= at and process.poll() is None:
            time.sleep(0.02)
        os.killpg(process.pid, sent)
        ended = describe(process)
        kept = count(store)
        again = describe(start("--store", str(store), "-j", "2"))
        complete = kept > at and count(store) == VARIANTS
        outcome = "answers kept, the rest added" if complete else "ANSWERS LOST"
        yield f"{sent.name}: {ended}; then {again}, {outcome}"


def shared_stores(folder: Path) -> Iterator[str]:
    """Two sweeps on one store at once."""
    for at in range(2):
        store = folder / f"{at}.sqlite"
        both = [start("--store", str(store), "-j", "1") for _ in range(2)]
        yield " and ".join(map(describe, both)) + f", {count(store)} of {VARIANTS} rows"


def bad_places(folder: Path) -> Iterator[str]:
    """Full disks, folders that cannot be written, tables onto stores, folders and links."""
    store = folder / "s.sqlite"
    full = describe(start("--store", str(store), "-j", "1", file_bytes=40 << 10))
    yield f"full disk (40 KiB a file), store: {full}, {'some' if count(store) else 'NO'} rows kept"
    again = describe(start("--store", str(store), "-j", "1"))
    yield f"and again with room: {again}, {count(store)} of {VARIANTS} rows"
    yield f"--csv onto the store: {describe(start('--store', str(store), '--csv', str(store)))}"
    (folder / "link").symlink_to(store)
    link = str(folder / "link")
    yield f"--csv onto a link to the store: {describe(start('--store', str(store), '--csv', link))}"
    yield f"--csv onto a folder: {describe(start('--csv', str(folder)))}"
    yield f"--csv into a file: {describe(start('--csv', str(store / 'table.csv')))}"
    yield f"--store in a read-only folder (/proc): {describe(start('--store', '/proc/s.sqlite'))}"
    yield f"--csv in a read-only folder (/proc): {describe(start('--csv', '/proc/t.csv'))}"
    yield f"--store onto a device: {describe(start('--store', '/dev/null'))}"


def main() -> None:
    """Try all and write the counts."""
    rows: list[tuple[str, str, int]] = []
    for trial in (damaged_stores, bad_places, killed_sweeps, shared_stores):
        with tempfile.TemporaryDirectory() as folder:
            outcomes = Counter(trial(Path(folder)))
        rows += [(trial.__name__.replace("_", " "), *pair) for pair in outcomes.items()]
        table = csv_text(("tried", "outcome", "count"), rows)
        write_atomically(Path(__file__).with_name("outcomes.csv"), table)


if __name__ == "__main__":
    main()
