"""ZeRO stage 3: one training step as a StepPlan.

The order of events is that of DeepSpeed 0.19 (``deepspeed/runtime/zero/stage3.py`` and
``partitioned_param_coordinator.py``):

- Parameters of a module are gathered before it, and ahead of it as the queue of later uses allows
  (`perfmodel.training.zero.fetches`); several in one collective, whose result is copied out
  on the gathering stream. Collectives run one after the other in the order of their issue.
- Gradients are copied into a bucket on the reducing stream (``__add_grad_to_ipg_bucket``). It is
  reduced once the next one does not fit, the last one at the end of each backward, for which the
  host waits (``independent_gradient_partition_epilogue``).
- The step agrees on the norm of each sub-group (and on an overflow in fp16), updates a part of the
  parameters, and gathers the persistent ones, one by one (``_post_step``). Before the norms, Muon
  gathers matrices (`perfmodel.training.zero.matrices`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby

from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.training.plan.builder import COMPUTE, GROUP, RANKS
from perfmodel.training.plan.forward_backward import visit_segments
from perfmodel.training.plan.step_plan import Communicator, Op, StepPlan, neighbours
from perfmodel.training.sharding_step import (
    GATHERING,
    REDUCTION,
    ShardingStep,
)
from perfmodel.training.strategy import StepRequest
from perfmodel.training.zero.fetches import Fetch, persistent_tensors, trace_fetches
from perfmodel.training.zero.matrices import matrix_gathers
from perfmodel.training.zero.offload import (
    add_drive_task,
    add_grouped_update,
    add_host_update,
    drive_tensors,
    gradient_bytes,
    own_gradient_seconds,
    part_elements,
    sub_groups,
)
from perfmodel.training.zero.sharded_states import (
    GradientBucket,
    gradient_buckets,
    sent_dtype,
)
from perfmodel.workload.model import ITEM_BYTES, Workload

NORM_DTYPE, OVERFLOW_DTYPE = "fp64", "uint8"

SECONDARY = "holders of second copies"
"""Communicator of the ranks that hold a second copy of the parameters between them."""


def sharded_parameters_plan(request: StepRequest, options: ZeroStrategy) -> StepPlan:
    """Return one step of stage 3.

    Raises `ScheduleError`: times that do not fit the workload.
    """
    workload, ranks = request.workload, request.ranks
    buckets = gradient_buckets(workload, options, None, gradient_order(workload))
    members = ((each, bucket.index) for bucket in buckets for each in bucket.tensors)
    step = _Passes.begin(
        request,
        options,
        buckets=buckets,
        places={each: (place, index) for place, (each, index) in enumerate(members)},
    )
    batches, _ = trace_fetches(workload, options, drive_tensors(workload, options, ranks))
    for micro_batch, fetches in enumerate(batches):
        step.micro_batch, step.pending = micro_batch, 0
        step.add_micro_batch(fetches)
    step.micro_batch = 0
    end = _add_optimizer(step)
    holders = options.zero_hpz_partition_size
    others = (Communicator(SECONDARY, neighbours(ranks, holders)),) if holders > 1 else ()
    return step.plan(end, "ZeRO-3", others)


def gradient_order(workload: Workload) -> tuple[int, ...]:
    """Return gradients in the order in which they get ready, weights before biases.

    Stage 3 replaces PyTorch's linear function by its own (``memory_efficient_linear``), whose
    backward returns them in the order of its arguments.
    """
    return tuple(tensor for layer in reversed(workload.layers) for tensor in sorted(layer.tensors))


@dataclass(slots=True, kw_only=True)
class _Passes(ShardingStep[ZeroStrategy]):
    """Forward and backward of the step.

    `places`: of each gradient, its place in the order in which they get ready, and its bucket.
    `gathered`: gathers so far, with their collectives.
    `joined`: layers that have met no event since the last one.
    `pending`: the bucket that is being filled.
    `blocked`: what the host waited for last, to copy parameters from its memory or to read them.
    `reading`: the last read of parameters from drives.
    `written`: writes of gradients to drives.
    """

    buckets: Sequence[GradientBucket]
    places: dict[int, tuple[int, int]]
    gathered: list[tuple[Fetch, int]] = field(default_factory=list)
    joined: list[int] = field(default_factory=list)
    backward: bool = False
    pending: int = 0
    reduced: int | None = None
    blocked: tuple[int, ...] = ()
    reading: tuple[int, ...] = ()
    written: list[int] = field(default_factory=list)

    def add_micro_batch(self, fetches: Sequence[Fetch]) -> None:
        """Add the layers of a micro-batch and what happens between them."""
        for event in fetches:
            if event.kind == "layer":
                self._layer(event)
                continue
            self._end_run()
            if event.kind == "gather":
                self._gather(event)
            elif event.kind == "arrive":
                self._arrive(event.number)
            elif event.kind == "read":
                self.reading = (
                    add_drive_task(
                        self,
                        "read parameters",
                        self.item_bytes * self._part(event.tensors),
                        (*self.host_waits, *self.blocked),
                    ),
                )
            elif self.reading:
                self.blocked = self.reading
                self.host_waits += self.reading
        self._end_run()
        self._reduce()
        if self.reduced is not None:
            self.host_waits = (self.reduced,)

    def _part(self, tensors: Sequence[int]) -> int:
        """Elements of a rank's part of some parameters."""
        return part_elements(self.request.workload, tensors, self.request.ranks)

    def _layer(self, event: Fetch) -> None:
        """Add a layer to the run, which ends where the pass or the bucket does."""
        if event.backward != self.backward:
            self._end_run()
            self.backward = event.backward
        self.joined.append(event.number)
        tensors = self.request.workload.layers[event.number].tensors
        if event.backward and any(self.places[each][1] != self.pending for each in tensors):
            self._end_run()

    def _end_run(self) -> None:
        """Add the layers of the run as one task, then what their gradients cause."""
        if not self.joined:
            return
        backward, request = self.backward, self.request
        layers, self.joined = self.joined[::-1] if backward else self.joined, []
        (part,) = visit_segments(
            request.workload, request.times, layers, at_most=1, backward=backward
        )
        self.segment(part, "backward" if backward else "forward")
        if backward:
            self._gradients(sorted(part.tensors, key=self.places.__getitem__))

    def _gather(self, gather: Fetch) -> None:
        """Gather parameters, copied together first where there are several."""
        elements = self._part(gather.tensors) * self.request.ranks
        holders = self.options.zero_hpz_partition_size if gather.secondary else self.request.ranks
        own_bytes = elements // holders * self.item_bytes
        seconds = self.tasks.copy_s(own_bytes, 1) if len(gather.tensors) > 1 else 0.0
        seconds += self.request.host_copy_s(own_bytes) if self.options.offload_param else 0.0
        name, group = f"gather {len(self.gathered)}", SECONDARY if gather.secondary else GROUP
        copied = self._on_gathering_stream(name, f"copy in {name}", seconds, 2, self.host_waits)
        if self.options.offload_param:  # `.to(device)` returns when the copy is done
            self.host_waits = self.blocked = (copied,)
        sent = self.collective(name, "all_gather", elements, after=(copied,), communicator=group)
        self.gathered.append((gather, sent))

    def _arrive(self, number: int) -> None:
        """Copy gathered parameters out, for which the next layer waits."""
        gather, end = self.gathered[number]
        kernels, name = len(gather.tensors), f"copy out gather {number}"
        if kernels > 1:
            copied_s = self.tasks.copy_s(self.numel(gather.tensors) * self.item_bytes, kernels)
            end = self._on_gathering_stream(name, name, copied_s, kernels, (end,))
        self.device_waits += (end,)

    def _on_gathering_stream(
        self, issued_as: str, name: str, seconds: float, kernels: int, after: tuple[int, ...]
    ) -> int:
        """Copy beside the layers, or between them where nothing overlaps."""
        issued = self.tasks.issue(issued_as, kernels, RANKS, after=self.host_waits)
        return self.tasks.compute(
            name,
            "copy",
            seconds,
            RANKS,
            after=dict.fromkeys((*issued, *after)),
            stream=GATHERING if self.options.overlaps_backward else COMPUTE.name,
            micro_batch=self.micro_batch,
        )

    def _gradients(self, tensors: Sequence[int]) -> None:
        """Copy gradients into their buckets, each of which is reduced before the next is begun."""
        for index, group in groupby(tensors, key=lambda tensor: self.places[tensor][1]):
            while self.pending < index:
                self._reduce()
                self.pending += 1
            members, bucket = list(group), self.buckets[index]
            if self.options.contiguous_gradients and not bucket.is_oversized:
                self._copy_beside(
                    f"copy in bucket {index}", self.numel(members) * self.item_bytes, len(members)
                )

    def _reduce(self) -> None:
        """Reduce the bucket to the owners of its parts."""
        options, bucket, item = self.options, self.buckets[self.pending], self.item_bytes
        part, splits = self._part(bucket.tensors), bucket.is_oversized or options.reduce_scatter
        whole = options.contiguous_gradients and not splits
        op: Op = "all_reduce" if whole else "reduce_scatter"
        elements = bucket.elements if whole else part * self.request.ranks
        name, dtype = f"bucket {bucket.index}", sent_dtype(self)
        copied = elements * item * (1 if whole else 2)
        if ITEM_BYTES[dtype] != item:
            copied += elements * (ITEM_BYTES[dtype] + item) // 2
        ready = self._copy_beside(f"average {name}", copied, 3)
        title = f"{op.replace('_', '-')} {name}"
        sent = self.collective(
            title, op, elements, dtype=dtype, after=(ready,), bucket=bucket.index
        )
        out = int((1.5 if self.micro_batch > 0 else 1.0) * part * item)
        self.reduced = self._copy_beside(f"copy out {name}", out, len(bucket.tensors), (sent,))
        if options.offload_optimizer:
            copied_s = own_gradient_seconds(self, part)
            self.reduced = self._copy_beside(f"{name} to host", 0, 0, more_s=copied_s)
            if options.offload_optimizer.nvme and self.is_last:
                nbytes, title = gradient_bytes(self, bucket.tensors), f"write gradients of {name}"
                self.written.append(
                    add_drive_task(self, title, nbytes, (self.reduced,), write=True)
                )

    def _copy_beside(
        self,
        name: str,
        nbytes: int,
        kernels: int,
        after: tuple[int, ...] = (),
        *,
        more_s: float = 0.0,
    ) -> int:
        """Copy on the reducing stream, which follows the computing one.

        `more_s`: of copies to the host and back.
        """
        seconds = self.tasks.copy_s(nbytes, kernels) + more_s
        if not self.options.overlaps_backward:
            self.device_waits += after
            return self.work(name, "copy", seconds, kernels)
        return self.tasks.launch(
            name,
            "copy",
            seconds,
            kernels,
            RANKS,
            after=(*after, *self.behind),
            stream=REDUCTION,
            micro_batch=self.micro_batch,
        )


def _add_optimizer(step: _Passes) -> int:
    """Agree on the gradients, update the parts, gather the persistent parameters."""
    workload, ranks, options = step.request.workload, step.request.ranks, step.options
    groups = sub_groups(workload, options, ranks, step.request.optimizer)
    parts = [part_elements(workload, group, ranks) for group in groups]
    if step.dtype == "fp16":
        step.agree("overflow", OVERFLOW_DTYPE, sum(parts) * step.item_bytes)
    for name, elements, copies in matrix_gathers(workload, options, ranks, step.request.optimizer):
        step.device_waits = (
            step.collective(
                f"gather {name}",
                "all_gather",
                elements,
                dtype=sent_dtype(step),
                after=(*step.behind, *step.device_waits, *step.host_waits),
            ),
        )
        step.copy(f"copy out {name}", elements * ITEM_BYTES[sent_dtype(step)], copies)
    for number, part in enumerate(parts):
        step.agree(f"norm of sub-group {number}", NORM_DTYPE, part * step.item_bytes)
    if options.offload_param or options.uses_drives:
        end = add_grouped_update(step, groups, step.written)
    elif options.offload_optimizer:
        end = add_host_update(step, sum(parts))
    else:
        end = step.update(sum(parts))
    for tensor in persistent_tensors(workload, options):
        name, part = workload.tensors[tensor].name, part_elements(workload, (tensor,), ranks)
        issued = step.tasks.issue(f"gather {name}", 1, RANKS)
        if options.offload_param:
            step.device_waits = (end,)
            end = step.work(
                f"copy {name} up", "copy", step.request.host_copy_s(part * step.item_bytes), 1
            )
        end = step.collective(f"gather {name}", "all_gather", part * ranks, after=(*issued, end))
    return end
