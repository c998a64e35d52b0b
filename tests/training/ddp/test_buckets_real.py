"""Our buckets against those that DistributedDataParallel reports of itself, in every mode.

Two processes train a small model on gloo (``ddp_on_gloo.py``); one launch serves all modes.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from perfmodel.training.ddp.buckets import ddp_buckets
from perfmodel.training.ddp.options import DdpOptions, cap_bytes
from perfmodel.workload.model import ParameterTensor
from tests.forked_ranks import run_ranks

NAMES = {"float32": "fp32", "float64": "fp64", "bfloat16": "bf16"}


def caps(*caps_mb: float) -> tuple[float, ...]:
    return tuple(cap_bytes(cap) for cap in caps_mb)


MODES = {
    "default": DdpOptions(),
    "one cap": DdpOptions(bucket_cap=cap_bytes(3)),
    "fractional cap": DdpOptions(bucket_cap=cap_bytes(0.3)),
    "find unused": DdpOptions(find_unused_parameters=True),
    "find unused, one cap": DdpOptions(find_unused_parameters=True, bucket_cap=cap_bytes(2)),
    "static graph": DdpOptions(static_graph=True),
    "static graph, find unused": DdpOptions(static_graph=True, find_unused_parameters=True),
    "list": DdpOptions(bucket_caps=caps(1, 4, 2)),
    "list, find unused": DdpOptions(bucket_caps=caps(2, 1), find_unused_parameters=True),
    "views": DdpOptions(gradient_as_bucket_view=True),
    "mixed": DdpOptions(),
    "mixed, one cap": DdpOptions(bucket_cap=cap_bytes(1)),
    "mixed, find unused": DdpOptions(find_unused_parameters=True),
    "first bucket": DdpOptions(first_bucket=300_000),
    "small last": DdpOptions(set_last_bucket_cap=True),
    "small last, list": DdpOptions(set_last_bucket_cap=True, bucket_caps=caps(1, 4, 2)),
}


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What rank 0 logged; both processes end with the test, whatever happens."""
    torch = pytest.importorskip("torch", reason="runs the real DistributedDataParallel")
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 13):
        pytest.skip(f"needs torch 2.13 (bucket_cap_mb_list), found {torch.__version__}")
    folder = tmp_path_factory.mktemp("gloo")
    run_ranks("tests.training.ddp.ddp_on_gloo", "report_buckets", 2, folder)
    return json.loads((folder / "report.json").read_text())


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.replace(",", " ").split()]


@pytest.mark.slow
def test_every_mode_was_run(report: Any) -> None:
    assert set(report) == set(MODES)


@pytest.mark.parametrize("mode", list(MODES))
def test_buckets_are_those_of_ddp(report: Any, mode: str) -> None:
    logged, options = report[mode], MODES[mode]
    tensors = [
        ParameterTensor(name, tuple(shape), NAMES[dtype])
        for name, shape, dtype in logged["tensors"]
    ]
    first = ddp_buckets(tensors, options, iteration="first")
    assert [bucket.nbytes for bucket in first] == numbers(logged["initial"])
    steady = ddp_buckets(tensors, options, ready_order=numbers(logged["ready"]))
    assert logged["has_rebuilt"] == options.rebuilds
    if not options.rebuilds:
        assert steady == first
        return
    assert [bucket.nbytes for bucket in steady] == numbers(logged["rebuilt"])
    members = [tuple(numbers(part)) for part in logged["rebuilt_indices"].split(",")]
    assert [bucket.tensors for bucket in steady] == members
