"""Chakra execution traces as a StepPlan: of perfmodel, as exact as they were written, or of others.

In traces of others compute nodes run on one stream, nodes of the CPU on the host's, collectives on
another, each in the order in which the trace lists them, as ASTRA-sim has one resource of each;
messages on one for each pair of ranks and direction, so that an exchange does not block itself.
"""

from __future__ import annotations

import hashlib
import heapq
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, Literal, NamedTuple, NoReturn, cast, get_args

from perfmodel.errors import Fault, InputError, refuse_if
from perfmodel.files.read import read_text
from perfmodel.memo import T
from perfmodel.traces.chakra_nodes import (
    COLLECTIVE,
    COLLECTIVES,
    COMPUTE,
    LOAD,
    RECEIVE,
    SEND,
    STORE,
    TraceNode,
    Value,
    read_trace,
)
from perfmodel.traces.chakra_write import GROUPS, PER_RANK
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    Op,
    RankClass,
    StepPlan,
    Stream,
    Task,
)

CLASS = "perfmodel_class"
_FILE = re.compile(r"(.*)\.(\d{1,6})\.et")
READ = frozenset(
    {"is_cpu_op", "pg_name", "comm_type", "comm_size", "comm_tag", "comm_src", "comm_dst"}
)
"""Attributes that make a plan; others, of which nodes of some programs have many, are not held."""
OPERATIONS: Mapping[int | None, str] = {number: op for op, number in COLLECTIVES.items()}
HAVE_TIME = frozenset({COMPUTE, LOAD, STORE})
Kind = Literal["compute", "comm", "host", "copy"]
KINDS = get_args(Kind)


class TracePlan(NamedTuple):
    """The plan of some traces.

    `own`: perfmodel wrote them, so that times of compute are those without slowdown.
    """

    plan: StepPlan
    own: bool


def read_plan(folder: Path) -> TracePlan:
    """Read ``PREFIX.RANK.et`` of every rank, and ``comm_groups.json`` if it is there.

    Raises `InputError`: no or damaged files, ranks that are missing, collectives that their ranks
        do not share.
    """
    files = _rank_files(folder)
    builder = _Builder(_read_groups(folder, len(files)), len(files), folder)
    classes = _read_classes(files, builder)
    for name, (nodes, members) in classes.items():
        builder.add_class(name, tuple(members), nodes)
    return TracePlan(
        builder.plan(folder.name or "chakra"),
        own=all(any(CLASS in n.attributes for n in nodes) for nodes, _ in classes.values()),
    )


def _rank_files(folder: Path) -> dict[int, Path]:
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    matches = [match for each in found if (match := _FILE.fullmatch(each.name))]
    files = {int(match[2]): folder / match[0] for match in matches}
    prefixes = {match[1] for match in matches}
    missing = [rank for rank in range(max(files, default=-1) + 1) if rank not in files]
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    problems = (
        (not folder.is_dir(), "no folder"),
        (not files, "no .et file"),
        (len(prefixes) > 1, f"{len(prefixes)} prefixes"),
        (missing, f"no file of rank {missing[0] if missing else 0}{more}"),
    )
    allowed = "a folder of PREFIX.RANK.et, one file for each rank from 0"
    for holds, text in problems:
        refuse_if(holds, "trace", text, allowed, str(folder))
    return files


def _read_groups(folder: Path, ranks: int) -> dict[str, tuple[int, ...]]:
    path, allowed = folder / GROUPS, 'lists of ranks by group, as {"1": [0, 1]}'
    if not path.is_file():
        return {}
    try:
        document = json.loads(read_text(path))
    except (ValueError, RecursionError):
        raise InputError(Fault("groups", "no JSON", allowed, str(path))) from None
    stated: dict[str, Any] = document if isinstance(document, dict) else {"": None}
    for name, members in stated.items():
        whole = isinstance(members, list) and all(
            isinstance(rank, int) and 0 <= rank < ranks for rank in members
        )
        if not whole or not members or len(set(members)) < len(members):
            found, below = f"{str(members)[:60]} for {name!r}", f"{allowed}, ranks below {ranks}"
            raise InputError(Fault("groups", found, below, str(path)))
    return {name: tuple(members) for name, members in stated.items()}


_AlikeRanks = tuple[Sequence[TraceNode], list[int]]
"""Nodes of the first of some ranks that do the same, and all of these ranks."""


def _read_classes(files: Mapping[int, Path], builder: _Builder) -> dict[str, _AlikeRanks]:
    """Find ranks that do the same: perfmodel wrote them as a class, or their files are equal.

    One rank's nodes at a time are held beside those of the first rank of each class.
    """
    classes: dict[str, _AlikeRanks] = {}
    names: dict[bytes, str] = {}
    for rank, path in files.items():
        nodes = read_trace(path, is_read=lambda n: n in READ or n.startswith("perfmodel_"))
        builder.add_groups(rank, nodes)
        name = next((node.attributes.get(CLASS) for node in nodes), None)
        if not isinstance(name, str):
            name = names.setdefault(_digest(rank, nodes), f"rank {rank}")
        classes.setdefault(name, (nodes, []))[1].append(rank)
    return classes


def _digest(rank: int, nodes: Sequence[TraceNode]) -> bytes:
    """Return what alike ranks have in common: their nodes.

    Alike ranks of data parallelism have the same file, with the same group or none; a message that
    names its other end alone is not the same one on two ranks.
    """
    digest = hashlib.sha256()
    for node in nodes:
        digest.update(repr(node).encode("utf-8", "surrogatepass"))
    if any(node.kind in (SEND, RECEIVE) for node in nodes):
        digest.update(f"rank {rank}".encode())
    return digest.digest()


@dataclass
class _Builder:
    groups: Mapping[str, tuple[int, ...]]
    world: int
    folder: Path
    tasks: list[Task] = field(default_factory=list)
    streams: dict[str, Stream] = field(default_factory=dict)
    classes: list[RankClass] = field(default_factory=list)
    communicators: dict[str, dict[tuple[int, ...], None]] = field(default_factory=dict)
    semaphores: dict[str, int] = field(default_factory=dict)

    def plan(self, name: str) -> StepPlan:
        """Build the plan of what was added."""
        return StepPlan(
            name=name,
            classes=tuple(self.classes),
            streams=tuple(self.streams.values()),
            communicators=tuple(
                Communicator(each, tuple(sorted(groups)))
                for each, groups in self.communicators.items()
            ),
            tasks=tuple(self.tasks),
            samples=self.world,
            semaphores=tuple(self.semaphores.items()),
        )

    def add_class(
        self, name: str, members: tuple[int, ...], unordered: Sequence[TraceNode]
    ) -> None:
        """Add the tasks of one class, as its first rank has them."""
        self.classes.append(RankClass(name, members))
        counts: dict[str, int] = defaultdict(int)
        index_of: dict[int, int] = {}
        first_task = len(self.tasks)
        after_previous: list[Value | None] = []
        for node, waits in _with_waits(_in_order(unordered, members[0], self.folder)):
            twin = index_of.get(node.number - 1)
            if (
                node.kind == RECEIVE
                and node.attributes.get("perfmodel_op") == "send_recv"
                and twin is not None
            ):
                index_of[node.number] = twin
                continue
            depends = tuple(sorted({index_of[each] for each in waits if each in index_of}))
            index_of[node.number] = len(self.tasks)
            after_previous.append(node.attributes.get("perfmodel_after_previous"))
            self.tasks.append(self._task(node, name, members[0], depends, counts))
        for at, stated in enumerate(after_previous, start=first_task):
            if isinstance(stated, tuple):
                self.tasks[at] = replace(
                    self.tasks[at],
                    after_previous=tuple(
                        index_of[number] for number in stated if number in index_of
                    ),
                )

    def add_groups(self, rank: int, nodes: Sequence[TraceNode]) -> None:
        """Note the groups of a rank, by communicator."""
        for node in nodes:
            if node.kind in (SEND, RECEIVE, COLLECTIVE):
                communicator, group = self._group(node, rank)
                self.communicators.setdefault(communicator, {})[group] = None

    def _task(
        self,
        node: TraceNode,
        name: str,
        rank: int,
        depends: tuple[int, ...],
        counts: dict[str, int],
    ) -> Task:
        kind, stream = "compute", self._stream(node, rank)
        work: Compute | Collective = Compute(_own_s(node, "perfmodel_s", node.duration_us * 1e-6))
        if node.kind not in HAVE_TIME:
            kind, work = "communication", self._collective(node, rank, counts)
        return Task(
            name=node.name or f"node {node.number}",
            kind=_read(node, "perfmodel_kind", str) or kind,
            rank_class=name,
            stream=stream,
            work=work,
            after=depends,
            bucket=_read(node, "perfmodel_bucket", int),
            core_s=_own_s(node, "perfmodel_core_s", 0.0),
            acquires=_read(node, "perfmodel_acquires", str),
            releases=_read(node, "perfmodel_releases", str),
        )

    def _stream(self, node: TraceNode, rank: int) -> str:
        name, workers = _read(node, "perfmodel_stream", str), 1
        kind = _read(node, "perfmodel_stream_kind", str) or "compute"
        if name is not None:
            if kind not in KINDS:
                self._refuse(f"perfmodel_stream_kind {kind!r}", "one of " + ", ".join(KINDS))
            workers = _read(node, "perfmodel_workers", int) or 1
        elif node.kind in (SEND, RECEIVE):
            name, kind = f"messages {self._group(node, rank)[0]}", "comm"
        else:
            on_host = node.attributes.get("is_cpu_op") is True
            kinds = {COLLECTIVE: "comm", COMPUTE: "host" if on_host else "compute"}
            name = kind = kinds.get(node.kind, "copy")
        self.streams.setdefault(name, Stream(name, cast("Kind", kind), workers))
        return name

    def _group(self, node: TraceNode, rank: int) -> tuple[str, tuple[int, ...]]:
        """Return the communicator of a node, and the group of it that a rank is in."""
        stated = node.attributes.get("pg_name")
        name = "" if stated is None else str(stated)
        group, own = self.groups.get(name), _read(node, "perfmodel_communicator", str)
        if own is None and node.kind in (SEND, RECEIVE):
            numbers = [_read(node, key, int) for key in ("comm_src", "comm_dst")]
            source, target = (rank if number is None else number for number in numbers)
            if source == target or not all(0 <= end < self.world for end in (source, target)):
                self._refuse(
                    f"a message from rank {source} to {target} in {node.name!r}",
                    f"two of the {self.world} ranks",
                )
            group, own = (source, target), f"{source} to {target}"
        if group is None:
            if name and self.groups:
                self._refuse(f"group {name!r} of {node.name!r}", f"a group of {GROUPS}")
            group = tuple(range(self.world))
        if rank not in group:
            self._refuse(f"rank {rank} in {node.name!r} of group {name!r}", "a rank of that group")
        return own or (f"group {name}" if name else "all ranks"), group

    def _collective(self, node: TraceNode, rank: int, counts: dict[str, int]) -> Collective:
        communicator, group = self._group(node, rank)
        if (op := _read(node, "perfmodel_op", str)) is not None:
            return Collective(
                cast("Op", op),
                _read(node, "perfmodel_nbytes", int) or 0,
                communicator,
                _read(node, "perfmodel_key", str) or node.name,
                root=_read(node, "perfmodel_root", int) or 0,
                dtype=_read(node, "perfmodel_dtype", str),
                times=_read(node, "perfmodel_times", int) or 1,
            )
        op, key = "send", f"{communicator} {_read(node, 'comm_tag', int) or 0}"
        if node.kind == COLLECTIVE:
            number, key = _read(node, "comm_type", int), communicator
            op = OPERATIONS.get(number)
            if op is None:
                self._refuse(
                    f"comm_type {number} of {node.name!r}", "one of " + ", ".join(COLLECTIVES)
                )
        counts[key] += 1
        size = _read(node, "comm_size", int) or 0
        return Collective(
            cast("Op", op),
            max(size * len(group) if op in PER_RANK else size, 1),
            communicator,
            f"{key} {counts[key]}",
            root=group[0],
        )

    def _refuse(self, text: str, allowed: str) -> NoReturn:
        raise InputError(Fault("trace", text, allowed, str(self.folder)))


def _read(node: TraceNode, name: str, kind: type[T]) -> T | None:
    """Return an attribute of a node; None where it has none of this name and type."""
    value = node.attributes.get(name)
    return value if type(value) is kind else None


def _own_s(node: TraceNode, name: str, default_s: float) -> float:
    """Return a time that perfmodel itself wrote of a node; seconds."""
    value_s = _read(node, name, float)
    return default_s if value_s is None or value_s < 0 else value_s


def _in_order(nodes: Sequence[TraceNode], rank: int, folder: Path) -> list[TraceNode]:
    """Sort nodes behind all that they depend on; of those that are free, the lowest first."""
    by_number, sorter = {node.number: node for node in nodes}, TopologicalSorter[int]()
    allowed = "nodes with numbers of their own that depend on others without a circle"
    refuse_if(
        len(by_number) < len(nodes), "trace", f"rank {rank}: a number twice", allowed, str(folder)
    )
    for node in nodes:
        before = {each for each in (*node.data_deps, *node.ctrl_deps) if each in by_number}
        sorter.add(node.number, *before)
    try:
        sorter.prepare()
    except CycleError:
        raise InputError(Fault("trace", f"rank {rank}: a circle", allowed, str(folder))) from None
    ready, ordered = list(sorter.get_ready()), list[TraceNode]()
    heapq.heapify(ready)
    while ready:
        ordered.append(by_number[heapq.heappop(ready)])
        sorter.done(ordered[-1].number)
        for follower in sorter.get_ready():
            heapq.heappush(ready, follower)
    return ordered


def _with_waits(nodes: Iterable[TraceNode]) -> Iterator[tuple[TraceNode, set[int]]]:
    """Yield nodes with work, and those with work that each waits for, through those without.

    Metadata and the like take no stream. The order of a stream, which control dependencies of
    perfmodel's own traces hold, is the stream's.
    """
    idle: dict[int, set[int]] = {}
    for node in nodes:
        own = "perfmodel_stream" in node.attributes
        depends = node.data_deps if own else (*node.data_deps, *node.ctrl_deps)
        chosen: set[int] = set().union(*(idle.get(each, {each}) for each in depends))
        if node.kind in HAVE_TIME or node.kind in (SEND, RECEIVE, COLLECTIVE):
            yield node, chosen
        else:
            idle[node.number] = chosen
