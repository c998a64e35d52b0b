"""Speed: ``pytest -m benchmarks``. No test asserts a time; the report quotes what is measured."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest
import simpy

from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.scenario import ClusterSize, Scenario, load_scenario
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.flow.network import FlowNetwork
from perfmodel.simulate.message.network import MessageNetwork
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.job_plan import plan_step, price_layers
from perfmodel.studies.run.resolve.machine import build_machine
from perfmodel.studies.run.resolve.training_job import TrainingJob, resolve_workload
from perfmodel.topology.templates.build import build_topology, load_node

pytestmark = pytest.mark.benchmarks


@pytest.fixture(scope="module")
def resnet50() -> Scenario:
    return load_scenario("resnet50-dgx-a100")


@pytest.mark.parametrize("gpus", [8, 64, 256, 1024])
def test_resnet50_step(benchmark: Callable[..., object], resnet50: Scenario, gpus: int) -> None:
    """One cluster size of a scaling curve: topology, model, plan and three steps."""
    node = load_node("dgx-a100")

    def answer() -> float:
        here = build_machine(resnet50, node, ClusterSize(gpus, gpus // 8, 8))
        job = TrainingJob(resnet50, resolve_workload(resnet50), here.topology.gpu, here.library)
        step = plan_step(job, price_layers(job, 256), gpus, 256, "steady")
        return simulate(step, here, steps=3).step_time_s

    assert benchmark(answer) > 0


@pytest.mark.parametrize("ranks", [8, 64])
def test_message_ring(benchmark: Callable[..., object], ranks: int) -> None:
    """A 25 MiB ring all-reduce send by send, on one NVSwitch or over eight hosts."""
    hosts = ranks // 8
    topology = build_topology(
        "dgx-a100", hosts=hosts, fabric="rail-optimised" if hosts > 1 else None
    )
    timer = UncontendedTimer(Machine(topology, load_library("plain")))

    def run() -> float:
        env = simpy.Environment()
        network = MessageNetwork(env, timer, recalls=False, by_rounds=False)
        env.run(until=network.collective("all_reduce", 25 << 20, (range(ranks),), 0))
        return float(env.now)

    assert benchmark(run) > 0


@pytest.mark.parametrize("ranks", [8, 1024])
def test_flow_ring(benchmark: Callable[..., object], ranks: int) -> None:
    """The same at fidelity flow, from a built machine whose rings are laid anew."""
    hosts = ranks // 8
    topology = build_topology(
        "dgx-a100", hosts=hosts, fabric="rail-optimised" if hosts > 1 else None
    )

    def run() -> float:
        env = simpy.Environment()
        network = FlowNetwork(env, UncontendedTimer(Machine(topology, load_library("nccl"))))
        env.run(until=network.collective("all_reduce", 25 << 20, (range(ranks),), 0))
        return float(env.now)

    assert benchmark(run) > 0


@pytest.mark.parametrize(
    "words", [["--help"], ["run", "resnet50-dgx-a100", "--set", "scale="]], ids=["help", "run"]
)
def test_start_up(words: list[str], benchmark: Callable[..., object]) -> None:
    """CPU seconds of small commands in a fresh process (user + system, as extra info)."""

    def call() -> None:
        command = [sys.executable, "-c", "from perfmodel.cli import main; main()", *words]
        subprocess.run(command, check=True, capture_output=True)

    before = os.times()
    benchmark.pedantic(call, rounds=5)  # type: ignore[attr-defined]
    after = os.times()
    user = after.children_user - before.children_user
    system = after.children_system - before.children_system
    benchmark.extra_info["cpu_s"] = (user + system) / 5  # type: ignore[attr-defined]
