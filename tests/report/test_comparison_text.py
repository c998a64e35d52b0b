"""Which side of a comparison is named the winner, per sample and with what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from perfmodel.report.common import quantities
from perfmodel.report.common.html import render_block
from perfmodel.report.comparison import comparison_html, figures_table
from perfmodel.report.comparison_text import column_names, headline, sentences
from perfmodel.scenario import load_scenario
from perfmodel.studies.compare import compare
from perfmodel.studies.comparison import Change, Comparison, Side
from perfmodel.studies.run.result import Relief, SizeResult

SMALL = ("scale=null", "model.name=resnet18", "cluster.nodes=2")


@pytest.fixture(scope="module")
def four() -> Comparison:
    """A base, a quicker hook, a larger batch whose step is longer, and more buckets."""
    fields = ("", "strategy.hook=fp16", "training.batch_per_gpu=256", "strategy.bucket_cap=5 MiB")
    name = "bucket-size-slow-ethernet"
    asked = {f or name: load_scenario(name, [*SMALL, *([f] if f else [])]) for f in fields}
    return compare(asked, jobs=1)


def with_throughputs(
    comparison: Comparison, changes: Sequence[tuple[float, tuple[float, float]]]
) -> Comparison:
    differences = tuple(
        replace(each, throughput=Change(*change))
        for each, change in zip(comparison.differences, changes, strict=True)
    )
    return replace(comparison, differences=differences)


def test_the_winner_has_the_least_time_per_sample_not_the_shortest_step(four: Comparison) -> None:
    steps = [side.point.step_time_s for side in four.sides]
    rates = [side.point.samples_per_s for side in four.sides]
    assert steps[2] == max(steps)
    assert rates[2] == max(rates)
    assert headline(four).startswith("training.batch_per_gpu=256 is the quickest: ")
    (sentence,) = [line for line in sentences(four) if line.startswith("C, training.batch")]
    assert "a sample takes" in sentence
    cells = {row[0]: row[1:] for row in figures_table(four).rows}
    assert list(cells["time per sample"]) == [quantities.duration(1 / rate) for rate in rates]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ([(0.9, (0.8, 0.95))] * 3, ": nothing else here is quicker"),
        (
            [(0.9, (0.8, 0.95)), (1.02, (0.9, 1.1)), (0.5, (0.4, 0.6))],
            "training.batch_per_gpu=256 may be: 2.0 % less time per sample",
        ),
        (
            [(1.25, (1.2, 1.6)), (1.5, (0.9, 1.9)), (0.5, (0.4, 0.6))],
            "than bucket-size-slow-ethernet; training.batch_per_gpu=256 may be quicker still",
        ),
        (
            [(1.25, (1.2, 1.6)), (1.02, (0.9, 1.1)), (0.5, (0.4, 0.6))],
            "strategy.hook=fp16 is the quickest: 20 % less time per sample (17 % to 38 %) than",
        ),
    ],
)
def test_nothing_wins_that_is_not_surely_quicker(
    four: Comparison, changes: Sequence[tuple[float, tuple[float, float]]], words: str
) -> None:
    assert words in headline(with_throughputs(four, changes)).replace("\N{NO-BREAK SPACE}", " ")


def test_what_does_not_fit_in_memory_does_not_win(four: Comparison) -> None:
    sides = list(four.sides)
    point = sides[2].point
    memory = replace(point.memory, capacity_bytes=1.0)
    assert not memory.fits
    large = replace(point, memory=memory)
    sides[2] = replace(sides[2], result=replace(sides[2].result, points=(large,)))
    assert headline(replace(four, sides=tuple(sides))).startswith("strategy.hook=fp16 is ")


def test_many_columns_get_letters(four: Comparison) -> None:
    assert column_names(four.sides) == ["A", "B", "C", "D"]
    assert column_names(four.sides[1:3]) == ["strategy.hook=fp16", "training.batch_per_gpu=256"]


def with_points(comparison: Comparison, points: Sequence[SizeResult]) -> Comparison:
    """The comparison's first sides, with these results instead of theirs."""
    sides: tuple[Side, ...] = tuple(
        replace(side, result=replace(side.result, points=(point,)))
        for side, point in zip(comparison.sides, points, strict=False)
    )
    differences = comparison.differences[: len(sides) - 1]
    return replace(comparison, sides=sides, differences=differences)


@pytest.mark.parametrize(
    ("computes", "saves", "words"),
    [
        ((0.95, 0.92), (0.04, 0.05), "Compute limits both."),
        (
            (0.95, 0.80),
            (0.04, 0.05),
            "from compute (without limits of network 4 % less) to host 0's NIC.",
        ),
        (
            (0.95, 0.95),
            (0.04, 0.15),
            "from compute (without limits of network 4 % less) to host 0's NIC.",
        ),
    ],
)
def test_compute_limits_both_where_steps_are_compute_but_for_a_tenth(
    four: Comparison, computes: Sequence[float], saves: Sequence[float], words: str
) -> None:
    base = four.sides[0].point
    points = [
        replace(
            base,
            bottleneck=name,
            step_time_s=1.0,
            compute_s=compute_s,
            reliefs=(Relief("infinitely fast network", ("network",), {}, saves_s),),
        )
        for name, compute_s, saves_s in zip(
            ("the GPUs' PCIe", "host 0's NIC"), computes, saves, strict=True
        )
    ]
    two = with_points(four, points)
    differences = (replace(two.differences[0], bottleneck=(points[0].bottleneck, "host 0's NIC")),)
    (sentence,) = sentences(replace(two, differences=differences))
    assert words in sentence.replace("\N{NO-BREAK SPACE}", " ")


def test_a_limit_that_is_named_otherwise_does_not_stay(four: Comparison) -> None:
    """Both wait for the same link, of which one step alone is nearly all compute."""
    first, side, *_ = four.sides
    saves = Relief("fast PCIe", ("PCIe",), {}, 0.05 * side.point.step_time_s)
    computes = replace(side.point, compute_s=0.95 * side.point.step_time_s, reliefs=(saves,))
    versus = replace(four.differences[0], bottleneck=("the GPUs' PCIe", "the GPUs' PCIe"))
    sides = (first, replace(side, result=replace(side.result, points=(computes,))))
    said = list(sentences(replace(four, sides=sides, differences=(versus,))))[-1]
    assert "The limit moves from" in said
    assert "stays" not in said


def test_what_a_change_adds_is_no_part_of_what_it_saves(four: Comparison) -> None:
    """A hook whose copies take longer than it saves: what it saves is named as such."""
    versus = replace(
        four.differences[0],
        step=Change(1.01, (1.005, 1.02)),
        parts_s={"copies": 0.0138, "exposed communication": -0.0161, "forward": 0.0},
        same_batch=True,
    )
    two = replace(four, sides=four.sides[:2], differences=(versus,))
    text = list(sentences(two))[-1].replace("\xa0", " ")
    assert "longer" in text
    assert "13.8 ms more of copies, and 16.1 ms less of exposed communication." in text


@pytest.mark.parametrize(
    ("steps_s", "cells"),
    [
        ((0.1001, 0.1002), ("100.1 ms", "100.2 ms")),
        ((0.1001, 0.2002), ("100 ms", "200 ms")),
        ((0.100101, 0.100102), ("100 ms", "100 ms")),  # four digits are the same as well
    ],
)
def test_steps_have_a_fourth_digit_only_where_three_hide_a_difference(
    four: Comparison, steps_s: Sequence[float], cells: Sequence[str]
) -> None:
    base = four.sides[0].point
    two = with_points(four, [replace(base, step_time_s=step_s) for step_s in steps_s])
    rows = {
        row[0]: [cell.replace("\N{NO-BREAK SPACE}", " ") for cell in row[1:]]
        for row in figures_table(two).rows
    }
    assert rows["step"][:2] == list(cells)


def test_a_scenario_alone_is_no_contest(four: Comparison) -> None:
    alone = replace(four, sides=four.sides[:1], differences=())
    said = headline(alone).replace("\N{NO-BREAK SPACE}", " ")
    assert said.startswith("A step takes ")
    assert ", limited by " in said
    assert list(sentences(alone)) == []
    assert "What differs" not in comparison_html(alone)


def test_all_figures_of_a_comparison_show_on_a_phone(four: Comparison) -> None:
    """Tables of more rows scroll there: memory and MFU, which stand last, were not seen."""
    assert "scroll long" not in render_block(figures_table(four))
