"""Read measurement files of any tool, recognised by their content."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.calibrate.readers.bandwidth_matrices import (
    is_matrices,
    is_nvbandwidth_json,
    read_matrices,
    read_nvbandwidth_json,
)
from perfmodel.calibrate.readers.log_lines import plain
from perfmodel.calibrate.readers.nccl_json import (
    is_nccl_json,
    is_rccl_json,
    read_nccl_json,
    read_rccl_json,
)
from perfmodel.calibrate.readers.nccl_text import is_nccl_text, read_nccl_text
from perfmodel.calibrate.readers.sweep_records import LinkMatrix, Sweep
from perfmodel.errors import Fault, InputError
from perfmodel.files import plain as plain_values
from perfmodel.files import read_text, validate_document
from perfmodel.measure.record import Measurement

KNOWN = (
    "what 'perfmodel measure', nccl-tests (text, -J), rccl-tests (text, -Z json), nvbandwidth "
    "(text, --json) or p2pBandwidthLatencyTest wrote"
)

_STATUS = re.compile(r"^\s*GPU\d+\s.*\b(?:OK|NS|CNS|GNS|TNS)\b", re.MULTILINE)
_PATHS = re.compile(r"^\s*GPU\d+\s.*\b(?:NV\d+|PIX|PXB|PHB|NODE|SYS)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class MeasurementFile:
    """Content of a file: a measurement of ours, or sweeps and matrices of one log."""

    file: str
    measurement: Measurement | None = None
    sweeps: tuple[Sweep, ...] = ()
    matrices: tuple[LinkMatrix, ...] = ()


def read_files(
    paths: Sequence[Path], *, op: str | None = None, ranks: int | None = None
) -> list[MeasurementFile]:
    """Read measurement files of any kind.

    Parameters
    ----------
    paths : sequence of Path
    op : str, optional
        The collective of tables that do not name theirs.
    ranks : int, optional
        How many ranks made tables that do not list theirs.

    Raises
    ------
    InputError
        Files of another kind, and everything that is wrong in the others; every fault of all
        files at once.
    """
    contents: list[MeasurementFile] = []
    faults: list[Fault] = []
    for path in paths:
        try:
            contents.append(read_found(read_text(path), path, op=op, ranks=ranks))
        except InputError as error:
            faults += error.located(str(path)).faults
    if faults:
        raise InputError(faults)
    return contents


def read_found(
    text: str, path: Path, *, op: str | None = None, ranks: int | None = None
) -> MeasurementFile:
    """Read one file's text.

    Raises
    ------
    InputError
        A file of another kind, or everything that is wrong in it.
    """
    file = str(path)
    if (documents := _json(text)) is not None:
        return _found_json(documents, path, op, ranks)
    if (reason := _unsupported_kind(text)) is not None:
        raise InputError(Fault("file", reason, KNOWN, file))
    sweeps = read_nccl_text(text, file, op=op, ranks=ranks) if is_nccl_text(text) else []
    matrices = read_matrices(text, file) if is_matrices(text) else []
    if not sweeps and not matrices:
        raise InputError(Fault("file", "text without a table or a matrix", KNOWN, file))
    return MeasurementFile(path.name, None, tuple(sweeps), tuple(matrices))


def _found_json(
    documents: list[object], path: Path, op: str | None, ranks: int | None
) -> MeasurementFile:
    file, first = str(path), documents[0]
    records: Any = first if len(documents) == 1 and isinstance(first, list) else documents
    if is_rccl_json(records):
        return MeasurementFile(
            path.name, sweeps=tuple(read_rccl_json(records, file, op=op, ranks=ranks))
        )
    if len(documents) == 1 and is_nccl_json(first):
        assert isinstance(first, dict)
        return MeasurementFile(path.name, sweeps=tuple(read_nccl_json(first, file, op=op)))
    if len(documents) == 1 and is_nvbandwidth_json(first):
        assert isinstance(first, dict)
        return MeasurementFile(path.name, matrices=tuple(read_nvbandwidth_json(first, file)))
    return MeasurementFile(path.name, validate_document(Measurement, first, file))


def _json(text: str) -> list[object] | None:
    """Documents of a text that begins as JSON does: one, or one after another; else None.

    Raises
    ------
    InputError
        It begins as JSON but is none: cut off.
    """
    start = text.lstrip("\ufeff \t\r\n")
    if not start.startswith(("{", "[{", "[\n", "[ ", "[]")):
        return None
    decoder, documents, at = json.JSONDecoder(), [], 0
    separator = re.compile(r"[ \t\r\n,]*")
    try:
        while at < len(start):
            document, at = decoder.raw_decode(start, at)
            documents.append(document)
            at = separator.match(start, at).end()  # type: ignore[union-attr]
    except json.JSONDecodeError as error:
        line = error.lineno
        fault = Fault("file", f"no JSON ({error.msg}): cut off?", KNOWN, line=line)
        raise InputError(fault) from None
    except RecursionError:
        raise InputError(Fault("file", "JSON nested too deeply", KNOWN)) from None
    except ValueError as error:  # a number of thousands of digits
        raise InputError(Fault("file", str(error).partition(";")[0], KNOWN)) from None
    plain_values(documents)  # refuses what is beyond the bounds of any file
    return documents


def _unsupported_kind(text: str) -> str | None:
    """Kind of a text that is no measurement, as far as it is recognised; else None."""
    start = text.lstrip("\ufeff \t\r\n")[:400].lower()
    lines = "\n".join(plain(line) for line in text.splitlines()[:400])
    is_measurement = is_nccl_text(text) or is_matrices(text)
    page = "<html" in start or start.startswith("<!doctype html")
    status, paths = (bool(kind.search(lines)) and not is_measurement for kind in (_STATUS, _PATHS))
    allowed = "the matrix of 'nvidia-smi topo -p2p': what GPUs may do, without any number"
    reasons = {
        "an empty file": not start,
        "an HTML page; save the log itself ('Raw')": page,
        "XML; a topology is for 'perfmodel topology import'": start.startswith("<"),
        allowed: status and not paths,
        "the matrix of 'nvidia-smi topo -m'; it is for 'perfmodel topology import'": paths,
        "a binary file": "\x00" in text,
    }
    return next((reason for reason, holds in reasons.items() if holds), None)
