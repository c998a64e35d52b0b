"""Store of answers: one SQLite file that survives a kill at any moment, with checksums."""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from perfmodel.errors import Fault, InputError, PerfmodelError, refuse_if
from perfmodel.files import attributes
from perfmodel.scenario import Scenario
from perfmodel.studies.run import run_scenario

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile


@dataclass(frozen=True, slots=True)
class Answer:
    """Figures of one variant; times in seconds. None where it failed, and then `message` says why.

    Parameters
    ----------
    status : {"ok", "failed"}
    message : str
    step_time_s, low_s, high_s : float or None
        The step, and its 80 % interval where one is known.
    compute_s, comm_s, exposed_comm_s, samples_per_s : float or None
        As `perfmodel.studies.run.result.SizeResult` has them.
    gpus : int or None
    bottleneck : str or None
    memory_bytes : float or None
        On the fullest GPU.
    fits : bool or None
    tight : bool or None
        Whether it fits, but not with what CUDA, NCCL and the allocator take beside it.
    routing_cost : float or None
        How many times as long the largest all-reduce takes as without collisions in the fabric.
    rests_on : str or None
        Which recorded trainings are near, in words.
    """

    status: Literal["ok", "failed"]
    message: str = ""
    step_time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    compute_s: float | None = None
    comm_s: float | None = None
    exposed_comm_s: float | None = None
    samples_per_s: float | None = None
    gpus: int | None = None
    bottleneck: str | None = None
    memory_bytes: float | None = None
    fits: bool | None = None
    tight: bool | None = None
    routing_cost: float | None = None
    rests_on: str | None = None

    @property
    def as_row(self) -> dict[str, Any]:
        """By name; status and message last."""
        return attributes(self, f"{' '.join(FIGURES)} status message")


FIGURES = tuple(each.name for each in fields(Answer))[2:]
"""Columns of an answered variant."""


def answer(scenario: Scenario, profile: Profile | None = None, *, with_ends: bool = True) -> Answer:
    """Run a scenario; an error becomes the message of a failed answer.

    Parameters
    ----------
    scenario : Scenario
    profile : Profile, optional
        Measured numbers instead of datasheets'.
    with_ends : bool
        As in `run_scenario`.
    """
    try:
        result = run_scenario(scenario, profile=profile, with_first=False, with_ends=with_ends)
    except PerfmodelError as error:
        return Answer("failed", str(error))
    except Exception as error:  # noqa: BLE001  (one variant must not stop the others)
        return Answer("failed", f"{type(error).__name__}: {error}")
    point, (low_s, high_s) = result.main, result.main.interval_s or (None, None)
    return Answer(
        "ok",
        low_s=low_s,
        high_s=high_s,
        memory_bytes=point.memory.total_bytes,
        fits=point.memory.fits,
        tight=point.memory.tight,
        routing_cost=result.routing_cost,
        rests_on=None if point.evidence is None else point.evidence.summary,
        **attributes(
            point, "step_time_s compute_s comm_s exposed_comm_s samples_per_s gpus bottleneck"
        ),
    )


def without_ends(whole: Answer) -> Answer:
    """Return an answer as if it had been asked for without intervals and bottlenecks."""
    return replace(whole, low_s=None, high_s=None, bottleneck="", rests_on=None)


# ---------------------------------------------------------------- store of answers

APPLICATION_ID = 0x70666D73
"""SQLite's application_id of such a file ("pfms")."""

SCHEMA_VERSION = 2
"""Version of the tables (SQLite's user_version)."""

BUSY_S = 60.0
"""How long to wait for another process that writes; seconds."""

SMALLEST_BYTES = 512
"""The smallest page, and so the smallest file, of SQLite (file format, 1.3.2). It takes a file of
one byte for an empty one."""

LONGEST_BYTES = 64 << 20
"""The longest text that is read; a damaged length may claim a gigabyte."""

FLAG = "--store"
A_STORE = "a new file, or a store of a sweep"
AS_WRITTEN = "a store as sweeps wrote it: move this file away, or delete it, and run again"
A_PLACE = "a place that can be written and has room; what was stored before is kept: run again"

_TABLE = (
    "CREATE TABLE answers (key TEXT PRIMARY KEY, status TEXT NOT NULL, question TEXT NOT NULL, "
    "answer TEXT NOT NULL, checksum TEXT NOT NULL) WITHOUT ROWID"
)

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_ERROR, sqlite3.SQLITE_TOOBIG)
"""SQLite's codes of a file that was a store: torn pages, tables that are no more, lengths."""

_NO_PLACE = (
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_IOERR,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_PERM,
)


class Store(AbstractContextManager["Store"]):
    """Answers by key. Rows are the same bytes whenever and in whatever order they were written.

    Each row has a checksum of its content, which `find` checks, so that a damaged or edited row is
    never taken for an answer.

    Parameters
    ----------
    path : Path
        Created if missing.

    Raises
    ------
    InputError
        A file that is no store, one that is damaged or of another version, or one that cannot be
        written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._translate_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._check_file()
            self._base = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            try:
                self._open()
            except BaseException:
                self._base.close()
                raise

    def _check_file(self) -> None:
        """Refuse what SQLite would not: a pipe, which it waits for, and files too short for it."""
        exists = self.path.exists()
        size = self.path.stat().st_size if exists else 0
        for problem, holds in (
            ("a folder", self.path.is_dir()),
            ("a device or pipe", exists and not self.path.is_file()),
            (f"a file of {size} bytes that is no store", 0 < size < SMALLEST_BYTES),
        ):
            refuse_if(holds, FLAG, problem, A_STORE, str(self.path))

    def _open(self) -> None:
        self._base.text_factory = bytes  # what is no UTF-8 is then a wrong checksum, not an error
        self._base.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LONGEST_BYTES)
        self._base.execute("PRAGMA synchronous=NORMAL")
        if not self._is_store():
            with self._transaction():  # of several processes only the first finds nothing
                if not self._is_store():
                    self._base.execute(f"PRAGMA application_id={APPLICATION_ID}")
                    self._base.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
                    self._base.execute(_TABLE)
        self._enter_wal_mode()
        refuse_if(
            self._base.execute("PRAGMA quick_check(1)").fetchone() != (b"ok",),
            FLAG,
            "a damaged file",
            AS_WRITTEN,
            str(self.path),
        )

    def _enter_wal_mode(self) -> None:
        """Change the file's mode; while another process does so SQLite does not wait by itself."""
        until_s = time.monotonic() + BUSY_S
        while True:
            try:
                self._base.execute("PRAGMA journal_mode=WAL")
            except sqlite3.OperationalError as error:
                if "locked" not in str(error) or time.monotonic() > until_s:
                    raise
                time.sleep(0.01)
            else:
                return

    def _is_store(self) -> bool:
        """Whether this is a store; a file without pages is not one yet."""
        pages, application, version = self._base.execute(
            "SELECT page_count, application_id, user_version "
            "FROM pragma_page_count, pragma_application_id, pragma_user_version"
        ).fetchone()
        if not pages or (self._base.in_transaction and not application):
            return False  # BEGIN makes the first page
        refuse_if(
            application != APPLICATION_ID,
            FLAG,
            "another program's database",
            A_STORE,
            str(self.path),
        )
        refuse_if(
            version != SCHEMA_VERSION,
            FLAG,
            f"a store of version {version}",
            f"a new file, or a store of version {SCHEMA_VERSION}",
            str(self.path),
        )
        refuse_if(
            self._base.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
            != [(b"table", b"answers", _TABLE.encode())],
            FLAG,
            "other tables than a store has",
            AS_WRITTEN,
            str(self.path),
        )
        return True

    def __exit__(self, *_: object) -> None:
        self.close()

    def find(self, keys: Mapping[str, object]) -> dict[str, Answer]:
        """Return the stored answers of some keys.

        Raises
        ------
        InputError
            Any row is not as it was written.
        """
        answers, damaged = {}, []
        with self._translate_errors():
            rows = self._base.execute(
                "SELECT key, status, question, answer, checksum FROM answers"
            ).fetchall()
        for *content, checksum in rows:
            if _checksum(content) != checksum:
                damaged.append(content[0])
            elif (key := content[0].decode()) in keys:
                answers[key] = Answer(**json.loads(content[3]))
        if damaged:
            raise self._fault(
                f"{len(damaged):,} of {len(rows):,} rows damaged or edited (the first has the key "
                f"{ascii(damaged[0])[:20]})",
                AS_WRITTEN,
            )
        return answers

    def add(self, key: str, question: Mapping[str, Any], answer: Answer) -> None:
        """Keep an answer, whole or not at all; one that is there already stays.

        Parameters
        ----------
        key : str
        question : mapping
            Fields that the sweep set, for people who read the store.
        answer : Answer
        """
        row = [
            key,
            answer.status,
            json.dumps(question, sort_keys=True, default=str),
            json.dumps(asdict(answer), sort_keys=True, allow_nan=False),
        ]
        checksum = _checksum([cell.encode() for cell in row])
        with self._translate_errors(), self._transaction():
            self._base.execute(
                "INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?, ?)", (*row, checksum.decode())
            )

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._base.execute("COMMIT")
        except BaseException:
            with suppress(sqlite3.Error):  # SQLite has rolled back by itself where the disk is full
                self._base.execute("ROLLBACK")
            raise

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn errors of SQLite and of the system into faults of ``--store``."""
        try:
            yield
        except sqlite3.Error as error:
            raise self._fault(*_describe(error)) from None
        except OSError as error:
            raise self._fault(error.strerror or str(error), A_PLACE) from None

    def _fault(self, problem: str, allowed: str) -> InputError:
        return InputError(Fault(FLAG, problem, allowed, str(self.path)))


def _checksum(content: list[Any]) -> bytes:
    """Digest of a row's cells; b"" where one is no text, which equals no checksum."""
    if not all(isinstance(cell, bytes) for cell in content):
        return b""
    digest = hashlib.sha256()
    for cell in content:
        digest.update(b"%d:" % len(cell) + cell)
    return digest.hexdigest().encode()


def _describe(error: sqlite3.Error) -> tuple[str, str]:
    """Return what is wrong with the file, and what is allowed."""
    code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF  # the rest is detail
    rows = (
        ((sqlite3.SQLITE_NOTADB,), f"a file that is no store ({error})", A_STORE),
        (_DAMAGED, f"a damaged file ({ascii(str(error))[1:-1]})", AS_WRITTEN),
        (_NO_PLACE, f"a file that cannot be written ({error})", A_PLACE),
        ((code,), f"a file that cannot be used ({error})", A_STORE),
    )
    return next((problem, allowed) for codes, problem, allowed in rows if code in codes)
