"""Kernels of scans against times that others published, and against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.workload.kernels.device import Device, make_device
from perfmodel.workload.kernels.scans import (
    Direction,
    kernel_times,
    scan_operations,
    scan_pass,
    scan_table,
)
from perfmodel.workload.kernels.shapes import Scan, batched

H200 = make_device(load_gpu("h200-sxm5-141gb"), "bf16", 2)
GB10 = replace(H200, memory_Bps=240e9, matrix_flops=100e12, multiprocessors=48)
"""As far as scans ask: LPDDR5X of 273 GB/s, dense bf16."""
AROUND = {
    *("causal_conv1d", "causal_conv1d_bwd", "contiguous", "contiguous_bwd", "decays"),
    *("decays_bwd", "l2norm", "l2norm_bwd", "gated_norm", "gated_norm_bwd"),
}
"""Kernels that the published times have not."""


def core_s(scan: Scan, device: Device, direction: Direction) -> float:
    times_s = kernel_times(scan, device, direction)
    return sum(each_s for name, each_s in times_s.items() if name not in AROUND)


def delta(tokens: int, sequences: int, groups: int, heads: int) -> Scan:
    return Scan("gated_delta", tokens, heads, groups, 128, 128, 64, sequences)


@pytest.mark.parametrize(
    ("direction", "tokens", "sequences", "groups", "heads", "published_ms"),
    [
        ("forward", 8192, 1, 16, 32, 0.472),
        ("forward", 2048, 4, 16, 32, 0.485),
        ("forward", 4096, 1, 2, 8, 0.132),
        ("forward", 32768, 1, 2, 8, 0.902),
        ("forward", 2048, 4, 16, 64, 0.829),
        ("backward", 8192, 1, 16, 32, 1.444),
        ("backward", 2048, 4, 16, 32, 1.467),
        ("backward", 8192, 1, 4, 8, 0.722),
        ("backward", 32768, 1, 4, 8, 2.743),
        ("backward", 8192, 4, 8, 16, 3.093),
    ],
)
def test_gated_delta_rule_on_h200(
    direction: Direction,
    tokens: int,
    sequences: int,
    groups: int,
    heads: int,
    published_ms: float,
) -> None:
    """flash-linear-attention 0.5.1 (QwenLM/FlashQLA, benchmark/benchmark_results_H200.txt)."""
    predicted_s = core_s(delta(tokens, sequences, groups, heads), H200, direction)
    assert predicted_s == pytest.approx(1e-3 * published_ms, rel=0.25)


@pytest.mark.parametrize(("chunk", "published_ms"), [(64, 87.611), (128, 63.571), (256, 56.995)])
def test_state_space_duality_on_gb10(chunk: int, published_ms: float) -> None:
    """mamba_ssm's scan, both passes: 4 x 4,096 tokens, 112 heads of 64, 8 groups of 128."""
    scan = Scan("ssd", 4096, 112, 8, 64, 128, chunk, 4)
    predicted_s = core_s(scan, GB10, "forward") + core_s(scan, GB10, "backward")
    assert predicted_s == pytest.approx(1e-3 * published_ms, rel=0.1)


def test_operations_are_those_of_the_papers() -> None:
    """Dao and Gu 2024, listing 1: C B, its product with x, states, and what these put out.

    Yang et al. 2024, equations 8 to 12: K K, Q K, W and U of the solved system, and three products
    with the state.
    """
    length, heads, groups, value, key, chunk = 512, 6, 2, 16, 32, 64
    ssd = Scan("ssd", length, heads, groups, value, key, chunk)
    within = groups * chunk * key + heads * chunk * value
    assert scan_operations(ssd) == 2 * length * (within + 2 * heads * value * key)
    rule = replace(ssd, rule="gated_delta")
    within = heads * (3 * chunk * key + 2 * chunk * value)
    assert scan_operations(rule) == 2 * length * (within + 3 * heads * value * key)


@pytest.mark.parametrize("rule", ["ssd", "gated_delta"])
def test_time_grows_with_the_batch_and_waits_for_the_longest_sequence(rule: str) -> None:
    scan = Scan(rule, 4096, 32, 32, 64, 64, 64)
    one_s, launches = scan_pass(scan, H200, "backward")
    eight_s, same = scan_pass(batched(scan, 8), H200, "backward")  # type: ignore[arg-type]
    assert one_s < eight_s < 8 * one_s
    kernels = scan_table()[rule]["backward"].values()
    assert launches == same == round(4.8 * sum(kernel.get("launches", 1) for kernel in kernels))


def test_a_selective_scan_raises_a_power_for_each_number_of_a_state() -> None:
    """Gu and Dao 2023, equation 4: of 8,192 tokens, 8,192 values and 16 numbers of each's state."""
    scan = Scan("selective", 2048, 8192, 1, 1, 16, 64, 4)
    powers = 8192 * 8192 * 16
    assert scan_operations(scan) == 2 * powers
    rate = H200.multiprocessors * scan_table()["constants"]["powers_per_s"]["value"]
    times_s = kernel_times(scan, H200, "forward")
    assert times_s["selective_scan_fwd"] == pytest.approx(powers / rate + H200.ramp_s)


def test_few_heads_wait_for_their_chunks() -> None:
    """A state is carried from chunk to chunk: two sequences walk theirs at once."""
    one_s = core_s(delta(32768, 1, 2, 4), H200, "forward")
    two_s = core_s(delta(16384, 2, 2, 4), H200, "forward")
    assert one_s > 1.4 * two_s
