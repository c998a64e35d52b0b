"""Jobs whose backend needs GPUs, on machines without them."""

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.errors import ExecutorUnavailable
from perfmodel.measure.job import require_devices

torch = pytest.importorskip("torch", reason="virtual ranks are torch tensors")


@pytest.mark.parametrize("backend", ["device", "nccl"])
def test_without_a_gpu_it_says_so(backend, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    result = CliRunner().invoke(app, ["measure", "ring", "--backend", backend])
    assert result.exit_code == 2
    assert f"no CUDA device for backend {backend}" in result.stderr
    assert result.stdout == ""


def test_nccl_wants_a_gpu_for_each_rank(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ExecutorUnavailable, match="a CUDA device for each of 2 ranks, found 1"):
        require_devices("nccl", 2)
    assert require_devices("device", 1) is torch
