"""`doctor` says what is there, and falls over nothing."""

from __future__ import annotations

import json
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from perfmodel.api import doctor
from perfmodel.cli.app import build_app


def test_it_reports_versions_extras_and_adapters(tmp_path: Path) -> None:
    port = tmp_path / "class" / "net" / "eth7"
    (port / "device").mkdir(parents=True)
    (port / "speed").write_text("25000\n")
    (tmp_path / "class" / "net" / "lo").mkdir()
    rdma = tmp_path / "class" / "infiniband" / "mlx5_0" / "ports" / "1"
    rdma.mkdir(parents=True)
    (rdma / "rate").write_text("200 Gb/sec (4X HDR)\n")
    installation = doctor.inspect_installation(tmp_path)
    assert installation.packages["numpy"] == version("numpy")
    assert installation.devices.nics == ("eth7: 25 Gbit/s", "mlx5_0 port 1: 200 Gb/sec (4X HDR)")
    assert {extra.name for extra in installation.extras} == set(doctor.EXTRAS)
    lines = "\n".join(doctor.describe_installation(installation))
    assert f"numpy {version('numpy')}" in lines
    assert "eth7" in lines


def test_gpus_of_the_driver_are_named_and_what_they_allow(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def answer(*args: Any, **kwargs: Any) -> Any:
        return subprocess.CompletedProcess(args, 0, stdout="NVIDIA A100\nNVIDIA A100\n")

    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(doctor.subprocess, "run", answer)
    installation = doctor.inspect_installation(tmp_path)
    assert installation.devices.gpus == ("NVIDIA A100", "NVIDIA A100")
    assert any("topology import topo.txt" in each for each in installation.measurable.values())


def test_broken_drivers_and_packages_do_not_stop_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fail(*args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("driver is ill")

    for name in ("_ask_tool", "_read_cuda", "_read_nics"):
        monkeypatch.setattr(doctor, name, fail)
    monkeypatch.setattr(doctor.os, "sysconf", fail)
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setattr(doctor.importlib.metadata, "version", fail)
    installation = doctor.inspect_installation(tmp_path)
    assert installation.devices.gpus == ()
    assert installation.devices.memory_bytes is None
    assert set(installation.packages.values()) == {None}
    assert any("numpy is missing: pip install numpy" in line for line in installation.problems)
    assert "MISSING" in "\n".join(doctor.describe_installation(installation))


def test_the_command_prints_one_document() -> None:
    done = CliRunner().invoke(build_app(["doctor"]), ["doctor", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["packages"]["numpy"] == version("numpy")
