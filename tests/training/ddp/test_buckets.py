"""Buckets of known models, recorded from real runs, and the rules that choose the caps."""

from __future__ import annotations

import math
import sys
from typing import Any

import pytest
from pydantic import ValidationError

from perfmodel.errors import InputError
from perfmodel.training.ddp.buckets import bucket_caps, ddp_buckets, gradient_order
from perfmodel.training.ddp.options import MIB, DdpOptions
from perfmodel.workload.model import Layer, ParameterTensor, Workload
from perfmodel.workload.zoo import build_model


def sizes(model: str, options: DdpOptions, **kwargs: Any) -> list[int]:
    return [bucket.nbytes for bucket in ddp_buckets(build_model(model), options, **kwargs)]


# Sizes in launch order that real runs logged: github.com/pytorch/pytorch/issues/48880.
@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (DdpOptions(), [2052000, 28852224, 15853824]),
        (
            DdpOptions(bucket_cap=35 * MIB, first_bucket=MIB),
            [2052000, 38297600, 6408448],
        ),
        # torch 2.13: an explicit cap counts for the first bucket too
        (DdpOptions(bucket_cap=25 * MIB), [30904224, 15853824]),
        # torch 2.13 with find_unused_parameters=True
        (DdpOptions(find_unused_parameters=True), [11497376, 33744896, 1515776]),
    ],
)
def test_resnet18(options: DdpOptions, wanted: list[int]) -> None:
    assert sizes("resnet18", options) == wanted


def test_resnet50_as_in_a_trace_of_two_gpus() -> None:
    elements = [nbytes // 4 for nbytes in sizes("resnet50", DdpOptions())]
    assert elements == [2049000, 7875584, 6563840, 6637568, 2431040]


@pytest.mark.parametrize("model", ["resnet50", "bert-large", "gpt2-xl", "vgg16"])
@pytest.mark.parametrize("iteration", ["first", "steady"])
def test_buckets_hold_every_parameter_once(model: str, iteration: Any) -> None:
    workload = build_model(model)
    buckets = ddp_buckets(workload, DdpOptions(), iteration=iteration)
    members = sorted(index for bucket in buckets for index in bucket.tensors)
    assert members == sorted(gradient_order(workload))
    assert sum(bucket.nbytes for bucket in buckets) == workload.nbytes
    assert [bucket.index for bucket in buckets] == list(range(len(buckets)))


def test_first_iteration_has_one_bucket_per_dtype() -> None:
    assert sizes("resnet18", DdpOptions(), iteration="first") == [46758048]
    mixed = [
        ParameterTensor("a", (4,)),
        ParameterTensor("b", (8,), "bf16"),
        ParameterTensor("c", (4,)),
    ]
    first = ddp_buckets(mixed, DdpOptions(), iteration="first")
    assert [(bucket.tensors, bucket.dtype) for bucket in first] == [
        ((1,), "bf16"),
        ((0, 2), "fp32"),
    ]


@pytest.mark.parametrize(
    ("options", "initial", "rebuilt"),
    [
        (DdpOptions(), (sys.maxsize,), (MIB, 25 * MIB)),
        (DdpOptions(bucket_cap=7.9), (sys.maxsize,), (7, 7)),
        (DdpOptions(find_unused_parameters=True), (MIB, 25 * MIB), None),
        (DdpOptions(find_unused_parameters=True, bucket_cap=9.0), (9,), None),
        (
            DdpOptions(find_unused_parameters=True, static_graph=True),
            (sys.maxsize,),
            (MIB, 25 * MIB),
        ),
        (DdpOptions(first_bucket=30 * MIB), (sys.maxsize,), (30 * MIB, 25 * MIB)),
        (DdpOptions(bucket_caps=(5.0, 6.0)), (5, 6), (5, 6)),
        (DdpOptions(bucket_caps=(5.0, 6.0), find_unused_parameters=True), (5, 6), None),
    ],
)
def test_caps(
    options: DdpOptions, initial: tuple[int, ...], rebuilt: tuple[int, ...] | None
) -> None:
    assert bucket_caps(options) == (initial, rebuilt)


def test_small_bucket_can_be_launched_last() -> None:
    usual = sizes("resnet18", DdpOptions())
    late = sizes("resnet18", DdpOptions(set_last_bucket_cap=True))
    assert sum(usual) == sum(late)
    assert late[-1] < 2 * MIB < late[0]


def test_frozen_tensors_are_not_reduced() -> None:
    tensors = (
        ParameterTensor("frozen", (100,)),
        ParameterTensor("a", (10,)),
        ParameterTensor("b", (20,)),
    )
    workload = Workload("partly", tensors, (Layer("one", (1,)), Layer("two", (2,))))
    for iteration in ("first", "steady"):
        (bucket,) = ddp_buckets(workload, DdpOptions(), iteration=iteration)
        assert sorted(bucket.tensors) == [1, 2]
        assert bucket.nbytes == 120


def test_layers_must_share_the_tensors_out() -> None:
    tensors = (ParameterTensor("a", (10,)), ParameterTensor("b", (20,)))
    workload = Workload("bad", tensors, (Layer("one", (0, 1)), Layer("two", (1, 7))))
    with pytest.raises(InputError) as caught:
        gradient_order(workload)
    assert len(caught.value.faults) == 2


def test_a_ready_order_must_be_complete() -> None:
    tensors = [ParameterTensor("a", (1,)), ParameterTensor("b", (1,))]
    with pytest.raises(InputError, match="missing \\[1\\], unknown \\[5\\]"):
        ddp_buckets(tensors, DdpOptions(), ready_order=[0, 5])


def test_nothing_to_train_is_refused() -> None:
    with pytest.raises(InputError, match="at least one parameter"):
        ddp_buckets([], DdpOptions())


def test_every_wrong_option_is_named_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        DdpOptions(
            bucket_cap=0,
            first_bucket=math.nan,
            bucket_caps=(1.0, -1.0, math.inf),
            accumulate=0,
        )
    fields = [".".join(map(str, fault["loc"])) for fault in caught.value.errors()]
    assert fields == [
        "bucket_cap",
        "first_bucket",
        "bucket_caps.1",
        "bucket_caps.2",
        "accumulate",
    ]
    with pytest.raises(ValidationError, match="at least 1 item"):
        DdpOptions(bucket_caps=())
    with pytest.raises(ValidationError, match="not both"):
        DdpOptions(bucket_caps=(5.0, 6.0), bucket_cap=9.0)
