"""How the cost grows with ranks, buckets and flows."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from oracle.machines import wires, with_credits
from oracle.scenes import Launch, Scene, flow, play

from benchmarks.growth import Growth, fitted, least_s
from benchmarks.measures import contended_ring
from benchmarks.one_step import question
from perfmodel.library.machine import Machine
from perfmodel.simulate.engine.engine import simulate


def growths() -> Iterator[tuple[str, str, Growth]]:
    """How the cost grows: what grows, what is wanted, the fit."""
    sizes = [512, 1024, 2048, 4096, 8192, 16384]
    yield "GPUs of one simulated DDP step (like ranks, machine built)", "<= 1", _fit(sizes, _step_s)
    sizes = [512, 1024, 2048, 4096, 8192, 16384]
    yield "GPUs of one DDP step, machine built anew", "<= 1", _fit(sizes, _whole_s)
    caps = [200, 100, 50, 25, 12, 6]
    buckets = [_buckets(cap) for cap in caps]
    costs = [_bucket_s(cap) for cap in caps]
    yield "buckets of one DDP step (64 GPUs)", "<= 1", fitted(buckets, costs)
    sizes = [8, 16, 32, 64, 128]
    yield (
        "flows under way at once on one link (each comes and goes), flow",
        "",
        _fit(sizes, lambda n: _flows_s("flow", n)),
    )
    yield (
        "flows under way at once on one link (each comes and goes), message",
        "",
        _fit(sizes, lambda n: _flows_s("message", n)),
    )
    sizes = [6, 12, 24, 48]
    yield (
        "ranks of a ring all over one link, message (its sends grow as ranks ^ 2)",
        "",
        _fit(sizes, _ring_s),
    )


def _fit(sizes: list[int], cost_s: Callable[[int], float]) -> Growth:
    return fitted(sizes, [cost_s(size) for size in sizes])


def _step_s(gpus: int) -> float:
    asked = question(gpus)

    def run() -> None:
        fresh = Machine(asked.machine.topology, asked.machine.library)
        simulate(asked.plan, fresh)

    return least_s(run, repeats=3)


def _whole_s(gpus: int) -> float:
    def run() -> None:
        asked = question(gpus)
        simulate(asked.plan, asked.machine)

    return least_s(run, repeats=3)


def _buckets(cap_MiB: int) -> int:
    asked = question(64, f"strategy.bucket_cap={cap_MiB} MiB")
    return len({task.bucket for task in asked.plan.tasks if task.bucket is not None})


def _bucket_s(cap_MiB: int) -> float:
    asked = question(64, f"strategy.bucket_cap={cap_MiB} MiB")
    return least_s(lambda: simulate(asked.plan, asked.machine))


def _flows_s(fidelity: str, count: int) -> float:
    """Flows of many sizes that start one after the other, all under way at once."""
    machine = Machine(wires([1e10]), with_credits(1))
    launches = tuple(Launch(1e-6 * i, flow((0,), 10**7 + 10**4 * i)) for i in range(count))
    scene = Scene("", "", machine, launches)
    return least_s(lambda: play(fidelity, scene))


def _ring_s(ranks: int) -> float:
    scene = contended_ring(ranks)
    return least_s(lambda: play("message", scene))
