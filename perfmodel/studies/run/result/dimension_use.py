"""What a mixture communicates, and what its stages do."""

from __future__ import annotations

from dataclasses import dataclass


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
    """Communication of one dimension of a mixture in a step.

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
class MixtureUse:
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
