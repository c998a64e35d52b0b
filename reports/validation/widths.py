"""How much wider intervals of collectives have to be to hold what strangers measured.

    python -m reports.validation.widths

Reads the ledger of first predictions and writes ``strangers.yaml`` beside NCCL's numbers: factors
by which intervals are wider on either side than those in ``spread.yaml``, which come from records
in view. With each table left out in turn, 68 to 80 % of its lines lie inside but for one band of
two tables. One power of the factors for all held 56 to 80 % of those moved by software, and all of
the others below 64 MiB; intervals above were up to four times as wide.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

import perfmodel
from perfmodel.files import write_atomically
from perfmodel.library.corrections import BANDS
from perfmodel.validate.scores import weighted_quantile
from reports.validation.entries.entry import Prediction, read_entries
from reports.validation.entries.sweeps import QUANTITIES

INSIDE = 0.8
HARDWARE = {"NVLink", "InfiniBand", "RoCE"}
"""Classes of the ledger whose bytes hardware moves; others are those of software."""

REPLACED = {"PCIe"}
"""Classes whose mechanism is another one since: copies through host memory share a link for each
NUMA domain from 0.14.0 on, and what 0.13.0 said of them says nothing of it."""
SOURCE = "reports/validation/first_predictions.csv, collectives but those over PCIe"
FILE = Path(perfmodel.__file__).parent / "library" / "nccl" / "strangers.yaml"


def beyond(prediction: Prediction) -> float:
    """How far what was measured lies beyond the end of its side; a logarithm, below zero inside.

    Examples
    --------
    >>> line = Prediction("collective", "TCP", "table", "row", "time", "s", 2.0, 1.0, 4.0, 16.0)
    >>> round(math.exp(beyond(line)), 3)
    4.0
    """
    end = prediction.high if prediction.measured > prediction.predicted else prediction.low
    assert end is not None
    return abs(math.log(prediction.measured / prediction.predicted)) - abs(
        math.log(end / prediction.predicted)
    )


def margins(predictions: Iterable[Prediction]) -> Mapping[str, Mapping[str, float]]:
    """Factors by class and band; eight tenths lie inside then, each table weighing the same.

    No interval gets narrower.
    """
    datasheet = [
        each
        for each in predictions
        if each.quantity == QUANTITIES["datasheet"]
        and each.high is not None
        and each.group not in REPLACED
    ]
    return {
        name: {
            band: _margin([e for e in datasheet if e.band == band and (e.group in HARDWARE) == own])
            for band, _ in BANDS
        }
        for name, own in (("hardware", True), ("software", False))
    }


def _margin(lines: Sequence[Prediction]) -> float:
    tables = [each.table for each in lines]
    weights = np.array([1 / tables.count(table) for table in tables])
    logs = np.array([beyond(each) for each in lines])
    return round(math.exp(max(0.0, weighted_quantile(logs, weights, INSIDE))), 2)


def main() -> None:
    """Write the file."""
    predictions = [entry.prediction for entry in read_entries()]
    found = margins(predictions).items()
    versions = sorted({entry.origin.version for entry in read_entries()})
    lines = [
        "# By what intervals are wider on either side than spread.yaml has them, so that they hold",
        "# eight tenths of first predictions of strangers' records, each table weighing the same:",
        "# where hardware moves the bytes (NVLink, PCIe, InfiniBand, RoCE), and software (EFA,",
        "# TCP, TCPX, TCPXO, Omni-Path). Made by python -m reports.validation.widths; do not edit.",
        f'source: "{SOURCE}, by {", ".join(versions)}"',
        *(f"{name}: {{{', '.join(f'{b}: {m}' for b, m in own.items())}}}" for name, own in found),
    ]
    write_atomically(FILE, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
