"""Kinds of damage to a store of sweeps, for `run` beside this file and for the tests."""

from __future__ import annotations

import hashlib
import shutil
import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from random import Random

from perfmodel.studies.sweep import Answer, Store

NAME = "s.sqlite"


def _answer(at: int) -> Answer:
    if at == 5:
        return Answer("failed", "a message\nof two lines")
    return Answer("ok", step_time_s=0.25 + at / 3, samples_per_s=100 / (at + 1), gpus=8, fits=True)


ANSWERS = {f"{hashlib.sha256(b'%d' % at).hexdigest()}{at}": _answer(at) for at in range(8)}
"""Rows of the store, by key."""


def make_store(folder: Path) -> None:
    """Make a store of eight rows in a folder, half of them still in its write-ahead log."""
    original = folder / "original" / NAME
    rows = list(ANSWERS.items())
    with Store(original) as store:
        for key, answer in rows[:4]:
            store.add(key, {"x": key}, answer)
    with Store(original) as store:
        for key, answer in rows[4:]:
            store.add(key, {"x": key}, answer)
        for end in ("", "-wal"):  # as a kill leaves it
            shutil.copy(f"{original}{end}", folder / f"{NAME}{end}")
    shutil.rmtree(original.parent)


def flip_bits(folder: Path, chance: Random) -> None:
    """Flip 1 to 8 bits of the file or its log."""
    path, data = _pick(folder, chance)
    for _ in range(chance.randint(1, 8)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def flip_bits_of_header(folder: Path, chance: Random) -> None:
    """Flip a bit of the file's first 100 bytes, or of the first table's."""
    path = folder / NAME
    data = bytearray(path.read_bytes())
    data[chance.randrange(112)] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def flip_bits_of_rows(folder: Path, chance: Random) -> None:
    """Flip a bit of a digit or letter of the rows' text."""
    path, data = _pick(folder, chance)
    at = [at for at, byte in enumerate(data) if 0x20 < byte < 0x7F]
    data[chance.choice(at)] ^= 1 << chance.randrange(5)
    path.write_bytes(data)


def truncate(folder: Path, chance: Random) -> None:
    """Cut the file or its log."""
    path, data = _pick(folder, chance)
    path.write_bytes(data[: chance.randrange(len(data))])


def overwrite(folder: Path, chance: Random) -> None:
    """Put zeros or noise in place of some bytes."""
    path, data = _pick(folder, chance)
    start, size = chance.randrange(len(data)), chance.choice((1, 16, 512, 4096))
    noise = bytes(size) if chance.random() < 0.5 else chance.randbytes(size)
    data[start : start + size] = noise[: len(data) - start]
    path.write_bytes(data)


def swap_blocks(folder: Path, chance: Random) -> None:
    """Swap two blocks of 512 bytes."""
    path, data = _pick(folder, chance)
    one, other = (512 * chance.randrange(len(data) // 512) for _ in range(2))
    data[one : one + 512], data[other : other + 512] = (
        data[other : other + 512],
        data[one : one + 512],
    )
    path.write_bytes(data)


def append(folder: Path, chance: Random) -> None:
    """Append noise."""
    path, data = _pick(folder, chance)
    path.write_bytes(data + chance.randbytes(chance.choice((1, 100, 4096))))


def lose_log(folder: Path, chance: Random) -> None:
    """Delete the log, or give the file another one."""
    log = folder / f"{NAME}-wal"
    if chance.random() < 0.5:
        log.unlink()
    else:
        log.write_bytes(chance.randbytes(log.stat().st_size))


def swap_rows(folder: Path, chance: Random) -> None:
    """Swap the answers of two rows, as another SQLite client can."""
    one, other = chance.sample(sorted(ANSWERS), 2)
    with closing(sqlite3.connect(folder / NAME)) as base, base:
        rows = dict(base.execute("SELECT key, answer FROM answers").fetchall())
        for key, source in ((one, other), (other, one)):
            base.execute("UPDATE answers SET answer = ? WHERE key = ?", (rows[source], key))


def edit(folder: Path, chance: Random) -> None:
    """Change, delete or empty a cell, as another SQLite client can."""
    key = chance.choice(sorted(ANSWERS))
    statement = chance.choice(
        (
            "UPDATE answers SET answer = replace(answer, '0', '9') WHERE key = ?",
            "UPDATE answers SET answer = 'null' WHERE key = ?",
            "UPDATE answers SET answer = x'ff00fe' WHERE key = ?",
            'UPDATE answers SET answer = \'{"status": "ok"}\', checksum = 0 WHERE key = ?',
            "UPDATE answers SET status = 'failed', question = 7 WHERE key = ?",
            "UPDATE answers SET key = key || char(27) || '[31m' WHERE key = ?",
            "UPDATE answers SET checksum = '' WHERE key = ?",
            "DELETE FROM answers WHERE key = ?",
            "UPDATE answers SET answer = zeroblob(1000000) WHERE key = ?",
        )
    )
    with closing(sqlite3.connect(folder / NAME)) as base, base:
        base.execute(statement, (key,))


def change_tables(folder: Path, chance: Random) -> None:
    """Change the tables, as another SQLite client can."""
    statement = chance.choice(
        (
            "DROP TABLE answers",
            "ALTER TABLE answers DROP COLUMN checksum",
            "ALTER TABLE answers RENAME TO results",
            "CREATE TABLE notes (text)",
            "CREATE TRIGGER t AFTER INSERT ON answers BEGIN DELETE FROM answers; END",
            "PRAGMA user_version = 1",
            "PRAGMA application_id = 0",
        )
    )
    with closing(sqlite3.connect(folder / NAME)) as base, base, suppress(sqlite3.OperationalError):
        base.execute(statement)


KINDS = (
    flip_bits,
    flip_bits_of_header,
    flip_bits_of_rows,
    truncate,
    overwrite,
    swap_blocks,
    append,
    lose_log,
    swap_rows,
    edit,
    change_tables,
)
"""All kinds of damage: each takes the folder of a store, and chance."""


def _pick(folder: Path, chance: Random) -> tuple[Path, bytearray]:
    path = folder / chance.choice((NAME, f"{NAME}-wal"))
    return path, bytearray(path.read_bytes())
