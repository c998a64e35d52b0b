"""NCCL ranks bind to their devices when they join the group."""

import pytest

from perfmodel.measure import status as at
from perfmodel.measure.job import MeasurementJob
from perfmodel.measure.launcher import join_group

torch = pytest.importorskip("torch", reason="virtual ranks are torch tensors")


def job(**changes):
    known = {"backend": "device", "algorithm": "ring", "collective": "all_reduce", "ranks": 3}
    return MeasurementJob(**(known | {"sizes": (64, 4096), "repeats": 2} | changes))


@pytest.mark.parametrize(("local", "index"), [(None, 3), ("1", 1)])
def test_nccl_binds_each_rank_to_its_device(local, index, monkeypatch):
    asked = {}
    if local is not None:
        monkeypatch.setenv("LOCAL_RANK", local)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: asked.update(current=device))
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setattr(
        torch.distributed, "init_process_group", lambda backend, **rest: asked.update(rest)
    )
    join_group(job(backend="nccl", ranks=4), at.make_private_status(3, 4), None)
    # without a device_id the communicator would start with the first exchange, among a few ranks
    assert asked["current"] == asked["device_id"] == torch.device("cuda", index)
    assert (asked["rank"], asked["world_size"]) == (3, 4)
    asked.clear()
    join_group(job(backend="gloo", ranks=4), at.make_private_status(3, 4), None)
    assert asked["device_id"] is None
    assert "current" not in asked
