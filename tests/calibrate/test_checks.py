"""Which runs of a collective are comparable."""

import pytest

from perfmodel.calibrate.checks import differences, doubts
from perfmodel.library.settings import LibrarySettings
from perfmodel.measure.job import Measurement
from perfmodel.topology.templates.build import build_topology


def dgx(hosts=1):
    return build_topology("dgx-a100", hosts=hosts, fabric="rail-optimised" if hosts > 1 else None)


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        ({}, {}, ""),
        ({"version": "2.9.9"}, {}, ""),  # nothing is known against it
        ({"version": "2.18.3"}, {"version": "2.27.7"}, ""),
        ({"version": "2.9.9"}, {"version": "2.17.1"}, "2.9.9 against 2.17.1"),
        ({"version": "2.4"}, {"version": "2.8"}, "2.4 against 2.8"),
        ({}, {"env": {"NCCL_PROTO": "Simple"}}, "NCCL_PROTO free against simple"),
        ({"env": {"NCCL_PROTO": "SIMPLE"}}, {"env": {"NCCL_PROTO": "Simple"}}, ""),
        ({"env": {"NCCL_ALGO": "Ring"}}, {"env": {"NCCL_ALGO": "Tree"}}, "ring against tree"),
        ({"env": {"NCCL_ALGO": "allgather:Ring"}}, {}, ""),  # not of this collective
        ({"env": {"NCCL_NVLS_ENABLE": "0"}}, {}, "NCCL_NVLS_ENABLE=0 against 1"),
        ({"env": {"NCCL_NVLS_ENABLE": "2"}}, {}, ""),
        ({"env": {"NCCL_MIN_NCHANNELS": "16"}}, {}, ""),  # the mechanism follows these
        ({"env": {"NCCL_IB_DISABLE": "1"}}, {}, "network tcp against infiniband"),
        ({"one_process": True}, {}, ""),
    ],
)
def test_settings_that_make_runs_unlike(first, second, reason):
    topology = dgx(2)
    pair = [(topology, LibrarySettings(**told)) for told in (first, second)]
    reasons = "; ".join(differences("all_reduce", *pair))
    assert reason in reasons
    assert bool(reasons) == bool(reason)
    assert bool(differences("all_reduce", *reversed(pair))) == bool(reason)


def test_networks_do_not_matter_on_one_host_and_peers_do_without_nvlink():
    plain = LibrarySettings()
    off = LibrarySettings(env={"NCCL_P2P_DISABLE": "1"})
    assert not differences("all_reduce", (dgx(), off), (dgx(), plain))
    cards = build_topology("rtx4090-x8-p2p")
    assert "host's memory" in differences("all_reduce", (cards, off), (cards, plain))[0]
    unlike = build_topology("rtx4090-x8")
    assert differences("all_reduce", (cards, plain), (unlike, plain))
    tcp = LibrarySettings(env={"NCCL_IB_DISABLE": "1"})
    assert not differences("all_reduce", (dgx(), tcp), (dgx(), plain))


def measurement(**machine):
    return Measurement.model_validate(
        {
            "kind": "measurement",
            "backend": "nccl",
            "collective": "all_reduce",
            "algorithm": "ring",
            "ranks": 2,
            "topology": "dgx-a100",
            "started": "2026-01-02T03:04:05+00:00",
            "command": "made up",
            "machine": machine,
            "versions": {},
            "rows": [],
            "seconds": 1.0,
        }
    )


@pytest.mark.parametrize(
    ("machine", "doubt"),
    [
        ({}, ""),
        ({"gpu": "NVIDIA A100-SXM4-80GB"}, ""),
        ({"gpu": "Nvidia a 100"}, ""),
        (
            {"gpu": "NVIDIA H100 80GB HBM3"},
            "m.json was measured on NVIDIA H100 80GB HBM3; dgx-a100 has a100",
        ),
        ({"other_work": "4 % of the cores"}, ""),
        ({"other_work": "5 % of the cores"}, "other work kept 5 % of the cores busy"),
        ({"other_work": "not known"}, ""),
    ],
)
def test_doubts_about_one_measurement(machine, doubt):
    found = doubts([measurement(**machine)], dgx(), ["m.json"])
    assert len(found) == bool(doubt)
    assert doubt in "".join(found)


def test_measurements_of_several_machines_are_doubted():
    first, other = measurement(cpu="one", cores="8"), measurement(cpu="two", cores="8")
    assert doubts([first, first], dgx(), ["a", "b"]) == []
    assert doubts([first, other], dgx(), ["a", "b"]) == ["b was measured on cpu two, a on one"]
