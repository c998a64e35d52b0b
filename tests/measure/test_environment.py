"""Description of the machine and of other work on it."""

import platform

from perfmodel.measure.run import (
    describe_machine,
    describe_other_load,
    describe_versions,
    read_cpu_time,
)


def test_the_machine_is_described_without_names():
    said = describe_machine() | describe_versions()
    assert {"cpu", "cores", "os", "python", "numpy"} <= set(said)
    assert platform.node() not in " ".join(said.values()).split()
    assert "/" not in said["os"]


def test_other_work_is_what_neither_we_nor_our_children_did(monkeypatch):
    """30 s of processor time in 10 s on 4 cores, 5 s of them ours."""
    machine, own, clock = iter(("9000 500 500", "11900 550 550")), iter((2.0, 7.0)), iter((10, 20))
    monkeypatch.setattr("pathlib.Path.read_text", lambda *_, **__: f"cpu {next(machine)} 99 cpu0")
    monkeypatch.setattr("perfmodel.measure.run.os.sysconf", lambda _: 100)
    monkeypatch.setattr(
        "perfmodel.measure.run.os.times", lambda: (next(own) - 1.5, 0.5, 0.5, 0.5, 9)
    )
    monkeypatch.setattr("perfmodel.measure.run.time.monotonic", lambda: next(clock))
    assert describe_other_load(read_cpu_time(), 4) == "62 % of the cores"
    assert describe_other_load(None, 4) == ""
