"""Sizes, batches, digest and schema of a scenario."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.files import list_shipped
from perfmodel.scenario import (
    ClusterSize,
    Scenario,
    batch_per_gpu,
    load_scenario,
    scenario_digest,
    sizes,
    sizes_left_out,
)


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
        ClusterSize(1, 1, 1),
        ClusterSize(4, 1, 4),
        ClusterSize(8, 1, 8),
        ClusterSize(16, 2, 8),
        ClusterSize(32, 4, 8),
    )
    assert sizes(made(scale={"nodes": [1, 3]}), 8) == (
        ClusterSize(8, 1, 8),
        ClusterSize(24, 3, 8),
        ClusterSize(32, 4, 8),
    )


@pytest.mark.parametrize("nodes", [1, 2, 3, 32, 33])
def test_the_cluster_is_the_main_size(nodes):
    """Sizes of the file beyond a flag's cluster go, and it is said which."""
    scenario = load_scenario("resnet50-dgx-a100", [f"cluster.nodes={nodes}"])
    every = sizes(scenario, 8)
    assert every[-1] == ClusterSize(8 * nodes, nodes, 8)
    curve = [1, 2, 4, 8, 16, 32, 64, 128, 256]
    assert [size.gpus for size in every[:-1]] == [gpus for gpus in curve if gpus < 8 * nodes]
    larger = ", ".join(str(gpus) for gpus in curve if gpus > 8 * nodes)
    text = f"Sizes beyond the {8 * nodes} GPUs of the cluster are left out: {larger}."
    assert sizes_left_out(scenario, every[-1]) == ((text,) if larger else ())


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


def test_the_digest_depends_on_what_is_asked_only(good, scenario_file):
    base = scenario_digest(load_scenario(scenario_file()))
    rewritten = good.replace("# How", "# Why").replace("25 MiB", "25600 KiB") + "seed: 0\n"
    assert scenario_digest(load_scenario(scenario_file(rewritten, "other.yaml"))) == base
    assert scenario_digest(load_scenario(scenario_file(), ["seed=1"])) != base
    assert len(base) == 64


def test_schema_accepts_the_shipped_scenarios_and_refuses_unknown_fields():
    import jsonschema

    from perfmodel.files import plain, read_yaml

    schema = Scenario.model_json_schema()
    validator = jsonschema.validators.validator_for(schema)
    validator.check_schema(schema)  # once: `jsonschema.validate` does it for every document
    validate = validator(schema).validate
    for path in list_shipped("scenarios").values():
        document = plain(read_yaml(path))
        validate(document)
        with pytest.raises(jsonschema.ValidationError):
            validate(document | {"extra": 1})
        with pytest.raises(jsonschema.ValidationError):
            validate(document | {"strategy": {"kind": "ddp", "bucket_cap": 25}})
