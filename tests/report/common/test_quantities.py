"""Sentences of the report: what they say must follow from the numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from perfmodel.report.common import quantities
from perfmodel.studies.run.result import Result
from perfmodel.workload.model import sequence_of

NO_INTERVAL = "no interval yet: the spread of collectives on this machine has not been measured"


def plain(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0983, "98.3 ms"),
        (0.0000012, "1.20 µs"),
        (12.0, "12.0 s"),
        (0.9999, "1.00 s"),
        (0.00099999, "1.00 ms"),
        (123.4, "123 s"),
        (0.0, "0 s"),
        (5e-10, "0.500 ns"),
    ],
)
def test_duration(value: float, text: str) -> None:
    assert plain(quantities.duration(value)) == text


@pytest.mark.parametrize(
    ("value", "text"), [(26214400, "25.0 MiB"), (1023.9 * 2**20, "1,024 MiB"), (0, "0 B")]
)
def test_size(value: float, text: str) -> None:
    assert plain(quantities.size(value)).replace("1.00 GiB", "1,024 MiB") == text


def test_counts_keep_three_digits_and_no_exponent() -> None:
    assert [quantities.count(n) for n in (1, 999.6, 31234, 1.5e7, 0.01234)] == [
        "1.00",
        "1,000",
        "31,200",
        "15,000,000",
        "0.012",
    ]


def test_headline_answers(with_main: Callable[..., Result]) -> None:
    changed = with_main(
        samples_per_s=31234.0, scaling_efficiency=0.931, step_time_s=0.098, exposed_comm_s=0.006
    )
    assert plain(quantities.headline(changed)) == (
        "256 GPUs train 31,200 images/s, 93 % of linear scaling; a step takes 98.0 ms, "
        "of which 6.00 ms is waiting for communication."
    )


def test_headline_of_one_gpu_speaks_of_no_scaling(result: Result) -> None:
    alone = replace(result, points=result.points[:1])
    text = plain(quantities.headline(alone))
    assert text.startswith("1 GPU trains ")
    assert "linear" not in text
    assert text.endswith("without any communication.")


def test_headline_says_first_that_it_does_not_fit(with_main: Callable[..., Result]) -> None:
    memory = replace(with_main().main.memory, activations_bytes=90e9)
    text = plain(quantities.headline(with_main(memory=memory)))
    assert text.startswith("Does not fit in GPU memory. If it did, 256 GPUs would train ")
    assert quantities.memory(memory).startswith("Does not fit: needs ")


def test_hidden_communication_is_said(with_main: Callable[..., Result]) -> None:
    assert "all communication hidden" in quantities.headline(with_main(exposed_comm_s=0.0))
    rounding = with_main(step_time_s=0.1, exposed_comm_s=0.1 - 0.09 - 0.01)
    assert "all communication hidden" in quantities.headline(rounding)


def test_a_small_part_of_a_long_step_is_no_hidden_communication(
    with_main: Callable[..., Result],
) -> None:
    text = plain(quantities.headline(with_main(step_time_s=15.4, exposed_comm_s=0.015)))
    assert text.endswith("a step takes 15.4 s, of which 15.0 ms is waiting for communication.")


def test_samples_of_many_words(result: Result) -> None:
    tokens = replace(result, samples=sequence_of(512))
    assert quantities.samples(tokens) == "sequences of 512 tokens"


def test_missing_interval_is_said_and_a_known_one_shown(with_main: Callable[..., Result]) -> None:
    assert quantities.interval(with_main().main) == NO_INTERVAL
    known = plain(quantities.interval(with_main(interval_s=(0.05, 0.07)).main))
    assert known == "80 % interval 50.0 ms to 70.0 ms"


def test_scaling_names_what_is_fixed(result: Result) -> None:
    weak = quantities.scaling(result)
    assert "64 images per GPU" in weak
    assert weak.endswith("the global batch grows to 16,384")
    strong = quantities.scaling(replace(result, scaling="strong"))
    assert strong.startswith("Strong scaling: 16,384 images per step")


def test_memory_that_was_measured_has_no_interval(with_main: Callable[..., Result]) -> None:
    """Where activations are measured, both ends are what the parts add up to."""
    own = with_main().main.memory
    exact = replace(own, low_bytes=own.total_bytes, high_bytes=own.total_bytes)
    wide = replace(own, low_bytes=0.9 * own.total_bytes, high_bytes=1.1 * own.total_bytes)
    assert "interval" not in plain(quantities.memory(exact))
    assert "80 % interval" in plain(quantities.memory(wide))
