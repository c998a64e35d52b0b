"""Keep Ctrl-C from processes that their parent ends."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def shield_from_interrupt(*trackers: Callable[[], None]) -> Iterator[None]:
    """Start processes and threads that ignore Ctrl-C: the parent ends them without tracebacks.

    From their first instruction: what a process does about a signal once it runs is too late
    for one that comes while it starts.

    Parameters
    ----------
    trackers : callables
        Start the resource trackers that the processes need; started later, some would unblock
        the signal.
    """
    for ensure_running in trackers:
        ensure_running()
    if not hasattr(signal, "pthread_sigmask"):  # Windows, where no process group is signalled
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
