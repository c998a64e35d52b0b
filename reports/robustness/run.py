"""Try what machines do to sweeps and files; count outcomes: `python -m reports.robustness.run`.

Writes `outcomes.csv` beside this file: what was tried, how it ended, how often. A full disk is the
limit RLIMIT_FSIZE (files may not grow beyond 40 KiB), which needs no rights.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

from perfmodel.errors import InputError
from perfmodel.files import csv_text, write_atomically
from perfmodel.studies.sweep import Store
from reports.robustness import damage
from reports.robustness.commands import (
    VARIANTS,
    Rows,
    copy_sources,
    count_reused,
    describe,
    has_rows,
    read_rows,
    start,
)

DAMAGES = 300
STOPS = 24
SHARED = 4


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


def stopped_sweeps(folder: Path) -> Iterator[str]:
    """Stop a sweep of two workers after some answers, then let it end on the same store."""
    home, chance = copy_sources(folder), Random(0)  # noqa: S311  (not for secrets)
    for at in range(STOPS):
        sent = (signal.SIGKILL, signal.SIGINT, signal.SIGTERM)[at % 3]
        yield f"{sent.name}: {stop_and_go_on(home, folder / f'{at}.sqlite', sent, chance)}"


def stop_and_go_on(home: Path, store: Path, sent: signal.Signals, chance: Random) -> str:
    """Stop one sweep at any moment, run it again, and compare the rows of the store."""
    least = chance.randint(1, VARIANTS - 3)
    process = start(home, "--store", str(store), "-j", "2")
    while not has_rows(store, least) and process.poll() is None:
        time.sleep(0.02)
    time.sleep(chance.uniform(0.0, 0.2))
    before = read_rows(store)
    os.killpg(process.pid, sent)
    ended = describe(process)
    kept = read_rows(store)
    reused = count_reused(start(home, "--store", str(store), "-j", "2", "--json"))
    return f"{ended}; {compare_rows(before, kept, reused, read_rows(store))}"


def compare_rows(before: Rows, kept: Rows, reused: int | None, after: Rows) -> str:
    """Say what became of the rows seen before a stop, of those kept, and of the rest.

    `reused`: answers that the second sweep took from the store; None if it failed.
    """
    if not before.items() <= kept.items():
        return f"{len(before.items() - kept.items())} OF {len(before)} ANSWERS LOST"
    if reused is None:
        return "all answers kept, then FAILED"
    if reused != len(kept):
        return f"all answers kept, then {len(kept) - reused} of {len(kept)} NOT USED"
    if not kept.items() <= after.items() or len(after) != VARIANTS:
        return f"all answers kept, then {len(after)} of {VARIANTS} ROWS"
    return "all answers kept, used, and the rest added"


def shared_stores(folder: Path) -> Iterator[str]:
    """Two sweeps on one store at once."""
    home = copy_sources(folder)
    for at in range(SHARED):
        store = folder / f"{at}.sqlite"
        both = [start(home, "--store", str(store), "-j", "1") for _ in range(2)]
        yield " and ".join(map(describe, both)) + f", {len(read_rows(store))} of {VARIANTS} rows"


def bad_places(folder: Path) -> Iterator[str]:
    """Full disks, folders that cannot be written, tables onto stores, folders and links."""
    home, store, link = copy_sources(folder), folder / "s.sqlite", folder / "link"

    def sweep(*words: str, file_bytes: int | None = None) -> str:
        return describe(start(home, *words, file_bytes=file_bytes))

    full = sweep("--store", str(store), "-j", "1", file_bytes=40 << 10)
    rows = "some" if has_rows(store, 1) else "NO"
    yield f"full disk (40 KiB a file), store: {full}, {rows} rows kept"
    again = sweep("--store", str(store), "-j", "1")
    yield f"and again with room: {again}, {len(read_rows(store))} of {VARIANTS} rows"
    link.symlink_to(store)
    for place, words in {
        "--csv onto the store": ("--store", str(store), "--csv", str(store)),
        "--csv onto a link to the store": ("--store", str(store), "--csv", str(link)),
        "--csv onto a folder": ("--csv", str(folder)),
        "--csv into a file": ("--csv", str(store / "table.csv")),
        "--store in a read-only folder (/proc)": ("--store", "/proc/s.sqlite"),
        "--csv in a read-only folder (/proc)": ("--csv", "/proc/t.csv"),
        "--store onto a device": ("--store", "/dev/null"),
    }.items():
        yield f"{place}: {sweep(*words)}"


def main() -> None:
    """Try all and write the counts."""
    rows: list[tuple[str, str, int]] = []
    for trial in (damaged_stores, bad_places, stopped_sweeps, shared_stores):
        with tempfile.TemporaryDirectory() as folder:
            outcomes = Counter(trial(Path(folder)))
        rows += [(trial.__name__.replace("_", " "), *pair) for pair in outcomes.items()]
        table = csv_text(("tried", "outcome", "count"), rows)
        write_atomically(Path(__file__).with_name("outcomes.csv"), table)


if __name__ == "__main__":
    main()
