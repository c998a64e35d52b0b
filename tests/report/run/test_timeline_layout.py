"""The timeline as it is drawn: few bars, the right exposed parts, nothing moved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.report.run.timeline import step_picture
from perfmodel.studies.run.result import Result, SizeResult
from perfmodel.studies.run.usage import LayoutUse, StageUse
from perfmodel.timeline import Span, Timeline


def with_spans(point: SizeResult, spans: list[Span], **more: object) -> SizeResult:
    ordered = tuple(sorted(spans, key=lambda span: span.start_s))
    return replace(point, timeline=Timeline(ordered), **more)  # type: ignore[arg-type]


def span(kind: str, start: float, end: float, **more: object) -> Span:
    fields: dict[str, object] = {
        "name": kind,
        "kind": kind,
        "rank_class": "all",
        "step": 0,
        "ready_s": start,
        "stream": "comm" if kind == "communication" else "compute",
    }
    return Span(start_s=start, end_s=end, **{**fields, **more})  # type: ignore[arg-type]


def test_rows_of_a_ddp_step(result: Result) -> None:
    picture = step_picture(result.main)
    assert [row.title for row in picture.rows] == ["compute", "communication"]
    assert [bar.work for bar in sorted(picture.rows[0].bars, key=lambda bar: bar.start_s)] == [
        "forward",
        "backward",
        "optimizer",
    ]
    assert [bar.bucket for bar in picture.rows[1].bars if bar.bucket is not None] != []
    assert len(picture.rows[1].bars) == 5


def test_a_pipeline_has_one_row_of_communication_for_each_stage(result: Result) -> None:
    """10 stages of 3 streams: 40 rows would be mostly empty."""
    spans = []
    for stage in range(10):
        where = {"rank_class": f"stage {stage}"}
        spans.append(span("forward", stage, stage + 1.0, **where))
        for at, stream in enumerate(("to next", "from next", "tensor")):
            begin = stage + 0.2 * at
            spans.append(span("communication", begin, begin + 0.5, **where, stream=stream))
    picture = step_picture(with_spans(result.main, spans))
    titles = [row.title for row in picture.rows]
    assert titles[:2] == ["stage 0: compute", "stage 0: communication"]
    assert titles[-1] == "stage 9: communication"
    assert len(titles) == 20
    bars = picture.rows[1].bars
    assert (min(bar.start_s for bar in bars), max(bar.end_s for bar in bars)) == (0.0, 0.9)


def test_exposed_parts_sum_to_the_result(result: Result) -> None:
    picture = step_picture(result.main)
    total = sum(tail.exposed_s for tail in picture.tails)
    assert total == pytest.approx(result.main.exposed_comm_s, rel=1e-9)


def test_thousands_of_spans_become_few_bars_that_cover_the_same_time(result: Result) -> None:
    spans = []
    for i in range(3000):
        start = i * 1e-4
        spans.append(span("backward", start, start + 9e-5))
        spans.append(span("copy", start + 9e-5, start + 1e-4))
    picture = step_picture(with_spans(result.main, spans, step_time_s=0.3))
    (row,) = picture.rows
    assert [(bar.work, bar.spans) for bar in row.bars] == [("backward", 3000)]
    assert row.bars[0].busy_s == pytest.approx(0.27)


def test_long_neighbours_of_other_kinds_stay_apart(result: Result) -> None:
    spans = [span("backward", 0, 0.1), span("copy", 0.1, 0.15), span("backward", 0.15, 0.3)]
    (row,) = step_picture(with_spans(result.main, spans, step_time_s=0.3)).rows
    assert sorted((bar.start_s, bar.work) for bar in row.bars) == [
        (0.0, "backward"),
        (0.1, "copies"),
        (0.15, "backward"),
    ]


def test_time_starts_at_the_first_work_on_a_device(result: Result) -> None:
    spans = [
        span("issue", 4.9, 5.05, stream="host"),
        span("forward", 5.0, 5.2),
        span("communication", 5.2, 5.3, bucket=0),
    ]
    point = with_spans(result.main, spans, step_time_s=0.3, breakdown_s={"idle": 0.2})
    picture = step_picture(point)
    assert [row.role for row in picture.rows] == ["host", "compute", "communication"]
    assert picture.rows[0].bars[0].start_s == 0.0
    assert picture.rows[1].bars[0].end_s == pytest.approx(0.2)
    (tail,) = picture.tails
    assert (tail.start_s, tail.end_s, tail.exposed_s) == pytest.approx((0.2, 0.3, 0.1))


def test_host_is_left_out_where_the_device_is_never_idle(result: Result) -> None:
    spans = [span("issue", 0, 0.1, stream="host"), span("forward", 0.0, 0.2)]
    point = with_spans(result.main, spans, breakdown_s={"forward": 0.2, "idle": 0.0})
    assert [row.role for row in step_picture(point).rows] == ["compute"]


def test_classes_and_concurrent_transfers_have_rows_of_their_own(result: Result) -> None:
    spans = [
        span("forward", 0, 0.1, rank_class="gpu 0"),
        span("forward", 0, 0.1, rank_class="others"),
        span("communication", 0, 0.05, rank_class="gpu 0", bucket=0),
        span("communication", 0.02, 0.07, rank_class="gpu 0", bucket=1),
    ]
    titles = [row.title for row in step_picture(with_spans(result.main, spans)).rows]
    assert titles == [
        "GPU 0: compute",
        "GPU 0: communication",
        "GPU 0: communication 2",
        "others: compute",
    ]


def test_empty_timeline_gives_an_empty_picture(result: Result) -> None:
    picture = step_picture(with_spans(result.main, []))
    assert picture.rows == ()
    assert picture.tails == ()


def test_tails_cut_by_slivers_of_compute_are_one_with_the_true_length(result: Result) -> None:
    spans = [span("communication", 0.0, 1.0, bucket=0)]
    spans += [span("copy", 0.1 * i, 0.1 * i + 1e-4) for i in range(10)]
    (tail,) = step_picture(with_spans(result.main, spans, step_time_s=1.0)).tails
    assert tail.exposed_s == pytest.approx(1.0 - 10e-4)
    assert tail.end_s == 1.0


def test_crumbs_become_part_of_their_neighbour_and_leave_no_hole(result: Result) -> None:
    spans = [span("backward", 0.0, 0.5), span("copy", 0.5, 0.501), span("optimizer", 0.501, 1.0)]
    (row,) = step_picture(with_spans(result.main, spans, step_time_s=1.0)).rows
    ordered = sorted(row.bars, key=lambda bar: bar.start_s)
    assert [bar.work for bar in ordered] == ["backward", "optimizer"]
    assert ordered[0].end_s >= ordered[1].start_s


def test_streams_of_the_same_kind_go_by_their_names(result: Result) -> None:
    spans = [
        span("forward", 0, 0.1),
        span("communication", 0, 0.05, stream="gathers", name="gather root"),
        span("communication", 0.06, 0.1, stream="reductions", name="reduce root"),
        span("communication", 0.1, 0.2, stream="averages", name="average root"),
    ]
    rows = step_picture(with_spans(result.main, spans)).rows
    assert [row.title for row in rows] == ["compute", "gathers", "reductions", "averages"]
    assert [len(row.bars) for row in rows] == [1, 1, 1, 1]


def test_slow_ranks_of_a_stage_are_named_after_it(result: Result) -> None:
    spans = [span("forward", 0, 1.0, rank_class=own) for own in ("stage 0", "stage 1", "n7")]
    uses = (StageUse(0, "stage 0", 1, 0, 0), StageUse(1, "n7", 1, 0, 0))
    parallel_layout = LayoutUse(
        tensor=1,
        context=1,
        expert=1,
        pipeline=2,
        data=2,
        order="tp-pp",
        schedule="1f1b",
        micro_batches=1,
        bubble=0.1,
        bubble_in_theory=0.1,
        stages=uses,
        dimensions=(),
    )
    point = replace(with_spans(result.main, spans), parallel_layout=parallel_layout)
    assert {row.title for row in step_picture(point).rows} == {
        "stage 0: compute",
        "stage 1: compute",
        "stage 1, n7: compute",
    }


def test_a_row_of_very_many_collectives_is_joined(result: Result) -> None:
    spans = [span("communication", 0.01 * n, 0.01 * n + 0.008) for n in range(700)]
    for n, each in enumerate(spans):
        spans[n] = each._replace(name=f"gather {n}")
    picture = step_picture(with_spans(result.main, [span("forward", 0, 7.0), *spans]))
    (row,) = [row for row in picture.rows if row.role == "communication"]
    assert len(row.bars) < 20
    assert sum(bar.spans for bar in row.bars) == 700
