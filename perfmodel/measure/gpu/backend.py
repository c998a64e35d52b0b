"""Backend ``device``: virtual ranks and probes on one GPU; timed by its own events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from perfmodel.collectives.schedule import Schedule
from perfmodel.measure.correctness import fill, whole_numbers
from perfmodel.measure.gpu.microbenchmarks import Bed, Probe, copy_kernel, make_bed, probes
from perfmodel.measure.gpu.virtual_ranks import CudaLanes, HostLanes, Lanes, run_virtual
from perfmodel.measure.job import MeasurementJob, schedules
from perfmodel.measure.processes.p2p import most_scratch
from perfmodel.measure.record import Row, row_of
from perfmodel.measure.reference import compare, elements, expected, moves, places, sampling_note
from perfmodel.units import format_bytes

MOST_REPEATS, LEAST_REPEATS = 200, 8

SHORTEST_S = 200e-6
"""A sample lasts at least so long; shorter work is repeated within it. Events tell 0.5 us apart
(CUDA runtime API, cudaEventElapsedTime)."""

STREAMS = 32
"""torch hands out so many streams in turn (c10/cuda/CUDAStream.cpp, kStreamsPerPool)."""

Progress = Callable[[int, int], None]


def describe_gpu(torch: Any) -> dict[str, str]:
    """The first device by name, memory and capability, and how many there are."""
    found = torch.cuda.get_device_properties(0)
    return {
        "gpu": str(found.name),
        "gpus": str(torch.cuda.device_count()),
        "gpu_memory": format_bytes(found.total_memory),
        "gpu_multiprocessors": str(found.multi_processor_count),
        "gpu_capability": f"{found.major}.{found.minor}",
    }


def measure_device(
    job: MeasurementJob, torch: Any, device: str, progress: Progress | None = None
) -> tuple[list[Row], str]:
    """Check virtual ranks' data, then time them and everything else that a GPU can be asked.

    Parameters
    ----------
    job : MeasurementJob
    torch : module
    device : str
        "cuda"; "cpu" runs the same arithmetic without streams, for tests.
    progress : callable, optional

    Returns
    -------
    rows : list of Row
    note : str

    Raises
    ------
    DataMismatch
        A virtual rank ended with wrong data.
    """
    bed = make_bed(job, torch, device)
    asked = [*_virtual(job, bed), *probes(job, bed)]
    share_s = job.budget_s / len(asked)
    rows = []
    for done, probe in enumerate(asked, 1):
        took = _sampled(probe, bed, share_s, job.repeats)
        rows.append(row_of(probe.what, probe.nbytes, took, probe.setting))
        if progress is not None:
            progress(done, len(asked))
    return rows, " ".join(_notes(job, bed))


def _notes(job: MeasurementJob, bed: Bed) -> Iterator[str]:
    yield "copy reads and writes nbytes; reduce reads twice and writes nbytes."
    yield "launch and synchronize: per kernel."
    yield "Small sizes of schedule: as fast as the host can enqueue copies and waits."
    sampled = sampling_note(list(schedules(job).values()))
    if sampled:
        yield sampled
    if job.ranks > STREAMS:
        yield f"torch has {STREAMS} streams, which {job.ranks} virtual ranks share."
    if copy_kernel() is None or not bed.cuda:
        yield "No blocks_copy rows: a copy by few thread blocks needs Triton and a GPU."


def _virtual(job: MeasurementJob, bed: Bed) -> Iterator[Probe]:
    """One execution of the schedule per size, checked before it is offered for timing."""
    made = schedules(job)
    lanes: Lanes = CudaLanes(bed.torch, job.ranks) if bed.cuda else HostLanes()
    start, work, scratch = _buffers(job, bed, list(made.values()))
    for nbytes, schedule in made.items():
        rounds, count = moves(schedule), elements(schedule)

        def reset(count: int = count) -> None:
            for before, after in zip(start, work, strict=True):
                after[:count].copy_(before[:count])

        def once(rounds: Any = rounds) -> None:
            _fork(bed, lanes)
            run_virtual(rounds, work, scratch, lanes)
            _meet(bed, lanes)

        reset()
        once()
        _wait(bed, (0,))
        for window, wanted in expected(schedule, job.dtype):
            part = places(schedule, window)
            for rank, (buffer, like) in enumerate(zip(work, wanted, strict=True)):
                found = whole_numbers(buffer, part, like)
                compare(schedule, rank, found, like, window=window)
        yield Probe("schedule", nbytes, once, f"{job.ranks} virtual ranks", before=reset)


def _buffers(job: MeasurementJob, bed: Bed, made: Sequence[Schedule]) -> tuple[list[Any], ...]:
    """Data, the buffer worked on and scratch of each rank, for the largest of the schedules."""
    dtype, count = getattr(bed.torch, job.dtype), max(elements(schedule) for schedule in made)
    room = max(most_scratch(moves(schedule)) for schedule in made)

    def empty(count: int) -> list[Any]:
        return [
            bed.torch.zeros(max(1, count), dtype=dtype, device=bed.device) for _ in range(job.ranks)
        ]

    start, work, scratch = empty(count), empty(count), empty(room)
    for rank, buffer in enumerate(start):
        fill(buffer, job, rank)
    return start, work, scratch


def _fork(bed: Bed, lanes: Lanes) -> None:
    """Let all lanes wait for what is on the current stream: the event that starts the clock."""
    if isinstance(lanes, CudaLanes):
        for stream in lanes.streams:
            stream.wait_stream(bed.torch.cuda.current_stream())


def _meet(bed: Bed, lanes: Lanes) -> None:
    """Let the current stream wait for all lanes: the event that stops the clock."""
    if isinstance(lanes, CudaLanes):
        for stream in lanes.streams:
            bed.torch.cuda.current_stream().wait_stream(stream)


# ---------------------------------------------------------------- timing


def _sampled(probe: Probe, bed: Bed, share_s: float, repeats: int | None) -> list[float]:
    """Times of one execution each; seconds. Warm-up included, as many as the share allows."""
    for _ in range(3):
        rough_s = _sample(probe, bed, 1)
    again = max(1, round(SHORTEST_S / max(rough_s * probe.inner, 1e-9)))
    again = min(again, 1000) if probe.clock == "device" and not probe.once else 1
    took: list[float] = []
    until = time.monotonic() + share_s
    most = repeats or MOST_REPEATS
    while len(took) < most and (repeats or len(took) < LEAST_REPEATS or time.monotonic() < until):
        took.append(_sample(probe, bed, again))
    return took


def _sample(probe: Probe, bed: Bed, again: int) -> float:
    """One sample: the mean time of `again` runs in a row, each `probe.inner` executions."""
    _wait(bed, probe.devices)
    if probe.before is not None:
        probe.before()
    if probe.clock == "device" and bed.cuda:
        begin, end = (bed.torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(again):
            probe.run()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end)) * 1e-3 / (again * probe.inner)
    began_s = time.perf_counter()
    for _ in range(again):
        probe.run()
    if probe.clock != "enqueue":
        _wait(bed, probe.devices)
    return (time.perf_counter() - began_s) / (again * probe.inner)


def _wait(bed: Bed, devices: Sequence[int]) -> None:
    """Wait for all streams of these devices."""
    if bed.cuda:
        for number in devices:
            bed.torch.cuda.synchronize(number)
