"""Names are for people: give every text of every shipped plan another one, and no bit changes.

New texts are made of words that names have had a meaning by, so that whoever reads one is misled.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any

import numpy as np
import pytest

from perfmodel.errors import InputError
from perfmodel.files import list_shipped
from perfmodel.report.run.kineto import to_kineto
from perfmodel.report.run.pipeline_figure import pipeline_picture
from perfmodel.report.run.timeline import step_picture
from perfmodel.scenario import Scenario, change_scenario, load_scenario
from perfmodel.studies.choose.layouts import step_causes
from perfmodel.studies.plan.time_to_train import target_samples
from perfmodel.studies.run.loop_job import LoopJob
from perfmodel.studies.run.one_loop_size import simulate_loop_size
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.steps import sized_job
from perfmodel.studies.run.steps.one_size import simulate_size
from perfmodel.studies.run.steps.sized_job import SizedJob, simulate_reported, size_job
from perfmodel.studies.tune.evaluator import make_evaluator
from perfmodel.training import parallel_layout
from perfmodel.training.plan.step_plan import Collective, LoopPlan, StepPlan, Task
from perfmodel.workload.readers.parameter_file import make_workload
from perfmodel.workload.readers.spec import ModelSpec

WORDS = (
    "copy out bucket",
    "compress bucket",
    "weights of layer",
    "inputs of layer",
    "issue forward",
    "tensor",
    "context of part",
    "expert",
    "expert_rail of part",
    "stage 0 to stage",
    "all stages",
    "holders of the embedding",
    "greatest values",
    "end of the step",
    "to next",
    "comm",
    "host",
    "compute",
    "of micro-batch",
    "copy",
)

_MEGATRON: dict[str, Any] = {"kind": "megatron", "accumulate": 4}
SMALLER: Mapping[str, Mapping[str, Any]] = {
    "auto-llama3-70b-512": {
        "model.name": "llama3.1-8b",
        "strategy": _MEGATRON,
        "cluster.nodes": 4,
        "training": {"batch_per_gpu": 1},
        "parallel": {"tensor": 4, "pipeline": {"stages": 4, "schedule": "zb_h1"}},
    },
    "deepseek-v3-2048-h800": {
        "model.name": "deepseek-v2-lite",
        "strategy.accumulate": 8,
        "cluster.nodes": 4,
        "parallel": {
            "expert": 8,
            "pipeline": {"stages": 4, "schedule": "dualpipe", "blocks_per_part": [7, 7, 7, 6]},
        },
    },
    "gpt3-175b-1024-a100": {
        "strategy.accumulate": 4,
        "cluster.nodes": 4,
        "parallel.pipeline.stages": 4,
    },
    "llama3-405b-16384-h100": {
        "model.name": "llama3.1-8b",
        "strategy.accumulate": 4,
        "cluster.nodes": 2,
        "parallel": {
            "tensor": 8,
            "sequence_parallel": True,
            "pipeline": {"stages": 2, "schedule": "interleaved", "chunks": 2},
        },
    },
    "parameter-server-straggler": {
        "model.name": "resnet18",
        "cluster.nodes": 4,
        "strategy.servers": 2,
        "events": [{"slow": {"ranks": [1], "by": 2}}],
    },
    "lost-nic-3d": {"strategy.accumulate": 4, "cluster.nodes": 8},
    "pipeline-straggler": {"strategy.accumulate": 4, "cluster.nodes": 8},
    "straggler": {"events": [{"slow": {"nodes": [1], "by": 1.2}}], "cluster.nodes": 2},
    "jitter": {"events": [{"jitter": {"cv": 0.01}}]},
    "mixtral-8x7b-fabrics": {"strategy.accumulate": 4},
    "plan-llama3-70b": {
        "model.name": "llama3.1-8b",
        "strategy": _MEGATRON,
        "cluster.nodes": 4,
        "training": {"batch_per_gpu": 1},
        "parallel": {
            "tensor": 8,
            "pipeline": {"stages": 2, "schedule": "interleaved", "chunks": 2},
        },
    },
}
"""Sizes at which scenarios of hundreds of GPUs take a second; and a layout instead of a search."""

WHOLE = ("bucket-size-slow-ethernet", "plan-llama3-70b", "straggler", "local-sgd-1g")
"""Scenarios of which intervals and limits are simulated, too."""


class Renaming:
    """Gives every text another one, always the same."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.texts: dict[str, str] = {"": ""}

    def __call__(self, text: str) -> str:
        if text not in self.texts:
            self.texts[text] = f"{self.random.choice(WORDS)} {len(self.texts)}"
        return self.texts[text]

    def optional(self, text: str | None) -> str | None:
        """Return another text of one that may be missing."""
        return None if text is None else self(text)

    def part(self, plan: StepPlan) -> StepPlan:
        """Rename what strategies make; streams and classes are theirs by name until a plan ends."""
        return replace(
            plan,
            name=self(plan.name),
            communicators=tuple(replace(each, name=self(each.name)) for each in plan.communicators),
            tasks=tuple(map(self.task, plan.tasks)),
        )

    def task(self, task: Task) -> Task:
        """Rename a task, and what it refers to by name."""
        work = task.work
        if isinstance(work, Collective):
            work = replace(work, communicator=self(work.communicator), key=self(work.key))
        return replace(task, name=self(task.name), issues=self(task.issues), work=work)

    def step(self, plan: StepPlan) -> StepPlan:
        """Rename all texts of a plan."""
        return replace(
            self.part(plan),
            classes=tuple(replace(each, name=self(each.name)) for each in plan.classes),
            streams=tuple(replace(each, name=self(each.name)) for each in plan.streams),
            semaphores=tuple((self(name), capacity) for name, capacity in plan.semaphores),
            tasks=tuple(
                replace(
                    self.task(task),
                    rank_class=self(task.rank_class),
                    stream=self(task.stream),
                    acquires=self.optional(task.acquires),
                    releases=self.optional(task.releases),
                )
                for task in plan.tasks
            ),
        )

    def loops(self, plan: LoopPlan) -> LoopPlan:
        """Rename all texts of loops."""
        return replace(
            plan,
            name=self(plan.name),
            workers=tuple(replace(each, name=self(each.name)) for each in plan.workers),
            servers=tuple(replace(each, name=self(each.name)) for each in plan.servers),
            exchanges=tuple(replace(each, name=self(each.name)) for each in plan.exchanges),
            items=tuple(
                tuple(replace(each, name=self(each.name)) for each in items) for items in plan.items
            ),
        )


def after(make: Callable[..., Any], rename: Callable[[Any], Any]) -> Callable[..., Any]:
    """Return a function whose results are renamed."""
    return lambda *positional, **named: rename(make(*positional, **named))


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Renaming]:
    """Start to rename every plan that is made."""

    def begin() -> Renaming:
        renaming = Renaming(31)
        expand, spread, join = (
            parallel_layout.expand_ranks,
            parallel_layout.spread_replica,
            parallel_layout.pipeline_plan,
        )
        monkeypatch.setattr(
            parallel_layout, "expand_ranks", lambda plan, grid: expand(renaming.part(plan), grid)
        )
        monkeypatch.setattr(
            parallel_layout,
            "spread_replica",
            lambda plan, *rest: spread(renaming.part(plan), *rest),
        )
        monkeypatch.setattr(
            parallel_layout,
            "pipeline_plan",
            lambda schedule, parts, options: join(
                schedule, [replace(each, plan=renaming.part(each.plan)) for each in parts], options
            ),
        )
        monkeypatch.setattr(sized_job, "plan_step", after(sized_job.plan_step, renaming.step))
        monkeypatch.setattr(LoopJob, "plan", after(LoopJob.plan, renaming.loops))
        return renaming

    return begin


def small(name: str) -> Scenario:
    """A shipped scenario at its smallest size of several GPUs."""
    scenario = load_scenario(name)
    for field, value in SMALLER.get(name, {}).items():
        scenario = change_scenario(scenario, {field: value})
    return scenario


def make_size(scenario: Scenario) -> SizedJob:
    inputs = resolve_scenario(scenario, None, None)
    return size_job(inputs, next((s for s in inputs.sizes if s.gpus > 1), inputs.sizes[-1]))


def simulate(sized: SizedJob, whole: bool) -> SizeResult:
    loops = sized.job.strategy.loops is not None
    return (simulate_loop_size if loops else simulate_size)(
        sized, with_first=whole, with_limits=whole
    )


def leaves(value: Any, at: str = "") -> Iterator[tuple[str, Any]]:
    """All numbers of a result but for texts, each with its place."""
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if is_dataclass(value) and not isinstance(value, type):
        for field in fields(value):
            yield from leaves(getattr(value, field.name), f"{at}.{field.name}")
    elif isinstance(value, Mapping):
        for number, each in enumerate(value.values()):
            yield from leaves(each, f"{at}[{number}]")
    elif isinstance(value, tuple | list):
        yield f"{at} entries", len(value)
        for number, each in enumerate(value):
            yield from leaves(each, f"{at}[{number}]")
    elif isinstance(value, float):
        yield at, value.hex()
    elif not isinstance(value, str):
        yield at, value


def pictures(sized: SizedJob, point: SizeResult) -> Iterator[Any]:
    """What a report draws of a step."""
    yield [(row.role, row.bars) for row in step_picture(point).rows]
    if point.parallel_layout is not None and point.parallel_layout.stages:
        picture = pipeline_picture(point)
        yield [(each.row, each.kind, each.start_s, each.end_s) for each in picture.blocks]
    trace = to_kineto(point.timeline, world_size=sized.size.gpus, backend="nccl", gpu="")
    yield [(event.get("ts"), event.get("dur")) for event in trace["traceEvents"]]
    yield sorted(point.breakdown_s.items())
    if point.parallel_layout is not None:
        yield [each.dimension for each in point.parallel_layout.dimensions]


def answers(name: str) -> dict[str, Any]:
    sized = make_size(small(name))
    point = simulate(sized, name in WHOLE)
    found = dict(leaves(point)) | dict(leaves(list(pictures(sized, point)), "picture"))
    found["bottleneck"] = point.bottleneck
    if not sized.job.parallel_layout.is_plain:
        found |= dict(leaves(step_causes(simulate_reported(sized)), "causes"))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", list_shipped("scenarios"))
def test_no_number_of_a_run_is_read_out_of_a_text(
    name: str, renamed: Callable[[], Renaming], request: pytest.FixtureRequest
) -> None:
    if name not in WHOLE:
        request.getfixturevalue("steps_alone")
    expected = answers(name)
    renaming = renamed()
    found = answers(name)
    assert len(renaming.texts) > 10
    assert {at: (found.get(at), is_) for at, is_ in expected.items() if found.get(at) != is_} == {}
    assert found.keys() == expected.keys()


@pytest.mark.slow
@pytest.mark.parametrize(
    "fields", [{}, {"strategy.hook": "fp16"}, {"strategy.accumulate": 2}], ids=str
)
def test_no_number_of_tune_is_read_out_of_a_text(
    fields: Mapping[str, Any], renamed: Callable[[], Renaming]
) -> None:
    scenario = change_scenario(load_scenario("bucket-size-slow-ethernet"), fields)

    def surrogate() -> list[tuple[str, Any]]:
        evaluator = make_evaluator(make_size(scenario))
        return list(leaves([evaluator.surrogate, evaluator.simulate(evaluator.options)]))

    expected = surrogate()
    renamed()
    assert surrogate() == expected


def test_tokens_of_a_plan_are_those_that_a_model_file_states() -> None:
    scenario = load_scenario("plan-llama3-70b")
    parameters = [{"name": "fc.weight", "shape": [8, 8]}]
    for stated in (640, 12):
        spec = ModelSpec.model_validate(
            {"sample": "page of 7 tokens", "tokens_per_sample": stated, "parameters": parameters}
        )
        workload = make_workload(spec, "page.yaml", "page")
        assert target_samples(scenario, workload) == 1e12 / stated
        assert (workload.sample.units, workload.sample.plural) == ("pages", "pages of 7 tokens")


def test_tokens_of_a_plan_are_no_words_of_a_sample() -> None:
    scenario = load_scenario("plan-llama3-70b")
    workload = resolve_scenario(small("plan-llama3-70b"), None, None).workload
    other = replace(workload, sample=replace(workload.sample, unit="page", detail="of 7 tokens"))
    assert target_samples(scenario, other) == target_samples(scenario, workload) == 1e12 / 8192
    nothing = replace(workload, sample=replace(workload.sample, tokens=None))
    with pytest.raises(InputError, match="a model file with tokens_per_sample"):
        target_samples(scenario, nothing)
