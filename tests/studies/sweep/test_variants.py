"""Grids and zips: how many variants, which, and what is wrong with them."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.scenario import Scenario, change_scenario, load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.sweep import Variant, run_sweep, variants

TEXT = """# Which cap, on how many nodes?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp16}
cluster: {node: ethernet-10g, nodes: 4, fabric: one-switch}
training: {batch_per_gpu: 8}
scale: {nodes: [1, 2, 4]}
sweep:
  grid:
    strategy.bucket_cap: [1 MiB, 25 MiB]
    cluster.nodes: [1, 2, 3]
  zip:
    training.batch_per_gpu: [8, 16]
    what_if.compute: [1, 0.5]
"""


@pytest.fixture
def asked(tmp_path: Path):
    def write(text: str = TEXT, *overrides: str) -> Scenario:
        path = tmp_path / "mine.yaml"
        path.write_text(text)
        return load_scenario(path, overrides)

    return write


def faults(scenario: Scenario, **axes: Any) -> list[tuple[str, int | None, str, str]]:
    with pytest.raises(InputError) as caught:
        variants(scenario, **axes)
    return [(f.field, f.line, f.found, f.allowed) for f in caught.value.faults]


# ---------------------------------------------------------------- which


def test_every_combination_with_every_row(asked) -> None:
    found = [tuple(v.set.values()) for v in variants(asked())]
    caps, nodes, rows = ["1 MiB", "25 MiB"], [1, 2, 3], [(8, 1), (16, 0.5)]
    assert found == [(c, n, *row) for c, n, row in itertools.product(caps, nodes, rows)]
    assert [v.index for v in variants(asked())] == list(range(12))


def test_values_reach_the_scenario(asked) -> None:
    last = variants(asked())[-1].scenario
    assert last is not None
    assert last.strategy.bucket_cap == 25 * 2**20
    assert (last.cluster.nodes, last.training.batch_per_gpu) == (3, 16)
    assert last.what_if is not None
    assert last.what_if.compute == 0.5
    assert last.sweep is None


def test_the_size_is_that_of_the_cluster_where_it_is_varied(asked) -> None:
    """`scale` of the file would refuse a cluster of one node, and ask about four of three."""
    assert all(v.scenario is not None and v.scenario.scale is None for v in variants(asked()))
    swept = run_sweep(variants(asked())[:6:2], jobs=1)
    assert [found.gpus for found in swept.answers] == [1, 2, 3]


def test_else_it_is_the_whole_cluster(asked) -> None:
    scenario = asked(TEXT.replace("nodes: [1, 2, 4]", "nodes: [1, 2]"))
    (only,) = variants(scenario, grid={"what_if.compute": [2]})
    (found,) = run_sweep([only], jobs=1).answers
    told = run_scenario(change_scenario(scenario, {"what_if.compute": 2})).main
    assert (found.gpus, found.step_time_s) == (told.gpus, told.step_time_s)


def test_sizes_of_the_scaling_curve_are_not_varied(asked) -> None:
    with pytest.raises(InputError, match=r"scale\.nodes.*cluster\.nodes or"):
        variants(asked(), grid={"scale.nodes": [[1, 2], [2]]})


@pytest.mark.parametrize("where", ["file", "flag", "call"])
def test_a_sweep_may_come_from_anywhere(asked, where: str) -> None:
    axes = {"strategy.bucket_cap": ["1 MiB", "2 MiB"]}
    without = TEXT[: TEXT.index("sweep:")]
    if where == "file":
        text = without + "sweep: {grid: {strategy.bucket_cap: [1 MiB, 2 MiB]}}\n"
        found = variants(asked(text))
    elif where == "flag":
        flag = "sweep={grid: {strategy.bucket_cap: [1 MiB, 2 MiB]}}"
        found = variants(asked(without, flag))
    else:
        found = variants(asked(without), grid=axes)
    caps = [v.scenario.strategy.bucket_cap for v in found if v.scenario]
    assert caps == [2.0**20, 2.0**21]
    assert len({v.digest for v in found}) == 2


def test_flags_hold_for_all_variants(asked) -> None:
    found = variants(asked(TEXT, "model.name=resnet50", "strategy.bucket_cap=7 MiB"))
    assert {v.scenario.model.name for v in found if v.scenario} == {"resnet50"}
    assert {v.scenario.strategy.bucket_cap for v in found if v.scenario} == {2.0**20, 25 * 2.0**20}


def test_files_of_values_lie_beside_the_scenario(asked, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(f"name,shape,dtype\n{name}.weight,1000,fp32\n")
    (tmp_path / "times.csv").write_text("name,forward,backward\na,1 ms,2 ms\n")
    text = TEXT[: TEXT.index("sweep:")].replace("{name: resnet18}", "{file: a.csv}")
    text = text.replace("{precision: fp16}", "{precision: fp16, source: file, times: times.csv}")
    text += "sweep: {grid: {model.file: [a.csv, b.csv]}}\n"
    first, second = run_sweep(variants(asked(text)), jobs=1).answers
    assert first.status == "ok"
    assert second.status == "failed"  # the times are those of the other model
    assert "times.csv" in second.message


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=0, max_size=3),
    st.integers(0, 4),
    st.randoms(use_true_random=False),
)
def test_there_are_as_many_as_the_product_says(lengths: list[int], rows: int, random) -> None:
    fields = ["seed", "training.batch_per_gpu", "what_if.compute"]
    grid = {name: random.sample(range(1, 50), n) for name, n in zip(fields, lengths, strict=False)}
    together = {"what_if.network_latency": random.sample(range(1, 50), rows)} if rows else {}
    if not grid and not together:
        return
    scenario = load_scenario("bucket-size-slow-ethernet")
    found = variants(scenario, grid=grid, zip=together)
    assert len(found) == math.prod(len(v) for v in grid.values()) * max(rows, 1)
    assert len({tuple(v.set.values()) for v in found}) == len(found)
    assert len({v.digest for v in found}) == len(found)


@settings(max_examples=15, deadline=None)
@given(st.permutations(["seed", "training.batch_per_gpu", "what_if.compute"]))
def test_the_order_of_fields_changes_no_question(order: list[str]) -> None:
    axes = {"seed": [1, 2], "training.batch_per_gpu": [8, 16], "what_if.compute": [2, 3]}
    scenario = load_scenario("bucket-size-slow-ethernet")
    usual = {v.digest for v in variants(scenario, grid=axes)}
    assert {v.digest for v in variants(scenario, grid={n: axes[n] for n in order})} == usual


def test_one_value_written_in_two_ways_is_one_question(asked) -> None:
    values = ["25 MiB", "26214400 B", "25600 KiB"]
    found = variants(asked(), grid={"strategy.bucket_cap": values})
    assert len({v.digest for v in found}) == 1
    assert run_sweep(found, jobs=1).table["step_time_s"].nunique() == 1


# ---------------------------------------------------------------- what is wrong


def test_all_faults_at_once_with_their_lines(asked) -> None:
    text = TEXT.replace("[1 MiB, 25 MiB]", "[1 MiB, 25, 5 Mb]").replace("[1, 2, 3]", "[1, two]")
    text = text.replace("[1, 0.5]", "[-1, 0.5]")
    found = faults(asked(text))
    assert [(field, line) for field, line, _, _ in found] == [
        ("sweep.grid.strategy.bucket_cap.1", 10),
        ("sweep.grid.strategy.bucket_cap.2", 10),
        ("sweep.grid.cluster.nodes.1", 11),
        ("sweep.zip.what_if.compute.0", 14),
    ]


def test_a_field_that_there_is_not(asked) -> None:
    ((field, line, found, allowed),) = faults(
        asked(TEXT.replace("strategy.bucket_cap: [1 MiB, 25 MiB]", "strategy.bucket_size: [1 MiB]"))
    )
    assert (field, line) == ("sweep.grid.strategy.bucket_size.0", 10)
    assert "unknown field" in found
    assert "did you mean" in allowed


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ("{}", "'grid' or 'zip'"),
        ("{grid: {seed: []}}", "one value or more"),
        ("{grid: {seed: 1}}", "a list"),
        ("{grid: {'strategy bucket': [1]}}", "a dotted field"),
        ("{grid: {sweep.grid: [1]}}", "a field of the question"),
        ("{grid: {plan: [1]}}", "a field of the question"),
        ("{zip: {seed: [1, 2], what_if.compute: [1]}}", "seed has 2, what_if.compute has 1"),
        ("{grid: {seed: [1]}, zip: {seed: [2]}}", "'seed' is in 'grid' and in 'zip'"),
        ("{grid: {strategy: [{}], strategy.bucket_cap: [1 MiB]}}", "apart from each other"),
        ("{gird: {seed: [1]}}", "did you mean 'grid'?"),
    ],
)
def test_a_section_that_makes_no_sense(asked, sweep: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        asked(TEXT[: TEXT.index("sweep:")] + f"sweep: {sweep}\n")
    (fault,) = caught.value.faults
    assert fault.line == 8
    assert said in fault.allowed


def test_absurd_grids_are_refused_before_any_work(asked) -> None:
    values = list(range(400))
    text = f"sweep: {{grid: {{seed: {values}, training.batch_per_gpu: {values[1:]}}}}}\n"
    with pytest.raises(InputError, match=r"at most 100,000 variants, but there are 159,600"):
        asked(TEXT[: TEXT.index("sweep:")] + text)


def test_no_sweep_says_what_one_is(asked) -> None:
    ((field, _, _, allowed),) = faults(asked(TEXT[: TEXT.index("sweep:")]))
    assert field == "sweep"
    assert "{grid: {strategy.bucket_cap: [1 MiB, 25 MiB]}}" in allowed


def test_values_that_do_not_go_together_fail_alone(asked) -> None:
    """64 samples do not split over three GPUs: that variant fails, and says where it stands."""
    text = TEXT[: TEXT.index("sweep:")].replace("batch_per_gpu: 8", "global_batch: 64")
    found = variants(asked(text + "sweep: {grid: {cluster.nodes: [2, 3]}}\n"))
    swept = run_sweep(found, jobs=1)
    assert [one.status for one in swept.answers] == ["ok", "failed"]
    assert "global_batch" in swept.answers[1].message
    assert swept.failed == 1


def test_rules_between_sections_fail_alone(asked) -> None:
    text = TEXT[: TEXT.index("sweep:")] + "sweep: {grid: {cluster.fabric: [one-switch, null]}}\n"
    first, second = variants(asked(text))
    assert first.scenario is not None
    assert second.scenario is None
    assert "cluster.fabric: found nothing" in second.fault
    assert "mine.yaml:8" in second.fault
    assert [f.status for f in run_sweep((first, second), jobs=1).answers] == ["ok", "failed"]


def test_fields_that_only_go_together_are_sound(asked) -> None:
    together = {"training": [{"batch_per_gpu": 8}, {"global_batch": 64}]}
    assert all(v.scenario for v in variants(asked(), zip=together))
    apart = {"training.batch_per_gpu": [None, 8], "training.global_batch": [64, None]}
    assert all(v.scenario for v in variants(asked(), zip=apart))
    found = variants(asked(), zip={"strategy.kind": ["ddp"], "strategy.hook": ["fp16"]})
    assert all(v.scenario for v in found)


def test_a_scenario_that_was_changed_in_python_is_refused(asked) -> None:
    scenario = asked()
    other = scenario.model_copy(update={"seed": 7}).with_origin(scenario.origin)
    with pytest.raises(ValueError, match=r"perfmodel\.scenario\.change_scenario"):
        variants(other)
    assert (
        variants(change_scenario(scenario, {"seed": 7}))[0].digest != variants(scenario)[0].digest
    )


def test_run_does_not_look_at_a_sweep(asked) -> None:
    plain = run_scenario(asked(TEXT[: TEXT.index("sweep:")]))
    swept = run_scenario(asked())
    assert swept.provenance["scenario_sha256"] == plain.provenance["scenario_sha256"]
    assert swept.summary.equals(plain.summary)


def test_the_shipped_sweep_is_sound() -> None:
    found = variants(load_scenario("sweep-buckets-and-nodes"))
    assert len(found) == 48
    assert all(isinstance(v, Variant) and v.scenario for v in found)
