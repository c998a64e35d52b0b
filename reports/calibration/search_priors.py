"""Search the priors of a fit of sweeps: perfmodel/calibrate/transfer/priors.yaml.

    python -m reports.calibration.search_priors DATA [--tries N] [--write] [--unseen] [--cache FILE]

DATA is a folder laid out as `perfmodel validate --data` wants it. Every sweep is predicted from
what a user may have measured of the same hardware (`leave_one_out.Kind`: another run of the same
collective at any scale, another collective, other ranks, other sizes), with constants that were
fitted without this kind of machine, and with times that are linear in the logarithms of the
factors: within a percent of `perfmodel.calibrate.transfer.fit`, a thousand times as quick. Prints
how far these predictions are from the data, and how often 80 % intervals hold them. With --tries,
expectations are varied at random and kept when what was left out becomes more likely (Student's t
with 3 degrees of freedom, so that a sweep that nothing explains counts little), with a pull towards
where they began. Sweeps that the model misses by more than a factor of two in the median are in the
printed table, but not in that search. Searched are the spreads; not searched are the sizes where
they change, how far a machine's spread may be from others' (open) and the degrees of freedom:
leave-one-out does not tell them. --write then writes priors.yaml, with intervals widened until they
hold 80 %. --unseen also searches once for every kind of hardware without its sweeps, and prints how
these are then predicted: what the search has gained by having seen them is not in that table.
--cache keeps the model's times and slopes for another try.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from perfmodel.calibrate.transfer.priors import Priors, shipped_priors
from perfmodel.validate.scores import weighted_quantile
from reports.calibration.leave_one_out import (
    Fold,
    Kind,
    Prepared,
    Question,
    fold_of,
    prepare,
    questions,
)

HERE = Path(__file__).parent

WITHIN = 1.2816
"""Standard deviations about zero that hold 80 % of a normal distribution."""

MISSED = np.log(2.0)
"""A sweep whose median is farther off than this, as a logarithm, tells of a missing mechanism."""

DRAWN = 1.13
"""The same for intervals as `reports.validation` makes them: the 0.1 and 0.9 quantiles of 30 draws
(1.21) at some sizes, of times that are not quite linear; with it 80 % of what it predicts from
others lie inside."""

PULL = 0.004
"""Likelihood lost per squared logarithm by which an expectation has moved."""

WEIGHTS: Mapping[Kind, float] = {
    "another run": 1.0,
    "another collective": 1.0,
    "other ranks": 1.0,
    "smaller": 0.4,
    "larger": 0.4,
    "sizes between": 0.4,
}
"""What each kind of question counts; the last three are about the same run."""

MOST_OF_TABLE = 2
"""Questions of a kind for each table that the search asks; drawn once."""

SHARES = {"alike", "other_op", "other_way", "networked"}
"""Expectations between 0 and 1; the others are above 0."""

FIXED = {"turn_bytes", "bulk_bytes", "freedom", "widened", "odd", "open", "start", "tails", "level"}


class Position(NamedTuple):
    """Position of a number of the priors: section, factor or field, field of the factor or ""."""

    section: str
    name: str
    field: str = ""


def positions_of(expected: Priors) -> list[Position]:
    """Every expectation that may vary."""
    tree = expected.model_dump()
    positions = [
        Position("levers", name, field)
        for name, prior in tree["levers"].items()
        for field, value in prior.items()
        if value > 0 and field not in FIXED
    ]
    positions += [
        Position(section, name)
        for section in ("left", "runs")
        for name in tree[section]
        if name not in FIXED
    ]
    return positions


def numbers(expected: Priors, where: Sequence[Position]) -> np.ndarray:
    """Expectations as numbers without bounds."""
    tree = expected.model_dump()
    values = [
        tree[p.section][p.name][p.field] if p.field else tree[p.section][p.name] for p in where
    ]
    bounded = [(p.field or p.name) in SHARES for p in where]
    clipped = [min(max(x, 0.01), 0.99) if b else x for x, b in zip(values, bounded, strict=True)]
    return np.array(
        [np.log(x / (1 - x)) if b else np.log(x) for x, b in zip(clipped, bounded, strict=True)]
    )


def with_numbers(expected: Priors, where: Sequence[Position], values: np.ndarray) -> Priors:
    """Expectations from numbers without bounds."""
    tree = expected.model_dump()
    for place, number in zip(where, values.tolist(), strict=True):
        share = (place.field or place.name) in SHARES
        value = float(f"{1 / (1 + np.exp(-number)) if share else np.exp(number):.2g}")
        section = tree[place.section]
        if place.field:
            section[place.name][place.field] = value
        else:
            section[place.name] = value
    return Priors.model_validate(tree)


def likelihood(predicted: Sequence[Fold], weights: Sequence[float]) -> float:
    """Mean logarithm of the likelihood of a row left out."""
    each = [
        np.mean(-np.log(fold.deviation) - 2.0 * np.log1p(fold.away**2 / 3.0)) for fold in predicted
    ]
    return float(np.average(each, weights=weights))


def draw_questions(
    runs: Mapping[str, Prepared], rng: np.random.Generator
) -> list[tuple[Question, float]]:
    """Questions with weights: a few of each table and kind, kinds as `WEIGHTS` says."""
    groups: dict[Kind, dict[str, list[Question]]] = {}
    for question in questions(runs):
        run = runs[question.name]
        if np.median(np.abs(run.over)) < MISSED:
            groups.setdefault(question.kind, {}).setdefault(run.table, []).append(question)
    drawn = []
    for kind, tables in groups.items():
        for asked in tables.values():
            count = min(MOST_OF_TABLE, len(asked))
            weight = WEIGHTS[kind] / len(tables) / count
            chosen = rng.choice(len(asked), count, replace=False).tolist()
            drawn += [(asked[at], weight) for at in chosen]
    return drawn


def search(runs: Mapping[str, Prepared], start: Priors, tries: int, seed: int = 0) -> Priors:
    """Vary expectations at random; keep what makes what was left out more likely."""
    rng = np.random.default_rng(seed)
    where = positions_of(start)
    asked, weights = zip(*draw_questions(runs, rng), strict=True)
    begin = numbers(start, where)

    def worth(at: np.ndarray) -> float:
        expected = with_numbers(start, where, at)
        predicted = [fold_of(runs, question, expected, every=False) for question in asked]
        return likelihood(predicted, weights) - PULL * float(np.sum((at - begin) ** 2))

    best, most, step, since = begin, worth(begin), 0.4, 0
    for _ in range(tries):
        chosen = rng.choice(len(where), rng.integers(1, 5), replace=False)
        candidate = best.copy()
        candidate[chosen] += rng.normal(0.0, step, len(chosen))
        now = worth(candidate)
        if now > most:
            best, most, since = candidate, now, 0
        else:
            since += 1
        step, since = (0.7 * step, 0) if since > 40 else (step, since)
        if step < 0.03:
            break
    return with_numbers(start, where, best)


Answers = Mapping[Kind, Sequence[Fold]]


def answers(runs: Mapping[str, Prepared], expected: Priors) -> dict[Kind, list[Fold]]:
    """Predictions of everything that may be asked, by kind."""
    by_kind: dict[Kind, list[Fold]] = {}
    for question in questions(runs):
        by_kind.setdefault(question.kind, []).append(fold_of(runs, question, expected))
    return by_kind


def predict_unseen(runs: Mapping[str, Prepared], start: Priors, tries: int) -> Answers:
    """Predict each kind of hardware with expectations that have not seen it."""
    by_kind: dict[Kind, list[Fold]] = {}
    for hardware in sorted({run.hardware for run in runs.values()}):
        others = {name: run for name, run in runs.items() if run.hardware != hardware}
        own = {name: run for name, run in runs.items() if run.hardware == hardware}
        expected = search(others, start, tries)
        wide = widening_of(answers(others, expected))
        for kind, folds in answers(own, expected).items():
            widened = [replace(fold, deviation=wide * fold.deviation) for fold in folds]
            by_kind.setdefault(kind, []).extend(widened)
    return by_kind


def widening_of(predicted: Answers) -> float:
    """Factor on deviations with which intervals would hold 80 % of the rows of both bands.

    Of the questions about other sweeps; every table counts the same, as in `reports.validation`.
    """
    factors = [1.0]
    for large in (True, False):
        away = [
            (np.abs(part.away), weights)
            for kind, folds in predicted.items()
            if WEIGHTS[kind] == 1.0
            for part, weights in _parts(folds, large=large)
        ]
        if away:
            values, even = (np.concatenate(each) for each in zip(*away, strict=True))
            factors.append(weighted_quantile(values, even, 0.8) / DRAWN)
    return float(np.ceil(20 * max(factors)) / 20)


def _parts(folds: Sequence[Fold], *, large: bool) -> list[tuple[Fold, np.ndarray]]:
    """Rows of a band and their weights, which sum to one in every table."""
    parts = [part for fold in folds if len((part := fold.only(large=large)).nbytes)]
    counts: Counter[str] = Counter()
    for part in parts:
        counts[part.table] += len(part.nbytes)
    return [(part, np.full(len(part.nbytes), 1.0 / counts[part.table])) for part in parts]


def show(predicted: Answers, wide: float) -> None:
    """Print errors and coverage by what was measured and by size."""
    head = ("sweeps", 8), ("without", 18), ("with profile", 18), ("held", 7), ("wide", 7)
    print("predicted from".ljust(26) + "".join(f"{text:>{width}}" for text, width in head))  # noqa: T201  (a script's output)
    for kind, folds in predicted.items():
        for large in (True, False):
            if parts := _parts(folds, large=large):
                print(_line(f"{kind}{'' if large else ', below'}", parts, wide))  # noqa: T201  (a script's output)


def _line(label: str, parts: Sequence[tuple[Fold, np.ndarray]], wide: float) -> str:
    even = np.concatenate([weights for _, weights in parts])
    cells = []
    for before in (True, False):
        errors = np.concatenate([part.errors(before=before) for part, _ in parts])
        median, most = (100 * weighted_quantile(errors, even, share) for share in (0.5, 0.9))
        cells.append(f"{median:.1f} / {most:.1f} %")
    away = np.concatenate([part.away for part, _ in parts])
    deviation = np.concatenate([part.deviation for part, _ in parts])
    held = 100 * np.average(np.abs(away) < wide * WITHIN, weights=even)
    width = 200 * wide * WITHIN * weighted_quantile(deviation, even, 0.5)
    left, right = cells
    return f"{label:26}{len(parts):8}{left:>18}{right:>18}{held:6.0f}%{width:6.0f}%"


def format_priors(expected: Priors, runs: Mapping[str, Prepared]) -> str:
    """The file's text."""
    tree = expected.model_dump()
    lines = [
        "# What a fit of sweeps expects before it sees data; made by",
        "# reports/calibration/search_priors.py. Deviations are of logarithms: 0.1 is about 10 %.",
        "levers:",
    ]
    for name, prior in tree["levers"].items():
        inner = ", ".join(f"{field}: {value:g}" for field, value in prior.items() if value)
        lines.append(f"  {name}: {{{inner}}}")
    for section in ("left", "runs"):
        lines.append(f"{section}:")
        lines += [f"  {name}: {value:.10g}" for name, value in tree[section].items()]
    count = len({question.name for question in questions(runs)})
    tables, kinds = (
        {getattr(run, name) for run in runs.values()} for name in ("table", "hardware")
    )
    source = (
        f"likeliest of {count} recorded sweeps ({len(tables)} sources, {len(kinds)} kinds of "
        "hardware) left out, each predicted from another run, another collective, other ranks or "
        "other sizes of the same hardware, with constants fitted without this kind of machine; "
        "widened until 80 % intervals held 80 % of their times over both bands of size; "
        "assumption: turn_bytes, bulk_bytes, freedom, odd, open, tails; level: 0, because with any "
        "other sizes far from those measured are predicted worse; start: one process on 2 to 12 "
        "GPUs, 4.3 to 6.0 us for each"
    )
    return "\n".join([*lines, f'source: "{source}"', ""])


def main() -> int:
    """Print, search, write."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--tries", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--unseen", action="store_true")
    parser.add_argument("--cache", type=Path)
    arguments = parser.parse_args()
    if arguments.cache and arguments.cache.exists():
        runs: dict[str, Prepared] = pickle.loads(arguments.cache.read_bytes())  # noqa: S301  (our own)
    else:
        runs = prepare(arguments.data)
        if arguments.cache:
            arguments.cache.write_bytes(pickle.dumps(runs))
    expected = shipped_priors()
    if arguments.unseen:
        show(predict_unseen(runs, expected, arguments.tries), 1.0)
    if arguments.tries:
        expected = search(runs, expected, arguments.tries)
    predicted = answers(runs, expected)
    wide = widening_of(predicted)
    runs_now = expected.runs.model_copy(update={"widened": wide})
    expected = expected.model_copy(update={"runs": runs_now})
    show(predicted, wide)
    text = format_priors(expected, runs)
    print(text)  # noqa: T201  (a script's output)
    if arguments.write:
        folder = HERE.parents[1] / "perfmodel" / "calibrate" / "transfer"
        (folder / "priors.yaml").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
