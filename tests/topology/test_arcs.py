"""Names that are made when they are asked for, and kinds that are kept a byte each."""

from __future__ import annotations

import pytest

from perfmodel.topology.arcs import Device, LinkKinds
from perfmodel.topology.templates.build import build_topology

CLUSTER = build_topology("dgx-a100", hosts=12, fabric="leaf-spine")


@pytest.mark.parametrize(
    "name",
    ["n12/gpu0", "n01/gpu0", "n-1/gpu0", "n\u0661/gpu0", "n1/gpu8", "n1", "gpu0", "", "x1/gpu0"],
)
def test_a_name_that_no_device_has_is_none(name: str) -> None:
    assert name not in CLUSTER.devices
    with pytest.raises(KeyError):
        CLUSTER.devices[name]


def test_devices_of_a_host_are_those_of_its_name() -> None:
    listed = dict(CLUSTER.devices)
    for host in (0, 11):
        own = list(CLUSTER.devices.of_host(host))
        assert own == [device for device in listed.values() if device.host == host]
        assert own == [CLUSTER.devices[f"n{host}/{device.local}"] for device in own]
    assert CLUSTER.devices["n11/gpu3"] == Device("gpu", 11, "gpu3")


def test_ends_by_number_and_by_slice_are_those_of_all() -> None:
    names = CLUSTER.arcs.names
    every = tuple(names)
    assert len(every) == len(names) == len(CLUSTER.arcs)
    assert names[-1] == every[-1]
    assert names[3:-1:7] == every[3:-1:7]
    assert names == every
    assert hash(names) == hash(every)
    with pytest.raises(IndexError):
        names[len(every)]


def test_kinds_are_those_listed() -> None:
    kinds = LinkKinds.of(["pcie", "nvlink", "pcie", "upi"])
    both = kinds.followed_by(LinkKinds.of(["ethernet", "nvlink"]))
    assert list(both) == ["pcie", "nvlink", "pcie", "upi", "ethernet", "nvlink"]
    assert (both[-1], list(both[1:4])) == ("nvlink", ["nvlink", "pcie", "upi"])
    assert both.among({"nvlink", "upi"}).tolist() == [False, True, False, True, False, True]
    assert both.values({"pcie": 2.0}, 1.0).tolist() == [2, 1, 2, 1, 1, 1]
    assert both[1:4].present() == {"nvlink", "pcie", "upi"}
    assert both.present(both.among({"upi"})) == {"upi"}
