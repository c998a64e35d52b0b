"""Results that are found once and kept."""

from __future__ import annotations

from collections.abc import Callable, Hashable, MutableMapping
from typing import Any, TypeVar

T = TypeVar("T")


def once(found: MutableMapping[Any, Any], key: Hashable, find: Callable[[], T]) -> T:
    """Return what `find` returns for a key, which is found once and kept in a mapping."""
    if key not in found:
        found[key] = find()
    result: T = found[key]
    return result
