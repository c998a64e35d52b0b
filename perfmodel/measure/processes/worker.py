"""What every rank of a process group does: check the data, warm up, time, hand in its times."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from perfmodel.collectives.schedule import Schedule
from perfmodel.measure.correctness import check_data, fill
from perfmodel.measure.job import PARTED, MeasurementJob, schedules
from perfmodel.measure.processes import status as at
from perfmodel.measure.processes.p2p import library_call, program, run, scratch_elements
from perfmodel.measure.record import Row, row_of
from perfmodel.measure.reference import Move, elements, moves, sampling_note

MOST_REPEATS, LEAST_REPEATS = 400, 8
"""Of one size. More would not narrow the median; fewer have no quartiles."""

PASSES = 4
"""The sizes are gone through so often, so that a slow minute of the machine meets all of them."""

Times = list[tuple[float, float]]


@dataclass(slots=True)
class Bench:
    """One rank's buffers, and for each size what is timed: (nbytes, kind) -> call.

    `start` holds the data from before, to which `work` is set back for each repeat.
    """

    start: Any
    work: Any
    calls: dict[tuple[int, int], Callable[[], Any]]
    counts: dict[int, int]
    wait: Callable[[], None]


def measure_rank(
    job: MeasurementJob, status: at.Status, *, shared_clock: bool
) -> tuple[list[Row], str]:
    """Do one rank's part of a measurement; the process group has been joined.

    Parameters
    ----------
    job : MeasurementJob
    status : Status
    shared_clock : bool
        All ranks are on this machine, whose monotonic clock they share.

    Returns
    -------
    rows : list of Row
    note : str
        What a reader of the rows should know.

    Raises
    ------
    DataMismatch
        Wrong data, before anything was timed.
    """
    made = schedules(job)
    rounds = {nbytes: moves(schedule) for nbytes, schedule in made.items()}
    bench = _bench(job, status, made, rounds)
    status.stage(at.CHECK)
    for nbytes, schedule in made.items():
        check_data(job, status, schedule, bench.start, bench.work, bench.calls[nbytes, 0])
    status.stage(at.WARM)
    repeats = _rehearse(job, status, bench)
    status.stage(at.TIME)
    times = _time_all(status, bench, repeats)
    status.stage(at.COLLECT)
    rows = _rows(_gathered(times), shared_clock)
    return rows, sampling_note(list(made.values()))


def _bench(
    job: MeasurementJob,
    status: at.Status,
    made: dict[int, Schedule],
    rounds: dict[int, list[list[Move]]],
) -> Bench:
    import torch

    gpu = job.backend == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    counts = {nbytes: elements(schedule) for nbytes, schedule in made.items()}
    room = max(scratch_elements(parts, status.rank) for parts in rounds.values())

    def empty(count: int) -> Any:
        return torch.zeros(max(count, 1), dtype=getattr(torch, job.dtype), device=device)

    start, work, scratch = empty(max(counts.values())), empty(max(counts.values())), empty(room)
    fill(start, job, status.rank)
    # Scratch serves one call at a time; only collectives in parts need a second whole buffer.
    spare = empty(max(counts.values())) if job.collective in PARTED else scratch
    calls: dict[tuple[int, int], Callable[[], Any]] = {}
    for nbytes, count in counts.items():
        exchanges = program(rounds[nbytes], status.rank, work[:count], scratch)
        calls[nbytes, 0] = _schedule_call(exchanges, status)
        whole = nbytes // job.itemsize  # without what some schedules keep beside the buffer
        library = library_call(
            job.collective, job.ranks, status.rank, made[nbytes].root, work[:whole], spare[:whole]
        )
        if library is not None:
            calls[nbytes, 1] = _library(library, status)
    wait = torch.cuda.synchronize if gpu else _nothing
    return Bench(start, work, calls, counts, wait)


def _nothing() -> None:
    """The processor has finished when the call returns."""


def _schedule_call(exchanges: Sequence[Any], status: at.Status) -> Callable[[], None]:
    return lambda: run(exchanges, status)


def _library(call: Callable[[], Any], status: at.Status) -> Callable[[], None]:
    def timed() -> None:
        status.step(at.LIBRARY)
        call()
        status.step(at.DONE)

    return timed


def _once(bench: Bench, status: at.Status, nbytes: int, kind: int, repeat: int) -> Any:
    """One repeat: same data, start together, wait until it is done; (start, end) in seconds."""
    import torch.distributed as dist

    count = bench.counts[nbytes]
    status.item(nbytes, kind, repeat)
    bench.work[:count].copy_(bench.start[:count])
    bench.wait()
    status.step(at.BARRIER)
    dist.barrier()
    begin = time.monotonic()
    bench.calls[nbytes, kind]()
    bench.wait()
    return begin, time.monotonic()


def _rehearse(job: MeasurementJob, status: at.Status, bench: Bench) -> dict[int, int]:
    """Run everything twice, and settle how often each size is repeated; alike on all ranks."""
    import torch
    import torch.distributed as dist

    costs = []
    for nbytes in bench.counts:
        kinds = [kind for size, kind in bench.calls if size == nbytes]
        for kind in kinds:
            _once(bench, status, nbytes, kind, 0)
        began = time.monotonic()
        for kind in kinds:
            _once(bench, status, nbytes, kind, 1)
        costs.append(time.monotonic() - began)
    agreed = torch.tensor(costs, dtype=torch.float64).to(bench.work.device)
    dist.broadcast(agreed, 0)
    return dict(zip(bench.counts, repeats_within(job, agreed.tolist()), strict=True))


def repeats_within(job: MeasurementJob, costs_s: Sequence[float]) -> list[int]:
    """How often to repeat each size, given what one repeat of it costs; a multiple of `PASSES`.

    Repeats go with one over the root of the cost: the large sizes get most of the time, the small
    ones most of the repeats.
    """
    if job.repeats is not None:
        return [job.repeats] * len(costs_s)
    scale = job.budget_s / sum(math.sqrt(cost) for cost in costs_s)
    wanted = [min(MOST_REPEATS, max(LEAST_REPEATS, scale / math.sqrt(c))) for c in costs_s]
    return [round(count / PASSES) * PASSES for count in wanted]


def _time_all(
    status: at.Status, bench: Bench, repeats: dict[int, int]
) -> dict[tuple[int, int], Times]:
    """Time every size in passes, schedule and library in turn."""
    times: dict[tuple[int, int], Times] = {key: [] for key in bench.calls}
    total, done = sum(repeats.values()), 0
    gc.collect()
    gc.disable()
    try:
        for part in range(PASSES):
            for nbytes, count in repeats.items():
                for repeat in range(count * part // PASSES, count * (part + 1) // PASSES):
                    for kind in (0, 1):
                        if (nbytes, kind) in times:
                            times[nbytes, kind].append(_once(bench, status, nbytes, kind, repeat))
                    done += 1
                    status.progress(done, total)
    finally:
        gc.enable()
    return times


def _gathered(times: dict[tuple[int, int], Times]) -> list[dict[tuple[int, int], Times]]:
    import torch.distributed as dist

    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, times)
    return found


def _rows(gathered: list[dict[tuple[int, int], Times]], shared_clock: bool) -> list[Row]:
    rows = []
    for nbytes, kind in sorted(gathered[0], key=lambda key: (key[1], key[0])):
        spans = np.array([times[nbytes, kind] for times in gathered])
        took = collective_times(spans, shared_clock=shared_clock)
        rows.append(row_of("library" if kind else "schedule", nbytes, took))
    return rows


def collective_times(spans: Any, *, shared_clock: bool) -> list[float]:
    """Time of each repeat: from when all ranks have begun until all have ended; seconds.

    Without a clock that all ranks share: the slowest rank's own time.

    Parameters
    ----------
    spans : ndarray of float, shape (ranks, repeats, 2)
        Begin and end on each rank's clock; seconds.
    shared_clock : bool
    """
    begins, ends = spans[:, :, 0], spans[:, :, 1]
    took = ends.max(axis=0) - begins.max(axis=0) if shared_clock else (ends - begins).max(axis=0)
    found: list[float] = took.tolist()
    return found
