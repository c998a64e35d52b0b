"""Training over gloo in two processes of this run: imported, and simulated again."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest

from perfmodel.calibrate import fit, source_of, write_profile
from perfmodel.library.model import load_library
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.topology.templates.build import build_topology
from perfmodel.traces.rebuild.layer_profile import fit_links
from perfmodel.traces.run import Comparison, TraceAnalysis, analyse_traces
from perfmodel.training.ddp.buckets import ddp_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.workload import load_workload, read_layer_times
from perfmodel.workload.readers.parameter_file import read_model
from tests.forked_ranks import run_ranks
from tests.measure.measured_files import read_measurement

ROUNDS, STEPS, CAP_MB, WIDTH = 2, 5, 1, 320  # of gloo_training.py, which needs torch


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("torch", reason="runs PyTorch's profiler")
    folder = tmp_path_factory.mktemp("traced")
    (folder / "ports").write_text(" ".join(map(str, _free_ports(ROUNDS))))
    run_ranks("tests.traces.gloo_training", "train", 2, folder)
    return folder


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def calibrate(folder: Path, number: int) -> Path:
    """What ``perfmodel calibrate`` makes of the measurement of a round."""
    path = folder / f"round{number}-measured.json"
    measured = read_measurement(path)
    profile = fit(
        [measured],
        build_topology("cpu-loopback"),
        load_library("gloo"),
        name="loopback",
        sources=[source_of(measured, path)],
    )
    target = folder / f"round{number}-loopback.yaml"
    write_profile(profile, target)
    return target


def analyse(folder: Path, number: int) -> TraceAnalysis:
    """As recorded, and on the loopback interface with the numbers that were measured."""
    profile = calibrate(folder, number)
    files = [folder / f"round{number}-rank{rank}.json" for rank in range(2)]
    changes = [
        "cluster.node=cpu-loopback",
        "library.name=gloo",
        f"profile={profile}",
    ]
    return analyse_traces(files, folder=folder / f"round{number}", changes=changes)


@pytest.fixture(scope="module")
def analysis(folder: Path) -> TraceAnalysis:
    return analyse(folder, ROUNDS - 1)


def is_close(simulated: Comparison | None) -> bool:
    """Within a tenth of the median, or among the steps where those differ by more than that."""
    assert simulated is not None
    low_s, high_s = simulated.spread_s
    return abs(simulated.error) < 0.1 or (
        high_s - low_s > 0.5 * simulated.recorded_s and low_s < simulated.simulated_s < high_s
    )


def describe(simulated: Comparison | None) -> str:
    assert simulated is not None
    low_s, high_s = (1e3 * each for each in simulated.spread_s)
    spread = f"{1e3 * simulated.recorded_s:.1f} ms ({low_s:.1f} to {high_s:.1f})"
    return f"{simulated.error:+.1%} of {spread}"


@pytest.mark.slow
def test_a_calibrated_machine_steps_as_recorded(folder: Path, analysis: TraceAnalysis) -> None:
    """The second round; if another process of this machine came in between, the first as well."""
    texts = []
    for number in reversed(range(ROUNDS)):
        made = analysis if number == ROUNDS - 1 else analyse(folder, number)
        texts += [describe(made.changed), describe(made.comparison)]
        if is_close(made.changed) and is_close(made.comparison):
            return
    pytest.fail("; ".join(texts))


def test_buckets_are_those_that_ddp_reports(folder: Path, analysis: TraceAnalysis) -> None:
    reported = json.loads((folder / "recorded.json").read_text())["buckets"]
    assert [4 * (bucket.elements or 0) for bucket in analysis.profile.buckets] == reported
    assert analysis.comparison is not None
    assert [bucket.nbytes for bucket in analysis.comparison.point.buckets] == reported
    assert analysis.first.batch == 128


def test_the_model_file_has_the_tensors(folder: Path, analysis: TraceAnalysis) -> None:
    workload = read_model(folder / f"round{ROUNDS - 1}" / "model.yaml")
    shapes = [tensor.shape for tensor in workload.tensors]
    assert shapes == [(WIDTH, WIDTH), (WIDTH,)] * 6
    assert [layer.name for layer in workload.layers] == [f"linear_{n}" for n in range(1, 7)]
    assert all(bucket.waiting_s is not None for bucket in analysis.profile.buckets)


def test_units_of_fully_shard(folder: Path) -> None:
    """Units by name, gathers and reductions; a scenario that steps about as recorded."""
    files = [folder / f"sharded-rank{rank}.json" for rank in range(2)]
    sharded = analyse_traces(files, folder=folder / "sharded")
    layer = WIDTH * WIDTH + WIDTH
    assert (sharded.first.fsdp, sharded.first.units) == (2, ("1", "", "0"))
    assert [call.elements for call in sharded.first.steps[-1].buckets] == [2 * layer] * 3
    assert [gradient.bucket for gradient in sharded.first.gradients] == [1] * 4 + [0] * 4 + [2] * 4
    assert sharded.rebuilt is not None
    assert sharded.rebuilt.documents["scenario.yaml"]["strategy"] == {
        "kind": "fsdp",
        "version": 2,
        "wrap": ["*"],
        "reshard_after_forward": True,
    }
    assert sharded.comparison is not None
    low_s, high_s = sharded.comparison.spread_s
    assert 0.7 * low_s < sharded.comparison.simulated_s < 1.2 * high_s, describe(sharded.comparison)


@pytest.mark.slow
def test_copies_of_a_sharded_model(tmp_path: Path) -> None:
    """Hybrid sharding: four ranks hold two copies, of which each is split over two."""
    pytest.importorskip("torch", reason="runs PyTorch's profiler")
    run_ranks("tests.traces.gloo_training", "train_hybrid", 4, tmp_path)
    files = [tmp_path / f"hybrid-rank{rank}.json" for rank in range(4)]
    hybrid = analyse_traces(files, folder=tmp_path / "hybrid")
    assert hybrid.rebuilt is not None, hybrid.refusal
    unit = 2 * (WIDTH * WIDTH + WIDTH)
    assert [call.elements for call in hybrid.first.steps[-1].buckets] == [unit] * 3
    assert [call.elements for call in hybrid.profile.averages] == [unit // 2] * 3
    assert hybrid.rebuilt.documents["scenario.yaml"]["strategy"] == {
        "kind": "fsdp",
        "version": 2,
        "wrap": ["*"],
        "reshard_after_forward": True,
        "shard_gpus": 2,
    }
    # four ranks on fewer cores wait for each other in ways that no step repeats
    assert hybrid.comparison is not None
    low_s, high_s = hybrid.comparison.spread_s
    assert 0.4 * low_s < hybrid.comparison.simulated_s < 1.3 * high_s, describe(hybrid.comparison)


def test_links_of_collectives_among_parts_of_the_ranks() -> None:
    """Rings of two and of eight, as the formula has them, give the link back."""
    rate, latency = 3e9, 20e-6
    rows = [(2, 1, 1 << 20), (8, 2, 1 << 16), (8, 1, 1 << 24)]
    times = [p * (n - 1) * (latency + size / n / rate) for n, p, size in rows]
    ranks, passes, sizes = zip(*rows, strict=True)
    link = fit_links(ranks, sizes, times, passes)
    assert link.bandwidth_Bps == pytest.approx(rate)
    assert link.latency_s == pytest.approx(latency)


# ---------------------------------------------------------------- record_steps


@pytest.fixture(scope="module")
def recorded(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((folder / "recorded.json").read_text())
    return document | {"file": folder / "recorded.yaml"}


def test_recorded_buckets_and_orders_are_those_predicted(recorded: dict[str, Any]) -> None:
    assert recorded["ready"] == recorded["captured"] == recorded["rebuilt"]
    workload = load_workload(str(recorded["file"]))
    buckets = ddp_buckets(workload, DdpOptions(bucket_cap=CAP_MB << 20))
    assert [bucket.nbytes for bucket in buckets] == recorded["buckets"]


def test_recorded_times_are_in_the_file(recorded: dict[str, Any]) -> None:
    workload = load_workload(str(recorded["file"]))
    times = read_layer_times(recorded["file"], workload)
    assert times.forward_s.sum() == pytest.approx(recorded["forward_s"], rel=1e-3)
    assert times.backward_s.sum() == pytest.approx(recorded["backward_s"], rel=1e-3)
    assert 0 < times.forward_s.sum() + times.backward_s.sum() < recorded["step_s"]
    assert times.optimizer_s == pytest.approx(recorded["rest_s"], rel=1e-3)
    assert (times.backward_s > 0).all()
    assert recorded["steps"] == STEPS


@pytest.mark.slow
def test_recorded_steps_are_reproduced(folder: Path, recorded: dict[str, Any]) -> None:
    path = folder / "recorded-scenario.yaml"
    path.write_text(
        f"# As recorded?\nperfmodel: 1\nmodel: {{file: {recorded['file']}}}\n"
        f"compute: {{source: file, times: {recorded['file']}, precision: fp32}}\n"
        f"strategy: {{kind: ddp, bucket_cap: {CAP_MB} MiB}}\n"
        "cluster: {node: cpu-loopback, gpus_per_node: 2}\n"
        "training: {batch_per_gpu: 128}\nlibrary: {name: gloo, host_step: 0 s}\n"
        f"profile: {calibrate(folder, ROUNDS - 1)}\n"
    )
    result = run_scenario(load_scenario(str(path), []))
    # Backward is not taken apart from what collectives slow down in it: simulated a little longer.
    step_s, simulated_s, (low_s, high_s) = (
        recorded["step_s"],
        result.main.step_time_s,
        recorded["spread_s"],
    )
    is_disturbed = high_s - low_s > 0.5 * step_s  # by other processes of this machine
    if not (is_disturbed and low_s < simulated_s < high_s):
        assert simulated_s == pytest.approx(step_s, rel=0.25)
