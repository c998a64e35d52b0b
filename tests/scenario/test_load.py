"""Scenarios read from files: fields, overrides, and faults within and between sections."""

import pytest

from perfmodel.errors import InputError
from perfmodel.files import list_shipped
from perfmodel.files.read import first_comment
from perfmodel.scenario import (
    ClusterSize,
    DdpStrategy,
    change_scenario,
    load_scenario,
    sizes,
)
from perfmodel.scenario.sections.cluster import FabricSection
from perfmodel.scenario.source_map import SourceMap
from perfmodel.scenario.strategies.sharded import FsdpStrategy


def faults(path, *overrides):
    with pytest.raises(InputError) as caught:
        load_scenario(path, overrides)
    return [(f.field, f.line, f.found, f.allowed) for f in caught.value.faults]


def test_a_scenario_is_read_whole(scenario_file):
    scenario = load_scenario(scenario_file())
    assert scenario.name == "mine"
    assert scenario.question == "How long is a step?"
    assert scenario.model.name == "resnet50"
    assert scenario.strategy == DdpStrategy(bucket_cap="25 MiB")
    assert scenario.strategy.bucket_cap == 25 * 2**20
    assert scenario.cluster.fabric.kind == "rail-optimised"
    assert scenario.training.scaling == "weak"
    assert scenario.scale.gpus == (1, 2, 8, 16, 32)
    assert (scenario.fidelity, scenario.seed, scenario.library.name) == ("flow", 0, "nccl")


def test_the_least_a_scenario_needs(scenario_file):
    path = scenario_file(
        "# Q?\nperfmodel: 1\nmodel: {name: vgg16}\ncompute: {precision: fp32}\n"
        "cluster: {node: dgx-a100}\ntraining: {batch_per_gpu: 8}\n"
    )
    scenario = load_scenario(path)
    assert scenario.strategy == DdpStrategy()  # PyTorch's defaults
    assert sizes(scenario, 8) == (ClusterSize(8, 1, 8),)


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "found", "allowed"),
    [
        ("resnet50}", "resnet50, dtpe: fp32}", 3, "model.dtpe", "unknown field", "'dtype'"),
        ("fp16", "fp17", 4, "compute.precision", "'fp17'", "did you mean 'fp16'"),
        ("kind: ddp", "kind: dpp", 6, "strategy.kind", "'dpp'", "did you mean 'ddp'"),
        ("25 MiB", "25", 7, "strategy.bucket_cap", "25 (no unit)", "'25 MiB'"),
        ("25 MiB", "25 mb", 7, "strategy.bucket_cap", "unknown unit 'mb'", "'MB'"),
        ("25 MiB", "0 MiB", 7, "strategy.bucket_cap", "'0 MiB'", "more than zero"),
        ("25 MiB", ".nan", 7, "strategy.bucket_cap", "nan", "'25 MiB'"),
        ("bucket_cap", "bucket_capp", 7, "strategy.bucket_capp", "unknown", "'bucket_cap'"),
        ("nodes: 4", "nodes: 0", 10, "cluster.nodes", "0", "greater than 0"),
        ("nodes: 4", "nodes: -1", 10, "cluster.nodes", "-1", "greater than 0"),
        ("nodes: 4", "nodes: .nan", 10, "cluster.nodes", "nan", "whole number"),
        ("nodes: 4", "nodes: true", 10, "cluster.nodes", "True", "whole number"),
        ("nodes: 4", "nodes: 2", 15, "scale.gpus.4", "32", "at most 16"),
        ("32]", "64]", 15, "scale.gpus.4", "64", "at most 32"),
        ("[1, 2", "[2, 1", 15, "scale", "2, 1", "sizes that grow"),
        ("[1, 2", "[0, 2", 15, "scale.gpus.0", "0", "greater than 0"),
        ("[1, 2, 8, 16, 32]", "[]", 15, "scale.gpus", "[]", "at least 1"),
        ("rail-optimised", "{oversubscription: 2}", 12, "cluster.fabric.kind", "nothing", "req"),
        ("  fabric: rail-optimised\n", "", 8, "cluster.fabric", "nothing", "between the 4 nodes"),
        ("batch_per_gpu: 64", "batch_per_gpu: 0", 14, "training.batch_per_gpu", "0", "than 0"),
        ("  batch_per_gpu: 64", "  {}", 13, "training", "{", "'batch_per_gpu'"),
        ("batch_per_gpu: 64", "global_batch: 65", 14, "training.global_batch", "65", "of 32"),
        (
            "  batch_per_gpu: 64",
            "  batch_per_gpu: 64\n  scaling: strong",
            13,
            "training",
            "batch_per_gpu",
            "'global_batch' and no",
        ),
        ("name: resnet50", "file: absent.csv", 3, "model.file", "no such file", "readable"),
        ("name: resnet50", "dtype: fp16", 3, "model", "fp16", "exactly one"),
        (
            "precision: fp16",
            "precision: fp16, overlap_slowdown: 0.9",
            4,
            "compute.overlap_slowdown",
            "0.9",
            "greater than or equal to 1",
        ),
        ("precision: fp16", "precision: fp16, source: file", 4, "compute", "file", "'times'"),
        ("perfmodel: 1", "perfmodel: 2", 2, "perfmodel", "2", "1"),
        (
            "kind: ddp\n  bucket_cap: 25 MiB",
            "kind: data_parallel",
            9,
            "cluster.nodes",
            "4",
            "1 with",
        ),
    ],
)
def test_each_fault_names_line_field_found_and_allowed(
    edited, scenario_file, old, new, line, field, found, allowed
):
    told = faults(scenario_file(edited(old, new)))
    assert len(told) == 1, told
    assert told[0][0] == field
    assert told[0][1] == line or line is None
    assert found in told[0][2]
    assert allowed in told[0][3]


def test_shape_faults_and_faults_between_sections_are_told_together(good, scenario_file):
    path = scenario_file(good.replace("fp16", "fp17").replace("32]", "64]").replace("25 MiB", "25"))
    assert [fault[0] for fault in faults(path)] == [
        "compute.precision",
        "strategy.bucket_cap",
        "scale.gpus.4",
    ]


def test_the_question_comes_first(good, scenario_file):
    assert faults(scenario_file(good.split("\n", 1)[1]))[0][:2] == ("question", 1)
    assert first_comment("\ufeff---\n\n# yaml-language-server: x\n## Why? \n# no\n") == "Why?"
    assert first_comment("a: 1 # no\n") == ""


def test_overrides_follow_the_rules_of_the_file(scenario_file):
    scenario = load_scenario(
        scenario_file(),
        [
            "strategy.bucket_cap=50 MiB",
            "scale.gpus=[1, 4]",
            "library.name=gloo",
            "seed=7",
            "strategy.static_graph=true",
        ],
    )
    assert scenario.strategy.bucket_cap == 50 * 2**20
    assert scenario.strategy.static_graph is True
    assert scenario.scale.gpus == (1, 4)
    assert scenario.library.name == "gloo"
    assert scenario.seed == 7


def test_a_whole_section_can_be_replaced(scenario_file):
    scenario = load_scenario(scenario_file(), ["strategy={kind: ddp, accumulate: 4}"])
    assert scenario.strategy == DdpStrategy(accumulate=4)


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        (
            "strategy={kind: ddp, accumulate: 4}",
            ["The new strategy replaces a section that also had bucket_cap=25 MiB: left out."],
        ),
        ("strategy=fsdp", ["The new strategy replaces a section that also had bucket_cap=25 MiB"]),
        ("strategy={kind: ddp, bucket_cap: 5 MiB}", []),
        ("strategy.bucket_cap=5 MiB", []),
        ("scale=null", []),
    ],
)
def test_what_a_section_took_along_or_left_is_said(scenario_file, flag, said):
    notes = load_scenario(scenario_file(), [flag]).origin.notes
    assert len(notes) == len(said)
    assert all(note.startswith(words) for note, words in zip(notes, said, strict=True))


def test_a_kind_that_keeps_its_section_says_so(good, scenario_file):
    path = scenario_file(good.replace("bucket_cap: 25 MiB", "accumulate: 4"))
    assert load_scenario(path, ["strategy.kind=fsdp"]).origin.notes == (
        "The new strategy.kind keeps the rest of its section: accumulate=4.",
    )


def test_questions_follow_flags(scenario_file):
    flags = ["cluster.nodes=2", "strategy.hook.kind=fp16", "strategy.hook=bf16"]
    scenario = load_scenario(scenario_file(), [*flags, "scale=null"])
    changed = "cluster.nodes=2, strategy.hook=bf16, scale=null"
    assert scenario.question == f"How long is a step? Changed: {changed}."
    # variants of it ask the same, but for what replaces a flag
    assert change_scenario(scenario, {"seed": 3}).question == scenario.question
    assert "hook" not in change_scenario(scenario, {"strategy": "ddp"}).question


def test_the_last_override_of_a_field_wins(scenario_file):
    assert load_scenario(scenario_file(), ["seed=1", "seed=2"]).seed == 2


def test_a_name_stands_for_a_section_and_fields_may_follow(scenario_file):
    scenario = load_scenario(scenario_file(), ["strategy=fsdp", "strategy.shard_gpus=8"])
    assert scenario.strategy == FsdpStrategy(kind="fsdp", shard_gpus=8)
    scenario = load_scenario(
        scenario_file(), ["cluster.fabric=leaf-spine", "cluster.fabric.oversubscription=2"]
    )
    assert scenario.cluster.fabric == FabricSection(kind="leaf-spine", oversubscription=2)


def test_fields_in_a_section_that_is_given_leave_the_givers_value_alone(scenario_file):
    section = {"kind": "ddp"}
    changes = {"strategy": section, "strategy.bucket_cap": "5 MiB"}
    changed = change_scenario(load_scenario(scenario_file()), changes)
    assert changed.strategy.bucket_cap == 5 * 2**20
    assert section == {"kind": "ddp"}


def test_an_override_reaches_into_a_list(good, scenario_file):
    path = scenario_file(good + "events:\n  - jitter: {kind: normal, cv: 0.1}\n")
    scenario = load_scenario(path, ["events.0.jitter.cv=0.2"])
    assert scenario.events[0].jitter.cv == 0.2
    for place in ("events.1", "events.x.jitter"):
        assert "events.0 to events.0" in faults(path, f"{place}=2")[0][3]
    empty = scenario_file(good + "events: []\n")
    assert faults(empty, "events.0.jitter.cv=0.2")[0][3] == "events=[...]"


@pytest.mark.parametrize(
    ("override", "field", "found", "allowed"),
    [
        ("strategy.bucket_cap=50", "--set strategy.bucket_cap", "50 (no unit)", "'25 MiB'"),
        ("strategy.bucket_capp=1 MiB", "--set strategy.bucket_capp", "unknown", "'bucket_cap'"),
        ("cluster.nodes=0", "--set cluster.nodes", "0", "greater than 0"),
        ("cluster.nodes=", "--set cluster.nodes", "nothing", "whole number"),
        ("scale.gpus=[1, 64]", "--set scale.gpus.1", "64", "at most 32"),
        ("strategy", "--set", "'strategy'", "FIELD=VALUE"),
        ("=5", "--set", "'=5'", "FIELD=VALUE"),
        ("a..b=5", "--set", "'a..b=5'", "FIELD=VALUE"),
        ("seed.x=5", "--set seed.x", "nothing", "field"),
        ("scale=[1: ", "--set scale", "", "YAML"),
    ],
)
def test_a_fault_in_an_override_names_the_flag(
    good, scenario_file, override, field, found, allowed
):
    told = [f for f in faults(scenario_file(good + "seed: 1\n"), override) if f[0] == field]
    if override.startswith("seed.x"):
        assert faults(scenario_file(good + "seed: 1\n"), override)[0][2] == "seed = 1"
        return
    assert len(told) == 1
    assert told[0][1] is None
    assert found in told[0][2]
    assert allowed in told[0][3]


def test_every_shipped_scenario_is_valid_and_asks_a_question():
    assert len(list_shipped("scenarios")) >= 6
    for name in list_shipped("scenarios"):
        scenario = load_scenario(name)
        assert scenario.question.endswith("?"), name


def test_padding_that_spares_no_copy_is_refused():
    """Rows are filled up for fp8, whose products by expert would copy them else."""
    router = "model.experts={router_padding: true, implementation: %s}"
    model = ["scale=null", "model.name=mixtral-8x7b"]
    for precision, implementation in (("bf16", "per-expert"), ("fp8", "grouped")):
        asked = [*model, router % implementation, f"compute.precision={precision}"]
        found = faults("llama2-7b-fsdp-h100", *asked)
        assert [fault[0] for fault in found] == ["--set model.experts.router_padding"]
    load_scenario("llama2-7b-fsdp-h100", [*model, router % "per-expert", "compute.precision=fp8"])


@pytest.mark.parametrize(
    "precision", ["compute.precision=bf16", "compute={precision: fp8, fp8: {recipe: current}}"]
)
def test_experts_are_fused_with_their_activation_where_casts_are(precision: str) -> None:
    model = ["scale=null", "model={name: mixtral-8x7b, experts: {implementation: fused}}"]
    (found,) = faults("llama2-7b-fsdp-h100", *model, precision)
    assert found[0].endswith("model.experts.implementation")
    assert "mxfp8 or nvfp4" in found[3]
    load_scenario(
        "llama2-7b-fsdp-h100",
        [*model, "compute={precision: fp8, fp8: {recipe: mxfp8}}", "cluster.node=hgx-b200"],
    )


def test_a_field_whose_section_was_taken_away_has_no_value() -> None:
    kept = SourceMap(
        flags=("scale.gpus", "events.0.slow.by"),
        content={"scale": None, "events": [{"slow": {"by": 2}}]},
    )
    assert kept.changes == {"scale.gpus": None, "events.0.slow.by": 2}
