"""Training steps without buckets: no communication at all, or all of it after backward."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.training.builder import COMPUTE, TaskList
from perfmodel.training.plan import Communicator, RankClass, StepPlan, Stream
from perfmodel.training.reduction import GROUP
from perfmodel.workload.model import LayerTimes, Workload

RANKS = "ranks"


def unbucketed_plan(
    workload: Workload, times: LayerTimes, mode: str, ranks: int, *, host_s: float
) -> StepPlan:
    """One step whose gradients are reduced one after the other once backward has ended.

    Parameters
    ----------
    workload : Workload
    times : LayerTimes
    mode : {"none", "flat", "pertensor"}
        Nothing, one all-reduce of everything, or one for each tensor (the last of the model
        first), each waited for.
    ranks : int
    host_s : float
        What the process does at the end of a step.
    """
    tasks = TaskList(0.0, 0.0, times.copy_Bps)
    start = tasks.compute("forward", "forward", float(times.forward_s.sum()), RANKS)
    backward_s = float(times.backward_s.sum())
    last = tasks.compute("backward", "backward", backward_s, RANKS, after=(start,))
    each = [tensor.nbytes for tensor in reversed(workload.tensors)]
    reduced = {"none": [], "flat": [sum(each)], "pertensor": each}[mode] if ranks > 1 else []
    for number, nbytes in enumerate(reduced):
        last = tasks.collective(
            f"all-reduce {number}", "all_reduce", nbytes, RANKS,
            communicator=GROUP, key=f"tensors {number}", after=(last,),
        )  # fmt: skip
    end = tasks.compute("end of the step", "copy", host_s, RANKS, after=(last,))
    tasks.tasks[start] = replace(tasks.tasks[start], after_previous=(end,))
    return StepPlan(
        name=f"{mode}, {workload.name}",
        classes=(RankClass(RANKS, range(ranks)),),
        streams=(COMPUTE, *((Stream("comm", "comm"),) if reduced else ())),
        communicators=(Communicator(GROUP, (range(ranks),)),) if reduced else (),
        tasks=tuple(tasks.tasks),
        samples=ranks,
    )
