"""Read measurement files of any tool, recognised by their content."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from perfmodel.calibrate.readers.bandwidth_matrices import (
    OTHER_TOOL,
    is_matrix_log,
    is_nvbandwidth_json,
    read_matrix_log,
    read_nvbandwidth_json,
)
from perfmodel.calibrate.readers.nccl_json import (
    is_nccl_json,
    is_rccl_json,
    read_nccl_json,
    read_rccl_json,
)
from perfmodel.calibrate.readers.nccl_text import is_nccl_log, read_nccl_log
from perfmodel.calibrate.readers.sweep_records import LinkMatrix, Sweep
from perfmodel.errors import Fault, InputError, raise_faults, refuse_if
from perfmodel.files import collect_faults, validate_document
from perfmodel.files import plain as plain_values
from perfmodel.files.pasted_text import (
    MOST_LINES,
    PRINTED,
    PRINTED_PYTHON,
    clean_characters,
    clean_lines,
    read_pasted_text,
    unwrapped,
    wrapped_width,
)
from perfmodel.measure.job import Measurement
from perfmodel.memo import first_applying

KNOWN = (
    "what 'perfmodel measure', nccl-tests (text, -J), rccl-tests (text, -Z json), nvbandwidth "
    "(text, --json) or p2pBandwidthLatencyTest wrote"
)

LARGEST_JSON = 8 * 2**20
"""Characters: nccl-tests on ten thousand ranks writes a quarter of this. In memory it is larger."""

_JSON_BEGIN = re.compile(r"\{\s*(?:[\"'}]|$)|\[\s*(?:[{\[\]\"]|$)")
"""Not a time in brackets before a line, nor Jira's ``{code}``."""


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
        with collect_faults(faults, str(path)):
            contents.append(read_found(read_pasted_text(path), path, op=op, ranks=ranks))
    raise_faults(faults)
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
    lines = text.count("\n")
    refuse_if(lines > MOST_LINES, "file", f"{lines:,} lines", f"at most {MOST_LINES:,}", str(path))
    cleaned = clean_characters(text)
    if (documents := _json(text, clean_lines(cleaned))) is not None:
        return _found_json(documents, path, op, ranks)
    width, joined = wrapped_width(cleaned), None
    if width:
        with suppress(InputError):
            joined = _found_text(unwrapped(cleaned, width), path, op, ranks)
    try:
        plain = _found_text(cleaned, path, op, ranks)
    except InputError as error:
        if joined:
            return joined
        if not width:
            raise
        first = error.faults[0]
        problem = f"{first.found}; its lines seem to be wrapped at {width} columns"
        raise InputError([replace(first, found=problem), *error.faults[1:]]) from None
    return joined if joined and _says_more(joined, plain) else plain


def _says_more(joined: MeasurementFile, plain: MeasurementFile) -> bool:
    """Whether lines that were joined tell the same times, and as much or more of the machine."""

    def told(sweep: Sweep) -> int:
        return len(sweep.env) + sum(map(bool, (sweep.nodes, sweep.devices, sweep.version)))

    pairs = list(zip(joined.sweeps, plain.sweeps, strict=False))
    return (
        len(joined.sweeps) == len(plain.sweeps)
        and len(joined.matrices) == len(plain.matrices)
        and all((a.op, a.ranks, a.rows) == (b.op, b.ranks, b.rows) for a, b in pairs)
        and all(told(a) >= told(b) for a, b in pairs)
    )


def _found_text(text: str, path: Path, op: str | None, ranks: int | None) -> MeasurementFile:
    """Read tables and matrices of a text without colours."""
    file, lines = str(path), clean_lines(text)
    is_sweeps, is_links = is_nccl_log(lines), is_matrix_log(lines)
    if not is_sweeps and not is_links:
        raise InputError(Fault("file", _unsupported_kind(text, lines), KNOWN, file))
    sweeps = read_nccl_log(lines, file, op=op, ranks=ranks) if is_sweeps else []
    matrices = dict.fromkeys(read_matrix_log(lines, file) if is_links else ())  # each once
    return MeasurementFile(path.name, None, tuple(sweeps), tuple(matrices))


def _found_json(
    documents: list[Any], path: Path, op: str | None, ranks: int | None
) -> MeasurementFile:
    file, found = str(path), MeasurementFile(path.name)
    if is_rccl_json(documents):
        return replace(found, sweeps=tuple(read_rccl_json(documents, file, op=op, ranks=ranks)))
    if all(map(is_nccl_json, documents)):
        runs = (read_nccl_json(run, file, op=op) for run in documents)
        return replace(found, sweeps=tuple(chain.from_iterable(runs)))
    if all(map(is_nvbandwidth_json, documents)):
        tests = (read_nvbandwidth_json(run, file) for run in documents)
        return replace(found, matrices=tuple(chain.from_iterable(tests)))
    refuse_if(not isinstance(documents[0], dict), "file", PRINTED, KNOWN, file)
    return replace(found, measurement=validate_document(Measurement, documents[0], file))


def _json(text: str, lines: Sequence[str]) -> list[object] | None:
    """Documents of a text that begins as JSON does: one, or one after another; else None.

    Raises
    ------
    InputError
        It begins as JSON but is none: cut off.
    """
    start = text.lstrip("\ufeff \t\r\n")
    if not _JSON_BEGIN.match(start):
        start = "\n".join(lines).lstrip()  # quoted, fenced, or behind prefixes
    if not _JSON_BEGIN.match(start):
        return None
    is_text = is_nccl_log(lines) or is_matrix_log(lines)  # of lines in JSON, or behind brackets
    size, most = f"JSON of {len(start) / 2**20:.0f} MiB", f"at most {LARGEST_JSON // 2**20} MiB"
    refuse_if(len(start) > LARGEST_JSON, "file", size, most)
    decoder, documents, at = json.JSONDecoder(), [], 0
    separator = re.compile(r"[ \t\r\n,]*")
    try:
        while at < len(start):
            document, at = decoder.raw_decode(start, at)
            documents.append(document)
            at = separator.match(start, at).end()  # type: ignore[union-attr]
    except RecursionError:
        raise InputError(Fault("file", "JSON nested too deeply", KNOWN)) from None
    except ValueError as error:  # no JSON, or a number of thousands of digits
        if is_text:
            return None
        problem, line = str(error).partition(";")[0], getattr(error, "lineno", None)
        if isinstance(error, json.JSONDecodeError):
            is_printed = re.match(PRINTED_PYTHON, start, re.MULTILINE)
            problem = PRINTED if is_printed else f"no JSON ({error.msg}): cut off?"
        raise InputError(Fault("file", problem, KNOWN, line=line)) from None
    plain_values(documents)  # refuses what is beyond the bounds of any file
    first = documents[0]
    listed = first if len(documents) == 1 and isinstance(first, list) and first else documents
    is_known = is_rccl_json(listed) or any(
        all(map(is_kind, listed)) for is_kind in (is_nccl_json, is_nvbandwidth_json)
    )
    return None if is_text and not is_known else listed


_HINTS = (
    (re.compile(PRINTED_PYTHON, re.MULTILINE), PRINTED),
    (
        re.compile(r"^\s*GPU\d+\s.*\b(?:NV\d+|PIX|PXB|PHB|NODE|SYS)\b", re.MULTILINE),
        "the matrix of 'nvidia-smi topo -m'; it is for 'perfmodel topology import'",
    ),
    (
        re.compile(r"^\s*GPU\d+\s.*\b(?:OK|NS|CNS|GNS|TNS)\b", re.MULTILINE),
        "the matrix of 'nvidia-smi topo -p2p': what GPUs may do, without any number",
    ),
    (
        re.compile(r"ROCm System Management|AMD SMI|\bXGMI\b"),
        "what rocm-smi or amd-smi says of AMD GPUs: paths without any number",
    ),
    (OTHER_TOOL, "a matrix of nvloom, whose copies by kernels say nothing of a single link"),
    (
        re.compile(r"P2P \(Peer-to-Peer\) GPU Bandwidth|CAN(?:NOT)? Access Peer Device"),
        "p2pBandwidthLatencyTest without a matrix: copy it whole",
    ),
    (
        re.compile(r"Avg bus bandwidth|nccl-tests version|# Using devices|nThread \d"),
        "nccl-tests without a table: copy it whole",
    ),
    (
        re.compile(r'^(Switch|Ca)\s+\d+\s+"[SH]-', re.MULTILINE),
        "ibnetdiscover; it is for 'perfmodel topology import'",
    ),
    (
        re.compile(
            r"command not found|No devices were found|NVIDIA-SMI has failed|CXI alloc failed|"
            r"Traceback \(most recent call last\)|srun: error|orterun was unable"
        ),
        "an error message",
    ),
)


def _unsupported_kind(text: str, lines: Sequence[str]) -> str:
    """Name the kind of a text that is no measurement, as far as it is recognised."""
    start, body = text.lstrip()[:400].lower(), "\n".join(lines[:4000])
    is_page = "<html" in start or start.startswith("<!doctype html")
    return first_applying(
        (not start, "an empty file"),
        (is_page, "an HTML page; save the log itself ('Raw')"),
        (start.startswith("<"), "XML; a topology is for 'perfmodel topology import'"),
        *((kind.search(body), reason) for kind, reason in _HINTS),
        (True, "text without a table or a matrix"),
    )
