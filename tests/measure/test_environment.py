"""Description of the machine and of other work on it."""

import platform

from perfmodel.measure.run import (
    CpuTime,
    describe_machine,
    describe_other_load,
    describe_versions,
)


def test_the_machine_is_described_without_names():
    said = describe_machine() | describe_versions()
    assert {"cpu", "cores", "os", "python", "numpy"} <= set(said)
    assert platform.node() not in " ".join(said.values()).split()
    assert "/" not in said["os"]


def test_other_work_is_what_neither_we_nor_our_children_did(monkeypatch):
    later = CpuTime(all_s=130.0, own_s=7.0, read_at_s=20.0)
    monkeypatch.setattr("perfmodel.measure.run.read_cpu_time", lambda: later)
    # 30 s of processor time in 10 s on 4 cores, 5 s of them ours
    assert describe_other_load(CpuTime(100.0, 2.0, 10.0), 4) == "62 % of the cores"
    assert describe_other_load(None, 4) == ""
