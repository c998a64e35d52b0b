"""One DDP step of GPT-2 XL on a cluster, in a process of its own; prints one JSON line.

    python reports/benchmarks/one_step.py GPUS

1.5 billion parameters in buckets of 25 MiB, DGX A100 hosts on an explicit rail-optimised fabric.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

begun = time.perf_counter()

from perfmodel.library.machine import Machine  # noqa: E402  (the imports are what is timed)
from perfmodel.scenario import ClusterSize, load_scenario  # noqa: E402
from perfmodel.simulate.engine.engine import simulate  # noqa: E402
from perfmodel.studies.run.resolve.job_plan import plan_step, price_layers  # noqa: E402
from perfmodel.studies.run.resolve.machine import build_machine  # noqa: E402
from perfmodel.studies.run.resolve.training_job import TrainingJob, resolve_workload  # noqa: E402
from perfmodel.topology.templates.build import load_node  # noqa: E402
from perfmodel.training.plan.step_plan import StepPlan  # noqa: E402

IMPORTED_S = time.perf_counter() - begun
BATCH = 4
OVERRIDES = (
    "model.name=gpt2-xl",
    "model.sequence_length=1024",
    "compute.precision=bf16",
    "compute.channels_last=false",
    f"training.batch_per_gpu={BATCH}",
)


@dataclass(frozen=True, slots=True)
class Question:
    """A cluster and what it does in one step."""

    machine: Machine
    plan: StepPlan


def question(gpus: int, *overrides: str, name: str = "resnet50-dgx-a100") -> Question:
    """Build a cluster of DGX A100 and plan a step of DDP on it."""
    scenario = load_scenario(name, [*OVERRIDES, *overrides])
    each = min(gpus, 8)
    here = build_machine(scenario, load_node("dgx-a100"), ClusterSize(gpus, -(-gpus // 8), each))
    job = TrainingJob(scenario, resolve_workload(scenario), here.topology.gpu, here.library)
    return Question(here, plan_step(job, price_layers(job, BATCH), gpus, BATCH, "steady"))


def took_s(work: Callable[[], object]) -> float:
    """Wall seconds of a call."""
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main(gpus: int) -> dict[str, float]:
    """Build, plan and simulate once; seconds, bytes."""
    start, cpu = time.perf_counter(), time.process_time()
    asked = question(gpus)
    built_s = time.perf_counter() - start
    step_time_s = simulate(asked.plan, asked.machine).step_time_s
    return {
        "gpus": gpus,
        "imported_s": IMPORTED_S,
        "built_s": built_s,
        "simulated_s": time.perf_counter() - start - built_s,
        "cpu_s": time.process_time() - cpu,
        "arcs": len(asked.machine.topology.arcs),
        "tasks": len(asked.plan.tasks),
        "step_time_s": step_time_s,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
    }


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]))))  # noqa: T201  (this is the output)
