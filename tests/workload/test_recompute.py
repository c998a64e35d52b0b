"""Recomputation: whose forward backward repeats, what it costs, what it saves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload import LayerTimes, Workload, build_model, layer_times
from perfmodel.workload.memory.blocks import repeated_blocks
from perfmodel.workload.memory.recompute import NO_RECOMPUTE, Recompute, add_recompute
from tests.activations import activation_bytes

FULL, SELECTIVE = Recompute("full"), Recompute("selective")

BLOCKS = {
    "gpt2": 12,
    "bert-large": 24,
    "llama2-7b": 32,
    "vit-b-16": 12,
    "resnet50": 16,
}


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_of_published_models(name: str) -> None:
    """Their papers' numbers of layers; ResNet-50's 3, 4, 6 and 3 bottlenecks."""
    model = build_model(name)
    blocks = repeated_blocks(model)
    assert len(blocks) == BLOCKS[name]
    assert len({tuple(len(block) for block in blocks)} if name != "resnet50" else [0]) == 1


def times_of(model: Workload) -> LayerTimes:
    return layer_times(model, load_gpu("a100-sxm4-80gb"), batch=2, precision="bf16")


def kept(model: Workload, recompute: Recompute, **more: Any) -> float:
    return activation_bytes(model, 4, "bf16", recompute=recompute, **more)


def test_full_recomputation_runs_forward_of_all_blocks_twice() -> None:
    model = build_model("gpt2")
    plain, again = times_of(model), add_recompute(model, times_of(model), FULL)
    inside = np.concatenate([list(block) for block in repeated_blocks(model)])
    extra = again.backward_s.sum() - plain.backward_s.sum()
    assert extra == pytest.approx(plain.forward_s[inside].sum())
    kernels = again.backward_kernels.sum() - plain.backward_kernels.sum()
    assert kernels == plain.forward_kernels[inside].sum()
    assert (again.forward_s == plain.forward_s).all()


def test_a_block_is_recomputed_before_its_last_layer() -> None:
    model = build_model("gpt2")
    plain, again = times_of(model), add_recompute(model, times_of(model), Recompute("full", 1))
    (changed,) = np.flatnonzero(again.backward_s != plain.backward_s)
    assert model.layers[changed].name == "h.0.narrow"


def test_selective_recomputation_repeats_attention_alone() -> None:
    model = build_model("gpt2")
    plain, again = times_of(model), add_recompute(model, times_of(model), SELECTIVE)
    changed = np.flatnonzero(again.backward_s != plain.backward_s)
    assert [model.layers[i].name for i in changed] == [f"h.{i}.attention" for i in range(12)]


def test_full_recomputation_keeps_the_input_of_each_layer() -> None:
    """Korthikanti et al. 2022 (arXiv 2205.05198), section 5: 2 s b h bytes a layer."""
    deep = build_model("gpt3-1.3b", dtype="bf16")
    s, b, h, blocks = 2048, 4, 2048, 24
    plain, full = kept(deep, NO_RECOMPUTE), kept(deep, FULL)
    within = (plain - full) / (blocks - 1) + 2 * s * b * h  # what one block keeps
    head = plain - blocks * within
    assert full == pytest.approx(head + within + (blocks - 1) * 2 * s * b * h)
    assert within == pytest.approx(34 * s * b * h, rel=2e-3)


def test_selective_recomputation_saves_the_scores() -> None:
    """The same paper, section 4.1: 5 a s^2 b bytes a layer."""
    model = build_model("gpt3-1.3b", dtype="bf16")
    unfused = {"fused_attention": False}
    saved = kept(model, NO_RECOMPUTE, **unfused) - kept(model, SELECTIVE, **unfused)
    assert saved == 24 * 5 * 16 * 2048**2 * 4
    assert kept(model, SELECTIVE) == kept(model, SELECTIVE, **unfused)


@pytest.mark.slow
@given(st.sampled_from(sorted(BLOCKS)), st.data())
def test_more_blocks_take_more_time_and_no_more_memory(name: str, data: st.DataObject) -> None:
    model = build_model(name)
    count = data.draw(st.integers(1, BLOCKS[name] - 1))
    few, more = Recompute("full", count), Recompute("full", count + 1)
    plain = replace(times_of(model), spread=(1.0, 1.0))
    seconds = [add_recompute(model, plain, each).backward_s.sum() for each in (few, more)]
    assert plain.backward_s.sum() < seconds[0] < seconds[1]
    assert kept(model, more) <= kept(model, few) * (1 + 1e-12)
    assert kept(model, few) <= kept(model, NO_RECOMPUTE) * (1 + 1e-12)


@pytest.mark.parametrize(
    ("name", "recompute", "allowed"),
    [
        ("resnet50", SELECTIVE, "none, full or blocks"),
        ("inception-v3", FULL, "none or selective"),
        ("gpt2", Recompute("full", 13), "1 to 12, the blocks of 'gpt2'"),
    ],
)
def test_refuses_what_a_model_does_not_have(name: str, recompute: Recompute, allowed: str) -> None:
    model = build_model(name)
    with pytest.raises(InputError) as caught:
        add_recompute(model, times_of(model), recompute)
    assert [fault.allowed for fault in caught.value.faults] == [allowed]
    assert caught.value.faults[0].field == "recompute"
