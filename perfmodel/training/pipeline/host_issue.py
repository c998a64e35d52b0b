"""What the host issues for a pass of a pipeline, before its kernels and beside them."""

from __future__ import annotations

from collections.abc import Sequence

from perfmodel.training.pipeline.pass_regions import Work, members_of, seconds_of
from perfmodel.training.plan.builder import HOST
from perfmodel.training.plan.step_plan import PASSES, Compute
from perfmodel.workload.model import LayerTimes


def issue_first_layer_alone(works: Sequence[Work], times: LayerTimes) -> list[Work]:
    """Part what the host issues of several layers: the first of them, and the others.

    Kernels wait for the first alone; what the pass makes waits for the others, too.
    """
    parted: list[Work] = []
    for at, work in enumerate(works):
        share = _first_layer_share(work, works[at + 1 :], times)
        if share < 1:
            issue_s = seconds_of(work.task)
            rest = work.changed(work=Compute((1 - share) * issue_s), after=(), issues="")
            parted.append(work.changed(work=Compute(share * issue_s)))
            parted.append(Work(rest.task, (), ends_pass=True))
        else:
            parted.append(work)
    return parted


def _first_layer_share(work: Work, following: Sequence[Work], times: LayerTimes) -> float:
    """Share of the first layer in the kernels of layers that a task issues; 1 of other tasks."""
    if work.task.kind != "issue" or not isinstance(work.task.work, Compute):
        return 1.0
    own = set(work.members)
    user = next((w.task for w in following if not own.isdisjoint(w.task.after)), None)
    layers = user.layers if user else ()  # of kernels, or of a call that these wait for
    kind = next((w.task.kind for w in following if w.task.kind in PASSES), None)
    of_layers = times.backward_kernels if kind == "backward" else times.forward_kernels
    kernels = [int(of_layers[layer]) for layer in layers]
    first = next((each for each in kernels if each), 0)
    return first / sum(kernels) if first and kind else 1.0


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

    It would change no time: the device is busy beyond it, with what the pass makes and before
    what the host issues next.
    """
    kept = [
        work
        for at, work in enumerate(works)
        if not work.ends_pass or seconds_of(work.task) > _kernels_s(works, at)
    ]
    dropped = members_of(works) - members_of(kept)
    return [work.without(dropped) for work in kept]


def _kernels_s(works: Sequence[Work], at: int) -> float:
    """Time of the kernels between what the host issues before a task and after it; seconds."""
    on_host = [i for i, work in enumerate(works) if work.task.stream == HOST.name]
    begin = max((i for i in on_host if i < at), default=-1)
    end = min((i for i in on_host if i > at), default=len(works))
    return sum(seconds_of(w.task) for w in works[begin + 1 : end] if w.task.kind in PASSES)
