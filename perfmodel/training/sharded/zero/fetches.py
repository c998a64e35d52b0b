"""When ZeRO stage 3 gathers parameters: the order of modules that DeepSpeed traces, and its queue.

Written after ``deepspeed/runtime/zero/partitioned_param_coordinator.py`` of DeepSpeed 0.19, for
steps whose trace is complete (from the third on).

Parts of parameters that lie on drives are read into buffers in host memory, ahead of their use:
written after ``partitioned_param_swapper.py`` and ``__prefetch_nvme_param_partitions`` of DeepSpeed
0.19.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from perfmodel.errors import Fault, InputError, PerfmodelError
from perfmodel.training.sharded.zero.options import ZeroOptions
from perfmodel.workload.model import Workload


@dataclass(frozen=True, slots=True)
class DriveRead:
    """Parts that are read; nothing waits for them yet."""

    tensors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DriveWait:
    """The host waits until all reads are done."""


class NoBufferError(PerfmodelError):
    """All buffers hold parts, where DeepSpeed stops ("Not enough buffers 0 for swapping 1")."""


@dataclass(slots=True)
class DriveBuffers:
    """Where parts are that lie on drives.

    `tensors`: whose parts lie there. `free`: buffers that hold none. `held`: parts in a buffer,
    which are there, or on their way.
    """

    tensors: frozenset[int]
    free: int
    held: dict[int, Literal["there", "on its way"]] = field(default_factory=dict)

    def is_away(self, tensor: int) -> bool:
        """Whether a part is on a drive alone."""
        return tensor in self.tensors and tensor not in self.held

    def fetch(self, tensors: Sequence[int]) -> list[DriveRead | DriveWait]:
        """Read the parts of a gather that are away, and wait for all reads if any are missing."""
        away = [each for each in tensors if self.is_away(each)]
        waits = bool(away) or any(self.held.get(each) == "on its way" for each in tensors)
        reads: list[DriveRead | DriveWait] = [self.read(away)] if away else []
        if waits:
            self.held.update(dict.fromkeys(self.held, "there"))
            reads.append(DriveWait())
        return reads

    def read(self, tensors: Sequence[int]) -> DriveRead:
        """Begin to read parts. Raises `NoBufferError`: fewer buffers than parts."""
        if len(tensors) > self.free:
            raise NoBufferError
        self.free -= len(tensors)
        self.held.update(dict.fromkeys(tensors, "on its way"))
        return DriveRead(tuple(tensors))

    def ahead(
        self, queue: Iterable[tuple[int, int]], numel: Callable[[int], int], gathered: int
    ) -> list[DriveRead]:
        """Read what the queue has next: up to twice the elements that are being gathered."""
        chosen: list[int] = []
        considered = 0
        for tensor, _ in queue:
            if considered > 2 * gathered or len(chosen) >= self.free:
                break
            if self.is_away(tensor) and tensor not in chosen:
                chosen.append(tensor)
            considered += numel(tensor)
        return [self.read(chosen)] if chosen else []

    def release(self, tensor: int) -> None:
        """Give the buffer of a part back, whose parameter is freed."""
        if self.held.pop(tensor, None):
            self.free += 1


@dataclass(frozen=True, slots=True)
class Gather:
    """Parameters that are gathered together.

    `secondary`: among the ranks that hold a second copy between them.
    """

    tensors: tuple[int, ...]
    secondary: bool = False


@dataclass(frozen=True, slots=True)
class Arrival:
    """The layers that follow wait for the gather of this number."""

    gather: int


@dataclass(frozen=True, slots=True)
class LayerRun:
    """A layer runs."""

    layer: int
    backward: bool


Fetch = Gather | Arrival | LayerRun | DriveRead | DriveWait


@dataclass(frozen=True, slots=True)
class _Visit:
    """A module whose hooks run: of a layer, or of a module that holds other modules."""

    tensors: tuple[int, ...]
    layer: int | None
    backward: bool


@dataclass(slots=True)
class FetchTrace:
    """What is gathered, waited for and run in each micro-batch, and how much is whole at once.

    `micro_batches`: in their order.
    `most_live`: elements that are whole at once at most, without persistent ones.
    """

    micro_batches: tuple[tuple[Fetch, ...], ...]
    most_live: int


def persistent_tensors(workload: Workload, options: ZeroOptions) -> tuple[int, ...]:
    """Parameters that stay whole, being small."""
    return tuple(
        tensor
        for tensor in range(len(workload.tensors))
        if workload.tensors[tensor].numel <= options.param_persistence_threshold
    )


def trace_fetches(
    workload: Workload, options: ZeroOptions, on_drives: frozenset[int] = frozenset()
) -> FetchTrace:
    """Follow the modules of a step, and what is fetched and freed at each of them.

    `on_drives`: parameters whose parts lie on drives.
    Raises `InputError`: too few buffers for these.
    """
    offload = options.offload_param
    visits = tuple(_visits(workload))
    if offload is None or not on_drives:
        return _trace(workload, options, visits, DriveBuffers(on_drives, 0))
    try:
        return _trace(workload, options, visits, DriveBuffers(on_drives, offload.buffer_count))
    except NoBufferError:
        least = _enough_buffers(workload, options, visits, on_drives)
        allowed = (
            f"{least} or more: a part keeps its buffer while its parameter is whole, which "
            "stage3_max_reuse_distance and stage3_prefetch_bucket_size decide"
        )
        count = str(offload.buffer_count)
        raise InputError(Fault("offload_param.buffer_count", count, allowed)) from None


def _trace(
    workload: Workload, options: ZeroOptions, visits: Sequence[_Visit], drives: DriveBuffers
) -> FetchTrace:
    coordinator = _Coordinator(workload, options, visits, drives)
    if options.accumulate > 1:
        coordinator.decide_releases()
    batches = tuple(tuple(coordinator.micro_batch()) for _ in range(options.accumulate))
    return FetchTrace(batches, coordinator.most_live)


def _enough_buffers(
    workload: Workload, options: ZeroOptions, visits: Sequence[_Visit], on_drives: frozenset[int]
) -> int:
    """Find a number of buffers that suffices, of which one less does not."""
    too_few, enough = 0, len(on_drives)
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        try:
            _trace(workload, options, visits, DriveBuffers(on_drives, middle))
            enough = middle
        except NoBufferError:
            too_few = middle
    return enough


def _visits(workload: Workload) -> Iterator[_Visit]:
    """List modules in the order in which their hooks run: of forward, then of backward."""
    forward: list[tuple[str, int | None]] = []
    open_modules: list[str] = []
    holders = _holders(workload)
    for index, layer in enumerate(workload.layers):
        path = [""] + [each for each in _prefixes(layer.name) if each in holders]
        while open_modules and open_modules[-1] not in path:
            forward.append((f"/{open_modules.pop()}", None))
        for name in path[len(open_modules) :]:
            forward.append((name, None))
            open_modules.append(name)
        forward.append((layer.name, index))
    forward += [(f"/{name}", None) for name in reversed(open_modules)]
    for backward in (False, True):
        for name, at in reversed(forward) if backward else forward:
            entered = name.startswith("/") == backward
            if at is not None:
                tensors = tuple(sorted(workload.layers[at].tensors))
                yield _Visit(tensors, at, backward)
            elif entered:
                yield _Visit((), None, backward)


def _prefixes(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def _holders(workload: Workload) -> set[str]:
    """Modules that hold others and are called: all but lists, whose members are numbered."""
    members: dict[str, set[str]] = {}
    for layer in workload.layers:
        for prefix in _prefixes(layer.name):
            members.setdefault(prefix, set()).add(layer.name[len(prefix) + 1 :].split(".")[0])
    return {name for name, parts in members.items() if not all(map(str.isdecimal, parts))}


@dataclass(slots=True)
class _Coordinator:
    """State of the parameters: whole ones, those on their way, and the queue of later uses."""

    workload: Workload
    options: ZeroOptions
    visits: Sequence[_Visit]
    drives: DriveBuffers
    whole: set[int] = field(default_factory=set)
    inflight: dict[int, int] = field(default_factory=dict)
    copied: set[int] = field(default_factory=set)
    gathers: list[Gather] = field(default_factory=list)
    fetched_for: dict[int, int] = field(default_factory=dict)
    queue: deque[tuple[int, int]] = field(default_factory=deque)
    live: int = 0
    most_live: int = 0
    uses: dict[int, list[int]] = field(default_factory=dict)
    before: list[int] = field(default_factory=list)
    releases: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.whole = set(persistent_tensors(self.workload, self.options))
        sizes = [sum(self._numel(tensor) for tensor in visit.tensors) for visit in self.visits]
        self.before = list(accumulate(sizes, initial=0))
        for place, visit in enumerate(self.visits):
            for tensor in visit.tensors:
                self.uses.setdefault(tensor, []).append(place)

    def decide_releases(self) -> None:
        """Follow the second micro-batch of the first step, and stay with what it releases.

        DeepSpeed caches the answers of ``__params_to_release``. In that micro-batch persistent
        parameters are not whole yet, as those of the traced one before it are all freed.
        """
        self.whole = set()
        for _ in self.micro_batch():
            pass
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
                yield LayerRun(visit.layer, visit.backward)
                self._release(place + 1, visit)

    def _numel(self, tensor: int) -> int:
        return self.workload.tensors[tensor].numel

    def _fetch(self, place: int, visit: _Visit) -> Iterator[Fetch]:
        missing = [each for each in visit.tensors if not self._has(each)]
        if missing:
            yield from self._gather(missing)
        for tensor in visit.tensors:
            if tensor in self.inflight:
                number = self.inflight[tensor]
                yield Arrival(number)
                for each in self.gathers[number].tensors:
                    del self.inflight[each]
                    self.whole.add(each)
        unfetched = {each for each in visit.tensors if self.fetched_for.get(each, -1) < place}
        dropped: set[int] = set()
        while self.queue and len(dropped) < len(unfetched):
            tensor, used_at = self.queue.popleft()
            self.fetched_for[tensor] = used_at
            dropped.add(tensor)
        if self.options.prefetch_bucket_size > 0:
            yield from self._prefetch()
            if self.drives.tensors:
                gathered = sum(map(self._numel, self.inflight))
                yield from self.drives.ahead(self.queue, self._numel, gathered)

    def _has(self, tensor: int) -> bool:
        return tensor in self.whole or tensor in self.inflight

    def _prefetch(self) -> Iterator[Fetch]:
        """Gather what the queue has next, up to a number of elements."""
        room = self.options.max_live_parameters - self.live
        most = min(room, self.options.prefetch_bucket_size)
        ahead: list[int] = []
        elements = 0
        while self.queue and elements < most:
            if self.drives.is_away(self.queue[0][0]):
                break
            tensor, used_at = self.queue.popleft()
            self.fetched_for[tensor] = max(self.fetched_for.get(tensor, -1), used_at)
            if tensor not in ahead and not self._has(tensor):
                ahead.append(tensor)
                elements += self._numel(tensor)
        if ahead:
            yield from self._gather(ahead)

    def _gather(self, tensors: Sequence[int]) -> Iterator[Fetch]:
        """Gather parameters together, or those with a second copy apart from the others."""
        yield from self.drives.fetch(tensors)
        self.live += sum(map(self._numel, tensors))
        self.most_live = max(self.most_live, self.live)
        for secondary in (True, False):
            members = sorted(each for each in tensors if (each in self.copied) == secondary)
            singly = self.options.allgather_sequential
            for group in [[each] for each in members] if singly else [members]:
                if group:
                    gather = Gather(tuple(group), secondary)
                    self.inflight.update(dict.fromkeys(group, len(self.gathers)))
                    self.gathers.append(gather)
                    yield gather

    def _release(self, place: int, visit: _Visit) -> None:
        """Free the parameters of a module that are not used again soon."""
        if place not in self.releases:
            self.releases[place] = tuple(
                each for each in visit.tensors if self._is_released(each, place)
            )
        for tensor in self.releases[place]:
            if tensor not in self.whole:
                continue
            self.whole.discard(tensor)
            self.drives.release(tensor)
            self.live -= self._numel(tensor)
            if self.options.hpz_ranks > 1:
                self.copied.add(tensor)

    def _is_released(self, tensor: int, place: int) -> bool:
        """Whether it is neither small, nor passed by the queue, nor used within some elements."""
        if self._numel(tensor) <= self.options.param_persistence_threshold:
            return False
        if self.fetched_for.get(tensor, -1) > place:
            return False
        following = next((use for use in self.uses[tensor] if use >= place), None)
        if following is None:
            return True
        return self.before[following] - self.before[place] >= self.options.max_reuse_distance
