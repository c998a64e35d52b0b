"""Building many objects that all stay, without the collector of reference cycles."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_collections(*, all_stays: bool = False) -> Iterator[None]:
    """Pause the collection of reference cycles, which goes over all objects again and again.

    A plan of a large parallel layout and its simulation make a million objects, of which none is a
    cycle that could be freed meanwhile; looking for some took a third of the time.

    `all_stays`: what was made counts as old, so that the next collections leave it alone.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if all_stays:  # moves all to the oldest generation, also what others have frozen:
                gc.freeze()  # to ask whether they have takes as long as a collection
                gc.unfreeze()
            gc.enable()
