"""The work of a rank of a process group: check the data, warm up, time, gather the times.

A rank's part of a schedule is executed by point-to-point operations of torch.distributed.
"""

from __future__ import annotations

import gc
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from perfmodel.collectives.schedule import Schedule
from perfmodel.measure import status as rank_status
from perfmodel.measure.job import (
    PARTED_COLLECTIVES,
    MeasurementJob,
    MeasurementRow,
    make_schedules,
    summarise_times,
)
from perfmodel.measure.reference import (
    Move,
    check_result,
    count_elements,
    describe_sampling,
    fill,
    make_moves,
)
from perfmodel.measure.status import BEFORE, DONE, POSTED, Status
from perfmodel.memo import grouped

MOST_REPEATS, LEAST_REPEATS = 400, 8
"""Repeats of one size. More would not narrow the median; fewer have no quartiles."""

TIMING_PASSES = 4
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
    # On the CPU the work is complete when the call returns.
    return RankBench(start, work, calls, counts, torch.cuda.synchronize if gpu else lambda: None)


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
    """Choose the repeats of each size from the time of one repeat; multiples of `TIMING_PASSES`.

    Repeats are proportional to one over the root of that time: large sizes get most of the time,
    small ones most of the repeats.
    """
    if job.repeats is not None:
        return [job.repeats] * len(costs_s)
    roots = np.sqrt(costs_s)
    repeats = np.clip(job.budget_s / roots.sum() / roots, LEAST_REPEATS, MOST_REPEATS)
    return list((np.rint(repeats / TIMING_PASSES).astype(int) * TIMING_PASSES).tolist())


def _time_all(
    status: rank_status.Status, bench: RankBench, repeats: dict[int, int]
) -> dict[tuple[int, int], Times]:
    """Time every size in passes, schedule and library alternating."""
    times: dict[tuple[int, int], Times] = {key: [] for key in bench.calls}
    order = [
        (nbytes, repeat)
        for part in range(TIMING_PASSES)
        for nbytes, count in repeats.items()
        for repeat in range(count * part // TIMING_PASSES, count * (part + 1) // TIMING_PASSES)
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
    spans = {key: np.array([times[key] for times in gathered]) for key in gathered[0]}
    return [
        summarise_times(
            "library" if kind else "schedule",
            nbytes,
            compute_collective_times(spans[nbytes, kind], shared_clock=shared_clock),
        )
        for nbytes, kind in sorted(spans, key=lambda key: (key[1], key[0]))
    ]


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
    own_s, common_s = (ends - begins).max(axis=0), ends.max(axis=0) - begins.max(axis=0)
    return list((common_s if shared_clock else own_s).tolist())


@dataclass(frozen=True, slots=True)
class Exchange:
    """The operations of one rank in one round.

    `copies`, within the rank's own buffer, run before anything is sent; `posts` are the sends and
    receives, posted together; `merges` move or add received chunks from scratch to the buffer,
    after the rank's own sends have read the buffer's old content.
    """

    copies: tuple[tuple[Any, Any], ...]
    posts: list[Any]
    merges: tuple[tuple[Any, Any, bool], ...]


def count_scratch(rounds: Sequence[Sequence[Move]], rank: int) -> int:
    """Return how many elements of scratch a rank needs: the most that any round does."""
    return max(
        (sum(moves[at].count for at in find_staged_moves(moves, rank)) for moves in rounds),
        default=0,
    )


def largest_scratch(rounds: Sequence[Sequence[Move]]) -> int:
    """Count the elements of scratch that a rank needs, the most of all ranks."""
    by_rank = (
        grouped((rank, move) for move in moves for rank in {move.src, move.dst}) for moves in rounds
    )
    return max(
        (count_scratch([mine], rank) for each in by_rank for rank, mine in each.items()), default=0
    )


def find_staged_moves(moves: Sequence[Move], rank: int) -> list[int]:
    """Find the places of the moves to a rank that cannot be received into its buffer directly.

    They are added, or overwrite elements that the rank itself sends in this round, or another move
    writes to the same elements.
    """
    reads = {(m.read.start, m.read.stop) for m in moves if m.src == rank}
    targets = {at: (m.write.start, m.write.stop) for at, m in enumerate(moves) if m.dst == rank}
    times = Counter(targets.values())
    return [
        at
        for at, target in targets.items()
        if moves[at].reduce or moves[at].src == rank or target in reads or times[target] > 1
    ]


def merge(target: Any, received: Any, *, add: bool) -> None:
    """Add what was received to what is there, or let it take its place."""
    if add:
        target.add_(received)
    else:
        target.copy_(received, non_blocking=True)


def make_exchanges(
    rounds: Sequence[Sequence[Move]], rank: int, buffer: Any, scratch: Any
) -> list[Exchange]:
    """Make the exchanges of one rank for all rounds, on views of its buffer and its scratch.

    Parameters
    ----------
    rounds : sequence of sequences of Move
    rank : int
    buffer, scratch : torch.Tensor
        One-dimensional; `scratch` has at least `count_scratch`.
    """
    return [_make_exchange(moves, rank, buffer, scratch) for moves in rounds]


def _make_exchange(moves: Sequence[Move], rank: int, buffer: Any, scratch: Any) -> Exchange:
    import torch.distributed as dist

    staged = find_staged_moves(moves, rank)
    copies, posts, merges = [], [], []
    used = 0
    for at, move in enumerate(moves):
        if move.dst == rank:
            target = destination = buffer[move.write]
            if at in staged:
                destination = scratch[used : used + move.count]
                used += move.count
                merges.append((target, destination, move.reduce))
            if move.src == rank:
                copies.append((destination, buffer[move.read]))
            else:
                posts.append(dist.P2POp(dist.irecv, destination, move.src))
        elif move.src == rank:
            posts.append(dist.P2POp(dist.isend, buffer[move.read], move.dst))
    return Exchange(tuple(copies), posts, tuple(merges))


def run_exchanges(exchanges: Sequence[Exchange], status: Status) -> None:
    """Execute one rank's rounds, one after the other."""
    import torch.distributed as dist

    for number, exchange in enumerate(exchanges):
        status.step(BEFORE, number)
        for destination, source in exchange.copies:
            destination.copy_(source)
        works = dist.batch_isend_irecv(exchange.posts) if exchange.posts else ()
        status.step(POSTED, number)
        for work in works:
            work.wait()
        for target, received, reduce in exchange.merges:
            merge(target, received, add=reduce)
    status.step(DONE)


def make_library_call(
    collective: str, ranks: int, rank: int, root: int, buffer: Any, spare: Any
) -> Callable[[], Any] | None:
    """Make a call of the library's own collective on the same sizes; None if it has none.

    Parameters
    ----------
    collective : str
    ranks, rank, root : int
    buffer, spare : torch.Tensor
        Of the whole size; which of them holds the result depends on the collective.
    """
    import torch.distributed as dist

    if len(buffer) % ranks and collective in PARTED_COLLECTIVES:
        return None
    parts = list(spare.chunk(ranks)) if len(buffer) % ranks == 0 else []
    if collective in {"reduce_scatter", "all_gather"}:
        # torch 2.13 renamed both and warns about the old names.
        old = {"reduce_scatter": "reduce_scatter_tensor", "all_gather": "all_gather_into_tensor"}
        call = getattr(dist, f"{collective}_single", None) or getattr(dist, old[collective])
        if collective == "reduce_scatter":
            return lambda: call(parts[rank], buffer)
        return lambda: call(spare, buffer.chunk(ranks)[rank])
    if collective == "send":
        return (lambda: dist.send(buffer, 1)) if rank == 0 else (lambda: dist.recv(buffer, 0))
    root_parts = parts if rank == root else None
    calls: dict[str, Callable[[], Any]] = {
        "all_reduce": lambda: dist.all_reduce(buffer),
        "broadcast": lambda: dist.broadcast(buffer, root),
        "reduce": lambda: dist.reduce(buffer, root),
        "all_to_all": lambda: dist.all_to_all_single(spare, buffer),
        "scatter": lambda: dist.scatter(
            spare.chunk(ranks)[rank], list(buffer.chunk(ranks)) if rank == root else None, src=root
        ),
        "gather": lambda: dist.gather(buffer.chunk(ranks)[rank], root_parts, dst=root),
    }
    return calls.get(collective)
