"""``perfmodel measure`` with one rank that breaks; run by ``test_launcher.py``.

``python measure_with_fault.py crash|hang|corrupt RANK STAGE ARGUMENTS...`` breaks that rank at its
first round of that stage. The ranks that the command starts run `broken_work` instead of the
package's own: the package itself knows nothing of faults. They are forks of this process, so that
PyTorch is imported once.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time

from perfmodel.measure import launcher
from perfmodel.measure import status as at

FAULT = "BROKEN_RANK"
"""Environment variable that tells the started processes which of them breaks, how and when."""

work = launcher._run_rank


def broken_work(job, rank, *rest):
    """What a started process runs: breaks itself if it is the one, then works as usual."""
    how, who, stage = os.environ[FAULT].split(":")
    if int(who) == rank:
        if how == "corrupt":
            corrupt_results(at.STAGES.index(stage))
        else:
            at.Status.step = breaking_step(at.Status.step, how, at.STAGES.index(stage))
    work(job, rank, *rest)


def breaking_step(step, how, stage):
    def breaks(status, number, round_=0):
        step(status, number, round_)
        if number == at.BEFORE and status._memory[status._base + at._STAGE] == stage:
            if how == "crash":
                os.kill(os.getpid(), signal.SIGKILL)
            while True:
                time.sleep(60)

    return breaks


def corrupt_results(stage):
    """Add one to the last element of the result of a schedule."""
    from perfmodel.measure import worker

    make_exchanges, run_exchanges = worker.make_exchanges, worker.run_exchanges
    buffers = {}

    def remembering(rounds, number, buffer, scratch):
        exchanges = make_exchanges(rounds, number, buffer, scratch)
        buffers[id(exchanges)] = buffer
        return exchanges

    def corrupting(exchanges, status):
        run_exchanges(exchanges, status)
        if status._memory[status._base + at._STAGE] == stage:
            buffers[id(exchanges)][-1] += 1

    worker.make_exchanges, worker.run_exchanges = remembering, corrupting


if __name__ == "__main__":
    import torch

    from perfmodel.cli import main

    torch.set_num_threads(1)  # before the fork: no threads are lost in it
    forks = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: forks
    how, who, stage, *arguments = sys.argv[1:]
    os.environ[FAULT] = f"{how}:{who}:{stage}"
    launcher._run_rank = broken_work
    sys.argv = ["perfmodel", "measure", *arguments]
    main()
