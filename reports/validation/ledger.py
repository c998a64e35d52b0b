"""How good first predictions are: of records that nobody had looked at when they were predicted.

    python -m reports.validation.ledger

Reads ``first_predictions.csv``, prints the tables, writes them to ``ledger.md``, and the headline,
beside what refits without each record's own family have, into the documents that state it.
Where tables weigh the same, one of hundreds of rows says no more than one of a few.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from perfmodel.errors import Fault, InputError
from perfmodel.files import read_yaml, write_atomically
from perfmodel.report.validation import percent, signed
from perfmodel.validate.scores import weighted_quantile
from reports.validation.entries.entry import FILE, Entry, Prediction, read_entries
from reports.validation.entries.sweeps import QUANTITIES

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
REPORT, VALIDATION = HERE / "ledger.md", HERE / "validation.json"
DOCUMENTS = ("README.md", "reports/README.md", "reports/accuracy.md")
BEGIN, END = "<!-- ledger: by `python -m reports.validation.ledger` -->", "<!-- ledger ends -->"


@dataclass(frozen=True, slots=True)
class Statistics:
    """Errors and intervals of some predictions.

    `median`, `p90`: of the size of predicted over measured less one; `bias`: its median with sign.
    `inside`: share of measured numbers in their interval, and `width`: median of high over low less
        one, of those that have an interval, `bounded` in number; None: none has.
    """

    lines: int
    tables: int
    bounded: int
    median: float
    p90: float
    bias: float
    inside: float | None
    width: float | None


def statistics_of(predictions: Sequence[Prediction], *, alike: bool) -> Statistics:
    """Sum up predictions, of which there is one at least.

    `alike`: whether tables weigh the same, and not lines.
    """
    errors = np.array([each.predicted / each.measured - 1 for each in predictions])
    weights = _weights(predictions, alike=alike)
    bounded = [each for each in predictions if each.low is not None and each.high is not None]
    inside = width = None
    if bounded:
        own = _weights(bounded, alike=alike)
        low, high, measured = (
            np.array([getattr(each, name) for each in bounded])
            for name in ("low", "high", "measured")
        )
        inside = float(np.average((low <= measured) & (measured <= high), weights=own))
        width = weighted_quantile(high / low - 1, own, 0.5)
    return Statistics(
        len(predictions),
        len({each.table for each in predictions}),
        len(bounded),
        weighted_quantile(np.abs(errors), weights, 0.5),
        weighted_quantile(np.abs(errors), weights, 0.9),
        weighted_quantile(errors, weights, 0.5),
        inside,
        width,
    )


def _weights(predictions: Sequence[Prediction], *, alike: bool) -> NDArray[np.float64]:
    if not alike:
        return np.ones(len(predictions))
    _, at, counts = np.unique(
        [each.table for each in predictions], return_inverse=True, return_counts=True
    )
    weights: NDArray[np.float64] = 1.0 / counts[at]
    return weights


def class_of(prediction: Prediction) -> str:
    """Class of a prediction, with what else it is not to be mixed with."""
    if prediction.kind == "collective":
        band = "below 256 KiB" if _is_small(prediction) else "from 256 KiB on"
        profile = ", with a profile" if _has_profile(prediction) else ""
        return f"{prediction.group}, {band}{profile}"
    if prediction.kind == "memory":
        return f"memory, {prediction.quantity}"
    return prediction.group


def _is_small(prediction: Prediction) -> bool:
    return prediction.band == "latency"


def _has_profile(prediction: Prediction) -> bool:
    return prediction.quantity == QUANTITIES["transferred"]


# ---------------------------------------------------------------- headline


@dataclass(frozen=True)
class Headline:
    """A line that documents state.

    `score`, `inside`: where in ``validation.json`` the refits that leave records out have the same.
    """

    name: str
    applies: Callable[[Prediction], bool]
    score: tuple[str, ...] = ()
    inside: tuple[str, ...] = ()


def _collectives(small: bool, profile: bool) -> Callable[[Prediction], bool]:
    return lambda p: p.kind == "collective" and _is_small(p) == small and _has_profile(p) == profile


def _steps(*groups: str) -> Callable[[Prediction], bool]:
    return lambda p: p.kind == "step" and p.group in groups


_STEP = ("strategies", "quantities", "step", "all")
HEADLINES = (
    Headline(
        "collectives from 256 KiB on",
        _collectives(small=False, profile=False),
        ("by_band", "left out", "256 KiB and up"),
        ("coverage", "left out", "256 KiB and up", "share"),
    ),
    Headline(
        "collectives below 256 KiB",
        _collectives(small=True, profile=False),
        ("by_band", "left out", "latency"),
        ("coverage", "left out", "latency", "share"),
    ),
    Headline(
        "collectives from 256 KiB on, with a profile",
        _collectives(small=False, profile=True),
        ("by_band", "transferred", "256 KiB and up"),
        ("coverage", "transferred", "256 KiB and up", "share"),
    ),
    Headline(
        "steps on one GPU",
        _steps("one GPU"),
        ("trainings", "measures", "one_gpu", "all", "all"),
        ("trainings", "measures", "one_gpu", "all", "all", "inside"),
    ),
    Headline("steps, sharded and split", _steps("sharded", "split"), _STEP, (*_STEP, "inside")),
    Headline(
        "peak memory",
        lambda p: p.kind == "memory" and p.unit == "B",
        ("strategies", "quantities", "memory", "all"),
    ),
    Headline("single kernels", lambda p: p.kind == "kernel"),
)


def headline(
    entries: Iterable[Entry], refits: Mapping[str, Any], *, newest: bool = False
) -> list[str]:
    """Lines of Markdown: first predictions by version, and left-out refits beside them.

    `newest`: of each kind of prediction those of the last version that made any.
    """
    lines = table_head(
        "version | predicted before anybody had looked | each table the same: median, 90th"
        " percentile; bias | inside the 80 % interval | each line the same | inside |"
        " left out of refits instead"
    )
    rows = [
        (version, each, own)
        for version, predictions in by_version(entries).items()
        for each in HEADLINES
        if (own := [p for p in predictions if each.applies(p)])
    ]
    last = {each.name: version for version, each, _ in rows}
    for version, each, own in rows:
        if newest and last[each.name] != version:
            continue
        even, pooled = (statistics_of(own, alike=alike) for alike in (True, False))
        lines.append(
            f"| {version} | {each.name} ({counted(even)}) | {errors_of(even)} |"
            f" {intervals_of(even)} | {errors_of(pooled)} | {intervals_of(pooled)} |"
            f" {_refitted(each, refits)} |"
        )
    return lines


def _refitted(line: Headline, refits: Mapping[str, Any]) -> str:
    score = _at(refits, line.score) if line.score else None
    if not score:
        return "-"
    errors = (
        f"{plain(percent(score['median_abs_error']))}, {plain(percent(score['p90_abs_error']))}"
    )
    inside = _at(refits, line.inside) if line.inside else None
    return errors if inside is None else f"{errors}; {plain(percent(inside))} inside"


def _at(document: Any, path: Sequence[str]) -> Any:
    for name in path:
        document = document.get(name) if document else None
    return document


# ---------------------------------------------------------------- Markdown


def by_version(entries: Iterable[Entry]) -> dict[str, list[Prediction]]:
    """Predictions of each version, in the order of the file."""
    versions: dict[str, list[Prediction]] = {}
    for entry in entries:
        versions.setdefault(entry.origin.version, []).append(entry.prediction)
    return versions


def class_table(predictions: Iterable[Prediction]) -> list[str]:
    """Table by class: every line the same, and every table the same."""
    groups: dict[str, list[Prediction]] = {}
    for each in predictions:
        groups.setdefault(class_of(each), []).append(each)
    lines = table_head(
        "class | lines (tables) | each line the same: median, 90th percentile; bias |"
        " inside, width | each table the same: median, 90th percentile; bias | inside, width"
    )
    for name, own in sorted(groups.items()):
        pooled, even = (statistics_of(own, alike=alike) for alike in (False, True))
        lines.append(
            f"| {name} | {counted(pooled)} | {errors_of(pooled)} | {intervals_of(pooled)} |"
            f" {errors_of(even)} | {intervals_of(even)} |"
        )
    return lines


def source_table(predictions: Iterable[Prediction]) -> list[str]:
    """Table by class and table of records."""
    groups: dict[tuple[str, str], list[Prediction]] = {}
    for each in predictions:
        groups.setdefault((each.table, class_of(each)), []).append(each)
    lines = table_head("table | class | lines | median, 90th percentile; bias | inside, width")
    for (table, name), own in sorted(groups.items()):
        found = statistics_of(own, alike=False)
        lines.append(
            f"| {table} | {name} | {found.lines} | {errors_of(found)} | {intervals_of(found)} |"
        )
    return lines


def table_head(columns: str) -> list[str]:
    """First two lines of a table."""
    return [f"| {columns} |", f"|{'---|' * (columns.count(' | ') + 1)}"]


def counted(found: Statistics) -> str:
    """How many lines of how many tables."""
    return f"{found.lines} in {found.tables} table{'s' * (found.tables != 1)}"


def errors_of(found: Statistics) -> str:
    """Median and 90th percentile of errors, and their bias."""
    median, p90, bias = percent(found.median), percent(found.p90), signed(found.bias)
    return plain(f"{median}, {p90}; {bias}")


def intervals_of(found: Statistics) -> str:
    """How many lie inside intervals of what width."""
    if found.inside is None or found.width is None:
        return "-"
    of = "" if found.bounded == found.lines else f" of {found.bounded}"
    return plain(f"{percent(found.inside)}{of}, {percent(found.width)} wide")


def plain(text: str) -> str:
    """Return a text with usual spaces and hyphens, as documents have them."""
    return text.replace("\N{NO-BREAK SPACE}", " ").replace("\N{MINUS SIGN}", "-")


INTRODUCTION = """\
What each version predicted of records when they entered, before anybody had looked at how far
off it is. `first_predictions.csv` has every line and is never rewritten, `first_left_out.csv` what
could not be predicted. New records: `python -m reports.validation.first_predictions --data DIR`;
this page: `python -m reports.validation.ledger`. Errors are predicted over measured less one.
Refits, in the last column, are of records in view, each left out of what was fitted with all of
its family."""


def document(entries: Sequence[Entry], refits: Mapping[str, Any]) -> str:
    """Return the report."""
    parts = [
        "# Ledger of first predictions",
        "",
        *INTRODUCTION.splitlines(),
        "",
        *headline(entries, refits),
    ]
    for version, predictions in by_version(entries).items():
        notes = textwrap.wrap(version_notes().get(version, ""), 140)
        parts += ["", f"## Version {version}, by class", "", *notes, "", *class_table(predictions)]
        parts += ["", f"## Version {version}, by table", "", *source_table(predictions)]
    return "\n".join(parts) + "\n"


def version_notes() -> Mapping[str, str]:
    """What is to be known of first predictions, by version."""
    notes: Mapping[str, str] = read_yaml(HERE / "entries" / "seen.yaml")["notes"]
    return notes


def with_block(text: str, lines: Sequence[str], file: str) -> str:
    """Put lines between the marks of a document.

    Raises `InputError`: it has no marks.
    """
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise InputError(Fault("marks", "none", f"{BEGIN} and {END}", file))
    return "\n".join([f"{before}{BEGIN}", *lines, f"{END}{after}"])


def main() -> None:
    """Remake the report, and the headline in documents."""
    entries = read_entries(FILE)
    refits = json.loads(VALIDATION.read_text("utf-8"))
    text = document(entries, refits)
    write_atomically(REPORT, text)
    for name in DOCUMENTS:
        path = ROOT / name
        lines = headline(entries, refits, newest=name == "README.md")
        block = with_block(path.read_text("utf-8"), lines, name)
        write_atomically(path, block)
    print(text)


if __name__ == "__main__":
    main()
