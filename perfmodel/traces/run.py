"""Read the traces of a job, sum them up, rebuild the step and replay it."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from perfmodel.errors import Fault, InputError
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.traces.execution_trace import is_execution_trace
from perfmodel.traces.kineto.rank_trace import read_rank, trace_of
from perfmodel.traces.model import RankTrace
from perfmodel.traces.nsight import is_sqlite, read_nsight
from perfmodel.traces.rebuild.layer_profile import Profile, profile_ranks
from perfmodel.traces.rebuild.scenario_files import Rebuilt, rebuild, write_rebuilt

if TYPE_CHECKING:
    from perfmodel.studies.run.result.model import Result, SizeResult


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
        """Of the simulated step, relative to the recorded median."""
        return self.simulated_s / self.recorded_s - 1


def replay(scenario: Path, profile: Profile, changes: Sequence[str] = ()) -> Comparison:
    """Simulate the scenario of a trace.

    `changes`: fields to set, as ``--set`` has them.
    Raises `InputError`: changes that do not fit.
    """
    result = run_scenario(load_scenario(str(scenario), list(changes)))
    return Comparison(profile.step_s, (min(profile.steps_s), max(profile.steps_s)), result)


MOST_FILES = 64
"""Ranks whose traces are read together; more of them say little more."""

SUFFIXES = (".json", ".json.gz", ".sqlite")


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
        scenario = write_rebuilt(rebuilt, folder or Path(scratch))
        comparison = replay(scenario, profile)
        changed = replay(scenario, profile, changes) if changes else None
    return TraceAnalysis(ranks, profile, rebuilt, "", comparison, changed)


def read_ranks(paths: Sequence[Path]) -> tuple[RankTrace, ...]:
    """Read one trace per rank, by rank; execution traces beside them, which have no times, are not.

    Raises `InputError`: no traces, or two of one rank.
    """
    listed = [file for path in paths for file in _files_in(path)]
    files = [file for file in listed if not is_execution_trace(file)] or listed
    if not files or len(files) > MOST_FILES:
        allowed = f"1 to {MOST_FILES} traces, one for each rank"
        raise InputError(Fault("trace", f"{len(files)} files", allowed))
    read = [trace_of(read_nsight(file)) if is_sqlite(file) else read_rank(file) for file in files]
    ranks = sorted(read, key=lambda trace: trace.rank)
    if any(trace.world_size > 1 for trace in ranks):
        if len({trace.rank for trace in ranks}) < len(ranks):
            text = ", ".join(f"{trace.path.name} of rank {trace.rank}" for trace in ranks)
            raise InputError(Fault("trace", text, "one trace for each rank"))
        return tuple(ranks)
    # Without distributedInfo all say that they are rank 0 of 1.
    world, notes = len(ranks), ranks[0].notes
    if world == 1 and (buckets := ranks[0].steps[-1].buckets):
        world = buckets[0].group_size or 2
        if buckets[0].group_size is None:
            notes = (*notes, "the trace does not say how many ranks there are: counted as 2")
    return tuple(
        replace(trace, rank=number, world_size=world, notes=trace.notes if number else notes)
        for number, trace in enumerate(ranks)
    )


def _files_in(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(each for each in path.iterdir() if each.name.endswith(SUFFIXES))
    if not files:
        allowed = f"a folder of traces ({', '.join(SUFFIXES)})"
        raise InputError(Fault("trace", "a folder without traces", allowed, str(path)))
    return files
