"""GPUs of one model differ in speed: what a step owes to the slowest."""

from __future__ import annotations

import pytest

from perfmodel.report.common import quantities
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Result
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.studies.tune.evaluator import make_evaluator
from perfmodel.workload.compute_spread import slowest_factor


def answer(name: str, *fields: str) -> Result:
    return run_scenario(load_scenario(name, fields))


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_hidden_network_leaves_the_slowest_gpu_alone(nodes: int) -> None:
    fields = (f"cluster.nodes={nodes}", "scale.gpus=[1]", "what_if={communication: false}")
    alike = answer("resnet50-dgx-a100", *fields, "compute.gpu_spread=0").points
    unlike = answer("resnet50-dgx-a100", *fields, "compute.gpu_spread=0.05").points
    assert unlike[0].step_time_s == alike[0].step_time_s, "one GPU waits for nobody"
    slowest = slowest_factor(8 * nodes, 0.05)
    kernels = ("forward", "backward", "optimizer")
    for part in kernels:
        grown = unlike[1].breakdown_s[part] / alike[1].breakdown_s[part]
        assert grown == pytest.approx(slowest, rel=1e-9)
    assert unlike[1].breakdown_s["copies"] == pytest.approx(alike[1].breakdown_s["copies"])
    assert unlike[1].scaling_efficiency == pytest.approx(
        alike[1].scaling_efficiency / slowest, rel=0.01
    )


@pytest.mark.slow
def test_shipped_spread_is_the_default_and_none_on_cpus() -> None:
    shipped, stated = (
        answer("resnet50-dgx-a100", "cluster.nodes=1", "scale=null", *more).main
        for more in ((), ("compute.gpu_spread=0.015",))
    )
    assert shipped.step_time_s == stated.step_time_s
    cpus, alike = (
        answer("resnet18-loopback-gloo", "scale=null", *more)
        for more in ((), ("compute.gpu_spread=0",))
    )
    assert cpus.main.step_time_s == alike.main.step_time_s
    assert cpus.main.interval_s == alike.main.interval_s
    assert not any("differ in speed" in line for line in cpus.assumptions)


def test_times_of_a_file_are_of_one_gpu(tmp_path) -> None:
    (tmp_path / "model.csv").write_text("name,shape,dtype\nlayer.weight,1000000,fp32\n")
    (tmp_path / "times.csv").write_text("name,forward,backward\nlayer,30 ms,60 ms\n")
    path = tmp_path / "mine.yaml"
    path.write_text(
        "# How long?\nperfmodel: 1\nmodel: {file: model.csv}\n"
        "compute: {source: file, times: times.csv, precision: fp32}\n"
        "strategy: {broadcast_buffers: false}\n"
        "cluster: {node: dgx-a100, nodes: 1}\ntraining: {batch_per_gpu: 1}\n"
    )
    parts = run_scenario(load_scenario(path)).main.breakdown_s
    assert parts["forward"] == pytest.approx(0.03 * slowest_factor(8, 0.015), rel=1e-9)
    alike = run_scenario(load_scenario(path, ["compute.gpu_spread=0"])).main.breakdown_s
    assert alike["forward"] == pytest.approx(0.03, rel=1e-9)


def test_tune_steps_what_run_answers() -> None:
    scenario = load_scenario("resnet50-dgx-a100", ["cluster.nodes=2", "scale=null"])
    prepared = prepare(scenario)
    stepped_s = prepared.step().step_time_s
    assert stepped_s == run_scenario(scenario).main.step_time_s
    alike = prepare(
        load_scenario(
            "resnet50-dgx-a100", ["cluster.nodes=2", "scale=null", "compute.gpu_spread=0"]
        )
    )
    quicker = make_evaluator(alike).surrogate.before_s / make_evaluator(prepared).surrogate.before_s
    assert quicker == pytest.approx(1 / slowest_factor(16, 0.015), rel=0.01)


@pytest.mark.parametrize(
    ("fields", "behind"),
    [((), "2.1 %"), (("compute.gpu_spread=0.05",), "7.1 %"), (("compute.gpu_spread=0",), None)],
)
def test_what_the_slowest_costs_is_said_where_it_matters(
    fields: tuple[str, ...], behind: str | None
) -> None:
    """On 8: 1.4236 standard deviations (Tippett 1925)."""
    result = answer("resnet50-dgx-a100", "cluster.nodes=1", "scale.gpus=[1]", *fields)
    text = quantities.slowest(result)
    if behind is None:
        assert text == ""
    else:
        assert f"the slowest of 8, which computes {behind} longer" in text.replace("\xa0", " ")
