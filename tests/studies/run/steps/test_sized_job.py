"""A step of a prepared scenario is, to the bit, what running the scenario says."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.scenario import ClusterSize, load_scenario
from perfmodel.studies.run.run import run_scenario
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.studies.run.steps.uncertainty import step_interval
from perfmodel.training.ddp.options import MIB, DdpOptions
from perfmodel.training.plan.step_plan import Compute

DEFAULT: tuple[tuple[str, ...], DdpOptions] = ((), DdpOptions())
OTHERS: tuple[tuple[tuple[str, ...], DdpOptions], ...] = (
    (("strategy.bucket_cap=7.5 MiB",), DdpOptions(bucket_cap=7.5 * MIB)),
    (
        ("strategy.bucket_cap=40 MiB", "strategy.gradient_as_bucket_view=true"),
        DdpOptions(bucket_cap=40 * MIB, gradient_as_bucket_view=True),
    ),
    (
        ("strategy.bucket_caps=[2 MiB, 3 MiB, 30 MiB]",),
        DdpOptions(bucket_caps=(2.0 * MIB, 3.0 * MIB, 30.0 * MIB)),
    ),
)
CASES = {
    "bucket-size-slow-ethernet": (DEFAULT, *OTHERS),
    "resnet18-loopback-gloo": (DEFAULT, *OTHERS),
    "degraded-link": (DEFAULT, OTHERS[2]),
    "straggler": OTHERS[:1],
}
BESIDE = """# Two jobs through one trunk: what does each cap cost?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp16}
cluster:
  node: ethernet-10g
  nodes: 2
  fabric: {kind: leaf-spine, hosts_per_leaf: 2, oversubscription: 2}
  placement: spread
training: {batch_per_gpu: 32}
jobs:
  - {name: the other, model: alexnet, batch_per_gpu: 32, nodes: 2, placement: packed}
"""


@pytest.mark.slow
@pytest.mark.usefixtures("steps_alone")
@pytest.mark.parametrize("name", CASES)
def test_a_step_is_what_running_the_scenario_says(name: str) -> None:
    compare(name, CASES[name])


@pytest.mark.slow
def test_a_step_beside_another_job_is_what_running_the_scenario_says(tmp_path: Path) -> None:
    path = tmp_path / "beside.yaml"
    path.write_text(BESIDE)
    compare(str(path), (DEFAULT, OTHERS[0]))


def compare(name: str, cases: tuple[tuple[tuple[str, ...], DdpOptions], ...]) -> None:
    """Equal to the bit."""
    prepared = prepare(load_scenario(name, ["scale=null"]))
    for words, options in cases:
        point = run_scenario(load_scenario(name, ["scale=null", *words])).main
        stepped = prepared.step(options)
        assert stepped.step_time_s == point.step_time_s
        assert stepped.parts.exposed_comm_s == point.exposed_comm_s
        assert stepped.parts.comm_s == point.comm_s
        assert stepped.parts.compute_s == point.compute_s
        assert prepared.first_step_s(options) == point.first_step_time_s


def test_the_likely_and_the_other_machines_span_the_uncertainty_of_the_network() -> None:
    """Which the interval holds beside compute's."""
    prepared = prepare(load_scenario("bucket-size-slow-ethernet"))
    point = run_scenario(load_scenario("bucket-size-slow-ethernet", ["scale=null"])).main
    ends = [prepared.step(machine=other).step_time_s for other in prepared.ensemble.alternatives]
    *others, network = point.uncertainties or ()
    assert network.origin.startswith("network of")
    assert (min(ends), max(ends)) == pytest.approx((network.low_s, network.high_s), rel=1e-12)
    assert point.interval_s == step_interval(point.step_time_s, (*others, network))
    assert point.interval_s[0] < min(ends) < max(ends) < point.interval_s[1]


def test_what_was_stepped_before_changes_nothing() -> None:
    fresh = prepare(load_scenario("bucket-size-slow-ethernet"))
    used = prepare(load_scenario("bucket-size-slow-ethernet"))
    for cap in (1, 3, 10):
        used.step(DdpOptions(bucket_cap=cap * MIB))
    mine = DdpOptions(bucket_cap=25 * MIB)
    assert used.step(mine).step_time_s == fresh.step(mine).step_time_s
    changed = used.with_options(mine)
    assert changed.step().step_time_s == fresh.step(mine).step_time_s


@pytest.mark.usefixtures("steps_alone")
def test_a_smaller_size_can_be_prepared() -> None:
    scenario = load_scenario("bucket-size-slow-ethernet")
    points = run_scenario(scenario).points
    assert prepare(scenario, size=ClusterSize(4, 4, 1)).step().step_time_s == points[-2].step_time_s


def test_names_that_do_not_resolve_are_errors_of_the_scenario() -> None:
    wrong = load_scenario("bucket-size-slow-ethernet", ["cluster.node=no-such-node"])
    with pytest.raises(InputError, match=r"cluster\.node"):
        prepare(wrong)


@pytest.mark.parametrize("own", [1.0, 1.25])
@pytest.mark.parametrize(
    "name", ["llama2-7b-fsdp-h100", "pipeline-straggler", "bert-large-v100-25g"]
)
def test_the_plan_at_one_end_follows_from_that_at_the_other(name: str, own: float) -> None:
    """As planned for itself: times of work are linear in the factors."""
    sized = prepare(load_scenario(name)).with_compute(own)
    for change, factor in ((sized.with_compute, sized.compute), (sized.with_host, sized.host)):
        low, _ = sized.setups_with(change, factor, (0.8, 1.3))
        found, planned = low.plan_for(None).tasks, change(0.8).plan_for(None).tasks
        assert [task.after for task in found] == [task.after for task in planned]
        for mine, other in zip(found, planned, strict=True):
            if isinstance(other.work, Compute):
                assert isinstance(mine.work, Compute)
                assert mine.work.duration_s == pytest.approx(other.work.duration_s, abs=1e-15)
            else:
                assert mine.work == other.work
