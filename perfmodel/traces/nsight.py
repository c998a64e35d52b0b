"""Nsight Systems' SQLite exports: kernels, launches, copies and NVTX ranges as columns of events.

Ranges are those of ``torch.autograd.profiler.emit_nvtx``: operators with their sequence numbers.
Tables are those of NVIDIA's exporter ("SQLite Schema Reference" of Nsight Systems), which makes
only those that it has rows for; times are nanoseconds.
"""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote

from perfmodel.traces.kineto.event_stream import first_bytes, refuse_trace, trace_fault
from perfmodel.traces.kineto.event_table import (
    LONGEST_NAME,
    MARKS,
    EventTable,
    TableBuilder,
    kept_fields,
)

SQLITE_BEGIN = b"SQLite format 3\0"
NANOSECOND_S = 1e-9
KERNELS = "CUPTI_ACTIVITY_KIND_KERNEL"
COPIES = {"CUPTI_ACTIVITY_KIND_MEMCPY": "Memcpy", "CUPTI_ACTIVITY_KIND_MEMSET": "Memset"}
PUSH_POP = (59, 70)
"""``eventType`` of a range with a begin and an end on one thread (NvtxPushPopRange, and that of
NVTXT files)."""

OPERATORS = (
    "aten::",
    "autograd::",
    "torch::",
    "c10d::",
    "torch.distributed",
    "nccl:",
    "record_param",
)
_RANGE = re.compile(
    r"(.*?)(?:, (?:stashed )?seq = (\d{1,18}))?(?:, op_id = \d+)?(?:, sizes = (.*?))?"
    r"(?:, input_op_ids = .*)?"
)
"""As torch/csrc/profiler/util.cpp puts them together (getNvtxStr)."""

MOST_NS = 1 << 62
"""Largest time: seventy years and more."""

_ALLOWED = "an export of Nsight Systems (nsys export --type sqlite) of a run under emit_nvtx()"


def is_sqlite(path: Path) -> bool:
    """Tell whether a file is a SQLite database."""
    return first_bytes(path, len(SQLITE_BEGIN)) == SQLITE_BEGIN


def read_nsight(path: Path) -> EventTable:
    """Read an export into columns.

    Raises `InputError`: another database, a damaged one, or one without kernels and ranges.
    """
    address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            return _Reader(path, database).read()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise trace_fault(path, f"a database that cannot be read ({error})", _ALLOWED) from None


class _Reader(TableBuilder):
    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        super().__init__(path, NANOSECOND_S)
        self.database = database
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {str(name) for (name,) in rows}

    def read(self) -> EventTable:
        """Read all tables."""
        refuse_trace(
            missing := sorted({KERNELS, "NVTX_EVENTS"} - self.tables),
            self.path,
            f"a database without {', '.join(missing)}",
            _ALLOWED,
        )
        self._require_one_process()
        texts = self._select("StringIds", "id", "value") if "StringIds" in self.tables else ()
        strings = {number: str(text) for number, text in texts}
        self._read_device(strings)
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
            for row in self._rows(table, "start", "end", "globalTid", "correlationId"):
                self._add("launch", "launch", *row)
        self._read_ranges(strings)
        return self.table(self._header())

    def _require_one_process(self) -> None:
        """Refuse the kernels of several ranks in one file: their correlations would be mixed up."""
        for column in sorted({"globalPid", "deviceId"} & self._columns_of(KERNELS)):
            query = f"SELECT COUNT(DISTINCT {column}) FROM {KERNELS}"  # noqa: S608 (names of our own)
            (count,) = self.database.execute(query).fetchone()
            refuse_trace(
                count > 1,
                self.path,
                f"kernels of {count} {'processes' if column == 'globalPid' else 'GPUs'}",
                "an export of one rank: nsys profile around each process, not torchrun",
            )

    def _columns_of(self, table: str) -> set[str]:
        return {row[1] for row in self.database.execute(f'PRAGMA table_info("{table}")')}

    def _select(self, table: str, *columns: str, order: str = "") -> Iterator[tuple[Any, ...]]:
        """Yield rows of a table; a column that this version lacks is None."""
        present = self._columns_of(table)
        chosen = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
        return self.database.execute(f'SELECT {chosen} FROM "{table}"{order}')  # noqa: S608 (names of our own)

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Yield rows of a table in order of time."""
        if table not in self.tables:
            return
        refuse_trace(
            not {"start", "end"} <= self._columns_of(table),
            self.path,
            f"{table} without times",
            _ALLOWED,
        )
        yield from self._select(table, *columns, order=' ORDER BY "start"')

    def _add(
        self, kind: str, name: str, start: Any, end: Any, thread: Any, key: Any, detail: int = 0
    ) -> int:
        is_time = isinstance(start, int) and isinstance(end, int)
        if not is_time or not -MOST_NS < start <= end < MOST_NS:
            raise trace_fault(
                self.path,
                f"times {start!r:.30} to {end!r:.30} of {name[:40]!r}",
                "nanoseconds, as whole numbers",
            )
        number = key if isinstance(key, int) else -1
        name, detail = name[:LONGEST_NAME], min(detail, MOST_NS)
        return self.store(kind, name, start, end - start, thread, number, detail)

    def _read_device(self, strings: Mapping[Any, str]) -> None:
        """Read kernels, whose detail is a hash of their shape, and copies, whose is their bytes."""
        fields = ("start", "end", "streamId", "correlationId")
        for start, end, stream, key, name, grid, block in self._rows(
            KERNELS, *fields, "shortName", "gridX", "blockX"
        ):
            self._add(
                "device",
                strings.get(name, str(name)),
                start,
                end,
                ("stream", stream),
                key,
                hash((grid, block)) & 0x7FFFFFFF,
            )
        for table, name in COPIES.items():
            for start, end, stream, key, nbytes in self._rows(table, *fields, "bytes"):
                size = nbytes if isinstance(nbytes, int) else 0
                self._add("device", name, start, end, ("stream", stream), key, size)

    def _read_ranges(self, strings: Mapping[Any, str]) -> None:
        for start, end, text, number, event_type, thread in self._rows(
            "NVTX_EVENTS", "start", "end", "text", "textId", "eventType", "globalTid"
        ):
            # Old exporters write an empty text where it is in StringIds.
            label = text if isinstance(text, str) and text else strings.get(number)
            match = None if label is None else _RANGE.fullmatch(label)
            if match is None or end is None or event_type not in (None, *PUSH_POP):
                continue
            name, sequence, sizes = match.groups()
            is_operator = name.startswith(OPERATORS) or "Backward" in name
            kind = "op" if is_operator and not name.startswith(MARKS) else "mark"
            key = None if sequence is None else int(sequence)
            row = self._add(kind, name, start, end, thread, key)
            if sizes is not None and "Input Dims" in kept_fields(kind, name):
                self.arguments[kind, row] = {"Input Dims": parse_sizes(sizes)}

    def _header(self) -> dict[str, Any]:
        """Return what a profiler's file says of rank and device, as far as it is known here."""
        header: dict[str, Any] = {"distributedInfo": {}}
        if "TARGET_INFO_GPU" in self.tables:
            header["deviceProperties"] = [
                {"name": str(name), "totalGlobalMem": memory}
                for name, memory in self._select("TARGET_INFO_GPU", "name", "totalMemory")
            ]
        return header


def parse_sizes(text: str) -> list[Any] | None:
    """Read sizes as ``emit_nvtx(record_shapes=True)`` writes them; None for what is none.

    Examples
    --------
    >>> parse_sizes("[[64, 3], [], [7]]")
    [[64, 3], [], [7]]
    """
    if len(text) > 10_000 or not re.fullmatch(r"[\[\]\d, ]*", text):
        return None
    with suppress(ValueError, RecursionError):
        sizes = json.loads(text)
        return sizes if isinstance(sizes, list) else None
    return None
