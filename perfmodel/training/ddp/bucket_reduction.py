"""One bucket on its way through a communication hook.

A hook runs in the thread that runs backward. What it does before its first collective stands on
the stream of backward; what follows in callbacks of that collective runs on a stream of their own
(``torch/csrc/distributed/c10d/python_comm_hook.cpp`` and ``ivalue::Future``). NCCL's futures are
complete once a collective is enqueued, so the same thread issues the callbacks at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from perfmodel.training.ddp.buckets import Bucket
from perfmodel.training.plan.builder import COMPUTE, GROUP
from perfmodel.training.plan.forward_backward import Step
from perfmodel.training.plan.step_plan import Op
from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor

CAST, CALLBACK = "cast", "hook"
"""Streams: of conversions on a host, and of callbacks."""


def sum_passes(*passes: tuple[object, float, int]) -> tuple[float, int]:
    """Bytes and kernels of those passes over memory that are made.

    A pass: whether it is made, the bytes that it moves, and its kernels.
    """
    made = [(nbytes, kernels) for is_made, nbytes, kernels in passes if is_made]
    return sum(nbytes for nbytes, _ in made), sum(kernels for _, kernels in made)


@dataclass(frozen=True, slots=True)
class BucketReduction:
    """A bucket that is complete after the tasks `ready`."""

    step: Step
    bucket: Bucket
    ready: tuple[int, ...]

    @property
    def tensors(self) -> tuple[ParameterTensor, ...]:
        """Gradients of the bucket, as they lie in it."""
        return tuple(self.step.request.workload.tensors[index] for index in self.bucket.tensors)

    @property
    def numel(self) -> int:
        """Elements of the bucket."""
        return self.bucket.nbytes // ITEM_BYTES[self.bucket.dtype]

    @property
    def ranks(self) -> int:
        """Ranks that reduce it."""
        return self.step.options.ranks_of_group(self.step.request.ranks)

    @property
    def name(self) -> str:
        """What tasks call it."""
        return f"bucket {self.bucket.index}"

    @property
    def marks(self) -> dict[str, Any]:
        """Marks of its tasks."""
        return {"bucket": self.bucket.index, "micro_batch": self.step.last_micro_batch}

    def work_s(self, moved_bytes: float, kernels: int) -> float:
        """Device time of kernels that read and write so many bytes; seconds."""
        tasks, cast_Bps = self.step.tasks, self.step.request.cast_Bps
        moved_Bps = 2 * tasks.copy_Bps if cast_Bps is None else passes_of("cast") * cast_Bps
        return moved_bytes / moved_Bps + kernels * tasks.kernel_s

    def compress(self, moved_bytes: float, kernels: int, *, more_s: float = 0.0) -> int:
        """Run kernels before the first collective, in the order of backward.

        `more_s`: beyond what the bytes take; seconds.
        """
        return self._run(
            "compress",
            self.work_s(moved_bytes, kernels) + more_s,
            kernels,
            stream=COMPUTE.name if self.step.request.cast_Bps is None else CAST,
            after=self.ready,
            role="compress",
        )

    def call_back(
        self,
        name: str,
        moved_bytes: float,
        kernels: int,
        *,
        after: Iterable[int],
        more_s: float = 0.0,
    ) -> int:
        """Run kernels in a callback of a collective."""
        return self._run(
            name, self.work_s(moved_bytes, kernels) + more_s, kernels, stream=CALLBACK, after=after
        )

    def _run(
        self, verb: str, duration_s: float, kernels: int, *, after: Iterable[int], **marks: Any
    ) -> int:
        """Run kernels, which the host issues unless it does the work itself."""
        tasks, rank_class, name = self.step.tasks, self.step.rank_class, f"{verb} {self.name}"
        issued: tuple[int, ...] = ()
        if self.step.request.cast_Bps is None:
            issued = tasks.issue(name, kernels, rank_class, **self.marks)
        return tasks.compute(
            name,
            "copy",
            duration_s,
            rank_class,
            after=dict.fromkeys((*issued, *after)),
            **marks,
            **self.marks,
        )

    def copy(
        self, name: str, nbytes: float, kernels: int, *, after: Iterable[int], **marks: Any
    ) -> int:
        """Copy within the device."""
        tasks, rank_class = self.step.tasks, self.step.rank_class
        return tasks.copy(name, nbytes, kernels, rank_class, after=after, **marks, **self.marks)

    def send(self, name: str, op: Op, nbytes: int, dtype: str, *, after: Iterable[int]) -> int:
        """Run a collective with all ranks."""
        key = f"{name} {self.name}" if name else self.name
        return self.step.tasks.collective(
            f"{op.replace('_', '-')} {key}",
            op,
            nbytes,
            self.step.rank_class,
            communicator=GROUP,
            key=key,
            after=tuple(after),
            dtype=dtype,
            **self.marks,
        )

    def hold_host(self, after: Iterable[int]) -> None:
        """Let the thread of backward wait."""
        self.step.tasks.wait(
            f"wait for {self.name}", self.step.rank_class, after=after, **self.marks
        )
