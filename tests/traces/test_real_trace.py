"""A trace that PyTorch makes in this run: two gloo processes, imported and simulated again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from perfmodel.traces.run import TraceAnalysis, analyse_traces
from perfmodel.workload.readers.load import read_model


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="runs PyTorch's profiler")
    folder = tmp_path_factory.mktemp("traced")
    script = Path(__file__).with_name("ddp_with_profiler.py")
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(folder)],
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=120)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return folder


@pytest.fixture(scope="module")
def analysis(folder: Path) -> TraceAnalysis:
    files = [folder / "rank0.json", folder / "rank1.json"]
    return analyse_traces(files, folder=folder / "out")


def test_the_rebuilt_step_takes_as_long(analysis: TraceAnalysis) -> None:
    comparison = analysis.comparison
    assert comparison is not None
    low, high = comparison.spread_s
    simulated_s = comparison.recorded_s * (1 + comparison.error)
    # On a machine that other tests use as well, recorded steps differ by more than a tenth.
    is_inside = low <= simulated_s <= high
    assert is_inside or abs(comparison.error) < 0.1, f"steps from {low:g} to {high:g} s"


def test_buckets_are_those_that_ddp_reports(folder: Path, analysis: TraceAnalysis) -> None:
    reported = [int(size) for size in json.loads((folder / "buckets.json").read_text()).split(",")]
    assert [4 * (bucket.elements or 0) for bucket in analysis.profile.buckets] == reported
    assert analysis.comparison is not None
    assert [bucket.nbytes for bucket in analysis.comparison.point.buckets] == reported
    assert analysis.first.batch == 128


def test_the_model_file_has_the_tensors(folder: Path, analysis: TraceAnalysis) -> None:
    workload = read_model(folder / "out" / "model.yaml")
    shapes = [tensor.shape for tensor in workload.tensors]
    assert shapes == [(320, 320), (320,)] * 6
    assert [layer.name for layer in workload.layers] == [f"linear_{n}" for n in range(1, 7)]
    assert all(bucket.waiting_s is not None for bucket in analysis.profile.buckets)
