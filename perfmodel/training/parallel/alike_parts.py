"""Plans of a pipeline's parts, of which those that differ in names only share one.

A part in the middle of a large model has layers like its neighbours'. Planning hundreds of
micro-batches of each part anew takes longer than to simulate them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import fields, replace

import numpy as np

from perfmodel.training.pipeline.stage_passes import PartPlan
from perfmodel.training.pipeline.stage_workload import ModelPart
from perfmodel.training.plan.step_plan import Collective, StepPlan, Task
from perfmodel.workload.memory.blocks import block_of
from perfmodel.workload.model import Workload

_WORD = re.compile(r"[^\s,()]+")


def plan_parts(parts: Sequence[ModelPart], make: Callable[[ModelPart], StepPlan]) -> list[PartPlan]:
    """Plan all parts of a pipeline; `make` plans one of those that are alike."""
    samples: dict[Hashable, PartPlan] = {}
    plans = []
    for part in parts:
        likeness = _likeness(part)
        if likeness in samples:
            plans.append(PartPlan(_renamed(samples[likeness], part), part))
        else:
            samples[likeness] = PartPlan(make(part), part)
            plans.append(samples[likeness])
    return plans


def _likeness(part: ModelPart) -> Hashable:
    """All that a plan depends on, with blocks counted from the part's first."""
    workload, names = part.workload, _numbered(part.workload)
    nameless = replace(
        workload,
        name="",
        tensors=tuple(replace(each, name=names[each.name]) for each in workload.tensors),
        layers=tuple(replace(each, name=names[each.name]) for each in workload.layers),
    )
    times = [getattr(part.times, each.name) for each in fields(part.times)]
    return (
        repr(nameless),
        part.shared,
        *(each.tobytes() if isinstance(each, np.ndarray) else each for each in times),
    )


def _numbered(workload: Workload) -> Mapping[str, str]:
    """Names of layers, tensors and their blocks, with the number of the block in the part."""
    numbers: dict[str, int] = {}
    names: dict[str, str] = {}
    named = [layer.name for layer in workload.layers]
    named += [tensor.name for tensor in workload.tensors]
    for name in named:
        block = block_of(name)
        names[name] = name
        if block is not None:
            number = numbers.setdefault(block, len(numbers))
            names[block] = f"block {number}"
            names[name] = f"block {number}{name[len(block) :]}"
    return names


def _renamed(sample: PartPlan, part: ModelPart) -> StepPlan:
    """Return the plan of an alike part with the names of its own layers."""
    own = {number: name for name, number in _numbered(part.workload).items()}
    names = {name: own[number] for name, number in _numbered(sample.part.workload).items()}
    texts: dict[str, str] = {}

    def rename(text: str) -> str:
        if text not in texts:
            texts[text] = _WORD.sub(lambda word: names.get(word[0], word[0]), text)
        return texts[text]

    def rename_task(task: Task) -> Task:
        name, issues, work = rename(task.name), rename(task.issues), task.work
        if isinstance(work, Collective) and rename(work.key) != work.key:
            return replace(task, name=name, work=replace(work, key=rename(work.key)))
        return task if name == task.name else replace(task, name=name, issues=issues)

    plan = sample.plan
    return replace(
        plan,
        name=plan.name.replace(sample.part.workload.name, part.workload.name),
        tasks=tuple(map(rename_task, plan.tasks)),
    )
