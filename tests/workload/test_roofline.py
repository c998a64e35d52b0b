"""Times of layers: limits that they must reach, and what they are refused for."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.topology.model import Gpu
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload import Layer, ParameterTensor, Workload, build_model, layer_times, zoo_names
from perfmodel.workload.kernels.device import kernel_constants, make_device
from perfmodel.workload.kernels.kernel_times import feature_map_s
from perfmodel.workload.kernels.shapes import Attention, Convolution, MatrixProduct
from perfmodel.workload.layer_cost import likely_product
from perfmodel.workload.memory import optimizer_launches
from perfmodel.workload.roofline import by_first_flash, step_s

GPU = Gpu(
    name="ideal",
    memory_bytes=80e9,
    memory_Bps=2e12,
    peak_flops={"fp32": 20e12, "tf32": 150e12, "fp16": 300e12},
    matmul_efficiency={"fp32": 0.5, "tf32": 0.5, "fp16": 0.5},
    memory_efficiency=0.5,
    kernel_overhead_s=0.0,
    launch_s=5e-6,
    streaming_multiprocessors=100,
    overlap_slowdown=1.0,
    generation="ampere",
)
RATE, TRAFFIC = 10e12, 1e12  # what GPU reaches in fp32
DATA = Layer("data", vector_bytes=1.0)  # so that the layer after it is not the first


def model(*layers):
    tensor = ParameterTensor("w", (1000,))
    return Workload("made up", (tensor,), (DATA, *layers, Layer("last", (0,), vector_bytes=1.0)))


def times(layer, *, batch=4, precision="fp32", gpu=GPU, **options):
    made = layer_times(model(layer), gpu, batch=batch, precision=precision, **options)
    return made.forward_s[1], made.backward_s[1]


def test_compute_bound_layer():
    forward, backward = times(Layer("l", matmul_flops=1e12))
    assert forward == pytest.approx(4 * 1e12 / RATE, rel=0.05)  # whole waves, first steps of tiles
    assert forward >= 4 * 1e12 / RATE
    assert backward == pytest.approx(2 * forward)


def test_memory_bound_layers():
    forward, backward = times(Layer("l", vector_bytes=1e9))
    assert forward == pytest.approx(4 * 1e9 / TRAFFIC)
    assert backward / forward == pytest.approx(5 / 3, rel=1e-3)  # batch norm: 5 passes to 3
    forward, backward = times(Layer("l", matmul_flops=1.0, matmul_bytes=1e9, weight_elements=1e9))
    assert forward == pytest.approx(4 * (1e9 + 1e9) / TRAFFIC, rel=1e-3)
    assert backward == pytest.approx(2 * forward)


def test_first_layer_has_no_gradient_of_its_input():
    layer = Layer("l", (0,), matmul_flops=1e12)
    only = Workload("one", (ParameterTensor("w", (1000,)),), (layer,))
    made = layer_times(only, GPU, batch=4, precision="fp32")
    assert made.backward_s[0] == pytest.approx(made.forward_s[0])
    assert (made.forward_kernels[0], made.backward_kernels[0]) == (1, 1)


@given(st.floats(1e6, 1e15), st.floats(1, 1e13))
def test_never_below_the_ideal_roofline(flops, nbytes):
    forward, _ = times(Layer("l", matmul_flops=flops, matmul_bytes=nbytes), batch=1)
    # of a product of whole numbers of rows and columns
    assert forward >= max(0.98 * flops / RATE, nbytes / TRAFFIC) * (1 - 1e-9)


def test_efficiency_saturates_with_the_size_of_a_product():
    def efficiency(flops):
        forward, _ = times(Layer("l", matmul_flops=flops), batch=1)
        return flops / forward / RATE

    reached = [efficiency(flops) for flops in (1e6, 1e8, 1e10, 1e12, 1e14)]
    assert reached == sorted(reached)
    assert reached[0] < 0.1
    assert reached[-1] > 0.97


def attention(tokens, *, heads=8, causal=False):
    shape = Attention(tokens, heads, heads, 128, causal)
    return Layer(
        "l",
        matmul_flops=shape.flops,
        kind="attention",
        matrix=shape,
        score_elements=float(heads * tokens**2),
    )


def test_fused_attention_skips_the_masked_half_and_recomputes_the_scores():
    rate = kernel_constants().attention_rate("", "ampere", "fp32")
    forward, backward = times(attention(16384))
    saturated = 16384 / (16384 + rate.half_rate_keys)
    work_s = 4 * attention(16384).matmul_flops / RATE / rate.large_heads / saturated
    waves = 4 * 8 * (16384 / 128) / GPU.streaming_multiprocessors  # 128 queries are a tile
    assert forward == pytest.approx(work_s * (1 + 0.5 / waves), rel=1e-4)
    # result and its gradient read, fp32 sums cleared, read and cast
    around_s = 4 * 8 * 16384 * 128 * (3 * 4 + 2 * 4) / TRAFFIC
    assert backward == pytest.approx(2.5 * forward + around_s, rel=1e-4)
    masked, _ = times(attention(16384, causal=True))
    # a last tile takes twice the others' time
    assert masked == pytest.approx(work_s / 2 * (1 + 1 / waves), rel=2e-3)


def test_attention_takes_whole_tiles_and_waves():
    # 129 tokens take two tiles of 128 queries, which see three blocks of 64 keys
    short, long = times(attention(129))[0], times(attention(192))[0]
    assert short == pytest.approx(long)
    # eight heads of one tile on a hundred multiprocessors take no longer than four
    alone, beside = (times(attention(128, heads=heads), batch=1)[0] for heads in (4, 8))
    assert alone == pytest.approx(beside)


def test_a_frozen_weight_leaves_the_gradient_of_the_input_alone():
    """Neither its bias is summed nor a gradient of it cast back."""
    product = MatrixProduct(512, 4096, 64, has_bias=True)
    flops = product.flops
    trained = Layer("l", (0, 1), matrix=product, matmul_flops=flops, weight_elements=2**18)
    layers = (
        Layer("first"),
        trained,
        replace(trained, tensors=(), gradients=1),
        replace(trained, gradients=1),
        *(
            Layer("p", (0,), matrix=gradient, matmul_flops=flops)
            for gradient in (product.weight_gradient, product.input_gradient)
        ),
    )
    workload = replace(build_model("gpt2"), layers=layers)
    priced = layer_times(workload, GPU, batch=1, precision="fp16")
    _, both_s, frozen_s, weight_s, *_ = priced.backward_s
    input_s = priced.forward_s[5]
    assert priced.forward_s[4] != input_s
    assert frozen_s == pytest.approx(input_s)
    assert both_s - weight_s == pytest.approx(input_s)
    assert list(priced.backward_kernels[1:4]) == [5, 1, 4]


def test_the_first_flash_attention_takes_its_rate_of_the_second():
    layers = (attention(4096), Layer("l", matmul_flops=1e12))
    workload = replace(build_model("gpt2"), layers=layers)
    second = layer_times(workload, GPU, batch=1, precision="fp16")
    first = by_first_flash(workload, second)
    assert (first.forward_s / second.forward_s).tolist() == [2.0, 1.0]
    assert (first.backward_s / second.backward_s).tolist() == [2.0, 1.0]
    assert (first.matrix_forward_s / second.matrix_forward_s).tolist() == [2.0, 1.0]


def test_unfused_attention_moves_its_scores():
    layer = attention(8192, heads=1, causal=True)
    forward, _ = times(layer, fused_attention=False, batch=1)
    scores_s = 10 * 4 * 8192**2 / TRAFFIC
    assert forward > scores_s + layer.matmul_flops / RATE
    compiled, _ = times(layer, fused_attention=False, compiled=True, batch=1)
    assert forward - compiled == pytest.approx(0.6 * scores_s)  # 4 passes instead of 10
    dropped = replace(layer, dropout_apart=True)
    by_hand, _ = times(dropped, fused_attention=False, compiled=True, batch=1)
    # 2.5 passes for a dropout of its own, and its kernel
    assert by_hand - compiled == pytest.approx(0.25 * scores_s + GPU.kernel_overhead_s)
    for without in (replace(dropped, score_dropout=False), layer):
        assert times(without, fused_attention=False, compiled=True, batch=1)[0] == compiled
    fused, _ = times(layer, batch=4)
    assert fused < 4 * forward
    assert times(dropped, batch=4)[0] == fused


def test_autocast_casts_every_weight_and_leaves_transformers_norms_in_fp32():
    product = Layer("l", matmul_flops=1.0, weight_elements=1e9)
    forward, _ = times(product, precision="fp16")
    assert forward == pytest.approx((2e9 + 6e9) / TRAFFIC, rel=1e-3)
    norm = Layer("l", vector_bytes=1e9)
    assert times(norm, precision="fp16")[0] == pytest.approx(times(norm)[0])
    batch_norm = replace(norm, kind="conv")
    # half of the bytes, as many elements
    assert times(norm)[0] / 2 < times(batch_norm, precision="fp16")[0] < 0.6 * times(norm)[0]


def test_pure_half_precision_casts_nothing():
    layer = Layer("l", matmul_flops=1.0, weight_elements=1e9, vector_bytes=1e9)
    pure = replace(model(layer), tensors=(ParameterTensor("w", (1000,), "fp16"),))
    made = layer_times(pure, GPU, batch=1, precision="fp16")
    assert made.forward_s[1] == pytest.approx((2e9 + 0.5e9) / TRAFFIC, rel=1e-2)
    assert made.forward_kernels[1] == 1


def conv_layer(matrix):
    moved = 4.0 * (matrix.in_elements + matrix.out_elements)
    return Layer(
        "l",
        matmul_flops=2.0 * matrix.out_elements * 64 * 9,
        matmul_bytes=moved,
        weight_elements=float(matrix.weight_elements),
        kind="conv",
        matrix=matrix,
    )


def test_parameters_gathered_in_half_precision_are_cast_by_no_layer():
    """Layers run as if the parameters were narrow; the optimizer still updates fp32 ones."""
    wide = build_model("gpt2")
    narrow = replace(wide, tensors=tuple(replace(t, dtype="bf16") for t in wide.tensors))
    gpu = load_gpu("a100-sxm4-80gb")
    gathered = layer_times(wide, gpu, batch=2, precision="bf16", held_dtype="bf16")
    pure = layer_times(narrow, gpu, batch=2, precision="bf16")
    autocast = layer_times(wide, gpu, batch=2, precision="bf16")
    assert gathered.forward_s.tolist() == pure.forward_s.tolist()
    assert gathered.backward_kernels.tolist() == pure.backward_kernels.tolist()
    assert gathered.forward_s.sum() < autocast.forward_s.sum()
    assert gathered.optimizer_s == autocast.optimizer_s


def test_tensor_cores_want_channels_last():
    layer = conv_layer(Convolution(64, 64, (56, 56), (56, 56), (3, 3)))
    fast, _ = times(layer, precision="fp16", channels_last=True, batch=64)
    slow, _ = times(layer, precision="fp16", batch=64)
    # both operands read and written once more, at the rate of a transposition at most
    copies_s = 64 * 2 * layer.matmul_bytes / 2 / TRAFFIC
    assert copies_s < slow - fast < 2 * copies_s
    assert times(layer) == times(layer, channels_last=True)
    for kept in ({"channels_last": True}, {"groups": 64}):  # never copied: laid out, or depthwise
        own = conv_layer(replace(layer.matrix, **kept))
        assert (
            times(own, precision="fp16")[0] == times(own, precision="fp16", channels_last=True)[0]
        )
    # TF32 turns to the fp32 kernels where the copies would cost more
    pointwise = conv_layer(Convolution(64, 64, (56, 56), (56, 56), (1, 1)))
    assert times(pointwise, precision="tf32") == pytest.approx(times(pointwise))


def test_a_bias_of_a_convolution_is_added_and_summed_by_kernels_of_their_own():
    plain = Convolution(64, 64, (56, 56), (56, 56), (3, 3), images=4)
    pass_s = feature_map_s(4.0 * plain.out_elements, 4, make_device(GPU, "fp32", 4))
    biased = conv_layer(replace(plain, images=1, has_bias=True))
    without = conv_layer(replace(plain, images=1))
    both = zip(times(biased), times(without), strict=True)
    assert [one - other for one, other in both] == pytest.approx([2 * pass_s, pass_s])
    fused = {"compiled": True, "batch": 4}
    biased, without = (replace(layer, fused_bytes=0.0) for layer in (biased, without))
    assert times(biased, **fused)[0] == times(without, **fused)[0]


def test_batch_normalisation_in_bf16_waits_for_its_statistics():
    gpu = replace(
        GPU,
        peak_flops={**GPU.peak_flops, "bf16": 300e12},
        matmul_efficiency={**GPU.matmul_efficiency, "bf16": 0.5},
    )
    plain = Layer("l", vector_bytes=1e9, kind="conv")
    normed = replace(plain, statistics_elements=1e8)
    waits_s = 2 * 4 * 1e8 / (kernel_constants().norm.elements_per_s * 100)
    for precision, expected_s in (("bf16", waits_s), ("fp16", 0.0)):  # cuDNN's kernels in fp16
        pairs = zip(
            times(normed, precision=precision, gpu=gpu),
            times(plain, precision=precision, gpu=gpu),
            strict=True,
        )
        assert [one - other for one, other in pairs] == pytest.approx([expected_s] * 2, abs=1e-12)


def test_fused_chains_move_less_and_launch_less():
    workload = build_model("gpt2")
    eager = layer_times(workload, GPU, batch=8, precision="fp16")
    fused = layer_times(workload, GPU, batch=8, precision="fp16", compiled=True)
    assert step_s(fused) < 0.9 * step_s(eager)
    assert fused.forward_kernels.sum() < eager.forward_kernels.sum()


@pytest.mark.slow
@pytest.mark.parametrize("name", zoo_names())
def test_fusing_never_adds(name):
    workload = build_model(name, dtype="bf16")
    gpu = load_gpu("v100-sxm2-16gb")  # whose memory is slow beside its multiprocessors
    eager, fused = (
        layer_times(workload, gpu, batch=2, precision="fp16", compiled=compiled)
        for compiled in (False, True)
    )
    added = fused.forward_s + fused.backward_s - eager.forward_s - eager.backward_s
    assert np.all(added <= 1e-12)
    assert np.all(fused.forward_kernels <= eager.forward_kernels)


def test_kernels_cost_their_ramp():
    gpu = replace(GPU, kernel_overhead_s=1e-6)
    made = layer_times(
        model(Layer("l", kernels=7, vector_bytes=1.0)), gpu, batch=1, precision="fp32"
    )
    assert made.forward_s[1] == pytest.approx(7e-6, rel=1e-3)
    product = layer_times(
        model(Layer("l", kernels=3, matmul_flops=1.0)), gpu, batch=1, precision="fp32"
    )
    assert (product.forward_kernels[1], product.backward_kernels[1]) == (3, 4)


def test_optimizer_time_is_its_traffic():
    made = layer_times(
        build_model("gpt2"),
        GPU,
        batch=1,
        precision="fp32",
        optimizer="adam",
        optimizer_kernels="fused",
    )
    assert made.optimizer_s == pytest.approx(28 * 124439808 / TRAFFIC)
    # 36 tensors and 320 blocks of 65536 elements per launch (MultiTensorApply.cuh)
    assert optimizer_launches(build_model("gpt2"), "adam", "fused") == 10
    assert 10 < made.optimizer_lists + 10 == made.optimizer_kernels
    usual = layer_times(build_model("gpt2"), GPU, batch=1, precision="fp32", optimizer="adam")
    assert usual.optimizer_s == pytest.approx(72 * 124439808 / TRAFFIC)
    assert made.copy_Bps == TRAFFIC / 2
    assert made.source == "roofline on ideal"


def test_overrides():
    layer = Layer("l", matmul_flops=1e12, vector_bytes=1e9)
    forward, _ = times(layer, matmul_efficiency=1.0, memory_efficiency=1.0, batch=1)
    assert forward == pytest.approx(1e12 / 20e12 + 1e9 / 2e12, rel=0.08)


@pytest.mark.parametrize("name", ["resnet50", "bert-large", "llama3-8b", "vit-b-16"])
def test_a_step_is_never_faster_than_the_peak(name):
    workload = build_model(name)
    made = layer_times(workload, GPU, batch=8, precision="fp16")
    flops = 8 * 3 * sum(layer.matmul_flops for layer in workload.layers)
    assert step_s(made) > 0.6 * flops / (0.5 * 300e12)  # causal attention skips a part
    assert np.all(made.forward_s > 0)
    assert np.all(made.backward_s > 0)
    assert made.forward_s.shape == made.backward_s.shape == (len(workload.layers),)


def test_host_limits_a_step_of_tiny_kernels():
    workload = build_model("resnet50")
    fast = replace(GPU, memory_Bps=1e15)
    made = layer_times(workload, fast, batch=1, precision="fp16", channels_last=True)
    kernels = made.layer_launches * (made.forward_kernels.sum() + made.backward_kernels.sum())
    assert step_s(made) == pytest.approx((kernels + made.optimizer_kernels) * 5e-6, rel=0.05)
    idle_host = replace(made, launch_s=0.0)
    device = made.forward_s.sum() + made.backward_s.sum() + made.unscale_s + made.optimizer_s
    assert step_s(idle_host) == pytest.approx(device)


# what PyTorch 2.13 dispatches below autograd and autocast, views left out, with CUDA's lists of
# autocast and one operator for attention: Hugging Face's modules of transformers 5.24, bf16
@pytest.mark.parametrize(
    ("name", "dtype", "forward", "backward", "casts"),
    [
        ("bert-base", "fp32", 376, 571, 196),
        ("gpt2", "fp32", 407, 577, 147),
        ("tinyllama-1.1b", "fp32", 1143, 2003, 312),
        ("tinyllama-1.1b", "bf16", 926, 1651, 0),
        ("qwen2-0.5b", "bf16", 1006, 1872, 0),
    ],
)
def test_kernels_are_those_that_pytorch_issues(name, dtype, forward, backward, casts):
    model = build_model(name, sequence_length=512, dtype=dtype)
    made, plain = (
        layer_times(model, GPU, batch=1, precision=precision) for precision in ("fp16", "fp32")
    )
    issued = made.forward_kernels.sum()
    assert issued == pytest.approx(forward, rel=0.2)
    assert made.backward_kernels.sum() == pytest.approx(backward, rel=0.2)
    assert issued - plain.forward_kernels.sum() == pytest.approx(casts, rel=0.2)


def test_autocast_moves_what_it_casts():
    """Of each norm, queries, keys, values and the first of the MLP; 6 bytes an element of 768."""
    casting, narrow = (
        layer_times(
            build_model("vit-base-patch16-224", dtype=dtype), GPU, batch=64, precision="fp16"
        )
        for dtype in ("fp32", "fp16")
    )
    moved_s = 12 * 4 * 64 * 197 * 768 * 6 / TRAFFIC
    assert casting.forward_s.sum() - narrow.forward_s.sum() > moved_s


def test_step_on_two_clocks():
    # host issues a kernel a second; layers of 2 and 3 kernels, 1 and 10 s long: forward 0-2
    # (not before its last kernel is issued) and 3-13, backward 13-23 and 23-24, optimizer 24-25
    made = layer_times(model(), GPU, batch=1, precision="fp32")
    made = replace(
        made,
        forward_s=np.array([1.0, 10.0]),
        backward_s=np.array([1.0, 10.0]),
        forward_kernels=np.array([2, 3]),
        backward_kernels=np.array([2, 3]),
        launch_s=1.0,
        optimizer_s=1.0,
        optimizer_kernels=1,
        layer_launches=1,
        optimizer_lists=0,
    )
    assert step_s(made) == 25.0
    # the optimizer is issued once the device says that gradients are finite: 24-25.5, 27.5-28.5
    assert step_s(replace(made, unscale_s=1.5, optimizer_lists=2, optimizer_kernels=2)) == 28.5
    # two operations alone a kernel: forward 0-4 and 5-15, backward 15-25 and 25-26
    assert step_s(replace(made, layer_launches=2.0)) == 27.0
    assert step_s(replace(made, optimizer_kernels=100)) == 110.0  # 10 kernels before it
    assert step_s(replace(made, backward_kernels=np.array([2, 20]))) == 29.0


@pytest.mark.slow
@given(st.integers(1, 512))
def test_time_grows_with_the_batch_and_throughput_does_not_fall(batch):
    workload = build_model("resnet18")
    one, two = (
        step_s(layer_times(workload, GPU, batch=size, precision="fp32"))
        for size in (batch, 2 * batch)
    )
    assert one <= two * (1 + 1e-9)
    assert two <= 2 * one * (1 + 1e-9)


def test_every_fault_at_once():
    with pytest.raises(InputError) as raised:
        layer_times(
            build_model("resnet18"),
            GPU,
            batch=0,
            precision="bf16",
            memory_efficiency=1.5,
            matmul_efficiency=math.nan,
        )
    fields = {fault.field for fault in raised.value.faults}
    assert fields == {"batch", "precision", "memory_efficiency", "matmul_efficiency"}
    with pytest.raises(InputError, match="did you mean 'adamw'"):
        layer_times(build_model("resnet18"), GPU, batch=1, precision="fp32", optimizer="adamW")


def test_a_model_without_work_is_refused():
    listed = Workload("list", (ParameterTensor("w", (3,)),), (Layer("w", (0,)),))
    with pytest.raises(InputError, match="states no work per layer"):
        layer_times(listed, GPU, batch=1, precision="fp32")


@pytest.mark.parametrize("name", ["bert-large", "megatron-1.7b", "vgg16"])
@pytest.mark.parametrize("gpu", ["a100-sxm4-80gb", "v100-sxm2-16gb"])
def test_a_product_is_known_again_by_operations_and_operands(name, gpu):
    """As a file states them, which knows no shapes."""
    shaped = build_model(name)
    products = [isinstance(layer.matrix, MatrixProduct) for layer in shaped.layers]
    bare = tuple(
        replace(layer, matrix=None) if is_product else layer
        for layer, is_product in zip(shaped.layers, products, strict=True)
    )
    known, estimated = (
        layer_times(workload, load_gpu(gpu), batch=8, precision="fp16")
        for workload in (shaped, replace(shaped, layers=bare))
    )
    for side in ("forward_s", "backward_s"):
        exact, stated = (getattr(times, side)[products] for times in (known, estimated))
        assert stated.sum() == pytest.approx(exact.sum(), rel=0.1)
        assert np.all(stated < 1.6 * exact)
        assert np.all(stated > 0.6 * exact)


@given(st.floats(1, 1e15), st.integers(0, 10**12), st.floats(0, 1e13), st.integers(1, 512))
def test_every_statement_of_work_has_a_product(flops, weight, nbytes, batch):
    layer = Layer("l", matmul_flops=flops, weight_elements=weight, matmul_bytes=nbytes)
    product = likely_product(layer, batch)
    assert min(product.rows, product.columns, product.depth) >= 1
    if flops > 1e6 and (weight > 1000 or not weight):
        assert 0.6 * batch * flops < product.flops < 1.6 * batch * flops


def test_compiling_what_states_no_chains_is_refused() -> None:
    """It would change nothing, and the answer would be taken for that of a compiled model."""
    plain = Workload("mine", (ParameterTensor("w", (64, 64)),), (Layer("fc", (0,), 8192.0),))
    with pytest.raises(InputError, match="compiled: found true for 'mine'"):
        layer_times(plain, load_gpu("a100-sxm4-80gb"), batch=1, precision="fp16", compiled=True)


def test_a_bias_costs_a_sum_over_its_gradient():
    """Backward reads the result's gradient once more, and runs a kernel more."""
    plain = Layer("l", matmul_flops=2.0**31, matrix=MatrixProduct(1024, 1024, 1024))
    biased = replace(plain, matrix=replace(plain.matrix, has_bias=True))
    forward, backward = times(plain, batch=1)
    forward_biased, backward_biased = times(biased, batch=1)
    assert forward_biased == forward
    assert backward_biased - backward == pytest.approx(4 * 1024 * 1024 / TRAFFIC)


def test_losses_and_single_norms_stay_wide_where_parameters_are_narrow():
    """Half precision halves the traffic of what is not wide."""
    gpu = replace(
        GPU,
        peak_flops={**GPU.peak_flops, "bf16": 1e15},
        matmul_efficiency={**GPU.matmul_efficiency, "bf16": 1.0},
    )
    plain = Layer("l", vector_bytes=8e9, norm_bytes=4e9)

    def forward_s(layer):
        tensor = ParameterTensor("w", (4,), "bf16")
        return layer_times(
            Workload("m", (tensor,), (layer,)), gpu, batch=1, precision="bf16"
        ).forward_s[0]

    usual = forward_s(plain)
    loss = forward_s(replace(plain, wide_bytes=4e9))
    assert loss - usual == pytest.approx(2e9 / TRAFFIC)
    assert forward_s(replace(plain, wide_norm=True)) == pytest.approx(6e9 / TRAFFIC, rel=1e-3)


def test_backward_of_single_norms_is_as_much_longer_as_that_of_a_norm():
    """Of 8 GB at fp32, half normalises: 2.5 times forward, the rest 5 passes for 3."""
    layer = Layer("l", vector_bytes=8e9, norm_bytes=4e9, wide_norm=True)
    forward, backward = times(layer, batch=1)
    assert forward == pytest.approx(8e9 / TRAFFIC, rel=1e-3)
    assert backward == pytest.approx((2.5 * 4e9 + 5 / 3 * 4e9) / TRAFFIC, rel=1e-3)


def test_a_compiler_pads_rows_that_are_not_aligned():
    """GPT-2's head of 50,257 words: an eighth of the usual rate eager, all of it compiled."""
    model, h100 = build_model("gpt2"), load_gpu("h100-sxm5-80gb")
    eager_s, compiled_s = (
        layer_times(model, h100, batch=16, precision="bf16", compiled=compiled).matrix_forward_s[-1]
        for compiled in (False, True)
    )
    assert 0.1 < compiled_s / eager_s < 0.2
