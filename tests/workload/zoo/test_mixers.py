"""Models whose layers scan the sequence: shares of ranks, what is kept, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.configs.hugging_face import read_config
from perfmodel.workload.kernels.float8_layers import Float8, float8_layers
from perfmodel.workload.kernels.shapes import Scan
from perfmodel.workload.memory.recompute import Recompute, add_recompute, recomputed_blocks
from perfmodel.workload.model import Workload
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.buildable import Buildable, build
from tests.workload.configs.real_configs import written

H100 = load_gpu("h100-sxm5-80gb")
SHARED = Shard(tensor=2, sequence_parallel=True)


def model(folder: Path, **fields: Any) -> Buildable:
    path = folder / "config.json"
    path.write_text(json.dumps(fields))
    return read_config(path)


def scans(workload: Workload) -> list[Scan]:
    return [layer.matrix for layer in workload.layers if isinstance(layer.matrix, Scan)]


@pytest.mark.parametrize(
    ("label", "layers"),
    [
        ("mamba2", 2),
        ("nemotron_h", 1),
        ("nemotron_h, by a pattern", 2),
        ("qwen3_next", 3),
        ("bamba", 2),
    ],
)
def test_ranks_share_heads_and_groups(label: str, layers: int, tmp_path: Path) -> None:
    """As Megatron-Core's MambaMixer has it: each rank runs its heads over all tokens."""
    whole = build(written(tmp_path, label), sequence_length=128)
    half = build(written(tmp_path, label), sequence_length=128, shard=SHARED)
    assert len(scans(whole)) == len(scans(half)) == layers
    for scan, own in zip(scans(whole), scans(half), strict=True):
        assert (2 * own.heads, 2 * own.groups) == (scan.heads, scan.groups)
        assert own.tokens == scan.tokens == 128
    convolved = {t.name: t.shape[0] for t in whole.tensors if t.name.endswith("conv1d.weight")}
    own_names = {t.name: t.shape[0] for t in half.tensors if t.name in convolved}
    assert own_names == {name: size // 2 for name, size in convolved.items()}
    out = next(layer for layer in half.layers if layer.name.endswith("out_proj"))
    assert [call.op for call in out.calls if call.group == "tensor"] == [
        "reduce_scatter",
        "all_gather",
    ]


@pytest.mark.parametrize(
    ("label", "shard", "field"),
    [
        ("qwen3_next", Shard(context=4), "context"),
        ("qwen3_next", Shard(context=2, library="torch"), "context"),
        ("mamba2, a group for each head, tied", Shard(context=16), "context"),
        ("jamba", Shard(context=2), "context"),
        ("qwen3_next", Shard(tensor=2, sequence_parallel=True, library="torch"), "tensor"),
        ("qwen3_next", Shard(tensor=4, sequence_parallel=True), "tensor"),
        ("jamba", SHARED, "tensor"),
    ],
)
def test_shares_that_no_library_has_are_refused(
    label: str, shard: Shard, field: str, tmp_path: Path
) -> None:
    """A quarter of two groups, of eight heads a 16th; PyTorch shares none, nobody Mamba 1's."""
    with pytest.raises(InputError) as caught:
        build(written(tmp_path, label), sequence_length=128, shard=shard)
    assert {fault.field for fault in caught.value.faults} == {field}


@pytest.mark.parametrize(("groups", "keys"), [(1, 2048), (2, 2048), (4, 4096)])
def test_ranks_of_a_context_swap_tokens_for_heads(groups: int, keys: int, tmp_path: Path) -> None:
    """Elements that two processes of Megatron-Core 0.16.1 were recorded to send over Gloo.

    ``MambaContextParallel`` of 8 heads of 16, states of 32, 64 tokens; backward is all of it, too.
    """
    mamba = {"model_type": "mamba2", "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 400}
    sizes = {"num_heads": 8, "head_dim": 16, "state_size": 32, "n_groups": groups}
    own = build(model(tmp_path, **mamba, **sizes), sequence_length=64, shard=Shard(context=2))
    whole = build(model(tmp_path, **mamba, **sizes), sequence_length=64)
    (layer,) = (each for each in own.layers if isinstance(each.matrix, Scan))
    calls = [(call.phase, call.place, call.elements) for call in layer.calls]
    assert {(call.op, call.group, call.ranks) for call in layer.calls} == {
        ("all_to_all", "context", 2)
    }
    inputs = [4096, 4096, keys, keys, 256]
    assert [size for phase, _, size in calls if phase == "forward"] == [*inputs, 4096]
    assert sorted(size for phase, _, size in calls if phase == "backward") == sorted(
        [*inputs, 4096]
    )
    assert [place for phase, place, _ in calls if phase == "forward"] == [*["before"] * 5, "after"]
    (scan,) = scans(own)
    assert (scan.tokens, scan.heads, scan.groups) == (64, 4, max(1, groups // 2))
    assert own.parameters == whole.parameters


def test_scans_of_a_context_share_the_work(tmp_path: Path) -> None:
    """Half of the operations and of what is kept, with half of the heads; keys travel by head."""
    shards = (Shard(), Shard(context=2))
    whole, own = (
        build(written(tmp_path, "qwen3_next"), sequence_length=128, shard=each) for each in shards
    )
    for one, half in zip(whole.layers, own.layers, strict=True):
        if isinstance(one.matrix, Scan):
            assert half.matmul_flops == pytest.approx(one.matmul_flops / 2)
            assert half.saved_elements == pytest.approx(one.saved_elements / 2)
            sent = [call.elements for call in half.calls if call.phase == "forward"]
            # queries, keys: 2 heads of 16; values, gates: 4 of 24; 4 of b and a; and the result
            assert sent == [64 * size for size in (32, 32, 96, 96, 4, 4, 96)]


def test_a_fused_scan_keeps_what_it_reads_and_puts_out(tmp_path: Path) -> None:
    """What mamba_split_conv1d_scan_combined saves: 2 x 128 + 2 x 32 + 8 and 128 numbers a token."""
    workload = build(written(tmp_path, "mamba2"), sequence_length=128)
    layer = next(layer for layer in workload.layers if isinstance(layer.matrix, Scan))
    assert layer.saved_elements == 128 * (2 * 128 + 2 * 32 + 8 + 128)


def test_scans_run_again_and_stay_in_bf16(tmp_path: Path) -> None:
    workload = build(written(tmp_path, "qwen3_next"), sequence_length=128)
    times = layer_times(workload, H100, batch=2, precision="bf16")
    again = add_recompute(workload, times, Recompute("full"))
    total_s = again.backward_s.sum() - times.backward_s.sum()
    blocks = [i for i, layer in enumerate(workload.layers) if "layers." in layer.name]
    assert total_s == pytest.approx(times.forward_s[blocks].sum())
    parts = recomputed_blocks(workload, Recompute("selective", modules=("moe", "mlp")))
    assert [workload.layers[part.start].name.rpartition("layers.")[2] for part in parts] == [
        "0.mlp.gate_proj",
        *(f"{i}.mlp.shared_expert.gate_proj" for i in range(1, 4)),
    ]
    narrow = float8_layers(workload, Float8())
    assert not any(isinstance(workload.layers[i].matrix, Scan) for i in narrow)


MAMBA2 = {"model_type": "mamba2", "vocab_size": 400, "num_hidden_layers": 2, "hidden_size": 64}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        (MAMBA2 | {"num_heads": 8, "head_dim": 32}, "head_dim"),
        (MAMBA2 | {"num_heads": 8, "head_dim": 16, "n_groups": 3}, "n_groups"),
        (MAMBA2 | {"num_heads": 8, "head_dim": 16, "use_bias": True}, "use_bias"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"}, "hybrid_override_pattern"),
        ({"model_type": "nemotron_h", "moe_latent_size": 64}, "moe_latent_size"),
        ({"model_type": "qwen3_next", "layer_types": ["full_attention"]}, "layer_types"),
    ],
)
def test_configurations_that_do_not_fit_are_refused(
    fields: dict[str, Any], field: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        model(tmp_path, **fields)
    assert {fault.field for fault in caught.value.faults} == {field}


def test_published_sizes(tmp_path: Path) -> None:
    """state-spaces/mamba2-1.3b, counted by hand; Qwen3-Next-80B-A3B has 79.7 billion."""
    fields = {"num_heads": 64, "n_groups": 1, "tie_word_embeddings": True, "vocab_size": 50288}
    mamba = model(tmp_path, model_type="mamba2", hidden_size=2048, num_hidden_layers=48, **fields)
    inner, channels = 4096, 4096 + 2 * 128
    maps = (inner + channels + 64) * 2048 + inner * 2048
    each = 2048 + maps + 5 * channels + 3 * 64 + inner
    whole = build(mamba, sequence_length=256).parameters
    assert whole == 50288 * 2048 + 48 * each + 2048
    qwen = build(model(tmp_path, model_type="qwen3_next"), sequence_length=256)
    assert qwen.parameters == pytest.approx(79.67e9, rel=1e-3)
