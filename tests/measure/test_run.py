"""Ranks that torchrun has started."""

from perfmodel.measure.run import count_hosts, under_torchrun


def test_hosts_are_counted_as_torchrun_says(monkeypatch):
    assert count_hosts() == 1
    for name in ("RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("WORLD_SIZE", "16")
    assert count_hosts() is None
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "8")
    assert count_hosts() == 2


def test_torchrun_is_recognised(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        assert not under_torchrun()
        monkeypatch.setenv(name, "1")
    assert under_torchrun()
