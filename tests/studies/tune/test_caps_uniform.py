"""Every partition that one cap can make, against PyTorch's function at every cap there is."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.studies.tune.caps import (
    assign_buckets,
    list_uniform_partitions,
    order_gradients,
    with_caps,
)
from perfmodel.training.ddp.options import MIB, DdpOptions, cap_bytes
from perfmodel.workload import load_workload
from perfmodel.workload.model import Layer, ParameterTensor, Workload

DTYPES = {"fp32": "float32", "fp16": "float16", "fp64": "float64"}


@st.composite
def workloads(draw: st.DrawFn, most: int = 9) -> Workload:
    kinds = st.sampled_from(draw(st.lists(st.sampled_from(list(DTYPES)), min_size=1, max_size=2)))
    sizes = draw(st.lists(st.integers(1, 9), min_size=1, max_size=most))
    tensors = tuple(
        ParameterTensor(f"t{at}", (size,), draw(kinds)) for at, size in enumerate(sizes)
    )
    order = draw(st.permutations(range(len(sizes))))
    layers = tuple(Layer(f"l{at}", (tensor,)) for at, tensor in enumerate(order))
    return Workload("made", tensors, layers)


def torch_groups(workload: Workload, cap: int, rebuilds: bool) -> tuple[tuple[int, ...], ...]:
    """As Reducer::rebuild_buckets and DistributedDataParallel's constructor call it."""
    torch: Any = pytest.importorskip("torch", reason="compares with the real function of PyTorch")
    dist: Any = pytest.importorskip("torch.distributed")
    real = [torch.empty(t.shape, dtype=getattr(torch, DTYPES[t.dtype])) for t in workload.tensors]
    order = list(workload.ready_order) if rebuilds else []
    listed = [real[index] for index in order] if rebuilds else real
    found, _ = dist._compute_bucket_assignment_by_size(listed, [cap], [], order)
    return tuple(map(tuple, found if rebuilds else reversed(found)))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(workloads(), st.booleans())
def test_no_cap_makes_other_buckets(workload: Workload, rebuilds: bool) -> None:
    """Sizes are bytes here, so that every cap there is can be tried."""
    options = DdpOptions(find_unused_parameters=not rebuilds)
    gradients = order_gradients(workload, options)
    found = list_uniform_partitions(workload, gradients, options)
    for cap in range(1, gradients.sums[-1] + 3):
        holding = [one for one in found if one.window.above_bytes < cap <= one.window.most_bytes]
        assert len(holding) == 1
        assert holding[0].groups == torch_groups(workload, cap, rebuilds)


@settings(max_examples=60, deadline=None)
@given(workloads(), st.booleans())
def test_neighbouring_windows_touch_and_differ(workload: Workload, rebuilds: bool) -> None:
    options = DdpOptions(find_unused_parameters=not rebuilds)
    found = list_uniform_partitions(workload, order_gradients(workload, options), options)
    assert found[0].window.above_bytes == 0
    assert math.isinf(found[-1].window.most_bytes)
    for one, two in itertools.pairwise(found):
        assert one.window.most_bytes == two.window.above_bytes
        assert one.groups != two.groups


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "bert-base", "llama2-7b"])
def test_the_short_number_makes_the_buckets(name: str) -> None:
    workload, options = load_workload(name), DdpOptions()
    for one in list_uniform_partitions(workload, order_gradients(workload, options), options)[::17]:
        assert (
            assign_buckets(workload, with_caps(options, for_all=float(cap_bytes(one.cap_mb))))
            == one.groups
        )
        assert len(f"{one.cap_mb}") <= 12


def test_caps_of_resnet18_are_as_its_authors_saw() -> None:
    """pytorch/pytorch#48880 lists sizes by cap; without the first bucket they are these."""
    workload, options = load_workload("resnet18"), DdpOptions()
    gradients = order_gradients(workload, options)
    partitions = list_uniform_partitions(workload, gradients, options)
    found = {cap: one for one in partitions for cap in (25, 46) if one.window.contains(cap)}
    assert [gradients.size(group) for group in found[25].groups] == [30_904_224, 15_853_824]
    assert [gradients.size(group) for group in found[46].groups] == [46_758_048]
    default = assign_buckets(workload, with_caps(options))
    assert [gradients.size(group) for group in default] == [2_052_000, 28_852_224, 15_853_824]


def test_a_partition_is_named_once_though_its_last_bucket_closes_or_not() -> None:
    """8 bytes: with a cap of 8 the last bucket closes, with 9 it is what is left over."""
    workload = Workload("two", (ParameterTensor("a", (2,)), ParameterTensor("b", (2,))), ())
    options = DdpOptions()
    found = list_uniform_partitions(workload, order_gradients(workload, options), options)
    assert [one.groups for one in found] == [((1,), (0,)), ((1, 0),)]
    assert found[0].window.high_mb == 9 / MIB
