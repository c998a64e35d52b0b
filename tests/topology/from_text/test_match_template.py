"""Which template a described host is: its facts, and both rules of taking it."""

from __future__ import annotations

from typing import get_args

import pytest

from perfmodel.topology.from_text.describe import describe
from perfmodel.topology.from_text.match_template import match_template, read_host, template_facts
from perfmodel.topology.from_text.parts import hardware_parts
from perfmodel.topology.templates.build import template_names
from perfmodel.topology.templates.spec import CpuKind


def test_every_named_machine_has_a_template() -> None:
    assert set(hardware_parts().machines) <= set(template_names())
    assert set(hardware_parts().only_if_named) <= set(hardware_parts().machines)
    assert list(hardware_parts().machines) == [
        facts.name for facts in template_facts()[: len(hardware_parts().machines)]
    ]


def test_facts_of_a_template() -> None:
    facts = {facts.name: facts for facts in template_facts()}
    dgx = facts["dgx1-v100"]
    assert (dgx.gpu.spelled, dgx.gpus, dgx.layout, dgx.network) == ("v100", 8, "cube", "infiniband")
    assert (dgx.nics, dgx.nic_Bps) == (4, 50e9)
    assert not facts["rtx4090-x4"].p2p
    assert facts["rtx4090-x4"].network is None


@pytest.mark.parametrize(
    ("gpu", "network", "as_is", "completed"),
    [
        ("A100-SXM4-80GB", "InfiniBand HDR", "dgx-a100", "dgx-a100"),
        ("A100-SXM4-80GB", "InfiniBand", None, "dgx-a100"),  # no rate: only the usual one
        ("A100-SXM4-40GB", None, "aws-p4d", "dgx-a100"),  # memory counts, or is replaced
        ("A100-SXM4-80GB", "InfiniBand (Azure NDv4)", "azure-ndv4", "azure-ndv4"),
        ("A100-SXM4-80GB", "RoCE 25 GbE", None, None),
    ],
)
def test_taken_as_it_is_or_completed(
    gpu: str, network: str | None, as_is: str | None, completed: str | None
) -> None:
    host = read_host(gpu, gpus=8, intra="NVLink3 NVSwitch", network=network)
    names = [
        facts.name if facts else None
        for facts in (match_template(host, as_is=rule) for rule in (True, False))
    ]
    assert names == [as_is, completed]


@pytest.mark.parametrize("cpu", ["EPYC", "dual EPYC"])
def test_naming_the_cpu_of_a_template_keeps_it(cpu):
    words = "PCIe4 x16, no P2P"
    assert describe("RTX 4090", gpus=8, intra=f"{words}, {cpu}").template == "rtx4090-x8"
    assert describe("RTX 4090", gpus=8, intra=f"{words}, Xeon Skylake").template is None


def test_templates_state_cpus_that_machines_in_words_have() -> None:
    """A DGX A100 has EPYC (its data sheet), and a DGX-1 Broadwell; GB200 is what Grace feeds."""
    stated = {facts.name: facts.cpu for facts in template_facts()}
    assert set(get_args(CpuKind)) == set(hardware_parts().cpus)
    named = {"dgx-a100": "epyc", "dgx1-v100": "broadwell", "gb200-nvl72": "grace"}
    assert stated.items() >= named.items()
