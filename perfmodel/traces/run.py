"""Read the traces of a job, sum them up, rebuild the step and replay it.

Execution traces of Chakra, which have their collectives, are simulated on any machine.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import Fault, InputError, ScheduleError, refuse_if
from perfmodel.files import attributes
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.scenario import load_scenario
from perfmodel.simulate.engine.engine import simulate
from perfmodel.studies.run import run_scenario
from perfmodel.testing.check_plan import check_plan
from perfmodel.topology.model import Topology
from perfmodel.traces.chakra_read import read_plan
from perfmodel.traces.kineto.event_stream import first_bytes
from perfmodel.traces.kineto.rank_trace import read_rank
from perfmodel.traces.model import RankTrace
from perfmodel.traces.rebuild.layer_profile import Profile, profile_ranks
from perfmodel.traces.rebuild.scenario_files import Rebuilt, rebuild
from perfmodel.training.plan.step_plan import Collective, StepPlan

if TYPE_CHECKING:
    from perfmodel.studies.run.result import Result, SizeResult


@dataclass(frozen=True, slots=True)
class Comparison:
    """Recorded against simulated; seconds.

    `recorded_s`: median step. `spread_s`: least and greatest step.
    """

    recorded_s: float
    spread_s: tuple[float, float]
    result: Result

    @property
    def point(self) -> SizeResult:
        """The job as large as recorded."""
        return self.result.main

    @property
    def simulated_s(self) -> float:
        """Step time."""
        return self.point.step_time_s

    @property
    def error(self) -> float:
        """Relative error of the simulated step against the recorded median."""
        return self.simulated_s / self.recorded_s - 1


def replay(scenario: Path, profile: Profile, changes: Sequence[str] = ()) -> Comparison:
    """Simulate the scenario of a trace.

    `changes`: fields to set, as ``--set`` has them.
    Raises `InputError`: changes that do not fit.
    """
    return Comparison(
        profile.step_s,
        (min(profile.steps_s), max(profile.steps_s)),
        run_scenario(load_scenario(str(scenario), list(changes))),
    )


MOST_FILES = 64
"""Ranks whose traces are read together; more of them say little more."""

SUFFIXES = (".json", ".json.gz")

BUCKET_FIELDS = "index elements dtype ready_s start_s end_s transfer_s least_s waiting_s"


@dataclass(frozen=True, slots=True)
class TraceAnalysis:
    """What is known of a traced job.

    `refusal`: why there is no scenario; empty where there is one.
    `comparison`: of the rebuilt step with the trace.
    `changed`: the same step with some fields set.
    """

    ranks: tuple[RankTrace, ...]
    profile: Profile
    rebuilt: Rebuilt | None
    refusal: str
    comparison: Comparison | None
    changed: Comparison | None = None

    @property
    def first(self) -> RankTrace:
        """The trace of the lowest rank."""
        return self.ranks[0]

    @property
    def launch_bound(self) -> float:
        """Part of the step in which the device waits for the host to launch work."""
        return self.profile.launch_wait_s / self.profile.step_s if self.profile.step_s > 0 else 0.0


def analyse_traces(
    paths: Sequence[Path],
    *,
    gpu: str | None = None,
    batch: int | None = None,
    model: str | None = None,
    changes: Sequence[str] = (),
    folder: Path | None = None,
) -> TraceAnalysis:
    """Read traces of PyTorch's profiler, one for each rank, and replay their step.

    Parameters
    ----------
    paths : sequence of Path
        Files, or folders of them.
    gpu, batch, model
        What the trace may not say: the GPU of the table, samples per GPU, and a model that names
        the parameters.
    changes : sequence of str
        Fields of the rebuilt scenario to set for a second simulation, as ``--set`` has them.
    folder : Path, optional
        Where model, machine and scenario are written.

    Returns
    -------
    TraceAnalysis

    Raises
    ------
    InputError
        No traces of training, or of several jobs; changes that do not fit.
    """
    ranks = read_ranks(paths)
    profile = profile_ranks(ranks)
    try:
        rebuilt = rebuild(ranks, profile, gpu=gpu, batch=batch, model=model)
    except InputError as error:
        fields = {fault.field for fault in error.faults}
        if changes or "--model" in fields or ("gpu" in fields and gpu is not None):
            raise
        return TraceAnalysis(ranks, profile, None, str(error), None)
    with tempfile.TemporaryDirectory() as scratch:
        scenario = rebuilt.write(folder or Path(scratch))
        comparison = replay(scenario, profile)
        changed = replay(scenario, profile, changes) if changes else None
    return TraceAnalysis(ranks, profile, rebuilt, "", comparison, changed)


def read_ranks(paths: Sequence[Path]) -> tuple[RankTrace, ...]:
    """Read one trace per rank, by rank; execution traces beside them, which have no times, are not.

    Raises `InputError`: no traces, or two of one rank.
    """
    listed = [file for path in paths for file in _files_in(path)]
    # those of PyTorch's ExecutionTraceObserver begin so
    other = re.compile(rb'\{\s*"schema"\s*:')
    files = [file for file in listed if not other.match(first_bytes(file, 4096))] or listed
    refuse_if(
        not 1 <= len(files) <= MOST_FILES,
        "trace",
        f"{len(files)} files",
        f"1 to {MOST_FILES} traces, one for each rank",
    )
    ranks = sorted(map(read_rank, files), key=lambda trace: trace.rank)
    if any(trace.world_size > 1 for trace in ranks):
        refuse_if(
            len({trace.rank for trace in ranks}) < len(ranks),
            "trace",
            ", ".join(f"{trace.path.name} of rank {trace.rank}" for trace in ranks),
            "one trace for each rank",
        )
        return tuple(ranks)
    # Without distributedInfo all say that they are rank 0 of 1.
    world, notes = len(ranks), ranks[0].notes
    stated = [bucket.group_size for bucket in ranks[0].steps[-1].buckets[:1]]
    if world == 1 and stated:
        world = stated[0] or 2
        notes = (
            notes
            if stated[0]
            else (*notes, "the trace does not say how many ranks there are: counted as 2")
        )
    return tuple(
        replace(trace, rank=number, world_size=world, notes=trace.notes if number else notes)
        for number, trace in enumerate(ranks)
    )


def _files_in(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.name.endswith(SUFFIXES))
    refuse_if(
        not files,
        "trace",
        "a folder without traces",
        f"a folder of traces ({', '.join(SUFFIXES)})",
        str(path),
    )
    return files


def to_json(analysis: TraceAnalysis) -> dict[str, Any]:
    """Return what ``perfmodel trace --json`` prints; times in seconds."""
    profile, first, rebuilt = analysis.profile, analysis.first, analysis.rebuilt
    replayed, changed = analysis.comparison, analysis.changed
    return {
        "perfmodel": 1,
        "kind": "trace",
        "traces": [
            {
                "file": str(rank.path),
                "rank": rank.rank,
                "events": rank.events,
                "steps": len(rank.steps),
                "median_step_s": rank.median_step_s,
            }
            for rank in analysis.ranks
        ],
        "world_size": first.world_size,
        "backend": first.backend,
        "device": first.device,
        "batch_per_gpu": first.batch,
        "step": {
            "median_s": profile.step_s,
            "least_s": min(profile.steps_s),
            "greatest_s": max(profile.steps_s),
            "count": len(profile.steps_s),
            "forward_s": float(profile.forward_s.sum()),
            "backward_s": float(profile.backward_s.sum()),
            "exposed_comm_s": profile.exposed_s,
            "rest_s": profile.tail_s,
            "device_busy_s": profile.busy_s,
            "launch_wait_s": profile.launch_wait_s,
        },
        "overlap_slowdown": profile.slowdown,
        "buckets": [attributes(bucket, BUCKET_FIELDS) for bucket in profile.buckets],
        "other_collectives": [
            attributes(call, "op elements dtype group group_size") | {"time_s": call.length_s}
            for call in first.steps[-1].others
        ],
        "layers": _layers(analysis),
        "refusal": analysis.refusal or None,
        "notes": list(rebuilt.notes if rebuilt else first.notes),
        **({} if replayed is None else {"replay": _replay(replayed)}),
        **(
            {"machine": attributes(rebuilt.fit, "bandwidth_Bps latency_s worst")}
            if rebuilt and rebuilt.fit
            else {}
        ),
        **({} if changed is None else {"changed": {"simulated_s": changed.simulated_s}}),
    }


def _replay(replayed: Comparison) -> dict[str, Any]:
    return {
        **attributes(replayed, "simulated_s error"),
        "buckets": [
            attributes(each, "index nbytes ready_s start_s end_s")
            for each in replayed.point.buckets
        ],
    }


def _layers(analysis: TraceAnalysis) -> list[dict[str, Any]]:
    """Return the layers in the order in which backward completes them."""
    first, profile = analysis.first, analysis.profile
    gradients = analysis.rebuilt.gradients if analysis.rebuilt else first.gradients
    return [
        {
            "name": layer.name,
            "forward_s": float(profile.forward_s[at]),
            "backward_s": float(profile.backward_s[at]),
            "gradients": [
                attributes(g, "name elements dtype bucket")
                | {"shape": None if g.shape is None else list(g.shape)}
                for g in (gradients[number] for number in layer.gradients)
            ],
        }
        for at, layer in enumerate(first.layers)
    ]


LINKED_STEPS = 2
"""The second one is reported, where the trace links a step to the one before."""

NO_MORE_SLOWDOWN = 1.0
"""Slowdown of compute beside collectives: times in traces of others contain theirs."""


@dataclass(frozen=True, slots=True)
class SimulatedTrace:
    """A trace on a machine; seconds.

    `step_s`: of one run through the trace.
    """

    plan: StepPlan
    step_s: float

    @property
    def collectives(self) -> int:
        """Collectives and messages of all classes."""
        return len({task.work.key for task in self.plan.tasks if isinstance(task.work, Collective)})


def simulate_trace(folder: Path, topology: Topology, library: str = "nccl") -> SimulatedTrace:
    """Read the traces of all ranks and simulate them.

    Raises `InputError`: traces that do not hold, or another number of ranks than the machine has.
    """
    plan, is_own = read_plan(folder)
    try:
        check_plan(plan)
    except ScheduleError as error:
        raise InputError(
            Fault(
                "trace", str(error), "collectives that all ranks of their group share", str(folder)
            )
        ) from None
    ranks, gpus = sum(len(each.ranks) for each in plan.classes), len(topology.ranks)
    refuse_if(
        ranks > gpus,
        "--topology",
        f"{ranks} ranks, on {gpus} GPUs",
        f"a machine of {ranks} GPUs or more",
    )
    run = simulate(
        plan,
        make_machine(topology, load_library(library)),
        steps=LINKED_STEPS if any(task.after_previous for task in plan.tasks) else 1,
        overlap_slowdown=None if is_own else NO_MORE_SLOWDOWN,
    )
    return SimulatedTrace(plan, run.step_time_s)
