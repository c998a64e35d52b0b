"""``pm.run(..., processes=[f])``: like events, in results, at all sizes; and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

import perfmodel as pm

ASKED: dict[str, Any] = {
    "model": {"name": "resnet18"},
    "compute": {"precision": "fp16"},
    "cluster": {"node": "v100-x8-25g", "nodes": 2, "fabric": "leaf-spine"},
    "training": {"batch_per_gpu": 64},
}
TRAFFIC = {"from": "n0/gpu0", "to": "n1/gpu0", "nbytes": "200 MB"}


def burst(env: Any, network: Any) -> Any:
    yield network.send("n0/gpu0", "n1/gpu0", "200 MB")


def nothing(env: Any, network: Any) -> Any:
    while True:
        yield env.timeout(1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("fidelity", ["flow", "message"])
def test_a_burst_costs_what_the_event_costs(fidelity: str) -> None:
    event = pm.run(ASKED, events=[{"traffic": TRAFFIC}], fidelity=fidelity, with_first=False).main
    process = pm.run(ASKED, processes=[burst], fidelity=fidelity, with_first=False).main
    assert process.disturbance is not None
    assert event.disturbance is not None
    assert process.step_time_s == pytest.approx(event.step_time_s, rel=1e-9)
    assert process.disturbance.steps_s == pytest.approx(event.disturbance.steps_s, rel=1e-9)
    assert process.disturbance.costs_s > 1e-3
    assert process.disturbance.events[0].what == "process burst"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("event", "act"),
    [
        (
            {"degrade": {"link": "n0/nic0", "by": 2, "at": "150 ms"}},
            lambda network: network.set_link("n0/nic0", bandwidth=rate_of(network) / 2),
        ),
        (
            {"lose": {"nic": "n0/nic3", "at": "150 ms"}},
            lambda network: network.fail("n0/nic3"),
        ),
    ],
)
def test_a_fault_costs_what_the_event_costs(event: dict[str, Any], act: Any) -> None:
    def fault(env: Any, network: Any) -> Any:
        yield env.timeout(0.15)
        act(network)

    asked = ASKED
    if "lose" in event:  # of several adapters
        cluster = {"node": "dgx-a100", "nodes": 2, "fabric": "rail-optimised"}
        asked = {**ASKED, "cluster": cluster}
    expected = pm.run(asked, events=[event], with_first=False).main
    assert expected.disturbance is not None
    steps = len(expected.disturbance.steps_s)
    main = pm.run(asked, processes=[fault], steps=steps, with_first=False).main
    assert main.step_time_s == pytest.approx(expected.step_time_s, rel=1e-9)


def rate_of(network: Any) -> float:
    """Bandwidth of the adapter's link to the fabric, which is its slowest."""
    arcs, names = network.machine.arcs, network.machine.arcs.names
    return float(min(arcs.bandwidth_Bps[at] for at, ends in enumerate(names) if "n0/nic0" in ends))


def test_an_idle_process_changes_nothing() -> None:
    alone = pm.run(ASKED, with_first=False).main
    beside = pm.run(ASKED, processes=nothing, steps=3, with_first=False).main
    assert beside.step_time_s == pytest.approx(alone.step_time_s, rel=1e-9)
    assert beside.bottleneck == alone.bottleneck
    assert beside.interval_s == pytest.approx(alone.interval_s, rel=1e-6)


@pytest.mark.slow
def test_the_result_names_them(tmp_path: Any) -> None:
    result = pm.run(ASKED, processes=[burst, nothing], scale={"nodes": [1]})
    assert "Beside the job run processes of your own: burst, nothing." in result.assumptions
    assert not any("no other traffic" in each for each in result.assumptions)
    assert result.points[0].gpus == 8  # where n1 is not there
    page = str(result.to_html())
    assert "process burst" in page
    from perfmodel.report.run.text import to_json

    events = json.loads(json.dumps(to_json(result)))["events"]
    assert [each["what"] for each in events] == ["process burst", "process nothing"]


@pytest.mark.slow
def test_beside_jitter_every_rank_is_simulated() -> None:
    jitter = {"jitter": {"cv": 0.02}}
    few = ASKED | {"cluster": {**ASKED["cluster"], "gpus_per_node": 2}}
    result = pm.run(few, processes=[burst], events=[jitter], with_first=False, steps=5)
    assert "4 rank classes" in result.main.mode


def test_with_an_own_strategy_too() -> None:
    def whole(request: pm.StepRequest) -> pm.StepPlan:
        step = pm.StepBuilder(request)
        done = step.compute("backward", 10e-3)
        step.compute("optimizer", 0.0, after=step.collective("all_reduce", 1 << 24, after=done))
        return step.plan()

    seen: set[str] = set()

    def watch(env: Any, network: Any) -> Any:
        while True:
            seen.add((yield network.next_collective()).name)

    pm.run(ASKED, strategy=whole, processes=[watch], with_first=False, steps=2)
    assert seen == {"all-reduce"}


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"processes": [3]}, r"processes\.0: found an int, 3; allowed: a generator function of"),
        ({"processes": 3}, r"processes\.0: found an int, 3"),
        ({"processes": [burst, lambda env: None]}, r"processes\.1: found own\(env\), which cannot"),
        ({"processes": [lambda env, network: None]}, "own, which returned None; allowed"),
        ({"processes": [burst], "steps": 0}, "steps: found an int, 0; allowed: a whole number"),
        ({"processes": [burst], "steps": 1000}, "process burst: 1,000 steps"),
        (
            {"processes": [burst], "strategy": "parameter_server"},
            "processes: found 1; allowed: none with",
        ),
    ],
)
def test_a_wrong_one_is_a_fault(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(pm.PerfmodelError, match=text):
        pm.run(ASKED, **arguments)
