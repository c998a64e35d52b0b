"""Search the priors of a fit of sweeps: perfmodel/calibrate/transfer/priors.yaml.

    python reports/calibration/search_priors.py DATA [--tries N] [--write] [--unseen] [--cache FILE]

DATA is a folder laid out as `perfmodel validate --data` wants it. Every sweep is predicted from the
other sweeps of the same hardware, collective and settings, at any scale (leave one out), with times
that are linear in the logarithms of the factors: within a percent of
`perfmodel.calibrate.transfer.fit`, a thousand times as quick. Prints how far these predictions are
from the data, and how often 80 % intervals hold them. With --tries, expectations are varied at
random and kept when sweeps left out become more likely (Student's t with 3 degrees of freedom, so
that a sweep that nothing explains counts little), with a pull towards where they began. Sweeps that
the model misses by more than a factor of two in the median are in the printed table, but not in
that search. Searched are the spreads; not searched are the sizes where they change, how far a
machine's spread may be from others' (open) and the degrees of freedom: leave-one-out does not tell
them. --write then writes priors.yaml, with intervals widened until they hold 80 %. --unseen also
searches once for every kind of hardware without its sweeps, and prints how these are then
predicted: what the search has gained by having seen them is not in that table. --cache keeps the
model's times and slopes for another try.
"""

from __future__ import annotations

import argparse
import pickle
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from calibration.leave_one_out import Fold, Prepared, fold_of, folds, prepare  # noqa: E402  (line above)
from perfmodel.calibrate.transfer.priors import Priors, shipped_priors  # noqa: E402
from perfmodel.validate.score.points import weighted_quantile  # noqa: E402

WITHIN = 1.2816
"""Standard deviations about zero that hold 80 % of a normal distribution."""

MISSED = np.log(2.0)
"""A sweep whose median is farther off than this, as a logarithm, tells of a missing mechanism."""

DRAWN = 1.21
"""The same of the 0.1 and 0.9 quantiles of 30 draws, between which `perfmodel validate` looks."""

PULL = 0.02
"""Likelihood lost per squared logarithm by which an expectation has moved."""

SHARES = {"alike", "other_op", "other_way", "networked"}
"""Expectations between 0 and 1; the others are above 0."""

FIXED = {"turn_bytes", "bulk_bytes", "freedom", "widened", "odd", "open", "start"}


class Position(NamedTuple):
    """Position of a number of the priors: section, factor or field, field of the factor or ""."""

    section: str
    name: str
    field: str = ""


def positions_of(expected: Priors) -> list[Position]:
    """Every expectation that may vary."""
    tree = expected.model_dump()
    positions = [Position("levers", name, field) for name, prior in tree["levers"].items()
             for field, value in prior.items() if value > 0]  # fmt: skip
    positions += [Position(section, name) for section in ("left", "runs") for name in tree[section]
              if name not in FIXED]  # fmt: skip
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


def likelihood(predicted: Sequence[Fold]) -> float:
    """Mean logarithm of the likelihood of a row left out; each sweep counts the same."""
    each = [
        np.mean(-np.log(fold.deviation) - 2.0 * np.log1p(fold.away**2 / 3.0)) for fold in predicted
    ]
    return float(np.mean(each))


def search(runs: Mapping[str, Prepared], start: Priors, tries: int, seed: int = 0) -> Priors:
    """Vary expectations at random; keep what makes sweeps left out more likely."""
    rng = np.random.default_rng(seed)
    where = positions_of(start)
    groups = folds(
        {name: run for name, run in runs.items() if np.median(np.abs(run.over)) < MISSED}
    )
    begin = numbers(start, where)

    def worth(at: np.ndarray) -> float:
        expected = with_numbers(start, where, at)
        predicted = [fold_of(runs, name, others, expected, every=False) for name, others in groups]
        return likelihood(predicted) - PULL * float(np.sum((at - begin) ** 2))

    best, most, step, since = begin, worth(begin), 0.4, 0
    for _ in range(tries):
        chosen = rng.choice(len(where), rng.integers(1, 5), replace=False)
        candidate = best.copy()
        candidate[chosen] += rng.normal(0.0, step, len(chosen))
        now = worth(candidate)
        best, most, since = (candidate, now, 0) if now > most else (best, most, since + 1)
        step, since = (0.7 * step, 0) if since > 40 else (step, since)
        if step < 0.03:
            break
    return with_numbers(start, where, best)


def predict_unseen(runs: Mapping[str, Prepared], start: Priors, tries: int) -> list[Fold]:
    """Predict each kind of hardware with expectations that have not seen it."""
    predicted = []
    for hardware in sorted({runs[name].hardware for name, _ in folds(runs)}):
        others = {name: run for name, run in runs.items() if run.hardware != hardware}
        expected = search(others, start, tries)
        wide = widening_of([fold_of(others, *group, expected) for group in folds(others)])
        own = [
            fold_of(runs, *group, expected)
            for group in folds(runs)
            if runs[group[0]].hardware == hardware
        ]
        predicted += [replace(fold, deviation=wide * fold.deviation) for fold in own]
    return predicted


def widening_of(predicted: Sequence[Fold]) -> float:
    """Factor on deviations with which intervals would hold 80 % of the rows of both bands.

    Each sweep counts the same, as in `perfmodel validate`. Rounded up: times are linear here.
    """
    factors = [1.0]
    for large in (True, False):
        parts = [part for fold in predicted if len((part := fold.only(large=large)).nbytes)]
        if parts:
            away = np.concatenate([np.abs(part.away) for part in parts])
            even = np.concatenate([np.full(len(part.away), 1.0 / len(part.away)) for part in parts])
            factors.append(weighted_quantile(away, even, 0.8) / DRAWN)
    return float(np.ceil(10 * max(factors)) / 10)


def show(predicted: Sequence[Fold], wide: float) -> None:
    """Print errors and coverage, sweep by sweep and in all."""
    print(f"{'sweep left out':34}{'datasheet':>16}{'transferred':>16}{'held':>7}   from 256 KiB on")  # noqa: T201  (a script's output)
    for name, folds_, large in [
        *(
            (fold.name if large else "  below", [fold], large)
            for fold in predicted
            for large in (True, False)
        ),
        ("all, every sweep the same", predicted, True),
        ("  below", predicted, False),
    ]:
        parts = [part for fold in folds_ if len((part := fold.only(large=large)).nbytes)]
        if parts:
            before, after = (_both(parts, before=which) for which in (True, False))
            held = np.mean([np.mean(np.abs(part.away) < wide * WITHIN) for part in parts])
            print(f"{name:34}{before:>16}{after:>16}{100 * held:6.0f}%")  # noqa: T201  (a script's output)


def _both(parts: Sequence[Fold], *, before: bool) -> str:
    errors = np.concatenate([part.errors(before=before) for part in parts])
    even = np.concatenate([np.full(len(part.nbytes), 1.0 / len(part.nbytes)) for part in parts])
    median, most = (100 * weighted_quantile(errors, even, share) for share in (0.5, 0.9))
    return f"{median:.1f} / {most:.1f} %"


def format_priors(expected: Priors, runs: Mapping[str, Prepared], count: int) -> str:
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
    kinds = len({run.hardware for run in runs.values()})
    source = (
        f"likeliest of {count} recorded sweeps left out, each predicted from the others of the "
        f"same hardware, collective and settings ({kinds} kinds of hardware in all); widened until "
        "80 % intervals held 80 % of their times in both bands of size; assumption: turn_bytes, "
        "bulk_bytes, freedom, odd, open; start: one process on 2 to 12 GPUs, 4.3 to 6.0 us for each"
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
    groups = folds(runs)
    predicted = [fold_of(runs, name, others, expected) for name, others in groups]
    wide = widening_of(predicted)
    runs_now = expected.runs.model_copy(update={"widened": wide})
    expected = expected.model_copy(update={"runs": runs_now})
    show(predicted, wide)
    text = format_priors(expected, {name: runs[name] for name, _ in groups}, len(groups))
    print(text)  # noqa: T201  (a script's output)
    if arguments.write:
        folder = HERE.parents[1] / "perfmodel" / "calibrate" / "transfer"
        (folder / "priors.yaml").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
