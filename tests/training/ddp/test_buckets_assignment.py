"""Bucket assignment against the real function of PyTorch, and the shapes its authors document."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.training.ddp.buckets import assign_buckets
from perfmodel.workload.model import ParameterTensor

MIB = 1024 * 1024
DTYPES = ("fp64", "fp32", "bf16", "fp16", "fp8", "int64", "int32", "int8", "uint8")


def tensor(size_mib: float, dtype: str = "fp32") -> ParameterTensor:
    width = {"fp32": 4, "fp16": 2}[dtype]
    return ParameterTensor("t", (int(size_mib * MIB) // width,), dtype)


def torch_dtype(torch: Any, dtype: str) -> Any:
    names = {
        "fp64": "float64",
        "fp32": "float32",
        "bf16": "bfloat16",
        "fp16": "float16",
        "fp8": "float8_e4m3fn",
    }
    return getattr(torch, names.get(dtype, dtype))


@st.composite
def assignments(draw: st.DrawFn) -> tuple[list[ParameterTensor], list[int], list[int] | None, Any]:
    numels = st.one_of(st.integers(0, 40), st.sampled_from([8, 16, 256]))
    shapes = st.one_of(numels.map(lambda n: (n,)), st.tuples(st.integers(1, 9), st.integers(1, 9)))
    dtypes = st.sampled_from(draw(st.lists(st.sampled_from(DTYPES), min_size=1, max_size=5)))
    tensors = draw(
        st.lists(st.builds(ParameterTensor, st.just("t"), shapes, dtypes), min_size=1, max_size=30)
    )
    caps = draw(st.lists(st.integers(0, 600), min_size=1, max_size=5))
    order = draw(st.none() | st.permutations(range(len(tensors))))
    one_flag = st.lists(st.booleans(), min_size=len(tensors), max_size=len(tensors))
    sparse = draw(st.none() | one_flag)
    return tensors, caps, order, sparse


@pytest.mark.slow
@settings(max_examples=500, deadline=None)
@given(assignments())
def test_equals_pytorch(
    case: tuple[list[ParameterTensor], list[int], list[int] | None, Any],
) -> None:
    """Each drawn list in twelve variations: thousands of comparisons in seconds."""
    torch = pytest.importorskip("torch", reason="compares with the real function of PyTorch")
    dist = pytest.importorskip("torch.distributed")
    tensors, caps, order, sparse = case
    real = [torch.empty(each.shape, dtype=torch_dtype(torch, each.dtype)) for each in tensors]
    for indices in (order, order and order[::-1], None):
        listed = real if indices is None else [real[index] for index in indices]
        for flags in (sparse, None):
            for limits in (caps, caps[:1]):
                wanted, _ = dist._compute_bucket_assignment_by_size(
                    listed, limits, flags or [], indices or []
                )
                found = assign_buckets(tensors, limits, indices, sparse=flags)
                assert found == tuple(map(tuple, wanted))


@pytest.fixture(scope="module")
def fake_gpus() -> Any:
    """An empty tensor without memory on each of 16 GPUs, by dtype; and the real function."""
    torch = pytest.importorskip("torch", reason="compares with the real function of PyTorch")
    dist = pytest.importorskip("torch.distributed")
    fake = pytest.importorskip("torch._subclasses")
    with fake.FakeTensorMode():
        tensors = {
            (dtype, gpu): torch.empty(8, dtype=torch_dtype(torch, dtype), device=f"cuda:{gpu}")
            for dtype in DTYPES
            for gpu in range(16)
        }
    return tensors, dist._compute_bucket_assignment_by_size


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    keys=st.lists(st.tuples(st.sampled_from(DTYPES), st.integers(0, 15)), min_size=1, max_size=60),
    caps=st.lists(st.integers(0, 200), min_size=1, max_size=3),
    data=st.data(),
)
def test_each_gpu_fills_buckets_of_its_own(
    fake_gpus: Any, keys: list[tuple[str, int]], caps: list[int], data: st.DataObject
) -> None:
    """With more than 13 and 29 dtypes and GPUs torch's hash map grows, which changes its order."""
    tensors, real = fake_gpus
    order = data.draw(st.permutations(range(len(keys))))
    wanted, _ = real([tensors[keys[index]] for index in order], caps, [], order)
    listed = [ParameterTensor("t", (8,), dtype) for dtype, _ in keys]
    found = assign_buckets(listed, caps, order, devices=[device for _, device in keys])
    assert found == tuple(map(tuple, wanted))


@settings(max_examples=50, deadline=None)
@given(assignments())
def test_every_tensor_is_in_exactly_one_bucket(case: Any) -> None:
    tensors, caps, order, sparse = case
    buckets = assign_buckets(tensors, caps, order, sparse=sparse)
    assert sorted(index for bucket in buckets for index in bucket) == list(range(len(tensors)))
    assert all(len({tensors[index].dtype for index in bucket}) == 1 for bucket in buckets)


# Expected values: torch 2.13's function, as in the comments of pytorch/test/distributed.
@pytest.mark.parametrize(
    ("sizes_mib", "wanted"),
    [
        ([0.5, 0.5, 1, 30, 1, 24, 10], ((0, 1), (2, 3), (4, 5), (6,))),
        ([30, 0.25, 1], ((0,), (1, 2))),
    ],
)
def test_a_bucket_closes_after_the_tensor_that_reaches_its_cap(
    sizes_mib: list[float], wanted: tuple[tuple[int, ...], ...]
) -> None:
    assert assign_buckets([tensor(size) for size in sizes_mib], [MIB, 25 * MIB]) == wanted


def test_each_dtype_has_its_own_first_bucket() -> None:
    mixed = [tensor(1), tensor(1, "fp16"), tensor(4), tensor(2, "fp16"), tensor(36)]
    assert assign_buckets(mixed, [MIB, 25 * MIB]) == ((0,), (1,), (2, 4), (3,))


def test_leftovers_go_last_and_the_newest_dtype_leads_them() -> None:
    tensors = [tensor(1, "fp16"), tensor(1), tensor(30)]
    assert assign_buckets(tensors, [25 * MIB], [0, 2, 1]) == ((2,), (1,), (0,))


def test_tf32_fills_the_buckets_of_fp32() -> None:
    tensors = [ParameterTensor("a", (4,), "fp32"), ParameterTensor("b", (4,), "tf32")]
    assert assign_buckets(tensors, [1000]) == ((0, 1),)


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (([], [1]), "tensors"),
        (([tensor(1)], []), "caps_bytes"),
        (([tensor(1)], [1], [1]), "order"),
    ],
)
def test_refuses_what_torch_would_crash_on(arguments: Any, field: str) -> None:
    with pytest.raises(InputError) as caught:
        assign_buckets(*arguments)
    assert [fault.field for fault in caught.value.faults] == [field]


def test_two_faults_are_told_at_once() -> None:
    with pytest.raises(InputError) as caught:
        assign_buckets([tensor(1)], [], sparse=[True, False])
    assert [fault.field for fault in caught.value.faults] == ["caps_bytes", "sparse"]
