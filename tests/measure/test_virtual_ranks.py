"""Order of events between the streams of virtual ranks."""

import pytest

from perfmodel.collectives import catalog
from perfmodel.measure.gpu_backend import HostStreams, execute_on_streams
from perfmodel.measure.reference import (
    make_moves,
)

torch = pytest.importorskip("torch", reason="virtual ranks are torch tensors")


class Recorder(HostStreams):
    """Lanes that note which events a rank has waited for, so that a missing wait shows."""

    def __init__(self, ranks):
        self.log = [0] * ranks
        self.seen = [[0] * ranks for _ in range(ranks)]

    def on(self, rank):
        self.log[rank] += 1
        return super().on(rank)

    def mark(self, rank):
        seen = list(self.seen[rank])
        seen[rank] = self.log[rank]
        return seen

    def wait(self, rank, event):
        self.seen[rank] = [max(a, b) for a, b in zip(self.seen[rank], event, strict=True)]


def test_streams_wait_for_the_senders_last_round():
    ranks = 3
    rounds = make_moves(catalog.make("all_reduce", "ring", ranks, 8 * 12, itemsize=8))
    buffers = [torch.zeros(12, dtype=torch.int64) for _ in range(ranks)]
    scratch = [torch.zeros(12, dtype=torch.int64) for _ in range(ranks)]
    lanes = Recorder(ranks)
    for part in rounds:
        before = list(lanes.log)
        execute_on_streams([part], buffers, scratch, lanes)
        for move in part:
            # the receiver has waited for all that the sender did before,
            assert lanes.seen[move.dst][move.src] >= before[move.src]
            # and the sender, before it writes again, for the receiver's copy in this round
            assert lanes.seen[move.src][move.dst] > before[move.dst]
