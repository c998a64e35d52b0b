"""A StepPlan as Chakra execution traces: one file per rank, and the groups of its collectives.

The order of a stream becomes dependencies between its nodes, because the format has no streams.
Attributes whose names begin with ``perfmodel_`` hold what the format has no place for (times below
a microsecond, streams, links to the step before); others ignore them.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from perfmodel.errors import refuse_if
from perfmodel.files import write_atomically
from perfmodel.traces.chakra_nodes import (
    COLLECTIVE,
    COLLECTIVES,
    COMPUTE,
    RECEIVE,
    SEND,
    TraceNode,
    Value,
    encode_trace,
)
from perfmodel.training.plan.step_plan import Collective, Compute, RankClass, StepPlan, Stream, Task

GROUPS = "comm_groups.json"
MOST_RANKS = 2048
PER_RANK = frozenset({"all_gather"})
"""Operations whose size ASTRA-sim counts per rank, and we over all ranks."""


def write_plan(plan: StepPlan, folder: Path, name: str) -> list[Path]:
    """Write ``NAME.RANK.et`` of every rank and ``comm_groups.json``; return the files.

    Raises `InputError`: more ranks than files should be written for, or a folder that cannot be
        written to.
    """
    total = sum(len(each.ranks) for each in plan.classes)
    refuse_if(
        total > MOST_RANKS, "cluster", f"{total} ranks", f"up to {MOST_RANKS} ranks, a file each"
    )
    names = [(each.name, tuple(group)) for each in plan.communicators for group in each.groups]
    keys = [task.work.key for task in plan.tasks if isinstance(task.work, Collective)]
    numbers = (
        {group: number for number, group in enumerate(dict.fromkeys(names), start=1)},
        {key: number for number, key in enumerate(dict.fromkeys(keys), start=1)},
    )
    contents = {
        folder / f"{name}.{rank}.et": _nodes_of(plan, rank_class, rank, numbers)
        for rank_class in plan.classes
        for rank in rank_class.ranks
    }
    for path, nodes in contents.items():
        write_atomically(path, encode_trace(nodes))
    write_atomically(
        folder / GROUPS,
        json.dumps(
            {str(number): list(members) for (_, members), number in numbers[0].items()}, indent=1
        ),
    )
    return [*contents, folder / GROUPS]


_Numbers = tuple[Mapping[tuple[str, tuple[int, ...]], int], Mapping[str, int]]
"""Numbers above zero that stand for names, the same ones in the files of all ranks.

Those of each group of each communicator: ASTRA-sim names groups so. Then those by key of a message,
whose two ends ASTRA-sim matches by it.
"""


def _nodes_of(
    plan: StepPlan, rank_class: RankClass, rank: int, numbers: _Numbers
) -> Iterator[TraceNode]:
    """Yield the nodes of one rank; a task's number is twice its index, plus one for a second."""
    streams = {stream.name: stream for stream in plan.streams}
    last: dict[str, int] = {}
    ends: dict[int, tuple[int, ...]] = {}
    for index, task in enumerate(plan.tasks):
        if task.rank_class != rank_class.name:
            continue
        stream = streams[task.stream]
        before = last.get(task.stream) if stream.workers == 1 else None
        depends = tuple(number for each in task.after for number in ends[each])
        ordered = ends[before] if before is not None and before not in task.after else ()
        nodes = list(_task_nodes(plan, index, task, rank, numbers, _own_attributes(task, stream)))
        yield from (replace(node, data_deps=depends, ctrl_deps=ordered) for node in nodes)
        ends[index] = tuple(node.number for node in nodes)
        last[task.stream] = index


def _own_attributes(task: Task, stream: Stream) -> dict[str, Value]:
    attributes: dict[str, Value | None] = {
        "stream": task.stream,
        "stream_kind": stream.kind,
        "workers": stream.workers,
        "kind": task.kind,
        "class": task.rank_class,
        "after_previous": tuple(2 * at + 2 for at in task.after_previous) or None,
        "bucket": task.bucket,
        "core_s": task.core_s or None,
        "acquires": task.acquires,
        "releases": task.releases,
    }
    return {f"perfmodel_{name}": value for name, value in attributes.items() if value is not None}


def _task_nodes(
    plan: StepPlan,
    index: int,
    task: Task,
    rank: int,
    numbers: _Numbers,
    own: dict[str, Value],
) -> Iterator[TraceNode]:
    number, work = 2 * index + 2, task.work
    if isinstance(work, Compute):
        attributes = {
            "is_cpu_op": own["perfmodel_stream_kind"] == "host",
            "perfmodel_s": work.duration_s,
            **own,
        }
        yield TraceNode(
            number,
            task.name,
            COMPUTE,
            duration_us=round(work.duration_s * 1e6),
            attributes=attributes,
        )
        return
    communicator = next(each for each in plan.communicators if each.name == work.communicator)
    group = next(tuple(group) for group in communicator.groups if rank in group)
    size, (group_numbers, tags) = work.nbytes * work.times, numbers
    attributes = {
        "is_cpu_op": False,
        "pg_name": str(group_numbers[work.communicator, group]),
        "perfmodel_op": work.op,
        "perfmodel_nbytes": work.nbytes,
        "perfmodel_times": work.times,
        "perfmodel_communicator": work.communicator,
        "perfmodel_key": work.key,
        "perfmodel_root": work.root,
        **({} if work.dtype is None else {"perfmodel_dtype": work.dtype}),
        **own,
    }
    if work.op in COLLECTIVES:
        attributes |= {
            "comm_type": COLLECTIVES[work.op],
            "comm_size": size // len(group) if work.op in PER_RANK else size,
        }
        yield TraceNode(number, task.name, COLLECTIVE, attributes=attributes)
        return
    attributes |= {"comm_size": size, "comm_tag": tags[work.key]}
    yield from _messages(number, task.name, group, rank, attributes, both=work.op == "send_recv")


def _messages(
    number: int,
    name: str,
    group: tuple[int, ...],
    rank: int,
    attributes: dict[str, Value],
    *,
    both: bool,
) -> Iterator[TraceNode]:
    """A message to the next rank of the group, one from the rank before, or both."""
    at, size = group.index(rank), len(group)
    if both or at == 0:
        ends: dict[str, Value] = {"comm_src": rank, "comm_dst": group[(at + 1) % size]}
        yield TraceNode(number, name, SEND, attributes={**attributes, **ends})
    if both or at > 0:
        ends = {"comm_src": group[(at - 1) % size], "comm_dst": rank}
        yield TraceNode(number + both, name, RECEIVE, attributes={**attributes, **ends})
