"""Nsight Systems' SQLite exports: kernels, launches, copies and NVTX ranges as columns of events.

Ranges are those of ``torch.autograd.profiler.emit_nvtx``: operators with their sequence numbers.
Tables are those of NVIDIA's exporter ("SQLite Schema Reference" of Nsight Systems), which makes
only those that it has rows for; times are nanoseconds.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote

from perfmodel.traces.kineto.event_stream import trace_fault
from perfmodel.traces.kineto.event_table import (
    LONGEST_NAME,
    MARKS,
    Columns,
    EventTable,
    kept_arguments,
)

MAGIC = b"SQLite format 3\0"
NS = 1e-9
PUSH_POP = (59, 70)
"""``eventType`` of a range with a begin and an end on one thread (NvtxPushPopRange, and that of
NVTXT files)."""

OPERATORS = ("aten::", "autograd::", "torch::", "c10d::", "torch.distributed", "nccl:")
_RANGE = re.compile(
    r"(.*?)(?:, (?:stashed )?seq = (\d{1,18}))?(?:, op_id = \d+)?(?:, sizes = (.*?))?"
    r"(?:, input_op_ids = .*)?"
)
"""As torch/csrc/profiler/util.cpp puts them together (getNvtxStr)."""

MOST_NS = 1 << 62
"""Of times: seventy years and more."""

_ALLOWED = "an export of Nsight Systems (nsys export --type sqlite) of a run under emit_nvtx()"


def is_sqlite(path: Path) -> bool:
    """Whether a file is a SQLite database."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except OSError:
        return False


def read_nsight(path: Path) -> EventTable:
    """Read an export into columns.

    Raises `InputError`: another database, a damaged one, or one without kernels and ranges.
    """
    address = f"file:{quote(str(path.resolve()))}?mode=ro&immutable=1"
    try:
        with closing(sqlite3.connect(address, uri=True)) as database:
            database.execute("PRAGMA trusted_schema = OFF")
            database.text_factory = lambda raw: raw.decode("utf-8", "replace")
            return _Reader(path, database).table()
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise trace_fault(path, f"a database that cannot be read ({error})", _ALLOWED) from None


class _Reader:
    def __init__(self, path: Path, database: sqlite3.Connection) -> None:
        self.path, self.database = path, database
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        self.tables = {str(name) for (name,) in rows}
        self.names: dict[str, int] = {}
        self.threads: dict[Any, int] = {}
        self.columns = {kind: Columns() for kind in ("op", "mark", "device", "launch", "module")}
        self.arguments: dict[tuple[str, int], Mapping[str, Any]] = {}
        self.base: float | None = None

    def table(self) -> EventTable:
        """Read all tables."""
        needed = {"CUPTI_ACTIVITY_KIND_KERNEL", "NVTX_EVENTS"}
        if missing := sorted(needed - self.tables):
            raise trace_fault(self.path, f"a database without {', '.join(missing)}", _ALLOWED)
        self._require_one_process()
        self._kernels()
        self._copies()
        for table in ("CUPTI_ACTIVITY_KIND_RUNTIME", "CUPTI_ACTIVITY_KIND_DRIVER"):
            for row in self._rows(table, "start", "end", "globalTid", "correlationId"):
                self._add("launch", "launch", row[0], row[1], row[2], row[3])
        self._ranges()
        events = {kind: columns.frozen() for kind, columns in self.columns.items()}
        return EventTable(
            self.path,
            self._header(),
            tuple(self.names),
            events["op"],
            events["mark"],
            events["device"],
            events["launch"],
            events["module"],
            self.arguments,
            sum(map(len, events.values())),
        )

    def _require_one_process(self) -> None:
        """Refuse the kernels of several ranks in one file: their correlations would be mixed up."""
        table = "CUPTI_ACTIVITY_KIND_KERNEL"
        for column in sorted({"globalPid", "deviceId"} & self._columns_of(table)):
            query = f"SELECT COUNT(DISTINCT {column}) FROM {table}"  # noqa: S608 (names of our own)
            (count,) = self.database.execute(query).fetchone()
            if count > 1:
                kind = "processes" if column == "globalPid" else "GPUs"
                raise trace_fault(
                    self.path,
                    f"kernels of {count} {kind}",
                    "an export of one rank: nsys profile around each process, not torchrun",
                )

    def _columns_of(self, table: str) -> set[str]:
        return {row[1] for row in self.database.execute(f'PRAGMA table_info("{table}")')}

    def _rows(self, table: str, *columns: str) -> Iterator[tuple[Any, ...]]:
        """Rows of a table in order of time; a column that this version lacks is None."""
        if table not in self.tables:
            return
        present = self._columns_of(table)
        if not {"start", "end"} <= present:
            raise trace_fault(self.path, f"{table} without times", _ALLOWED)
        chosen = ", ".join(f'"{name}"' if name in present else "NULL" for name in columns)
        yield from self.database.execute(f'SELECT {chosen} FROM "{table}" ORDER BY "start"')  # noqa: S608 (names of our own)

    def _strings(self) -> dict[Any, str]:
        if "StringIds" not in self.tables:
            return {}
        rows = self.database.execute("SELECT id, value FROM StringIds")
        return {number: str(text) for number, text in rows}

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
        if self.base is None:
            self.base = start
        number = self.names.setdefault(name[:LONGEST_NAME], len(self.names))
        owner = self.threads.setdefault(thread, len(self.threads))
        return self.columns[kind].add(
            (start - self.base) * NS,
            (end - start) * NS,
            number,
            owner,
            key if isinstance(key, int) else -1,
            min(detail, MOST_NS),
        )

    def _kernels(self) -> None:
        strings = self._strings()
        fields = ("start", "end", "streamId", "correlationId", "shortName", "gridX", "blockX")
        for start, end, stream, key, name, grid, block in self._rows(
            "CUPTI_ACTIVITY_KIND_KERNEL", *fields
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

    def _copies(self) -> None:
        fields = ("start", "end", "streamId", "correlationId", "bytes")
        for kind, name in (("MEMCPY", "Memcpy"), ("MEMSET", "Memset")):
            for start, end, stream, key, nbytes in self._rows(
                f"CUPTI_ACTIVITY_KIND_{kind}", *fields
            ):
                size = nbytes if isinstance(nbytes, int) else 0
                self._add("device", name, start, end, ("stream", stream), key, size)

    def _ranges(self) -> None:
        strings = self._strings()
        for start, end, text, number, kind, thread in self._rows(
            "NVTX_EVENTS", "start", "end", "text", "textId", "eventType", "globalTid"
        ):
            # Old exporters write an empty text where it is in StringIds.
            label = text if isinstance(text, str) and text else strings.get(number)
            if label is None or end is None or kind not in (None, *PUSH_POP):
                continue
            match = _RANGE.fullmatch(label)
            if match is None:
                continue
            name, sequence, sizes = match.groups()
            is_mark = name.startswith(MARKS) or not _is_operator(name)
            row = self._add(
                "mark" if is_mark else "op",
                name,
                start,
                end,
                thread,
                None if sequence is None else int(sequence),
            )
            shapes = {} if sizes is None else {"Input Dims": parse_sizes(sizes)}
            if chosen := kept_arguments("mark" if is_mark else "op", name, shapes):
                self.arguments["mark" if is_mark else "op", row] = chosen

    def _header(self) -> dict[str, Any]:
        """What a profiler's file says of rank and device, as far as it is known here."""
        header: dict[str, Any] = {"distributedInfo": {}}
        if "TARGET_INFO_GPU" in self.tables:
            present = self._columns_of("TARGET_INFO_GPU")
            columns = [name if name in present else "NULL" for name in ("name", "totalMemory")]
            rows = self.database.execute(f"SELECT {', '.join(columns)} FROM TARGET_INFO_GPU")  # noqa: S608 (names of our own)
            header["deviceProperties"] = [
                {"name": str(name), "totalGlobalMem": memory} for name, memory in rows
            ]
        return header


def _is_operator(name: str) -> bool:
    return name.startswith(OPERATORS) or "Backward" in name or name.startswith("record_param")


def parse_sizes(text: str) -> list[Any] | None:
    """Sizes as ``emit_nvtx(record_shapes=True)`` writes them.

    Examples
    --------
    >>> parse_sizes("[[64, 3], [], [7]]")
    [[64, 3], [], [7]]
    """
    import json

    if len(text) > 10_000 or not re.fullmatch(r"[\[\]\d, ]*", text):
        return None
    try:
        sizes = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return sizes if isinstance(sizes, list) else None
