"""A function of the user's as a strategy: DDP again, sums of its parts, what is said of faults."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import perfmodel as pm
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.step_plan import ddp_plan

ASKED: dict[str, Any] = {
    "model": {"name": "resnet18"},
    "compute": {"precision": "fp16"},
    "cluster": {"node": "dgx-a100", "nodes": 1},
    "training": {"batch_per_gpu": 64},
}


def after_backward(request: pm.StepRequest) -> pm.StepPlan:
    """One all-reduce of everything when backward has ended."""
    step, times = pm.StepBuilder(request), request.times
    step.compute("forward", times.forward_s.sum())
    last = step.compute("backward", times.backward_s.sum())
    reduced = step.collective("all_reduce", request.workload.nbytes, after=last, bucket=0)
    step.compute("optimizer", times.optimizer_s, after=reduced)
    return step.plan()


@pytest.mark.slow
@given(
    cap=st.sampled_from([None, 1 << 20, 10 << 20, 100 << 20]),
    nodes=st.sampled_from([1, 2]),
    precision=st.sampled_from(["fp16", "tf32"]),
)
@settings(max_examples=4, deadline=None)
def test_a_plan_of_ddp_gives_the_numbers_of_ddp(
    cap: int | None, nodes: int, precision: str
) -> None:
    def like_ddp(request: pm.StepRequest) -> pm.StepPlan:
        return ddp_plan(request, DdpOptions(bucket_cap=cap))

    fields = {
        "compute.precision": precision,
        "cluster.nodes": nodes,
        "scale.gpus": [2],
        "cluster.fabric": "rail-optimised",
    }
    section = {} if cap is None else {"bucket_cap": f"{cap >> 20} MiB"}
    ddp = pm.run({**ASKED, "strategy": section}, fields)
    own = pm.run(ASKED, fields, strategy=like_ddp)
    for expected, point in zip(ddp.points, own.points, strict=True):
        for name in (
            "step_time_s",
            "first_step_time_s",
            "compute_s",
            "comm_s",
            "exposed_comm_s",
            "breakdown_s",
            "samples_per_s",
            "scaling_efficiency",
            "bottleneck",
            "interval_s",
        ):
            assert getattr(point, name) == getattr(expected, name), name
        assert [(b.index, b.nbytes, b.start_s, b.end_s) for b in point.buckets] == [
            (b.index, b.nbytes, b.start_s, b.end_s) for b in expected.buckets
        ]


def test_a_step_is_the_sum_of_what_waits_for_each_other() -> None:
    """Forward, backward, the collective alone, and the optimizer: nothing overlaps."""
    seen: list[pm.StepRequest] = []

    def watched(request: pm.StepRequest) -> pm.StepPlan:
        seen.append(request)
        return after_backward(request)

    fields = {"library.name": "plain"}
    for fidelity in ("flow", "message"):
        main = pm.run(ASKED, fields, strategy=watched, fidelity=fidelity, with_first=False).main
        times, nbytes = seen[0].times, seen[0].workload.nbytes
        row = pm.collective("dgx-a100", sizes=nbytes, library="plain", algorithm="ring")[0]
        alone_s = times.forward_s.sum() + times.backward_s.sum() + times.optimizer_s
        assert main.step_time_s == pytest.approx(alone_s + row["time_s"], rel=1e-9)
        assert main.exposed_comm_s == pytest.approx(row["time_s"], rel=1e-9)
        assert main.buckets[0].nbytes == nbytes


@pytest.mark.slow
def test_the_result_goes_the_usual_way(tmp_path: Any) -> None:
    result = pm.run(ASKED, scale={"gpus": [1, 4]}, strategy=after_backward)
    assert result.strategy == "after_backward"
    assert [point.gpus for point in result.points] == [1, 4, 8]
    assert result.main.scaling_efficiency < 1 == result.points[0].scaling_efficiency
    assert result.main.interval_s is not None
    assert result.points[0].comm_s == 0
    assert "The step is what after_backward plans" in " ".join(result.assumptions)
    assert not result.main.memory.is_stated
    assert "not stated" in repr(result._repr_html_())
    page = str(result.to_html())
    assert "after_backward" in page
    assert "Memory: not stated" in page
    from perfmodel.report.run.text import to_json

    document = json.loads(json.dumps(to_json(result)))
    assert document["memory_bytes"] is None
    assert document["fits"] is None
    assert document["provenance"]["strategy"] == "own, after_backward"
    assert len(result.to_frame()) == 3


def test_two_classes_can_send_to_each_other() -> None:
    """A pipeline of two halves by hand: the second begins when the first has sent."""

    def halves(request: pm.StepRequest) -> pm.StepPlan:
        half = request.ranks // 2
        classes = {"front": range(half), "back": range(half, request.ranks)}
        step = pm.StepBuilder(request, classes=classes)
        first = step.compute("forward", 1e-3)
        arrived = step.send(1 << 20, "front", "back", after=first)
        last = step.compute("forward", 2e-3, rank_class="back", after=arrived)
        reduced = step.collective("all_reduce", 1 << 20, after=(first, last))
        for rank_class in classes:
            step.compute("optimizer", 0.0, after=reduced, rank_class=rank_class)
        return step.plan(samples=8)

    main = pm.run(ASKED, {"library.name": "plain"}, strategy=halves, with_first=False).main
    send_s = main.step_time_s - 3e-3
    reduced = pm.collective("dgx-a100", sizes=1 << 20, library="plain", algorithm="ring")[0]
    assert send_s == pytest.approx(reduced["time_s"] + (1 << 20) / 240e9, abs=2e-6)
    assert main.global_batch == 8


def plan_with(**changes: Any) -> Any:
    """A function whose plan differs from a right one."""
    return lambda request: replace(after_backward(request), **changes)


def task_with(number: int, **changes: Any) -> Any:
    def plan(request: pm.StepRequest) -> pm.StepPlan:
        right = after_backward(request)
        tasks = list(right.tasks)
        tasks[number] = replace(tasks[number], **changes)
        return replace(right, tasks=tuple(tasks))

    return plan


def in_circles(request: pm.StepRequest) -> pm.StepPlan:
    """The optimizer is added before backward, for which it waits by way of the all-reduce."""
    step = pm.StepBuilder(request)
    step.compute("forward", 1e-3)
    plan = step.plan()
    work = pm.Collective("all_reduce", 64, "all", "sum")
    tasks = (
        pm.Task("sum", "communication", "ranks", "comm", work, after=(1,)),
        pm.Task("backward", "backward", "ranks", "compute", pm.Compute(1e-3)),
    )
    return replace(plan, tasks=tasks, streams=(*plan.streams, pm.Stream("comm", "comm")))


WRONG: dict[str, tuple[Any, str]] = {
    "None": (lambda request: None, "own returned None; allowed: a function of a StepReq"),
    "a list": (lambda request: [], r"own returned a list, \[\]; allowed"),
    "no argument": (lambda: None, r"own\(\), which cannot take \(request\)"),
    "two arguments": (lambda a, b: None, "which cannot take"),
    "an error of its own": (lambda request: request.tensors, "which raised AttributeError: "),
    "ranks": (
        plan_with(classes=(pm.RankClass("ranks", range(4)),)),
        r"classes: found 4 ranks, without \[4, 5, 6, 7\]; allowed: 0 to 7",
    ),
    "more ranks": (
        plan_with(classes=(pm.RankClass("ranks", range(9)),)),
        r"classes: found 9 ranks, with \[8\]; allowed: 0 to 7",
    ),
    "no tasks": (plan_with(tasks=()), "tasks: found none"),
    "samples": (plan_with(samples=1.5), "samples: found 1.5"),
    "a task that is none": (plan_with(tasks=(3,)), "task 0: found an int, 3; allowed"),
    "a missing stream": (task_with(0, stream="cuda"), "stream 'cuda'; one of"),
    "an unknown class": (task_with(0, rank_class="all"), "class 'all'; one of 'ranks'"),
    "an unknown task": (task_with(1, after=(77,)), "after 77, which is no earlier task"),
    "a task by name": (task_with(1, after=("forward",)), "found after .*; allowed: numbers"),
    "a later task": (task_with(0, after=(1,)), "after 1, which is no earlier task"),
    "a circle": (in_circles, "after 1, which is no earlier task"),
    "no work": (task_with(0, work=1e-3), "found work a float, 0.001; allowed: a perfmodel.Comp"),
    "an unknown operation": (
        task_with(2, work=pm.Collective("all_sum", 4, "all", "key")),  # type: ignore[arg-type]
        "found op 'all_sum'; allowed: .*all_reduce",
    ),
    "bytes that are none": (
        task_with(2, work=pm.Collective("all_reduce", 4.5, "all", "key")),  # type: ignore[arg-type]
        "found nbytes 4.5",
    ),
    "a time that is none": (task_with(0, work=pm.Compute(float("nan"))), "takes or moves nan"),
    "an unknown communicator": (
        task_with(2, work=pm.Collective("all_reduce", 4, "world", "key")),
        "communicator 'world'",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_one_says_what_was_expected_and_what_came(name: str) -> None:
    strategy, text = WRONG[name]
    with pytest.raises(pm.PerfmodelError, match=text):
        pm.run(ASKED, strategy=strategy)


def test_what_is_no_function_is_a_section() -> None:
    assert pm.run(ASKED, strategy="fsdp", with_first=False).strategy.startswith("fully sharded")
    with pytest.raises(pm.PerfmodelError, match="strategy"):
        pm.run(ASKED, strategy=3)


def test_a_split_model_is_refused() -> None:
    with pytest.raises(pm.PerfmodelError, match="parallel: found a model that ranks share"):
        pm.run(ASKED, parallel={"tensor": 2}, strategy=after_backward)


@pytest.mark.slow
def test_the_strategy_of_the_scenario_does_not_matter() -> None:
    cluster = {"node": "dgx-a100", "nodes": 2, "fabric": "rail-optimised"}
    times = {
        pm.run(
            {**ASKED, "cluster": cluster, "strategy": kind},
            strategy=after_backward,
            with_first=False,
        ).main.step_time_s
        for kind in ("ddp", "fsdp", "parameter_server")
    }
    assert len(times) == 1
