"""Patterns that name several devices: ``gpu[0-7]``, ``cpu[0-6:2]``, ``n[0-3]/nic[0,2]``."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice

from perfmodel.files.spec import check_rows

MOST_NAMES = 1024
"""Devices that one pattern may name: twice the GPUs of the largest node that was announced."""

MOST_RANGES = 8
"""Ranges in one text: a device has one for its host and one for itself."""

_PATTERN = re.compile(r"(?P<head>[A-Za-z_]\w*)(?:\[(?P<items>[^\]]*)\])?(?P<tail>\w*)")
_RANGE = re.compile(r"\[(?P<items>[^\]]*)\]")
_ITEM = re.compile(r"(?P<first>\d{1,9})(?:-(?P<last>\d{1,9})(?::(?P<step>[1-9]\d{0,8}))?)?")


def expand_pattern(pattern: str) -> tuple[str, ...]:
    """Names that match a pattern.

    Examples
    --------
    >>> expand_pattern("gpu[0-2,7]")
    ('gpu0', 'gpu1', 'gpu2', 'gpu7')
    >>> expand_pattern("cpu[0-4:2]")
    ('cpu0', 'cpu2', 'cpu4')

    Raises
    ------
    ValueError
        Not a name, or a range that is empty or malformed.
    """
    check_rows(
        (
            _PATTERN.fullmatch(pattern) is None,
            "a name or a pattern such as 'gpu[0-7]', 'gpu[0,3]' or 'cpu[0-6:2]'",
        )
    )
    names = tuple(islice(expand_ranges(pattern), MOST_NAMES + 1))
    check_rows((len(names) > MOST_NAMES, f"at most {MOST_NAMES:,} names in one pattern"))
    return names


def expand_ranges(text: str) -> Iterator[str]:
    """Texts with each range in brackets replaced by its numbers, the last range fastest.

    Examples
    --------
    >>> list(expand_ranges("n[0-1]/nic[0,3]"))
    ['n0/nic0', 'n0/nic3', 'n1/nic0', 'n1/nic3']

    Raises
    ------
    ValueError
        A range that is empty or malformed, or too many of them.
    """
    check_rows((text.count("[") > MOST_RANGES, f"at most {MOST_RANGES} ranges in brackets"))
    match = _RANGE.search(text)
    if match is None:
        yield text
        return
    yield from (
        f"{text[: match.start()]}{number}{rest}"
        for number in _numbers(match["items"])
        for rest in expand_ranges(text[match.end() :])
    )


def _numbers(items: str) -> Iterator[int]:
    for item in items.split(","):
        match = _ITEM.fullmatch(item.strip())
        first, last = (
            (int(match["first"]), int(match["last"] or match["first"])) if match else (1, 0)
        )
        if match is None or last < first:
            raise ValueError("a range such as '[0-7]', '[0,3]' or '[0-6:2]', from low to high")
        yield from range(first, last + 1, int(match["step"] or 1))
