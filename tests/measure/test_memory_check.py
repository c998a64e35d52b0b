"""Memory of a measurement, on the host and on devices."""

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.errors import InputError
from perfmodel.measure.job import SIDE_BYTES, MeasurementJob, make_schedules
from perfmodel.measure.run import PROCESS_BYTES, require_memory

SIZES = (1024, 4096)


def job(**changes):
    known = {"backend": "gloo", "algorithm": "ring", "collective": "all_reduce", "ranks": 4}
    return MeasurementJob(**(known | {"sizes": SIZES} | changes))


@pytest.fixture
def asked(monkeypatch):
    """Call the command; return the job that it would measure."""
    jobs = []
    monkeypatch.setattr("perfmodel.measure.run.measure", lambda job, _: jobs.append(job))

    def ask(arguments):
        result = CliRunner().invoke(app, ["measure", *arguments])
        assert result.exit_code == 0, result.output
        return jobs.pop()

    return ask


def test_room_is_reckoned_from_ranks_and_buffers(monkeypatch):
    def free(nbytes):
        monkeypatch.setattr("perfmodel.measure.run.free_memory_bytes", lambda: nbytes)

    def room(asked):
        require_memory(asked, list(make_schedules(asked).values()))

    asked = job(sizes=(1 << 20, 1 << 30))
    needed = 4 * (3 * (1 << 30) + (1 << 28) + PROCESS_BYTES)
    free(needed)
    room(asked)
    free(needed - 1)
    with pytest.raises(InputError, match="sizes: found 1 GiB"):
        room(asked)
    free(4 * (3 * (1 << 30) + PROCESS_BYTES))
    room(job(sizes=(1 << 30,), collective="all_gather"))  # no scratch, but a buffer to gather in
    free(4 * (2 * (1 << 30) + PROCESS_BYTES))
    with pytest.raises(InputError):
        room(job(sizes=(1 << 30,), collective="all_gather"))
    free(needed - 1)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    room(asked)
    free(None)  # a system that does not say
    room(job(sizes=(1 << 45,)))


class Devices:
    """As much of torch.cuda as the reckoning asks."""

    def __init__(self, nbytes):
        self.cuda, self.total_memory = self, nbytes

    def get_device_properties(self, device):
        return self

    def mem_get_info(self, device):
        return self.total_memory, self.total_memory


def test_room_on_devices(monkeypatch):
    monkeypatch.setattr("perfmodel.measure.run.free_memory_bytes", lambda: 2 << 30)
    one = job(backend="nccl", sizes=(1 << 30,))
    made = list(make_schedules(one).values())
    needed = 3 * (1 << 30) + (1 << 28)
    require_memory(one, made, Devices(needed))  # each rank has a device of its own
    with pytest.raises(InputError, match="of the GPU's memory"):
        require_memory(one, made, Devices(needed - 1))
    shared = job(backend="device", sizes=(1 << 30,))
    needed = 4 * (2 * (1 << 30) + (1 << 28)) + 2 * ((1 << 30) + SIDE_BYTES)
    require_memory(shared, made, Devices(needed))
    monkeypatch.setattr("perfmodel.measure.run.free_memory_bytes", lambda: (2 << 30) - 1)
    with pytest.raises(InputError) as caught:
        require_memory(shared, made, Devices(needed - 1))
    assert len(caught.value.faults) == 2  # neither on the GPU nor on the host
