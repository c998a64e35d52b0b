"""Tables of how far off predictions were, from the ledger of the repository."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path

from perfmodel.memo import grouped
from perfmodel.report.validation import percent, signed
from perfmodel.studies.run.evidence import JOIN, ONE_GPU, Record, load_records
from reports.validation import evidence, ledger
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


def grades() -> str:
    """How far off records of each grade were, each left out of what graded it."""
    lines = ledger.table_head(
        "grade | records (tables) | median, 90th percentile; bias | inside the 80 % interval, width"
    )
    records = load_records()
    for first, said in ((False, ""), (True, ", predicted before anybody had looked")):
        for grade, score in evidence.grade_scores(records, first=first).items():
            errors = f"{percent(score.median)}, {percent(score.p90)}; {signed(score.bias)}"
            inside = f"{percent(score.inside)}, {percent(score.width)} wide"
            counted = f"{score.records} ({score.tables})"
            lines.append(f"| {grade}{said} | {counted} | {errors} | {inside} |")
    return _unbroken(lines)


def matrix() -> str:
    """Median error of the records of each kind of model, GPU, network and strategy."""
    parts = list[str]()
    for kind, own in grouped((each.setting.model_kind, each) for each in load_records()).items():
        networks = sorted({each.setting.network for each in own}, key=_network_order)
        columns = ["one GPU" if name == "none" else name for name in networks]
        parts += [f"## {TITLES[kind]}", "", *ledger.table_head(f"GPU | {' | '.join(columns)}")]
        for chip in grouped((each.setting.chip, each) for each in own).values():
            names = dict.fromkeys(each.setting.gpu for each in chip)
            cells = (_cell(chip, network) for network in networks)
            parts.append(f"| {', '.join(names)} | {' | '.join(cells)} |")
        parts.append("")
    return _unbroken(parts)


TITLES = {
    "convolutional": "Models of convolutions",
    "transformer": "Transformers",
    "experts": "Transformers with experts",
    evidence.SWEEP: "Collectives alone",
}
"""Titles of the parts of the matrix, by kind of model."""
NETWORKS = ("none", "NVLink", "PCIe", "InfiniBand", "RoCE")


def _network_order(name: str) -> tuple[int, str]:
    return NETWORKS.index(name) if name in NETWORKS else len(NETWORKS), name


def _cell(records: Iterable[Record], network: str) -> str:
    """Strategies of some records over one network: how far off, and of how many records."""
    found = grouped(
        (JOIN.join(each.setting.strategy), abs(each.error))
        for each in records
        if each.setting.network == network
    )
    return ", ".join(
        f"{'' if name in {ONE_GPU, evidence.SWEEP} else f'{name} '}"
        f"{percent(statistics.median(errors))} ({len(errors)})"
        for name, errors in found.items()
    )


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
