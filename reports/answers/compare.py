"""Compare two recordings of `reports.answers.record`: ``python -m reports.answers.compare A B``.

Prints each command whose numbers, words or exit code differ; exit code 1 if any number does.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

IGNORED = ("provenance", "version", "elapsed_s", "seconds", "ts", "store")
"""Keys of a document that differ between any two recordings."""

VERSION = re.compile(r"(perfmodel\W{1,5})\d+\.\d+\.\d+")

NUMBER = re.compile(r"(?<![\w.])[-+\u2212]?\d[\d,]*\.?\d*(?:e[-+]?\d+)?")


def leaves(document: object, path: str = "") -> Iterator[tuple[str, object]]:
    """Path and value of everything in a JSON document that is no list or mapping."""
    if isinstance(document, dict):
        for key, value in document.items():
            if key not in IGNORED:
                yield from leaves(value, f"{path}.{key}")
    elif isinstance(document, list):
        for index, value in enumerate(document):
            yield from leaves(value, f"{path}[{index}]")
    else:
        yield path, document


def parsed(path: Path) -> dict[str, object] | None:
    """Leaves of a JSON file, or None if it holds something else."""
    try:
        return dict(leaves(json.loads(path.read_text(encoding="utf-8"))))
    except ValueError:
        return None


def normalized(path: Path) -> str:
    """Text without what may differ: perfmodel's version, and whether a space may break a line."""
    text = path.read_text(encoding="utf-8", errors="replace").replace("\u00a0", " ")
    return VERSION.sub(r"\1", text)


def differences(before: Path, after: Path) -> tuple[list[str], list[str]]:
    """Numbers and words by which two files differ."""
    if not after.exists():
        return ["missing"], []
    old, new = parsed(before), parsed(after)
    if old is None or new is None:
        was, now = normalized(before), normalized(after)
        if was == now:
            return [], []
        same = NUMBER.findall(was) == NUMBER.findall(now)
        return ([], ["text"]) if same else (["text with numbers"], [])
    numbers, words = [], []
    for key in old.keys() | new.keys():
        a, b = old.get(key, "absent"), new.get(key, "absent")
        if a != b:
            text = isinstance(a, str) and isinstance(b, str)
            (words if text else numbers).append(f"{key}: {a!r} -> {b!r}")
    return sorted(numbers), sorted(words)


def main() -> int:
    """Compare all files of two folders."""
    before, after = Path(sys.argv[1]), Path(sys.argv[2])
    names = sorted(p.relative_to(before) for p in before.rglob("*") if p.is_file())
    moved, reworded = 0, 0
    for name in names:
        numbers, words = differences(before / name, after / name)
        moved, reworded = moved + bool(numbers), reworded + bool(words and not numbers)
        for line in (*numbers[:5], *words[:5]):
            print(f"{name}: {line[:300]}")
    print(f"{len(names)} files: {moved} with other numbers, {reworded} with other words only")
    return 1 if moved else 0


if __name__ == "__main__":
    raise SystemExit(main())
