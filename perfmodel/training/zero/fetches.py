"""When ZeRO stage 3 gathers parameters: the order of modules that DeepSpeed traces, and its queue.

Written after ``deepspeed/runtime/zero/partitioned_param_coordinator.py`` of DeepSpeed 0.19, for
steps whose trace is complete (from the third on).

Parts of parameters that lie on drives are read into buffers in host memory, ahead of their use:
written after ``partitioned_param_swapper.py`` and ``__prefetch_nvme_param_partitions`` of DeepSpeed
0.19.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import accumulate
from typing import Literal

from perfmodel.errors import Fault, InputError, PerfmodelError
from perfmodel.memo import grouped
from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.training.fsdp.units import module_paths
from perfmodel.workload.model import Workload


@dataclass(frozen=True, slots=True)
class Fetch:
    """An event of a micro-batch.

    `kind`: "gather": `tensors` are gathered together; `secondary`: among the ranks that hold a
        second copy between them. "arrive": the layers that follow wait for the gather of this
        `number`. "layer": the layer of this `number` runs, forward or `backward`. "read": parts of
        `tensors` are read from drives, and nothing waits for them yet. "wait": the host waits until
        all reads are done.
    """

    kind: Literal["gather", "arrive", "layer", "read", "wait"]
    tensors: tuple[int, ...] = ()
    number: int = 0
    secondary: bool = False
    backward: bool = False


class NoBufferError(PerfmodelError):
    """All buffers hold parts, where DeepSpeed stops ("Not enough buffers 0 for swapping 1")."""


@dataclass(slots=True)
class DriveBuffers:
    """Where parts are that lie on drives.

    `tensors`: whose parts lie there. `free`: buffers that hold none. `held`: parts in a buffer.
    `awaited`: those of them that are on their way yet.
    """

    tensors: frozenset[int]
    free: int
    held: set[int] = field(default_factory=set)
    awaited: set[int] = field(default_factory=set)

    def is_away(self, tensor: int) -> bool:
        """Whether a part is on a drive alone."""
        return tensor in self.tensors and tensor not in self.held

    def fetch(self, tensors: Sequence[int]) -> list[Fetch]:
        """Read the parts of a gather that are away, and wait for all reads if any are missing."""
        away = [each for each in tensors if self.is_away(each)]
        waits = bool(away) or not self.awaited.isdisjoint(tensors)
        reads = [self.read(away)] if away else []
        if waits:
            self.awaited.clear()
            reads.append(Fetch("wait"))
        return reads

    def read(self, tensors: Sequence[int]) -> Fetch:
        """Begin to read parts. Raises `NoBufferError`: fewer buffers than parts."""
        if len(tensors) > self.free:
            raise NoBufferError
        self.free -= len(tensors)
        self.held.update(tensors)
        self.awaited.update(tensors)
        return Fetch("read", tuple(tensors))

    def ahead(
        self, queue: Iterable[tuple[int, int]], numel: Callable[[int], int], gathered: int
    ) -> list[Fetch]:
        """Read what the queue has next: up to twice the elements that are being gathered."""
        chosen: dict[int, None] = {}
        considered = 0
        for tensor, _ in queue:
            if considered > 2 * gathered or len(chosen) >= self.free:
                break
            if self.is_away(tensor):
                chosen[tensor] = None
            considered += numel(tensor)
        return [self.read(tuple(chosen))] if chosen else []

    def release(self, tensor: int) -> None:
        """Give the buffer of a part back, whose parameter is freed."""
        if tensor in self.held:
            self.held.remove(tensor)
            self.awaited.discard(tensor)
            self.free += 1


@dataclass(frozen=True, slots=True)
class _Visit:
    """A module whose hooks run: of a layer, or of a module that holds other modules."""

    tensors: tuple[int, ...]
    layer: int | None
    backward: bool


def persistent_tensors(workload: Workload, options: ZeroStrategy) -> tuple[int, ...]:
    """Return the parameters that stay whole, being small."""
    threshold = options.stage3_param_persistence_threshold
    return tuple(at for at, each in enumerate(workload.tensors) if each.numel <= threshold)


@lru_cache(maxsize=4)  # memory and plans ask for the same, of thousands of modules
def trace_fetches(
    workload: Workload, options: ZeroStrategy, on_drives: frozenset[int] = frozenset()
) -> tuple[tuple[tuple[Fetch, ...], ...], int]:
    """Follow the modules of a step, and what is fetched and freed at each of them.

    Returns the events of each micro-batch in their order, and how many elements are whole at once
    at most, without persistent parameters.

    `on_drives`: parameters whose parts lie on drives.
    Raises `InputError`: too few buffers for these.
    """
    visits = tuple(_visits(workload))
    buffers = options.offload_param.buffer_count if options.offload_param and on_drives else 0

    def trace(buffers: int) -> tuple[tuple[tuple[Fetch, ...], ...], int]:
        coordinator = _Coordinator(workload, options, visits, DriveBuffers(on_drives, buffers))
        if options.accumulate > 1:
            coordinator.decide_releases()
        return tuple(
            tuple(coordinator.micro_batch()) for _ in range(options.accumulate)
        ), coordinator.most_live

    def suffice(buffers: int) -> bool:
        try:
            trace(buffers)
        except NoBufferError:
            return False
        return True

    try:
        return trace(buffers)
    except NoBufferError:
        least = bisect_left(range(len(on_drives)), True, lo=1, key=suffice)
        allowed = (
            f"{least} or more: each parameter that is whole needs a buffer, and how many are at a "
            "time, stage3_max_reuse_distance and stage3_prefetch_bucket_size decide"
        )
        raise InputError(Fault("offload_param.buffer_count", str(buffers), allowed)) from None


def _visits(workload: Workload) -> Iterator[_Visit]:
    """List modules in the order in which their hooks run: of forward, then of backward."""
    forward: list[tuple[int | None, bool]] = []  # a layer, or a holder, which is entered or left
    open_modules: list[str] = []
    holders = _holders(workload)
    for index, layer in enumerate(workload.layers):
        path = ["", *(each for each in module_paths(layer.name)[:-1] if each in holders)]
        while open_modules and open_modules[-1] not in path:
            open_modules.pop()
            forward.append((None, True))
        entered = path[len(open_modules) :]
        open_modules += entered
        forward += [*[(None, False)] * len(entered), (index, False)]
    forward += [(None, True)] * len(open_modules)
    for backward in (False, True):
        for at, is_left in reversed(forward) if backward else forward:
            if at is not None:
                yield _Visit(tuple(sorted(workload.layers[at].tensors)), at, backward)
            elif is_left == backward:
                yield _Visit((), None, backward)


def _holders(workload: Workload) -> set[str]:
    """Modules that hold others and are called: all but lists, whose members are numbered."""
    members = grouped(
        (prefix, layer.name[len(prefix) + 1 :].split(".")[0])
        for layer in workload.layers
        for prefix in module_paths(layer.name)[:-1]
    )
    return {name for name, parts in members.items() if not all(map(str.isdecimal, parts))}


@dataclass(slots=True)
class _Coordinator:
    """State of the parameters: whole ones, those on their way, and the queue of later uses."""

    workload: Workload
    options: ZeroStrategy
    visits: Sequence[_Visit]
    drives: DriveBuffers
    whole: set[int] = field(default_factory=set)
    inflight: dict[int, int] = field(default_factory=dict)
    copied: set[int] = field(default_factory=set)
    gathers: list[Fetch] = field(default_factory=list)
    fetched_for: dict[int, int] = field(default_factory=dict)
    queue: deque[tuple[int, int]] = field(default_factory=deque)
    live: int = 0
    most_live: int = 0
    uses: dict[int, list[int]] = field(default_factory=dict)
    before: list[int] = field(default_factory=list)
    releases: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.whole = set(persistent_tensors(self.workload, self.options))
        self.before = list(
            accumulate((sum(map(self._numel, visit.tensors)) for visit in self.visits), initial=0)
        )
        self.uses = grouped(
            (tensor, place) for place, visit in enumerate(self.visits) for tensor in visit.tensors
        )

    def decide_releases(self) -> None:
        """Follow the second micro-batch of the first step, and stay with what it releases.

        DeepSpeed caches the answers of ``__params_to_release``. In that micro-batch persistent
        parameters are not whole yet, as those of the traced one before it are all freed.
        """
        self.whole = set()
        deque(self.micro_batch(), maxlen=0)
        self.whole = set(persistent_tensors(self.workload, self.options))
        self.copied, self.gathers, self.inflight, self.most_live = set(), [], {}, 0
        for tensor in tuple(self.drives.held):
            self.drives.release(tensor)

    def micro_batch(self) -> Iterator[Fetch]:
        """Follow one forward and backward (``reset_step`` and the hooks of each module)."""
        self.queue = deque(
            (tensor, place) for place, visit in enumerate(self.visits) for tensor in visit.tensors
        )
        self.fetched_for, self.live = {}, 0
        for place, visit in enumerate(self.visits):
            yield from self._fetch(place, visit)
            if visit.layer is not None:
                yield Fetch("layer", number=visit.layer, backward=visit.backward)
                self._release(place + 1, visit)

    def _numel(self, tensor: int) -> int:
        return self.workload.tensors[tensor].numel

    def _fetch(self, place: int, visit: _Visit) -> Iterator[Fetch]:
        yield from self._gather([each for each in visit.tensors if not self._has(each)])
        for tensor in visit.tensors:
            if tensor in self.inflight:
                number = self.inflight[tensor]
                yield Fetch("arrive", number=number)
                self.whole.update(self.gathers[number].tensors)
                for each in self.gathers[number].tensors:
                    del self.inflight[each]
        unfetched = {each for each in visit.tensors if self.fetched_for.get(each, -1) < place}
        dropped: set[int] = set()
        while self.queue and len(dropped) < len(unfetched):
            tensor, used_at = self.queue.popleft()
            self.fetched_for[tensor] = used_at
            dropped.add(tensor)
        if self.options.stage3_prefetch_bucket_size > 0:
            yield from self._prefetch()
            if self.drives.tensors:
                yield from self.drives.ahead(
                    self.queue, self._numel, sum(map(self._numel, self.inflight))
                )

    def _has(self, tensor: int) -> bool:
        return tensor in self.whole or tensor in self.inflight

    def _prefetch(self) -> Iterator[Fetch]:
        """Gather what the queue has next, up to a number of elements."""
        most = min(
            self.options.stage3_max_live_parameters - self.live,
            self.options.stage3_prefetch_bucket_size,
        )
        ahead: dict[int, None] = {}
        elements = 0
        while self.queue and elements < most:
            if self.drives.is_away(self.queue[0][0]):
                break
            tensor, used_at = self.queue.popleft()
            self.fetched_for[tensor] = max(self.fetched_for.get(tensor, -1), used_at)
            if tensor not in ahead and not self._has(tensor):
                ahead[tensor] = None
                elements += self._numel(tensor)
        yield from self._gather(tuple(ahead))

    def _gather(self, tensors: Sequence[int]) -> Iterator[Fetch]:
        """Gather parameters together, or those with a second copy apart from the others."""
        yield from self.drives.fetch(tensors)
        self.live += sum(map(self._numel, tensors))
        self.most_live = max(self.most_live, self.live)
        singly = self.options.stage3_allgather_sequential
        for secondary in (True, False):
            members = sorted(each for each in tensors if (each in self.copied) == secondary)
            for group in [[each] for each in members] if singly else [members]:
                if group:
                    self.inflight.update(dict.fromkeys(group, len(self.gathers)))
                    self.gathers.append(Fetch("gather", tuple(group), secondary=secondary))
                    yield self.gathers[-1]

    def _release(self, place: int, visit: _Visit) -> None:
        """Free the parameters of a module that are not used again soon."""
        if place not in self.releases:
            self.releases[place] = tuple(
                each for each in visit.tensors if self._is_released(each, place)
            )
        for tensor in self.whole.intersection(self.releases[place]):
            self.whole.discard(tensor)
            self.drives.release(tensor)
            self.live -= self._numel(tensor)
            if self.options.zero_hpz_partition_size > 1:
                self.copied.add(tensor)

    def _is_released(self, tensor: int, place: int) -> bool:
        """Whether it is neither small, nor passed by the queue, nor used within some elements."""
        is_small = self._numel(tensor) <= self.options.stage3_param_persistence_threshold
        if is_small or self.fetched_for.get(tensor, -1) > place:
            return False
        following = (use for use in self.uses[tensor] if use >= place)
        apart = (self.before[use] - self.before[place] for use in following)
        return next(apart, math.inf) >= self.options.stage3_max_reuse_distance
