"""Recomputation by operations: what torch runs again under torchtitan's policy, and bounds."""

import pytest

from perfmodel.errors import InputError
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.memory.activations import stored_bytes
from perfmodel.workload.memory.recompute import NO_RECOMPUTE, Recompute, add_recompute, kept_results
from perfmodel.workload.model import scale_times
from perfmodel.workload.model_changes import fuse_by_hand
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.zoo import build_model
from tests.activations import activation_bytes

OPERATIONS, FULL = Recompute("operations"), Recompute("full")
MODELS = ("llama3.2-1b", "gpt2", "gemma2-2b", "t5-small")


@pytest.fixture(params=MODELS)
def model(request):
    return build_model(request.param, dtype="bf16", sequence_length=512)


def backward_s(model, recompute):
    times = layer_times(model, load_gpu("a100-sxm4-80gb"), batch=2, precision="bf16")
    return add_recompute(model, times, recompute).backward_s.sum()


def test_time_and_memory_lie_between_none_and_full(model):
    none, part, full = (backward_s(model, each) for each in (NO_RECOMPUTE, OPERATIONS, FULL))
    assert none < part < full
    kept = [
        activation_bytes(model, 2, "bf16", recompute=r) for r in (FULL, OPERATIONS, NO_RECOMPUTE)
    ]
    assert kept == sorted(kept)
    assert kept[0] < kept[1] < kept[2]


def test_part_of_a_block_runs_again():
    """All but the products and attention whose results are kept, of every block alike."""
    model = build_model("llama3.2-1b", dtype="bf16", sequence_length=512)
    times = layer_times(model, load_gpu("a100-sxm4-80gb"), batch=2, precision="bf16")
    block = range(1, 9)
    kept = kept_results(model, block, OPERATIONS)
    assert [model.layers[i].name.split(".", 3)[3] for i in kept] == [
        "self_attn.q_proj",
        "self_attn.v_proj",
        "mlp.gate_proj",
        "mlp.down_proj",
        "self_attn",
    ]
    again = add_recompute(model, times, OPERATIONS).backward_s - times.backward_s
    kept_s = sum(times.matrix_forward_s[i] for i in kept)
    assert again[8] == pytest.approx(times.forward_s[1:9].sum() - kept_s)
    assert again.sum() == pytest.approx(16 * again[8])


QKV = ("q_proj", "k_proj", "v_proj")


def test_named_results_are_kept_and_the_last_product_is_not_needed():
    """What MaxText's policies leave to run again: attention, o, gate and up of a gated block."""
    model = build_model("llama3.2-1b", dtype="bf16", sequence_length=512)
    times = layer_times(model, load_gpu("a100-sxm4-80gb"), batch=2, precision="bf16")
    keep = Recompute("operations", keep=QKV)
    again = add_recompute(model, times, keep).backward_s - times.backward_s
    names = [model.layers[i].name.rpartition(".")[2] for i in range(1, 9)]
    spared = [i for i, name in enumerate(names, 1) if name in (*QKV, "down_proj")]
    assert len(spared) == 4
    expected_s = times.forward_s[1:9].sum() - times.matrix_forward_s[spared].sum()
    assert again[8] == pytest.approx(expected_s)
    # results in bf16: 2 samples of 512 tokens, 2048 queries and 512 each of keys and values
    kept = activation_bytes(model, 2, "bf16", recompute=keep)
    full = activation_bytes(model, 2, "bf16", recompute=FULL)
    grown = 2 * 2 * 512 * (2048 + 512 + 512)
    assert kept - full == pytest.approx((16 - 1) * grown, rel=1e-6)
    more = Recompute("operations", keep=(*QKV, "o_proj", "self_attn"))
    assert backward_s(model, more) < backward_s(model, keep) < backward_s(model, FULL)
    assert activation_bytes(model, 2, "bf16", recompute=more) > kept


def test_a_name_that_no_product_has_is_named():
    model = build_model("llama3.2-1b", dtype="bf16", sequence_length=512)
    times = layer_times(model, load_gpu("a100-sxm4-80gb"), batch=2, precision="bf16")
    with pytest.raises(InputError, match=r"recompute\.keep\.1: found 'qkv'.*gate_proj"):
        add_recompute(model, times, Recompute("operations", keep=("q_proj", "qkv")))


def test_layer_times_without_products_are_refused():
    model = build_model("gpt2", sequence_length=64)
    times = layer_times(model, load_gpu("a100-sxm4-80gb"), batch=2, precision="bf16")
    from dataclasses import replace

    with pytest.raises(InputError, match="operations"):
        add_recompute(model, replace(times, matrix_forward_s=None), OPERATIONS)


def test_products_scale_with_the_times_of_layers():
    model = build_model("gpt2", sequence_length=64)
    times = layer_times(model, load_gpu("a100-sxm4-80gb"), batch=2, precision="bf16")
    assert scale_times(times, 2.0).matrix_forward_s.sum() == pytest.approx(
        2 * times.matrix_forward_s.sum()
    )
    assert (times.matrix_forward_s <= times.forward_s).all()


def test_torch_runs_every_second_product_again():
    """A gated block under a policy that saves every second product: four of seven are kept."""
    torch = pytest.importorskip("torch", reason="compares with the extra 'torch'")
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils.checkpoint import (
        CheckpointPolicy,
        checkpoint,
        create_selective_checkpoint_contexts,
    )

    class Count(TorchDispatchMode):
        products = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.products += func is torch.ops.aten.mm.default
            return func(*args, **(kwargs or {}))

    maps = torch.nn.ModuleList(torch.nn.Linear(8, 8, bias=False) for _ in range(7))

    def block(x):
        q, k, v = (maps[i](x) for i in range(3))
        x = x + maps[3](torch.tanh(q) * torch.tanh(k) * v)
        return x + maps[6](torch.nn.functional.silu(maps[4](x)) * maps[5](x))

    def contexts():
        seen = {"forward": 0, "recompute": 0}

        def policy(ctx, func, *args, **kwargs):
            if func is not torch.ops.aten.mm.default:
                return CheckpointPolicy.PREFER_RECOMPUTE
            mode = "recompute" if ctx.is_recompute else "forward"
            seen[mode] += 1
            keep = seen[mode] % 2 == 1
            return CheckpointPolicy.MUST_SAVE if keep else CheckpointPolicy.PREFER_RECOMPUTE

        return create_selective_checkpoint_contexts(policy)

    x = torch.randn(4, 8, requires_grad=True)
    output = checkpoint(block, x, use_reentrant=False, context_fn=contexts)
    with Count() as count:
        output.sum().backward()
    of_gradients = 2 * 7
    model = build_model("llama3.2-1b", sequence_length=64)
    products = len(kept_results(model, range(1, 9), OPERATIONS)) - 1
    assert count.products - of_gradients == 7 - products


# Korthikanti et al. 2022 (arXiv 2205.05198), section 4.1, bytes of s b h in 16 bits: of the MLP
# what GELU and the second map read, 8 each; what two norms put out for the maps, 2 each.
@pytest.mark.parametrize(("module", "less"), [("mlp", 16), ("layernorm", 4)])
def test_modules_keep_what_they_read(module, less):
    model = fuse_by_hand(build_model("gpt3-6.7b", dtype="bf16", sequence_length=2048))
    alone = Recompute("selective", modules=(module,))
    plain, kept = (
        stored_bytes(model, 1, "bf16", compiled=True, recompute=each)
        for each in (NO_RECOMPUTE, alone)
    )
    assert plain - kept == pytest.approx(32 * less * 2048 * 4096, rel=0.07)
    times = layer_times(model, load_gpu("a100-sxm4-80gb"), batch=1, precision="bf16")
    again_s = add_recompute(model, times, alone).backward_s.sum() - times.backward_s.sum()
    part = [i for i, layer in enumerate(model.layers) if layer.name.endswith(("widen", "narrow"))]
    products_s = times.matrix_forward_s[part].sum()
    assert again_s > products_s if module == "mlp" else 0 < again_s < products_s / 4


def test_modules_of_latent_attention_and_experts():
    """DeepSeek-V2's sizes: 128 heads of 192 and of 128 + 128 from latents; 6 experts of 1,536."""
    model, tokens = build_model("deepseek-v2", dtype="bf16", sequence_length=512), 512

    def dropped(module, blocks):
        alone = Recompute("selective", modules=(module,))
        kept = [stored_bytes(model, 1, "bf16", recompute=each) for each in (NO_RECOMPUTE, alone)]
        return (kept[0] - kept[1]) / blocks / tokens / 2

    assert dropped("mla_up_proj", 60) == 128 * (192 + 128 + 128)
    assert dropped("moe_act", 59) == 6 * 1536
    assert dropped("moe", 59) > 3 * 6 * 1536
    gpt2, absent = build_model("gpt2"), Recompute("selective", modules=("moe_act",))
    with pytest.raises(InputError, match=r"recompute\.modules.*moe_act"):
        activation_bytes(gpt2, 1, "bf16", recompute=absent)
