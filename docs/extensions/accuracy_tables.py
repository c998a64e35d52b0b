"""Tables of how far off predictions were, from the ledger of the repository."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from reports.validation import ledger
from reports.validation.entries.entry import FILE, Prediction, read_entries

ROOT = Path(__file__).parents[2]

LEAST_LINES = 10
"""Lines that a class needs to be named among the worst."""


def _unbroken(lines: Iterable[str]) -> str:
    """Lines of a table, in which numbers stay with their sign of per cent."""
    return "\n".join(line.replace(" %", "\N{NO-BREAK SPACE}%") for line in lines)


def newest() -> str:
    """First predictions of each kind by the last version that made any, and refits beside them."""
    refits = json.loads(ledger.VALIDATION.read_text("utf-8"))
    return _unbroken(ledger.headline(read_entries(FILE), refits, newest=True))


def by_version() -> str:
    """All first predictions, by version and class."""
    parts = []
    for version, predictions in reversed(ledger.by_version(read_entries(FILE)).items()):
        note = ledger.version_notes().get(version, "")
        parts += [f"## Version {version}", "", note, "", *ledger.class_table(predictions), ""]
    return _unbroken(parts)


def worst() -> str:
    """Classes whose median error is largest, in the last version that predicted any of them."""
    last: dict[str, tuple[str, list[Prediction]]] = {}
    for version, predictions in ledger.by_version(read_entries(FILE)).items():
        groups: dict[str, list[Prediction]] = {}
        for each in predictions:
            groups.setdefault(ledger.class_of(each), []).append(each)
        last.update({name: (version, own) for name, own in groups.items()})
    found = [
        (name, version, ledger.statistics_of(own, alike=True))
        for name, (version, own) in last.items()
        if len(own) >= LEAST_LINES
    ]
    found.sort(key=lambda each: -each[2].median)
    lines = ledger.table_head("class | version | lines | median, 90th percentile; bias | inside")
    for name, version, score in found[:10]:
        cells = (ledger.counted(score), ledger.errors_of(score), ledger.intervals_of(score))
        lines.append(f"| {name} | {version} | {' | '.join(cells)} |")
    return _unbroken(lines)


def published_trainings() -> str:
    """The report of published trainings, whose links into the repository are names of files."""
    text = (ROOT / "reports" / "accuracy.md").read_text("utf-8")
    before, _, rest = text.partition(ledger.BEGIN)
    lines = (before + rest.partition(ledger.END)[2]).split("## Published trainings", 1)[1]
    return _unbroken(_without_links("reports", lines.strip()))


def _without_links(folder: str, text: str) -> Iterator[str]:
    """Name files of the repository where a text links to them."""
    for line in text.splitlines():
        yield re.sub(r"\[([^\]]+)\]\((?!http|#)([^)]+)\)", rf"\1 (`{folder}/\2`)", line)
