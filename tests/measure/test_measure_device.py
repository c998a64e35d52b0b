"""Virtual ranks and probes, their arithmetic on the processor; without a GPU a plain refusal."""

import numpy as np
import pytest
from typer.testing import CliRunner

from perfmodel.cli import app
from perfmodel.collectives import catalog
from perfmodel.errors import DataMismatch, ExecutorUnavailable
from perfmodel.measure import device as device_module
from perfmodel.measure.device import measure_device
from perfmodel.measure.job import ITEM_BYTES, Job, devices_or_say
from perfmodel.measure.moves import elements, execute, moves, starting_data
from perfmodel.measure.virtual import HostLanes, run_virtual

torch = pytest.importorskip("torch", reason="virtual ranks are torch tensors")

CASES = [
    (op, name)
    for op, makers in catalog.ALGORITHMS.items()
    for name in makers
    if (op, name) != ("all_reduce", "switch") and op != "send"
]


def job(**changes):
    known = {"backend": "device", "algorithm": "ring", "collective": "all_reduce", "ranks": 3}
    return Job(**(known | {"sizes": (64, 4096), "repeats": 2} | changes))


class Recorder(HostLanes):
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


@pytest.mark.parametrize(
    ("op", "algorithm", "ranks"),
    [(*case, n) for case in CASES for n in (2, 3, 4) if catalog.allows(*case, n) is None],
)
def test_virtual_ranks_agree_with_numpy(op, algorithm, ranks):
    schedule = catalog.make(op, algorithm, ranks, 8 * 12 * 5, itemsize=8)
    rounds = moves(schedule)
    data = starting_data("int64", ranks, elements(schedule), seed=1)
    buffers = [torch.from_numpy(row.copy()) for row in data]
    scratch = [torch.full((1000,), 99, dtype=torch.int64) for _ in range(ranks)]
    run_virtual(rounds, buffers, scratch, HostLanes())
    execute(rounds, data)
    for buffer, wanted in zip(buffers, data, strict=True):
        assert np.array_equal(buffer.numpy(), wanted)


def test_streams_wait_for_the_senders_last_round():
    ranks = 3
    rounds = moves(catalog.make("all_reduce", "ring", ranks, 8 * 12, itemsize=8))
    buffers = [torch.zeros(12, dtype=torch.int64) for _ in range(ranks)]
    scratch = [torch.zeros(12, dtype=torch.int64) for _ in range(ranks)]
    lanes = Recorder(ranks)
    for part in rounds:
        before = list(lanes.log)
        run_virtual([part], buffers, scratch, lanes)
        for move in part:
            # the receiver has waited for all that the sender did before,
            assert lanes.seen[move.dst][move.src] >= before[move.src]
            # and the sender, before it writes again, for the receiver's copy in this round
            assert lanes.seen[move.src][move.dst] > before[move.dst]


def test_everything_that_a_processor_can_be_asked():
    rows, note = measure_device(job(), torch, "cpu")
    found = {(row.what, row.nbytes, row.setting) for row in rows}
    for nbytes in (64, 4096):
        assert {("schedule", nbytes, "3 virtual ranks"), ("copy", nbytes, ""),
                ("reduce", nbytes, "")} <= found  # fmt: skip
    assert ("launch", 0, "enqueue") in found
    assert ("synchronize", 0, "launch and wait") in found
    assert all(row.repeats == 2 and row.median_s > 0 for row in rows)
    assert "blocks_copy" in note  # left out, and said so


@pytest.mark.parametrize("dtype", ITEM_BYTES)
def test_every_data_type_is_checked(dtype):
    rows, _ = measure_device(job(dtype=dtype, sizes=(1 << 12,)), torch, "cpu")
    assert rows[0].what == "schedule"


def test_a_lost_move_is_noticed(monkeypatch):
    def forgetful(rounds, *rest):
        return run_virtual(rounds[:-1], *rest)

    monkeypatch.setattr(device_module, "run_virtual", forgetful)
    with pytest.raises(DataMismatch, match=r"rank \d, chunk \d, element 0: found"):
        measure_device(job(), torch, "cpu")


@pytest.mark.parametrize("backend", ["device", "nccl"])
def test_without_a_gpu_it_says_so(backend, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(app, ["measure", "ring", "--backend", backend])
    assert result.exit_code == 2
    assert f"no CUDA device for backend {backend}" in result.stderr
    assert result.stdout == ""


def test_nccl_wants_a_gpu_for_each_rank(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ExecutorUnavailable, match="a CUDA device for each of 2 ranks, found 1"):
        devices_or_say("nccl", 2)
    assert devices_or_say("device", 1) is torch
