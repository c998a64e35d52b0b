"""Predicted beside measured: ``python -m reports.experiments.gloo_ddp.compare [FOLDER]``.

Reads what `run` recorded, predicts every training anew, and writes ``results.md``: errors of step
times, and what following perfmodel's recommendation cost against the best caps that were measured.
"""

from __future__ import annotations

import csv
import statistics
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from perfmodel.files.csv_rows import read_table
from perfmodel.simulate.uncontended import UncontendedTimer
from reports.validation.trainings.shaped_links import ShapedCluster, measured_links
from reports.validation.trainings.testbed import models_of, predicted_s

FOLDER = Path(__file__).with_name("testbed")
Row = dict[str, str]
RECOMMENDED = ("tune: uniform", "tune: list", "tune: integers")


@dataclass(frozen=True, slots=True)
class Trained:
    """One way to train, in all rounds.

    Parameters
    ----------
    row : mapping
        Of the first round.
    whys : frozenset of str
        Where its caps come from.
    rounds_ms : tuple of float
        Median step of each round.
    spread : float
        Half of what lies between the quartiles, of the median round; relative.
    predicted_ms : float
    """

    row: Row
    whys: frozenset[str]
    rounds_ms: tuple[float, ...]
    spread: float
    predicted_ms: float

    @property
    def measured_ms(self) -> float:
        """Median of the rounds."""
        return statistics.median(self.rounds_ms)

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_ms / self.measured_ms - 1

    @property
    def apart(self) -> float:
        """By how much rounds of the same training differ; relative."""
        return (max(self.rounds_ms) - min(self.rounds_ms)) / self.measured_ms


@dataclass(frozen=True, slots=True)
class Regret:
    """What a choice of caps cost on one net with one model.

    Parameters
    ----------
    net, model : str
    best_caps : str
        The quickest that was measured.
    best_ms : float
    noise : float
        How much two rounds of one training differ there: the largest but for one in ten.
    by_choice : mapping of str to float
        Step with that choice over the best one, less one.
    """

    net: str
    model: str
    best_caps: str
    best_ms: float
    noise: float
    by_choice: dict[str, float]


def trainings(folder: Path = FOLDER) -> list[Trained]:
    """Read and predict everything in a folder."""
    links = measured_links(read_table(folder / "linkcal.csv", []))
    models = models_of(read_table(folder / "models.csv", []))
    known: dict[ShapedCluster, UncontendedTimer] = {}
    found = []
    for rows in _grouped(folder):
        row = rows[0]
        rounds = sorted({one["round"]: float(one["iter_ms_med"]) for one in rows}.items())
        quartiles = [
            (float(one["iter_ms_p75"]) - float(one["iter_ms_p25"])) / float(one["iter_ms_med"])
            for one in rows
        ]
        found.append(
            Trained(
                row,
                frozenset(one["why"] for one in rows),
                tuple(ms for _, ms in rounds),
                statistics.median(quartiles) / 2,
                1e3 * predicted_s(row, models[row["model"]], links, known),
            )
        )
    return found


def _grouped(folder: Path) -> Iterable[list[Row]]:
    groups: dict[tuple[str, ...], list[Row]] = {}
    with (folder / "ddp_iters.csv").open() as file:
        for row in csv.DictReader(file):
            key = (net_of(row), row["model"], row["bucket_cap_mb"], row["accum"])
            groups.setdefault(key, []).append(row)
    return groups.values()


def net_of(row: Row) -> str:
    """Name of a net."""
    delay = f", {float(row['delay_us']) / 1e3:g} ms" if float(row["delay_us"]) else ""
    return f"{row['n']} hosts, {row['rate_mbit']} Mbit/s{delay}"


def regrets(found: Sequence[Trained]) -> list[Regret]:
    """Work out what each choice cost, on every net with every model."""
    cases: dict[tuple[str, str], list[Trained]] = {}
    for one in found:
        if one.row["accum"] == "1":
            cases.setdefault((net_of(one.row), one.row["model"]), []).append(one)
    return [_regret(net, model, tried) for (net, model), tried in cases.items()]


def _regret(net: str, model: str, tried: Sequence[Trained]) -> Regret:
    best = min(tried, key=lambda one: one.measured_ms)
    apart = sorted(one.apart for one in tried)
    by_choice = {}
    for why in RECOMMENDED:
        chosen = next((one for one in tried if why in one.whys), None)
        if chosen is not None:
            by_choice[why] = chosen.measured_ms / best.measured_ms - 1
    default = next(one for one in tried if one.row["bucket_cap_mb"] == "def")
    by_choice["default"] = default.measured_ms / best.measured_ms - 1
    noise = apart[-1 - len(apart) // 10]
    return Regret(net, model, best.row["bucket_cap_mb"], best.measured_ms, noise, by_choice)


# ---------------------------------------------------------------- words


def report(found: Sequence[Trained]) -> str:
    """Write the tables."""
    head = ["# Predicted beside measured", "", "By `compare.py`, from what `run.py` recorded.", ""]
    times = ["## Step times", "", *errors_table(found), ""]
    return "\n".join([*head, *times, "## Regret", "", *regret_table(regrets(found)), ""])


def errors_table(found: Sequence[Trained]) -> list[str]:
    """Errors by net, by model, and of all."""
    lines = [
        "| trainings | how many | median error | 90th percentile | largest | mean | rounds apart |",
        "|---|---|---|---|---|---|---|",
    ]
    groups: dict[str, list[Trained]] = {}
    for name_of in (lambda one: net_of(one.row), lambda one: one.row["model"]):
        named: Callable[[Trained], str] = name_of
        for one in found:
            groups.setdefault(named(one), []).append(one)
    groups["all"] = list(found)
    for name, some in groups.items():
        errors = sorted(abs(one.error) for one in some)
        apart = statistics.median(one.apart for one in some)
        mean = statistics.fmean(one.error for one in some)
        p90 = errors[min(len(errors) - 1, int(0.9 * len(errors)))]
        lines.append(
            f"| {name} | {len(some)} | {statistics.median(errors):.1%} | {p90:.1%} |"
            f" {errors[-1]:.1%} | {mean:+.1%} | {apart:.1%} |"
        )
    return lines


def regret_table(found: Sequence[Regret]) -> list[str]:
    """Regret by net and model, and of all."""
    choices = [*RECOMMENDED, "default"]
    lines = [
        "Step with a choice of caps over the quickest step that was measured there, less one.",
        "",
        f"| net | model | best caps measured | step | {' | '.join(choices)} | noise |",
        "|---|---|---|---|" + "---|" * (len(choices) + 1),
    ]
    for one in found:
        costs = " | ".join(f"{one.by_choice[c]:.1%}" if c in one.by_choice else "" for c in choices)
        caps = one.best_caps.replace("|", ", ")
        lines.append(
            f"| {one.net} | {one.model} | {caps} | {one.best_ms:.1f} ms | {costs} |"
            f" {one.noise:.1%} |"
        )
    for name, reduce in (("median", statistics.median), ("worst", max)):
        costs = " | ".join(
            f"{reduce([one.by_choice[c] for one in found if c in one.by_choice]):.1%}"
            for c in choices
        )
        lines.append(f"| **{name}** | | | | {costs} | {reduce([o.noise for o in found]):.1%} |")
    return lines


def main() -> None:
    """Compare a folder's records and write down what came out."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER
    text = report(trainings(folder))
    (folder.parent / "results.md").write_text(text)
    print(text)  # noqa: T201  (a command)


if __name__ == "__main__":
    main()
