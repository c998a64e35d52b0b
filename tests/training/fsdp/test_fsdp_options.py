"""Options of fully sharded training: each acts, or is refused with a name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perfmodel.errors import InputError
from perfmodel.files import validate_document
from perfmodel.scenario.load import load_scenario
from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.studies.run.run import run_scenario
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.fsdp.step_plan import fsdp_plan
from perfmodel.training.fsdp.strategy import fsdp_memory
from perfmodel.training.fsdp.units import wrap_units
from perfmodel.training.memory_use import MemoryUse, Setup
from perfmodel.training.plan.step_plan import Collective, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.memory.activations import backward_bytes
from perfmodel.workload.model import Buffers, LayerTimes
from perfmodel.workload.zoo import build_model

GPT2 = build_model("gpt2")


def plan_of(options: FsdpStrategy, **changes: Any) -> StepPlan:
    layers = len(GPT2.layers)
    times = LayerTimes(
        np.full(layers, 1e-3),
        np.full(layers, 2e-3),
        np.full(layers, 3),
        np.full(layers, 6),
        5e-6,
        1e-3,
        3,
        1e12,
        "equal",
    )
    given: dict[str, Any] = {"ranks": 8, "batch_per_gpu": 1, "host_link_Bps": 2e10}
    plan = fsdp_plan(StepRequest(GPT2, times, **(given | changes)), options)
    check_plan(plan)
    return plan


def memory_of(options: FsdpStrategy, **changes: Any) -> MemoryUse:
    return fsdp_memory(replace(Setup(GPT2, "bf16", "adamw", 8, 1, options), **changes))


CHANGES: list[dict[str, Any]] = [
    {"version": 1},
    {"wrap": "layer"},
    {"wrap": "size", "wrap_elements": 1_000_000},
    {"wrap": "model"},
    {"wrap": ("h.*", "wte")},
    {"reshard_after_forward": False},
    {"reshard_root": True},
    {"reshard_after_forward": 2},
    {"shard_gpus": 4},
    {"forward_prefetch": 2},
    {"param_dtype": "bf16"},
    {"reduce_dtype": "bf16"},
    {"offload": True},
    {"clip_norm": True},
    {"accumulate": 2},
    {"accumulate": 2, "sync": "last"},
    {"accumulate": 2, "sync": "last", "reshard_after_backward": False},
    {"reduce_buffers": 2},
    {"separate_reduce": True},
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_each_option_changes_the_plan(change: dict[str, Any]) -> None:
    before = {key: value for key, value in change.items() if key != list(change)[-1]}
    assert (
        plan_of(FsdpStrategy(kind="fsdp", **change)).tasks
        != plan_of(FsdpStrategy(kind="fsdp", **before)).tasks
    )


@pytest.mark.parametrize(
    "change",
    [
        {"forward_prefetch": 1},
        {"backward_prefetch": "post"},
        {"backward_prefetch": "none"},
        {"limit_all_gathers": False},
    ],
    ids=str,
)
def test_each_option_changes_the_plan_of_version_1(change: dict[str, Any]) -> None:
    plain = plan_of(FsdpStrategy(kind="fsdp", version=1))
    assert plan_of(FsdpStrategy(kind="fsdp", version=1, **change)).tasks != plain.tasks


@pytest.mark.parametrize("wrap", ["block", ("h.*", "wte")])
def test_the_first_step_broadcasts_states_if_asked(wrap: Any) -> None:
    """Also of a unit of one tensor."""
    options = FsdpStrategy(kind="fsdp", version=1, sync_module_states=True, wrap=wrap)
    works = [
        [
            t.work
            for t in plan_of(options, iteration=iteration).tasks
            if isinstance(t.work, Collective)
        ]
        for iteration in ("first", "steady")
    ]
    sent = [sum(w.nbytes for w in each if w.op == "broadcast") for each in works]
    assert sent == [GPT2.nbytes + GPT2.buffer_bytes, 0]


def test_memory_follows_the_options() -> None:
    plain = memory_of(FsdpStrategy(kind="fsdp"))
    whole = memory_of(FsdpStrategy(kind="fsdp", reshard_after_forward=False))
    assert whole.gathered_bytes > plain.gathered_bytes > 0
    ahead = memory_of(FsdpStrategy(kind="fsdp", backward_prefetch=4))
    block_bytes = 4 * 12 * 768**2
    assert ahead.gathered_bytes >= plain.gathered_bytes + 2 * block_bytes
    assert memory_of(FsdpStrategy(kind="fsdp", wrap="model")).gathered_bytes >= 2 * GPT2.nbytes
    copies = memory_of(FsdpStrategy(kind="fsdp", shard_gpus=4))
    assert copies.states_bytes == pytest.approx(2 * plain.states_bytes, rel=1e-3)
    kept = memory_of(FsdpStrategy(kind="fsdp", accumulate=2, sync="last"))
    assert kept.gathered_bytes > plain.gathered_bytes + 0.5 * GPT2.nbytes
    host = memory_of(FsdpStrategy(kind="fsdp", offload=True))
    assert host.states_bytes == GPT2.buffer_bytes
    half = memory_of(FsdpStrategy(kind="fsdp", param_dtype="bf16"))
    assert half.gathered_bytes == pytest.approx(plain.gathered_bytes / 2, rel=0.01)


def test_buffers_are_kept_in_their_dtype() -> None:
    model = replace(GPT2, buffers=(Buffers("fp32", 1, 400), Buffers("int64", 1, 80)))
    for dtype, nbytes in ((None, 480), ("bf16", 280)):
        options = FsdpStrategy(kind="fsdp", version=1, buffer_dtype=dtype)
        use = memory_of(options, workload=model)
        bare = memory_of(options, workload=replace(model, buffers=()))
        assert use.parameters_bytes - bare.parameters_bytes == nbytes


def test_units_by_size_hold_as_many_parameters() -> None:
    units = wrap_units(GPT2, "size", 1_000_000)
    sizes = {unit.name: sum(GPT2.tensors[i].numel for i in unit.tensors) for unit in units}
    assert min(size for name, size in sizes.items() if name != "root") >= 1_000_000
    assert sizes["h.0.mlp.c_fc"] == 768 * 3072 + 3072
    assert "h" not in sizes  # a list of modules
    assert sum(sizes.values()) == GPT2.parameters


FAULTS: list[tuple[dict[str, Any], list[str]]] = [
    (
        {"version": 1, "reshard_after_forward": 2, "reshard_root": True},
        ["reshard_after_forward", "reshard_root"],
    ),
    ({"version": 1, "sync": "shards", "forward_prefetch": 2}, ["forward_prefetch", "sync"]),
    ({"backward_prefetch": "post", "buffer_dtype": "bf16"}, ["buffer_dtype", "backward_prefetch"]),
    ({"version": 1, "backward_prefetch": 2}, ["backward_prefetch"]),
    (
        {"limit_all_gathers": False, "use_orig_params": True},
        ["limit_all_gathers", "use_orig_params"],
    ),
    ({"reshard_after_forward": False, "reshard_root": True}, ["reshard_root"]),
    ({"accumulate": 0, "shard_gpus": 0}, ["shard_gpus", "accumulate"]),
    (
        {"wrap_elements": 5, "reshard_after_backward": False},
        ["wrap_elements", "reshard_after_backward"],
    ),
]


@pytest.mark.parametrize(("options", "fields"), FAULTS, ids=str)
def test_options_of_the_other_version_are_refused_at_once(
    options: dict[str, Any], fields: list[str]
) -> None:
    with pytest.raises(InputError) as caught:
        validate_document(FsdpStrategy, {"kind": "fsdp", **options})
    assert [fault.field for fault in caught.value.faults] == fields


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shard_gpus": 3}, "found 3; allowed: a divisor of the 8 GPUs: 2, 4"),
        ({"shard_gpus": 1}, "found 1; allowed: 2 or more"),
        ({"sync": "shards"}, "there are no copies"),
        ({"reshard_after_forward": 3}, "a divisor of the 8 GPUs of a shard group: 2, 4"),
        ({"reshard_after_forward": 8}, "or true, which is 8"),
        ({"wrap": ("hh.*",)}, "did you mean 'h.*'?"),
    ],
)
def test_groups_that_do_not_fit_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError) as caught:
        plan_of(FsdpStrategy(kind="fsdp", **options))
    assert words in str(caught.value)


def test_offloading_needs_a_way_to_the_host() -> None:
    with pytest.raises(InputError, match="offload"):
        plan_of(FsdpStrategy(kind="fsdp", offload=True), host_link_Bps=None)


SCENARIO = """# Do shards fit?
perfmodel: 1
model: {name: resnet18}
cluster: {node: dgx-a100, nodes: 1}
compute: {precision: fp32, optimizer: sgd}
training: {batch_per_gpu: 8}
strategy: {kind: fsdp, shard_gpus: 3, reshard_after_forward: 2}
"""


def test_a_scenario_names_file_line_and_field(tmp_path: Path) -> None:
    path = tmp_path / "sharded.yaml"
    path.write_text(SCENARIO, encoding="utf-8")
    with pytest.raises(InputError) as caught:
        run_scenario(load_scenario(path))
    text = str(caught.value)
    assert "sharded.yaml:7" in text
    assert "strategy.shard_gpus: found 3" in text
    assert "strategy.reshard_after_forward: found 2" in text
    path.write_text(SCENARIO.replace("shard_gpus: 3", "param_dtype: bf16"), encoding="utf-8")
    with pytest.raises(InputError, match=r"strategy.param_dtype: found 'bf16' with compute.prec"):
        load_scenario(path)


def test_shards_of_gradients_are_not_there_when_the_loss_is_the_fullest_moment() -> None:
    """Their memory stays with the stream of reductions, so that the allocator needs it beside."""
    use = memory_of(FsdpStrategy(kind="fsdp"), batch_per_gpu=8)
    held = backward_bytes(GPT2, 8, "bf16")
    assert use.idle_bytes == use.gradients_bytes > 0
    assert use.activations_bytes + use.idle_bytes == pytest.approx(held.of_loss)
    again = memory_of(FsdpStrategy(kind="fsdp", accumulate=2), batch_per_gpu=8)
    assert again.idle_bytes == 0
    assert again.total_bytes == pytest.approx(use.total_bytes + use.idle_bytes)


def test_without_weights_in_fp8_there_are_no_scales_to_agree_on() -> None:
    """Frozen maps beside low-rank adapters are no Float8Linear: torchao then returns at once."""
    model = "model={transformer: {hidden: 64, layers: 2}%s}"
    asked = ["cluster.nodes=1", "compute.precision=fp8"]
    steps = [
        run_scenario(load_scenario("llama3-8b-fp8-h100", [model % each, *asked])).main
        for each in ("", ", adapters: {rank: 16}")
    ]
    calls = [{use.op: use.calls for use in step.communication} for step in steps]
    assert [each.get("all_reduce", 0) for each in calls] == [1, 0]
