"""A trace made by hand, whose parts are known, must come apart into them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from perfmodel.errors import InputError
from perfmodel.traces.kineto import event_stream
from perfmodel.traces.kineto.rank_trace import read_rank
from perfmodel.traces.model import RankTrace
from perfmodel.traces.rebuild.layer_profile import profile_ranks
from tests.traces.kineto.made_trace import WIDTH, MadeTrace

LAYERS = np.array(MadeTrace.layers)[::-1] * 1e-6
GRADIENTS = 6e-6  # two copies into a bucket for each layer
BUCKET = 2 * (WIDTH * WIDTH + WIDTH)


def read(made: MadeTrace, folder: Path) -> RankTrace:
    return read_rank(made.write(folder / f"rank{made.rank}.json"))


@pytest.mark.parametrize("old", [False, True])
@pytest.mark.parametrize("whole_us", [False, True])
def test_parts_of_a_step(tmp_path: Path, old: bool, whole_us: bool) -> None:
    trace = read(MadeTrace(old=old, whole_us=whole_us), tmp_path)
    assert [layer.name for layer in trace.layers] == [
        "linear_4",
        "linear_3",
        "linear_2",
        "linear_1",
    ]
    assert [gradient.elements for gradient in trace.gradients] == [WIDTH, WIDTH**2] * 4
    assert [gradient.bucket for gradient in trace.gradients] == [0] * 4 + [1] * 4
    assert [call.elements for call in trace.steps[-1].buckets] == [BUCKET, BUCKET]
    assert trace.batch == 32
    assert not trace.views
    step = trace.steps[-1]
    assert step.forward_s[:-1] == pytest.approx(LAYERS[:-1], rel=1e-6)
    assert step.backward_s == pytest.approx(2 * LAYERS + GRADIENTS, rel=1e-6)
    assert step.copied_in_s == pytest.approx([GRADIENTS] * 4, rel=1e-6)
    # The last bucket is exposed; the first, launched halfway, is not.
    assert step.exposed_s == pytest.approx(450e-6, rel=1e-6)
    # Copies out of the first bucket run while the last one is reduced.
    assert step.tail_s == pytest.approx((200 + 4 * 3) * 1e-6, rel=0.02)
    assert trace.slowdown is None  # no kernel ran both ways


def test_steps_without_marks(tmp_path: Path) -> None:
    marked = read(MadeTrace(), tmp_path)
    bare = read(MadeTrace(marks=False), tmp_path)
    assert bare.median_step_s == pytest.approx(marked.median_step_s, rel=1e-3)
    assert "told apart by the optimizer's steps" in bare.notes[0]


def test_sizes_from_copies_and_from_messages(tmp_path: Path) -> None:
    """Without shapes the copies out of buckets have the sizes; without both, buckets are split."""
    copied = read(MadeTrace(shapes=False), tmp_path)
    assert [gradient.elements for gradient in copied.gradients] == [WIDTH, WIDTH**2] * 4
    unsized = MadeTrace(shapes=False).document()
    for event in unsized["traceEvents"]:
        event["args"].pop("bytes", None)
    path = tmp_path / "unsized.json"
    path.write_text(json.dumps(unsized))
    split = read_rank(path)
    assert [g.elements for g in split.gradients] == [BUCKET // 4] * 8
    assert "split evenly" in " ".join(split.notes)
    shapes_only = read(MadeTrace(arguments=False), tmp_path)
    assert [call.elements for call in shapes_only.steps[-1].buckets] == [BUCKET, BUCKET]


def test_overlap_makes_kernels_slower(tmp_path: Path) -> None:
    """Layers 2 and 3 are alike: one of them runs beside an all-reduce."""
    made = MadeTrace(layers=(400.0, 300.0, 300.0, 300.0), comm=900.0, slowdown=1.5)
    trace = read(made, tmp_path)
    assert trace.slowdown == pytest.approx(1.5, rel=0.01)
    profile = profile_ranks([trace])
    assert float(profile.backward_s.sum()) == pytest.approx(2600e-6 + 4 * GRADIENTS, rel=0.03)


def test_the_first_step_is_left_out_of_slowdown(tmp_path: Path) -> None:
    """Its collectives do not count, so that its work beside them would be taken for work alone."""
    made = MadeTrace(layers=(300.0,) * 8, buckets=(0, 7), comm=8000.0, slowdown=1.5, steps=4)
    assert read(made, tmp_path).slowdown == pytest.approx(1.5, rel=0.01)


def test_waiting_apart_from_transfer(tmp_path: Path) -> None:
    """The rank that comes last sees the transfer, the others their waiting, too."""
    ranks = [read(MadeTrace(rank=0, waiting=120.0), tmp_path), read(MadeTrace(rank=1), tmp_path)]
    profile = profile_ranks(ranks)
    assert [bucket.transfer_s for bucket in profile.buckets] == pytest.approx([450e-6] * 2)
    assert [bucket.waiting_s for bucket in profile.buckets] == pytest.approx([120e-6] * 2)


def test_the_slowest_rank_and_the_median_step_count(tmp_path: Path) -> None:
    slow = tuple(2 * length for length in MadeTrace.layers)
    ranks = [read(MadeTrace(), tmp_path), read(MadeTrace(rank=1, layers=slow), tmp_path)]
    assert profile_ranks(ranks).forward_s[:-1] == pytest.approx(2 * LAYERS[:-1], rel=1e-6)
    trace = ranks[0]
    *usual, last = trace.steps
    late = replace(last, forward_s=9 * last.forward_s, backward_s=9 * last.backward_s)
    profile = profile_ranks([replace(trace, steps=(*usual, late))])
    computed_s = float(profile.forward_s.sum() + profile.backward_s.sum())
    assert computed_s == pytest.approx(float(last.forward_s.sum() + last.backward_s.sum()), rel=0.1)


def test_gaps_are_no_slower_beside_collectives(tmp_path: Path) -> None:
    """Half of 10 ms is work, at half its speed: alone it takes 7.5 ms."""
    trace = read(MadeTrace(), tmp_path)
    steps = tuple(replace(step, overlapped_s=10e-3, overlapped_work_s=5e-3) for step in trace.steps)
    profile = profile_ranks([replace(trace, steps=steps, slowdown=2.0)])
    assert profile.effective_slowdown == pytest.approx(10 / 7.5)


def test_messages_that_gradients_do_not_fill(tmp_path: Path) -> None:
    document = MadeTrace().document()
    for event in document["traceEvents"]:
        if "In msg nelems" in event["args"]:
            event["args"]["In msg nelems"] += 1
    path = tmp_path / "other.json"
    path.write_text(json.dumps(document))
    assert f"bucket 0 has {BUCKET + 1:,} elements" in " ".join(read_rank(path).notes)


def test_a_slow_host_shows_as_launch_gaps(tmp_path: Path) -> None:
    quick = read(MadeTrace(), tmp_path).steps[-1]
    slow = read(MadeTrace(launch=400.0), tmp_path).steps[-1]
    assert quick.launch_wait_s < 0.05 * quick.length_s
    assert slow.launch_wait_s > 0.4 * slow.length_s
    parts = float(slow.forward_s.sum() + slow.backward_s.sum()) + slow.exposed_s + slow.tail_s
    assert parts == pytest.approx(slow.length_s, rel=1e-6)


def test_pieces_cut_events_anywhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = MadeTrace(steps=2)
    path = made.write(tmp_path / "made.json")
    whole = read_rank(path)
    monkeypatch.setattr(event_stream, "PIECE_BYTES", 7)
    pieces = read_rank(path)
    for before, after in zip(whole.steps, pieces.steps, strict=True):
        assert before.length_s == after.length_s
        assert before.backward_s.tolist() == after.backward_s.tolist()
    assert whole.gradients == pieces.gradients


def test_steps_of_another_form_are_named(tmp_path: Path) -> None:
    document = MadeTrace(steps=3).document()
    extra = replace(MadeTrace(layers=(100.0,), buckets=(0,), steps=1), host=5e6, device=5e6)
    document["traceEvents"] += extra.document()["traceEvents"]
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps(document))
    trace = read_rank(path)
    assert len(trace.steps) == 3
    assert "other layers: ProfilerStep#0" in " ".join(trace.notes)


def test_a_trace_that_holds_its_events_twice(tmp_path: Path) -> None:
    """As logs do that were appended to: equal steps must not be mistaken for one another."""
    document = MadeTrace(steps=3).document()
    document["traceEvents"] *= 2
    path = tmp_path / "twice.json"
    path.write_text(json.dumps(document))
    assert read_rank(path).steps


def test_ranks_of_two_jobs_are_refused(tmp_path: Path) -> None:
    one_job = read(MadeTrace(), tmp_path)
    other = read(MadeTrace(rank=1, layers=(1.0, 2.0), buckets=(1,)), tmp_path)
    with pytest.raises(InputError, match="traces of one job"):
        profile_ranks([one_job, other])
