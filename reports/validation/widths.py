"""How much wider intervals of collectives have to be to hold what strangers measured.

    python -m reports.validation.widths

Reads the ledger of first predictions and writes ``strangers.yaml`` beside NCCL's numbers: the
powers of the factors in ``spread.yaml``, which come from records in view.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np

import perfmodel
from perfmodel.files import write_atomically
from perfmodel.library.corrections import BANDS
from perfmodel.validate.scores import weighted_quantile
from reports.validation.entries.entry import Prediction, read_entries
from reports.validation.entries.sweeps import QUANTITIES

INSIDE = 0.8
REPLACED = {"PCIe"}
"""Classes whose mechanism is another one since: copies through host memory share a link for each
NUMA domain from 0.14.0 on, and what 0.13.0 said of them says nothing of it."""
SOURCE = "reports/validation/first_predictions.csv, collectives but those over PCIe"
FILE = Path(perfmodel.__file__).parent / "library" / "nccl" / "strangers.yaml"


def reach(prediction: Prediction) -> float:
    """Logarithm of measured over predicted, in those from the prediction to the end of its side.

    Examples
    --------
    >>> line = Prediction("collective", "TCP", "table", "row", "time", "s", 2.0, 1.0, 4.0, 16.0)
    >>> reach(line)
    3.0
    """
    end = prediction.high if prediction.measured > prediction.predicted else prediction.low
    assert end is not None
    return math.log(prediction.measured / prediction.predicted) / math.log(
        end / prediction.predicted
    )


def widening(predictions: Iterable[Prediction]) -> Mapping[str, float]:
    """Powers of both factors by band; eight tenths lie inside then, each table weighing the same.

    No band gets narrower.
    """
    datasheet = [
        each
        for each in predictions
        if each.quantity == QUANTITIES["datasheet"]
        and each.high is not None
        and each.group not in REPLACED
    ]
    powers = {}
    for band, _ in BANDS:
        own = [each for each in datasheet if each.band == band]
        tables = [each.table for each in own]
        weights = np.array([1 / tables.count(table) for table in tables])
        reaches = np.array([reach(each) for each in own])
        powers[band] = max(1.0, round(weighted_quantile(reaches, weights, INSIDE), 2))
    return powers


def main() -> None:
    """Write the file."""
    predictions = [entry.prediction for entry in read_entries()]
    versions = sorted({entry.origin.version for entry in read_entries()})
    lines = [
        "# Powers of the factors in spread.yaml that hold eight tenths of first predictions of",
        "# strangers' records, by band, each table weighing the same. Made by",
        "# `python -m reports.validation.widths`; do not edit by hand.",
        f'source: "{SOURCE}, by {", ".join(versions)}"',
        *(f"{band}: {power}" for band, power in widening(predictions).items()),
    ]
    write_atomically(FILE, "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
