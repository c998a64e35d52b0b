"""Times out of place that are spikes are told by those in place; nothing else is changed."""

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.calibrate.readers import read_files
from perfmodel.calibrate.readers.sweep_records import SPIKE_RATIO, spikes
from perfmodel.calibrate.transfer.inputs import MachineRequest, profile_of

TIMES = st.lists(st.floats(1e-6, 1.0), min_size=4, max_size=30)


@given(TIMES, st.floats(0.8, 1.2), st.lists(st.floats(0.95, 1.05), min_size=30, max_size=30))
def test_times_that_differ_as_usual_are_left_alone(times_s, usual, noise):
    in_place = {2**at: time_s for at, time_s in enumerate(times_s)}
    pairs = zip(in_place.items(), noise, strict=False)
    assert spikes({n: usual * each * time_s for (n, time_s), each in pairs}, in_place) == {}


@given(TIMES, st.floats(0.9, 1.1), st.floats(1.3, 50.0), st.data())
def test_a_spike_is_replaced_by_what_it_would_be(times_s, usual, spike, data):
    at = data.draw(st.integers(0, len(times_s) - 1))
    in_place = {2**n: time_s for n, time_s in enumerate(times_s)}
    out = {nbytes: usual * time_s for nbytes, time_s in in_place.items()}
    spiked = out | {2**at: spike * out[2**at]}
    assert spikes(spiked, in_place) == pytest.approx({2**at: out[2**at]})


def test_a_spike_in_place_changes_nothing():
    out = {8: 30e-6, 16: 31e-6, 32: 32e-6, 64: 33e-6}
    assert spikes(out, out | {16: 150e-6}) == {}


def test_with_few_sizes_both_times_are_taken_to_be_the_same():
    assert spikes({8: 90e-6}, {8: 30e-6}) == {8: 30e-6}
    assert spikes({8: 90e-6}, {}) == {}


HEAD = """# nThread 1 nGpus 8 minBytes 8 maxBytes 134217728 step: 2(factor)
# Using devices
{devices}
#  size  count  type  redop  root  time  algbw  busbw #wrong  time  algbw  busbw #wrong
"""


def log(path: Path, *, spiked: bool) -> Path:
    devices = "\n".join(
        f"#  Rank  {rank} Group  0 Pid {100 + rank} on  host device  {rank} [0x00] NVIDIA A100-SXM4"
        for rank in range(8)
    )
    lines = [HEAD.format(devices=devices)]
    for power in range(10, 28):
        nbytes = 2**power
        time_us = 30.0 + nbytes / 130e3
        out_us = time_us * (4.0 if spiked and power == 10 else 1.0)
        cells = " ".join(
            f"{each:.2f} {nbytes / each * 1e-3:.2f} {1.75 * nbytes / each * 1e-3:.2f} 0"
            for each in (out_us, time_us)
        )
        lines.append(f"{nbytes} {nbytes // 4} float sum -1 {cells}\n")
    path.write_text("".join(lines))
    return path


def test_a_log_whose_first_row_is_a_spike_makes_the_profile_of_one_without(tmp_path):
    clean, spiked = (
        profile_of(
            read_files([log(tmp_path / f"{name}_all_reduce.log", spiked=name == "spiked")]),
            MachineRequest("dgx-a100", nodes=1),
            name="mine",
        )
        for name in ("clean", "spiked")
    )
    first, second = ([v.si for v in p.transfer.values] for p in (clean, spiked))
    assert second == pytest.approx(first, rel=1e-3)
    (note,) = [note for note in spiked.transfer.notes if "spikes" in note]
    assert "times in place taken for 1,024 B" in note
    assert not any("spikes" in note for note in clean.transfer.notes)


SAMPLES = Path(os.environ.get("PERFMODEL_SAMPLES", "no such folder"))


@pytest.mark.skipif(not SAMPLES.is_dir(), reason="PERFMODEL_SAMPLES names no folder")
def test_recorded_logs_have_few_spikes():
    """Of the two times of a size of a real log hardly any differ by more than a fifth."""
    (file,) = read_files([SAMPLES / "nccl_tests_superbench_a100.log"])
    out, in_place = ({row.nbytes: row.time_s for row in sweep.rows} for sweep in file.sweeps)
    assert len(spikes(out, in_place)) <= 1
    ratios = np.array([out[nbytes] / in_place[nbytes] for nbytes in out])
    assert np.quantile(np.abs(np.log(ratios)), 0.8) < np.log(SPIKE_RATIO) / 4
