"""Which nodes of a machine a log of nccl-tests ran on."""

from __future__ import annotations

from pathlib import Path

import pytest

from perfmodel.calibrate.readers import read_files
from perfmodel.calibrate.transfer.inputs import MachineRequest, profile_of
from perfmodel.errors import InputError


def log(folder: Path, hosts: int, each: int, busbw_GBps: float) -> Path:
    """A log of a gigabyte's all-reduce, with each rank on a line."""
    ranks = hosts * each
    devices = [
        f"#  Rank {rank} Group 0 Pid 7 on tray-{rank // each} device {rank % each} [0x01] NVIDIA B"
        for rank in range(ranks)
    ]
    time_us = 2 * (ranks - 1) / ranks * 2**30 / busbw_GBps / 1e3
    algbw = 2**30 / time_us / 1e3
    cells = f"{time_us:.1f} {algbw:.2f} {busbw_GBps:.2f} 0"
    path = folder / "all_reduce_perf.log"
    path.write_text(
        "\n".join(
            [
                "# nThread 1 nGpus 1 minBytes 1073741824 maxBytes 1073741824 step: 2(factor)",
                "# Using devices",
                *devices,
                "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong",
                f"1073741824 268435456 float sum -1 {cells} {cells}",
            ]
        )
    )
    return path


@pytest.mark.slow
@pytest.mark.parametrize(("trays", "nodes"), [(18, 1), (9, 1), (36, 2)])
def test_trays_of_a_rack_are_one_node(tmp_path: Path, trays: int, nodes: int) -> None:
    """Of four GPUs each: as coreweave/nccl-tests (pull request 43) lists those of a GB200 NVL72."""
    fabric = "rail-optimised" if nodes > 1 else None
    request = MachineRequest("gb200-nvl72", fabric=fabric)
    profile = profile_of(read_files([log(tmp_path, trays, 4, 680.0)]), request, name="rack")
    assert {(point.hosts, point.ranks) for point in profile.fits[0].points} == {(nodes, 4 * trays)}


def test_hosts_of_which_some_gpus_are_used_stay_hosts(tmp_path: Path) -> None:
    files = read_files([log(tmp_path, 2, 4, 40.0)])
    request = MachineRequest("dgx-h100", fabric="rail-optimised")
    (point,) = profile_of(files, request, name="halves").fits[0].points
    assert (point.hosts, point.ranks) == (2, 8)
    with pytest.raises(InputError, match="nothing for 2 hosts"):
        profile_of(files, MachineRequest("dgx-h100"), name="halves")
