"""Microbenchmarks of one GPU: copies, sums, launches, host copies, blocks, overlap, peers.

Copies by a given number of thread blocks give the bandwidth of a collective that occupies few
multiprocessors.
"""

from __future__ import annotations

import importlib
import importlib.util
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from perfmodel.measure.job import SIDE_BYTES, MeasurementJob, MeasurementKind

triton: Any = None
tl: Any = None
if importlib.util.find_spec("triton") is not None:  # comes with torch's CUDA wheels, not alone
    triton = importlib.import_module("triton")
    tl = importlib.import_module("triton.language")

BLOCK_COUNTS = (1, 2, 4, 8, 16, 24, 32, 64)
"""Numbers of thread blocks; NCCL runs 1 to 32 channels, each of one block."""


def _copy_blocks(src, dst, count):  # type: ignore[no-untyped-def]
    # 1024 elements at a time: 8 for each of Triton's default 128 threads.
    for begin in range(tl.program_id(0) * 1024, count, tl.num_programs(0) * 1024):
        at = begin + tl.arange(0, 1024)
        tl.store(dst + at, tl.load(src + at, mask=at < count), mask=at < count)


def copy_kernel() -> Any:
    """A kernel ``[(blocks,)](src, dst, elements)``; None without Triton."""
    return None if triton is None else triton.jit(_copy_blocks)


MATRIX_SIDE = 4096
"""Rows and columns of the matrices multiplied during copies: large enough to fill a GPU."""

CHAINED_KERNELS = 100
"""Tiny kernels enqueued in a row; their time is divided by this number."""

SIDE_COPIES = 8
"""Copies of `SIDE_BYTES` that run during a matrix product and must last longer than it: together
they read and write 2 GiB, which takes an H100's memory 0.64 ms (3.35 TB/s); the product's 0.137
TFLOP take at least 0.14 ms (peak of 990 TFLOP/s; both rates from its datasheet)."""

MOST_BLOCKED = 1 << 30
"""Most elements that the copy by thread blocks moves: its counter has 32 bits."""


@dataclass(frozen=True, slots=True)
class Microbenchmark:
    """One operation to time.

    Parameters
    ----------
    what, nbytes, setting
        As in `Row`.
    run : callable
        Does it `inner` times; does not wait.
    inner : int
    clock : str
        "device": time between events before and after it; "enqueue": the host's time until `run`
        returns; "host": the host's time until the devices have finished.
    before : callable, optional
        Called before each sample, on its stream, and not timed; what it enqueued on other streams
        may still be running then.
    once : bool
        A sample is a single run, however short.
    devices : tuple of int
        Which devices work, to wait for.
    """

    kind: MeasurementKind
    nbytes: int
    run: Callable[[], object]
    setting: str = ""
    inner: int = 1
    clock: str = "device"
    before: Callable[[], object] | None = None
    once: bool = False
    devices: tuple[int, ...] = (0,)


@dataclass(frozen=True, slots=True)
class GpuUnderTest:
    """Torch, a device, and two buffers of random elements on it."""

    torch: Any
    device: Any
    target: Any
    source: Any

    @property
    def cuda(self) -> bool:
        """Whether it is a real GPU; tests use the CPU instead."""
        return bool(self.device.type == "cuda")


def prepare_gpu(job: MeasurementJob, torch: Any, device: str) -> GpuUnderTest:
    """Allocate buffers of the largest size; random, since zeros would draw less power."""
    count = max(1, max(job.sizes) // job.itemsize)
    torch_device, dtype = torch.device(device), getattr(torch, job.dtype)

    def random_buffer() -> Any:
        return torch.randint(-99, 100, (count,), dtype=dtype, device=torch_device)

    return GpuUnderTest(torch, torch_device, random_buffer(), random_buffer())


def make_microbenchmarks(job: MeasurementJob, gpu: GpuUnderTest) -> Iterator[Microbenchmark]:
    """All microbenchmarks of this device, one after the other."""
    sizes = sorted({max(1, nbytes // job.itemsize) * job.itemsize for nbytes in job.sizes})
    for nbytes in sizes:
        target, source = gpu.target[: nbytes // job.itemsize], gpu.source[: nbytes // job.itemsize]
        yield Microbenchmark("copy", nbytes, partial(target.copy_, source))
        yield Microbenchmark("reduce", nbytes, partial(target.add_, source))
    yield from _launch_latencies(gpu)
    yield from _host_copies(job, gpu, sizes)
    yield from _block_copies(gpu, sizes[-1])
    yield from _overlap(gpu)
    yield from _peer_copies(gpu, sizes)


def _launch_latencies(gpu: GpuUnderTest) -> Iterator[Microbenchmark]:
    tiny = gpu.target[:1]

    def chain() -> None:
        for _ in range(CHAINED_KERNELS):
            tiny.add_(1)

    yield Microbenchmark("launch", 0, chain, "enqueue", CHAINED_KERNELS, "enqueue")
    yield Microbenchmark("launch", 0, chain, "back to back", CHAINED_KERNELS)
    yield Microbenchmark("synchronize", 0, lambda: tiny.add_(1), "launch and wait", clock="host")
    yield Microbenchmark("synchronize", 0, lambda: None, "idle", clock="host")
    if gpu.cuda:
        streams = [gpu.torch.cuda.Stream() for _ in range(2)]

        def hops() -> None:
            current = gpu.torch.cuda.current_stream()
            for index in range(CHAINED_KERNELS):
                streams[index % 2].wait_event(
                    (streams[index % 2 - 1] if index else current).record_event()
                )
                with gpu.torch.cuda.stream(streams[index % 2]):
                    tiny.add_(1)
            current.wait_stream(streams[(CHAINED_KERNELS - 1) % 2])

        yield Microbenchmark(
            "synchronize", 0, hops, "kernel after event of another stream", CHAINED_KERNELS
        )


def _host_copies(
    job: MeasurementJob, gpu: GpuUnderTest, sizes: list[int]
) -> Iterator[Microbenchmark]:
    """Copy to and from the host: the cost of staging where GPUs cannot reach each other."""
    if not gpu.cuda:
        return
    for setting, pinned in (("pinned", True), ("pageable", False)):
        host = gpu.torch.empty(len(gpu.target), dtype=gpu.target.dtype, pin_memory=pinned)
        host.copy_(gpu.target)
        clock = "device" if pinned else "host"  # a pageable copy keeps the host busy
        for nbytes in sizes:
            on_gpu, on_host = gpu.source[: nbytes // job.itemsize], host[: nbytes // job.itemsize]
            to_gpu = partial(on_gpu.copy_, on_host, non_blocking=pinned)
            to_host = partial(on_host.copy_, on_gpu, non_blocking=pinned)
            yield Microbenchmark("host_to_device", nbytes, to_gpu, setting, clock=clock)
            yield Microbenchmark("device_to_host", nbytes, to_host, setting, clock=clock)


def _block_copies(gpu: GpuUnderTest, nbytes: int) -> Iterator[Microbenchmark]:
    """Measure the copy bandwidth by number of thread blocks; nothing without Triton."""
    kernel, item = copy_kernel() if gpu.cuda else None, gpu.target.element_size()
    count = min(nbytes // item, MOST_BLOCKED)
    if kernel is None:
        return
    for blocks in BLOCK_COUNTS:
        run = partial(kernel[(blocks,)], gpu.source, gpu.target, count)
        yield Microbenchmark("blocks_copy", count * item, run, f"{blocks} blocks")


def _overlap(gpu: GpuUnderTest) -> Iterator[Microbenchmark]:
    """Time a matrix product alone, and while copies run on another stream."""
    torch = gpu.torch
    side, dtype = (MATRIX_SIDE, torch.float16) if gpu.cuda else (64, torch.float32)
    first, second = (torch.randn(side, side, device=gpu.device).to(dtype) for _ in range(2))
    multiply = partial(torch.mm, first, second, out=torch.empty_like(first))
    yield Microbenchmark("overlap", 0, multiply, "matrix product alone", once=True)
    if not gpu.cuda:
        return
    copy_stream = torch.cuda.Stream()
    source = torch.randint(-128, 128, (SIDE_BYTES,), dtype=torch.int8, device=gpu.device)
    pinned = torch.empty(SIDE_BYTES, dtype=torch.int8, pin_memory=True)
    torch.cuda.synchronize()  # the other stream must not copy what is still being made

    def copies(target: Any, count: int) -> None:
        with torch.cuda.stream(copy_stream):
            for _ in range(count):
                target.copy_(source, non_blocking=True)

    # One copy to the host lasts longer than many within the device.
    for target, count, name in (
        (torch.empty_like(source), SIDE_COPIES, "device copies"),
        (pinned, 1, "copies to the host"),
    ):
        setting, beside = f"matrix product beside {name}", partial(copies, target, count)
        yield Microbenchmark("overlap", SIDE_BYTES, multiply, setting, before=beside, once=True)


def _peer_copies(gpu: GpuUnderTest, sizes: list[int]) -> Iterator[Microbenchmark]:
    """Copy between every pair of devices, both ways."""
    count = gpu.torch.cuda.device_count() if gpu.cuda else 0
    sources = [gpu.target.to(f"cuda:{device}") for device in range(count if count > 1 else 0)]
    targets = [gpu.torch.empty_like(source) for source in sources]
    for src, dst in itertools.permutations(range(len(sources)), 2):
        direct = gpu.torch.cuda.can_device_access_peer(dst, src)
        setting = f"gpu{src} -> gpu{dst}" + ("" if direct else ", through the host")
        for nbytes in sizes:
            place = slice(nbytes // gpu.target.element_size())
            run = partial(targets[dst][place].copy_, sources[src][place], non_blocking=True)
            yield Microbenchmark(
                "peer_copy", nbytes, run, setting, clock="host", devices=(src, dst)
            )
