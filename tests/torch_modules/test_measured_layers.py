"""Times of layers on this machine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="modules need the extra 'torch'")

import torch

from perfmodel.errors import InputError
from perfmodel.torch_modules import layer_timer
from perfmodel.torch_modules.capture import capture
from perfmodel.torch_modules.ddp_steps import record_steps
from perfmodel.workload import load_workload, read_layer_times


@pytest.mark.slow
def test_measured_layers_are_read_as_times(tmp_path: Path) -> None:
    module = torch.nn.Sequential(
        torch.nn.Linear(512, 512), torch.nn.ReLU(), torch.nn.Linear(512, 8)
    )
    before = module[0].weight.detach().clone()
    captured = capture(
        module, torch.zeros(256, 512), measure=True, optimizer=torch.optim.AdamW, name="two"
    )
    assert torch.equal(module[0].weight, before)
    assert module[0].weight.grad is None
    assert captured.document["device"] == "cpu-process"  # on other hardware priced anew
    path = captured.save(tmp_path / "two.yaml")
    workload = load_workload(str(path))
    times = read_layer_times(path, workload)
    assert captured.measured is not None
    assert times.forward_s == pytest.approx(captured.measured.forward_s, rel=1e-4)
    assert times.backward_s == pytest.approx(captured.measured.backward_s, rel=1e-4)
    assert times.optimizer_s == pytest.approx(captured.measured.optimizer_s, rel=1e-4)
    assert min(times.forward_s) > 0


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


def test_all_reduces_last_longer_than_a_step_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun = list[int]()

    def all_reduce(*_: object, **__: object) -> SimpleNamespace:
        begun.append(len(begun))
        return SimpleNamespace(wait=lambda: None)

    monkeypatch.setattr(torch.distributed, "broadcast", lambda *_: None)
    monkeypatch.setattr(torch.distributed, "all_reduce", all_reduce)
    monkeypatch.setattr(layer_timer, "_timed", lambda *_: (0.5, None))
    with layer_timer._all_reduces(torch.zeros(1), 2.0, "cpu"):
        assert 2.0 < 0.5 * len(begun) < 10.0
