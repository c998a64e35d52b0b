"""Keep the cores from falling asleep: ``with KeepAwake(): ...``.

A virtual core that has nothing to do is given back to its host, and comes again tens of
microseconds to milliseconds late. One process per core that runs only when nothing else wants to
(SCHED_IDLE) keeps it, as ``idle=poll`` would: without it, steps on a machine that does nothing else
came out up to a fifth longer than on a busy one, and no two alike.
"""

from __future__ import annotations

import ctypes
import multiprocessing as mp
import os
import signal
from types import TracebackType
from typing import Self

PARENT_DIED = 1  # PR_SET_PDEATHSIG, linux/prctl.h


class KeepAwake:
    """Cores stay awake inside the context."""

    def __enter__(self) -> Self:
        context = mp.get_context("fork")
        self._spinning = [
            context.Process(target=_spin, args=(core,), daemon=True)
            for core in os.sched_getaffinity(0)
        ]
        for process in self._spinning:
            process.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._spinning:
            process.kill()
            process.join()


def _spin(core: int) -> None:
    ctypes.CDLL(None).prctl(PARENT_DIED, signal.SIGKILL, 0, 0, 0)
    os.sched_setaffinity(0, {core})
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True:
        pass
