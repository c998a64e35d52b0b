"""Times of single kernels: bounds, growth with size, and errors against recorded kernels."""

from __future__ import annotations

import csv
import statistics
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.topology.templates.gpus import gpu_names, load_gpu
from perfmodel.workload.kernels.device import Device, make_device
from perfmodel.workload.kernels.kernel_times import (
    convolution_passes_s,
    convolution_s,
    elementwise_s,
    feature_map_s,
    forward_product,
    fused_attention_s,
    input_gradient_product,
    multi_tensor_s,
    norm_s,
    product_s,
    weight_gradient_product,
)
from perfmodel.workload.kernels.shapes import (
    ALIGNED,
    Attention,
    Convolution,
    MatrixProduct,
    batched,
)
from perfmodel.workload.model import ITEM_BYTES
from perfmodel.workload.zoo import build_model
from reports.kernels.left_out import log_error
from reports.kernels.records import attention_records, memory_records, product_records

GPUS = [name for name in gpu_names() if load_gpu(name).generation != "cpu"]
SIZES = st.integers(1, 20_000)


def device(name: str = "a100-sxm4-80gb", precision: str = "bf16") -> Device:
    return make_device(load_gpu(name), precision, ITEM_BYTES[precision])


DEVICES = [
    device(name, precision)
    for name in ("a100-sxm4-80gb", "h100-sxm5-80gb", "v100-sxm2-16gb", "rtx-3090", "t4")
    for precision in ("fp32", "fp16")
]


@given(SIZES, SIZES, SIZES, st.sampled_from(DEVICES))
def test_no_product_beats_the_peak_or_the_memory(m, n, k, on):
    product = MatrixProduct(m, n, k)
    seconds = product_s(product, on)
    assert seconds >= product.flops / on.matrix_flops
    assert seconds >= on.item_bytes * product.elements / on.memory_Bps


@given(SIZES, SIZES, SIZES, st.integers(0, 2), st.integers(1, 3000), st.sampled_from(DEVICES))
def test_a_larger_product_takes_no_less_time(m, n, k, side, more, on):
    sizes = [8 * m, 8 * n, 8 * k]  # of rows that are as well aligned
    smaller = MatrixProduct(*sizes)
    sizes[side] += 8 * more
    assert product_s(MatrixProduct(*sizes), on) >= product_s(smaller, on)


@pytest.mark.parametrize(("columns", "share"), [(50_304, 0.144), (50_260, 0.25), (50_258, 0.5)])
def test_rows_that_are_not_aligned_are_loaded_in_parts(columns, share):
    """A load moves 16 bytes where it can; a load of 4 or 8 does twice or four times that of 2."""
    h100 = make_device(load_gpu("h100-sxm5-80gb"), "bf16", 2)
    for gradient in ("input_gradient", "weight_gradient"):
        odd, product = (
            getattr(MatrixProduct(4096, each, 1024), gradient) for each in (50_257, columns)
        )
        assert product_s(product, h100) / product_s(odd, h100) == pytest.approx(share, rel=0.03)


def test_a_vocabulary_of_an_odd_number_of_words_on_a_measured_gpu():
    """Measured: 50,257 words at an eighth of the usual rate (reports/experiments/one_gpu)."""
    path = Path("reports/experiments/one_gpu/measured/h100_kernels.csv")
    h100 = make_device(load_gpu("h100-sxm5-80gb"), "bf16", 2)
    errors = {True: [], False: []}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["kind"] == "product" and row["precision"] == "bf16":
                shape = MatrixProduct(int(row["rows"]), int(row["columns"]), int(row["depth"]))
                error = product_s(shape, h100) / (1e-6 * float(row["time_us"])) - 1
                errors[shape.columns == 50_257].append(abs(error))
    assert statistics.median(errors[True]) < 0.1
    assert statistics.median(errors[False]) < 0.1


def test_waves_of_tiles():
    # 108 multiprocessors: 108 tiles of 256 x 128 are one wave, one more tile a second wave
    on = device()
    depth = 8192
    one, two = (product_s(MatrixProduct(256, 128 * tiles, depth), on) for tiles in (108, 109))
    assert two / one > 1.2
    # a deep product of few tiles is split: it takes far less than one multiprocessor would
    deep = MatrixProduct(128, 128, 1 << 20)
    alone_s = deep.flops / (on.matrix_flops / on.multiprocessors)
    assert product_s(deep, on) < alone_s / 30


def test_gradients_of_a_product_do_its_work():
    product = MatrixProduct(512, 3072, 768)
    for gradient in (product.input_gradient, product.weight_gradient):
        assert gradient.flops == product.flops
        assert gradient.elements == product.elements
    assert product.input_gradient == MatrixProduct(512, 768, 3072)
    assert product.weight_gradient == MatrixProduct(3072, 768, 512, strides=(3072, 768))


def test_products_of_a_convolution():
    # ResNet-50's 3 x 3 with stride 2: forward and the gradient of the weight do the same work, the
    # gradient of the input too, though it has four times the pixels
    conv = Convolution(128, 128, (56, 56), (28, 28), (3, 3), images=32)
    forward, weight = forward_product(conv), weight_gradient_product(conv)
    assert forward == MatrixProduct(32 * 28 * 28, 128, 128 * 9, strides=ALIGNED)
    assert weight.flops == forward.flops
    assert input_gradient_product(conv).flops == forward.flops
    on = device()
    for product in (forward, weight):
        assert convolution_s(conv, product, on) >= forward.flops / on.matrix_flops


def test_a_convolution_reads_images_not_their_unfolded_product():
    conv = Convolution(64, 64, (112, 112), (112, 112), (7, 7), images=8)
    on = replace(device(), memory_Bps=1e9)  # so slow that memory decides
    nbytes = 2 * (conv.in_elements + conv.out_elements + conv.weight_elements)
    assert convolution_s(conv, forward_product(conv), on) == pytest.approx(nbytes / 1e9, rel=1e-3)


@given(st.integers(1, 64), st.integers(16, 32_768), st.sampled_from([32, 64, 80, 96, 128, 256]))
def test_fused_attention(sequences, tokens, head_size):
    on = device()
    full = Attention(tokens, 16, 16, head_size, causal=False, sequences=sequences)
    masked = replace(full, causal=True)
    seconds = fused_attention_s(full, on)
    assert seconds >= full.flops / on.matrix_flops
    assert fused_attention_s(masked, on) <= seconds
    assert fused_attention_s(masked, on) >= 0.5 * full.flops / on.matrix_flops
    assert fused_attention_s(full, on, backward=True) >= seconds
    longer = replace(full, tokens=tokens + 100)
    assert fused_attention_s(longer, on) >= seconds


@pytest.mark.parametrize(
    ("sequences", "tokens", "heads", "kv_heads", "size", "causal", "forward_us", "backward_us"),
    [
        (8, 512, 16, 16, 64, False, 26.7, 94.5),
        (64, 512, 16, 16, 64, False, 171.6, 693.8),
        (32, 1024, 12, 12, 64, True, 151.7, 557.4),
        (1, 2048, 32, 8, 128, True, 83.4, 289.0),
        (4, 2048, 32, 8, 128, True, 261.6, 934.4),
        (1, 8192, 32, 8, 128, True, 905.5, 2901.1),
        (4, 4096, 32, 32, 64, True, 653.8, 1871.9),
        (128, 197, 12, 12, 64, False, 92.1, 349.9),
    ],
)
def test_attention_on_an_h100(
    sequences, tokens, heads, kv_heads, size, causal, forward_us, backward_us
):
    """Own measurement (reports/experiments/one_gpu): few tiles, tiles that are not full."""
    shape = Attention(tokens, heads, kv_heads, size, causal, sequences)
    on = device("h100-sxm5-80gb")
    assert 1e6 * fused_attention_s(shape, on) == pytest.approx(forward_us, rel=0.14)
    backward_s = fused_attention_s(shape, on, backward=True)
    assert 1e6 * backward_s == pytest.approx(backward_us, rel=0.1)


def test_parts_of_a_split_product_are_added_by_another_kernel():
    on = replace(device(), memory_Bps=1e18)
    deep = MatrixProduct(64, 64, 1 << 16)
    ramp_s = on.constants.product.ramp_s
    doubled = replace(on.constants.product, ramp_s=2 * ramp_s)
    slower = replace(on, constants=replace(on.constants, product=doubled))
    assert product_s(deep, slower) - product_s(deep, on) == pytest.approx(2 * ramp_s)
    large = MatrixProduct(8192, 8192, 1024)
    assert product_s(large, slower) - product_s(large, on) == pytest.approx(ramp_s)


def test_depthwise_convolutions_load_an_element_for_each_multiplication():
    conv = Convolution(256, 256, (28, 28), (28, 28), (7, 7), images=64, groups=256)
    constants, multiplications = device().constants.convolution, conv.out_elements * 49
    for precision, item in (("bf16", 2), ("fp32", 4)):
        on = device(precision=precision)
        forward_s, weight_s, input_s = (
            each - on.constants.product.ramp_s for each in convolution_passes_s(conv, on)
        )
        assert forward_s == input_s
        loads_s = multiplications * item / constants.depthwise_Bps / 108
        assert forward_s == pytest.approx(loads_s)
        sums_s = multiplications / constants.wide_sums_per_s / 108
        assert weight_s == pytest.approx(loads_s if item == 2 else sums_s)
    images_s = 2 * (conv.in_elements + conv.out_elements + conv.weight_elements) / 1e9
    slow = convolution_passes_s(conv, replace(device(), memory_Bps=1e9))
    assert slow == pytest.approx([images_s] * 3, rel=1e-3)


def test_fused_adamw_on_an_h100():
    """Own measurement of Llama 3.2 1B and 3B in bf16, and of ViT-huge in fp32; milliseconds."""
    on = device("h100-sxm5-80gb")
    for elements, item, measured_ms in ((1.236e9, 2, 7.9), (3.213e9, 2, 20.7), (632e6, 4, 6.73)):
        predicted_s = multi_tensor_s(7 * item * elements, item, 100, on)
        assert 1e3 * predicted_s == pytest.approx(measured_ms, rel=0.09)


def test_grouped_queries_move_fewer_keys():
    grouped = Attention(1024, 32, 8, 128, causal=True)
    assert grouped.elements == pytest.approx(0.625 * Attention(1024, 32, 32, 128, True).elements)
    assert grouped.flops == Attention(1024, 32, 32, 128, True).flops


@given(st.floats(1, 1e12))
def test_memory_bound_kernels_reach_no_more_than_the_memory(nbytes):
    on = device()
    assert elementwise_s(nbytes, 1, on) > nbytes / on.memory_Bps
    for item in (2, 4):
        assert norm_s(nbytes, item, on) > feature_map_s(nbytes, item, on) > nbytes / on.memory_Bps
        assert norm_s(nbytes, item, on, backward=True) > norm_s(nbytes, item, on)
    # a multiprocessor's time is per element: it shows more where elements are narrow
    assert norm_s(nbytes, 2, on) > norm_s(nbytes, 4, on)


@pytest.mark.parametrize("name", GPUS)
def test_every_gpu_runs_every_kernel(name):
    gpu = load_gpu(name)
    for precision in gpu.peak_flops:
        on = device(name, precision)
        assert 0 < on.tile_edge <= on.constants.product.tile_edge
        large = MatrixProduct(16384, 16384, 16384)
        assert 0.75 < large.flops / on.matrix_flops / product_s(large, on) <= 1


@pytest.mark.parametrize(
    "name", ["resnet50", "vgg16", "bert-large", "gpt2", "llama3-8b", "vit-b-16"]
)
def test_shapes_of_the_zoo_have_the_operations_of_their_layers(name):
    for layer in build_model(name).layers:
        if not layer.matmul_flops:
            continue
        shape = layer.matrix
        if isinstance(shape, Convolution):
            flops = 2.0 * shape.out_elements * shape.in_channels * shape.kernel[0] * shape.kernel[1]
            elements = shape.in_elements + shape.out_elements
        else:
            flops, elements = shape.flops, shape.elements
            if isinstance(shape, MatrixProduct):
                elements -= shape.columns * shape.depth
        assert flops == layer.matmul_flops
        assert 4 * elements == layer.matmul_bytes
        again = batched(shape, 3)
        assert type(again) is type(shape)
        assert again != shape


def test_a_product_of_rows_that_all_samples_share_runs_once() -> None:
    product = MatrixProduct(512, 768, 768)
    assert batched(product, 8).flops == 8 * product.flops
    assert batched(replace(product, shared=True), 8).flops == product.flops


@pytest.mark.parametrize(
    ("records", "kind", "median", "most"),
    [
        (product_records, "product bf16", 0.12, 0.30),
        (product_records, "product fp32", 0.06, 0.30),
        (product_records, "product tf32", 0.06, 0.25),
        (product_records, "product fp16", 0.10, 0.41),
        (memory_records, "norm", 0.10, 0.16),
        (memory_records, "elementwise", 0.08, 0.20),
        (attention_records, "attention", 0.35, 0.60),
    ],
)
def test_recorded_kernels(records, kind, median, most):
    """Shipped constants; with whole GPUs left out, `reports.kernels.left_out` prints them."""
    errors = sorted(
        abs(log_error(record, load_gpu(record.gpu)))
        for record in records()
        if record.kind == kind and record.gpu in GPUS
    )
    assert statistics.median(errors) < median
    assert errors[int(0.9 * len(errors))] < most


@pytest.mark.parametrize("groups", [1, 4, 32])
def test_a_grouped_convolution_multiplies_within_its_groups(groups: int) -> None:
    """One multiply-add per output element, input channel of its group and kernel position."""
    conv = Convolution(128, 256, (28, 28), (28, 28), (3, 3), groups=groups)
    expected = 256 * 28 * 28 * (128 // groups) * 9
    for product in (
        forward_product(conv),
        input_gradient_product(conv),
        weight_gradient_product(conv),
    ):
        assert product.rows * product.columns * product.depth == expected
    assert conv.weight_elements == 256 * (128 // groups) * 9


@pytest.mark.parametrize("causal", [True, False])
def test_a_window_slides_over_the_keys_on_the_sides_that_a_query_sees(causal: bool) -> None:
    """Counted query by query; the formula leaves out the half of a key at either end."""
    tokens, half = 400, 20
    window = half if causal else 2 * half + 1
    attended = Attention(tokens, 1, 1, 8, causal, window=window)
    seen = sum(
        max(0, at - window + 1 if causal else at - half) <= key <= (at if causal else at + half)
        for at in range(tokens)
        for key in range(tokens)
    )
    assert attended.seen_keys == pytest.approx(seen / tokens, rel=0.005)
