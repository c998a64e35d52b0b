"""Mappings: of results that are found once and kept, and of values by what they share."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, MutableMapping
from typing import Any, TypeVar

K = TypeVar("K")
T = TypeVar("T")


def once(found: MutableMapping[Any, Any], key: Hashable, find: Callable[[], T]) -> T:
    """Return what `find` returns for a key, which is found once and kept in a mapping."""
    if key not in found:
        found[key] = find()
    result: T = found[key]
    return result


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Collect the second parts of pairs by the first, in the order in which these first occur."""
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
