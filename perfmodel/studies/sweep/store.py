"""Store of answers: one SQLite file that survives a kill at any moment."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from perfmodel.errors import Fault, InputError
from perfmodel.studies.sweep.worker import Answer

APPLICATION = 0x70666D73
"""SQLite's application_id of such a file ("pfms")."""

SCHEMA = 1
"""Version of the tables (SQLite's user_version)."""

BUSY_S = 60.0
"""How long to wait for another process that writes; seconds."""

_TABLE = (
    "CREATE TABLE answers (key TEXT PRIMARY KEY, status TEXT NOT NULL, "
    "question TEXT NOT NULL, answer TEXT NOT NULL) WITHOUT ROWID"
)


class Store:
    """Answers by key. Rows are the same bytes whenever and in whatever order they were written.

    Parameters
    ----------
    path : Path
        Created if missing.

    Raises
    ------
    InputError
        A file that is no store, one of another version, or one that cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        with self._translate_errors():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
            try:
                self._open()
            except BaseException:
                self._base.close()
                raise

    def _open(self) -> None:
        self._base.execute("PRAGMA synchronous=NORMAL")
        if not self._is_store():
            self._enter_wal_mode()
            with self._transaction():  # of several processes only the first finds nothing
                if not self._is_store():
                    self._base.execute(f"PRAGMA application_id={APPLICATION}")
                    self._base.execute(f"PRAGMA user_version={SCHEMA}")
                    self._base.execute(_TABLE)

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
        """Whether this is a store; an empty file is not one yet."""
        query = (
            "SELECT application_id, user_version, (SELECT count(*) FROM sqlite_master) "
            "FROM pragma_application_id, pragma_user_version"
        )
        application, version, tables = self._base.execute(query).fetchone()
        if not tables:
            return False
        if application != APPLICATION:
            raise self._fault("another program's database", "a new file, or a store of a sweep")
        if version != SCHEMA:
            allowed = f"a new file, or a store of version {SCHEMA}"
            raise self._fault(f"a store of version {version}", allowed)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find(self, keys: Mapping[str, object]) -> dict[str, Answer]:
        """Return the stored answers of some keys."""
        with self._translate_errors():
            rows = self._base.execute("SELECT key, answer FROM answers")
            return {key: Answer(**json.loads(text)) for key, text in rows if key in keys}

    def add(self, key: str, question: Mapping[str, Any], answer: Answer) -> None:
        """Keep an answer, whole or not at all; one that is there already stays.

        Parameters
        ----------
        key : str
        question : mapping
            Fields that the sweep set, for people who read the store.
        answer : Answer
        """
        row = (
            key, answer.status, json.dumps(question, sort_keys=True, default=str),
            json.dumps(asdict(answer), sort_keys=True, allow_nan=False),
        )  # fmt: skip
        with self._translate_errors(), self._transaction():
            self._base.execute("INSERT OR IGNORE INTO answers VALUES (?, ?, ?, ?)", row)

    def close(self) -> None:
        """Close the file."""
        self._base.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._base.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._base.execute("ROLLBACK")
            raise
        self._base.execute("COMMIT")

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Turn errors of SQLite and of the system into faults of ``--store``."""
        try:
            yield
        except sqlite3.DatabaseError as error:
            raise self._fault(_describe(error), "a new file, or a store of a sweep") from None
        except OSError as error:
            fault = error.strerror or str(error)
            raise self._fault(fault, "a place that can be written") from None

    def _fault(self, problem: str, allowed: str) -> InputError:
        return InputError(Fault("--store", problem, allowed, str(self.path)))


def _describe(error: sqlite3.DatabaseError) -> str:
    text = str(error)
    if "not a database" in text or "malformed" in text:
        return f"a file that is no store ({text})"
    return f"a file that cannot be used ({text})"
