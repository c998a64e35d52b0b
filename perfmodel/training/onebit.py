"""Steps of DeepSpeed's 1-bit optimizers: gradients stay on their rank, momenta are averaged.

They are ``OnebitAdam``, ``ZeroOneAdam`` and ``OnebitLamb`` of DeepSpeed 0.14.5
(deepspeed/runtime/fp16/onebit). Nothing is sent during backward. In the warm-up the engine
all-reduces gradients after it, flattened in pieces (``buffered_allreduce_fallback``). Afterwards
the optimizer updates momenta with the rank's own gradients and averages these compressed. Models in
fp16 have one flat buffer of all parameters (``FP16_Optimizer``), in fp32 each tensor is averaged on
its own; LAMB joins all momenta always.

Momenta are averaged by signs in one bit each and a scale, out and back, as
``NcclBackend.compressed_allreduce`` does (deepspeed/runtime/comm/nccl.py): each rank adds its
error, takes signs and a scale, and keeps what is lost; an all-to-all brings each rank the signs of
its part from all, which it averages, adds its own error to and takes signs of again; an all-gather
brings all parts to all. Every operation is a kernel of its own, on fp32, and the host waits for the
device after signs are packed (``compress_by_chunk`` in deepspeed/runtime/compression/cupy.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.arrays import round_up
from perfmodel.errors import refuse_if
from perfmodel.files.read import read_yaml
from perfmodel.scenario.strategies.deepspeed import OneBitStrategy
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.memory_use import MemoryUse, Setup, replicated
from perfmodel.training.plan.builder import COMPUTE, GROUP, HOST, RANKS, TaskList
from perfmodel.training.plan.forward_backward import Step, add_forward, add_local_backward
from perfmodel.training.plan.step_plan import Communicator, Op, RankClass, StepPlan, Stream
from perfmodel.training.sharding_step import full_groups
from perfmodel.training.strategy import StepRequest, Strategy
from perfmodel.workload.kernels.shapes import WIDE_BYTES
from perfmodel.workload.model import ITEM_BYTES, Workload


@dataclass(frozen=True, slots=True)
class Passes:
    """Kernels over a tensor: bytes of an element that all of them move, and their number."""

    item_bytes: float
    kernels: int


@cache
def kernel_passes() -> Mapping[str, Passes]:
    """Read the kernels of each part of a step; the file says what they are."""
    rows = read_yaml(Path(__file__).with_suffix(".yaml"))
    return {name: Passes(sum(row["item_bytes"]), row["kernels"]) for name, row in rows.items()}


def padded_elements(elements: int, ranks: int) -> int:
    """Elements of a buffer whose parts are whole bytes on each rank (``corrected_tensor_size``).

    Examples
    --------
    >>> padded_elements(1000, 4)
    1024
    """
    return round_up(elements, ranks * math.lcm(ranks, 8))


PASSES_OF_STEP = {
    "warm-up": ("momentum", "variance", "update"),
    "adam": ("momentum", "update"),
    "zero_one_adam": ("momentum", "update", "local"),
    "lamb": ("momentum", "lamb"),
}
"""What optimizer steps consist of, without exchanges."""


def onebit_plan(request: StepRequest, options: OneBitStrategy) -> StepPlan:
    """Return one step, or the steps from one exchange to the next; the first is of the warm-up.

    Raises `InputError`: parameters that the optimizers do not train.
    """
    check_dtypes(request.workload)
    if request.ranks == 1:
        return ddp_plan(request, DdpOptions(accumulate=options.accumulate))
    warm = request.iteration == "first" and options.freeze_step > 0
    steps, tasks = options.local_steps, TaskList.of(request)
    micro_batches = options.accumulate // steps
    step = Step(request, DdpOptions(accumulate=options.accumulate), tasks, RANKS)
    end = 0
    for number in range(steps):
        first = number * micro_batches
        for micro_batch in range(first, first + micro_batches):
            add_forward(step, micro_batch)
            before = len(tasks.tasks)
            add_local_backward(step, micro_batch - first)  # its gradients begin anew
            added = tasks.tasks[before:]
            tasks.tasks[before:] = [replace(task, micro_batch=micro_batch) for task in added]
        marks = {"micro_batch": first + micro_batches - 1}
        ends = _add_warm_up_reductions(step, marks) if warm else ()
        end = _add_update(step, options, ends, marks, warm=warm, last=number == steps - 1)
    tasks.begin_after(end, (COMPUTE.name,))
    return tasks.plan(
        name=f"1-bit {options.optimizer}, {request.workload.name}",
        classes=(RankClass(RANKS, range(request.ranks)),),
        streams=(HOST, COMPUTE, Stream("comm", "comm", request.comm_workers)),
        communicators=(Communicator(GROUP, (range(request.ranks),)),),
        samples=request.ranks * request.batch_per_gpu * options.accumulate,
    )


def check_dtypes(workload: Workload) -> None:
    """Raise `InputError` unless all trained tensors are fp16 or all fp32."""
    dtypes = {workload.tensors[index].dtype for index in workload.ready_order}
    refuse_if(
        dtypes not in ({"fp16"}, {"fp32"}),
        "model.dtype",
        f"parameters in {' and '.join(sorted(dtypes))}",
        "fp16 or fp32 with strategy.kind: onebit, which DeepSpeed has no others for",
    )


def momentum_buffers(workload: Workload, options: OneBitStrategy) -> tuple[int, ...]:
    """Elements of each buffer that is averaged on its own."""
    trained = [workload.tensors[index] for index in sorted(workload.ready_order)]
    if options.optimizer == "lamb" or trained[0].dtype == "fp16":
        return (sum(tensor.numel for tensor in trained),)
    return tuple(tensor.numel for tensor in trained)


def _add_warm_up_reductions(step: Step, marks: dict[str, Any]) -> tuple[int, ...]:
    """All-reduce gradients in pieces, each flattened, divided and copied back."""
    tasks, end = step.tasks, tuple[int, ...]()
    for number, (elements, tensors, dtype) in enumerate(gradient_pieces(step.request.workload)):
        nbytes, name = ITEM_BYTES[dtype] * elements, f"gradients {number}"
        flat = add_passes(tasks, f"flatten {name}", 2 * nbytes, 1, end, marks)
        sent = tasks.collective(
            f"all-reduce {name}",
            "all_reduce",
            nbytes,
            RANKS,
            communicator=GROUP,
            key=name,
            after=(flat,),
            dtype=dtype,
            **marks,
        )
        end = (add_passes(tasks, f"copy {name} back", 4 * nbytes, 1 + tensors, (sent,), marks),)
    return end


def gradient_pieces(workload: Workload) -> Iterator[tuple[int, int, str]]:
    """Elements, tensors and dtype of each piece of gradients, in the order of registration."""
    order = sorted(workload.ready_order)
    most = fixed_in("deepspeed", "onebit_piece_elements")
    for group in full_groups(order, workload, most + 1, exceeds=True):
        tensors = [workload.tensors[index] for index in group]
        yield sum(tensor.numel for tensor in tensors), len(tensors), tensors[-1].dtype


def _add_update(
    step: Step,
    options: OneBitStrategy,
    after: tuple[int, ...],
    marks: dict[str, Any],
    *,
    warm: bool,
    last: bool,
) -> int:
    """Add an optimizer step, with the exchange of momenta where it has one."""
    workload, tasks, kind = step.request.workload, step.tasks, options.optimizer
    buffers, trained = momentum_buffers(workload, options), len(workload.ready_order)
    elements, times = sum(buffers), trained if kind == "lamb" else len(buffers)
    known, parts = kernel_passes(), PASSES_OF_STEP["warm-up" if warm else kind]
    own, kernels = (
        sum(getattr(known[part], of) for part in parts) for of in ("item_bytes", "kernels")
    )

    def passes(name: str, moved: float, kernels: int, after: Iterable[int]) -> int:
        return add_passes(tasks, name, moved, kernels, after, marks, "optimizer")

    if workload.tensors[workload.ready_order[0]].dtype == "fp16":
        flat = known["flat"]
        after = (
            passes("unscale gradients", flat.item_bytes * elements, flat.kernels * trained, after),
        )
    exchanges, momentum = not warm and last, known["momentum"].item_bytes
    before = momentum if exchanges and kind != "zero_one_adam" else own
    end = passes("optimizer", before * elements, kernels * times, after)
    if not exchanges:
        return end
    for number, buffer in enumerate(buffers):
        name = f"momenta {number}" if number else "momenta"
        end = add_compressed_reduction(tasks, step.request.ranks, buffer, name, marks, (end,))
    rest = Passes(own - momentum, 0)
    if kind == "zero_one_adam":
        rest = known["exchange"]
    if kind == "lamb" and tasks.launch_s > 0:
        end = tasks.wait("read norms", RANKS, after=(end,), **marks)
        reads = fixed_in("deepspeed", "lamb_reads") * trained
        end = tasks.issue("read norms", reads, RANKS, after=(end,), **marks)[0]
    return passes("update", rest.item_bytes * elements, rest.kernels * times, (end,))


# ---------------------------------------------------------------- the compressed all-reduce


def add_compressed_reduction(
    tasks: TaskList,
    ranks: int,
    elements: int,
    name: str,
    marks: dict[str, Any],
    after: Iterable[int],
) -> int:
    """Average a buffer of fp32 elements with one bit per element; return the last task.

    Before each of the two exchanges the host waits for the buffer. Each sends signs, then scales to
    all.
    """
    padded = padded_elements(elements, ranks)
    packed, part = padded // 8, padded // ranks

    def compute(verb: str, elements: Mapping[str, int], after: Iterable[int]) -> int:
        made = [(kernel_passes()[part], count) for part, count in elements.items()]
        moved = sum(passes.item_bytes * count for passes, count in made)
        kernels = sum(passes.kernels for passes, _ in made)
        return add_passes(tasks, f"{verb} {name}", moved, kernels, after, marks)

    def exchange(buffer: str, op: Op, of_parts: str, after: int) -> int:
        end = tasks.wait(f"wait for {buffer} {name}", RANKS, after=(after,), **marks)
        calls: tuple[tuple[str, Op, int, str], ...] = (
            (f"signs{of_parts}", op, packed, "uint8"),
            (f"scales{of_parts}", "all_gather", WIDE_BYTES * ranks, "fp32"),
        )
        for sent, each, nbytes, dtype in calls:
            end = tasks.collective(
                f"{each.replace('_', '-')} {sent} of {name}",
                each,
                nbytes,
                RANKS,
                communicator=GROUP,
                key=f"{sent} of {name}",
                after=(end,),
                dtype=dtype,
                **marks,
            )
        return end

    padding = {"pad": padded} if padded != elements else {}
    end = compute("compress", {"compress": padded, "stack": padded} | padding, after)
    end = exchange("compressed", "all_to_all", "", end)
    end = compute("average", {"unpack": padded, "sum": padded, "compress": part}, (end,))
    end = exchange("average", "all_gather", " of parts", end)
    return compute("decompress", {"stack": padded, "unpack": padded, "copy": padded}, (end,))


def add_passes(
    tasks: TaskList,
    name: str,
    moved: float,
    kernels: int,
    after: Iterable[int],
    marks: dict[str, Any],
    kind: str = "copy",
) -> int:
    """Add kernels that read and write so many bytes of device memory."""
    duration_s = moved / (2 * tasks.copy_Bps) + kernels * tasks.kernel_s
    return tasks.launch(name, kind, duration_s, kernels, RANKS, after=after, **marks)


# ---------------------------------------------------------------- the row

MORE_STATES = {"adam": 0, "zero_one_adam": 1, "lamb": 1}
"""States beside Adam's two: what was not exchanged yet, or the fresh variance."""


def onebit_memory(setup: Setup) -> MemoryUse:
    """Add up what a GPU keeps: Adam's states, the errors of both exchanges, and fp32 gradients.

    A model in fp16 has its gradients once more, flat and in fp32, when activations are gone; so do
    tensors that compression needs.

    Raises `InputError`: ranks or batch below 1, or parameters that these optimizers do not train.
    """
    options: OneBitStrategy = setup.options
    use = replicated(setup)
    if setup.ranks == 1:
        return use
    check_dtypes(setup.workload)
    buffers = momentum_buffers(setup.workload, options)
    padded = [padded_elements(buffer, setup.ranks) for buffer in buffers]
    whole = WIDE_BYTES * sum(buffers)
    master = whole if setup.trained[0].dtype == "fp16" else 0
    # the flat gradients; with LAMB the momenta of the step before
    passing = fixed_in("deepspeed", "onebit_buffers") * WIDE_BYTES * max(padded) + master
    passing += whole if options.optimizer == "lamb" else 0
    return replace(
        use,
        optimizer_bytes=whole * (2 + MORE_STATES[options.optimizer]) + master,
        buckets_bytes=float(WIDE_BYTES * (sum(padded) + sum(padded) // setup.ranks)),
        gathered_bytes=max(0.0, passing - use.activations_bytes),
    )


def _remarks(options: OneBitStrategy) -> tuple[str, ...]:
    remarks = (
        (
            f"The {options.freeze_step:,} steps of the warm-up all-reduce whole gradients after "
            "backward, as the first step does; a step here is one after them."
        ),
        (
            f"A step is a round of {options.local_steps:,} optimizer steps with one exchange; its "
            "samples are of all."
        ),
    )
    return remarks if options.local_steps > 1 else remarks[:1]


ONEBIT = Strategy(
    "1-bit optimizers (DeepSpeed)",
    onebit_plan,
    onebit_memory,
    remarks=_remarks,
    assumptions=(
        "1-bit optimizers follow DeepSpeed 0.14 over NCCL, in kernels of one operation, unmeasured",
        "1-bit optimizers decay weights",
    ),
)
