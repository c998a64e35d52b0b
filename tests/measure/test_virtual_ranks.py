"""Order of events between the streams of virtual ranks."""

from contextlib import nullcontext

import pytest

from perfmodel.collectives import catalog
from perfmodel.measure.gpu_backend import execute_on_streams
from perfmodel.measure.reference import (
    make_moves,
)

torch = pytest.importorskip("torch", reason="virtual ranks are torch tensors")


class Recorder:
    """A stream that notes which events a rank has waited for, so that a missing wait shows."""

    def __init__(self, rank, ranks):
        self.rank, self.work, self.seen = rank, 0, [0] * ranks

    def record_event(self):
        seen = list(self.seen)
        seen[self.rank] = self.work
        return seen

    def wait_event(self, event):
        self.seen = [max(a, b) for a, b in zip(self.seen, event, strict=True)]


def enter(stream):
    stream.work += 1
    return nullcontext()


def test_streams_wait_for_the_senders_last_round():
    ranks = 3
    rounds = make_moves(catalog.make("all_reduce", "ring", ranks, 8 * 12, itemsize=8))
    buffers = [torch.zeros(12, dtype=torch.int64) for _ in range(ranks)]
    scratch = [torch.zeros(12, dtype=torch.int64) for _ in range(ranks)]
    lanes = [Recorder(rank, ranks) for rank in range(ranks)]
    for part in rounds:
        before = [lane.work for lane in lanes]
        execute_on_streams([part], buffers, scratch, lanes, enter)
        for move in part:
            # the receiver has waited for all that the sender did before,
            assert lanes[move.dst].seen[move.src] >= before[move.src]
            # and the sender, before it writes again, for the receiver's copy in this round
            assert lanes[move.src].seen[move.dst] > before[move.dst]
