"""Why fewer nodes can be less efficient: the library takes another algorithm there."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.scenario import Scenario, change_scenario, load_scenario
from perfmodel.studies.plan.decisions import explain_dips, explain_gains
from perfmodel.studies.run.run import run_scenario
from perfmodel.studies.sweep.variants import without_curve
from perfmodel.units import format_time


@pytest.fixture(scope="module")
def scenarios() -> dict[int, Scenario]:
    """GPT-2 XL on p4d, where NCCL estimates ring and tree within 3 % on 4 nodes."""
    scenario = without_curve(change_scenario(load_scenario("plan-gpt2-xl"), {"plan": None}))
    return {n: change_scenario(scenario, {"cluster.nodes": n}) for n in (4, 8)}


def options_of(option, efficiencies):
    options = []
    for nodes, efficiency in efficiencies.items():
        made = option(1e6, gpus=8 * nodes, name="p4d")
        options.append(replace(made, step=replace(made.step, efficiency=efficiency)))
    return options


@pytest.mark.slow
def test_another_algorithm_is_named_with_the_step_that_asking_for_it_makes(option, scenarios):
    options = options_of(option, {4: 0.76, 8: 0.90})
    by_size = {("p4d", nodes): each for nodes, each in scenarios.items()}
    (sentence,) = explain_dips(options, by_size, None)
    assert sentence.startswith("p4d is less efficient on 4 nodes (76 %) than on 8 (90 %): there")
    assert "prefers a ring (41 MiB of all-reduce" in sentence
    assert "on more nodes a tree" in sentence
    asked = change_scenario(scenarios[4], {"library.env": {"NCCL_ALGO": "Tree"}})
    steps_s = [run_scenario(each).main.step_time_s for each in (asked, scenarios[4])]
    assert steps_s[0] < 0.92 * steps_s[1]
    assert "{} instead of {}".format(*map(format_time, steps_s)) in sentence


def test_sizes_that_scale_as_usual_need_no_reason(option, scenarios):
    by_size = {("p4d", nodes): each for nodes, each in scenarios.items()}
    assert not list(explain_dips(options_of(option, {4: 0.93, 8: 0.90}), by_size, None))
    assert not list(explain_dips(options_of(option, {4: 0.88, 8: 0.90}), by_size, None))


def test_without_another_algorithm_the_limits_are_named(option, scenarios):
    options = options_of(option, {4: 0.5, 8: 0.9})
    limits = ("each host's NIC", "compute")
    options = [
        replace(each, step=replace(each.step, bottleneck=limit))
        for each, limit in zip(options, limits, strict=True)
    ]
    by_size = {("p4d", nodes): scenarios[8] for nodes in (4, 8)}
    (sentence,) = explain_dips(options, by_size, None)
    assert sentence.endswith("its limit there is each host's NIC; on more compute.")


def test_strategies_without_shared_steps_have_their_limits_named(option, scenarios):
    servers = {"strategy": {"kind": "parameter_server", "servers": 2}}
    by_size = {("p4d", n): change_scenario(each, servers) for n, each in scenarios.items()}
    (sentence,) = explain_dips(options_of(option, {4: 0.5, 8: 0.9}), by_size, None)
    assert "its limit there is compute" in sentence


def test_more_than_100_percent_says_what_is_100(option):
    options = options_of(option, {1: 1.1, 2: 1.23, 4: 1.2})
    (alone,) = options_of(option, {1: 1.0})
    base = replace(alone.step, memory_bytes=100 * 2**30)
    (sentence,) = explain_gains(options, {"p4d": base})
    assert sentence.startswith("p4d is 123 % efficient on 16 GPUs: at 100 % a GPU would hold 100")
    assert "100 GiB, here 953.7 MiB; the more GPUs share the model's weights" in sentence
    limited = replace(alone.step, bottleneck="each host's NIC")
    (sentence,) = explain_gains(options, {"p4d": limited})
    assert sentence.endswith("at 100 % its limit is each host's NIC, here compute.")
    assert not list(explain_gains(options_of(option, {1: 1.0, 2: 0.9}), {"p4d": base}))
