"""The JSON contract: the agreed keys, finite numbers, one entry per size."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from perfmodel.errors import InputError
from perfmodel.report.run.text import to_json
from perfmodel.studies.run.result import Result

# Keys that other programs were promised for ``perfmodel run --json``.
PROMISED = {
    "step_time_s",
    "compute_s",
    "comm_s",
    "exposed_comm_s",
    "samples_per_s",
    "scaling_efficiency",
    "bottleneck",
    "bottleneck_path",
    "global_batch",
    "scaling",
    "memory_bytes",
    "fits",
    "interval_s",
    "buckets",
    "assumptions",
    "provenance",
}


def test_promised_keys_are_there_and_speak_of_the_main_point(result: Result) -> None:
    document = to_json(result)
    assert document.keys() >= PROMISED
    assert document["gpus"] == 256
    assert document["step_time_s"] == result.main.step_time_s
    assert document["interval_s"] is None
    assert document["scaling"] == "weak"
    assert document["memory_bytes"] == result.main.memory.total_bytes
    assert [bucket["nbytes"] for bucket in document["buckets"]] == [
        8_196_000,
        31_502_336,
        26_255_360,
        26_550_272,
        9_724_160,
    ]
    assert document["buckets"][0].keys() >= {"index", "nbytes", "ready_s", "start_s", "end_s"}


def test_curve_has_the_same_values_for_every_size(result: Result) -> None:
    document = to_json(result)
    assert [point["gpus"] for point in document["curve"]] == [1, 8, 16, 64, 128, 256]
    last = document["curve"][-1]
    assert {key: document[key] for key in last} == last


def test_document_survives_json(result: Result, with_main: Callable[..., Result]) -> None:
    document = to_json(with_main(interval_s=(0.05, 0.07)))
    assert document["interval_s"] == [0.05, 0.07]
    assert json.loads(json.dumps(document, allow_nan=False)) == document


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_number_that_is_not_finite_is_refused_by_name(
    with_main: Callable[..., Result], bad: float
) -> None:
    with pytest.raises(InputError, match="exposed_comm_s"):
        to_json(with_main(exposed_comm_s=bad))
