"""Files of measurements, read and written."""

from __future__ import annotations

from pathlib import Path

from perfmodel.files import load_document, write_json
from perfmodel.measure.job import Measurement


def write_measurement(measurement: Measurement, path: Path) -> None:
    write_json(path, measurement.model_dump())


def read_measurement(path: Path) -> Measurement:
    return load_document(Measurement, path)
