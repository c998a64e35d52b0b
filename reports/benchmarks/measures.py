"""What is measured. Each function returns rows; none asserts a time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import simpy
from oracle.machines import crossbar, uneven, with_credits
from oracle.peers_tables import MiB, cluster, ring_machine
from oracle.scenes import Launch, Scene, collective, play, ring_way

from benchmarks.growth import ENOUGH_S, least_s
from benchmarks.one_step import question
from perfmodel.collectives.algorithms import ring
from perfmodel.collectives.dependencies import messages, unroll
from perfmodel.collectives.timing.recurrence import schedule_s
from perfmodel.library.lowering.lowered import LoweredCollective
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.message.network import MessageNetwork
from perfmodel.simulate.sharing.max_min import max_min_rates
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.topology.faults import degrade_links
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology

HERE = Path(__file__).parent
ONE_CORE = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@dataclass(frozen=True, slots=True)
class Measured:
    """One line of the table.

    Parameters
    ----------
    what : str
    target : str
        Empty where none is set.
    reached : float
    unit : str
    met : bool or None
    note : str
    """

    what: str
    target: str
    reached: float
    unit: str
    met: bool | None = None
    note: str = ""


def at_most(what: str, limit: float, reached: float, unit: str, note: str = "") -> Measured:
    """A line whose number should be small."""
    return Measured(what, f"<= {limit:g} {unit}", reached, unit, reached <= limit, note)


def at_least(what: str, limit: float, reached: float, unit: str, note: str = "") -> Measured:
    """A line whose number should be large."""
    return Measured(what, f">= {limit:g} {unit}", reached, unit, reached >= limit, note)


# ---------------------------------------------------------------- steps


def eight_gpus() -> Iterator[Measured]:
    """A step of ResNet-50 on one DGX A100: building, planning and simulating; and simulating."""
    from perfmodel.scenario import ClusterSize, load_scenario
    from perfmodel.studies.run.resolve.job_plan import plan_step, price_layers
    from perfmodel.studies.run.resolve.machine import build_machine
    from perfmodel.studies.run.resolve.training_job import TrainingJob, resolve_workload
    from perfmodel.topology.templates.build import load_node

    scenario, node = load_scenario("resnet50-dgx-a100"), load_node("dgx-a100")

    def asked() -> tuple[Machine, object]:
        here = build_machine(scenario, node, ClusterSize(8, 1, 8))
        job = TrainingJob(scenario, resolve_workload(scenario), here.topology.gpu, here.library)
        return here, plan_step(job, price_layers(job, 256), 8, 256, "steady")

    def answered() -> None:
        here, step = asked()
        simulate(step, here)  # type: ignore[arg-type]  # a StepPlan

    here, step = asked()
    timer, steps = UncontendedTimer(here), 10
    whole_s = least_s(answered, repeats=7)
    many_s = least_s(lambda: simulate(step, here, steps=steps, timer=timer), repeats=7)  # type: ignore[arg-type]
    yield at_most(
        "one DDP step of ResNet-50, 8 GPUs: built, planned and simulated", 20, whole_s * 1e3, "ms"
    )
    yield Measured("steps of ResNet-50 on 8 GPUs simulated", "", steps / many_s, "steps/s")


CLUSTERS = ((1024, 0.5), (16384, 2.0), (100_000, 15.0))
LIMIT_GiB = 2.0


def clusters(sizes: tuple[tuple[int, float], ...] = CLUSTERS) -> Iterator[Measured]:
    """One DDP step on clusters, each in a process of its own."""
    for gpus, limit_s in sizes:
        best = _one_step(gpus)
        for _ in range(2 if best["cpu_s"] < ENOUGH_S else 0):
            best = min(best, _one_step(gpus), key=_seconds)
        took_s = _seconds(best)
        note = (
            f"built and planned {best['built_s']:.2f} s, simulated {best['simulated_s']:.2f} s; "
            f"{best['arcs']:,.0f} links"
        )
        what = f"one DDP step of GPT-2 XL (25 MiB buckets), {gpus:,} GPUs, rail-optimised"
        yield at_most(what, limit_s, took_s, "s", note)
        yield at_most(
            f"  its peak memory, {gpus:,} GPUs", LIMIT_GiB, best["peak_bytes"] / 2**30, "GiB"
        )


def _seconds(seen: dict[str, float]) -> float:
    return seen["built_s"] + seen["simulated_s"]


def _one_step(gpus: int) -> dict[str, float]:
    command = [sys.executable, str(HERE / "one_step.py"), str(gpus)]
    done = subprocess.run(  # noqa: S603  (our own script)
        command, check=True, capture_output=True, text=True, env={**os.environ, **ONE_CORE}
    )
    return dict(json.loads(done.stdout))


def odd_cluster(gpus: int) -> Topology:
    """DGX A100 hosts on a rail-optimised fabric; no two links are alike."""
    plain = build_topology("dgx-a100", hosts=gpus // 8, fabric="rail-optimised")
    return uneven(plain, np.random.default_rng(1))


def heterogeneous() -> Iterator[Measured]:
    """Rings over 1,024 GPUs none of whose links is like another, at NCCL's own credits."""
    odd, library = odd_cluster(1024), load_library("nccl")

    def one() -> float:
        machine = Machine(odd, library)
        return UncontendedTimer(machine).best("all_reduce", 25 * MiB, range(1024))[1]

    took_s = least_s(one)
    note = "rings laid, protocols tried, recurrence over every edge"
    yield at_most("all-reduce of 25 MiB, 1,024 unlike GPUs", 1, took_s, "s", note)
    asked = question(1024)
    machine = Machine(odd, library)
    step_s = least_s(
        lambda: simulate(asked.plan, machine, timer=UncontendedTimer(machine)), repeats=1
    )
    yield at_most("one DDP step of GPT-2 XL, 1,024 unlike GPUs (machine built)", 1, step_s, "s")


# ---------------------------------------------------------------- collectives


def large_collectives() -> Iterator[Measured]:
    """Two collectives on 4,096 GPUs with what other simulators took for them."""
    flat, levels = ring_machine(4096), cluster(4096)
    took = {
        name: _timed(machine, algorithm)
        for name, machine, algorithm in (("flat", flat, "ring"), ("two", levels, "hierarchical"))
    }
    flat_s, answer_s = took["flat"]
    note = f"answer {answer_s * 1e6:.1f} us; ASTRA-sim 83 s and 5.4 GB, SimGrid 283 s"
    yield at_most(
        "ring all-reduce of 25 MiB, 4,096 ranks, 50 GB/s, 500 ns", 50, flat_s * 1e3, "ms", note
    )
    two_s, answer_s = took["two"]
    note = f"answer {answer_s * 1e6:.1f} us; ASTRA-sim 11 to 15 s, SimGrid 61 to 74 s"
    yield at_most(
        "two-level all-reduce of 25 MiB, 4,096 GPUs on their graph", 300, two_s * 1e3, "ms", note
    )


def _timed(machine: Machine, algorithm: str) -> tuple[float, float]:
    """CPU seconds to lay and simulate an all-reduce of 25 MiB, and its answer."""
    answers = []

    def run() -> None:
        fresh = Machine(machine.topology, machine.library)
        way = collective(fresh, "all_reduce", 25 * MiB, range(4096), algorithm)
        launch = Launch(0.0, way, "all_reduce", 4096)
        answers.append(play("flow", Scene("", "", fresh, (launch,)))[0])

    return least_s(run), answers[-1]


# ---------------------------------------------------------------- events


def sends() -> Iterator[Measured]:
    """Sends per second: message by message on shared links, and in the recurrence."""
    machine, way = crowded_cluster()
    count = len(messages(unroll(way.schedule)))
    note = f"64 GPUs of 8 DGX-1 whose rings share PCIe links and NICs; {count:,} sends"
    for compiled, by in _ways_of_running():
        rate = count / _again_s(machine, way, compiled=compiled) / 1e6
        yield at_least(f"message: sends with contention, {by}", 0.2, rate, "M/s", note)
    scene, count = contended_ring(24), sends_of(24)
    note = f"the worst case, 24 unlike edges all over one link; {count:,} sends"
    for compiled, by in _ways_of_running():
        rate = count / _again_s(scene.machine, scene.launches[0].way, compiled=compiled) / 1e6
        yield Measured(f"message: sends all on one link, {by}", "", rate, "M/s", note=note)
    ranks, rng = 1024, np.random.default_rng(2)
    schedule = ring.all_reduce(ranks, ranks * 4 * 10**4)
    rates, late = rng.uniform(1e10, 5e10, ranks), rng.uniform(0, 2e-6, ranks)
    count = sends_of(ranks)
    took_s = least_s(lambda: schedule_s(schedule.phases, rates, late, credits=2))
    note = f"ring of {ranks:,} unlike ranks, no round skipped; {count:,} sends"
    yield at_least("recurrence: sends without contention", 100, count / took_s / 1e6, "M/s", note)


def crowded_cluster() -> tuple[Machine, LoweredCollective]:
    """All-reduce of 25 MiB over eight DGX-1 whose NICs are not alike."""
    plain = build_topology("dgx1-v100", hosts=8, fabric="one-switch")
    rng = np.random.default_rng(1)
    arcs = plain.arcs
    ports = [i for i, kind in enumerate(arcs.kinds) if kind == "infiniband"]
    slower = arcs.bandwidth_Bps[ports] * rng.uniform(0.5, 1, len(ports))
    odd = degrade_links(plain, dict(zip(ports, slower.tolist(), strict=True)))
    machine = Machine(odd, load_library("plain"))
    return machine, UncontendedTimer(machine).best("all_reduce", 25 * MiB, range(64))[0]


def _again_s(machine: Machine, way: LoweredCollective, *, compiled: bool) -> float:
    """CPU seconds of a collective on a network that has carried it before."""
    env = simpy.Environment()
    network = MessageNetwork(
        env, UncontendedTimer(machine), compiled=compiled, recalls=False, by_rounds=False
    )
    env.run(until=network.launch([way]))
    return least_s(lambda: env.run(until=network.launch([way])))


def sends_of(ranks: int) -> int:
    """Sends of a ring all-reduce."""
    return 2 * (ranks - 1) * ranks


def contended_ring(ranks: int) -> Scene:
    """A ring of unlike ranks with two credits; chunks of 40 kB, all over one link of 200 GB/s."""
    rng = np.random.default_rng(2)
    speeds, late = rng.uniform(1e10, 5e10, ranks), rng.uniform(0, 2e-6, ranks)
    machine = Machine(crossbar(speeds, late, trunk_Bps=2e11), with_credits(2))
    way = ring_way(machine, ranks * 4 * 10**4, range(ranks))
    return Scene("", "", machine, (Launch(0.0, way, "all_reduce", ranks),))


def _ways_of_running() -> Iterator[tuple[bool, str]]:
    """The message kernel in plain Python, and compiled where numba is installed."""
    yield False, "plain Python"
    if find_spec("numba") is not None:
        yield True, f"numba {version('numba')}"


def flows() -> Iterator[Measured]:
    """Flows whose rates are solved again, per second."""
    rng = np.random.default_rng(3)
    for count, links in ((100, 60), (10_000, 4_000)):
        pointers, arcs = np.arange(count + 1) * 4, rng.integers(0, links, count * 4)
        capacity = rng.uniform(1e9, 1e10, links)
        took_s = least_s(lambda c=capacity, p=pointers, a=arcs: max_min_rates(c, p, a))  # type: ignore[misc]
        note = f"{count:,} flows over 4 of {links:,} random links"
        yield Measured("flows solved again", "", count / took_s / 1e6, "M/s", note=note)


def imports() -> Iterator[Measured]:
    """CPU seconds of ``perfmodel --help``, the best of five."""
    code = "import sys; sys.argv = ['perfmodel', '--help']; from perfmodel.cli import main; main()"
    best = float("inf")
    for _ in range(5):
        before = os.times()
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)  # noqa: S603
        after = os.times()
        cpu_s = sum(after[2:4]) - sum(before[2:4])
        best = min(best, cpu_s)
    yield at_most("perfmodel --help", 0.4, best, "s CPU")
