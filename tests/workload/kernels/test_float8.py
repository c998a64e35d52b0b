"""Linear layers in fp8: casts as torchao ran them, products against records, theory elsewhere."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.files import read_yaml
from perfmodel.scenario.sections.training import RECIPES
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload import compute_spread
from perfmodel.workload.kernels.device import make_device
from perfmodel.workload.kernels.float8_casts import (
    float8_cost,
    make_float8_pricing,
    narrow_gradient_s,
    narrow_product_s,
)
from perfmodel.workload.kernels.float8_layers import (
    Float8,
    check_float8,
    float8_casts,
    float8_layers,
    float8_modules,
)
from perfmodel.workload.kernels.kernel_times import product_s
from perfmodel.workload.kernels.shapes import MatrixProduct
from perfmodel.workload.memory.activations import NarrowInputs
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.zoo import build_model
from reports.kernels.float8 import errors, fit, layers
from tests.activations import activation_bytes

RECORD = json.loads(
    (Path(__file__).parents[2] / "training/recorded/float8.json").read_text(encoding="utf-8")
)
BYTES = {"bfloat16": 2, "float32": 4, "float64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1}
ROLES = {
    "input": ("rows", "depth"),
    "weight": ("depth", "columns"),
    "gradient": ("rows", "columns"),
}
H100, B200, A100, RTX = "h100-sxm5-80gb", "b200-sxm-180gb", "a100-sxm4-80gb", "rtx-5090"


def pricing(gpu, float8, *, compiled=True, accumulate=1):
    hardware = load_gpu(gpu)
    return make_float8_pricing(
        hardware,
        float8,
        make_device(hardware, "bf16", 2),
        compiled=compiled,
        weight_bytes=2,
        accumulate=accumulate,
    )


# ---------------------------------------------------------------- against torchao


def recorded_cast(recipe, part, role):
    """Kernels and bytes per element with which an operand was cast, scales of it included."""
    side = sorted(RECORD[name] for name in ROLES[role])
    elements, kernels, nbytes, open_scale = math.prod(side), 0, 0, False
    for name, reads, writes in RECORD["recipes"][recipe][part]:
        if name.startswith("aten.mm") or "ones_like" in name:
            continue
        whole = any(sorted(shape) == side for shape, _ in (*reads, *writes))
        scale = not any(len(shape) == 2 and min(shape) > 1 for shape, _ in (*reads, *writes))
        open_scale = whole or (scale and open_scale)
        if whole or open_scale:
            kernels += 1
        if whole:
            moved = (*reads, *writes)
            nbytes += sum(BYTES[kind] for shape, kind in moved if sorted(shape) == side)
    return kernels, nbytes, elements


@pytest.mark.parametrize("recipe", ["tensorwise", "rowwise", "rowwise_with_gw_hp"])
def test_casts_of_a_layer_without_a_compiler_are_those_that_torchao_ran(recipe):
    """Emulated products want no layout; real ones take a copy of two bytes for some operands."""
    casts = float8_casts(Float8("torchao", recipe), load_gpu(H100), compiled=False)
    planned = {
        ("forward", "input"): casts.input[0],
        ("forward", "weight"): casts.weight[0],
        ("backward", "input"): casts.input[1],
        ("backward", "weight"): casts.weight[1],
        ("backward", "gradient"): casts.gradient,
    }
    for (part, role), cast in planned.items():
        kernels, nbytes, _ = recorded_cast(recipe, part, role)
        copies = (cast.bytes - nbytes) / 2
        assert copies in (0, 1), (part, role, cast, nbytes)
        assert cast.kernels == kernels + copies, (part, role)
        assert cast.reads == 0


def test_products_have_the_shapes_that_torchao_multiplied():
    product = MatrixProduct(RECORD["rows"], RECORD["columns"], RECORD["depth"])
    expected = {"forward": [product], "backward": [product.input_gradient, product.weight_gradient]}
    for recipe, parts in RECORD["recipes"].items():
        for part, operations in parts.items():
            shapes = [
                MatrixProduct(left[0][0], right[0][1], left[0][1])
                for left, right in (
                    reads for name, reads, _ in operations if name.startswith("aten.mm")
                )
            ]
            wanted = [replace(product, strides=None) for product in expected[part]]
            assert shapes == wanted, (recipe, part)


# ---------------------------------------------------------------- against records


def test_fits_of_recorded_layers_and_their_errors():
    """Products of two GPUs: the shipped rate is that of the fit as bf16's is, and rows agree."""
    tables = {}
    for row in layers():
        tables.setdefault((row.gpu, row.recipe), []).append(row)
    for gpu in (H100, B200):
        fitted = {recipe: fit(tables[gpu, recipe][::7]) for recipe in ("tensorwise", "blockwise")}
        values = errors(tables[gpu, "tensorwise"], *fitted["tensorwise"])
        assert statistics.median(map(abs, values)) < 0.13
        share = fitted["blockwise"][0] / fitted["tensorwise"][0]
        casts = float8_casts(Float8(recipe="blockwise"), load_gpu(gpu), compiled=True)
        assert casts.rate == pytest.approx(share, abs=0.15)


# ---------------------------------------------------------------- theory


@given(
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.integers(1, 2000),
    st.sampled_from([H100, B200, "l40s"]),
)
def test_products_are_never_beyond_the_peak_and_never_more_than_twice_as_fast(m, n, k, gpu):
    product = MatrixProduct(16 * m, 16 * n, 16 * k)
    priced = pricing(gpu, Float8())
    narrow = narrow_product_s(product, priced)
    hardware = load_gpu(gpu)
    assert narrow >= product.flops / (
        hardware.peak_flops["fp8"] * hardware.matmul_efficiency["fp8"]
    )
    ratio = hardware.matmul_efficiency["bf16"] / hardware.matmul_efficiency["fp8"]
    assert product_s(product, priced.wide) <= 2.01 * max(1.0, 1 / ratio) * narrow


@pytest.mark.parametrize(
    ("gpu", "recipe", "nbytes"),
    # read once or twice in bf16, written once, and again for the products of Hopper
    [
        (H100, "delayed", 4),
        (B200, "delayed", 3),
        (H100, "current", 6),
        (B200, "current", 5),
        (H100, "blockwise", 4 + 2 / 32),
        (B200, "mxfp8", 4 + 2 / 32),
    ],
)
def test_bytes_of_casts_of_transformer_engine(gpu, recipe, nbytes):
    casts = float8_casts(Float8(recipe=recipe), load_gpu(gpu), compiled=True)
    for cast in (casts.input[0], casts.gradient):
        assert cast.nbytes(1.0, 2) == pytest.approx(nbytes)
    assert casts.copies == (1 if nbytes in (3, 5) else 2)


def test_cost_of_a_layer_is_its_products_and_its_casts():
    product = MatrixProduct(8192, 14336, 4096)
    priced = pricing(H100, Float8(recipe="delayed"))
    cost = float8_cost(product, priced, shares_input=False, passes=2)
    memory, ramp = priced.wide.memory_Bps, priced.wide.ramp_s
    forward = 4 * (8192 * 4096 + 14336 * 4096) / memory + 2 * ramp
    backward = 4 * 8192 * 14336 / memory + ramp
    products = [
        narrow_product_s(each, priced)
        for each in (product, product.input_gradient, product.weight_gradient)
    ]
    assert cost.forward_s == pytest.approx(products[0] + forward)
    assert cost.backward_s == pytest.approx(sum(products[1:]) + backward)
    assert (cost.forward_kernels, cost.backward_kernels) == (3, 3)
    shared = float8_cost(product, priced, shares_input=True, passes=2)
    saved = 4 * 8192 * 4096 / memory + ramp
    assert cost.forward_s - shared.forward_s == pytest.approx(saved)


def test_weights_are_cast_in_the_first_micro_batch_alone():
    product = MatrixProduct(2048, 4096, 4096)
    once, each = (
        float8_cost(
            product, pricing(H100, Float8(), accumulate=n), shares_input=False, passes=2
        ).forward_s
        for n in (1, 8)
    )
    weight_s = 4 * 4096 * 4096 / pricing(H100, Float8()).wide.memory_Bps
    ramp = pricing(H100, Float8()).wide.ramp_s
    assert once - each == pytest.approx(7 / 8 * (weight_s + ramp))
    torchao = Float8("torchao", "tensorwise")
    assert pricing(H100, torchao, accumulate=8).weight_share == 1.0


def test_gradients_of_rowwise_layers_are_scaled_after_tensorwise_products():
    """Read and written once more in bf16 where that is compiled; torchao's kernel is quicker so."""
    product = MatrixProduct(8192, 14336, 4096)
    rowwise, tensorwise = (
        pricing(H100, Float8("torchao", recipe)) for recipe in ("rowwise", "tensorwise")
    )
    gradient = product.weight_gradient
    rescaled_s = 4 * 14336 * 4096 / rowwise.wide.memory_Bps + rowwise.wide.ramp_s
    plain_s = narrow_product_s(gradient, tensorwise)
    assert narrow_gradient_s(gradient, tensorwise) == plain_s
    assert narrow_gradient_s(gradient, rowwise) == pytest.approx(plain_s + rescaled_s)
    assert narrow_product_s(product, rowwise) > narrow_product_s(product, tensorwise)


def test_the_gradient_of_the_weight_stays_wide_where_the_recipe_says_so():
    product = MatrixProduct(8192, 8192, 8192)
    costs = [
        float8_cost(product, pricing(H100, Float8("torchao", recipe)), shares_input=False, passes=1)
        for recipe in ("rowwise", "rowwise_with_gw_hp")
    ]
    wide = product_s(product.weight_gradient, pricing(H100, Float8()).wide)
    assert costs[1].backward_s > wide > costs[0].backward_s - 1e-3


# ---------------------------------------------------------------- which layers, which GPUs


def test_layers_of_llama_in_fp8():
    model = build_model("llama3.2-1b", dtype="bf16", sequence_length=512)
    places = float8_layers(model, Float8())
    kinds = Counter(model.layers[place].name.rpartition(".")[2] for place in places)
    parts = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    assert kinds == dict.fromkeys(parts, 16)
    assert float8_modules(model, Float8()) == 4 * 16  # as Megatron-Core joins them
    filtered = Float8("torchao", "tensorwise", filter_fqns=("k_proj", "v_proj", "lm_head"))
    assert len(float8_layers(model, filtered)) == 5 * 16
    ends = replace(Float8(recipe="current"), start_in_bf16=1, end_in_bf16=2)
    assert len(float8_layers(model, ends)) == 7 * 13


@pytest.mark.parametrize(
    ("float8", "message"),
    [
        (Float8("torchao", "tensorwise", filter_fqns=("router",)), "filter_fqns.0: found 'router'"),
        (Float8(recipe="current", start_in_bf16=8, end_in_bf16=8), "fewer than 16 blocks"),
    ],
)
def test_layers_that_no_model_has_are_refused(float8, message):
    with pytest.raises(InputError, match=message):
        float8_layers(build_model("llama3.2-1b", sequence_length=512), float8)


def test_models_without_linear_layers_in_blocks_are_refused():
    with pytest.raises(InputError, match="linear layers in repeated blocks"):
        check_float8(build_model("resnet18"), Float8())
    with pytest.raises(InputError, match="linear layers in repeated blocks"):
        layer_times(build_model("resnet18"), load_gpu("h100-sxm5-80gb"), batch=8, precision="fp8")


@pytest.mark.parametrize(
    ("gpu", "recipes"),
    [
        (H100, {"delayed", "current", "blockwise"}),
        ("l40s", {"delayed", "current"}),
        (B200, {"delayed", "current", "blockwise", "mxfp8", "nvfp4"}),
        (RTX, {"delayed", "current", "blockwise"}),
        ("mi300x", {"delayed", "current"}),
        ("mi355x", {"delayed", "current", "mxfp8", "mxfp4"}),
    ],
)
def test_recipes_of_a_gpu(gpu, recipes):
    for recipe in RECIPES["transformer_engine"]:
        if recipe in recipes:
            assert float8_casts(Float8(recipe=recipe), load_gpu(gpu), compiled=True)
        else:
            with pytest.raises(
                InputError, match=f"found '{recipe}'; allowed: 'delayed', 'current'"
            ):
                float8_casts(Float8(recipe=recipe), load_gpu(gpu), compiled=True)


def test_nvfp4_reads_once_more_for_the_hadamard_transform():
    """Transformer Engine's quantizer.cpp: both greatest values, rows, then transformed columns.

    Weights are not transformed: one kernel casts both ways.
    """
    casts = float8_casts(Float8(recipe="nvfp4"), load_gpu(B200), compiled=True)
    written = 2 * (4 / 8 + 1 / 16)
    assert casts.input[0].nbytes(100, 2) == 100 * (3 * 2 + written)
    assert casts.gradient.nbytes(100, 2) == 100 * (3 * 2 + written)
    assert casts.weight[0].nbytes(100, 2) == 100 * (2 * 2 + written)
    assert (casts.input[0].kernels, casts.weight[0].kernels) == (3, 2)


def test_mxfp4_casts_both_ways_at_once():
    """ROCm's cast_transpose_mxfp4_shuffled: bf16 read once, 4 bits and a byte for 32, twice."""
    casts = float8_casts(Float8(recipe="mxfp4"), load_gpu("mi355x"), compiled=True)
    for cast in (casts.input[0], casts.weight[0], casts.gradient):
        assert cast.nbytes(96, 2) == 96 * 2 + 2 * (96 / 2 + 96 / 32)
        assert cast.kernels == 1
    assert casts.operand_bytes * 96 == 96 / 2 + 96 / 32


def test_a_gpu_without_fp8_refuses_it():
    model = build_model("llama3.2-1b", dtype="bf16", sequence_length=512)
    with pytest.raises(InputError, match=r"precision: found 'fp8'; allowed: .*a100"):
        layer_times(model, load_gpu(A100), batch=1, precision="fp8")


# ---------------------------------------------------------------- whole models


def test_what_is_not_fp8_takes_as_long_as_in_bf16():
    model = build_model("llama3.2-1b", dtype="bf16", sequence_length=2048)
    wide, narrow = (
        layer_times(model, load_gpu(H100), batch=1, precision=precision, compiled=True)
        for precision in ("bf16", "fp8")
    )
    places = sorted(float8_layers(model, Float8()))
    rest = np.setdiff1d(np.arange(len(model.layers)), places)
    assert (wide.forward_s[rest] == narrow.forward_s[rest]).all()
    assert (wide.backward_s[rest] == narrow.backward_s[rest]).all()
    assert narrow.matrix_forward_s[places].sum() < wide.matrix_forward_s[places].sum()
    assert wide.optimizer_s == narrow.optimizer_s


def test_inputs_are_kept_in_fp8_and_not_twice():
    """Of a block: what norms and the gate put out in a byte; the input of o in one more byte."""
    model = build_model("llama3.2-1b", dtype="bf16", sequence_length=512)
    places = float8_layers(model, Float8())
    wide = activation_bytes(model, 2, "bf16")
    kept = activation_bytes(model, 2, "bf16", narrow=NarrowInputs(places, keeps_cast=True))
    tokens, width, mlp = 2 * 512, 2048, 8192
    assert wide - kept == pytest.approx(16 * tokens * (2 * width + mlp - width))
    same = activation_bytes(model, 2, "bf16", narrow=NarrowInputs(places))
    assert same == wide  # torchao keeps what it casts


def test_autocast_makes_no_copies_of_weights_that_are_cast_to_fp8():
    model = build_model("llama3.2-1b", dtype="fp32", sequence_length=512)
    places = float8_layers(model, Float8())
    wide = activation_bytes(model, 1, "bf16")
    narrow = activation_bytes(model, 1, "bf16", narrow=NarrowInputs(places))
    weights = sum(model.layers[place].weight_elements for place in places)
    assert wide - narrow == 2 * weights


def test_fp8_is_as_much_less_sure_as_its_products_are() -> None:
    """Widths of steps come from none in fp8: what records of products differ by is added."""
    model = build_model("llama3-8b")
    gpu = load_gpu("h100-sxm5-80gb")
    wide, narrow = (
        layer_times(model, gpu, batch=1, precision=precision, optimizer="adamw")
        for precision in ("bf16", "fp8")
    )
    spread = read_yaml(Path(compute_spread.__file__).parent / "kernels/spread.yaml")
    sds = [spread["kinds"][f"product {name}"]["seen"]["log_sd"] for name in ("fp8", "bf16")]
    most = 1.2816 * math.sqrt(sds[0] ** 2 - sds[1] ** 2)
    added = math.sqrt(math.log(narrow.spread[1]) ** 2 - math.log(wide.spread[1]) ** 2)
    in_fp8 = sorted(float8_layers(model, Float8()))
    share = sum(float(t[in_fp8].sum()) for t in (narrow.matrix_forward_s, narrow.matrix_backward_s))
    share /= float(narrow.forward_s.sum() + narrow.backward_s.sum())
    assert 0.2 < share < 0.9
    assert added == pytest.approx(most * share, rel=1e-3)
    assert narrow.spread[0] == pytest.approx(1 / narrow.spread[1])


# Peaks of 4-bit products: 9 and 13.5 PFLOP/s of HGX B200's and B300's GPUs (NVIDIA's data sheets).
@pytest.mark.parametrize(("gpu", "peak"), [(B200, 9e15), ("b300-sxm-288gb", 13.5e15)])
def test_products_of_four_bits_reach_the_same_share_of_their_peak(gpu, peak):
    large = MatrixProduct(16384, 16384, 16384)
    costs = [
        float8_cost(
            large, pricing(gpu, Float8("transformer_engine", recipe)), shares_input=False, passes=2
        )
        for recipe in ("delayed", "nvfp4")
    ]
    eight = load_gpu(gpu).peak_flops["fp8"]
    assert costs[0].products_s[0] / costs[1].products_s[0] == pytest.approx(peak / eight, rel=0.03)
    casts = [cost.forward_s - cost.products_s[0] for cost in costs]
    assert casts[1] > casts[0]  # each tensor is read for its greatest value first
