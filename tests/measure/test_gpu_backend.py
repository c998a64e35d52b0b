"""Virtual ranks and microbenchmarks; the CPU, or a recorder of calls, replaces the GPU."""

import numpy as np
import pytest

from perfmodel.collectives import catalog
from perfmodel.errors import DataMismatch
from perfmodel.measure import gpu_backend as device_module
from perfmodel.measure import gpu_microbenchmarks as probes_module
from perfmodel.measure.gpu_backend import execute_on_streams, measure_device
from perfmodel.measure.job import ITEM_BYTES, MeasurementJob
from perfmodel.measure.reference import (
    Window,
    count_elements,
    execute_moves,
    make_moves,
    make_starting_data,
)
from reports.oracle.closed_forms import IN_SWITCH

torch = pytest.importorskip("torch", reason="virtual ranks are torch tensors")


CASES = [
    (op, name)
    for op, makers in catalog.ALGORITHMS.items()
    for name in makers
    if name not in IN_SWITCH and op != "send"
]


def job(**changes):
    known = {"backend": "device", "algorithm": "ring", "collective": "all_reduce", "ranks": 3}
    return MeasurementJob(**(known | {"sizes": (64, 4096), "repeats": 2} | changes))


@pytest.mark.parametrize(
    ("op", "algorithm", "ranks"),
    [(*case, n) for case in CASES for n in (2, 3, 4) if catalog.allows(*case, n) is None],
)
def test_virtual_ranks_agree_with_numpy(op, algorithm, ranks):
    schedule = catalog.make(op, algorithm, ranks, 8 * 12 * 5, itemsize=8)
    rounds = make_moves(schedule)
    data = make_starting_data(schedule, "int64", Window(0, count_elements(schedule)))
    buffers = [torch.from_numpy(row.copy()) for row in data]
    scratch = [torch.full((1000,), 99, dtype=torch.int64) for _ in range(ranks)]
    streams = [torch.cpu.Stream() for _ in range(ranks)]
    execute_on_streams(rounds, buffers, scratch, streams, torch.cpu.stream)
    execute_moves(rounds, data)
    for buffer, wanted in zip(buffers, data, strict=True):
        assert np.array_equal(buffer.numpy(), wanted)


def test_everything_that_a_processor_can_be_asked():
    rows, note = measure_device(job(), torch, "cpu")
    found = {(row.what, row.nbytes, row.setting) for row in rows}
    for nbytes in (64, 4096):
        assert {
            ("schedule", nbytes, "3 virtual ranks"),
            ("copy", nbytes, ""),
            ("reduce", nbytes, ""),
        } <= found
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
        return execute_on_streams(rounds[:-1], *rest)

    monkeypatch.setattr(device_module, "execute_on_streams", forgetful)
    with pytest.raises(DataMismatch, match=r"rank \d, chunk \d, element 0: found"):
        measure_device(job(), torch, "cpu")


class FakeCuda:
    """As much of torch with a few devices as probes and samples call; notes what is called."""

    def __init__(self, devices=1):
        self.cuda, self.devices, self.log = self, devices, []

    def device_count(self):
        return self.devices

    def can_device_access_peer(self, one, other):
        return {one, other} != {0, 2}

    def empty_like(self, tensor):
        return FakeTensor(tensor.name.replace("source", "target"), self.log)

    def synchronize(self, device):
        self.log.append(f"wait for {device}")

    def Event(self, enable_timing):
        assert enable_timing
        return FakeEvent(self.log)


class FakeEvent:
    def __init__(self, log):
        self.log = log

    def record(self):
        self.log.append("record")

    def synchronize(self):
        self.log.append("wait for the event")

    def elapsed_time(self, end):
        assert isinstance(end, FakeEvent)
        return 3.0  # milliseconds


class FakeTensor:
    def __init__(self, name, log):
        self.name, self.log = name, log

    def to(self, device):
        return FakeTensor(f"source on {device}", self.log)

    def element_size(self):
        return 4

    def __getitem__(self, part):
        return FakeTensor(f"{self.name}[:{part.stop}]", self.log)

    def copy_(self, source, non_blocking):
        assert non_blocking
        self.log.append(f"{source.name} to {self.name}".replace(" on cuda:", " "))


def fake_bed(fake):
    device = type("Device", (), {"type": "cuda"})
    one, two = FakeTensor("one", fake.log), FakeTensor("two", fake.log)
    return probes_module.GpuUnderTest(fake, device, one, two)


def test_events_stand_around_what_is_timed_and_nothing_else():
    fake = FakeCuda()
    probe = probes_module.Microbenchmark(
        "overlap",
        0,
        lambda: fake.log.append("run"),
        inner=5,
        before=lambda: fake.log.append("copies beside"),
    )
    took_s = device_module._time_runs(probe, fake_bed(fake), 2)
    assert fake.log == [
        "wait for 0",
        "copies beside",
        "record",
        "run",
        "run",
        "record",
        "wait for the event",
    ]
    assert took_s == pytest.approx(3e-3 / (2 * 5))


def test_what_runs_beside_other_work_is_timed_once_per_sample(monkeypatch):
    def runs(**options):
        asked = []
        monkeypatch.setattr(
            device_module, "_time_runs", lambda probe, bed, again: asked.append(again) or 1e-6
        )
        probe = probes_module.Microbenchmark("copy", 4, lambda: None, **options)
        device_module._sample_times(probe, None, 0.0, 4)
        return set(asked[3:])

    assert runs() == {round(device_module.SHORTEST_S / 1e-6)}
    assert runs(once=True) == runs(clock="host") == {1}


def test_every_pair_of_devices_is_copied_between_and_waited_for():
    fake = FakeCuda(3)
    bed = fake_bed(fake)
    found = {probe.setting: probe for probe in probes_module._peer_copies(bed, [64])}
    assert set(found) == {
        "gpu0 -> gpu1",
        "gpu1 -> gpu0",
        "gpu1 -> gpu2",
        "gpu2 -> gpu1",
        "gpu0 -> gpu2, through the host",
        "gpu2 -> gpu0, through the host",
    }
    device_module._time_runs(found["gpu2 -> gpu1"], bed, 1)
    copied = "source 2[:16] to target 1[:16]"
    assert fake.log == ["wait for 2", "wait for 1", copied, "wait for 2", "wait for 1"]
    assert list(probes_module._peer_copies(fake_bed(FakeCuda(1)), [64])) == []


def test_timed_repeats_begin_with_the_same_data():
    bed = probes_module.prepare_gpu(job(), torch, "cpu")
    for probe in device_module._schedule_benchmarks(job(dtype="float16", algorithm="tree"), bed):
        probe.before()
        probe.run()
        once = [buffer.clone() for buffer in work_of(probe)]
        for _ in range(3):
            probe.before()
            probe.run()
        assert all(torch.equal(a, b) for a, b in zip(once, work_of(probe), strict=True))


def work_of(probe):
    """The buffers that a virtual schedule works on."""
    cells = dict(zip(probe.run.__code__.co_freevars, probe.run.__closure__, strict=True))
    return cells["work"].cell_contents
