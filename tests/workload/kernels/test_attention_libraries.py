"""Fused attention of cuDNN, and in fp8, against NVIDIA's own benchmark of it.

NVIDIA/cudnn-frontend, benchmark/sdpa_benchmark_training and benchmark/attention_training (llama3.1
of April 2026 on GB200 and GB300, of August 2026 on H200): two sequences, 64 heads of 128, 8 of
keys, causal; times of forward and backward in milliseconds.
"""

from __future__ import annotations

import csv
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from perfmodel.errors import InputError
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.kernels.device import make_device
from perfmodel.workload.kernels.float8_layers import Float8
from perfmodel.workload.kernels.kernel_times import fused_attention_s
from perfmodel.workload.kernels.shapes import Attention
from perfmodel.workload.pricing import make_pricing
from perfmodel.workload.roofline import layer_times
from perfmodel.workload.zoo import build_model

RECORDED = (
    ("h200-sxm5-141gb", False, 4096, 0.897, 2.747),
    ("h200-sxm5-141gb", False, 16384, 14.042, 41.225),
    ("h200-sxm5-141gb", True, 8192, 2.288, 16.055),
    ("gb200-186gb", False, 4096, 0.391, 1.198),
    ("gb200-186gb", False, 16384, 5.150, 16.554),
    ("gb200-186gb", True, 8192, 1.074, 3.781),
    ("gb300-288gb", False, 4096, 0.323, 1.101),
    ("gb300-288gb", False, 16384, 4.593, 14.593),
    ("gb300-288gb", True, 8192, 0.759, 3.087),
)

GPUS = {
    "h100": "h100-sxm5-80gb",
    "h200": "h200-sxm5-141gb",
    "b200": "b200-sxm-180gb",
    "gb200": "gb200-186gb",
    "gb300": "gb300-288gb",
    "l40s": "l40s",
}


@pytest.mark.parametrize(("gpu", "narrow", "tokens", "forward_ms", "backward_ms"), RECORDED)
def test_recorded_times(
    gpu: str, narrow: bool, tokens: int, forward_ms: float, backward_ms: float
) -> None:
    """Within 17 %, where versions of the library differ by up to 40."""
    on = make_device(load_gpu(gpu), "bf16", 2, "cudnn")
    shape = Attention(tokens, 64, 8, 128, causal=True, sequences=2)
    forward_s = fused_attention_s(shape, on, narrow=narrow)
    backward_s = fused_attention_s(shape, on, backward=True, narrow=narrow)
    assert forward_s == pytest.approx(1e-3 * forward_ms, rel=0.17)
    assert backward_s == pytest.approx(1e-3 * backward_ms, rel=0.17)


def test_only_hopper_has_other_kernels_by_default() -> None:
    """PyTorch runs cuDNN's there, and did FlashAttention 2's; elsewhere one rate is known."""
    for gpu, differs in (("h100-sxm5-80gb", True), ("b200-sxm-180gb", False)):
        usual = make_device(load_gpu(gpu), "bf16", 2)
        assert (make_device(load_gpu(gpu), "bf16", 2, "flash_2") != usual) is differs
        assert make_device(load_gpu(gpu), "bf16", 2, "cudnn") == usual


@pytest.mark.parametrize("library", ["flash", "cudnn"])
def test_recorded_times_of_an_h100(library: str) -> None:
    """Own measurement, from 2,048 tokens on; shorter ones by backward are up to a third quicker."""
    path = Path("reports/experiments/one_gpu/measured/h100_kernels.csv")
    on = make_device(load_gpu("h100-sxm5-80gb"), "bf16", 2, {"flash": "flash_2"}.get(library, ""))
    errors = []
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            if row["library"] == library and int(row["tokens"]) >= 2048:
                tokens, heads, kv_heads, size, sequences = (
                    int(row[name])
                    for name in ("tokens", "heads", "kv_heads", "head_size", "sequences")
                )
                shape = Attention(tokens, heads, kv_heads, size, True, sequences)
                found_s = fused_attention_s(shape, on, backward=row["passes"] == "backward")
                errors.append(abs(found_s / (1e-6 * float(row["warm_us"])) - 1))
    assert len(errors) == 12
    assert statistics.median(errors) < 0.13
    assert max(errors) < 0.4


# NVIDIA/cudnn-frontend, benchmark/attention_training/results/llama3.1 of 2026-09-28, two sequences,
# 64 heads of 128, 8 of keys, causal; and Shah et al. 2024 (arXiv 2407.08608, figures 5 and 6), of
# which these are the times of 16,384 tokens, 2,048 wide, all keys seen, at 646 and 559, 496 and
# 472 TFLOP/s
@pytest.mark.parametrize(
    ("library", "gpu", "shape", "forward_ms", "backward_ms"),
    [
        ("flash_4", "h200", Attention(4096, 64, 8, 128, True, 2), 0.888, 2.466),
        ("flash_4", "h200", Attention(16384, 64, 8, 128, True, 2), 12.527, 36.265),
        ("flash_4", "gb200", Attention(16384, 64, 8, 128, True, 2), 5.305, 17.208),
        ("flash_4", "gb300", Attention(8192, 64, 8, 128, True, 2), 1.165, 3.902),
        ("flash_3", "h100", Attention(8192, 16, 16, 128, False, 2), 1.702, 4.917),
        ("flash_3", "h100", Attention(8192, 32, 32, 64, False, 2), 2.217, 5.824),
    ],
)
def test_recorded_times_of_flash_attention(
    library: str, gpu: str, shape: Attention, forward_ms: float, backward_ms: float
) -> None:
    """Within 10 %."""
    on = make_device(load_gpu(GPUS[gpu]), "bf16", 2, library)
    assert fused_attention_s(shape, on) == pytest.approx(1e-3 * forward_ms, rel=0.1)
    assert fused_attention_s(shape, on, backward=True) == pytest.approx(1e-3 * backward_ms, rel=0.1)


def test_flash_attention_4_runs_on_blackwell_as_cudnns_kernels_do() -> None:
    gpt2, b200 = build_model("gpt2"), load_gpu(GPUS["b200"])
    alone, usual = (
        layer_times(gpt2, b200, batch=1, precision="bf16", fused_attention=fused).forward_s.sum()
        for fused in ("flash_4", True)
    )
    assert alone == usual


@pytest.mark.parametrize(("library", "gpu"), [("flash_3", "b200"), ("flash_4", "l40s")])
def test_kernels_run_on_what_they_are_written_for(library: str, gpu: str) -> None:
    with pytest.raises(InputError, match=f"compute.fused_attention.*{library} on .*Hopper"):
        layer_times(
            build_model("gpt2"),
            load_gpu(GPUS[gpu]),
            batch=1,
            precision="bf16",
            fused_attention=library,
        )


def test_fused_attention_of_fp32_operands_does_not_run_in_tf32() -> None:
    model = build_model("bert-base", sequence_length=512)
    times = {
        precision: layer_times(
            model, load_gpu("h100-sxm5-80gb"), batch=16, precision=precision
        ).forward_s
        for precision in ("fp32", "tf32")
    }
    for layer, wide_s, narrow_s in zip(model.layers, *times.values(), strict=True):
        if layer.kind == "attention":
            assert narrow_s == wide_s
        elif layer.matrix is not None:
            assert narrow_s < wide_s


def test_attention_in_fp8_of_a_model() -> None:
    """Queries, keys, values and result are cast, and back; linear layers stay as they are."""
    model = build_model("llama3-8b", dtype="bf16", sequence_length=8192)
    wide, narrow = (
        layer_times(
            model,
            load_gpu("b200-sxm-180gb"),
            batch=1,
            precision="fp8",
            float8=Float8(attention=attention),
        )
        for attention in (False, True)
    )
    for layer, before_s, after_s in zip(
        model.layers, wide.forward_s, narrow.forward_s, strict=True
    ):
        if layer.kind == "attention":
            assert 0.85 * before_s < after_s < before_s
        else:
            assert after_s == before_s
    extra = narrow.forward_kernels - wide.forward_kernels
    assert {int(each) for each in extra} == {0, 2}


@pytest.mark.parametrize(("gpu", "fused"), [("l40s", True), ("h100-sxm5-80gb", False)])
def test_attention_in_fp8_needs_kernels_for_it(gpu: str, fused: bool) -> None:
    with pytest.raises(InputError, match="fp8_dot_product_attention"):
        make_pricing(
            load_gpu(gpu),
            1,
            "fp8",
            casts=False,
            channels_last=False,
            fused_attention=fused,
            compiled=False,
            float8=replace(Float8(), attention=True),
        )
