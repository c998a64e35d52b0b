"""Offloaded activations: copies over the host's link, and what stays on the GPU."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.workload import Layer, LayerTimes, Workload, build_model
from perfmodel.workload.memory.activations import block_bytes
from perfmodel.workload.memory.blocks import add_offload
from perfmodel.workload.memory.recompute import Recompute
from tests.activations import activation_bytes


def model(blocks: int) -> Workload:
    layers = [Layer(f"h.{number}", saved_elements=1.0) for number in range(blocks)]
    return Workload("toy", (), (*layers, Layer("head", saved_elements=1.0)))


def times(forward_s: list[float], backward_s: list[float]) -> LayerTimes:
    ones = np.ones(len(forward_s), dtype=np.int64)
    return LayerTimes(
        np.array(forward_s), np.array(backward_s), ones, ones, 0.0, 0.0, 0, 1e12, "test"
    )


def added(blocks: int, compute_s: float, copy_s: float, offload: str) -> tuple[float, float]:
    own = times([compute_s] * (blocks + 1), [compute_s] * (blocks + 1))
    other = add_offload(model(blocks), own, [copy_s] * blocks, offload, 1.0)  # type: ignore[arg-type]
    return (
        other.forward_s.sum() - own.forward_s.sum(),
        other.backward_s.sum() - own.backward_s.sum(),
    )


def test_copies_in_the_stream_of_the_layers_take_their_time() -> None:
    assert added(5, 1.0, 0.3, "blocking") == pytest.approx((4 * 0.3, 4 * 0.3))


def test_short_copies_beside_layers_take_none() -> None:
    assert added(5, 1.0, 0.9, "overlapped") == pytest.approx((0.0, 0.0))


def test_long_copies_set_the_pace() -> None:
    """Backward: each of n - 1 blocks comes 3 s after the one before it, whose layers take 1 s.

    Forward: block i ends when the copies of i - 1 blocks have, which began after the first.
    """
    forward_s, backward_s = added(5, 1.0, 3.0, "overlapped")
    assert backward_s == pytest.approx(4 * (3.0 - 1.0))
    assert forward_s == pytest.approx((1.0 + 4 * 3.0) - 5 * 1.0)


@given(
    blocks=st.integers(2, 12),
    compute_s=st.floats(0.1, 10),
    copy_s=st.floats(0, 10),
)
def test_copies_beside_layers_cost_no_more_than_in_their_stream(
    blocks: int, compute_s: float, copy_s: float
) -> None:
    blocking, overlapped = (
        added(blocks, compute_s, copy_s, each) for each in ("blocking", "overlapped")
    )
    for alone, beside in zip(blocking, overlapped, strict=True):
        assert -1e-9 <= beside <= alone + 1e-9
        assert beside >= (blocks - 1) * copy_s - blocks * compute_s - 1e-9  # the link's bound


def test_blocks_leave_the_gpu() -> None:
    gpt2 = build_model("gpt2")
    each = block_bytes(gpt2, 4, "bf16")
    held = {
        offload: activation_bytes(gpt2, 4, "bf16", offload=offload)  # type: ignore[arg-type]
        for offload in ("none", "blocking", "overlapped")
    }
    assert len(each) == 12
    assert held["none"] - held["blocking"] == pytest.approx(11 * each[0])
    assert held["none"] - held["overlapped"] == pytest.approx(10 * each[0])
    full = Recompute("full")
    inputs = block_bytes(gpt2, 4, "bf16", recompute=full)
    assert inputs == [4 * 1024 * 768 * 4] * 12
    both = activation_bytes(gpt2, 4, "bf16", recompute=full, offload="blocking")
    assert activation_bytes(gpt2, 4, "bf16", recompute=full) - both == pytest.approx(11 * inputs[0])


def test_refuses_what_cannot_be_offloaded() -> None:
    with pytest.raises(InputError, match="no repeated blocks"):
        activation_bytes(build_model("inception-v3"), 1, "fp32", offload="blocking")
    with pytest.raises(InputError, match="connects GPUs with CPUs"):
        add_offload(model(3), times([1.0] * 4, [1.0] * 4), [1.0] * 3, "blocking", None)
    unknown = replace(model(3), layers=tuple(Layer(f"h.{i}") for i in range(3)))
    with pytest.raises(InputError, match="no activations are known"):
        activation_bytes(unknown, 1, "fp32", offload="blocking")
