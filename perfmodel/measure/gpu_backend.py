"""Backend ``device``: virtual ranks and microbenchmarks on one GPU, timed by CUDA events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

from perfmodel.collectives.schedule import Schedule
from perfmodel.measure.gpu_microbenchmarks import (
    GpuUnderTest,
    Microbenchmark,
    copy_kernel,
    make_microbenchmarks,
    prepare_gpu,
)
from perfmodel.measure.job import (
    MeasurementJob,
    MeasurementRow,
    Progress,
    make_schedules,
    summarise_times,
)
from perfmodel.measure.reference import (
    Move,
    compare,
    compute_expected,
    count_elements,
    describe_sampling,
    fill,
    make_moves,
    read_whole_numbers,
    window_slices,
)
from perfmodel.measure.worker import find_staged_moves, largest_scratch, merge
from perfmodel.memo import applying, with_progress
from perfmodel.units import format_bytes


def execute_on_streams(
    rounds: Sequence[Sequence[Move]],
    buffers: Sequence[Any],
    scratch: Sequence[Any],
    streams: Sequence[Any],
    enter: Callable[[Any], AbstractContextManager[Any]],
) -> None:
    """Execute rounds between buffers of one device.

    A copy runs on the receiver's stream, after the sender's work of earlier rounds. A rank writes
    to its buffer only after the ranks that read its old content.

    Parameters
    ----------
    rounds : sequence of sequences of Move
    buffers, scratch : sequence of torch.Tensor, shape (ranks,)
        `scratch` with `count_scratch` each.
    streams : sequence of torch.Stream
        One per rank, of the device of the buffers.
    enter : callable
        ``torch.cuda.stream``: makes a context whose kernels go into a stream.
    """
    events = [stream.record_event() for stream in streams]
    for moves in rounds:
        _execute_round(moves, buffers, scratch, streams, enter, events)
        for rank in {rank for move in moves for rank in (move.src, move.dst)}:
            events[rank] = streams[rank].record_event()


def _execute_round(
    moves: Sequence[Move],
    buffers: Sequence[Any],
    scratch: Sequence[Any],
    streams: Sequence[Any],
    enter: Callable[[Any], AbstractContextManager[Any]],
    earlier_events: Sequence[Any],
) -> None:
    staged = {at for rank in {m.dst for m in moves} for at in find_staged_moves(moves, rank)}
    used, merges, copy_events = [0] * len(buffers), [], []
    for at, move in enumerate(moves):
        destination = buffers[move.dst][move.write]
        if at in staged:
            begin = used[move.dst]
            used[move.dst] += move.count
            target, destination = destination, scratch[move.dst][begin : used[move.dst]]
            merges.append((move, target, destination))
        if move.src != move.dst:
            streams[move.dst].wait_event(earlier_events[move.src])
        with enter(streams[move.dst]):
            destination.copy_(buffers[move.src][move.read], non_blocking=True)
        copy_events.append((move, streams[move.dst].record_event()))
    for move, event in copy_events:
        if move.src != move.dst:
            streams[move.src].wait_event(event)
    for move, target, received in merges:
        with enter(streams[move.dst]):
            merge(target, received, add=move.reduce)


MOST_REPEATS, LEAST_REPEATS = 200, 8

SHORTEST_S = 200e-6
"""Shortest sample; shorter work is repeated within one. Events have a resolution of 0.5 us (CUDA
runtime API, cudaEventElapsedTime)."""

POOLED_STREAMS = 32
"""Streams in torch's pool, which it assigns in turn (c10/cuda/CUDAStream.cpp, kStreamsPerPool)."""


def describe_gpu(torch: Any) -> dict[str, str]:
    """The first device by name, memory and capability, and how many there are."""
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": str(properties.name),
        "gpus": str(torch.cuda.device_count()),
        "gpu_memory": format_bytes(properties.total_memory),
        "gpu_multiprocessors": str(properties.multi_processor_count),
        "gpu_capability": f"{properties.major}.{properties.minor}",
    }


def measure_device(
    job: MeasurementJob, torch: Any, device: str, progress: Progress | None = None
) -> tuple[list[MeasurementRow], str]:
    """Check the data of virtual ranks, then time them and the microbenchmarks.

    Parameters
    ----------
    job : MeasurementJob
    torch : module
    device : str
        "cuda"; "cpu" runs the same arithmetic without streams, for tests.
    progress : callable, optional

    Returns
    -------
    rows : list of MeasurementRow
    note : str

    Raises
    ------
    DataMismatch
        A virtual rank ended with wrong data.
    """
    gpu = prepare_gpu(job, torch, device)
    benchmarks = [*_schedule_benchmarks(job, gpu), *make_microbenchmarks(job, gpu)]
    share_s = job.budget_s / len(benchmarks)
    rows = [
        summarise_times(
            each.kind, each.nbytes, _sample_times(each, gpu, share_s, job.repeats), each.setting
        )
        for each in with_progress(benchmarks, progress, len(benchmarks))
    ]
    sampling = describe_sampling(list(make_schedules(job).values()))
    pooled = f"torch has {POOLED_STREAMS} streams, which {job.ranks} virtual ranks share."
    notes = applying(
        (True, "copy reads and writes nbytes; reduce reads twice and writes nbytes."),
        (True, "launch and synchronize: per kernel."),
        (True, "Small sizes of schedule: as fast as the host can enqueue copies and waits."),
        (sampling, sampling),
        (job.ranks > POOLED_STREAMS, pooled),
        (
            copy_kernel() is None or not gpu.cuda,
            "No blocks_copy rows: a copy by few thread blocks needs Triton and a GPU.",
        ),
    )
    return rows, " ".join(notes)


def _schedule_benchmarks(job: MeasurementJob, gpu: GpuUnderTest) -> Iterator[Microbenchmark]:
    """One execution of the schedule per size; its result is checked first."""
    schedules = make_schedules(job)
    device: Any = gpu.torch.cuda if gpu.cuda else gpu.torch.cpu
    streams = [device.Stream() for _ in range(job.ranks)]
    start, work, scratch = _allocate_rank_buffers(job, gpu, list(schedules.values()))
    for nbytes, schedule in schedules.items():
        rounds, count = make_moves(schedule), count_elements(schedule)

        def reset(count: int = count) -> None:
            for before, after in zip(start, work, strict=True):
                after[:count].copy_(before[:count])

        def once(rounds: Any = rounds) -> None:
            current = device.current_stream()  # has the events that start and stop a clock
            for stream in streams:
                stream.wait_stream(current)
            execute_on_streams(rounds, work, scratch, streams, device.stream)
            for stream in streams:
                current.wait_stream(stream)

        reset()
        once()
        _synchronize(gpu, (0,))
        for window, expected in compute_expected(schedule, job.dtype):
            slices = window_slices(schedule, window)
            for rank, (buffer, numbers) in enumerate(zip(work, expected, strict=True)):
                found = read_whole_numbers(buffer, slices, numbers)
                compare(schedule, rank, found, numbers, window=window)
        yield Microbenchmark("schedule", nbytes, once, f"{job.ranks} virtual ranks", before=reset)


def _allocate_rank_buffers(
    job: MeasurementJob, gpu: GpuUnderTest, schedules: Sequence[Schedule]
) -> tuple[list[Any], ...]:
    """Data, work buffer and scratch of each rank, for the largest of the schedules."""
    dtype = getattr(gpu.torch, job.dtype)
    count = max(count_elements(schedule) for schedule in schedules)
    scratch_count = max(largest_scratch(make_moves(schedule)) for schedule in schedules)

    def empty(count: int) -> list[Any]:
        return [
            gpu.torch.zeros(max(1, count), dtype=dtype, device=gpu.device) for _ in range(job.ranks)
        ]

    start, work, scratch = empty(count), empty(count), empty(scratch_count)
    for rank, buffer in enumerate(start):
        fill(buffer, job, rank)
    return start, work, scratch


# ---------------------------------------------------------------- timing


def _sample_times(
    benchmark: Microbenchmark, gpu: GpuUnderTest, share_s: float, repeats: int | None
) -> list[float]:
    """Warm up, then time as many samples as fit into `share_s`; seconds per execution."""
    for _ in range(3):
        rough_s = _time_runs(benchmark, gpu, 1)
    runs = max(1, round(SHORTEST_S / max(rough_s * benchmark.inner, 1e-9)))
    runs = min(runs, 1000) if benchmark.clock == "device" and not benchmark.once else 1
    least, most = repeats or LEAST_REPEATS, repeats or MOST_REPEATS
    times_s: list[float] = []
    deadline_s = time.monotonic() + share_s
    while len(times_s) < least or (len(times_s) < most and time.monotonic() < deadline_s):
        times_s.append(_time_runs(benchmark, gpu, runs))
    return times_s


def _time_runs(benchmark: Microbenchmark, gpu: GpuUnderTest, runs: int) -> float:
    """Mean time of an execution over `runs` runs in a row, each of `benchmark.inner` executions."""
    _synchronize(gpu, benchmark.devices)
    if benchmark.before is not None:
        benchmark.before()
    if benchmark.clock == "device" and gpu.cuda:
        begin, end = (gpu.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(runs):
            benchmark.run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / (runs * benchmark.inner)
    began_s = time.perf_counter()
    for _ in range(runs):
        benchmark.run()
    if benchmark.clock != "enqueue":
        _synchronize(gpu, benchmark.devices)
    return (time.perf_counter() - began_s) / (runs * benchmark.inner)


def _synchronize(gpu: GpuUnderTest, devices: Sequence[int]) -> None:
    """Wait for all streams of these devices."""
    if gpu.cuda:
        for number in devices:
            gpu.torch.cuda.synchronize(number)
