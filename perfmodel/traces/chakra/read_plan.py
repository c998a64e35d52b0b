"""Chakra execution traces as a StepPlan: of perfmodel, as exact as they were written, or of others.

In traces of others compute nodes run on one stream, nodes of the CPU on the host's, collectives on
another, each in the order in which the trace lists them, as ASTRA-sim has one resource of each;
messages on one for each pair of ranks and direction, so that an exchange does not block itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast, get_args

from perfmodel.errors import Fault, InputError
from perfmodel.files.read import read_text
from perfmodel.traces.chakra.trace_nodes import (
    COLLECTIVE,
    COLLECTIVES,
    COMPUTE,
    LOAD,
    RECEIVE,
    SEND,
    STORE,
    TraceNode,
    read_trace,
)
from perfmodel.traces.chakra.write_plan import GROUPS, PER_RANK
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
READ = frozenset(
    {"is_cpu_op", "pg_name", "comm_type", "comm_size", "comm_tag", "comm_src", "comm_dst"}
)
"""Attributes that make a plan; others, of which nodes of some programs have many, are not held."""
OPERATIONS = {number: op for op, number in COLLECTIVES.items()}
HAVE_TIME = frozenset({COMPUTE, LOAD, STORE})
Kind = Literal["compute", "comm", "host", "copy"]
KINDS = get_args(Kind)


@dataclass(frozen=True, slots=True)
class TracePlan:
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
    own = all(any(CLASS in node.attributes for node in each.nodes) for each in classes.values())
    for name, ranks in classes.items():
        builder.add_class(name, tuple(ranks.members), ranks.nodes)
    return TracePlan(builder.plan(folder.name or "chakra"), own)


def _rank_files(folder: Path) -> dict[int, Path]:
    allowed = "a folder of PREFIX.RANK.et, one file for each rank from 0"
    if not folder.is_dir():
        raise InputError(Fault("trace", "no folder", allowed, str(folder)))
    files: dict[int, Path] = {}
    prefixes = set()
    for path in sorted(folder.iterdir()):
        match = re.fullmatch(r"(.*)\.(\d{1,6})\.et", path.name)
        if match:
            prefixes.add(match[1])
            files[int(match[2])] = path
    if not files or len(prefixes) > 1:
        text = f"{len(prefixes)} prefixes" if files else "no .et file"
        raise InputError(Fault("trace", text, allowed, str(folder)))
    missing = [rank for rank in range(max(files) + 1) if rank not in files]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        text = f"no file of rank {missing[0]}{more}"
        raise InputError(Fault("trace", text, allowed, str(folder)))
    return files


def _read_groups(folder: Path, ranks: int) -> dict[str, tuple[int, ...]]:
    path = folder / GROUPS
    if not path.is_file():
        return {}
    allowed = 'lists of ranks by group, as {"1": [0, 1]}'
    try:
        document = json.loads(read_text(path))
    except (ValueError, RecursionError):
        raise InputError(Fault("groups", "no JSON", allowed, str(path))) from None
    stated: dict[str, Any] = document if isinstance(document, dict) else {"": None}
    groups: dict[str, tuple[int, ...]] = {}
    for name, members in stated.items():
        whole = isinstance(members, list) and all(
            isinstance(rank, int) and 0 <= rank < ranks for rank in members
        )
        if not whole or not members or len(set(members)) < len(members):
            raise InputError(
                Fault(
                    "groups",
                    f"{str(members)[:60]} for {name!r}",
                    f"{allowed}, ranks below {ranks}",
                    str(path),
                )
            )
        groups[name] = tuple(members)
    return groups


@dataclass
class _AlikeRanks:
    """Ranks that do the same, and the nodes of the first of them."""

    nodes: Sequence[TraceNode]
    members: list[int]


def _is_read(attribute: str) -> bool:
    return attribute in READ or attribute.startswith("perfmodel_")


def _read_classes(files: Mapping[int, Path], builder: _Builder) -> dict[str, _AlikeRanks]:
    """Ranks that do the same: those that perfmodel wrote as a class, otherwise each its own.

    One rank's nodes at a time are held beside those of the first rank of each class.
    """
    classes: dict[str, _AlikeRanks] = {}
    names: dict[bytes, str] = {}
    for rank, path in files.items():
        nodes = read_trace(path, is_read=_is_read)
        builder.add_groups(rank, nodes)
        stated = next((node.attributes.get(CLASS) for node in nodes), None)
        if isinstance(stated, str):
            name = stated
        else:
            name = names.setdefault(_digest(rank, nodes), f"rank {rank}")
        classes.setdefault(name, _AlikeRanks(nodes, [])).members.append(rank)
    return classes


def _digest(rank: int, nodes: Sequence[TraceNode]) -> bytes:
    """What alike ranks have in common: their nodes.

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
        communicators = tuple(
            Communicator(each, tuple(sorted(groups))) for each, groups in self.communicators.items()
        )
        return StepPlan(
            name=name,
            classes=tuple(self.classes),
            streams=tuple(self.streams.values()),
            communicators=communicators,
            tasks=tuple(self.tasks),
            samples=self.world,
            semaphores=tuple(self.semaphores.items()),
        )

    def add_class(
        self, name: str, members: tuple[int, ...], unordered: Sequence[TraceNode]
    ) -> None:
        """Add the tasks of one class, as its first rank has them."""
        self.classes.append(RankClass(name, members))
        first = members[0]
        nodes = _in_order(unordered, first, self.folder)
        counts: dict[str, int] = defaultdict(int)
        index_of: dict[int, int] = {}
        previous: list[tuple[int, tuple[int, ...]]] = []
        for node, waits in _with_waits(nodes):
            depends = tuple(sorted({index_of[each] for each in waits if each in index_of}))
            twin = index_of.get(node.number - 1)
            both = node.attributes.get("perfmodel_op") == "send_recv"
            if node.kind == RECEIVE and both and twin is not None:
                index_of[node.number] = twin
                continue
            task = self._task(node, name, first, depends, counts)
            index_of[node.number] = len(self.tasks)
            stated = node.attributes.get("perfmodel_after_previous")
            if isinstance(stated, tuple):
                previous.append((len(self.tasks), stated))
            self.tasks.append(task)
        for at, stated in previous:
            before = tuple(index_of[number] for number in stated if number in index_of)
            self.tasks[at] = replace(self.tasks[at], after_previous=before)

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
        attributes = node.attributes
        stream = self._stream(node, rank)
        work = (
            Compute(_duration_s(node))
            if node.kind in HAVE_TIME
            else self._collective(node, rank, counts)
        )
        default = "communication" if isinstance(work, Collective) else "compute"
        return Task(
            name=node.name or f"node {node.number}",
            kind=_text(attributes, "perfmodel_kind") or default,
            rank_class=name,
            stream=stream,
            work=work,
            after=depends,
            bucket=_number(attributes, "perfmodel_bucket"),
            core_s=_seconds(attributes, "perfmodel_core_s") or 0.0,
            acquires=_text(attributes, "perfmodel_acquires"),
            releases=_text(attributes, "perfmodel_releases"),
        )

    def _stream(self, node: TraceNode, rank: int) -> str:
        own = _text(node.attributes, "perfmodel_stream")
        if own is not None:
            word = _text(node.attributes, "perfmodel_stream_kind") or "compute"
            if word not in KINDS:
                self._refuse(f"perfmodel_stream_kind {word!r}", "one of " + ", ".join(KINDS))
            kind = cast("Kind", word)
            workers = _number(node.attributes, "perfmodel_workers") or 1
            self.streams.setdefault(own, Stream(own, kind, workers))
            return own
        if node.kind in (SEND, RECEIVE):
            name = f"messages {self._group(node, rank)[0]}"
            self.streams.setdefault(name, Stream(name, "comm"))
            return name
        kind = (
            "comm"
            if node.kind == COLLECTIVE
            else "copy"
            if node.kind != COMPUTE
            else "host"
            if node.attributes.get("is_cpu_op") is True
            else "compute"
        )
        self.streams.setdefault(kind, Stream(kind, kind))
        return kind

    def _group(self, node: TraceNode, rank: int) -> tuple[str, tuple[int, ...]]:
        """Communicator of a node, and the group of it that a rank is in."""
        attributes = node.attributes
        stated = attributes.get("pg_name")
        name = "" if stated is None else str(stated)
        group = self.groups.get(name)
        own = _text(attributes, "perfmodel_communicator")
        if own is None and node.kind in (SEND, RECEIVE):
            stated_ends = [_number(attributes, key) for key in ("comm_src", "comm_dst")]
            ends = [rank if end is None else end for end in stated_ends]
            if ends[0] == ends[1] or not all(0 <= end < self.world for end in ends):
                self._refuse(
                    f"a message from rank {ends[0]} to {ends[1]} in {node.name!r}",
                    f"two of the {self.world} ranks",
                )
            group = (ends[0], ends[1])
            own = f"{group[0]} to {group[1]}"
        if group is None:
            if name and self.groups:
                self._refuse(f"group {name!r} of {node.name!r}", f"a group of {GROUPS}")
            group = tuple(range(self.world))
        if rank not in group:
            self._refuse(f"rank {rank} in {node.name!r} of group {name!r}", "a rank of that group")
        return own or (f"group {name}" if name else "all ranks"), group

    def _collective(self, node: TraceNode, rank: int, counts: dict[str, int]) -> Collective:
        attributes = node.attributes
        communicator, group = self._group(node, rank)
        size = _number(attributes, "comm_size") or 0
        own = _text(attributes, "perfmodel_op")
        if own is not None:
            return Collective(
                cast("Op", own),
                _number(attributes, "perfmodel_nbytes") or 0,
                communicator,
                _text(attributes, "perfmodel_key") or node.name,
                root=_number(attributes, "perfmodel_root") or 0,
                dtype=_text(attributes, "perfmodel_dtype"),
                times=_number(attributes, "perfmodel_times") or 1,
            )
        if node.kind in (SEND, RECEIVE):
            tag = _number(attributes, "comm_tag") or 0
            key = f"{communicator} {tag}"
            op: str = "send"
        else:
            number = _number(attributes, "comm_type")
            if number not in OPERATIONS:
                self._refuse(
                    f"comm_type {number} of {node.name!r}", "one of " + ", ".join(COLLECTIVES)
                )
            op = OPERATIONS[cast("int", number)]
            size *= len(group) if op in PER_RANK else 1
            key = communicator
        counts[key] += 1
        return Collective(
            cast("Op", op), max(size, 1), communicator, f"{key} {counts[key]}", root=group[0]
        )

    def _refuse(self, text: str, allowed: str) -> None:
        raise InputError(Fault("trace", text, allowed, str(self.folder)))


def _text(attributes: Mapping[str, Any], name: str) -> str | None:
    value = attributes.get(name)
    return value if isinstance(value, str) else None


def _number(attributes: Mapping[str, Any], name: str) -> int | None:
    value = attributes.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seconds(attributes: Mapping[str, Any], name: str) -> float | None:
    value = attributes.get(name)
    return value if isinstance(value, float) and value >= 0 else None


def _duration_s(node: TraceNode) -> float:
    own = _seconds(node.attributes, "perfmodel_s")
    return node.duration_us * 1e-6 if own is None else own


def _runs(node: TraceNode) -> bool:
    """Whether a node takes a stream: metadata and the like do not."""
    return node.kind in HAVE_TIME or node.kind in (SEND, RECEIVE, COLLECTIVE)


def _in_order(nodes: Sequence[TraceNode], rank: int, folder: Path) -> list[TraceNode]:
    """Nodes behind all that they depend on; of those that are free, the lowest number first."""
    import heapq

    by_number = {node.number: node for node in nodes}
    allowed = "nodes with numbers of their own that depend on others without a circle"
    if len(by_number) < len(nodes):
        raise InputError(Fault("trace", f"rank {rank}: a number twice", allowed, str(folder)))
    missing: dict[int, int] = {}
    followers: dict[int, list[int]] = {}
    for number, node in by_number.items():
        before = {each for each in (*node.data_deps, *node.ctrl_deps) if each in by_number}
        missing[number] = len(before)
        for each in before:
            followers.setdefault(each, []).append(number)
    ready = [number for number, count in missing.items() if not count]
    heapq.heapify(ready)
    ordered = []
    while ready:
        number = heapq.heappop(ready)
        ordered.append(by_number[number])
        for follower in followers.pop(number, ()):
            missing[follower] -= 1
            if not missing[follower]:
                heapq.heappush(ready, follower)
    if len(ordered) < len(nodes):
        raise InputError(Fault("trace", f"rank {rank}: a circle", allowed, str(folder)))
    return ordered


def _with_waits(nodes: Iterable[TraceNode]) -> Iterator[tuple[TraceNode, set[int]]]:
    """Nodes with work, and those with work that each waits for, through those without.

    The order of a stream, which control dependencies of perfmodel's own traces hold, is the
    stream's.
    """
    idle: dict[int, frozenset[int]] = {}
    for node in nodes:
        own = "perfmodel_stream" in node.attributes
        chosen: set[int] = set()
        for each in node.data_deps if own else (*node.data_deps, *node.ctrl_deps):
            if each in idle:
                chosen |= idle[each]
            else:
                chosen.add(each)
        if _runs(node):
            yield node, chosen
        else:
            idle[node.number] = frozenset(chosen)
