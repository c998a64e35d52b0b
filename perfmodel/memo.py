"""Results found once and kept, values by what they share, those that apply, items counted."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, MutableMapping
from typing import Any, TypeVar

K = TypeVar("K")
T = TypeVar("T")


def once(found: MutableMapping[Any, Any], key: Hashable, find: Callable[[], T]) -> T:
    """Return what `find` returns for a key, which is found once and kept in a mapping."""
    if key not in found:
        found[key] = find()
    result: T = found[key]
    return result


def with_progress(
    items: Iterable[T], progress: Callable[[int, int], None] | None, total: int, before: int = 0
) -> Iterator[T]:
    """Yield items, and tell after each how many of how many are done, `before` these included."""
    for done, each in enumerate(items, before + 1):
        yield each
        if progress is not None:
            progress(done, total)


def applying(*cases: tuple[object, T]) -> Iterator[T]:
    """Yield what applies, in order: each case is whether it does, and what."""
    return (each for applies, each in cases if applies)


def first_applying(*cases: tuple[object, T]) -> T:
    """Return the first of `applying`; one has to."""
    return next(applying(*cases))


def grouped(pairs: Iterable[tuple[K, T]]) -> dict[K, list[T]]:
    """Collect the second parts of pairs by the first, in the order in which these first occur."""
    groups: dict[K, list[T]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups
