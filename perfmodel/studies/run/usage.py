"""What a step uses: bytes of memory on GPUs and hosts, and traffic over links, link by link."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from perfmodel.training.memory_use import MemoryUse


@dataclass(frozen=True, slots=True)
class Memory(MemoryUse):
    """Bytes per GPU (the fullest one), and whether they fit; 0 of what is not known.

    `low_bytes`, `high_bytes`: 80 % interval of all parts together.
    `is_estimated`: whether activations are estimated, so that they may be anywhere in it; else they
        are counted.
    `reserve_bytes`: what CUDA, NCCL and the allocator take beside.
        `idle_bytes` are part of it: the allocator keeps them for the streams of communication.
    `context_bytes`: part of it that CUDA and NCCL take, and nothing gives back.
    `host_bytes`, `drive_bytes`: what all GPUs of a host offload to its memory and to its drives.
    `host_capacity_bytes`, `drive_capacity_bytes`: of a host; None: not stated, so not checked.
    `stages_bytes`: all parts together, of a GPU of each stage of a pipeline; none without.
    `is_stated`: whether anything is known of it: not of a user's own strategy, whose parts are 0.
    """

    capacity_bytes: float = 0.0
    stages_bytes: tuple[float, ...] = ()
    advice: tuple[str, ...] = ()
    low_bytes: float = 0.0
    high_bytes: float = 0.0
    is_estimated: bool = False
    reserve_bytes: float = 0.0
    context_bytes: float = 0.0
    host_capacity_bytes: float | None = None
    drive_capacity_bytes: float | None = None
    is_stated: bool = True

    @property
    def fits(self) -> bool:
        """Whether the parts fit the device's memory beside CUDA and NCCL.

        With the high end of what is estimated. What is offloaded has to fit the host.
        """
        return self.fits_gpu and not self.overfull

    @property
    def fits_gpu(self) -> bool:
        """Whether the parts fit the device's memory, the high end of what is estimated too."""
        return self._likely_bytes + self.context_bytes <= self.capacity_bytes

    @property
    def room_bytes(self) -> float:
        """What all parts may take, where estimated ones are the same share of them."""
        share = self.total_bytes / self._likely_bytes if self._likely_bytes else 1.0
        return share * (self.capacity_bytes - self.context_bytes)

    @property
    def overfull(self) -> tuple[str, ...]:
        """What of the host is too small for what is offloaded, where known: "memory", "drives"."""
        checked = (
            ("memory", self.host_bytes, self.host_capacity_bytes),
            ("drives", self.drive_bytes, self.drive_capacity_bytes),
        )
        return tuple(name for name, needed, has in checked if has is not None and needed > has)

    @property
    def may_fit(self) -> bool:
        """Whether the parts fit at the low end of their interval."""
        least = (self.low_bytes or self.total_bytes) + self.context_bytes
        return least <= self.capacity_bytes and not self.overfull

    @property
    def tight(self) -> bool:
        """Whether the parts fit, but not with what CUDA, NCCL and the allocator take."""
        return self.fits and self._likely_bytes + self.reserve_bytes > self.capacity_bytes

    @property
    def is_sure(self) -> bool:
        """Whether the parts fit at the high end of their interval, too."""
        return self.fits and self.high_bytes + self.context_bytes <= self.capacity_bytes

    @property
    def _likely_bytes(self) -> float:
        return self.high_bytes if self.is_estimated else self.total_bytes


class LinkEnds(NamedTuple):
    """A directed link by its ends; `devices`: what kinds of device they are."""

    src: str
    dst: str
    kind: str
    devices: tuple[str, str]

    def __str__(self) -> str:
        return f"{self.src} -> {self.dst} ({self.kind})"


@dataclass(frozen=True, slots=True)
class LinkUse:
    """Traffic over one directed link during one step.

    `nbytes` are bytes of payload. `utilisation`, 0 to 1, is the share of the step in which the link
    was busy, with payload, with what protocols add, or with what a slow protocol leaves unused.
    """

    src: str
    dst: str
    kind: str
    nbytes: float
    utilisation: float


class LinkUses(Sequence[LinkUse]):
    """Traffic over some links; a cluster has hundreds of thousands, of which few are shown.

    Parameters
    ----------
    ends : sequence of (str, str)
        Of all links of the machine.
    kinds : sequence of str
        Of these links.
    links : ndarray of int
        Their numbers.
    nbytes, utilisation : ndarray of float
        Of these links; see `LinkUse`.
    """

    def __init__(
        self,
        ends: Sequence[tuple[str, str]],
        kinds: Sequence[str],
        links: NDArray[np.int64],
        nbytes: NDArray[np.float64],
        utilisation: NDArray[np.float64],
    ) -> None:
        self._ends, self._kinds, self._links = ends, kinds, links
        self._nbytes, self._utilisation = nbytes, utilisation

    def __len__(self) -> int:
        return len(self._links)

    def __getitem__(self, index: Any) -> Any:
        """Return the use of a link, or those of a slice."""
        if isinstance(index, slice):
            return tuple(self[at] for at in range(*index.indices(len(self))))
        ends, nbytes = self._ends[int(self._links[index])], float(self._nbytes[index])
        return LinkUse(*ends, self._kinds[index], nbytes, float(self._utilisation[index]))

    def __eq__(self, other: object) -> bool:
        """Whether another sequence has the same links and traffic."""
        return isinstance(other, Sequence) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))


# ---------------------------------------------------------------- parallel layouts


@dataclass(frozen=True, slots=True)
class CommunicationUse:
    """One operation in a step, of a rank of the class that computes longest.

    `op`: "all_reduce", "all_gather", "reduce_scatter", "send" ...
    `calls`: times that it is called.
    `nbytes`: sizes of all calls, as nccl-tests counts them.
    `sent_bytes`: what a rank sends in them if they run on rings.
    `busy_s`: while at least one call is in flight.
    `exposed_s`: its part of the exposed communication; those of all operations add up to it.
    """

    op: str
    calls: int
    nbytes: int
    sent_bytes: float
    busy_s: float
    exposed_s: float


@dataclass(frozen=True, slots=True)
class DimensionUse:
    """Communication of one dimension of a parallel layout in a step.

    `dimension`: "tensor", "context", "expert", "pipeline" (messages of stages), "data" (gradients,
        and parameters that are sharded), or "all ranks" (the norm of all gradients).
    `ranks`: of each of its groups.
    `calls`, `sent_bytes`: of the rank that sends most; bytes as on rings.
    `exposed_s`: while a GPU neither computes nor has anything else to wait for, mean of stages;
        dimensions that are in flight together share that time.
    `links`: kinds of link that its messages cross.
    `between_hosts`: share of the neighbours in its groups that are on different hosts.
    """

    dimension: str
    ranks: int
    calls: int
    sent_bytes: float
    exposed_s: float
    links: tuple[str, ...]
    between_hosts: float


@dataclass(frozen=True, slots=True)
class StageUse:
    """What one stage of a pipeline does in a step; seconds.

    `rank_class`: its ranks in the timeline, the slowest ones where they differ.
    `busy_s`: while it computes. `exposed_s`: while it communicates and does not compute.
    `waits_s`: from the first pass of all stages to the last one, while it does neither.
    """

    stage: int
    rank_class: str
    busy_s: float
    exposed_s: float
    waits_s: float


@dataclass(frozen=True, slots=True)
class LayoutUse:
    """How a model is split over GPUs, and what that costs.

    `tensor`, `context`, `expert`, `pipeline`, `data`: degrees; `data` is what the others leave of
        the GPUs, and `expert` a part of data x context.
    `order`: of dimensions, as `parallel.order`.
    `schedule`: of the pipeline; None without stages.
    `micro_batches`: of each data-parallel rank in a step.
    `bubble`: from the first pass of all stages to the last one, the share of time in which a stage
        runs no pass and no collective of its layers, mean of stages, as simulated.
    `bubble_in_theory`: the same of stages of equal work and messages that take no time.
    `stages`: of the pipeline; none without.
    `shared`: what the `expert` GPUs share: experts, or tables.
    """

    tensor: int
    context: int
    expert: int
    pipeline: int
    data: int
    order: str
    schedule: str | None
    micro_batches: int
    bubble: float | None
    bubble_in_theory: float | None
    dimensions: tuple[DimensionUse, ...]
    stages: tuple[StageUse, ...] = ()
    shared: str = "experts"


# ---------------------------------------------------------------- hot spots and servers


@dataclass(frozen=True, slots=True)
class HotSpot:
    """A GPU that does more than the others, which wait for it: device 0 of nn.DataParallel.

    `gpu`: its name.
    `busy_s`, `others_busy_s`: time of a step in which it computes, and in which each other does.
    `link_bytes`, `others_link_bytes`: over its links in a step, both directions, and over those of
        another GPU on average.
    `only_there_bytes`: memory that only it needs: optimizer states and reduced gradients.
    """

    gpu: str
    busy_s: float
    others_busy_s: float
    link_bytes: float
    others_link_bytes: float
    only_there_bytes: float


@dataclass(frozen=True, slots=True)
class Staleness:
    """By how many updates gradients came late; bytes of gradients count.

    `mean`, `p50`, `p90`, `p99`, `most`: updates that others had made to the same parameters between
        the worker's reading them and its gradient's being applied.
    `histogram`: (first, last, share): shares of gradients by numbers of updates; they add up to 1.
    `most_ahead`: iterations that a worker was ahead of the slowest as it went on, at most; None
        where workers wait for nobody.
    """

    mean: float
    p50: int
    p90: int
    p99: int
    most: int
    histogram: tuple[tuple[int, int, float], ...]
    most_ahead: int | None


@dataclass(frozen=True, slots=True)
class ServerUse:
    """What parameter servers and their workers do.

    `mode`: "synchronous", "asynchronous" or "bounded".
    `workers`: that push and pull: GPUs, or nodes whose GPUs add up their gradients.
    `updates_per_s`: of the parameters: with each gradient, or synchronous with the sum of all.
    `most_updates_per_s`: that computing, the busiest link and the busiest server allow, whichever
        is least; `bound_by` names it.
    `server_busy`: of each server, share of the time in which it updates.
    `queue_wait_s`: mean time of a push in the queue of its server; seconds.
    `worker_wait`: mean share of a worker's time in which it waits for answers.
    `fastest_s`, `slowest_s`: time per iteration of the fastest and of the slowest worker.
    `server_bytes`: memory of the fullest server.
    `updates_interval_per_s`: 80 % interval of `updates_per_s`; None: not simulated.
    """

    mode: str
    workers: int
    servers: tuple[str, ...]
    updates_per_s: float
    most_updates_per_s: float
    bound_by: str
    staleness: Staleness
    server_busy: tuple[float, ...]
    queue_wait_s: float
    worker_wait: float
    fastest_s: float
    slowest_s: float
    server_bytes: float
    updates_interval_per_s: tuple[float, float] | None = None
