"""A profiler trace of a small DDP training whose times are known, event by event.

A host launches kernels of linear layers, a GPU runs them one after the other, all-reduces run
beside backward. Fields are those that PyTorch's profiler writes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

WIDTH = 512
MAIN, AUTOGRAD, COMPUTE, COMM = 100, 101, 7, 20


@dataclass
class MadeTrace:
    """What the trace contains; times in microseconds.

    `layers`: kernel time of each, forward; backward takes twice that.
    `buckets`: layers (in the order of backward) that end a bucket.
    `slowdown`: of backward's kernels that begin while an all-reduce runs.
    `waiting`: by which all-reduces last longer than `comm`, as another rank comes later.
    `launch`: of the host, for each kernel.
    """

    layers: tuple[float, ...] = (400.0, 300.0, 300.0, 500.0)
    buckets: tuple[int, ...] = (1, 3)
    comm: float = 450.0
    slowdown: float = 1.0
    waiting: float = 0.0
    launch: float = 5.0
    optimizer: float = 200.0
    steps: int = 5
    rank: int = 0
    ranks: int = 2
    shapes: bool = True
    arguments: bool = True
    marks: bool = True
    whole_us: bool = False
    old: bool = False
    events: list[dict[str, Any]] = field(default_factory=list)
    host: float = 1e6
    device: float = 1e6
    comm_free: float = 1e6
    number: int = 0
    sequence: int = 0

    def write(self, path: Path) -> Path:
        path.write_text(json.dumps(self.document()))
        return path

    def document(self) -> dict[str, Any]:
        for step in range(self.steps):
            self._step(step)
        header: dict[str, Any] = {"schemaVersion": 1}
        header["deviceProperties"] = [
            {"id": 0, "name": "NVIDIA A100-SXM4-40GB", "totalGlobalMem": 42297524224}
        ]
        header["distributedInfo"] = {
            "backend": "nccl",
            "rank": self.rank,
            "world_size": self.ranks,
        }
        return {**header, "traceEvents": self.events, "traceName": "made"}

    # ------------------------------------------------------------ events

    def _add(
        self, cat: str, name: str, thread: int, start: float, length: float, **args: Any
    ) -> None:
        if self.whole_us:
            start, length = int(start), int(length)
        old = {
            "cpu_op": "Operator",
            "kernel": "Kernel",
            "cuda_runtime": "Runtime",
            "gpu_memcpy": "Memcpy",
            "user_annotation": "Operator",
        }
        event = {
            "ph": "X",
            "cat": old[cat] if self.old else cat,
            "name": name,
            "pid": 1 if thread >= MAIN else 0,
            "tid": thread,
            "ts": start,
            "dur": length,
            "args": args,
        }
        self.events.append(event)

    def _launch(
        self, name: str, thread: int, length: float, cat: str = "kernel", **args: Any
    ) -> float:
        """Launch a kernel on the compute stream and return when it ends."""
        self.number += 1
        self._add(
            "cuda_runtime",
            "cudaLaunchKernel",
            thread,
            self.host,
            self.launch * 0.8,
            correlation=self.number,
        )
        start = max(self.device, self.host + 2.0)
        if self.slowdown > 1 and start < self.comm_free:
            beside = min(length * self.slowdown, self.comm_free - start)
            length = beside + (length - beside / self.slowdown)
        self._add(
            cat, name, COMPUTE, start, length, correlation=self.number, stream=COMPUTE, **args
        )
        self.device = start + length
        self.host += self.launch
        return self.device

    def _step(self, step: int) -> None:
        begin = self.host
        seqs = []
        for length in self.layers:
            start, seq = self.host, self.sequence
            self._launch("gemm", MAIN, length, grid=[8, 1, 1], block=[int(length), 1, 1])
            shapes = {"Input Dims": [[32, WIDTH], [WIDTH, WIDTH], [WIDTH]]} if self.shapes else {}
            self._add(
                "cpu_op",
                "aten::linear",
                MAIN,
                start,
                self.host - start,
                **{"Sequence number": seq, "Fwd thread id": 0},
                **shapes,
            )
            seqs.append(seq)
            self.sequence += 1
        pending: list[float] = []
        filled = 0
        for at, (length, seq) in enumerate(zip(self.layers[::-1], seqs[::-1], strict=True)):
            filled += WIDTH * WIDTH + WIDTH
            ends_bucket = at in self.buckets
            done = self._backward(length, seq, ends_bucket, filled)
            if ends_bucket:
                pending.append(done)
                filled = 0
        self._finish(pending)
        if self.marks:
            self._add("user_annotation", f"ProfilerStep#{step}", MAIN, begin, self.host - begin)
        self.host = max(self.host + 1.0, begin + 10.0)

    def _backward(self, length: float, seq: int, ends_bucket: bool, filled: int) -> float:
        prefix, start = "autograd::engine::evaluate_function: ", self.host
        self._launch(
            "gemm_backward", AUTOGRAD, 2 * length, grid=[8, 1, 1], block=[int(length), 1, 1]
        )
        self._add(
            "cpu_op",
            f"{prefix}AddmmBackward0",
            AUTOGRAD,
            start,
            self.host - start,
            **{"Sequence number": seq, "Fwd thread id": 1},
        )
        done = 0.0
        for shape in ([WIDTH], [WIDTH, WIDTH]):
            start, place = self.host, len(self.events)
            dims = {"Input Dims": [shape], "Input type": ["float"]} if self.shapes else {}
            self._add("cpu_op", "torch::autograd::AccumulateGrad", AUTOGRAD, start, 0.5, **dims)
            self._launch("mul", AUTOGRAD, 4.0 if len(shape) > 1 else 2.0)
            self._add(
                "cpu_op",
                "torch::distributed::reducer::mul_out",
                AUTOGRAD,
                start,
                self.launch,
                **dims,
            )
            if len(shape) > 1 and ends_bucket:
                done = self._all_reduce(filled)
            name = f"{prefix}torch::autograd::AccumulateGrad"
            self._add("cpu_op", name, AUTOGRAD, start, self.host - start)
            self.events.insert(place, self.events.pop())  # parents stand before their children
        return done

    def _all_reduce(self, elements: int) -> float:
        self.number += 1
        start = max(self.device, self.comm_free, self.host + 2.0)
        length = self.comm + self.waiting
        args: dict[str, Any] = {"correlation": self.number}
        if self.arguments:
            args |= {
                "Collective name": "allreduce",
                "In msg nelems": elements,
                "dtype": "Float",
                "Group size": self.ranks,
                "Process Group Name": "0",
            }
        self._add(
            "cuda_runtime", "cudaLaunchKernelExC", AUTOGRAD, self.host, 3.0, correlation=self.number
        )
        dims = {"Input Dims": [[elements]]} if self.shapes else {}
        self._add("user_annotation", "nccl:all_reduce", AUTOGRAD, self.host - 0.1, 3.5, **dims)
        self._add("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", COMM, start, length, **args)
        self.host += 4.0
        self.comm_free = start + length
        return self.comm_free

    def _finish(self, pending: list[float]) -> None:
        """Copy buckets back when they are reduced, then run the optimizer."""
        sizes = [4 * WIDTH, 4 * WIDTH * WIDTH] * len(self.layers)
        per_bucket = iter(sizes)
        counts = [2 * (b - a) for a, b in zip((-1, *self.buckets), self.buckets, strict=False)]
        slow, self.slowdown = self.slowdown, 1.0
        for done, count in zip(pending, counts, strict=True):
            self.device = max(self.device, done)
            for _ in range(count):
                nbytes = next(per_bucket)
                start = self.host
                self._launch(
                    "Memcpy DtoD (Device -> Device)", MAIN, 3.0, "gpu_memcpy", bytes=nbytes
                )
                self._add("cpu_op", "aten::copy_", MAIN, start, self.host - start)
        start = self.host
        self._launch("sgd", MAIN, self.optimizer)
        self._add("cpu_op", "aten::_foreach_add_", MAIN, start, self.host - start)
        self._add("user_annotation", "Optimizer.step#SGD.step", MAIN, start, self.host - start)
        self.slowdown = slow
