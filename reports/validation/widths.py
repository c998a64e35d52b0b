"""How much wider intervals of collectives have to be to hold what strangers measured.

    python -m reports.validation.widths

Reads the ledger of first predictions and writes ``strangers.yaml`` beside NCCL's numbers: factors
by which intervals are wider on either side than those in ``spread.yaml``, which come from records
in view. Where a mechanism is another one since, what was predicted first says nothing of it: those
sweeps of data/strangers are predicted again. With each table left out in turn, 77 to 83 % of its
lines lie inside, by class and band; with a profile, 77 to 79 %.

What steps of whole models need stands by hand in ``perfmodel/workload/compute_spread.yaml``, as
`frameworks`; `needed_widths` says how much.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

import perfmodel
from perfmodel.files import read_yaml, write_atomically
from perfmodel.library.corrections import BANDS
from perfmodel.validate.scores import weighted_quantile
from reports.validation.entries.entry import Entry, Prediction, read_entries, rows_of
from reports.validation.entries.sweeps import QUANTITIES, sweeps_in

INSIDE = 0.8
CLASSES = {
    "hardware": {"NVLink", "PCIe", "InfiniBand"},
    "roce": {"RoCE"},
    "efa": {"EFA"},
    "software": {"EFA", "TCP", "GPUDirect-TCPX", "Omni-Path"},
}
"""Classes of the ledger by margin. TCP, TCPX and Omni-Path have one or two tables each, and EFA's
beside them."""

POWERS: Mapping[str, Mapping[str, float]] = {
    "0.13.0": {},
    "0.14.0": {"latency": 1.3, "buckets": 1.4, "bandwidth": 2.3},
    "0.15.0": {},
}
"""Of the factors of ``spread.yaml``, by which each version's intervals were wider already."""
MARGINS: Mapping[str, Mapping[str, Mapping[str, float]]] = {
    "0.15.0": {
        "hardware": {"latency": 1.02, "buckets": 1.1, "bandwidth": 1.12},
        "roce": {"latency": 1.38, "buckets": 1.0, "bandwidth": 1.0},
        "efa": {"latency": 1.1, "buckets": 1.02, "bandwidth": 1.0},
        "software": {"latency": 1.11, "buckets": 1.44, "bandwidth": 1.24},
        "profile": {"latency": 1.21, "buckets": 1.43, "bandwidth": 1.36},
    },
}
"""By what each later version's intervals were wider, by class and band: its ``strangers.yaml``."""

REPLACED = {("0.13.0", "PCIe"), ("0.14.0", "PCIe"), ("0.14.0", "EFA")}
"""Versions and classes whose mechanism is another one since: copies through host memory share a
link for each NUMA domain from 0.14.0 on, but not on newer CPUs from 0.15.0 on, which tells EFA's
newer adapters apart, too."""

SOURCE = "reports/validation/first_predictions.csv, and sweeps of data/strangers predicted again"
STRANGERS = Path(__file__).parent / "data" / "strangers"
FILE = Path(perfmodel.__file__).parent / "library" / "nccl" / "strangers.yaml"


def beyond(prediction: Prediction, power: float = 1.0, margin: float = 1.0) -> float:
    """How far what was measured lies beyond the end of its side; a logarithm, below zero inside.

    `power`: of the factor by which the end is away from the prediction, that it was widened by.
    `margin`: factor that it was widened by beside.

    Examples
    --------
    >>> line = Prediction("collective", "TCP", "table", "row", "time", "s", 2.0, 1.0, 4.0, 16.0)
    >>> round(math.exp(beyond(line)), 3)
    4.0
    >>> round(math.exp(beyond(line, 2.0)), 3)
    5.657
    >>> round(math.exp(beyond(line, margin=2.0)), 3)
    8.0
    """
    end = prediction.high if prediction.measured > prediction.predicted else prediction.low
    assert end is not None
    return (
        abs(math.log(prediction.measured / prediction.predicted))
        - abs(math.log(end / prediction.predicted)) / power
        + math.log(margin)
    )


def margins(
    entries: Iterable[Entry], again: Iterable[Prediction] = ()
) -> Mapping[str, Mapping[str, float]]:
    """Factors by class and band; eight tenths lie inside then, each table weighing the same.

    No interval gets narrower. `again`: sweeps whose mechanism was replaced, predicted by the one
    that there is, with intervals as ``spread.yaml`` has them.
    """
    known = [entry for entry in entries if entry.prediction.high is not None]
    first = [(line, beyond(line)) for line in again]
    profiled = []
    for entry in known:
        line, version = entry.prediction, entry.origin.version
        if line.quantity == QUANTITIES["datasheet"] and (version, line.group) not in REPLACED:
            power = POWERS[version].get(line.band, 1.0)
            first.append((line, beyond(line, power, _margin_then(version, _class_of(line), line))))
        elif line.quantity == QUANTITIES["transferred"]:
            profiled.append((line, beyond(line, margin=_margin_then(version, "profile", line))))
    by_name = {name: [e for e in first if e[0].group in own] for name, own in CLASSES.items()}
    return {
        name: {band: _margin([e for e in own if e[0].band == band]) for band, _ in BANDS}
        for name, own in (by_name | {"profile": profiled}).items()
    }


def _class_of(line: Prediction) -> str:
    """Class of a line by the datasheet; "" of what is no collective."""
    return next((name for name, own in CLASSES.items() if line.group in own), "")


def _margin_then(version: str, name: str, line: Prediction) -> float:
    """By what the intervals of a class were wider already when a version predicted a line."""
    return MARGINS[version][name][line.band] if name and version in MARGINS else 1.0


def _margin(lines: Sequence[tuple[Prediction, float]]) -> float:
    tables = [line.table for line, _ in lines]
    weights = np.array([1 / tables.count(table) for table in tables])
    logs = np.array([log for _, log in lines])
    return round(math.exp(max(0.0, weighted_quantile(logs, weights, INSIDE))), 2)


def predicted_again(entries: Iterable[Entry], folder: Path = STRANGERS) -> list[Prediction]:
    """Predict the sweeps whose mechanism was replaced once more; intervals without margins."""
    groups = {
        entry.prediction.table: entry.prediction.group
        for entry in entries
        if (entry.origin.version, entry.prediction.group) in REPLACED
    }
    now, found = read_yaml(FILE), []
    for candidate in sweeps_in(folder, transfer=False).candidates:
        lines = candidate.predict() if candidate.table in groups else ()
        for line in lines if not isinstance(lines, str) else ():
            wider = now[_class_of(line)][line.band]
            assert line.low is not None
            assert line.high is not None
            found.append(replace(line, low=line.low * wider, high=line.high / wider))
    return found


# ---------------------------------------------------------------- steps

STEP_VERSIONS = ("0.14.0", "0.15.0", "0.16.0")
"""Versions whose intervals of steps had no width for what frameworks do where models are whole."""
WITH_WIDTH = frozenset({"1c7e59b2"})
"""Commits of the last of them that had it."""
ACCELERATORS = Path(__file__).parents[2] / "topologies" / "accelerators.yaml"
WHOLE = ("one GPU", "sharded")
"""Classes of steps whose models are not split over GPUs."""


def whole_steps(entries: Iterable[Entry]) -> list[Prediction]:
    """Find the first predictions of steps of whole models on GPUs, with intervals."""
    others = _tables_of_accelerators()
    return [
        entry.prediction
        for entry in entries
        if entry.origin.version in STEP_VERSIONS
        and entry.origin.commit not in WITH_WIDTH
        and entry.prediction.kind == "step"
        and entry.prediction.group in WHOLE
        and entry.prediction.high is not None
        and entry.prediction.table not in others
    ]


def _tables_of_accelerators() -> set[str]:
    """Tables of strangers that are not about GPUs, whose steps have a width of their own."""
    accelerators = read_yaml(ACCELERATORS)["gpus"]
    return {
        cells["table"]
        for file in sorted(STRANGERS.parent.glob("strangers*/strategies/stated_steps.csv"))
        for cells in rows_of(file)
        if cells["gpu"] in accelerators
    }


def width_beside(line: Prediction) -> float:
    """Half width of a logarithm that holds the measured step if it adds to the interval's square.

    Examples
    --------
    >>> round(width_beside(Prediction("step", "sharded", "a", "b", "c", "s", 1, 0.8, 1.25, 1.1)), 3)
    0.0
    >>> round(width_beside(Prediction("step", "sharded", "a", "b", "c", "s", 1, 0.8, 1.25, 1.4)), 3)
    0.252
    """
    end = line.high if line.measured > line.predicted else line.low
    assert end is not None
    away, held = (math.log(each / line.predicted) for each in (line.measured, end))
    return math.sqrt(max(0.0, away**2 - held**2))


def needed_widths(lines: Sequence[Prediction]) -> tuple[float, float]:
    """Widths that eight tenths of the lines need: each table weighing the same, and each line."""
    tables = Counter(line.table for line in lines)
    needed = np.array([width_beside(line) for line in lines])
    by_table = np.array([1 / tables[line.table] for line in lines])
    return (
        weighted_quantile(needed, by_table, INSIDE),
        weighted_quantile(needed, np.ones(len(lines)), INSIDE),
    )


def main() -> None:
    """Write the file."""
    entries = [entry for entry in read_entries() if entry.origin.version in POWERS]
    found = margins(entries, predicted_again(entries)).items()
    lines = [
        "# By what intervals are wider on either side than spread.yaml has them, so that they hold",
        "# eight tenths of first predictions of strangers' records, each table weighing the same:",
        "# where hardware moves the bytes (NVLink, PCIe, InfiniBand), of RoCE, of EFA, and where",
        "# software does (TCP, TCPX, TCPXO, Omni-Path); and with a profile of another machine.",
        "# Made by python -m reports.validation.widths; do not edit.",
        f'source: "{SOURCE}; by {", ".join(POWERS)}"',
        *(f"{name}: {{{', '.join(f'{b}: {m}' for b, m in own.items())}}}" for name, own in found),
    ]
    write_atomically(FILE, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
