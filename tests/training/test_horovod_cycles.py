"""Horovod's fusion by its own rules, and by what a real Horovod fused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.arrays import round_up
from perfmodel.training.horovod_cycles import (
    FusionRules,
    bit_vector_bytes,
    buffer_bytes,
    fuse_tensors,
    run_cycles,
)
from perfmodel.workload.model import ITEM_BYTES

RECORDED = json.loads(Path(__file__).with_name("horovod_cases.json").read_text())
MS = 1e-3


@pytest.mark.parametrize("case", RECORDED["cases"], ids=lambda case: str(case["threshold"]))
def test_a_cycle_fuses_what_horovod_fused(case: dict[str, Any]) -> None:
    """New tensors, and cached ones, whose order is that of their last use."""
    dtypes = case["dtypes"]
    nbytes = [n * ITEM_BYTES[dtype] for n, dtype in zip(case["numel"], dtypes, strict=True)]
    limit = buffer_bytes(case["threshold"], RECORDED["ranks"])
    fused = fuse_tensors(nbytes, dtypes, range(len(nbytes)), limit)
    assert [list(members) for members in fused] == case["fused"]
    used = list(itertools.chain(*fused))
    again = fuse_tensors(nbytes, dtypes, used, limit)
    assert [list(members) for members in again] == case["fused_cached"]


def test_the_cases_cover_the_rules() -> None:
    cases = RECORDED["cases"]
    groups = [members for case in cases for members in case["fused"]]
    skips = [m for m in groups if any(b - a > 1 for a, b in itertools.pairwise(m))]
    assert len(cases) > 30
    assert len(skips) > 10  # a tensor was skipped, and looked behind
    assert {len(set(case["dtypes"])) for case in cases} == {1, 2, 3}


def test_a_tensor_too_large_closes_the_buffer() -> None:
    """50 does not fit beside 70; nor is 20, which would, looked for behind it."""
    assert fuse_tensors([70, 50, 20, 10], ["fp32"] * 4, range(4), 100) == [(0,), (1, 2, 3)]


def test_another_dtype_is_skipped_while_it_would_fit() -> None:
    dtypes = ["fp32", "fp16", "fp32", "fp32"]
    assert fuse_tensors([10, 80, 10, 10], dtypes, range(4), 100) == [(0, 2, 3), (1,)]
    assert fuse_tensors([10, 95, 10, 10], dtypes, range(4), 100) == [(0,), (1,), (2, 3)]


def rules(nbytes: list[int], **changed: Any) -> FusionRules:
    usual: dict[str, Any] = {
        "dtypes": ("fp32",) * len(nbytes),
        "padding": 1,
        "limit": 10**9,
        "cycle_s": MS,
        "agreement_s": 0.0,
    }
    return FusionRules(nbytes=tuple(nbytes), **(usual | changed))


def test_what_is_handed_over_before_a_cycle_begins_is_its() -> None:
    """Cycles begin 0.5, 1.5, 2.5 ... ms after backward began."""
    cycles = run_cycles(rules([1] * 4), [0.2 * MS, 0.5 * MS, 1.1 * MS, 5.0 * MS])
    assert [cycle.fused for cycle in cycles] == [((0, 1),), ((2,),), ((3,),)]
    assert [cycle.agreed_s for cycle in cycles] == pytest.approx([0.5 * MS, 1.5 * MS, 5.5 * MS])
    assert [cycle.waits_s for cycle in cycles] == pytest.approx([0.0, 0.4 * MS, 0.5 * MS])


def test_agreeing_longer_than_a_cycle_makes_cycles_longer() -> None:
    cycles = run_cycles(rules([1] * 3, agreement_s=3 * MS), [0.0, 2 * MS, 4 * MS])
    assert [cycle.fused for cycle in cycles] == [((0,),), ((1, 2),)]
    assert [cycle.agreed_s for cycle in cycles] == pytest.approx([4.5 * MS, 7.5 * MS])


def test_a_thread_that_reduces_itself_begins_no_cycle_meanwhile() -> None:
    """On CPUs: 10 ms for the first tensor, while the others gather."""
    cycles = run_cycles(
        rules([1] * 4, reduction_s=lambda members: 10 * MS), [0.0, 2 * MS, 4 * MS, 12 * MS]
    )
    assert [cycle.fused for cycle in cycles] == [((0,),), ((1, 2),), ((3,),)]
    assert [cycle.agreed_s for cycle in cycles] == pytest.approx([0.5 * MS, 10.5 * MS, 20.5 * MS])
    assert [cycle.waits_s for cycle in cycles] == pytest.approx([0.5 * MS, 0.0, 0.0])


def test_the_order_of_cached_tensors_settles() -> None:
    """All fp32 are used before all fp16, and are so from then on."""
    mixed = rules([60, 10, 60, 10], dtypes=("fp32", "fp16", "fp32", "fp16"), limit=130)
    assert run_cycles(mixed, [0.0] * 4, steady=False)[0].fused == ((0, 2), (1, 3))
    assert run_cycles(mixed, [0.0] * 4)[0].fused == ((0, 2), (1, 3))


def test_sizes_of_buffer_and_bits() -> None:
    """64 doubles for each rank of a host; three bits of status; words of 64 bits."""
    assert buffer_bytes(128 * 2**20, 8) == 128 * 2**20
    assert buffer_bytes(1, 3) == 3 * 64 * 8
    assert [bit_vector_bytes(n) for n in (61, 62, 161)] == [8, 16, 24]


@pytest.mark.slow
@given(
    st.lists(st.tuples(st.integers(1, 300), st.sampled_from(["fp32", "fp16"])), max_size=30),
    st.integers(0, 600),
    st.sampled_from([1, 16]),
    st.floats(0.0, 2 * MS),
    st.floats(0.0, 3 * MS),
    st.lists(st.floats(0.0, 3 * MS), min_size=30, max_size=30),
    st.booleans(),
)
def test_each_gradient_travels_once_and_no_buffer_overflows(
    tensors: list[tuple[int, str]],
    limit: int,
    padding: int,
    cycle_s: float,
    agreement_s: float,
    gaps_s: list[float],
    waits: bool,
) -> None:
    nbytes, dtypes = [size for size, _ in tensors], tuple(dtype for _, dtype in tensors)
    handed = list(itertools.accumulate(gaps_s))[: len(tensors)]
    reduction_s = (lambda members: MS * len(members)) if waits else None
    cycles = run_cycles(
        rules(
            nbytes,
            dtypes=dtypes,
            limit=limit,
            padding=padding,
            cycle_s=cycle_s,
            agreement_s=agreement_s,
            reduction_s=reduction_s,
        ),
        handed,
    )
    groups = [members for cycle in cycles for members in cycle.fused]
    assert sorted(itertools.chain(*groups)) == list(range(len(tensors)))
    for members in groups:
        assert len({dtypes[member] for member in members}) == 1
        size = sum(round_up(nbytes[member], padding) for member in members)
        assert len(members) == 1 or size <= limit
    for cycle in cycles:
        latest = max(handed[member] for members in cycle.fused for member in members)
        assert cycle.agreed_s >= latest + agreement_s - 1e-12
        assert cycle.waits_s >= -1e-12
        if not waits:
            assert cycle.waits_s <= max(cycle_s, agreement_s) + agreement_s + 1e-12
    starts = [cycle.agreed_s for cycle in cycles]
    assert all(b - a >= cycle_s - 1e-12 for a, b in itertools.pairwise(starts))
