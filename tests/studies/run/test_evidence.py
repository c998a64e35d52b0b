"""What answers rest on: grades by a rule that is stated, and records that are in the file."""

from __future__ import annotations

from typing import Any

import pytest

from perfmodel.scenario.load import make_scenario
from perfmodel.studies.run.evidence import (
    Evidence,
    Record,
    Setting,
    chip_of,
    evidence_of,
    load_records,
    rate,
)
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.steps.sized_job import size_job
from perfmodel.topology.templates.gpus import load_gpu

GPT = Setting("a", "transformer", "chip a", "16 bits", ("ddp",), "NVLink", 8, 1e9, 4096.0)


def recorded(*settings: Setting) -> list[Record]:
    return [Record("table", "gpt", each, 1, -0.05, 1.0, 0.3, "", "a page") for each in settings]


def graded(setting: Setting, *settings: Setting, **more: Any) -> str:
    return rate(setting, recorded(*settings), **more).grade


# ---------------------------------------------------------------- the rule


@pytest.mark.parametrize("size", ["gpus", "parameters", "samples"])
def test_sizes_within_a_factor_of_two_are_near(size: str) -> None:
    value = getattr(GPT, size)
    for by, grade in (
        (2, "measured near here"),
        (0.5, "measured near here"),
        (2.5, "beyond anything recorded"),
    ):
        assert graded(GPT._replace(**{size: value * by}), GPT) == grade, by


def test_kinds_that_were_recorded_apart_are_between() -> None:
    other = GPT._replace(chip="chip b", strategy=("fsdp",), network="RoCE", gpus=64)
    asked = GPT._replace(chip="chip b", gpus=16)
    found = rate(asked, recorded(GPT, other))
    assert found.grade == "between records"
    assert found.nearest[0].apart == ("chip",)
    assert found.uncovered == ()


@pytest.mark.parametrize("kind", ["chip", "network", "precision"])
def test_hardware_that_was_never_recorded_is_known_from_data_sheets(kind: str) -> None:
    asked = GPT._replace(**{kind: "new"})
    assert graded(asked, GPT) == "data sheet only"
    assert graded(asked, GPT, covered=[kind]) == "between records"
    assert rate(asked, recorded(GPT)).uncovered == (kind,)


def test_jobs_that_were_never_recorded_are_beyond() -> None:
    assert graded(GPT._replace(model_kind="other"), GPT) == "beyond anything recorded"
    assert graded(GPT._replace(strategy=("ddp", "powersgd")), GPT) == "beyond anything recorded"
    split = GPT._replace(strategy=("tensor", "pipeline"))
    parts = [GPT._replace(strategy=(part,)) for part in ("tensor", "pipeline")]
    assert graded(split, *parts) == "between records"


def test_own_measurements_stand_for_what_they_are_of() -> None:
    asked = GPT._replace(model_kind="other", chip="new", samples=1.0)
    stated = ["compute"]
    assert graded(asked, GPT) == "beyond anything recorded"
    found = rate(asked, recorded(GPT), stated)
    assert found.grade == "measured near here"
    assert found.summary.endswith("; compute by your own measurement")
    assert graded(asked._replace(network="new"), GPT, stated=stated) == "data sheet only"
    assert graded(asked._replace(parameters=9e9), GPT, stated=stated) == "between records"


def test_a_sweep_knows_its_network_and_is_no_training() -> None:
    sweep = Setting("b", "sweep", "chip b", "none", ("sweep",), "EFA", 16, 1.0, 0.0)
    found = rate(GPT._replace(network="EFA"), recorded(GPT, sweep))
    assert found.grade == "between records"
    assert [near.record for near in found.nearest] == ["gpt on 8 a, NVLink, ddp, 16 bits"]


def test_the_same_chip_with_more_memory_is_the_same_one() -> None:
    small, large = load_gpu("v100-sxm2-16gb"), load_gpu("v100-sxm2-32gb")
    assert chip_of(small) == chip_of(large)
    assert chip_of(small) != chip_of(load_gpu("v100-pcie-16gb"))


# ---------------------------------------------------------------- scenarios and records


def evidence(**fields: Any) -> Evidence:
    content = {
        "model": {"name": "resnet50"},
        "compute": {"precision": "tf32", "optimizer": "sgd-momentum"},
        "cluster": {"node": "dgx-a100"},
        "training": {"batch_per_gpu": 256},
    }
    replaced = {name.replace("__", "."): value for name, value in fields.items()}
    inputs = resolve_scenario(make_scenario({**content, **replaced}), None, None)
    return evidence_of(size_job(inputs, inputs.sizes[-1]))


def test_resnet_on_a_dgx_a100_was_measured() -> None:
    """NVIDIA's examples and others published it, on 8 A100 in TF32."""
    found = evidence()
    assert found.grade == "measured near here"
    first = found.nearest[0]
    assert "resnet50" in first.record
    assert "8 a100-sxm4-80gb, NVLink, ddp, tf32" in first.record
    assert first.apart == ()
    assert "github.com" in first.source


@pytest.mark.parametrize(
    ("fields", "grade", "uncovered"),
    [
        ({"cluster": {"node": "8 x rtx-4090"}}, "between records", ()),
        ({"cluster": {"node": "8 x mi355x"}, "compute.precision": "bf16"}, "data sheet only", None),
        ({"training__batch_per_gpu": 16384}, "beyond anything recorded", ("samples",)),
        (
            {"strategy": {"kind": "parameter_server"}, "cluster.fabric": "rail-optimised"},
            "beyond anything recorded",
            ("strategy",),
        ),
        (
            {"cluster": {"node": "dgx-a100", "nodes": 512, "fabric": "rail-optimised"}},
            "beyond anything recorded",
            ("gpus",),
        ),
    ],
)
def test_scenarios_by_hand(fields: Any, grade: str, uncovered: Any) -> None:
    found = evidence(**fields)
    assert found.grade == grade, found
    if uncovered is not None:
        assert found.uncovered == uncovered


def test_both_formats_of_16_bits_are_one() -> None:
    first, second = (evidence(compute__precision=name) for name in ("bf16", "fp16"))
    assert first == second
    assert first.grade == "measured near here"


def test_a_measured_step_covers_compute() -> None:
    found = evidence(
        model={"name": "vgg16"},
        cluster={"node": "dgx-a100"},
        compute={"precision": "tf32", "measured_step": "300 ms at batch 256"},
    )
    assert found.stated == ("compute",)
    assert found.grade == "measured near here"


def test_records_are_measured_and_sourced() -> None:
    records = load_records()
    assert len(records) > 500
    assert all(each.rows >= 1 and each.source for each in records)
    assert max(abs(each.error) for each in records) < 2
    assert {each.setting.precision for each in records} >= {"16 bits", "fp32", "tf32", "fp8"}
    assert {each.setting.gpus == 1 for each in records if each.setting.network == "none"} == {True}
