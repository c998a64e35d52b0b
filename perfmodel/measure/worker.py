"""The work of a rank of a process group: check the data, warm up, time, gather the times."""

from __future__ import annotations

import gc
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from perfmodel.collectives.schedule import Schedule
from perfmodel.measure import status as rank_status
from perfmodel.measure.job import PARTED_COLLECTIVES, MeasurementJob, make_schedules
from perfmodel.measure.p2p import count_scratch, make_exchanges, make_library_call, run_exchanges
from perfmodel.measure.record import MeasurementRow, summarise_times
from perfmodel.measure.reference import (
    check_result,
    count_elements,
    describe_sampling,
    fill,
    make_moves,
)

MOST_REPEATS, LEAST_REPEATS = 400, 8
"""Of one size. More would not narrow the median; fewer have no quartiles."""

PASSES = 4
"""Passes over all sizes, so that a slow minute of the machine affects all of them."""

Times = list[tuple[float, float]]


@dataclass(slots=True)
class RankBench:
    """One rank's buffers, and the calls to time by (nbytes, kind); kind indexes `status.KINDS`.

    `start` holds the initial data, to which `work` is reset before each repeat.
    """

    start: Any
    work: Any
    calls: dict[tuple[int, int], Callable[[], Any]]
    counts: dict[int, int]
    wait: Callable[[], None]


def measure_rank(
    job: MeasurementJob, status: rank_status.Status, *, shared_clock: bool
) -> tuple[list[MeasurementRow], str]:
    """Run one rank's part of a measurement; the process group has been joined.

    Parameters
    ----------
    job : MeasurementJob
    status : Status
    shared_clock : bool
        All ranks are on this machine, whose monotonic clock they share.

    Returns
    -------
    rows : list of MeasurementRow
    note : str
        Remarks on the rows.

    Raises
    ------
    DataMismatch
        Wrong data, before anything was timed.
    """
    schedules = make_schedules(job)
    bench = _make_bench(job, status, schedules)
    status.stage(rank_status.CHECK)
    for nbytes, schedule in schedules.items():
        check_result(job, status, schedule, bench.start, bench.work, bench.calls[nbytes, 0])
    status.stage(rank_status.WARM)
    repeats = _warm_up(job, status, bench)
    status.stage(rank_status.TIME)
    times = _time_all(status, bench, repeats)
    status.stage(rank_status.COLLECT)
    return _gather_rows(times, shared_clock), describe_sampling(list(schedules.values()))


def _make_bench(
    job: MeasurementJob, status: rank_status.Status, schedules: dict[int, Schedule]
) -> RankBench:
    import torch

    gpu = job.backend == "nccl"
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    rounds = {nbytes: make_moves(schedule) for nbytes, schedule in schedules.items()}
    counts = {nbytes: count_elements(schedule) for nbytes, schedule in schedules.items()}
    largest = max(counts.values())

    def empty(count: int) -> Any:
        return torch.zeros(max(count, 1), dtype=getattr(torch, job.dtype), device=device)

    start, work = empty(largest), empty(largest)
    scratch = empty(max(count_scratch(parts, status.rank) for parts in rounds.values()))
    fill(start, job, status.rank)
    # Only one call at a time uses scratch; only collectives in parts need a second whole buffer.
    spare = empty(largest) if job.collective in PARTED_COLLECTIVES else scratch
    calls: dict[tuple[int, int], Callable[[], Any]] = {}
    for nbytes, count in counts.items():
        exchanges = make_exchanges(rounds[nbytes], status.rank, work[:count], scratch)
        calls[nbytes, 0] = partial(run_exchanges, exchanges, status)
        place = slice(nbytes // job.itemsize)  # without the extra elements of some schedules
        root = schedules[nbytes].root
        library = make_library_call(
            job.collective, job.ranks, status.rank, root, work[place], spare[place]
        )
        if library is not None:
            calls[nbytes, 1] = partial(_call_library, library, status)
    return RankBench(start, work, calls, counts, torch.cuda.synchronize if gpu else _do_nothing)


def _do_nothing() -> None:
    """Do nothing: on the CPU the work is complete when the call returns."""


def _call_library(call: Callable[[], Any], status: rank_status.Status) -> None:
    status.step(rank_status.LIBRARY)
    call()
    status.step(rank_status.DONE)


def _time_once(
    bench: RankBench, status: rank_status.Status, nbytes: int, kind: int, repeat: int
) -> Any:
    """Time one repeat: reset the data, start all ranks together, wait; (start, end) in seconds."""
    import torch.distributed as dist

    count = bench.counts[nbytes]
    status.item(nbytes, kind, repeat)
    bench.work[:count].copy_(bench.start[:count])
    bench.wait()
    status.step(rank_status.BARRIER)
    dist.barrier()
    begin = time.monotonic()
    bench.calls[nbytes, kind]()
    bench.wait()
    return begin, time.monotonic()


def _warm_up(job: MeasurementJob, status: rank_status.Status, bench: RankBench) -> dict[int, int]:
    """Run each call twice and choose the repeats of each size, the same on all ranks."""
    import torch
    import torch.distributed as dist

    costs = []
    for nbytes in bench.counts:
        kinds = [kind for size, kind in bench.calls if size == nbytes]
        for kind in kinds:
            _time_once(bench, status, nbytes, kind, 0)
        began = time.monotonic()
        for kind in kinds:
            _time_once(bench, status, nbytes, kind, 1)
        costs.append(time.monotonic() - began)
    agreed = torch.tensor(costs, dtype=torch.float64).to(bench.work.device)
    dist.broadcast(agreed, 0)
    return dict(zip(bench.counts, choose_repeats(job, agreed.tolist()), strict=True))


def choose_repeats(job: MeasurementJob, costs_s: Sequence[float]) -> list[int]:
    """Choose the repeats of each size from the time of one repeat; multiples of `PASSES`.

    Repeats are proportional to one over the root of that time: large sizes get most of the time,
    small ones most of the repeats.
    """
    if job.repeats is not None:
        return [job.repeats] * len(costs_s)
    scale = job.budget_s / sum(math.sqrt(cost) for cost in costs_s)
    repeats = [min(MOST_REPEATS, max(LEAST_REPEATS, scale / math.sqrt(c))) for c in costs_s]
    return [round(count / PASSES) * PASSES for count in repeats]


def _time_all(
    status: rank_status.Status, bench: RankBench, repeats: dict[int, int]
) -> dict[tuple[int, int], Times]:
    """Time every size in passes, schedule and library alternating."""
    times: dict[tuple[int, int], Times] = {key: [] for key in bench.calls}
    order = [
        (nbytes, repeat)
        for part in range(PASSES)
        for nbytes, count in repeats.items()
        for repeat in range(count * part // PASSES, count * (part + 1) // PASSES)
    ]
    gc.collect()
    gc.disable()
    try:
        for done, (nbytes, repeat) in enumerate(order, start=1):
            for kind in (0, 1):
                if (nbytes, kind) in times:
                    times[nbytes, kind].append(_time_once(bench, status, nbytes, kind, repeat))
            status.progress(done, len(order))
    finally:
        gc.enable()
    return times


def _gather_rows(times: dict[tuple[int, int], Times], shared_clock: bool) -> list[MeasurementRow]:
    import torch.distributed as dist

    gathered: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(gathered, times)
    rows = []
    for nbytes, kind in sorted(gathered[0], key=lambda key: (key[1], key[0])):
        spans = np.array([times[nbytes, kind] for times in gathered])
        times_s = compute_collective_times(spans, shared_clock=shared_clock)
        rows.append(summarise_times("library" if kind else "schedule", nbytes, times_s))
    return rows


def compute_collective_times(spans: Any, *, shared_clock: bool) -> list[float]:
    """Compute the time of each repeat: from the last rank's begin to the last end; seconds.

    Without a clock that all ranks share: the longest time of a rank on its own clock.

    Parameters
    ----------
    spans : ndarray of float, shape (ranks, repeats, 2)
        Begin and end on each rank's clock; seconds.
    shared_clock : bool
    """
    begins, ends = spans[:, :, 0], spans[:, :, 1]
    if shared_clock:
        return list((ends.max(axis=0) - begins.max(axis=0)).tolist())
    return list((ends - begins).max(axis=0).tolist())
