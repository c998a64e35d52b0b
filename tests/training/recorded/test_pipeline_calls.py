"""Messages of a pipeline's plan against those that PyTorch's schedules send and receive."""

from __future__ import annotations

import json
from collections import Counter

import pytest

pytest.importorskip("torch")

from perfmodel.testing.closed_forms import PassTimes
from perfmodel.training.pipeline.schedules import make_schedule
from perfmodel.training.plan.step_plan import Collective
from tests.training.pipeline.pipeline_toys import toy_pipeline
from tests.training.recorded.pipeline_cases import (
    CASES,
    SAMPLES,
    TORCH_CLASSES,
    WIDTH,
    micro_batches_of,
)
from tests.training.recorded.record_pipeline import FILE, RANKS, Messages, by_rank, expand
from tests.training.recorded.run_cases import Call, run_cases


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Call]]:
    folder = tmp_path_factory.mktemp("calls")
    return run_cases("tests.training.recorded.pipeline_cases", 2, folder)


def planned(kind: str, ranks: int, op: str) -> list[list[tuple[int, int]]]:
    """What each stage sends, or receives, in the order of its tasks."""
    count, chunks = micro_batches_of(ranks), TORCH_CLASSES[kind][1]
    schedule = make_schedule(kind, ranks, count, chunks)
    plan = toy_pipeline(schedule, PassTimes(1.0, 1.0, 1.0), transfer_bytes=SAMPLES * WIDTH * 4)
    pairs = {each.name: each.groups[0] for each in plan.communicators}
    messages: list[list[tuple[int, int]]] = [[] for _ in range(ranks)]
    for task in plan.tasks:
        if isinstance(task.work, Collective) and task.work.op == "send":
            source, target = pairs[task.work.communicator]
            mine, peer = (source, target) if op == "send" else (target, source)
            if task.rank_class == f"stage {mine}":
                messages[mine].append((peer, task.work.nbytes))
    return messages


def of(messages: Messages, op: str) -> list[tuple[int, int]]:
    return [(peer, nbytes) for each, peer, nbytes in messages if each == op]


@pytest.mark.parametrize("ranks", [2, RANKS])
@pytest.mark.parametrize("kind", CASES)
def test_stages_send_what_pytorch_sends(
    two_processes: dict[str, list[Call]], kind: str, ranks: int
) -> None:
    """To the same stages in the same order, and receive as many bytes from the same ones."""
    if ranks == RANKS:
        recorded = list(map(expand, json.loads(FILE.read_text(encoding="utf-8"))[kind]))
    else:
        recorded = by_rank(two_processes[kind], ranks)
    assert planned(kind, ranks, "send") == [of(each, "send") for each in recorded]
    received = [Counter(of(each, "recv")) for each in recorded]
    assert [Counter(each) for each in planned(kind, ranks, "recv")] == received
