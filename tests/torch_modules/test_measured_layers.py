"""Times of layers on this machine, and steps of a real DDP in two processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="modules need the extra 'torch'")

import torch

from perfmodel.errors import InputError
from perfmodel.torch_modules.capture import capture
from perfmodel.torch_modules.times.ddp_steps import record_steps
from perfmodel.training.ddp.buckets import ddp_buckets
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.workload import load_workload, read_layer_times
from tests.torch_modules.ddp_worker import STEPS

ROOT = Path(__file__).parents[2]


def test_measured_layers_are_read_as_times(tmp_path: Path) -> None:
    module = torch.nn.Sequential(
        torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)
    )  # fmt: skip
    before = module[0].weight.detach().clone()
    captured = capture(
        module, torch.zeros(256, 512), measure=True, optimizer=torch.optim.AdamW, name="two"
    )
    assert torch.equal(module[0].weight, before)
    assert module[0].weight.grad is None
    path = captured.save(tmp_path / "two.yaml")
    workload = load_workload(str(path))
    times = read_layer_times(path, workload)
    assert captured.measured is not None
    assert times.forward_s == pytest.approx(captured.measured.forward_s, rel=1e-4)
    assert times.backward_s == pytest.approx(captured.measured.backward_s, rel=1e-4)
    assert times.optimizer_s == pytest.approx(captured.measured.optimizer_s, rel=1e-4)
    assert times.forward_s[0] > times.forward_s[1] > 0  # 64 times as many operations


def test_measuring_needs_real_parameters() -> None:
    module = torch.nn.Linear(4, 4, device="meta")
    with pytest.raises(InputError, match="a module on meta"):
        capture(module, torch.zeros(2, 4), measure=True)
    with pytest.raises(InputError, match="measure=True"):
        capture(module, torch.zeros(2, 4), autocast="bf16")


def test_a_plain_module_has_no_steps_to_record() -> None:
    with (
        pytest.raises(InputError, match="DistributedDataParallel"),
        record_steps(torch.nn.Linear(4, 4)),
    ):
        pass


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("ddp")
    environment = {
        **os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "tests.torch_modules.ddp_worker", str(folder)]
    processes = [
        subprocess.Popen([*command, str(rank)], env=environment, stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    errors = [process.communicate(timeout=200)[1] for process in processes]
    assert all(process.returncode == 0 for process in processes), errors
    document: dict[str, Any] = json.loads((folder / "steps.json").read_text())
    return document | {"file": folder / "model.yaml"}


def test_recorded_buckets_and_orders_are_those_predicted(recorded: dict[str, Any]) -> None:
    assert recorded["ready"] == recorded["captured"] == recorded["rebuilt"]
    workload = load_workload(str(recorded["file"]))
    buckets = ddp_buckets(workload, DdpOptions(bucket_cap_bytes=recorded["cap"]))
    assert [bucket.nbytes for bucket in buckets] == recorded["buckets"]


def test_recorded_times_are_in_the_file(recorded: dict[str, Any]) -> None:
    workload = load_workload(str(recorded["file"]))
    times = read_layer_times(recorded["file"], workload)
    assert times.forward_s.sum() == pytest.approx(recorded["forward_s"], rel=1e-3)
    assert times.backward_s.sum() == pytest.approx(recorded["backward_s"], rel=1e-3)
    assert 0 < times.forward_s.sum() + times.backward_s.sum() < recorded["step_s"]
    assert (times.backward_s > 0).all()
    assert recorded["steps"] == STEPS
