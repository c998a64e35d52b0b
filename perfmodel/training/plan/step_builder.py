"""Write a step plan by hand: what all ranks do, or what each class of ranks does."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from perfmodel.arrays import RankGroup
from perfmodel.errors import Fault, allowed_names, look_up, raise_faults, refuse_if
from perfmodel.training.plan.builder import COMM, COMPUTE, HOST, TaskList
from perfmodel.training.plan.step_plan import (
    Communicator,
    Op,
    RankClass,
    StepPlan,
    Stream,
    Task,
)
from perfmodel.training.strategy import StepRequest

After = int | Iterable[int]
"""Tasks by the numbers that the builder's methods return."""


class StepBuilder:
    """Writes the tasks of a step in the order in which the host issues them.

    Each method adds a task and returns its number, which others name in `after`. Tasks of one
    stream run one after the other, in the order in which they were added, step after step: so the
    first kernel of a step waits for the optimizer of the step before. Streams run side by side.

    Parameters
    ----------
    request : StepRequest
        What the strategy was asked for.
    classes : mapping of str to ranks, optional
        Ranks that do the same; default: "ranks", all of them.
    groups : mapping of str to sequence of ranks, optional
        Communicators: of each, the groups of ranks that run its collectives side by side; default:
        "all", one group of all ranks.
    streams : sequence of Stream, optional
        Beside "host", "compute" and "comm".

    Examples
    --------
    Plain training without overlap: one all-reduce of all gradients after backward.

    >>> def after_backward(request):
    ...     step, times = StepBuilder(request), request.times
    ...     step.compute("forward", times.forward_s.sum())
    ...     last = step.compute("backward", times.backward_s.sum())
    ...     reduced = step.collective("all_reduce", request.workload.nbytes, after=last)
    ...     step.compute("optimizer", times.optimizer_s, after=reduced)
    ...     return step.plan()
    """

    def __init__(
        self,
        request: StepRequest,
        *,
        classes: Mapping[str, RankGroup] | None = None,
        groups: Mapping[str, Sequence[RankGroup]] | None = None,
        streams: Sequence[Stream] = (),
    ) -> None:
        everybody = range(request.ranks)
        self._request = request
        self._classes = dict(classes or {"ranks": everybody})
        self._groups = dict(groups or {"all": (everybody,)})
        self._streams = (HOST, COMPUTE, COMM, *streams)
        self._list = TaskList.of(request)

    def compute(
        self,
        kind: str,
        duration_s: float,
        *,
        after: After = (),
        name: str = "",
        kernels: int = 0,
        stream: str = "compute",
        rank_class: str | None = None,
        **marks: Any,
    ) -> int:
        """Run kernels on the device.

        Parameters
        ----------
        kind : str
            "forward", "backward", "optimizer" or "copy": the part of a step that reports count it
            to; any other counts as idle.
        duration_s : float
            Alone on the device; seconds.
        after : int or iterable of int
            Tasks of this step that must have ended.
        name : str
            For the timeline; default: the kind.
        kernels : int
            Kernels that the host launches for it, which takes the host's time; 0: none.
        stream, rank_class : str
            Default: "compute", and the first class.
        **marks
            Fields of a `Task`: `after_previous` (tasks of the previous step), `micro_batch` ...
        """
        _check_marks(marks)
        own = next(iter(self._classes)) if rank_class is None else rank_class
        issued = self._list.issue(name or kind, kernels, own) if kernels else ()
        return self._list.compute(
            name or kind,
            kind,
            float(duration_s),
            own,
            after=(*issued, *_numbers(after)),
            stream=stream,
            **marks,
        )

    def collective(
        self,
        op: Op,
        nbytes: int,
        *,
        after: After = (),
        name: str = "",
        group: str | None = None,
        stream: str = "comm",
        root: int = 0,
        **marks: Any,
    ) -> int:
        """Run a collective on all ranks of a communicator, which start it together.

        Parameters
        ----------
        op : str
            "all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "all_to_all",
            "scatter", "gather" or "send_recv" (each rank to the next of its group).
        nbytes : int
            As nccl-tests counts them: the whole buffer.
        group : str
            Communicator; default: the first.
        root : int
            Of rooted operations.
        after, name, stream, **marks
            As of `compute`; `bucket` numbers it among the step's buckets.

        Returns the number of the task in the first of its classes; other classes have one, too.
        Raises `InputError`: a communicator that there is not.
        """
        communicator = next(iter(self._groups)) if group is None else group
        members = {rank for each in look_up(self._groups, communicator, "group") for rank in each}
        classes = [name for name, ranks in self._classes.items() if not members.isdisjoint(ranks)]
        return self._communicate(
            op, nbytes, classes, after, name, communicator, stream, root, marks
        )

    def send(
        self,
        nbytes: int,
        source: str,
        target: str,
        *,
        after: After = (),
        name: str = "",
        stream: str = "comm",
        **marks: Any,
    ) -> int:
        """Send a message from each rank of a class to the rank in the same place of another.

        Returns the number of the receivers' task, which ends when the message has arrived. Raises
        `InputError`: a class that there is not, or classes of unlike numbers of ranks.
        """
        senders = look_up(self._classes, source, "source")
        receivers = look_up(self._classes, target, "target")
        refuse_if(
            len(senders) != len(receivers),
            "target",
            f"{len(receivers)} ranks",
            f"{len(senders)}, as {source!r} has",
        )
        pairs = tuple(zip(senders, receivers, strict=True))
        communicator = f"{source} to {target}"
        self._groups[communicator] = pairs
        return (
            self._communicate(
                "send", nbytes, [source, target], after, name, communicator, stream, 0, marks
            )
            + 1
        )

    def plan(self, name: str = "", *, samples: int | None = None) -> StepPlan:
        """Return the step.

        Parameters
        ----------
        name : str
        samples : int, optional
            That one step trains; default: the batch of each rank.
        """
        request = self._request
        return self._list.plan(
            name=name or f"own strategy, {request.workload.name}",
            classes=tuple(RankClass(each, ranks) for each, ranks in self._classes.items()),
            streams=self._streams,
            communicators=tuple(Communicator(each, tuple(g)) for each, g in self._groups.items()),
            samples=request.ranks * request.batch_per_gpu if samples is None else samples,
        )

    def _communicate(
        self,
        op: Op,
        nbytes: int,
        classes: Sequence[str],
        after: After,
        name: str,
        communicator: str,
        stream: str,
        root: int,
        marks: Mapping[str, Any],
    ) -> int:
        _check_marks(marks, TASK_MARKS | {"dtype", "times"})
        waits, label = _numbers(after), name or op.replace("_", "-")
        first, key = len(self._list.tasks), f"{label} {len(self._list.tasks)}"
        for each in classes:
            own = waits
            if len(classes) > 1:  # the other classes of a collective wait for their own
                own = tuple(at for at in waits if self._list.tasks[at].rank_class == each)
            self._list.collective(
                label,
                op,
                int(nbytes),
                each,
                communicator=communicator,
                key=key,
                after=own,
                stream=stream,
                root=root,
                **marks,
            )
        return first


TASK_MARKS = frozenset(each.name for each in fields(Task)) - {
    "name",
    "kind",
    "rank_class",
    "stream",
    "work",
    "after",
}
"""Fields of a task that its writer may set beside what the arguments say."""


def _check_marks(marks: Mapping[str, Any], allowed: frozenset[str] = TASK_MARKS) -> None:
    """Refuse fields that no task has, or that arguments say."""
    raise_faults(
        Fault(name, repr(value), f"a field of a task, {allowed_names(allowed, name)}")
        for name, value in marks.items()
        if name not in allowed
    )


def _numbers(after: After) -> tuple[int, ...]:
    return (after,) if isinstance(after, int) else tuple(after)
