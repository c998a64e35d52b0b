"""Generations of parts: of a CPU from what /proc/cpuinfo says, of adapters from their time."""

from __future__ import annotations

import pytest

from perfmodel.library.nccl.host_graph import hardware
from perfmodel.topology.from_text.describe import describe
from perfmodel.topology.from_text.network_text import read_intra
from perfmodel.topology.from_text.parts import cpu_named, hardware_parts


def test_cpu_by_its_model() -> None:
    """Models as in /proc/cpuinfo: Skylake 85, Ice Lake 106, Sapphire Rapids 143; EPYC 23, 25."""
    assert [cpu_named("GenuineIntel", 6, model) for model in (79, 85, 106, 143, 207)] == [
        "broadwell",
        "skylake",
        "icelake",
        "sapphire",
        "emerald",
    ]
    assert cpu_named("AuthenticAMD", 23, 49) == "epyc"
    assert cpu_named("AuthenticAMD", 175, 1) == "epyc"
    assert cpu_named("AuthenticAMD", 25, 17) == "genoa"
    assert cpu_named("Unheard", 1, 1) is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("PCIe5 x16, AMD Genoa", "genoa"),
        ("dual EPYC Genoa", "genoa"),
        ("dual AMD EPYC", "epyc"),
        ("Rome", "epyc"),
        ("two sockets Sapphire Rapids", "sapphire"),
        ("PCIe4 x16", None),
    ],
)
def test_a_cpu_is_of_the_generation_that_is_named(text: str, kind: str | None) -> None:
    assert read_intra(text).cpu == kind


def test_newer_adapters_of_efa_are_quicker() -> None:
    """As the plugin's authors have it: 75 us of NCCL's tuner on p4d and p5, 35 on p6."""
    ports = hardware_parts().ports
    stated_us = hardware().plugins["efa"].latency_us
    ratio = ports["newer-efa"].latency / ports["efa"].latency
    assert ratio == pytest.approx(stated_us[100] / stated_us[80])
    for gpu, row in (
        ("A10G", "efa"),
        ("H100", "efa"),
        ("H200", "newer-efa"),
        ("RTX PRO 6000", "newer-efa"),
    ):
        node = describe(gpu, gpus=1, intra="none", network="AWS EFA").node
        assert node.links["efa"].latency == ports[row].latency
