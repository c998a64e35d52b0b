"""LoopPlan: workers that loop on their own and servers that are queues, the engine's other input.

Where the workers of a `StepPlan` share a step, those of a LoopPlan share none: each runs its work
over and over, and between two iterations exchanges state with servers. A server serves what arrives
in the order in which it arrives. How far workers may drift apart is the plan's `slack`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WorkItem:
    """A piece of an iteration on the worker's device; pieces run one after the other.

    `kind`: as of `perfmodel.training.plan.step_plan.Task`.
    `duration_s`: on the device.
    `host_s`: of the host, which issues pieces in order, ahead of the device where it can.
    `needs`: exchanges (indices) whose answer to the iteration before has to be there.
    `sends`: exchanges that begin when it has ended.
    """

    name: str
    kind: str
    duration_s: float
    host_s: float = 0.0
    needs: tuple[int, ...] = ()
    sends: tuple[int, ...] = ()
    micro_batch: int = 0


@dataclass(frozen=True, slots=True)
class Exchange:
    """State that a worker sends to a server once an iteration, and gets back changed.

    `server`: index in `LoopPlan.servers`.
    `push_bytes`, `pull_bytes`: to the server and back.
    `each_s`: time of the server for what one worker sent; seconds.
    `all_s`: with `LoopPlan.together`: its time once all workers have sent theirs; seconds.
    `local_bytes`: that the GPUs of a worker with several add up before, and share afterwards.
    `before_s`, `after_s`: time of this, known once the plan is placed: one exchange after the
        other, beside the device; seconds.
    """

    name: str
    server: int
    push_bytes: float
    pull_bytes: float
    each_s: float
    all_s: float = 0.0
    local_bytes: float = 0.0
    before_s: float = 0.0
    after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Worker:
    """A worker.

    `ranks`: its GPUs; its messages begin and end at the first.
    `scale`: factor on its time on the device.
    `like`: index of the list of items in `LoopPlan.items` that it runs.
    `start_s`: when it begins; seconds since the start of the run.
    """

    name: str
    ranks: tuple[int, ...]
    scale: float = 1.0
    like: int = 0
    start_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Server:
    """A queue that serves one exchange at a time, first come first served.

    `host`: number among the hosts that have servers.
    `on_gpu`: whether it works on the first GPU of its host, or on the host's CPU.
    `device`: by name in a topology; empty until the plan is placed on one.
    """

    name: str
    host: int
    on_gpu: bool = False
    device: str = ""


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """Workers, servers, and what they exchange.

    `items`: of an iteration, for each kind of worker the same but for durations.
    `slack`: iterations that a worker may be ahead of the slowest: the answer to its n-th push waits
        until all have pushed n - slack times. None: it never waits; 0: all stay together.
    `together`: a server answers once all workers have pushed and it has worked on the sum.
    `samples`: that all workers together train in an iteration of each.
    """

    name: str
    workers: tuple[Worker, ...]
    servers: tuple[Server, ...]
    items: tuple[tuple[WorkItem, ...], ...]
    exchanges: tuple[Exchange, ...]
    samples: int
    slack: int | None = None
    together: bool = False
