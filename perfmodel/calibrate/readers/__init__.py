"""Readers of what measuring tools write: nccl-tests, rccl-tests, nvbandwidth, p2p matrices."""

from perfmodel.calibrate.readers.detect import MeasurementFile, read_files, read_found
from perfmodel.calibrate.readers.sweep_records import LinkMatrix, Sweep, SweepRow

__all__ = ["LinkMatrix", "MeasurementFile", "Sweep", "SweepRow", "read_files", "read_found"]
