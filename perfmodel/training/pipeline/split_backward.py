"""Split backward of a micro-batch into gradients of inputs and of weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from perfmodel.errors import Fault, InputError
from perfmodel.training.pipeline.pass_regions import Regions, Work
from perfmodel.training.pipeline.schedules.pass_actions import SECTION
from perfmodel.training.plan.builder import HOST
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan, Task
from perfmodel.workload.model import LayerTimes


def check_split(plan: StepPlan, regions: Regions, times: LayerTimes) -> None:
    """Raise `InputError` where backward cannot be split.

    Times do not tell its parts apart, or parameters are gathered again for it.
    """
    field = f"{SECTION}.schedule"
    if times.weight_gradient_s is None:
        text = f"one that splits backward, with times from {times.source!r}"
        allowed = "one that does not, where times do not tell gradients of weights apart"
        raise InputError(Fault(field, text, allowed))
    gathers = any(
        isinstance(work.task.work, Collective)
        and work.task.work.op == "all_gather"
        and not work.task.layers
        for (kind, _), works in regions.passes.items()
        for work in works
        if kind == "backward"
    )
    if gathers:
        text = f"one that splits backward, beside {plan.name!r}"
        allowed = "one that does not, where backward gathers parameters"
        raise InputError(Fault(field, text, allowed))


def split_backward(works: Sequence[Work], times: LayerTimes) -> tuple[list[Work], list[Work]]:
    """Return gradients of inputs, with the collectives that layers call, and those of weights.

    Adding gradients up, copying them to buckets and reducing these follows the weights'.
    """
    inputs: list[Work] = []
    weights: list[Work] = []
    issues = {m for work in works if work.task.stream == HOST.name for m in work.members}
    for work in works:
        task = work.task
        if task.kind == "backward" and isinstance(task.work, Compute):
            weight_s = _weight_seconds(task, task.work.duration_s, times)
            input_s = task.work.duration_s - weight_s
            inputs.append(
                replace(
                    work, task=replace(task, name=f"inputs of {task.name}", work=Compute(input_s))
                )
            )
            after = tuple(source for source in task.after if source in issues)
            part = replace(
                task,
                name=f"weights of {task.name}",
                role="weight_gradient",
                work=Compute(weight_s),
                after=after,
                core_s=0.0,
            )
            weights.append(replace(work, task=part))
        elif task.stream == HOST.name:
            first, second = _split_issue(work, works, times)
            inputs.append(first)
            weights.append(second)
        elif task.layers:
            inputs.append(work)
        else:
            weights.append(work)
    return inputs, weights


def _weight_seconds(task: Task, duration_s: float, times: LayerTimes) -> float:
    """Part of a task's time: that of its layers, and whatever is done beside their backward."""
    assert times.weight_gradient_s is not None
    layers = list(task.layers)
    other_s = max(0.0, duration_s - float(times.backward_s[layers].sum()))
    return min(duration_s, float(times.weight_gradient_s[layers].sum()) + other_s)


def _split_issue(work: Work, works: Sequence[Work], times: LayerTimes) -> tuple[Work, Work]:
    """Kernels of weights' gradients, one a layer, are issued with them."""
    assert times.weight_gradient_s is not None
    assert isinstance(work.task.work, Compute)
    total_s = work.task.work.duration_s
    users = [each.task for each in works if not set(work.members).isdisjoint(each.task.after)]
    layers = [layer for task in users if task.kind == "backward" for layer in task.layers]
    kernels = int((times.weight_gradient_s[layers] > 0).sum())
    total = int(times.backward_kernels[layers].sum())
    if not users:  # what the host issues while the first kernels run
        kernels, total = int((times.weight_gradient_s > 0).sum()), int(times.backward_kernels.sum())
    weight_s = total_s * min(kernels, total) / total if total else 0.0
    first = replace(work, task=replace(work.task, work=Compute(total_s - weight_s)))
    name = f"{work.task.name}, weights"
    second = replace(work.task, name=name, work=Compute(weight_s), after=(), issues="")
    return first, replace(work, task=second)
