"""Horovod: one training step as a StepPlan.

The order of events is that of horovod 0.28.1. A hook hands each gradient over as soon as its kernel
has been issued (``torch/optimizer.py``); a thread fuses, in cycles, what all ranks have handed over
(`perfmodel.training.horovod_cycles`), and issues copies into the buffer, the all-reduce and copies
out of it, one reduction after the other on one stream (``ops/nccl_operations.cc``). ``step()``
waits for all of them on the host. On CPUs the thread itself runs each all-reduce, and begins no
cycle meanwhile (``ops/gloo_operations.cc``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from perfmodel.errors import refuse_if
from perfmodel.scenario.strategies.strategy import HorovodStrategy
from perfmodel.training.ddp.options import MIB, DdpOptions
from perfmodel.training.horovod_cycles import (
    Cycle,
    FusionRules,
    casts_s,
    copy_s,
    follows_device,
    fusion_rules,
    handed_over_s,
    is_cached,
    is_cast,
    run_cycles,
)
from perfmodel.training.memory_use import MemoryUse, Setup, replicated
from perfmodel.training.plan.builder import COMM, COMPUTE, GROUP, HOST, RANKS, TaskList
from perfmodel.training.plan.forward_backward import (
    Segment,
    Step,
    add_backward_segment,
    add_forward,
    add_local_backward,
    add_optimizer,
    backward_segments,
)
from perfmodel.training.plan.step_plan import (
    Communicator,
    Op,
    RankClass,
    StepPlan,
    Stream,
    neighbours,
    strides,
)
from perfmodel.training.strategy import Setting, StepRequest, Strategy
from perfmodel.workload.model import ITEM_BYTES

HOSTS, ACROSS = "hosts", "across hosts"
"""Communicators: of the ranks of each host, and of one rank of each host."""

THREAD, BUFFER = Stream("horovod thread", "host"), Stream("fusion buffer", "copy")


def horovod_plan(request: StepRequest, options: HorovodStrategy) -> StepPlan:
    """Return one step under Horovod; of plain training for one rank.

    Raises `InputError`: a torus through host memory.
    Raises `ScheduleError`: times that do not fit the workload.
    """
    refuse_if(
        request.blocking_wait and options.allreduce == "torus",
        "strategy.allreduce",
        "'torus', which is NCCL's, with another library",
        "'flat', or library.name: nccl",
    )
    if request.bucket_copy_Bps is not None:
        request = replace(request, times=replace(request.times, copy_Bps=request.bucket_copy_Bps))
    tasks, ranks, size = TaskList.of(request), request.ranks, request.ranks_per_host
    step = Step(request, DdpOptions(accumulate=options.accumulate), tasks, RANKS)
    for micro_batch in range(step.last_micro_batch):
        add_forward(step, micro_batch)
        add_local_backward(step, micro_batch)
    add_forward(step, step.last_micro_batch)
    # reductions go host by host, but on a single one (operations.cc)
    by_hosts = options.allreduce == "torus" and 1 < size < ranks
    reduced: tuple[int, ...] = ()
    communicators: tuple[Communicator, ...] = ()
    if ranks == 1:
        add_local_backward(step, step.last_micro_batch)
    else:
        reduced = _Reducing(step, options, by_hosts).add_backward()
        communicators = (Communicator(GROUP, (range(ranks),)),)
    if by_hosts:
        hosts, across = neighbours(ranks, size), strides(ranks, size)
        communicators = (Communicator(HOSTS, hosts), Communicator(ACROSS, across))
    add_optimizer(step, reduced, host_waits=True)
    return tasks.plan(
        name=f"Horovod, {request.workload.name}, {request.iteration} iteration",
        classes=(RankClass(RANKS, range(ranks)),),
        streams=(HOST, COMPUTE, THREAD, BUFFER, COMM),
        communicators=communicators,
        samples=ranks * request.batch_per_gpu * options.accumulate,
    )


@dataclass(slots=True)
class _Reducing:
    """The backward that communicates, under construction.

    `handed`, `ready`: by tensor, the tasks after which its hook runs, and its value is there.
    `reduced`: last task of each reduction, with its tensors.
    """

    step: Step
    options: HorovodStrategy
    by_hosts: bool
    handed: dict[int, int] = field(default_factory=dict)
    ready: dict[int, int] = field(default_factory=dict)
    reduced: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)

    def add_backward(self) -> tuple[int, ...]:
        """Add backward and its reductions; return what the optimizer waits for.

        Backward is cut where a cycle or a reduction is complete, so that merging layers delays
        nothing.
        """
        step, request = self.step, self.step.request
        rules, order = fusion_rules(request, self.options), request.workload.ready_order
        steady = request.iteration == "steady" and is_cached(request, self.options)
        cycles = run_cycles(rules, handed_over_s(request, self.options), steady=steady)
        cuts = {order[each] for cycle in cycles for each in (cycle.last, *map(max, cycle.fused))}
        at_most, following = step.resolution(step.last_micro_batch), 0
        for part in backward_segments(
            request.workload, request.times, at_most=at_most, cut_after=cuts
        ):
            self._add_segment(part)
            while following < len(cycles) and order[cycles[following].last] in self.ready:
                self._add_cycle(following, cycles[following], rules, order)
                following += 1
        return tuple(
            self._add_casts_back(number, *each) for number, each in enumerate(self.reduced)
        )

    def _cast(self, tensors: Iterable[int]) -> list[int]:
        """Those of some gradients that travel in 16 bits instead of their own dtype."""
        everything = self.step.request.workload.tensors
        return [each for each in tensors if is_cast(self.options, everything[each].dtype)]

    def _add_segment(self, part: Segment) -> None:
        """Add backward of a segment, and what its hooks do."""
        step, tasks, cast = self.step, self.step.tasks, self._cast(part.tensors)
        end = add_backward_segment(step, part, step.last_micro_batch, copy_kernels=len(cast))
        issued = tasks.tasks[end].after
        if cast:
            end = tasks.compute(
                f"compress {part.name}",
                "copy",
                casts_s(step.request, self.options, cast),
                RANKS,
                after=(end,),
                micro_batch=step.last_micro_batch,
                role="compress",
            )
        handed = end if follows_device(step.request) or not issued else issued[-1]
        self.handed |= dict.fromkeys(part.tensors, handed)
        self.ready |= dict.fromkeys(part.tensors, end)

    def _add_cycle(
        self, number: int, cycle: Cycle, rules: FusionRules, order: Sequence[int]
    ) -> None:
        """Add a cycle: the wait until all have agreed, then its reductions one after the other."""
        step, behind = self.step, [end for end, _ in self.reduced[-1:]]
        agreed = step.tasks.compute(
            f"cycle {number}",
            "wait",
            cycle.waits_s,
            RANKS,
            after=[
                self.handed[order[cycle.last]],
                *(behind if step.request.blocking_wait else ()),
            ],
            stream=THREAD.name,
            micro_batch=step.last_micro_batch,
        )
        for members in cycle.fused:
            tensors = tuple(order[member] for member in members)
            nbytes, dtype = rules.fused_bytes(members), rules.dtypes[members[0]]
            self.reduced.append((self._add_reduction(nbytes, dtype, tensors, agreed), tensors))

    def _add_reduction(self, nbytes: int, dtype: str, tensors: tuple[int, ...], agreed: int) -> int:
        """Add copies into the buffer, the all-reduce, and copies out of it; return the last."""
        step, number = self.step, len(self.reduced)
        marks: dict[str, Any] = {"bucket": number, "micro_batch": step.last_micro_batch}
        copied_s = copy_s(step.request, nbytes, len(tensors))
        behind = (end for end, _ in self.reduced[-1:])
        waits = tuple(
            dict.fromkeys((agreed, max(self.ready[tensor] for tensor in tensors), *behind))
        )

        def copy(verb: str, after: tuple[int, ...], **more: Any) -> tuple[int, ...]:
            if copied_s <= 0:
                return after
            name, marked = f"copy {verb} buffer {number}", marks | more
            return (
                step.tasks.compute(
                    name, "copy", copied_s, RANKS, after=after, stream=BUFFER.name, **marked
                ),
            )

        sent = self._add_all_reduce(nbytes, copy("in", waits), marks | {"dtype": dtype})
        return copy("out", (sent,), role="copy_out")[0]

    def _add_all_reduce(self, nbytes: int, after: tuple[int, ...], marks: dict[str, Any]) -> int:
        """Add the all-reduce of a buffer: within hosts, across them and back, or of all at once."""
        name, size = f"buffer {marks['bucket']}", self.step.request.ranks_per_host
        item = ITEM_BYTES[marks["dtype"]]
        share = -(-nbytes // (item * size)) * item
        whole = share * size  # padded, so that ranks can split it
        calls: tuple[tuple[Op, int, str, str], ...] = (("all_reduce", nbytes, GROUP, name),)
        if self.by_hosts:
            calls = (
                ("reduce_scatter", whole, HOSTS, f"{name} reduce-scatter"),
                ("all_reduce", share, ACROSS, name),
                ("all_gather", whole, HOSTS, f"{name} all-gather"),
            )
        for op, sent, communicator, key in calls:
            end = self.step.tasks.collective(
                f"{op.replace('_', '-')} {name}",
                op,
                sent,
                RANKS,
                communicator=communicator,
                key=key,
                after=after,
                **marks,
            )
            after = (end,)
        return after[0]

    def _add_casts_back(self, number: int, reduced: int, tensors: tuple[int, ...]) -> int:
        """Convert gradients back, each once the host has waited for it; return the last task."""
        step, cast, name = self.step, self._cast(tensors), f"decompress buffer {number}"
        if not cast:
            return reduced
        issued = step.tasks.issue(name, len(cast), RANKS, after=(reduced,))
        cast_s, after = casts_s(step.request, self.options, cast), (*issued, reduced)
        return step.tasks.compute(name, "copy", cast_s, RANKS, after=dict.fromkeys(after))


# ---------------------------------------------------------------- the row


def horovod_memory(setup: Setup) -> MemoryUse:
    """Add up what Horovod keeps on a GPU.

    The fusion buffer has the whole threshold, however little is fused; compression adds a copy of
    all gradients in 16 bits. Gradients alone travel in place.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    options: HorovodStrategy = setup.options
    use = replicated(setup)
    if setup.ranks == 1:
        return use
    half = ITEM_BYTES["fp16"]
    cast = [tensor for tensor in setup.trained if ITEM_BYTES[tensor.dtype] > half]
    compressed = half * sum(tensor.numel for tensor in cast) if options.compression == "fp16" else 0
    return replace(use, buckets_bytes=options.fusion_threshold + compressed)


def horovod_settings(*_: object) -> tuple[Setting, ...]:
    """What HOROVOD_AUTOTUNE tunes too, but for the cache (parameter_manager.cc)."""
    return (
        Setting(
            "fusion_threshold",
            (0.0, *(float(mib * MIB) for mib in (1, 4, 16, 32, 64, 128, 256, 512))),
            "bytes",
        ),
        Setting("cycle_time", (0.5e-3, 1e-3, 2.5e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3), "seconds"),
        Setting("allreduce", ("flat", "torus")),
    )


HOROVOD = Strategy(
    "Horovod",
    horovod_plan,
    horovod_memory,
    assumptions=(
        (
            "Horovod: a cycle of the background thread has begun half a cycle before backward, the "
            "mean of all that can be; with NCCL, issuing reductions takes the thread no time."
        ),
        (
            "Horovod: ranks agree in each cycle by an all-reduce of a bit for each tensor, as long "
            "as one of the controller's library on this network; HOROVOD_AUTOTUNE and "
            "HOROVOD_HIERARCHICAL_ALLREDUCE (MPI between hosts) are not modelled."
        ),
    ),
    settings=horovod_settings,
)
