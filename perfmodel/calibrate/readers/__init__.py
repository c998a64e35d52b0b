"""Readers of what measuring tools write: nccl-tests, rccl-tests, nvbandwidth, p2p matrices."""

from perfmodel.calibrate.readers.bandwidth_matrices import read_matrices, read_nvbandwidth_json
from perfmodel.calibrate.readers.detect import MeasurementFile, read_files, read_found
from perfmodel.calibrate.readers.nccl_json import read_nccl_json, read_rccl_json
from perfmodel.calibrate.readers.nccl_text import read_nccl_text
from perfmodel.calibrate.readers.sweep_records import LinkMatrix, Sweep, SweepRow

__all__ = [
    "LinkMatrix",
    "MeasurementFile",
    "Sweep",
    "SweepRow",
    "read_files",
    "read_found",
    "read_matrices",
    "read_nccl_json",
    "read_nccl_text",
    "read_nvbandwidth_json",
    "read_rccl_json",
]
