"""Discovery with a made-up NVML and a made-up sysfs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from perfmodel.errors import ExecutorUnavailable
from perfmodel.topology.importers import nvml as reader
from perfmodel.topology.importers.nvml import discover
from perfmodel.topology.routing.router import Router
from perfmodel.topology.templates.build import build_topology, check


class FakeError(Exception):
    """What NVML raises."""


def fake(
    name: str = "NVIDIA A100-SXM4-80GB",
    buses: tuple[str, ...] = ("00000000:17:00.0", "00000000:65:00.0"),
    link: Callable[[int, int], tuple[int, str] | None] = lambda gpu, number: None,
    level: int = 50,
    fails: str = "",
) -> Any:
    """NVML as nvidia-ml-py speaks it; `link` gives kind and bus of the far end, or nothing."""

    def linked(gpu: int, number: int) -> tuple[int, str]:
        far = link(gpu, number)
        if far is None:
            raise FakeError("not supported")
        return far

    def start() -> None:
        if fails:
            raise FakeError(fails)

    return SimpleNamespace(
        NVMLError=FakeError,
        nvmlInit=start,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: len(buses),
        nvmlDeviceGetHandleByIndex=lambda at: at,
        nvmlDeviceGetName=lambda gpu: name.encode(),
        nvmlDeviceGetPciInfo=lambda gpu: SimpleNamespace(busId=buses[gpu].encode()),
        nvmlDeviceGetTopologyCommonAncestor=lambda a, b: level,
        nvmlDeviceGetNvLinkState=lambda gpu, number: int(link(gpu, number) is not None),
        nvmlDeviceGetNvLinkRemoteDeviceType=lambda gpu, number: linked(gpu, number)[0],
        nvmlDeviceGetNvLinkRemotePciInfo=lambda gpu, number: SimpleNamespace(
            busId=linked(gpu, number)[1]
        ),
        nvmlDeviceGetMaxPcieLinkGeneration=lambda gpu: 4,
        nvmlDeviceGetMaxPcieLinkWidth=lambda gpu: 8,
    )


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two sockets; GPU 17 and a NIC below one switch of the first, GPU 65 alone on the second."""
    tree = {
        "0000:17:00.0": "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0",
        "0000:18:00.0": "pci0000:15/0000:15:01.0/0000:16:00.0/0000:18:00.0",
        "0000:65:00.0": "pci0000:64/0000:64:01.0/0000:65:00.0",
    }
    (tmp_path / "bus/pci/devices").mkdir(parents=True)
    for bus, where in tree.items():
        folder = tmp_path / "devices" / where
        folder.mkdir(parents=True)
        (folder / "numa_node").write_text("1\n" if bus.startswith("0000:65") else "0\n")
        (tmp_path / "bus/pci/devices" / bus).symlink_to(folder)
    for name, rate, state in (
        ("mlx5_0", "200 Gb/sec (4X HDR)", "4: ACTIVE"),
        ("mlx5_1", "10 Gb/sec (1X QDR)", "1: DOWN"),
    ):
        port = tmp_path / "class/infiniband" / name / "ports/1"
        port.mkdir(parents=True)
        (port / "rate").write_text(rate + "\n")
        (port / "state").write_text(state + "\n")
        (port / "link_layer").write_text("InfiniBand\n")
        (tmp_path / "class/infiniband" / name / "device").symlink_to(
            tmp_path / "devices" / tree["0000:18:00.0"]
        )
    return tmp_path


def test_gpus_nvlinks_and_nics(sysfs: Path) -> None:
    def link(gpu: int, number: int) -> tuple[int, str] | None:
        other = "00000000:65:00.0" if gpu == 0 else "00000000:17:00.0"
        return (0, other) if number < 4 else None

    found = discover(fake(link=link), sysfs)
    assert check(found.node()) == ()
    topology = build_topology(found.node())
    router = Router(topology)
    assert topology.gpu.name == "a100-sxm4-80gb"
    assert topology.graph["n0/gpu0"]["n0/gpu1"][0]["lanes"] == 4
    assert router.path_type("n0/gpu0", "n0/nic0") == "PIX"
    assert router.path_type("n0/gpu1", "n0/nic0") == "SYS"
    node = found.node()
    assert node.links["infiniband"].bandwidth == pytest.approx(25e9)
    assert node.links["infiniband"].source.startswith("/sys/class/infiniband/mlx5_0/ports/1/rate")
    assert "pcie4-x8" in node.links
    assert "n0/nic1" not in topology.graph, "its link is down"


def test_a_switch_between_gpus(tmp_path: Path) -> None:
    found = discover(fake(link=lambda gpu, number: (2, "") if number < 12 else None), tmp_path)
    topology = build_topology(found.node())
    assert topology.graph["n0/gpu1"]["n0/nvs"][0]["lanes"] == 12


def test_cards_without_nvlink(tmp_path: Path) -> None:
    topology = build_topology(discover(fake("Tesla T4", level=30), tmp_path).node())
    assert Router(topology).path_type("n0/gpu0", "n0/gpu1") == "PHB"
    assert topology.network == "none"


def test_what_is_missing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ExecutorUnavailable, match=r"Driver Not Loaded.*topo -m"):
        discover(fake(fails="Driver Not Loaded"), tmp_path)
    with pytest.raises(ExecutorUnavailable, match="no GPU"):
        discover(fake(buses=()), tmp_path)

    def missing(name: str) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(reader.importlib, "import_module", missing)
    with pytest.raises(ExecutorUnavailable, match="nvml"):
        discover(sysfs=tmp_path)
