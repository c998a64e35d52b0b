"""Building many objects that all stay, with few or no runs of the collector of reference cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

COLLECT_AFTER = (100_000, 10, 10)
"""New objects after which the young ones are looked at, and how many such runs until the older
ones are. Python's own 700 costs 3 % of a command; the peak memory of those in
`reports/benchmarks/crowded` is the same."""


def collect_rarely() -> None:
    """Let this process, which is all ours, look for reference cycles less often."""
    gc.set_threshold(*COLLECT_AFTER)


@contextmanager
def no_collections() -> Iterator[None]:
    """Pause the collection of reference cycles, which goes over all objects again and again.

    A plan of a large mixture and its simulation make a million objects, of which none is a cycle
    that could be freed meanwhile; looking for some took a third of the time.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
