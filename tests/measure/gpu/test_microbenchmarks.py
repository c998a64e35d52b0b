"""Copies between every pair of devices."""

from perfmodel.collectives import catalog
from perfmodel.measure.gpu import backend as device_module
from perfmodel.measure.gpu import microbenchmarks as probes_module
from perfmodel.testing.closed_forms import IN_SWITCH

CASES = [
    (op, name)
    for op, makers in catalog.ALGORITHMS.items()
    for name in makers
    if name not in IN_SWITCH and op != "send"
]


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


def test_every_pair_of_devices_is_copied_between_and_waited_for():
    fake = FakeCuda(3)
    bed = fake_bed(fake)
    found = {probe.setting: probe for probe in probes_module._peer_copies(bed, [64])}
    assert set(found) == {
        "gpu0 -> gpu1", "gpu1 -> gpu0", "gpu1 -> gpu2", "gpu2 -> gpu1",
        "gpu0 -> gpu2, through the host", "gpu2 -> gpu0, through the host",
    }  # fmt: skip
    device_module._time_runs(found["gpu2 -> gpu1"], bed, 1)
    copied = "source 2[:16] to target 1[:16]"
    assert fake.log == ["wait for 2", "wait for 1", copied, "wait for 2", "wait for 1"]
    assert list(probes_module._peer_copies(fake_bed(FakeCuda(1)), [64])) == []
