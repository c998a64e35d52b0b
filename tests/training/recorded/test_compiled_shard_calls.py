"""SimpleFSDP: calls of PyTorch's compiler are those of FSDP2 whose units are its buckets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

import perfmodel as pm
from perfmodel.errors import InputError
from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.training.fsdp.budgets import bucket_bytes
from perfmodel.training.fsdp.step_plan import fsdp_plan
from perfmodel.training.fsdp.units import sized_units, walk_units
from perfmodel.workload.zoo import build_model
from tests.training.recorded.run_cases import planned_calls, run_cases
from tests.training.recorded.toy_workload import BLOCKS, INPUTS, WIDTH, request

Issued = tuple[str, int, int, str | None]
UNITS = ("embed", "blocks.*", "head")
KEPT, TWICE, FILLED = "whole until backward", "gathered twice", "filled by the compiler"
CAP_BYTES = int(0.0045 * 2**20)
"""Of the recorded buckets (`compiled_shard_cases.CAP_MIB`)."""


def padded_bytes(rows: int, columns: int, ranks: int) -> int:
    return 4 * -(-rows // ranks) * ranks * columns


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_calls_are_those_of_the_compiler(ranks: int, tmp_path: Path) -> None:
    recorded = run_cases("tests.training.recorded.compiled_shard_cases", ranks, tmp_path)
    for name in (KEPT, TWICE):
        options = FsdpStrategy(kind="fsdp", wrap=UNITS, reshard_after_forward=name == TWICE)
        planned = planned_calls(fsdp_plan(request(ranks), options))
        if name == TWICE:
            # its backward gathers what backward uses: no embedding, and no biases of linear layers
            embed = padded_bytes(WIDTH, INPUTS, ranks) + padded_bytes(WIDTH, 1, ranks)
            last = max(at for at, call in enumerate(planned) if call[:2] == ("all_gather", embed))
            del planned[last]
            biases = padded_bytes(3 * WIDTH, 1, ranks) + padded_bytes(WIDTH, 1, ranks)
            for at in [at for at, call in enumerate(planned) if call[0] == "all_gather"][-BLOCKS:]:
                op, nbytes, *others = planned[at]
                planned[at] = (op, nbytes - biases, *others)
        called = [call.issued for call in recorded[name] if call.phase == "step 1"]
        assert called == planned, name
    check_filled(ranks, [call.issued for call in recorded[FILLED] if call.phase == "step 1"])


def check_filled(ranks: int, called: list[Issued]) -> None:
    """Forward is to the call; backward fills as many from the other end, and gathers what it uses.

    Gathers of backward that nothing hides the compiler joins once more.
    """
    options = FsdpStrategy(kind="fsdp", wrap="auto", bucket_cap=f"{CAP_BYTES} B")
    planned = planned_calls(fsdp_plan(request(ranks), options))
    made, own = ([call for call in each if call[0] == "all_gather"] for each in (called, planned))
    reduced, own_reduced = (
        [call for call in each if call[0] == "reduce_scatter"] for each in (called, planned)
    )
    buckets = len(own) // 2
    assert made[:buckets] == own[:buckets]
    assert len(reduced) == len(own_reduced) == buckets
    assert sum(call[1] for call in reduced) == sum(call[1] for call in own_reduced)
    embed = padded_bytes(WIDTH, INPUTS, ranks) + padded_bytes(WIDTH, 1, ranks)
    biases = padded_bytes(3 * WIDTH, 1, ranks) + padded_bytes(WIDTH, 1, ranks)
    used = sum(call[1] for call in own[buckets:]) - embed - BLOCKS * biases
    assert sum(call[1] for call in made[buckets:]) == used


@pytest.mark.parametrize("generation", ["VOLTA", "AMPERE", "HOPPER", "BLACKWELL"])
@pytest.mark.parametrize("ranks", [2, 4, 8, 16, 64, 256, 1024])
def test_buckets_are_as_large_as_the_compiler_has_them(
    generation: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nodes have eight GPUs where torch sees none."""
    from torch._inductor import comm_analysis
    from torch._inductor.fx_passes.fsdp import compute_pre_bucket_cap_mb

    kind = comm_analysis.NVIDIA_GPU_TYPE[generation]
    monkeypatch.setattr(comm_analysis, "get_gpu_type", lambda: kind)
    options = FsdpStrategy(kind="fsdp", wrap="auto")
    cap_mib = bucket_bytes(options, ranks, generation.lower(), 8) / 2**20
    assert cap_mib == pytest.approx(compute_pre_bucket_cap_mb(ranks), rel=1e-6)


def test_buckets_hold_neighbouring_layers_up_to_their_cap() -> None:
    """Linear layers of 32 to 112 MiB: two buckets where one would exceed its cap, one in one."""
    workload = build_model("llama3-8b", sequence_length=512)
    units = sized_units(
        workload,
        FsdpStrategy(kind="fsdp", wrap="auto", param_dtype="bf16"),
        8,
        cap_bytes=94 * 2**20,
    )
    first, *_ = (unit for unit in units if unit.name.startswith("model.layers.7."))
    assert [each.name.split(".", 3)[3] for each in first.parameters if each.numel > 2**20] == [
        f"self_attn.{each}_proj.weight" for each in "qkvo"
    ]
    assert all(unit.gathered_bytes < 113 * 2**20 for unit in units if "layers" in unit.name)
    assert sum(len(unit.tensors) for unit in units) == len(workload.tensors)
    walk = walk_units(workload, units, by_layer=True)
    entered = [each.unit.name for each in walk if each.kind == "enter" and each.unit]
    assert sorted(entered) == sorted(unit.name for unit in units)  # each once


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"strategy.version": 1}, "another way with version 1"),
        ({"compute.compiled": False}, "or compute.compiled: true"),
        ({"strategy.wrap": "block", "strategy.bucket_cap": "9 MB"}, "nothing without wrap: auto"),
    ],
)
def test_buckets_are_the_compilers_alone(changes: dict[str, Any], reason: str) -> None:
    scenario = {
        "perfmodel": 1,
        "model": {"name": "gpt2", "sequence_length": 128},
        "strategy": {"kind": "fsdp", "wrap": "auto"},
        "compute": {"compiled": True, "precision": "bf16"},
        "cluster": {"node": "dgx-a100"},
        "training": {"batch_per_gpu": 1},
    }
    assert pm.run(scenario).main.step_time_s > 0
    with pytest.raises(InputError, match=reason):
        pm.run(scenario, changes)
