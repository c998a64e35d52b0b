"""What the host issues for a pass of a pipeline, before its kernels and beside them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from perfmodel.training.pipeline.pass_regions import Work, members_of, seconds_of
from perfmodel.training.plan.builder import HOST
from perfmodel.training.plan.step_plan import PASSES, Compute, Task


def issue_first_layer_alone(works: Sequence[Work], kernels: Sequence[int]) -> list[Work]:
    """Part what the host issues of several layers: the first of them, and the others.

    Kernels wait for the first alone; what the pass makes waits for the others, too.

    `kernels`: of each layer in this pass.
    """
    users: dict[int, Task] = {}  # the first that waits for each: kernels, or a call before them
    for work in reversed(works):
        users |= dict.fromkeys(work.task.after, work.task)
    parted: list[Work] = []
    for work in works:
        user = next((users[member] for member in work.members if member in users), None)
        issued = [kernels[layer] for layer in user.layers] if user else []
        first = next((each for each in issued if each), 0)
        if work.task.kind == "issue" and first < sum(issued):
            issue_s, share = seconds_of(work.task), first / sum(issued)
            rest = work.changed(work=Compute((1 - share) * issue_s), after=(), issues="")
            parted.append(work.changed(work=Compute(share * issue_s)))
            parted.append(Work(rest.task, (), ends_pass=True))
        else:
            parted.append(work)
    return parted


def drop_host_ahead(works: Sequence[Work]) -> list[Work]:
    """Leave out what the host issues for a pass that takes the device longer than it.

    Once ahead it stays so, and waits for nothing: its tasks would change no time.
    """
    issues = [work for work in works if work.task.stream == HOST.name]
    issued_s = sum(seconds_of(work.task) for work in issues)
    device_s = sum(seconds_of(work.task) for work in works if work.task.kind in PASSES)
    others = any(w.task.kind not in PASSES and w.task.stream != HOST.name for w in works)
    if others or issued_s > device_s or any(w.task.kind != "issue" for w in issues):
        return list(works)
    dropped = members_of(issues)
    return [work.without(dropped) for work in works if work.task.stream != HOST.name]


def drop_hidden_issues(works: Sequence[Work]) -> list[Work]:
    """Leave out what the host issues beside kernels that take longer.

    It would change no time: the kernels between what the host does before and after end later.
    """
    kernels_s = [0.0]  # before, between and after what the host does
    for work in works:
        if work.task.stream == HOST.name:
            kernels_s.append(0.0)
        elif work.task.kind in PASSES:
            kernels_s[-1] += seconds_of(work.task)
    around_s = iter([before + after for before, after in pairwise(kernels_s)])
    kept = []
    for work in works:
        beside_s = next(around_s) if work.task.stream == HOST.name else 0.0
        if not work.ends_pass or seconds_of(work.task) > beside_s:
            kept.append(work)
    dropped = members_of(works) - members_of(kept)
    return [work.without(dropped) for work in kept]
