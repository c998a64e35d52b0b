"""Lists of caps that make given buckets, through PyTorch's own function."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.studies.tune.caps import (
    GradientOrder,
    Window,
    caps_mb,
    find_windows,
    format_caps,
    integer_cap_mb,
    integer_caps_mb,
    merge_last_windows,
    order_gradients,
    round_cap_mb,
)
from perfmodel.studies.tune.exact import allow_integer_caps
from perfmodel.training.ddp.options import MIB, DdpOptions, cap_bytes
from perfmodel.workload import load_workload
from perfmodel.workload.model import ParameterTensor, Workload


def workload_of(elements: list[int]) -> Workload:
    return Workload(
        "made", tuple(ParameterTensor(f"t{at}", (n,)) for at, n in enumerate(elements)), ()
    )


def torch_groups(workload: Workload, caps: list[int], reverse_filled: bool) -> Any:
    torch: Any = pytest.importorskip("torch", reason="compares with the real function of PyTorch")
    dist: Any = pytest.importorskip("torch.distributed")
    real = [torch.empty(tensor.shape, device="meta") for tensor in workload.tensors]
    order = list(reversed(range(len(real))))
    listed, indices = (real, []) if reverse_filled else ([real[at] for at in order], order)
    found, _ = dist._compute_bucket_assignment_by_size(listed, caps, [], indices)
    return tuple(map(tuple, reversed(found) if reverse_filled else found))


@st.composite
def partitions(draw: st.DrawFn) -> tuple[Workload, GradientOrder, tuple[int, ...]]:
    large = draw(st.sampled_from([300_000, 3_000_000]))  # whole MiB seldom do, or mostly
    elements = draw(st.lists(st.integers(1, large), min_size=1, max_size=12))
    workload = workload_of(elements)
    options = DdpOptions(find_unused_parameters=draw(st.booleans()))
    gradients = order_gradients(workload, options)
    ends = draw(st.sets(st.integers(1, len(gradients))))
    return workload, gradients, tuple(sorted(ends | {len(gradients)}))


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(partitions())
def test_a_list_reaches_every_partition_in_pytorch(case: Any) -> None:
    workload, gradients, cuts = case
    groups = gradients.groups(cuts)
    windows = find_windows(gradients, groups)
    assert windows is not None
    caps = caps_mb(windows)
    assert (
        torch_groups(workload, [int(cap * MIB) for cap in caps], gradients.reverse_filled) == groups
    )
    assert len(caps) <= len(groups)
    pasted = eval(format_caps(caps))
    assert tuple(pasted) == caps


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(partitions())
def test_whole_numbers_reach_what_is_said_to_be_reachable(case: Any) -> None:
    workload, gradients, cuts = case
    groups = gradients.groups(cuts)
    allowed = allow_integer_caps(gradients)
    reachable = all(allowed[a, b] for a, b in zip((0, *cuts), cuts, strict=False))
    windows = find_windows(gradients, groups)
    assert windows is not None
    assert all(integer_cap_mb(window) is not None for window in windows) == reachable
    caps = integer_caps_mb(windows)
    if caps is not None:
        assert (
            torch_groups(workload, [cap * MIB for cap in caps], gradients.reverse_filled) == groups
        )


@given(st.integers(0, 10**10), st.integers(1, 10**9))
def test_a_short_number_is_within_its_window(above: int, more: int) -> None:
    window = Window(above, above + more)
    assert window.contains(round_cap_mb(window))


def test_a_window_of_one_byte_is_reached() -> None:
    """The float is exact where no short decimal fits."""
    window = Window(123_456_789, 123_456_790)
    assert cap_bytes(round_cap_mb(window)) == 123_456_790


@given(st.integers(0, 10**9))
def test_what_is_left_over_takes_any_larger_cap(above: int) -> None:
    window = Window(above, math.inf)
    assert window.contains(round_cap_mb(window))
    assert round_cap_mb(window) == int(round_cap_mb(window))


def test_the_last_cap_serves_as_many_buckets_as_it_can() -> None:
    same = [Window(MIB, 2 * MIB), Window(5 * MIB, 9 * MIB), Window(7 * MIB, math.inf)]
    assert merge_last_windows(same) == (Window(MIB, 2 * MIB), Window(7 * MIB, 9 * MIB))


def test_dtypes_share_the_list_by_position() -> None:
    """First buckets of 4 and of 2 MiB close with one cap only if it lies in both windows."""
    tensors = [
        ParameterTensor("a", (MIB // 4,)),
        ParameterTensor("b", (MIB // 4,)),
        ParameterTensor("c", (MIB,), "fp16"),
    ]
    gradients = order_gradients(Workload("mixed", tuple(tensors), ()), DdpOptions())
    apart = ((2,), (1,), (0,))
    assert find_windows(gradients, apart) == (Window(0, MIB), Window(0, math.inf))
    together = ((2,), (1, 0))
    assert find_windows(gradients, together) == (Window(MIB, math.inf),)


@pytest.mark.parametrize(("name", "most"), [("resnet50", 2), ("llama2-7b", 1)])
def test_the_default_is_a_list_as_well(name: str, most: int) -> None:
    workload = load_workload(name)
    gradients = order_gradients(workload, DdpOptions())
    caps = [MIB, 25 * MIB]
    groups = torch_groups_of_zoo(workload, caps)
    windows = find_windows(gradients, groups)
    assert windows is not None
    found = [int(cap * MIB) for cap in caps_mb(windows)]
    assert torch_groups_of_zoo(workload, found) == groups
    assert len(found) == most


def torch_groups_of_zoo(workload: Workload, caps: list[int]) -> Any:
    torch: Any = pytest.importorskip("torch", reason="compares with the real function of PyTorch")
    dist: Any = pytest.importorskip("torch.distributed")
    order = list(workload.ready_order)
    real = [torch.empty(workload.tensors[at].shape, device="meta") for at in order]
    found, _ = dist._compute_bucket_assignment_by_size(real, caps, [], order)
    return tuple(map(tuple, found))
