"""A profile changes what it names and nothing else; what it does not fit is refused."""

import numpy as np
import pytest

from perfmodel.calibrate import Profile, fit, read_profile
from perfmodel.calibrate.apply import apply
from perfmodel.errors import InputError
from perfmodel.library.lowering.protocols import wire_factor
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.measure.job import Measurement
from perfmodel.topology.templates.build import build_topology


def value(parameter, where, text, beyond="0 B"):
    low, high = (text.replace(text.split()[0], str(float(text.split()[0]) * f)) for f in (0.9, 1.1))
    return {
        "parameter": parameter,
        "where": where,
        "beyond": beyond,
        "value": text,
        "interval": [low, high],
    }


def document(*values, **changes):
    side = len(values)
    one = {
        "rows": "library",
        "method": "by hand",
        "values": list(values),
        "covariance": np.eye(side).tolist(),
        "undetermined": [{"parameter": "launch", "where": "ring", "kept": "0 us", "reason": "r"}],
    }
    return {
        "perfmodel": 2,
        "kind": "profile",
        "name": "mine",
        "topology": "cpu-loopback",
        "library": "gloo",
        "date": "2026-01-02",
        "source": [],
        "fits": [one],
    } | changes


def profile(*values, **changes):
    return Profile.model_validate(document(*values, **changes))


@pytest.fixture(scope="module")
def machine():
    return Machine(build_topology("cpu-loopback"), load_library("gloo"))


def test_bandwidth_scales_all_links_of_the_kind_and_nothing_else(machine):
    here = apply(profile(value("bandwidth", "memory", "3 GB/s")), machine)
    before, after = machine.topology.arcs, here.topology.arcs
    assert after.bandwidth_Bps.min() == pytest.approx(3e9)
    assert after.bandwidth_Bps / before.bandwidth_Bps == pytest.approx(3e9 / 5.964e9)
    assert (after.latency_s == before.latency_s).all()
    assert here.library == machine.library
    drawn = [
        d["bandwidth"]
        for *_, d in sorted(here.topology.graph.edges(data=True), key=lambda arc: arc[2]["index"])
    ]
    assert drawn == pytest.approx(after.bandwidth_Bps.tolist())
    assert before.bandwidth_Bps.min() == pytest.approx(5.964e9), "the original is as it was"


def test_other_kinds_of_link_stay(machine):
    cluster = Machine(build_topology("ethernet-10g", hosts=2, fabric="one-switch"), machine.library)
    made = profile(value("bandwidth", "ethernet", "1 GB/s"), topology="ethernet-10g")
    before, after = cluster.topology.arcs, apply(made, cluster).topology.arcs
    for kind, old, new in zip(before.kinds, before.bandwidth_Bps, after.bandwidth_Bps, strict=True):
        assert new == (pytest.approx(1e9) if kind == "ethernet" else old)


def test_times_go_to_the_protocol(machine):
    values = (
        value("step", "ring/memory", "90 us"),
        value("launch", "ring", "7 us"),
        value("reduce", "ring", "8 GB/s"),
    )
    here = apply(profile(*values), machine)
    old, new = (m.library.protocols["ring"].model_dump() for m in (machine, here))
    changed = {key for key in old if old[key] != new[key]}
    assert changed == {"step", "launch", "reduce_rate"}
    assert (new["launch"], new["reduce_rate"]) == (pytest.approx(7e-6), pytest.approx(8e9))
    assert new["step"] == old["step"] | {"memory": pytest.approx(90e-6)}
    assert (here.topology.arcs.bandwidth_Bps == machine.topology.arcs.bandwidth_Bps).all()


def test_pieces_become_wire_segments(machine):
    made = profile(
        value("bandwidth", "memory", "2 GB/s"), value("bandwidth", "memory", "4 GB/s", "1000 B")
    )
    here = apply(made, machine)
    ring = here.library.protocols["ring"]
    assert here.topology.arcs.bandwidth_Bps.min() == pytest.approx(4e9)
    # 1000 bytes at 2 GB/s and 3000 at 4 GB/s, on a link of 4 GB/s.
    assert 4000 * wire_factor(ring, 4000) / 4e9 == pytest.approx(1000 / 2e9 + 3000 / 4e9)
    assert 500 * wire_factor(ring, 500) / 4e9 == pytest.approx(500 / 2e9)


def test_the_report_says_what_was_measured(machine):
    here = apply(profile(value("step", "ring/memory", "90 us")), machine).topology
    assert "90 us, 80 % interval 81.0 us to 99" in here.sources["measured step of ring/memory"]
    told = here.assumptions[-1]
    assert told.startswith("Measured by profile mine of 2026-01-02, the library's own collective")
    assert "Every other number is from datasheets." in told
    assert "Not determined, datasheet kept: launch of ring (r)." in told
    assert set(machine.topology.sources) < set(here.sources)


def test_a_profile_of_something_else_is_refused_with_every_fault(machine):
    made = profile(
        value("step", "rign/memory", "1 us"),
        value("bandwidth", "nvlink", "1 GB/s"),
        topology="dgx-a100",
        library="nccl",
    )
    with pytest.raises(InputError) as caught:
        apply(made, machine)
    text = str(caught.value)
    assert len(caught.value.faults) == 4
    assert "made for 'dgx-a100'; allowed: a profile of 'cpu-loopback'" in text
    assert "library 'gloo'" in text
    assert "did you mean 'ring/memory'?" in text
    assert "bandwidth of 'nvlink'; allowed: one of 'memory'" in text


# ---------------------------------------------------------------- bad files


BAD = """\
perfmodel: 2
kind: profile
name: mine
topology: cpu-loopback
library: gloo
date: '2026-01-02'
sauce: []
fits:
- rows: libary
  method: by hand
  values:
  - {parameter: bandwidth, where: memory, value: 3 us, interval: [2 GB/s, 4 GB/s]}
  - {parameter: step, where: ring/memory, value: 3 us, interval: [4 us, 5 us]}
  - {parameter: step, where: ring/memory, value: 0 us, interval: [0 us, 5 us]}
  - {parameter: speed, where: ring/memory, value: 3 us, interval: [2 us, 5 us]}
  covariance: []
  scatter: -1.0
"""


def test_a_bad_file_is_told_every_fault_with_its_line(tmp_path):
    path = tmp_path / "bad.yaml"
    path.write_text(BAD)
    with pytest.raises(InputError) as caught:
        read_profile(path)
    text = str(caught.value)
    for line, words in (
        (7, "an unknown field"),
        (9, "did you mean 'library'"),
        (12, "a bandwidth such as"),
        (13, "an interval around '3 us'"),
        (14, "more than zero"),
        (15, "'bandwidth'"),
        (17, "greater than or equal to 0"),
    ):
        assert any(f":{line}:" in said and words in said for said in text.splitlines()), (
            line,
            text,
        )


def test_a_profile_of_an_earlier_version_is_to_be_made_again(tmp_path):
    path = tmp_path / "old.yaml"
    path.write_text("perfmodel: 1" + BAD.partition("\n")[2].join(["\n", ""]))
    with pytest.raises(InputError, match="again from its measurements with 'perfmodel calibrate'"):
        read_profile(path)


def test_covariance_must_be_as_long_as_the_values(tmp_path):
    with pytest.raises(ValueError, match="covariance with 1 rows and columns"):
        profile(
            value("step", "ring/memory", "90 us"),
            fits=[document(value("step", "ring/memory", "90 us"))["fits"][0] | {"covariance": []}],
        )


def measured(**fields):
    names = ("min_s", "p10_s", "p25_s", "median_s", "p75_s", "p90_s")
    row = {"what": "library", "nbytes": 1024, "repeats": 1} | dict.fromkeys(names, 1e-3)
    known = {
        "backend": "gloo",
        "collective": "all_reduce",
        "algorithm": "ring",
        "ranks": 4,
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 1.0,
        "command": "made up",
        "machine": {},
        "versions": {},
        "rows": [row],
    }
    return Measurement.model_validate(known | fields)


def test_measurements_of_something_else_are_refused_with_every_fault(machine):
    wrong = [
        measured(topology="dgx-a100", ranks=99),
        measured(backend="nccl"),
        measured(backend="device"),
    ]
    with pytest.raises(InputError) as caught:
        fit(wrong, machine.topology, machine.library)
    said = [str(fault) for fault in caught.value.faults]
    assert said == [
        "measurement 1: topology: found 'dgx-a100'; allowed: 'cpu-loopback', as asked",
        "measurement 1: ranks: found 99; allowed: 2 to 16 ranks, as cpu-loopback has",
        "measurement 2: backend: found 'nccl'; allowed: 'gloo', as asked",
        "measurement 3: backend: found 'device'; allowed: 'gloo' or 'nccl': collectives of ranks",
    ]


def test_nothing_measured_is_said(machine):
    with pytest.raises(InputError, match="measurements: found none"):
        fit([], machine.topology, machine.library)
    with pytest.raises(InputError, match="'library' or 'schedule'"):
        fit([measured(rows=[])], machine.topology, machine.library)
