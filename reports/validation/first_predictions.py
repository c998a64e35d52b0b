"""Predict records that are not in the ledger yet, and append what was predicted of them.

    python -m reports.validation.first_predictions --data DIR [--minutes 9]

DIR is laid out as collections of records are: ``nccl_sweeps`` with META.csv, ``strategies`` with
``llm_training.csv``, ``models.csv``, ``stated_steps.csv``, ``one_gpu.csv`` and grids of kernels,
``training`` with MLPerf's results. A record is predicted by the first version that can read it,
before anybody has looked at how far off it is; no line of ``first_predictions.csv`` is ever written
again. `ledger` says how good they are.
What cannot be predicted is counted in ``first_left_out.csv``. Where time is up, the next run goes
on. Our own measurements enter with the predictions that were written down before them.
"""

from __future__ import annotations

import argparse
import csv
import io
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfmodelError
from perfmodel.files import read_yaml, write_atomically
from perfmodel.validate.match import one_line
from perfmodel.version import __version__
from reports.validation.entries.entry import (
    FILE,
    Candidate,
    Collected,
    Entry,
    Key,
    LeftOut,
    Origin,
    append_entries,
    read_entries,
)
from reports.validation.entries.kernels import kernels_in
from reports.validation.entries.own_kernels import own_kernels
from reports.validation.entries.own_runs import FOLDER, own_predictions
from reports.validation.entries.steps import steps_in
from reports.validation.entries.sweeps import sweeps_in

LEFT_OUT = FILE.with_name("first_left_out.csv")
LEFT_OUT_COLUMNS = ("table", "reason", "rows")
SEEN = Path(__file__).with_name("entries") / "seen.yaml"
ROOT = Path(__file__).parents[2]
MODEL = ("perfmodel", "topologies")
"""Folders that predictions follow from; their last commit is that of a prediction."""
OWN = (("h100", "steps"), ("h200", "steps"), ("h100", "optimizers"), ("h100", "hybrids"))
"""GPUs that were measured, and tables of cases."""


def collect(folder: Path, own: Path = FOLDER) -> Collected:
    """Find all records that were not looked at before there was a ledger.

    `own`: folder of our own measurements.
    """
    seen: Any = read_yaml(SEEN)
    found = Collected()
    for part in (
        sweeps_in(folder, seen["in_place"]),
        kernels_in(folder, seen["grids"]),
        own_kernels(own),
        steps_in(folder, ids_of(seen["llm_training"])),
    ):
        found.candidates += part.candidates
        found.left_out += part.left_out
    found.left_out += _never_read(folder, seen["not_read"])
    found.candidates.sort(key=lambda candidate: candidate.work)
    return found


def ids_of(ranges: Iterable[str]) -> frozenset[str]:
    """Ids by ranges of their numbers.

    Examples
    --------
    >>> sorted(ids_of(["papers 8-10 12"]))
    ['papers_0008', 'papers_0009', 'papers_0010', 'papers_0012']
    """
    ids = set()
    for text in ranges:
        name, *parts = text.split()
        for part in parts:
            first, _, last = part.partition("-")
            ids |= {f"{name}_{number:04}" for number in range(int(first), int(last or first) + 1)}
    return frozenset(ids)


def _never_read(folder: Path, tables: Iterable[Any]) -> list[LeftOut]:
    """Rows of tables that no scenario can express, by what they train."""
    found = []
    for table in tables:
        path = folder / str(table["file"])
        if path.is_file():
            with path.open(encoding="utf-8", newline="") as file:
                kinds = Counter(row[table["by"]] for row in csv.DictReader(file))
            for kind, rows in sorted(kinds.items()):
                reason = table["reasons"].get(kind, table["reasons"]["other"])
                found.append(LeftOut(path.stem, f"{kind}: {reason}", rows))
    return found


def predict_new(
    candidates: Iterable[Candidate],
    origin: Origin,
    path: Path = FILE,
    is_time_up: Callable[[], bool] = lambda: False,
) -> tuple[int, list[LeftOut]]:
    """Predict the candidates that are not in the file, and append each when it is there.

    Returns how many lines were written, and what could not be predicted.
    """
    known = {entry.prediction.key for entry in read_entries(path)}
    written, left_out = 0, list[LeftOut]()
    for candidate in candidates:
        if candidate.keys <= known:
            continue
        if is_time_up():
            left_out.append(LeftOut(candidate.table, UNREACHED))
            continue
        try:
            predicted = candidate.predict()
        except PerfmodelError as error:
            predicted = one_line(error, 100)
        if isinstance(predicted, str):
            left_out.append(LeftOut(candidate.table, predicted))
            continue
        by_key = {each.key: each for each in predicted if each.key not in known}
        new = [Entry(origin, each) for each in by_key.values()]
        append_entries(new, path)
        known |= by_key.keys()
        written += len(new)
    return written, left_out


UNREACHED = "not predicted yet"


def append_own(path: Path = FILE, entered: str = "") -> int:
    """Append our own measurements, predicted by the version that stands beside them."""
    known: set[Key] = {entry.prediction.key for entry in read_entries(path)}
    written = 0
    for gpu, cases in OWN:
        version, predicted = own_predictions(gpu, cases=cases)
        commit = last_commit(FOLDER / "predicted" / f"{gpu}_{cases}.csv")
        new = [
            Entry(Origin(version, commit, entered), each)
            for each in predicted
            if each.key not in known
        ]
        if new:
            append_entries(new, path)
        written += len(new)
    return written


def last_commit(*paths: str | Path) -> str:
    """Last commit that changed files of the repository; empty outside of one."""
    return _git("log", "-1", "--format=%h", "--abbrev=8", "--", *map(str, paths))


def _git(*words: str) -> str:
    done = subprocess.run(  # noqa: S603
        ["git", *words],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip()


def write_left_out(
    left_out: Sequence[LeftOut], complete: Iterable[str] = (), path: Path = LEFT_OUT
) -> None:
    """Write how many rows of which table were left out, and why.

    `complete`: tables that have been read, of which nothing may be left out any more; lines of
        tables that are neither there nor in `left_out` stay.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for each in left_out:
        counts[each.table, each.reason] += each.rows
    tables = {table for table, _ in counts} | set(complete)
    if path.is_file():
        with path.open(encoding="utf-8", newline="") as file:
            for row in csv.DictReader(file):
                if row["table"] not in tables:
                    counts[row["table"], row["reason"]] += int(row["rows"])
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(LEFT_OUT_COLUMNS)
    writer.writerows((*key, rows) for key, rows in sorted(counts.items()))
    write_atomically(path, text.getvalue())


def main() -> None:
    """Predict what is new."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of records")
    parser.add_argument("--minutes", type=float, default=60.0, help="after which none is begun")
    options = parser.parse_args()
    if changed := _git("status", "--porcelain", "--", *MODEL):
        sys.exit(f"commit the model before it predicts anything first:\n{changed}")
    deadline_s = time.monotonic() + 60 * options.minutes
    today = datetime.now(UTC).date().isoformat()
    origin = Origin(__version__, last_commit(*MODEL), today)
    own = append_own(FILE, today)
    found = collect(options.data)
    written, left_out = predict_new(
        found.candidates, origin, is_time_up=lambda: time.monotonic() > deadline_s
    )
    write_left_out([*found.left_out, *left_out], {each.table for each in found.candidates})
    unreached = sum(each.reason == UNREACHED for each in left_out)
    print(f"{own + written} predictions appended, {unreached} records not reached")


if __name__ == "__main__":
    main()
