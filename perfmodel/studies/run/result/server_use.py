"""GPUs and hosts that do more than the others: device 0, and parameter servers."""

from __future__ import annotations

from dataclasses import dataclass


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
