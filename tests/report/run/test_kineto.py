"""Kineto-shaped traces: well formed, nothing overlaps on a thread, arrows have two ends."""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.report.run.kineto import to_kineto, write_kineto
from perfmodel.timeline import GroupOfClass, Span, Timeline


def a_step(step: int, origin: float) -> list[Span]:
    """Two layers, two buckets that run at the same time (as on Gloo), an optimizer, the host."""

    def span(name: str, kind: str, stream: str, start: float, end: float, **more: Any) -> Span:
        begin = origin + start
        more = {"ready_s": begin} | more
        return Span(name, kind, "all", stream, step, begin, origin + end, **more)

    return [
        span("issue forward", "issue", "host", -2e-3, 0.0),
        span("forward", "forward", "compute", 0.0, 3e-3),
        span("backward 1", "backward", "compute", 3e-3, 5e-3),
        span("backward 0", "backward", "compute", 5e-3, 7.0000004e-3),
        span(
            "all_reduce bucket 0",
            "communication",
            "comm",
            5.1e-3,
            9e-3,
            ready_s=origin + 5e-3,
            nbytes=400,
            bucket=0,
            op="all_reduce",
        ),
        span(
            "all_reduce bucket 1",
            "communication",
            "comm",
            7.0000004e-3,
            8e-3,
            ready_s=origin + 7.0000004e-3,
            nbytes=800,
            bucket=1,
            op="all_reduce",
        ),
        span("optimizer", "optimizer", "compute", 9e-3, 9.5e-3),
    ]


TIMELINE = Timeline(tuple(a_step(0, 1.0) + a_step(1, 1.0095)))


def trace(timeline: Timeline = TIMELINE, backend: str = "nccl") -> dict[str, Any]:
    return to_kineto(timeline, world_size=16, backend=backend, gpu="A100")


def complete(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [event for event in document["traceEvents"] if event["ph"] == "X"]


def times_ns(event: dict[str, Any]) -> tuple[int, int]:
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def assert_threads_do_not_overlap(document: dict[str, Any]) -> None:
    """But for launches, which are parts of the host's work."""
    for launched in (True, False):
        threads: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
        for event in complete(document):
            if (event["cat"] == "cuda_runtime") == launched:
                threads[event["pid"], event["tid"]].append(times_ns(event))
        for spans in threads.values():
            for (_, end), (start, _) in pairwise(sorted(spans)):
                assert end <= start


def test_header_names_the_job() -> None:
    document = trace()
    assert document["schemaVersion"] == 1
    assert document["deviceProperties"] == [{"id": 0, "name": "A100"}]
    assert document["distributedInfo"] == {"backend": "nccl", "rank": 0, "world_size": 16}
    json.dumps(document, allow_nan=False)


@pytest.mark.parametrize("is_issued", [True, False])
def test_every_thread_has_a_name_and_no_name_is_without_a_thread(is_issued: bool) -> None:
    """Also the one of launches that no work of the host issues."""
    spans = tuple(span for span in TIMELINE.spans if is_issued or span.kind != "issue")
    document = trace(Timeline(spans))
    named = {
        (event["pid"], event["tid"])
        for event in document["traceEvents"]
        if event["ph"] == "M" and event["name"] == "thread_name"
    }
    assert {(event["pid"], event["tid"]) for event in complete(document)} == named


def test_concurrent_transfers_get_their_own_threads() -> None:
    document = trace()
    assert_threads_do_not_overlap(document)
    comm = {event["tid"] for event in complete(document) if "nccl" in event["name"]}
    assert len(comm) == 2


@given(
    st.lists(
        st.tuples(st.integers(0, 10**7), st.integers(0, 10**6), st.sampled_from("ab")), max_size=30
    )
)
def test_no_thread_overlaps_whatever_the_spans(rows: list[tuple[int, int, str]]) -> None:
    spans = tuple(
        Span("x", "copy", "all", stream, 0, start * 1e-9, (start + length) * 1e-9, start * 1e-9)
        for start, length, stream in sorted(rows)
    )
    assert_threads_do_not_overlap(trace(Timeline(spans)))


def test_times_round_trip_to_a_nanosecond() -> None:
    kernels = [e for e in complete(trace()) if e["cat"] in {"kernel", "cpu_op"}]
    found = sorted((e["ts"] * 1e-6, (e["ts"] + e["dur"]) * 1e-6) for e in kernels)
    wanted = sorted((span.start_s, span.end_s) for span in TIMELINE.spans)
    assert len(found) == len(wanted)
    for (start, end), (want_start, want_end) in zip(found, wanted, strict=True):
        assert start == pytest.approx(want_start, abs=1e-9)
        assert end == pytest.approx(want_end, abs=1e-9)


REQUIRED = {
    "X": {"name", "cat", "ts", "dur", "pid", "tid"},
    "M": {"name", "pid", "args"},
    "s": {"name", "cat", "id", "ts", "pid", "tid"},
    "f": {"name", "cat", "id", "ts", "pid", "tid"},
}
"""Of the Trace Event Format, by phase: complete and metadata events, begin and end of flows."""


def test_events_have_the_fields_of_the_format_and_begin_at_zero() -> None:
    """Warm-up steps lie before zero in a timeline; Perfetto drops events that do."""
    document = trace(Timeline(tuple(a_step(0, -1.0) + a_step(1, 1.0095))))
    assert document["displayTimeUnit"] in ("ms", "ns")
    for event in document["traceEvents"]:
        assert REQUIRED[event["ph"]] <= event.keys()
        assert event.get("ts", 0) >= 0
        assert event.get("dur", 0) >= 0
    assert min(event["ts"] for event in complete(document)) == 0
    late = trace(Timeline(tuple(a_step(0, 0.001) + a_step(1, 2.0105))))
    assert [event["ts"] for event in complete(document)] == pytest.approx(
        [event["ts"] for event in complete(late)], abs=1.1e-3
    )


@pytest.mark.parametrize("takes_no_time", [False, True])
def test_arrows_lead_from_gradient_ready_to_bucket_start(takes_no_time: bool) -> None:
    """Where something that takes no time ends as the gradient is ready, too."""
    view = Span("view", "copy", "all", "side", 0, 1.005, 1.005, 1.005)
    document = trace(Timeline((*TIMELINE.spans, *[view] * takes_no_time)))
    starts = {e["id"]: e for e in document["traceEvents"] if e["ph"] == "s"}
    ends = {e["id"]: e for e in document["traceEvents"] if e["ph"] == "f"}
    assert starts.keys() == ends.keys()
    assert len(starts) == 4
    slices = complete(document)
    for number, start in starts.items():
        source = [
            e
            for e in slices
            if (e["pid"], e["tid"]) == (start["pid"], start["tid"])
            and e["ts"] <= start["ts"] < e["ts"] + e["dur"]
        ]
        assert [e["args"]["kind"] for e in source] == ["backward"]
        target = [
            e
            for e in slices
            if (e["pid"], e["tid"], e["ts"])
            == (ends[number]["pid"], ends[number]["tid"], ends[number]["ts"])
        ]
        assert [e["args"]["kind"] for e in target] == ["communication"]
        assert start["ts"] <= ends[number]["ts"]


def test_steps_are_marked_without_overlap_though_the_host_runs_ahead() -> None:
    steps = [e for e in complete(trace()) if e["cat"] == "user_annotation"]
    assert [e["name"] for e in steps] == ["ProfilerStep#0", "ProfilerStep#1"]
    assert steps[0]["ts"] == pytest.approx(1.0e6)
    assert steps[1]["ts"] == pytest.approx(1.0095e6)
    assert steps[1]["dur"] == pytest.approx(9500.0)


def test_collectives_carry_their_arguments() -> None:
    comm = next(e for e in complete(trace()) if e["name"] == "ncclDevKernel_AllReduce")
    assert (
        comm["args"]
        | {
            "Collective name": "allreduce",
            "In msg nelems": 400,
            "Group size": 16,
            "Process Group Name": "0",
            "bucket": 0,
        }
        == comm["args"]
    )
    assert comm["args"]["Process Group Ranks"].startswith("[0, 1, 2,")
    launches = {e["args"]["correlation"] for e in complete(trace()) if e["cat"] == "cuda_runtime"}
    kernels = {e["args"]["correlation"] for e in complete(trace()) if e["cat"] == "kernel"}
    assert launches == kernels


def test_kernels_are_launched_by_the_work_that_issues_them_and_before_they_run() -> None:
    """What has no such work is launched by the last that ended before it was ready."""
    events = complete(trace())
    issues = {e["args"]["External id"]: e for e in events if e["args"].get("kind") == "issue"}
    kernels = {e["args"]["correlation"]: e for e in events if e["cat"] == "kernel"}
    assert len(kernels) == 2 * 6
    for launch in (e for e in events if e["cat"] == "cuda_runtime"):
        kernel = kernels[launch["args"]["correlation"]]
        start, end = times_ns(launch)
        assert end <= times_ns(kernel)[0]
        work = issues[launch["args"]["External id"]]
        assert launch["tid"] == work["tid"]
        assert times_ns(work)[0] <= start <= end <= times_ns(work)[1]
        if kernel["name"] == "forward":
            assert end > times_ns(work)[0] + 1_990_000  # at its end
    late = [e for e in events if e["cat"] == "cuda_runtime" and e["ts"] > 1.0e6 + 8500]
    assert len(late) == 6  # those of the second step


def test_groups_and_elements_are_those_of_the_communicator() -> None:
    """A gather of half the elements of each of four, in a job of sixteen."""
    span = Span(
        "gather layer",
        "communication",
        "first stage",
        "comm",
        0,
        0.0,
        1e-3,
        0.0,
        800,
        op="all_gather",
        communicator="tensor",
        dtype="bf16",
    )
    groups = {("first stage", "tensor"): GroupOfClass(4, (8, 9, 10, 11))}
    timeline = Timeline((span,), {"first stage": 8}, groups)
    document = to_kineto(
        timeline, world_size=16, backend="nccl", gpu="A100", rank_class="first stage"
    )
    (kernel,) = (e for e in complete(document) if e["cat"] == "kernel")
    assert document["distributedInfo"]["rank"] == 8
    assert kernel["name"] == "ncclDevKernel_AllGather"
    assert (
        kernel["args"]
        | {
            "Collective name": "_allgather_base",
            "In msg nelems": 100,
            "Out msg nelems": 400,
            "dtype": "BFloat16",
            "Group size": 4,
            "Process Group Name": "tensor",
            "Process Group Ranks": "[8, 9, 10, 11]",
        }
        == kernel["args"]
    )


def test_a_class_is_written_alone() -> None:
    other = [span._replace(rank_class="other") for span in a_step(0, 1.0)]
    timeline = Timeline((*TIMELINE.spans, *other), {"all": 0, "other": 4})
    alone = to_kineto(timeline, world_size=16, backend="nccl", gpu="A100", rank_class="other")
    assert {event["pid"] for event in alone["traceEvents"]} == {1}
    assert alone["distributedInfo"]["rank"] == 4
    assert len([e for e in complete(alone) if e["cat"] == "kernel"]) == 6
    both = to_kineto(timeline, world_size=16, backend="nccl", gpu="A100")
    assert {event["pid"] for event in both["traceEvents"]} == {0, 1}


def test_gloo_is_not_called_nccl() -> None:
    names = {e["name"] for e in complete(trace(backend="gloo"))}
    assert "gloo:all_reduce" in names
    assert not any("nccl" in name for name in names)


def test_written_file_is_the_same_document(tmp_path: Path) -> None:
    for name in ("timeline.json", "timeline.json.gz"):
        path = tmp_path / name
        write_kineto(to_kineto(TIMELINE, world_size=16, backend="nccl", gpu="A100"), path)
        data = path.read_bytes()
        text = gzip.decompress(data) if name.endswith(".gz") else data
        assert json.loads(text) == trace()
        # how HolisticTraceAnalysis 0.5.0 finds the rank of a file (hta/common/trace_file.py)
        assert re.search(rb'"rank":\s+(\d+)', text)


def test_empty_timeline_is_a_valid_trace() -> None:
    assert complete(trace(Timeline(()))) == []
