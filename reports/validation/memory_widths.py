"""How wide intervals of peak memory are: what measured peaks of other tables differ by.

    python -m reports.validation.memory_widths

Predicts every recorded peak, prints the errors of each table, and writes ``memory_spread.yaml``
beside the rules of memory. Parameters, gradients, optimizer states and buckets are known; what lies
beside them is off by factors, of which eight tenths lie between both ends, each table weighing the
same. Nothing else of memory is fitted to peaks. Peaks that were predicted first lie farther away,
by what frameworks do and state nowhere: a width between those that eight tenths of them need, each
table weighing the same and each peak.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import perfmodel
from perfmodel.errors import InputError
from perfmodel.files import write_atomically
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.steps.sized_job import size_job
from perfmodel.studies.run.usage import Memory
from perfmodel.validate.scores import weighted_quantile
from reports.experiments.one_gpu.predict import scenario_of
from reports.validation.entries.entry import Entry, Prediction, read_entries
from reports.validation.entries.own_runs import FOLDER
from reports.validation.run import records_folder
from reports.validation.strategies.predicted_step import GB, predict_step
from reports.validation.strategies.stated_step import read_step
from reports.validation.strategies.step_tables import STEPS
from reports.validation.widths import STEP_VERSIONS, needed_widths

ENDS = (0.1, 0.9)
STRANGERS = Path(__file__).parent / "data"
"""Folder of the records that the ledger's versions predicted first."""
OWN, NODE = "one_gpu, h100", "1x H100 SXM"
FILE = Path(perfmodel.__file__).parent / "training" / "memory_spread.yaml"


@dataclass(frozen=True, slots=True)
class Peak:
    """A measured peak and what was predicted of it; bytes.

    `states_bytes`: the part of both that is known.
    """

    table: str
    measured_bytes: float
    predicted_bytes: float
    states_bytes: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_bytes / self.measured_bytes - 1

    @property
    def factor(self) -> float:
        """Measured over predicted beside what is known; 0 where that is more than was measured."""
        beside = max(0.0, self.measured_bytes - self.states_bytes)
        return beside / (self.predicted_bytes - self.states_bytes)


def recorded_peaks() -> Iterator[Peak]:
    """Predict the published peaks, and those of our own runs on one GPU.

    Rows that no scenario can have are left out, as the ledger leaves them out.
    """
    strangers = sorted(STRANGERS.glob("strangers*/strategies/stated_steps.csv"))
    for cells in (row for path in (records_folder() / STEPS, *strangers) for row in _rows(path)):
        if not cells["peak_GB"]:
            continue
        with suppress(InputError):
            step = predict_step(read_step(cells))
            found = step.memory_bytes(cells["memory_kind"])
            memory = step.sized.memory()
            yield Peak(cells["table"], GB * float(cells["peak_GB"]), found, _states_bytes(memory))
    for cells in _rows(FOLDER / "measured" / "h100_steps.csv"):
        if cells["allocated_bytes"]:
            resolved = resolve_scenario(scenario_of(cells, NODE), None, "flow")
            memory = size_job(resolved, resolved.sizes[-1]).memory()
            measured = float(cells["allocated_bytes"])
            yield Peak(OWN, measured, memory.total_bytes, _states_bytes(memory))


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def _states_bytes(memory: Memory) -> float:
    states = memory.parameters_bytes + memory.gradients_bytes + memory.optimizer_bytes
    return states + memory.buckets_bytes


def spread_of(peaks: Sequence[Peak]) -> tuple[float, float]:
    """Both ends of the factors, each table weighing the same."""
    tables = [peak.table for peak in peaks]
    weights = np.array([1 / tables.count(table) for table in tables])
    factors = np.array([peak.factor for peak in peaks])
    low, high = (round(weighted_quantile(factors, weights, end), 2) for end in ENDS)
    return min(1.0, low), max(1.0, high)


def share_inside(peaks: Sequence[Peak]) -> float:
    """How many peaks lie between the ends of the other tables, each table weighing the same."""
    shares = []
    for table in sorted({peak.table for peak in peaks}):
        low, high = spread_of([peak for peak in peaks if peak.table != table])
        shares.append(np.mean([low <= p.factor <= high for p in peaks if p.table == table]))
    return float(np.mean(shares))


def first_peaks(entries: Iterable[Entry]) -> list[Prediction]:
    """Find the first predictions of peaks with intervals that had no such width."""
    return [
        entry.prediction
        for entry in entries
        if entry.origin.version in STEP_VERSIONS
        and entry.prediction.kind == "memory"
        and entry.prediction.high is not None
    ]


def main() -> None:
    """Print errors by table, and write the file."""
    peaks = list(recorded_peaks())
    for table in sorted({peak.table for peak in peaks}):
        errors = [peak.error for peak in peaks if peak.table == table]
        median, p90 = np.quantile(np.abs(errors), (0.5, 0.9))
        print(f"{table}: {len(errors)} peaks, {median:.1%}, {p90:.1%}; {np.median(errors):+.1%}")
    low, high = spread_of(peaks)
    first = first_peaks(read_entries())
    lines = [
        "# Measured over predicted memory beside parameters, gradients, optimizer states and",
        "# buckets: the 10th and the 90th percentile, each table weighing the same. Made by",
        "# `python -m reports.validation.memory_widths`; do not edit by hand.",
        f"low: {low}",
        f"high: {high}",
        "# half width of a logarithm: of all memory, beside them",
        f"frameworks: {sum(needed_widths(first)) / 2:.2f}",
        f'source: "{len(peaks)} peaks in {len({peak.table for peak in peaks})} tables;',
        f"  {math.floor(100 * share_inside(peaks))} % of them lie between the ends of the others;",
        f'  {len(first)} first predictions (reports/validation/first_predictions.csv)"',
    ]
    write_atomically(FILE, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
