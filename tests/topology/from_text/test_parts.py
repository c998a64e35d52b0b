"""The generation of a CPU from what /proc/cpuinfo says."""

from __future__ import annotations

from perfmodel.topology.from_text.parts import cpu_named


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
