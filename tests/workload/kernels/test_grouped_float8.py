"""Experts in fp8: measured grouped products, casts and padding by hand, layers and weights."""

from __future__ import annotations

import statistics
from collections import Counter
from dataclasses import replace

import pytest

from perfmodel.errors import InputError
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.training.memory_use import Setup, add_float8_copies, narrow_inputs, replicated
from perfmodel.workload.kernels.device import make_device
from perfmodel.workload.kernels.float8_casts import (
    Float8Pricing,
    grouped_float8_cost,
    make_float8_pricing,
    narrow_product_s,
    padded_mean,
)
from perfmodel.workload.kernels.float8_layers import (
    Float8,
    float8_layers,
    float8_modules,
    float8_weights,
)
from perfmodel.workload.kernels.kernel_times import elementwise_s
from perfmodel.workload.kernels.shapes import WIDE_BYTES, GroupedProduct, MatrixProduct
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo import build_model
from perfmodel.workload.zoo.expert_decoder import expert_decoder
from perfmodel.workload.zoo.expert_settings import ExpertSettings
from tests.activations import activation_bytes

H800, H100, B200 = "h800-sxm5-80gb", "h100-sxm5-80gb", "b200-sxm-180gb"

# Groups, rows of each, columns, depth, TFLOP/s: DeepGEMM's contiguous layout on an H800, and two of
# its plain products (deepseek-ai/DeepGEMM, README of February 2025).
DEEP_GEMM = (
    (4, 8192, 4096, 7168, 1297),
    (4, 8192, 7168, 2048, 1099),
    (8, 4096, 4096, 7168, 1288),
    (8, 4096, 7168, 2048, 1093),
    (1, 4096, 4096, 7168, 1304),
    (1, 4096, 7168, 2048, 1025),
)

# Groups, columns, depth, microseconds of forward and backward of 128,000 rows with their casts:
# mxfp8 on a B200 (pytorch/ao, torchao/prototype/moe_training/README.md). The rate rests on them.
MXFP8 = (
    (1, 8192, 5120, 23867.0),
    (2, 8192, 5120, 23359.0),
    (4, 8192, 5120, 23945.5),
    (8, 8192, 5120, 22170.6),
    (1, 2048, 7168, 10996.0),
    (2, 2048, 7168, 11283.4),
    (4, 2048, 7168, 9919.36),
    (8, 2048, 7168, 10397.2),
)


def pricing(gpu: str, float8: Float8, accumulate: int = 1) -> Float8Pricing:
    hardware = load_gpu(gpu)
    return make_float8_pricing(
        hardware,
        float8,
        make_device(hardware, "bf16", 2),
        compiled=True,
        weight_bytes=2,
        accumulate=accumulate,
    )


# ---------------------------------------------------------------- against records


def test_products_of_all_experts_at_once_are_as_quick_as_deep_gemm_measured() -> None:
    priced = pricing(H800, Float8(recipe="blockwise"))
    for groups, rows, columns, depth, teraflops in DEEP_GEMM:
        grouped = GroupedProduct(groups * rows, columns, depth, groups)
        own_s = grouped_float8_cost(grouped, priced, passes=2).products_s[0]
        assert grouped.flops / own_s / 1e12 == pytest.approx(teraflops, rel=0.16)
        plain_s = narrow_product_s(MatrixProduct(rows, columns, depth), priced)
        assert own_s == pytest.approx(groups * plain_s, rel=0.06)


def test_products_in_mxfp8_against_measured_ones() -> None:
    priced, ratios = pricing(B200, Float8("torchao", "mxfp8")), []
    for groups, columns, depth, microseconds in MXFP8:
        cost = grouped_float8_cost(
            GroupedProduct(128_000, columns, depth, groups), priced, passes=2
        )
        ratios.append((cost.forward_s + cost.backward_s) * 1e6 / microseconds)
    assert all(0.85 < ratio < 1.2 for ratio in ratios)
    assert statistics.fmean(ratios) == pytest.approx(1, abs=0.06)


def test_kernels_fused_with_the_activation_against_a_measured_layer() -> None:
    """Both maps of 64 experts, forward and backward, with casts of both ends (of no weight).

    cuDNN's kernels on a GB200: 8.777 ms (marin-community/marin issue 7282, MXFP8-004a). The rate
    rests on it.
    """
    rows, groups, width, inner = 262_144, 64, 2560, 1280
    priced = pricing("gb200-186gb", Float8(recipe="mxfp8"), accumulate=1_000_000)
    maps = ((2 * inner, width, "gradient"), (width, inner, "input"))
    costs = [
        grouped_float8_cost(
            GroupedProduct(rows, columns, depth, groups, cast_before=before),  # type: ignore[arg-type]
            priced,
            passes=2,
        )
        for columns, depth, before in maps
    ]
    assert sum(c.forward_s + c.backward_s for c in costs) == pytest.approx(8.777e-3, rel=0.03)
    apart = [
        grouped_float8_cost(GroupedProduct(rows, *sides, groups), priced, passes=2)
        for *sides, _ in maps
    ]
    slower = sum(c.forward_s + c.backward_s for c in apart) / 8.777e-3
    assert 1.3 < slower < 2.0  # NVIDIA says so of its kernels (blog of 2026-06-15)


def test_what_a_fused_kernel_has_cast_is_not_cast_again() -> None:
    """A kernel of rows less: of the second map's input forward, the first's result backward."""
    priced = pricing("gb200-186gb", Float8(recipe="mxfp8"))
    apart, of_input, of_gradient = (
        grouped_float8_cost(
            GroupedProduct(4096, 512, 512, 8, cast_before=before),  # type: ignore[arg-type]
            priced,
            passes=2,
        )
        for before in (None, "input", "gradient")
    )
    fused = (of_input, of_gradient)
    assert [apart.forward_kernels - each.forward_kernels for each in fused] == [1, 0]
    assert [apart.backward_kernels - each.backward_kernels for each in fused] == [0, 1]


def test_only_blackwell_has_kernels_fused_with_the_activation() -> None:
    grouped = GroupedProduct(1024, 512, 512, 8, cast_before="input")
    with pytest.raises(InputError, match=r"implementation: found 'fused'; allowed: .*NVIDIA"):
        grouped_float8_cost(grouped, pricing("mi355x", Float8(recipe="mxfp8")), passes=2)


# ---------------------------------------------------------------- by hand


@pytest.mark.parametrize(
    ("gpu", "float8", "single", "rows", "padded"),
    # 16 of cuBLAS, 32 of mxfp8's blocks, 128 of nvfp4's transform and of DeepGEMM's blocks
    [
        (H100, Float8(), False, 100, 112),
        (H100, Float8(recipe="blockwise"), False, 100, 112),
        (H100, Float8(recipe="blockwise"), True, 100, 128),
        (B200, Float8(recipe="mxfp8"), False, 100, 128),
        (B200, Float8("torchao", "mxfp8"), True, 65, 96),
        (H100, Float8("torchao", "rowwise"), True, 65, 80),
        (B200, Float8(recipe="nvfp4"), False, 129, 256),
        (H100, Float8(), False, 48, 48),
    ],
)
def test_rows_of_an_expert_are_filled_up(
    gpu: str, float8: Float8, single: bool, rows: int, padded: int
) -> None:
    priced = pricing(gpu, float8)
    grouped = GroupedProduct(6 * rows, 512, 256, 6, single)
    assert padded_mean(grouped, priced) == MatrixProduct(padded, 512, 256, 6)
    full = grouped_float8_cost(replace(grouped, rows=6 * padded), priced, passes=2)
    assert grouped_float8_cost(grouped, priced, passes=2) == full


@pytest.mark.parametrize(
    ("gpu", "float8", "single", "of_rows", "forward", "backward"),
    # kernels of casts of rows; bytes an element of rows and weights forward, of gradients backward
    [
        (H100, Float8(), False, 1, 4, 4),  # delayed scaling casts the rows of all experts at once
        (B200, Float8(), False, 8, 3, 3),  # without transposed copies each expert's apart
        (H100, Float8(recipe="blockwise"), False, 8, 4.0625, 4.0625),
        (B200, Float8(recipe="mxfp8"), False, 8, 4.0625, 4.0625),
    ],
)
def test_casts_of_experts(
    gpu: str, float8: Float8, single: bool, of_rows: int, forward: float, backward: float
) -> None:
    rows, columns, depth, groups = 8 * 2048, 1024, 4096, 8
    priced = pricing(gpu, float8, accumulate=4)
    cost = grouped_float8_cost(
        GroupedProduct(rows, columns, depth, groups, single), priced, passes=2
    )
    # one call issues all of a kind, of which the first takes what a kernel of a layer does, and the
    # others 7.1 us instead of 38 (own measurement on the host of an H100)
    issued = (1 + (groups - 1) / 5.3) / groups
    launched = groups + of_rows + groups // 4  # weights once in 4 micro-batches
    assert cost.forward_kernels == round(issued * launched)
    assert cost.backward_kernels == round(issued * (2 * groups + of_rows))
    weights = groups * columns * depth / 4
    weight_bytes = 4.0005 if float8.recipe == "blockwise" else forward
    nbytes = forward * rows * depth + weight_bytes * weights
    ramps_s = (of_rows + groups / 4) * priced.wide.ramp_s
    cast_s = elementwise_s(nbytes, 0, priced.wide) + ramps_s
    assert cost.forward_s - cost.products_s[0] == pytest.approx(cast_s, rel=1e-9)
    gradient_s = elementwise_s(backward * rows * columns, of_rows, priced.wide)
    assert cost.backward_s - cost.products_s[1] == pytest.approx(gradient_s, rel=1e-9)


@pytest.mark.parametrize(
    ("settings", "copies"),
    [
        (ExpertSettings(implementation="per-expert"), True),
        (ExpertSettings(implementation="per-expert", router_padding=True), False),
        (ExpertSettings(implementation="per-expert", capacity=1.0, pad_to_capacity=True), False),
        (ExpertSettings(implementation="grouped"), False),
    ],
)
def test_rows_are_copied_to_fill_experts_up(settings: ExpertSettings, copies: bool) -> None:
    """Read and written once before the first map and once behind the last, forward and backward.

    TransformerEngine's ``Fp8Padding`` and ``Fp8Unpadding``, which Megatron-Core's ``TEGroupedMLP``
    leaves out where the router has filled rows up.
    """
    model = expert_decoder("mixtral-8x7b", dtype="bf16", sequence_length=512, settings=settings)
    layer = next(each for each in model.layers if "experts.gate_up_proj" in each.name)
    assert isinstance(layer.matrix, GroupedProduct)
    rows = layer.matrix.padded_elements / 4096
    assert rows == (2 * 512 if copies else 0)
    priced = pricing(H100, Float8())
    bare = grouped_float8_cost(replace(layer.matrix, padded_elements=0.0), priced, passes=2)
    cost = grouped_float8_cost(layer.matrix, priced, passes=2)
    added_s = 2 * 2 * layer.matrix.padded_elements / priced.wide.memory_Bps + priced.wide.ramp_s
    assert cost.forward_s - bare.forward_s == pytest.approx(copies * added_s)
    assert cost.backward_s - bare.backward_s == pytest.approx(copies * added_s)
    assert cost.forward_kernels - bare.forward_kernels == copies


def test_an_expert_with_a_kernel_of_its_own_takes_what_a_plain_product_does() -> None:
    """1.15 times as long in a row of cold ones, 9 us at least (kernel_constants.yaml)."""
    priced = pricing(H100, Float8())
    for rows, columns in ((4096, 8192), (16, 64)):
        cost = grouped_float8_cost(
            GroupedProduct(8 * rows, columns, 4096, 8, single_kernel=False), priced, passes=2
        )
        own_s = narrow_product_s(MatrixProduct(rows, columns, 4096), priced)
        assert cost.products_s[0] == pytest.approx(8 * max(9e-6, 1.15 * own_s), rel=1e-9)


# ---------------------------------------------------------------- of a model

MIXTRAL_PARTS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"]


def test_routers_stay_in_bf16_and_experts_do_not() -> None:
    mixtral = build_model("mixtral-8x7b", dtype="bf16", sequence_length=512)
    kinds = Counter(
        mixtral.layers[place].name.rpartition(".")[2] for place in float8_layers(mixtral, Float8())
    )
    assert kinds == dict.fromkeys(MIXTRAL_PARTS, 32)
    # qkv and o, and both maps of each of 8 experts, each with greatest values of its own
    assert float8_modules(mixtral, Float8()) == 32 * (2 + 2 * 8)
    attention = 2 * 4096 * 4096 + 2 * 4096 * 1024
    weights = sum(mixtral.tensors[index].numel for index in float8_weights(mixtral, Float8()))
    assert weights == 32 * (attention + 8 * 3 * 4096 * 14336)


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise_with_gw_hp"])
def test_torchao_converts_linear_modules_alone_with_recipes_of_them(recipe: str) -> None:
    mixtral = build_model("mixtral-8x7b", dtype="bf16", sequence_length=512)
    names = {mixtral.layers[p].name for p in float8_layers(mixtral, Float8("torchao", recipe))}
    assert len(names) == 32 * 4
    assert not any("experts" in name for name in names)
    experts_alone = Float8("torchao", "rowwise", filter_fqns=("attn", "lm_head"))
    places = float8_layers(mixtral, experts_alone)
    assert {mixtral.layers[p].name.rpartition(".")[2] for p in places} == set(MIXTRAL_PARTS[-2:])


def test_copies_and_histories_of_the_experts_that_a_rank_holds() -> None:
    shard = Shard(expert=4)
    share = build_model(
        "mixtral-8x7b",
        dtype="bf16",
        sequence_length=512,
        shard=shard,
        experts=ExpertSettings(implementation="per-expert"),
    )
    setup = Setup(share, "bf16", "adamw", 4, 1, float8=Float8(), float8_copies=2)
    plain = replicated(setup)
    added = add_float8_copies(setup, plain).parameters_bytes - plain.parameters_bytes
    weights = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 2 * 3 * 4096 * 14336)
    values = 5 * 32 * (2 + 2 * 2)  # of forward and backward, of two experts
    assert added == 2 * weights + WIDE_BYTES * values * 1024
    # a cast is kept in place of what it was cast from: a byte less of each element that maps read,
    # but a byte more of what attention puts out, which it keeps itself
    wide, narrow = (
        activation_bytes(share, 1, "bf16", narrow=narrow_inputs(share, float8))
        for float8 in (None, Float8())
    )
    rows = 512 * 2  # of a sample of each of four ranks, to two of eight experts
    assert wide - narrow == 32 * (512 * 4096 - 512 * 4096 + rows * (4096 + 14336))


def test_fp8_makes_experts_quicker_and_never_beyond_twice() -> None:
    share = build_model(
        "mixtral-8x7b",
        dtype="bf16",
        sequence_length=4096,
        shard=Shard(expert=8),
        experts=ExpertSettings(implementation="per-expert"),
    )
    times = {
        precision: layer_times(share, load_gpu(H100), batch=1, precision=precision, compiled=True)
        for precision in ("bf16", "fp8")
    }
    for place, layer in enumerate(share.layers):
        wide, narrow = (times[p].forward_s[place] for p in ("bf16", "fp8"))
        if ".experts." in layer.name:
            assert 1.0 < wide / narrow < 2.0
        elif layer.name.endswith(".gate"):
            assert wide == narrow
