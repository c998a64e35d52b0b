"""Scenarios side by side: what differs, by how much, how surely, and what of it is whose."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.report.comparison_text import assumptions, sentences, unread_fields
from perfmodel.scenario import change_scenario, load_scenario
from perfmodel.studies.compare import (
    compare,
    compare_with_first,
    list_differing_fields,
    list_what_ifs,
    ratio_interval_of,
)
from perfmodel.studies.comparison import Change, Comparison, to_csv, to_json
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import DisturbanceCost, SizeResult

TEXT = """# Which is better?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp16}
strategy: {bucket_cap: 25 MiB}
cluster: {node: ethernet-10g, nodes: 2, fabric: one-switch}
training: {batch_per_gpu: 32}
"""


OF_NETWORKS = ["cluster.nodes=2", "scale=null", "model.name=bert-base"]


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "mine.yaml"
    path.write_text(TEXT)
    return str(path)


def side_by_side(file: str, *variations: str, attribute: bool = False) -> Comparison:
    columns = {"plain": load_scenario(file)}
    columns |= {text: load_scenario(file, [text]) for text in variations}
    return compare(columns, attribute=attribute, jobs=1)


@pytest.fixture(scope="module")
def networks() -> Comparison:
    """Two templates that differ in the rate of the network adapter alone."""
    names = ("bert-large-v100-25g", "bert-large-v100-100g")
    return compare(
        {name: load_scenario(name, OF_NETWORKS) for name in names},
        attribute=True,
        jobs=1,
    )


# ---------------------------------------------------------------- what differs


@pytest.mark.slow
def test_sides_are_what_run_says(networks: Comparison, steps_alone: None) -> None:
    for side in networks.sides:
        scenario = load_scenario(side.label, OF_NETWORKS)
        assert side.point.step_time_s == run_scenario(scenario).main.step_time_s


def test_only_what_differs_is_named(networks: Comparison, file: str) -> None:
    assert [(f.name, f.values) for f in networks.fields] == [
        ("cluster.node", ("v100-x8-25g", "v100-x8-100g"))
    ]
    fields = side_by_side(file, "what_if.compute=2", "training={global_batch: 64}")
    assert [(f.name, f.values) for f in fields.fields] == [
        ("training.batch_per_gpu", ("32", "32", "default")),
        ("training.global_batch", ("default", "default", "64")),
        ("what_if.compute", ("default", "2", "default")),
    ]


def test_one_value_written_in_two_ways_is_no_difference(file: str) -> None:
    for same in ("strategy.bucket_cap=25600 KiB", "cluster.fabric={kind: one-switch}", "events=[]"):
        comparison = list_differing_fields([load_scenario(file), load_scenario(file, [same])])
        assert comparison == ()
    (field,) = list_differing_fields(
        [load_scenario(file), load_scenario(file, ["cluster.fabric=leaf-spine"])]
    )
    assert (field.name, field.values) == ("cluster.fabric", ("one-switch", "leaf-spine"))


def test_the_asked_size_is_compared_and_no_smaller_one(tmp_path: Path) -> None:
    path = tmp_path / "curve.yaml"
    path.write_text(TEXT.replace("nodes: 2", "nodes: 4") + "scale: {nodes: [1, 2, 4]}\n")
    comparison = compare({"4": load_scenario(path), "2": load_scenario(path, ["cluster.nodes=2"])})
    assert [side.point.gpus for side in comparison.sides] == [4, 2]
    assert all(len(side.result.points) == 1 for side in comparison.sides)


@pytest.mark.slow
def test_what_acts_in_another_command_is_said(tmp_path: Path) -> None:
    """A plan's fields differ, and so do sizes of a curve; no step does."""
    changes = {
        "plan.failures.restart=1 h": ("plan.failures.restart", "`perfmodel plan`"),
        "scale.nodes=[1]": ("scale.nodes", "the scaling curve of `perfmodel run`"),
    }
    scenarios = [
        load_scenario(
            "plan-gpt2-xl",
            [
                "model.name=resnet18",
                "model.sequence_length=null",
                "scale.nodes=[2]",
                "cluster.nodes=4",
                *change,
            ],
        )
        for change in ((), *((text,) for text in changes))
    ]
    for other, (name, reader) in zip(scenarios[1:], changes.values(), strict=True):
        (field,) = list_differing_fields([scenarios[0], other])
        assert (field.name, field.reader) == (name, reader)
    prices = "plan.candidates.0.price_per_gpu_hour"
    dearer = change_scenario(
        scenarios[0],
        {
            "plan.candidates": [
                {**candidate, "price_per_gpu_hour": "9 USD/h"} if at == 0 else candidate
                for at, candidate in enumerate(scenarios[0].origin.content["plan"]["candidates"])
            ]
        },
    )
    (field,) = list_differing_fields([scenarios[0], dearer])
    assert (field.name, field.values) == (prices, ("1.844 USD/h", "9 USD/h"))
    comparison = compare({"cheap": scenarios[0], "dear": dearer})
    assert any("acts in `perfmodel plan` only" in line for line in unread_fields(comparison))
    assert comparison.differences[0].step.ratio == 1


def test_sections_of_one_side_only_are_no_difference(file: str) -> None:
    more = ["scale={nodes: [1]}", "sweep={grid: {seed: [1, 2]}}"]
    assert list_differing_fields([load_scenario(file), load_scenario(file, more)]) == ()


# ---------------------------------------------------------------- by how much


def test_changes_are_those_of_the_points(networks: Comparison) -> None:
    (difference,), (a, b) = networks.differences, [side.point for side in networks.sides]
    assert difference.step.ratio == b.step_time_s / a.step_time_s
    assert difference.throughput.ratio == pytest.approx(
        1 / difference.step.ratio
    )  # the batch is the same
    assert sum(difference.parts_s.values()) == pytest.approx(
        b.step_time_s - a.step_time_s, rel=1e-9
    )
    assert difference.exposed_s == b.exposed_comm_s - a.exposed_comm_s
    assert difference.same_batch
    assert difference.same_samples


def test_a_change_of_the_network_leaves_the_error_of_compute_out(networks: Comparison) -> None:
    (difference,) = networks.differences
    ends = [side.point.interval_s or (0, 0) for side in networks.sides]
    assert difference.step.interval is not None
    low, high = difference.step.interval
    assert low < difference.step.ratio < high
    assert math.log(high / low) < min(math.log(b / a) for a, b in ends)


def test_means_of_random_steps_err_by_themselves(file: str) -> None:
    """Where nothing is known of the network, as with Gloo, chance alone is between two means."""

    def random(mean_s: float, half_s: float) -> SizeResult:
        steps = DisturbanceCost((mean_s,), mean_s, (mean_s - half_s, mean_s + half_s), (), ())
        known = run_scenario(load_scenario(file)).main
        return replace(known, step_time_s=mean_s, uncertainties=None, disturbance=steps)

    wide = math.hypot(0.003, 0.004)
    interval = ratio_interval_of(random(1, 0.003), random(2, 0.008))
    assert interval == pytest.approx((2 * (1 - wide), 2 * (1 + wide)), rel=1e-4)
    unknown = replace(random(1, 0.1), disturbance=None)
    assert ratio_interval_of(unknown, unknown) is None
    assert not Change(1.1, None).within
    assert Change(1.0, (0.8, 1.125)).within
    assert not Change(1.1, (1.05, 1.2)).within


def test_a_bottleneck_that_moves_is_named(file: str) -> None:
    comparison = side_by_side(
        file, "what_if={network_bandwidth: infinite, network_latency: 0}", "seed=1"
    )
    moved, same = comparison.differences
    assert moved.moved
    assert "NIC" in moved.bottleneck[0]
    assert "NIC" not in moved.bottleneck[1]
    assert not same.moved
    assert same.step.ratio == 1.0
    assert same.step.within


def test_samples_of_other_kinds_have_no_throughput_in_common() -> None:
    small = ["scale=null", "cluster.nodes=2"]
    image = compare(
        {
            "images": load_scenario("bucket-size-slow-ethernet", small),
            "text": load_scenario(
                "bucket-size-slow-ethernet",
                [*small, "model={name: bert-base, sequence_length: 128}"],
            ),
        }
    )
    assert not image.differences[0].same_samples
    assert to_json(image)["changes"][0]["samples_per_s"] is None


# ---------------------------------------------------------------- what is whose


def test_a_faster_adapter_is_all_of_the_difference(networks: Comparison) -> None:
    by_name = {what_if.what: what_if for what_if in networks.what_ifs}
    network = by_name["an infinitely fast network, hosts as they are"]
    assert network.steps_s[0] == network.steps_s[1]
    assert network.shares == (None, 1.0)
    assert by_name["no communication at all"].shares == (None, 1.0)
    assert abs(by_name["no latency"].shares[1] or 0) < 0.05
    assert by_name["infinitely fast links and no latency"].steps_s[0] <= min(
        network.steps_s[0] or 0, by_name["no latency"].steps_s[0] or 0
    )


@pytest.mark.slow
def test_each_what_if_is_what_run_says(networks: Comparison, steps_alone: None) -> None:
    for what_if in networks.what_ifs:
        flags = [f"what_if.{name}={str(value).lower()}" for name, value in what_if.what_if.items()]
        for side, step_s in zip(networks.sides, what_if.steps_s, strict=True):
            alone = run_scenario(load_scenario(side.label, [*OF_NETWORKS, *flags])).main
            assert step_s == alone.step_time_s, what_if.what


@pytest.mark.slow
def test_what_ifs_come_on_top_of_a_sides_own(file: str) -> None:
    comparison = side_by_side(file, "what_if.compute=3", attribute=True)
    twice = next(
        what_if for what_if in comparison.what_ifs if what_if.what == "compute twice as fast"
    )
    six = run_scenario(load_scenario(file, ["what_if.compute=6"])).main
    assert twice.steps_s[1] == six.step_time_s


@pytest.mark.slow
def test_only_what_ifs_that_make_sense(file: str) -> None:
    def words(*flags: str, node: str = "") -> list[str]:
        scenario = load_scenario(node or file, flags)
        return [what for what, _ in list_what_ifs(compare({"one": scenario}).sides)]

    everywhere = ["no communication at all", "compute twice as fast"]
    assert words("cluster.nodes=1") == everywhere[1:]
    neither = ["no latency", "infinitely fast links and no latency"]
    network = [
        "an infinitely fast network, hosts as they are",
        "infinitely fast links inside the hosts",
        "infinitely fast links everywhere",
        *neither,
    ]
    assert words() == [*network, *everywhere]
    inside = "infinitely fast links between the GPUs"
    flags = ("model.name=resnet18", "model.sequence_length=null", "scale=null")
    assert words(*flags, node="gpt2-xl-pcie-p2p") == [inside, *neither, *everywhere]
    limit = "infinitely fast PCIe"  # which GPT-2 XL waits for, and ResNet-18 does not
    rows = [inside, limit, *neither, *everywhere]
    assert words("scale=null", node="gpt2-xl-pcie-p2p") == rows
    jitter = "events=[{jitter: {cv: 0.01}}, {slow: {ranks: [0], by: 1.5}}]"
    assert words(jitter) == [*network, *everywhere, "no jitter", "no events"]
    jobs = "jobs=[{model: resnet18, batch_per_gpu: 8, nodes: 2}]"
    assert words(jobs)[-1] == "no other jobs"


@pytest.mark.slow
def test_steps_of_other_sizes_have_no_share_of_their_difference(file: str) -> None:
    comparison = side_by_side(file, "training.batch_per_gpu=64", attribute=True)
    assert all(what_if.shares == (None, None) for what_if in comparison.what_ifs)
    assert all(None not in what_if.steps_s for what_if in comparison.what_ifs)


def test_grounds_of_one_side_say_whose_they_are(file: str) -> None:
    comparison = side_by_side(file, "what_if.compute=2")
    first, other = (set(side.result.assumptions) for side in comparison.sides)
    assert {line for line in comparison.assumptions if line in first} == first & other
    assert "what_if.compute=2: What if: compute 2 times as fast." in comparison.assumptions
    on_page = assumptions(comparison)
    assert len(on_page) == len(comparison.assumptions)
    assert "what_if.compute=2: What if: compute 2 times as fast." in on_page  # not "What_if"


def test_what_has_no_room_is_said(file: str) -> None:
    comparison = side_by_side(file, "training.batch_per_gpu=100000")
    (line,) = sentences(comparison)
    assert line.endswith("training.batch_per_gpu=100000 does not fit in memory.")


@pytest.mark.slow
def test_a_straggler_is_all_of_its_difference(file: str) -> None:
    comparison = side_by_side(file, "events=[{slow: {ranks: [0], by: 1.5}}]", attribute=True)
    by_name = {what_if.what: what_if for what_if in comparison.what_ifs}
    assert by_name["no events"].shares[1] == pytest.approx(1.0, abs=1e-9)


def test_plain_data_is_complete(networks: Comparison) -> None:
    document = to_json(networks)
    assert [side["label"] for side in document["sides"]] == [s.label for s in networks.sides]
    assert document["changes"][0]["step_time"]["ratio"] == networks.differences[0].step.ratio
    row = next(r for r in document["attribution"] if r["what"] == "no latency")["sides"][1]
    assert row["saved_s"] == pytest.approx(document["sides"][1]["step_time_s"] - row["step_time_s"])
    header, first, second = to_csv(networks).splitlines()
    assert header.startswith("label,scenario,")
    assert "cluster.node" in header
    assert repr(networks.sides[1].point.step_time_s) in second
    assert first.startswith("bert-large-v100-25g,")


def test_turning_sides_around_turns_changes_around(file: str) -> None:
    found = side_by_side(file, "what_if.network_bandwidth=2")
    a, b = found.sides
    there, back = compare_with_first(a, b), compare_with_first(b, a)
    assert there.step.ratio * back.step.ratio == pytest.approx(1.0)
    assert there.bottleneck == back.bottleneck[::-1]
    assert all(back.parts_s[name] == -time_s for name, time_s in there.parts_s.items())
