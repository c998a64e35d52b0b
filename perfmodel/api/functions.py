"""The functions of ``import perfmodel``: what the commands do, for people who type it.

A scenario is a name, a path, an object or a mapping of all its fields. What differs from it is a
mapping of dotted fields, or keywords with two underscores for each dot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from perfmodel.api.questions import (
    Fields,
    Question,
    as_columns,
    as_profile,
    as_scenario,
    python_names,
    refused,
)
from perfmodel.errors import refuse_if
from perfmodel.scenario import Scenario

if TYPE_CHECKING:
    from perfmodel.api.doctor import Installation
    from perfmodel.api.results import (
        AdviceResult,
        BucketTuning,
        ComparisonResult,
        Plan,
        RunResult,
        StrategyTuning,
        Sweep,
    )
    from perfmodel.calibrate import Profile
    from perfmodel.measure.job import Progress
    from perfmodel.scenario import ClusterSize
    from perfmodel.simulate.engine.own_processes import Process
    from perfmodel.studies.sweep.variants import Variant


UNCHANGED: Final = object()
"""A section that stays as the scenario has it: None removes one."""


@python_names
def run(
    scenario: Question,
    fields: Fields | None = None,
    *,
    profile: Profile | str | Path | None = None,
    fidelity: str | None = None,
    progress: Progress | None = None,
    with_first: bool = True,
    jobs: int | None = None,
    backend: str = "loky",
    scheduler: str | None = None,
    strategy: Any = UNCHANGED,
    processes: Sequence[Process] = (),
    steps: int | None = None,
    **keywords: Any,
) -> RunResult:
    """Predict the step time of a scenario at all its cluster sizes.

    Parameters
    ----------
    scenario : str, Path, Scenario or mapping
        A name, a path, an object, or all fields.
    fields : mapping, optional
        Dotted fields that differ, with values as in a file: ``{"cluster.nodes": 4}``.
    profile : str, Path or Profile, optional
        Measured numbers instead of those of datasheets.
    fidelity : {"flow", "message", "reference"}, optional
        Instead of the scenario's.
    progress : callable, optional
        Called with (sizes done, sizes in all).
    with_first : bool
        Whether very first steps are simulated, too; their times are nan otherwise.
    jobs : int, optional
        Processes that simulate the parallel layouts of strategy ``auto``; default: this one.
    backend, scheduler
        As of `sweep`, for the same.
    strategy : callable, or fields
        A function of a `StepRequest` that returns a `StepPlan` (see `StepBuilder`), in place of
        the scenario's strategy; or that section's fields.
    processes : sequence of callable
        SimPy processes beside the job: generator functions of (env, network), where `network` sends
        traffic, changes links and says what the job does (`NetworkView`). They begin with the
        first step that counts, once for each simulation that a run makes.
    steps : int, optional
        Steps that are counted beside processes; default: 20.
    **keywords
        Fields that differ: ``cluster__nodes=4``; None removes one.

    Raises
    ------
    InputError
        A type that is not expected, a name that is not known, or a field that is wrong.

    Examples
    --------
    >>> import perfmodel as pm
    >>> result = pm.run("resnet50-dgx-a100", scale=None, cluster__nodes=2)
    >>> result.main.gpus, result.main.bottleneck
    (16, 'compute')
    """
    from perfmodel.api.results import RunResult, showing
    from perfmodel.studies.run import run_scenario
    from perfmodel.studies.sweep.executor import search_workers

    own = strategy if callable(strategy) else None
    if own is None and strategy is not UNCHANGED:
        keywords["strategy"] = strategy
    question = as_scenario(scenario, fields, keywords)
    return showing(
        RunResult,
        run_scenario(
            question,
            fidelity=fidelity,
            profile=as_profile(profile),
            progress=progress,
            with_first=with_first,
            strategy=own,
            processes=processes,
            steps=steps,
            workers=search_workers(question, jobs, backend, scheduler),
        ),
    )


@python_names
def tune(
    scenario: Question,
    fields: Fields | None = None,
    *,
    profile: Profile | str | Path | None = None,
    size: ClusterSize | None = None,
    horovod: bool = False,
    progress: Callable[[str], None] | None = None,
    **keywords: Any,
) -> BucketTuning | StrategyTuning:
    """Find the best gradient buckets, or of another strategy than DDP the best settings.

    Parameters
    ----------
    scenario, fields, profile, **keywords
        As of `run`.
    size : ClusterSize, optional
        Default: the main size of the scenario.
    horovod : bool
        Whether to tune Horovod's fusion threshold as well.
    progress : callable, optional
        Called with the next stage, in words.

    Examples
    --------
    >>> import perfmodel as pm
    >>> tuned = pm.tune("resnet50-dgx-a100", {"cluster.nodes": 1, "scale": None})
    >>> tuned.recommended.keep
    True
    """
    from perfmodel.api.results import BucketTuning, StrategyTuning, showing
    from perfmodel.studies.tune.run import tune_scenario
    from perfmodel.studies.tune.settings_search import tune_settings
    from perfmodel.training.strategies import STRATEGIES

    question, measured = as_scenario(scenario, fields, keywords), as_profile(profile)
    row = STRATEGIES.get(question.strategy.kind)
    if row is None or row.buckets:
        return showing(
            BucketTuning,
            tune_scenario(
                question, profile=measured, size=size, horovod=horovod, progress=progress
            ),
        )
    refuse_if(
        horovod,
        "horovod",
        f"strategy {question.strategy.kind}",
        "a scenario with strategy ddp, or kind: horovod",
    )
    return showing(
        StrategyTuning, tune_settings(question, profile=measured, size=size, progress=progress)
    )


@python_names
def compare(
    *scenarios: Any,
    profile: Profile | str | Path | None = None,
    attribute: bool = False,
    jobs: int | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> ComparisonResult:
    """Put scenarios, or variations of one, side by side; all are compared with the first.

    Parameters
    ----------
    *scenarios
        Names, paths, objects or whole mappings; after the first also mappings of dotted fields,
        which vary the first one. Or one list of these, or one mapping of labels to these.
    attribute : bool
        Whether to simulate the common what-ifs, too.
    jobs : int, optional
        Processes for them.
    profile, progress, **keywords
        As of `run`; keywords change all of them.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pair = pm.compare("bucket-size-slow-ethernet", {"strategy.hook": "fp16"})
    >>> pair.differences[0].step.ratio < 0.7
    True
    """
    from perfmodel.api.results import ComparisonResult, showing
    from perfmodel.studies.compare import compare as compare_scenarios

    return showing(
        ComparisonResult,
        compare_scenarios(
            as_columns(scenarios, keywords),
            profile=as_profile(profile),
            attribute=attribute,
            jobs=jobs,
            progress=progress,
        ),
    )


@python_names
def variants(
    scenario: Question,
    fields: Fields | None = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    zip: Mapping[str, Sequence[Any]] | None = None,  # noqa: A002  (the word of the file)
    **keywords: Any,
) -> tuple[Variant, ...]:
    """Return the variants of a scenario, for `sweep`.

    Parameters
    ----------
    scenario, fields, **keywords
        As of `run`; with a section ``sweep`` unless `grid` or `zip` is given.
    grid, zip : mapping of str to sequence, optional
        Values of dotted fields: every combination, and lists that go together.

    Examples
    --------
    >>> import perfmodel as pm
    >>> grid = {"strategy.bucket_cap": ["1 MiB", "25 MiB"]}
    >>> [each.set for each in pm.variants("bucket-size-slow-ethernet", grid=grid)]
    [{'strategy.bucket_cap': '1 MiB'}, {'strategy.bucket_cap': '25 MiB'}]
    """
    from perfmodel.studies.sweep.variants import variants as list_variants

    return list_variants(as_scenario(scenario, fields, keywords), grid=grid, zip=zip)


@python_names
def sweep(
    scenario: Question | Sequence[Variant],
    fields: Fields | None = None,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    zip: Mapping[str, Sequence[Any]] | None = None,  # noqa: A002  (the word of the file)
    jobs: int | None = None,
    backend: str = "loky",
    scheduler: str | None = None,
    store: str | Path | None = None,
    profile: Profile | str | Path | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> Sweep:
    """Run many variants of a scenario, each once.

    Parameters
    ----------
    scenario : str, Path, Scenario, mapping, or sequence of Variant
    grid, zip : mapping of str to sequence, optional
        As of `variants`.
    jobs : int, optional
        Processes; 1 stays in this one. Default: one per physical core, for what is worth them.
    backend : {"loky", "dask", "ray"}
    scheduler : str, optional
        Address of a dask or ray cluster.
    store : str or Path, optional
        File that answers are read from, and written to as they come.
    fields, profile, progress, **keywords
        As of `run`.

    Examples
    --------
    >>> import perfmodel as pm
    >>> grid = {"cluster.nodes": [1, 2]}
    >>> swept = pm.sweep("bucket-size-slow-ethernet", grid=grid, jobs=1)
    >>> list(swept.to_frame()["gpus"])
    [1, 2]
    """
    from perfmodel.api.results import Sweep, showing
    from perfmodel.studies.sweep.run import run_sweep
    from perfmodel.studies.sweep.variants import Variant

    if isinstance(scenario, list | tuple):
        for each in scenario:
            if not isinstance(each, Variant):
                raise refused(
                    "scenario", each, "a scenario, or variants as perfmodel.variants makes them"
                )
    else:
        scenario = variants(scenario, fields, grid=grid, zip=zip, **keywords)  # type: ignore[arg-type]
    return showing(
        Sweep,
        run_sweep(
            scenario,
            jobs=jobs,
            backend=backend,
            scheduler=scheduler,
            store=store,
            profile=as_profile(profile),
            progress=progress,
        ),
    )


@python_names
def plan(
    scenario: Question,
    fields: Fields | None = None,
    *,
    profile: Profile | str | Path | None = None,
    jobs: int | None = None,
    backend: str = "loky",
    scheduler: str | None = None,
    store: str | Path | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> Plan:
    """Compare the candidate clusters of a scenario's ``plan`` section.

    Parameters
    ----------
    jobs : int, optional
        Processes; default: one per physical core, for what is worth them.
    backend, scheduler
        As of `sweep`.
    store : str or Path, optional
        File in which predicted steps are kept.
    scenario, fields, profile, progress, **keywords
        As of `run`.

    Examples
    --------
    >>> import perfmodel as pm
    >>> one = [{"name": "eight", "node": "dgx-a100", "nodes": [1]}]
    >>> target = {"target": {"samples": 1_000_000}, "candidates": one}
    >>> pm.plan("resnet50-dgx-a100", plan=target, jobs=1).usable[0].gpus
    8
    """
    from perfmodel.api.results import Plan, showing
    from perfmodel.studies.plan.run import plan_scenario

    return showing(
        Plan,
        plan_scenario(
            as_scenario(scenario, fields, keywords),
            profile=as_profile(profile),
            jobs=jobs,
            backend=backend,
            scheduler=scheduler,
            store=None if store is None else Path(store),
            progress=progress,
        ),
    )


@python_names
def advise(
    scenario: Question,
    fields: Fields | None = None,
    *,
    profile: Profile | str | Path | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    **keywords: Any,
) -> AdviceResult:
    """Say what to change in a scenario: each change alone, and the best few together.

    Parameters
    ----------
    jobs : int, optional
        Processes; default: one per physical core, for what is worth them.
    scenario, fields, profile, progress, **keywords
        As of `run`.

    Examples
    --------
    >>> import perfmodel as pm
    >>> advice = pm.advise("bucket-size-slow-ethernet", cluster__nodes=2)  # doctest: +SKIP
    >>> advice.best.text  # doctest: +SKIP
    'fp16 hook + channels-last layout + torch.compile'
    """
    from perfmodel.api.results import AdviceResult, showing
    from perfmodel.studies.advise.run import advise_scenario

    question = as_scenario(scenario, fields, keywords)
    return showing(
        AdviceResult,
        advise_scenario(question, profile=as_profile(profile), jobs=jobs, progress=progress),
    )


def doctor() -> Installation:
    """Say what is installed, what each extra adds, which devices are seen, what can be measured.

    Examples
    --------
    >>> import perfmodel as pm
    >>> pm.doctor().packages["numpy"] is not None
    True
    """
    from perfmodel.api.doctor import inspect_installation

    return inspect_installation()


__all__ = [
    "Scenario",
    "advise",
    "compare",
    "doctor",
    "plan",
    "run",
    "sweep",
    "tune",
    "variants",
]
