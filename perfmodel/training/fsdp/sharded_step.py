"""A step of fully sharded training under construction."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.training.fsdp.units import Moment, SizedUnit
from perfmodel.training.plan.builder import EXPERT_COPIES, RANKS
from perfmodel.training.plan.step_plan import Op
from perfmodel.training.sharding_step import ShardingStep

SHARDS, REGATHERED, COPIES = "shards", "regathered shards", "copies of shards"
"""Communicators: of a shard group, of its smaller groups, and of the holders of the same shard."""

GATHER_COPIES, GATHERS = "gather copies", "gathers"
REDUCTION_COPIES, REDUCTIONS, AVERAGES = "reduction copies", "reductions", "averages"
"""Streams beside that of the layers. Gathers and reductions have one communicator, in which they
follow each other in the order of issue."""


@dataclass(slots=True, kw_only=True)
class ShardedStep(ShardingStep[FsdpStrategy]):
    """What is whole, and what waits for what, at one point of a step.

    The host also waits for freed units; those of the previous step are negative.

    Parameters
    ----------
    shard_ranks : int
        Ranks that each unit is split over.
    units : tuple of SizedUnit
    walk : tuple of Moment
    free_events : deque of int
        Version 1's queue of units that were freed, as the tasks after which they were. Those of the
        previous step are negative.
    whole : dict
        Units that are whole or on the way, with the gather after which they are. None: whole since
        before.
    copied : set of str
        Of these, units whose parameters are in place (version 2 copies them out of the gather).
    regathered : set of str
        Units that smaller groups hold between them after forward.
    prefetched : set of str
        Units that were gathered ahead and not used since (version 1).
    views : list of tuple
        Units in the order in which forward gathered them, each with the place of the walk where it
        was: so late backward comes to their gradients (version 1).
    entered : set of str
        Units that this backward has entered.
    gathers_wait : tuple of int
        What gathers issued from now on wait for.
    held : int, optional
        Copy out of the newest gather of forward, which the gather after the next one waits for.
    carried : dict
        Tasks of the host that wait for freed units of the previous step.
    reduce_inputs : deque of int
        Reductions whose input is kept.
    reduced : list of int
        Last task of each reduction of this micro-batch.
    last_on : dict
        Newest collective of each communicator.
    """

    shard_ranks: int
    units: tuple[SizedUnit, ...]
    walk: tuple[Moment[SizedUnit], ...]
    free_events: deque[int]
    whole: dict[str, int | None] = field(default_factory=dict)
    copied: set[str] = field(default_factory=set)
    regathered: set[str] = field(default_factory=set)
    prefetched: set[str] = field(default_factory=set)
    views: list[tuple[SizedUnit, int]] = field(default_factory=list)
    entered: set[str] = field(default_factory=set)
    gathers_wait: tuple[int, ...] = ()
    held: int | None = None
    carried: dict[int, list[int]] = field(default_factory=dict)
    reduce_inputs: deque[int] = field(default_factory=deque)
    reduced: list[int] = field(default_factory=list)
    last_on: dict[str, int] = field(default_factory=dict)

    @property
    def entered_units(self) -> list[SizedUnit]:
        """Units in the order in which forward first enters them."""
        entered = (each for each in self.walk if each.kind == "enter" and each.is_first)
        return [each.unit for each in entered if each.unit]

    @property
    def reduces(self) -> bool:
        """Whether this micro-batch reduces its gradients to shards."""
        return self.is_last or self.options.sync != "last"


def issue(step: ShardedStep, name: str, kernels: float) -> tuple[int, ...]:
    """Let the host issue kernels once all that it waits for has happened."""
    waits, step.host_waits = list(dict.fromkeys(step.host_waits)), ()
    after = [event for event in waits if event >= 0]
    issued = step.tasks.issue(name, kernels, RANKS, after=after, micro_batch=step.micro_batch)
    if len(after) < len(waits) and issued and issued[0] not in after:
        step.carried[issued[0]] = [event for event in waits if event < 0]
    return issued


def copy_s(step: ShardedStep, nbytes: float, kernels: int = 1) -> float:
    """Return the time of copies within the device; nothing for no bytes."""
    return step.tasks.copy_s(nbytes, kernels) if nbytes else 0.0


def copy(
    step: ShardedStep, name: str, nbytes: float, *, issued_as: str = "", kernels: int = 1
) -> int:
    """Copy so many bytes among the layers.

    `kernels`: that the host issues for it, under the name `issued_as`; default: that of the copy.
    """
    issued = issue(step, issued_as or name, kernels)
    return step.run(name, "copy", copy_s(step, nbytes), after=issued)


def beside(
    step: ShardedStep, name: str, duration_s: float, stream: str, after: Sequence[int]
) -> tuple[int, ...]:
    """Add copies on a stream beside the layers.

    Returns what later tasks wait for: the copies, or what they would follow if there is none.
    """
    if duration_s <= 0.0:
        return tuple(after)
    waits, micro_batch = dict.fromkeys(after), step.micro_batch
    return (
        step.tasks.compute(
            name, "copy", duration_s, RANKS, after=waits, stream=stream, micro_batch=micro_batch
        ),
    )


def communicate(
    step: ShardedStep,
    name: str,
    op: Op,
    nbytes: int,
    *,
    dtype: str,
    stream: str,
    after: Iterable[int],
    communicator: str = SHARDS,
    phase: str = "",
    times: int = 1,
) -> int:
    """Add a collective, after the one that its communicator issued before.

    Reductions with a communicator of their own follow each other only.
    """
    queue = stream if step.options.separate_reduce else communicator
    before = [step.last_on[queue]] if queue in step.last_on else []
    step.last_on[queue] = step.tasks.collective(
        name,
        op,
        nbytes,
        RANKS,
        communicator=communicator,
        after=dict.fromkeys((*after, *before)),
        stream=stream,
        key=" ".join(filter(None, (name, phase, str(step.micro_batch)))),
        dtype=dtype,
        times=times,
        micro_batch=step.micro_batch,
    )
    return step.last_on[queue]


def sharers(unit: SizedUnit) -> str:
    """Return the communicator of the ranks that share a unit."""
    return EXPERT_COPIES if unit.of_experts else SHARDS


def close_step(step: ShardedStep, end: int) -> None:
    """Let the next step's first task of each device stream follow the optimizer."""
    tasks, queue = step.tasks.tasks, list(step.free_events)
    step.tasks.begin_after(end)
    for index, events in step.carried.items():
        freed = [queue[event] for event in events if -event <= len(queue)]
        tasks[index] = replace(tasks[index], after_previous=tuple(at for at in freed if at >= 0))
