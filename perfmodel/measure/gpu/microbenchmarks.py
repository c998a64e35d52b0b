"""What can be asked of one GPU: copies, sums, launches, host copies, blocks, overlap, peers.

A copy by so many thread blocks: what a collective that holds few multiprocessors can move.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from perfmodel.measure.job import MeasurementJob
from perfmodel.measure.memory_check import SIDE_BYTES
from perfmodel.measure.record import What

triton: Any = None
tl: Any = None
if importlib.util.find_spec("triton") is not None:  # comes with torch's CUDA wheels, not alone
    triton = importlib.import_module("triton")
    tl = importlib.import_module("triton.language")

COUNTS = (1, 2, 4, 8, 16, 24, 32, 64)
"""Numbers of blocks to try; NCCL runs 1 to 32 channels, each of one block."""


def _copy(src, dst, count):  # type: ignore[no-untyped-def]
    # 1024 elements at a time: 8 for each of Triton's default 128 threads.
    for begin in range(tl.program_id(0) * 1024, count, tl.num_programs(0) * 1024):
        at = begin + tl.arange(0, 1024)
        tl.store(dst + at, tl.load(src + at, mask=at < count), mask=at < count)


def copy_kernel() -> Any:
    """A kernel ``[(blocks,)](src, dst, elements)``; None without Triton."""
    return None if triton is None else triton.jit(_copy)


MATRIX = 4096
"""Rows and columns of the matrices multiplied beside copies: large enough to fill a GPU."""

CHAIN = 100
"""Tiny kernels enqueued in a row, to divide their time by."""

SIDE_COPIES = 8
"""Copies of `SIDE_BYTES` that run beside a matrix product, and last longer: together they read and
write 2 GiB, 0.64 ms of an H100's memory (3.35 TB/s); the product's 0.137 TFLOP take it 0.14 ms at
its peak (990 TFLOP/s, both from its datasheet) and longer in truth."""

MOST_BLOCKED = 1 << 30
"""Elements that the copy by thread blocks counts to: it counts in 32 bits."""


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing to time.

    Parameters
    ----------
    what, nbytes, setting
        As in `Row`.
    run : callable
        Does it `inner` times; does not wait.
    inner : int
    clock : str
        "device": time between two events around it; "enqueue": the host's time until `run`
        returns; "host": the host's time until the devices have finished.
    before : callable, optional
        Called before each sample, on its stream, and not timed; what it enqueued on other streams
        may still be running then.
    once : bool
        A sample is a single run, however short.
    devices : tuple of int
        Which devices work, to wait for.
    """

    what: What
    nbytes: int
    run: Callable[[], object]
    setting: str = ""
    inner: int = 1
    clock: str = "device"
    before: Callable[[], object] | None = None
    once: bool = False
    devices: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class Bed:
    """Where probes run: torch, a device, and two buffers of random elements on it."""

    torch: Any
    device: Any
    one: Any
    two: Any

    @property
    def cuda(self) -> bool:
        """A real GPU; the processor stands in for it in tests."""
        return bool(self.device.type == "cuda")


def make_bed(job: MeasurementJob, torch: Any, device: str) -> Bed:
    """Buffers as large as the largest size; random, since zeros would draw less power."""
    count = max(1, max(job.sizes) // job.itemsize)
    where, dtype = torch.device(device), getattr(torch, job.dtype)

    def filled() -> Any:
        return torch.randint(-99, 100, (count,), dtype=dtype, device=where)

    return Bed(torch, where, filled(), filled())


def probes(job: MeasurementJob, bed: Bed) -> Iterator[Probe]:
    """Everything that this device can be asked, one after the other."""
    sizes = sorted({max(1, nbytes // job.itemsize) * job.itemsize for nbytes in job.sizes})
    for nbytes in sizes:
        one, two = bed.one[: nbytes // job.itemsize], bed.two[: nbytes // job.itemsize]
        yield Probe("copy", nbytes, lambda a=one, b=two: a.copy_(b))  # type: ignore[misc]
        yield Probe("reduce", nbytes, lambda a=one, b=two: a.add_(b))  # type: ignore[misc]
    yield from _latencies(bed)
    yield from _host_copies(job, bed, sizes)
    yield from _blocks(bed, sizes[-1])
    yield from _overlap(bed)
    yield from _peers(bed, sizes)


def _latencies(bed: Bed) -> Iterator[Probe]:
    tiny = bed.one[:1]

    def chain() -> None:
        for _ in range(CHAIN):
            tiny.add_(1)

    yield Probe("launch", 0, chain, "enqueue", CHAIN, "enqueue")
    yield Probe("launch", 0, chain, "back to back", CHAIN)
    yield Probe("synchronize", 0, lambda: tiny.add_(1), "launch and wait", clock="host")
    yield Probe("synchronize", 0, lambda: None, "idle", clock="host")
    if bed.cuda:
        streams = [bed.torch.cuda.Stream() for _ in range(2)]

        def hops() -> None:
            here = bed.torch.cuda.current_stream()
            for index in range(CHAIN):
                streams[index % 2].wait_event(
                    (streams[index % 2 - 1] if index else here).record_event()
                )
                with bed.torch.cuda.stream(streams[index % 2]):
                    tiny.add_(1)
            here.wait_stream(streams[(CHAIN - 1) % 2])

        yield Probe("synchronize", 0, hops, "kernel after event of another stream", CHAIN)


def _host_copies(job: MeasurementJob, bed: Bed, sizes: list[int]) -> Iterator[Probe]:
    """Copies to and from the host: what staging costs where GPUs cannot reach each other."""
    if not bed.cuda:
        return
    for pinned in (True, False):
        host = bed.torch.empty(len(bed.one), dtype=bed.one.dtype, pin_memory=pinned)
        host.copy_(bed.one)
        setting = "pinned" if pinned else "pageable"
        clock = "device" if pinned else "host"  # a pageable copy keeps the host busy
        for nbytes in sizes:
            there, here = bed.two[: nbytes // job.itemsize], host[: nbytes // job.itemsize]
            yield Probe(
                "host_to_device", nbytes, _copier(there, here, pinned), setting, clock=clock
            )
            yield Probe(
                "device_to_host", nbytes, _copier(here, there, pinned), setting, clock=clock
            )


def _copier(target: Any, source: Any, non_blocking: bool) -> Callable[[], object]:
    return lambda: target.copy_(source, non_blocking=non_blocking)


def _blocks(bed: Bed, nbytes: int) -> Iterator[Probe]:
    """Copy bandwidth by number of thread blocks; nothing without Triton."""
    kernel = copy_kernel() if bed.cuda else None
    if kernel is None:
        return
    count = min(nbytes // bed.one.element_size(), MOST_BLOCKED)
    for blocks in COUNTS:

        def run(blocks: int = blocks) -> object:
            return kernel[(blocks,)](bed.two, bed.one, count)

        yield Probe("blocks_copy", count * bed.one.element_size(), run, f"{blocks} blocks")


def _overlap(bed: Bed) -> Iterator[Probe]:
    """A matrix product alone, and while copies run on another stream."""
    torch = bed.torch
    side, dtype = (MATRIX, torch.float16) if bed.cuda else (64, torch.float32)
    left, right = (torch.randn(side, side, device=bed.device).to(dtype) for _ in range(2))
    out = torch.empty_like(left)

    def multiply() -> object:
        return torch.mm(left, right, out=out)

    yield Probe("overlap", 0, multiply, "matrix product alone", once=True)
    if not bed.cuda:
        return
    other = torch.cuda.Stream()
    source = torch.randint(-128, 128, (SIDE_BYTES,), dtype=torch.int8, device=bed.device)
    pinned = torch.empty(SIDE_BYTES, dtype=torch.int8, pin_memory=True)
    torch.cuda.synchronize()  # the other stream must not copy what is still being made
    # One copy to the host lasts longer than many within the device.
    for target, many, name in (
        (torch.empty_like(source), SIDE_COPIES, "device copies"),
        (pinned, 1, "copies to the host"),
    ):

        def copies(target: Any = target, many: int = many) -> None:
            with torch.cuda.stream(other):
                for _ in range(many):
                    target.copy_(source, non_blocking=True)

        setting = f"matrix product beside {name}"
        yield Probe("overlap", SIDE_BYTES, multiply, setting, before=copies, once=True)


def _peers(bed: Bed, sizes: list[int]) -> Iterator[Probe]:
    """Copies between every pair of devices, both ways."""
    count = bed.torch.cuda.device_count() if bed.cuda else 0
    if count < 2:
        return
    sources = [bed.one.to(f"cuda:{device}") for device in range(count)]
    targets = [bed.torch.empty_like(source) for source in sources]
    for src, dst in itertools.permutations(range(count), 2):
        reach = bed.torch.cuda.can_device_access_peer(dst, src)
        setting = f"gpu{src} -> gpu{dst}" + ("" if reach else ", through the host")
        for nbytes in sizes:
            many = nbytes // bed.one.element_size()
            run = _copier(targets[dst][:many], sources[src][:many], True)
            yield Probe("peer_copy", nbytes, run, setting, clock="host", devices=(src, dst))
