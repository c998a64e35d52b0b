"""The roofline: limits that its formulas must reach, and what it refuses."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.topology.model import Gpu
from perfmodel.workload import Layer, ParameterTensor, Workload, build_model, layer_times
from perfmodel.workload.kernel_constants import kernel_constants
from perfmodel.workload.roofline import optimizer_launches, step_s

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
    assert forward == pytest.approx(4 * 1e12 / RATE)
    assert backward == pytest.approx(2 * forward)


def test_memory_bound_layers():
    forward, backward = times(Layer("l", vector_bytes=1e9))
    assert forward == pytest.approx(4 * 1e9 / TRAFFIC)
    assert backward / forward == pytest.approx(5 / 3, rel=1e-3)  # batch norm: 5 passes to 3
    forward, backward = times(Layer("l", matmul_flops=1.0, matmul_bytes=1e9, weight_elements=1e9))
    assert forward == pytest.approx(4 * (1e9 + 1e9) / TRAFFIC)
    assert backward == pytest.approx(2 * forward)


def test_first_layer_has_no_gradient_of_its_input():
    layer = Layer("l", (0,), matmul_flops=1e12)
    only = Workload("one", (ParameterTensor("w", (1000,)),), (layer,))
    made = layer_times(only, GPU, batch=4, precision="fp32")
    assert made.backward_s[0] == pytest.approx(made.forward_s[0])
    assert (made.forward_kernels[0], made.backward_kernels[0]) == (1, 1)


def test_compute_and_memory_overlap_in_part():
    layer = Layer("l", matmul_flops=RATE, matmul_bytes=TRAFFIC)
    forward, _ = times(layer, batch=1)
    assert forward == pytest.approx(2 ** (1 / kernel_constants().overlap_exponent))
    assert 1 < forward < 2


@given(st.floats(1e3, 1e15), st.floats(1, 1e13))
def test_between_the_ideal_roofline_and_no_overlap(flops, nbytes):
    forward, _ = times(Layer("l", matmul_flops=flops, matmul_bytes=nbytes), batch=1)
    compute, memory = flops / RATE, nbytes / TRAFFIC
    assert max(compute, memory) * (1 - 1e-9) <= forward <= (compute + memory) * (1 + 1e-9)


def test_efficiency_saturates_with_the_size_of_a_product():
    gpu = replace(GPU, kernel_overhead_s=1e-5)

    def efficiency(flops):
        forward, _ = times(Layer("l", matmul_flops=flops), gpu=gpu, batch=1)
        return flops / forward / RATE

    sizes = [1e6, 1e8, 1e10, 1e12]
    reached = [efficiency(flops) for flops in sizes]
    assert reached == sorted(reached)
    assert efficiency(RATE * 1e-5) == pytest.approx(0.5)  # half at the size that takes the ramp
    assert reached[-1] > 0.99


def test_matrix_products_of_an_a100():
    # LLMCompass (github.com/PrincetonUniversity/LLMCompass, ae/figure5, matmul_A100.csv), fp16:
    # m, k, n and the measured seconds; their smallest product shows 28 us of ramp and launch
    a100 = replace(
        GPU, memory_Bps=2039e9, memory_efficiency=0.88, peak_flops={"fp16": 312e12},
        matmul_efficiency={"fp16": 0.94}, kernel_overhead_s=28e-6,
    )  # fmt: skip
    measured = [
        (8192, 64, 64, 29.6e-6),
        (8192, 256, 256, 35.6e-6),
        (8192, 512, 512, 47.1e-6),
        (8192, 1024, 1024, 92.7e-6),
        (8192, 4096, 4096, 1021e-6),
        (8192, 16384, 16384, 15.0e-3),
        (64, 12288, 12288, 190e-6),
        (1024, 12288, 12288, 1199e-6),
    ]
    for m, k, n, seconds in measured:
        layer = Layer("l", matmul_flops=2.0 * m * k * n, matmul_bytes=4.0 * m * (k + n),
                      weight_elements=k * n)  # fmt: skip
        pure_half = replace(model(layer), tensors=(ParameterTensor("w", (1,), "fp16"),))
        made = layer_times(pure_half, a100, batch=1, precision="fp16")
        assert made.forward_s[1] == pytest.approx(seconds, rel=0.25)


def test_fused_attention_skips_the_masked_half_and_recomputes_the_scores():
    layer = Layer("l", matmul_flops=1e12, kind="attention", score_elements=1e6)
    reached = kernel_constants().attention_efficiency
    forward, backward = times(layer)
    assert forward == pytest.approx(4 * 1e12 / RATE / reached)
    assert backward == pytest.approx(2.5 * forward)
    masked, _ = times(replace(layer, causal=True))
    assert masked == pytest.approx(forward / 2)


def test_unfused_attention_moves_its_scores():
    layer = Layer("l", matmul_flops=1.0, kind="attention", score_elements=1e9, causal=True)
    forward, _ = times(layer, fused_attention=False, batch=1)
    assert forward == pytest.approx(10 * 4e9 / TRAFFIC)
    fused, _ = times(layer, batch=1)
    assert fused < 1e-9


def test_autocast_casts_every_weight_and_leaves_transformers_norms_in_fp32():
    product = Layer("l", matmul_flops=1.0, weight_elements=1e9)
    forward, _ = times(product, precision="fp16")
    assert forward == pytest.approx((2e9 + 6e9) / TRAFFIC)
    norm = Layer("l", vector_bytes=1e9)
    assert times(norm, precision="fp16")[0] == pytest.approx(times(norm)[0])
    batch_norm = replace(norm, kind="conv")
    assert times(batch_norm, precision="fp16")[0] == pytest.approx(times(norm)[0] / 2)


def test_pure_half_precision_casts_nothing():
    layer = Layer("l", matmul_flops=1.0, weight_elements=1e9, vector_bytes=1e9)
    pure = replace(model(layer), tensors=(ParameterTensor("w", (1000,), "fp16"),))
    made = layer_times(pure, GPU, batch=1, precision="fp16")
    assert made.forward_s[1] == pytest.approx((2e9 + 0.5e9) / TRAFFIC)
    assert made.forward_kernels[1] == 1


def test_tensor_cores_want_channels_last():
    layer = Layer("l", matmul_flops=1.0, matmul_bytes=4e9, kind="conv")
    fast, _ = times(layer, precision="fp16", channels_last=True, batch=1)
    slow, _ = times(layer, precision="fp16", batch=1)
    assert slow == pytest.approx(3 * fast)  # both operands read and written once more
    assert times(layer) == times(layer, channels_last=True)
    # TF32 turns to the fp32 kernels where the copies would cost more
    assert times(layer, precision="tf32") == pytest.approx(times(layer))


def test_kernels_cost_their_ramp():
    gpu = replace(GPU, kernel_overhead_s=1e-6)
    made = layer_times(model(Layer("l", kernels=7, vector_bytes=1.0)), gpu, batch=1,
                       precision="fp32")  # fmt: skip
    assert made.forward_s[1] == pytest.approx(7e-6, rel=1e-3)
    product = layer_times(model(Layer("l", kernels=3, matmul_flops=1.0)), gpu, batch=1,
                          precision="fp32")  # fmt: skip
    assert (product.forward_kernels[1], product.backward_kernels[1]) == (3, 4)


def test_optimizer_time_is_its_traffic():
    made = layer_times(build_model("gpt2"), GPU, batch=1, precision="fp32", optimizer="adam")
    assert made.optimizer_s == pytest.approx(28 * 124439808 / TRAFFIC)
    # 36 tensors and 320 blocks of 65536 elements per launch (MultiTensorApply.cuh)
    assert made.optimizer_kernels == optimizer_launches(build_model("gpt2"), "adam") == 5 + 5
    assert made.copy_Bps == TRAFFIC / 2
    assert made.source == "roofline on ideal"


def test_overrides():
    layer = Layer("l", matmul_flops=1e12, vector_bytes=1e9)
    forward, _ = times(layer, matmul_efficiency=1.0, memory_efficiency=1.0, batch=1)
    assert forward == pytest.approx(1e12 / 20e12 + 1e9 / 2e12)


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
    kernels = made.forward_kernels.sum() + made.backward_kernels.sum() + made.optimizer_kernels
    assert step_s(made) == pytest.approx(kernels * 5e-6, rel=0.05)
    idle_host = replace(made, launch_s=0.0)
    device = made.forward_s.sum() + made.backward_s.sum() + made.optimizer_s
    assert step_s(idle_host) == pytest.approx(device)


def test_step_on_two_clocks():
    # host issues a kernel a second; layers of 2 and 3 kernels, 1 and 10 s long: forward 0-2
    # (not before its last kernel is issued) and 3-13, backward 13-23 and 23-24, optimizer 24-25
    made = layer_times(model(), GPU, batch=1, precision="fp32")
    made = replace(
        made,
        forward_s=np.array([1.0, 10.0]), backward_s=np.array([1.0, 10.0]),
        forward_kernels=np.array([2, 3]), backward_kernels=np.array([2, 3]),
        launch_s=1.0, optimizer_s=1.0, optimizer_kernels=1,
    )  # fmt: skip
    assert step_s(made) == 25.0
    assert step_s(replace(made, optimizer_kernels=100)) == 110.0  # 10 kernels before it
    assert step_s(replace(made, backward_kernels=np.array([2, 20]))) == 29.0


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
        layer_times(build_model("resnet18"), GPU, batch=0, precision="bf16", memory_efficiency=1.5,
                    matmul_efficiency=math.nan)  # fmt: skip
    fields = {fault.field for fault in raised.value.faults}
    assert fields == {"batch", "precision", "memory_efficiency", "matmul_efficiency"}
    with pytest.raises(InputError, match="did you mean 'adamw'"):
        layer_times(build_model("resnet18"), GPU, batch=1, precision="fp32", optimizer="adamW")


def test_a_model_without_work_is_refused():
    listed = Workload("list", (ParameterTensor("w", (3,)),), (Layer("w", (0,)),))
    with pytest.raises(InputError, match="states no work per layer"):
        layer_times(listed, GPU, batch=1, precision="fp32")
