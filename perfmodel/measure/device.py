"""Backend ``device``: virtual ranks and probes on one GPU; timed by its own events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from perfmodel.measure.blocks import copy_kernel
from perfmodel.measure.checks import whole_numbers
from perfmodel.measure.exchange import scratch_elements
from perfmodel.measure.job import Job, schedules
from perfmodel.measure.moves import compare, elements, execute, moves, starting_data
from perfmodel.measure.probes import Bed, Probe, make_bed, probes
from perfmodel.measure.record import Row, row_of
from perfmodel.measure.virtual import CudaLanes, HostLanes, Lanes, run_virtual
from perfmodel.units import format_bytes

MOST_REPEATS, LEAST_REPEATS = 200, 8

SHORTEST_S = 200e-6
"""A sample lasts at least so long; shorter work is repeated within it. Events tell 0.5 us apart
(CUDA runtime API, cudaEventElapsedTime)."""

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
    job: Job, torch: Any, device: str, progress: Progress | None = None
) -> tuple[list[Row], str]:
    """Check virtual ranks' data, then time them and everything else that a GPU can be asked.

    Parameters
    ----------
    job : Job
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
    return rows, " ".join(_notes(bed))


def _notes(bed: Bed) -> Iterator[str]:
    yield "copy reads and writes nbytes; reduce reads twice and writes nbytes."
    yield "launch and synchronize: per kernel."
    if copy_kernel() is None or not bed.cuda:
        yield "No blocks_copy rows: a copy by few thread blocks needs Triton and a GPU."


def _virtual(job: Job, bed: Bed) -> Iterator[Probe]:
    """One execution of the schedule per size, checked before it is offered for timing."""
    lanes: Lanes = CudaLanes(bed.torch, job.ranks) if bed.cuda else HostLanes()
    for nbytes, schedule in schedules(job).items():
        rounds = moves(schedule)
        data = starting_data(job.dtype, job.ranks, elements(schedule), seed=0)
        dtype = getattr(bed.torch, job.dtype)
        buffers = [bed.torch.from_numpy(row.copy()).to(bed.device, dtype) for row in data]
        scratch = [
            bed.torch.zeros(max(1, scratch_elements(rounds, rank)), dtype=dtype, device=bed.device)
            for rank in range(job.ranks)
        ]

        def once(rounds: Any = rounds, buffers: Any = buffers, scratch: Any = scratch) -> None:
            _fork(bed, lanes)
            run_virtual(rounds, buffers, scratch, lanes)
            _meet(bed, lanes)

        once()
        _wait(bed)
        execute(rounds, data)
        for rank, (buffer, wanted) in enumerate(zip(buffers, data, strict=True)):
            compare(schedule, rank, whole_numbers(buffer, wanted), wanted)
        yield Probe("schedule", nbytes, once, f"{job.ranks} virtual ranks")


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
    again = min(again, 1000) if probe.clock == "device" else 1
    took: list[float] = []
    until = time.monotonic() + share_s
    most = repeats or MOST_REPEATS
    while len(took) < most and (repeats or len(took) < LEAST_REPEATS or time.monotonic() < until):
        took.append(_sample(probe, bed, again))
    return took


def _sample(probe: Probe, bed: Bed, again: int) -> float:
    """One sample: the mean time of `again` runs in a row, each `probe.inner` executions."""
    _wait(bed)
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
        _wait(bed)
    return (time.perf_counter() - began_s) / (again * probe.inner)


def _wait(bed: Bed) -> None:
    if bed.cuda:
        for number in range(bed.torch.cuda.device_count()):
            bed.torch.cuda.synchronize(number)
