"""Bounds on what a file may hold, found before anything walks through it.

An alias of YAML repeats what it names at the cost of a few characters, and aliases of aliases
multiply: 600 bytes can stand for more values than a machine has memory for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from perfmodel.errors import Fault

LARGEST_BYTES = 64 * 2**20
"""Largest file that is read: logs of nccl-tests and NCCL_DEBUG=INFO have some MB."""

LARGEST_YAML_BYTES = 4 * 2**20
"""Largest YAML: the parser reads about a quarter of a MB in a second; the profile of 30 sweeps has
half of one."""

MOST_VALUES = 500_000
"""Values of a document, aliases written out."""

MOST_LEVELS = 60
"""Levels of a document; ours have eight."""

LARGEST_WHOLE = 2**53
"""Largest number up to which every whole number is a float."""

LARGEST_REAL = 1e30
SMALLEST_REAL = 1e-60
"""Numbers without a unit: squares of them stay within the range of a float."""

LONGEST_TEXT = 20_000
"""Characters of one text."""

_Path = tuple[str | int, ...]


def bound_faults(
    document: Any, file: str | None, line_of: Callable[[Any, _Path], int | None]
) -> list[Fault]:
    """Return what is beyond the bounds: too many values, too deep, numbers no float can hold.

    `document`: as parsed, with aliases as repeated objects.
    `line_of`: finds the line of a path.
    """
    if _is_within(document):
        return []
    faults: list[Fault] = []
    pending: list[tuple[Any, _Path]] = [(document, ())]
    count = 0
    while pending:
        value, path = pending.pop()
        count += 1
        if count > MOST_VALUES:
            text = f"more than {MOST_VALUES:,} values, aliases written out"
            return [Fault("document", text, "fewer values", file)]
        if len(path) > MOST_LEVELS:
            text = f"more than {MOST_LEVELS} levels, one inside the other; or an alias in itself"
            return [Fault("document", text, "a tree of values, less deep", file)]
        problem = _problem(value)
        if problem is not None:
            field = ".".join(str(part) for part in path) or "document"
            faults.append(Fault(field, *problem, file, line_of(document, path)))
        if isinstance(value, list | tuple):
            value = dict(enumerate(value))
        if isinstance(value, Mapping):
            pending += [(child, (*path, key)) for key, child in value.items()]
    return faults[::-1]


def _is_within(document: Any) -> bool:
    """Tell whether a document is surely within the bounds: level by level, without paths."""
    level, count = [document], 1
    for _ in range(MOST_LEVELS + 1):
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                below += value.values()
            elif isinstance(value, list | tuple):
                below += value
            elif isinstance(value, Mapping) or _problem(value) is not None:
                return False
            if len(below) > MOST_VALUES:
                return False
        count += len(below)
        if not below or count > MOST_VALUES:
            return count <= MOST_VALUES
        level = below
    return False


def _problem(value: Any) -> tuple[str, str] | None:
    """What was found and what is allowed, where a scalar is beyond the bounds."""
    if isinstance(value, str):
        if len(value) <= LONGEST_TEXT:
            return None
        return f"a text of {len(value):,} characters", f"at most {LONGEST_TEXT:,}"
    if isinstance(value, int) and abs(value) > LARGEST_WHOLE:
        digits = int(math.log10(abs(value))) + 1
        return f"a whole number of {digits} digits", f"at most {LARGEST_WHOLE:,} (2^53)"
    real = isinstance(value, float) and value != 0 and math.isfinite(value)
    if real and not SMALLEST_REAL <= abs(value) <= LARGEST_REAL:
        return repr(float(value)), f"0, or from {SMALLEST_REAL:g} to {LARGEST_REAL:g}"
    return None
