"""A scenario: defaults, overrides, faults with lines or flags, sizes, batches, digest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.files import shipped
from perfmodel.scenario import (
    ClusterSize,
    DataParallelStrategy,
    DdpStrategy,
    Scenario,
    batch_per_gpu,
    load_scenario,
    question_of,
    scenario_digest,
    sizes,
)

GOOD = """\
# How long is a step?
perfmodel: 1
model: {name: resnet50}
compute: {precision: fp16}
strategy:
  kind: ddp
  bucket_cap: 25 MiB
cluster:
  node: dgx-a100
  nodes: 4
  gpus_per_node: 8
  fabric: rail-optimised
training:
  batch_per_gpu: 64
scale: {gpus: [1, 2, 8, 16, 32]}
"""


@pytest.fixture
def scenario_file(tmp_path):
    def write(text=GOOD, name="mine.yaml"):
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def faults(path, *overrides):
    with pytest.raises(InputError) as caught:
        load_scenario(path, overrides)
    return [(f.field, f.line, f.found, f.allowed) for f in caught.value.faults]


def edited(old, new):
    assert old in GOOD
    return GOOD.replace(old, new)


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


def test_strategies_are_told_apart_by_kind(scenario_file):
    path = scenario_file(
        GOOD.replace("  kind: ddp\n  bucket_cap: 25 MiB\n", "  kind: data_parallel\n")
        .replace("nodes: 4", "nodes: 1")
        .replace("8, 16, 32]", "8]")
    )
    assert isinstance(load_scenario(path).strategy, DataParallelStrategy)


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
        ("  batch_per_gpu: 64", "  batch_per_gpu: 64\n  scaling: strong", 13, "training",
         "batch_per_gpu", "'global_batch' and no"),
        ("name: resnet50", "file: absent.csv", 3, "model.file", "no such file", "readable"),
        ("name: resnet50", "dtype: fp16", 3, "model", "fp16", "exactly one"),
        ("precision: fp16", "precision: fp16, overlap_slowdown: 0.9", 4,
         "compute.overlap_slowdown", "0.9", "greater than or equal to 1"),
        ("precision: fp16", "precision: fp16, source: file", 4, "compute", "file", "'times'"),
        ("perfmodel: 1", "perfmodel: 2", 2, "perfmodel", "2", "1"),
        ("perfmodel: 1\n", "", None, "perfmodel", "nothing", "required"),
        ("kind: ddp\n  bucket_cap: 25 MiB", "kind: data_parallel", 9,
         "cluster.nodes", "4", "1 with"),
    ],
)  # fmt: skip
def test_each_fault_names_line_field_found_and_allowed(
    scenario_file, old, new, line, field, found, allowed
):
    told = faults(scenario_file(edited(old, new)))
    assert len(told) == 1, told
    assert told[0][0] == field
    assert told[0][1] == line or line is None
    assert found in told[0][2]
    assert allowed in told[0][3]


def test_shape_faults_and_faults_between_sections_are_told_together(scenario_file):
    path = scenario_file(GOOD.replace("fp16", "fp17").replace("32]", "64]").replace("25 MiB", "25"))
    assert [fault[0] for fault in faults(path)] == [
        "compute.precision", "strategy.bucket_cap", "scale.gpus.4",
    ]  # fmt: skip


def test_the_question_comes_first(scenario_file):
    assert faults(scenario_file(GOOD.split("\n", 1)[1]))[0][:2] == ("question", 1)
    assert question_of("\ufeff---\n\n# yaml-language-server: x\n## Why? \n# no\n") == "Why?"
    assert question_of("a: 1 # no\n") == ""


# ---------------------------------------------------------------- overrides


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


def test_the_last_override_of_a_field_wins(scenario_file):
    assert load_scenario(scenario_file(), ["seed=1", "seed=2"]).seed == 2


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
def test_a_fault_in_an_override_names_the_flag(scenario_file, override, field, found, allowed):
    told = [f for f in faults(scenario_file(GOOD + "seed: 1\n"), override) if f[0] == field]
    if override.startswith("seed.x"):
        assert faults(scenario_file(GOOD + "seed: 1\n"), override)[0][2] == "seed = 1"
        return
    assert len(told) == 1
    assert told[0][1] is None
    assert found in told[0][2]
    assert allowed in told[0][3]


# ---------------------------------------------------------------- sizes and batches


def made(**sections):
    document = {
        "perfmodel": 1,
        "model": {"name": "resnet50"},
        "compute": {"precision": "fp16"},
        "cluster": {"node": "dgx-a100", "nodes": 4, "fabric": "one-switch"},
        "training": {"batch_per_gpu": 64},
    }
    return Scenario.model_validate(document | sections)


def test_sizes():
    assert sizes(made(), 8) == (ClusterSize(32, 4, 8),)
    assert sizes(made(scale={"gpus": [1, 4, 8, 16, 32]}), 8) == (
        ClusterSize(1, 1, 1), ClusterSize(4, 1, 4), ClusterSize(8, 1, 8), ClusterSize(16, 2, 8), ClusterSize(32, 4, 8),
    )  # fmt: skip
    assert sizes(made(scale={"nodes": [1, 3]}), 8) == (ClusterSize(8, 1, 8), ClusterSize(24, 3, 8))


@pytest.mark.parametrize(
    ("sections", "field"),
    [
        ({"scale": {"gpus": [8, 64]}}, "scale.gpus.1"),
        ({"scale": {"gpus": [8, 12]}}, "scale.gpus.1"),
        ({"cluster": {"node": "dgx-a100", "gpus_per_node": 9}}, "cluster.gpus_per_node"),
    ],
)
def test_sizes_that_the_hardware_does_not_have(sections, field):
    with pytest.raises(InputError) as caught:
        sizes(made(**sections), 8)
    assert [fault.field for fault in caught.value.faults] == [field]


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 32))
def test_a_global_batch_is_split_exactly_or_refused(gpus, accumulate, each):
    scenario = made(
        training={"global_batch": gpus * accumulate * each},
        strategy={"kind": "ddp", "accumulate": accumulate},
    )
    assert scenario.training.scaling == "strong"
    assert batch_per_gpu(scenario, gpus) * gpus * accumulate == gpus * accumulate * each
    off = made(
        training={"global_batch": gpus * accumulate * each + 1},
        strategy={"kind": "ddp", "accumulate": accumulate},
    )
    if gpus * accumulate > 1:
        with pytest.raises(InputError, match=rf"a multiple of {gpus * accumulate} \("):
            batch_per_gpu(off, gpus)


def test_a_weak_batch_stays():
    assert batch_per_gpu(made(), 7) == 64


# ---------------------------------------------------------------- origin and digest


def test_later_faults_can_name_the_line_or_the_flag(scenario_file):
    path = scenario_file()
    scenario = load_scenario(path, ["model.name=resnet5"])
    assert scenario.locate("cluster.node") == (path, 9)
    assert scenario.locate("cluster.fabric.kind") == (path, 12)
    assert scenario.locate("library.name") == (path, None)
    assert (
        str(scenario.fault("cluster.node", "x", "y"))
        == f"{path}:9: cluster.node: found x; allowed: y"
    )
    assert str(scenario.fault("model.name", "x", "y")) == "--set model.name: found x; allowed: y"


def test_paths_are_relative_to_the_file(scenario_file, tmp_path, monkeypatch):
    (tmp_path / "layers.csv").write_text("x")
    path = scenario_file(edited("name: resnet50", "file: layers.csv"))
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    scenario = load_scenario(path)
    assert scenario.origin.resolve("model.file", "layers.csv") == tmp_path / "layers.csv"
    assert faults(path, "model.file=layers.csv")[0][0] == "--set model.file"  # relative to here


def test_the_digest_depends_on_what_is_asked_only(scenario_file):
    base = scenario_digest(load_scenario(scenario_file()))
    rewritten = GOOD.replace("# How", "# Why").replace("25 MiB", "25600 KiB") + "seed: 0\n"
    assert scenario_digest(load_scenario(scenario_file(rewritten, "other.yaml"))) == base
    assert scenario_digest(load_scenario(scenario_file(), ["seed=1"])) != base
    assert len(base) == 64


def test_every_shipped_scenario_is_valid_and_asks_a_question():
    assert len(shipped("scenarios")) >= 6
    for name in shipped("scenarios"):
        scenario = load_scenario(name)
        assert scenario.question.endswith("?"), name


def test_schema_accepts_the_shipped_scenarios_and_refuses_unknown_fields():
    import jsonschema

    from perfmodel.files import plain, read_yaml

    schema = Scenario.model_json_schema()
    for path in shipped("scenarios").values():
        document = plain(read_yaml(path))
        jsonschema.validate(document, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document | {"extra": 1}, schema)
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(document | {"strategy": {"kind": "ddp", "bucket_cap": 25}}, schema)
