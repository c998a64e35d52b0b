"""One rail that stands for others like it, beside all of them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from perfmodel.collectives.verify import verify
from perfmodel.library.channels import symmetry
from perfmodel.library.lowering.lower import lower_collective
from perfmodel.library.machine import Machine, make_machine
from perfmodel.library.model import load_library
from perfmodel.simulate.uncontended import UncontendedTimer, add_traffic
from perfmodel.topology.faults import degrade_links
from perfmodel.topology.templates.build import build_topology

MiB = 1 << 20


@pytest.fixture
def folds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one rail stand for all on small machines too."""
    monkeypatch.setattr(symmetry, "MOST_RANKS", 8)


def machine(template: str, hosts: int, *, whole: bool = False) -> Machine:
    topology = build_topology(template, hosts=hosts, fabric="rail-optimised")
    return replace(make_machine(topology, load_library("nccl")), whole=whole)


@pytest.mark.usefixtures("folds")
@pytest.mark.parametrize("nbytes", [65536, MiB, 25 * MiB, 256 * MiB])
@pytest.mark.parametrize(
    ("template", "algorithm"),
    [("dgx-h100", "tree"), ("dgx-a100", "tree"), ("dgx-h100", "nvls_tree"), ("dgx1-v100", "tree")],
)
def test_one_rail_takes_about_as_long_as_all(template: str, algorithm: str, nbytes: int) -> None:
    """At most 12 % less: rails that share links wait for each other now and then."""
    times = []
    for whole in (True, False):
        cluster = machine(template, 16, whole=whole)
        timer = UncontendedTimer(cluster)
        lowered, time_s = timer.best("all_reduce", nbytes, range(128), 0, algorithm)
        assert (lowered.multiplicity > 1) != whole
        times.append(time_s)
    assert 0.88 * times[0] <= times[1] <= 1.02 * times[0]


@pytest.mark.usefixtures("folds")
def test_links_that_rails_share_bear_all_of_them() -> None:
    """Without GPUDirect two rails of a DGX A100 pass each PCIe link between switch and CPU."""
    times = []
    for whole in (True, False):
        cluster = machine("dgx-a100", 4, whole=whole)
        cluster = replace(cluster, topology=replace(cluster.topology, gpudirect_rdma=False))
        times.append(
            UncontendedTimer(cluster).best("all_reduce", 256 * MiB, range(32), 0, "tree")[1]
        )
    assert 0.8 * times[0] <= times[1] <= 1.1 * times[0]


@pytest.mark.usefixtures("folds")
@pytest.mark.parametrize("algorithm", ["tree", "nvls_tree"])
def test_one_rail_sums_its_part_and_loads_its_links_like_the_others(algorithm: str) -> None:
    one, every = (
        lower_collective(machine("dgx-h100", 2, whole=whole), "all_reduce", 8 * MiB, range(16),
              algorithm=algorithm)[-1]
        for whole in (False, True)
    )  # fmt: skip
    assert (one.multiplicity, every.multiplicity) == (8, 1)
    assert one.schedule.nbytes == MiB
    verify(one.schedule, orders=1)
    cluster = machine("dgx-h100", 2)
    loads = []
    for lowered in (one, every):
        nbytes = np.zeros(len(cluster.topology.arcs))
        add_traffic(nbytes, lowered)
        loads.append(nbytes)
    used = loads[0] > 0
    names = [cluster.topology.arcs.names[arc] for arc in np.flatnonzero(used)]
    assert ("n0/gpu0", "n0/nvs") in names
    assert ("n0/gpu1", "n0/nvs") not in names
    assert ("n0/nic0", "fabric/leaf0") in names
    assert loads[0][used] == pytest.approx(loads[1][used], rel=0.15)


@pytest.mark.usefixtures("folds")
def test_machines_whose_rails_are_or_become_unlike_are_laid_whole() -> None:
    cluster = machine("dgx-h100", 2)
    slower = replace(cluster, topology=degrade_links(cluster.topology, {0: 1e9}))
    for other in (machine("dgx-h100", 2, whole=True), slower):
        lowered = lower_collective(other, "all_reduce", MiB, range(16), algorithm="tree")
        assert lowered[-1].multiplicity == 1
    lowered = lower_collective(cluster, "all_reduce", MiB, range(8), algorithm="tree")
    assert lowered[-1].multiplicity == 1


def test_small_machines_are_laid_whole() -> None:
    assert (
        lower_collective(machine("dgx-h100", 4), "all_reduce", MiB, range(32), algorithm="tree")[
            0
        ].multiplicity
        == 1
    )
