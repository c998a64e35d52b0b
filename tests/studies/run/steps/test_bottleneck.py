"""The bottleneck that `run` names is the what-if that pays most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from perfmodel.scenario import Scenario, change_scenario, load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.resolve.what_if import BETWEEN_NODES
from perfmodel.studies.run.result import Relief
from perfmodel.studies.run.steps.bottleneck import name_busiest
from perfmodel.studies.run.steps.reliefs import (
    LATENCY,
    LIBRARY,
    LINKS,
    WORTH_NAMING,
    Part,
    _Search,
)
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.topology import build_cluster

CLOSE = 0.003
"""Share of the step by which two limits may differ and either be named: pruned ones are bounded by
how long their links are busy, and events by the steps that are counted."""

MADE = """# What limits a step?
perfmodel: 1
model: {name: resnet50}
compute: {precision: fp16, channels_last: true}
strategy: {kind: ddp}
cluster: {node: v100-x8-25g, nodes: 4, fabric: {kind: leaf-spine, hosts_per_leaf: 2}}
training: {batch_per_gpu: 32}
"""

ON_ONE = "cluster.fabric=null", "cluster.nodes=1"
SCENARIOS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "16 V100 behind 100 Gbit/s": ("bert-large-v100-100g", ("cluster.nodes=2",)),
    "16 V100 behind 25 Gbit/s": ("bert-large-v100-25g", ("cluster.nodes=2",)),
    "slow Ethernet": ("bucket-size-slow-ethernet", ()),
    "DataParallel": ("dataparallel-dgx1", ()),
    "a degraded link": ("degraded-link", ("cluster.nodes=4",)),
    "PCIe, staged": ("gpt2-xl-pcie-no-p2p", ()),
    "PCIe": ("gpt2-xl-pcie-p2p", ()),
    "loopback": ("resnet18-loopback-gloo", ()),
    "many DGX A100": ("resnet50-dgx-a100", ()),
    "few DGX A100": ("resnet50-dgx-a100", ("cluster.nodes=4",)),
    "a straggler": ("straggler", ("cluster.nodes=3", "events=[{slow: {nodes: [2], by: 1.2}}]")),
    "jitter": ("jitter", ("cluster.nodes=2", "events=[{jitter: {cv: 0.01}}]")),
    "two jobs": (
        "two-jobs",
        (
            "cluster.nodes=4",
            "cluster.fabric.hosts_per_leaf=2",
            "jobs=[{model: vgg16, batch_per_gpu: 32, nodes: 4, placement: packed}]",
            "cluster.gpus_per_node=1",
        ),
    ),
    "FSDP": ("plan-gpt2-xl", ()),
    "oversubscribed": ("", ("cluster.fabric.oversubscription=4",)),
    "many small buckets": ("", ("strategy.bucket_cap=1 MiB", "cluster.node=dgx-a100")),
    "one image": ("", ("training.batch_per_gpu=1", "cluster.node=dgx-h100", *ON_ONE)),
    "one GPU each": ("", ("cluster.gpus_per_node=1",)),
    "one process, staged": ("", ("cluster.node=rtx4090-x8", "model.name=vgg16", *ON_ONE)),
    "PCIe, two nodes": ("", ("cluster.node=l40s-x8", "cluster.nodes=2")),
    "MPI": ("", ("library={name: mpi}", "cluster.gpus_per_node=2")),
    "Gloo": ("", ("library={name: gloo}", "cluster.gpus_per_node=1", "cluster.nodes=2")),
    "H100, large model": ("", ("cluster.node=dgx-h100", "model={name: gpt2-xl}")),
}
"""Shipped scenarios, and changes of the one above."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("made") / "made.yaml"
    path.write_text(MADE)
    return str(path)


@pytest.mark.parametrize(
    ("node", "others", "name"),
    [
        ("dgx-a100", 1.0, "the hosts' NICs"),
        ("dgx-a100", 0.95, "the hosts' NICs"),  # as busy, within a tenth
        ("dgx-a100", 0.8, "host 1's NIC 0"),
        ("v100-x8-25g", 1.0, "each host's NIC"),
        ("v100-x8-25g", 0.95, "each host's NIC"),
        ("v100-x8-25g", 0.8, "host 1's NIC"),
    ],
)
def test_links_that_are_about_as_busy_are_named_together(
    node: str, others: float, name: str
) -> None:
    """Which links of equal ones are the busiest differs by rounding alone."""
    topology = build_cluster(node, nodes=3, fabric="one-switch")
    busy_s = np.zeros(len(topology.arcs.names))
    for arc, (src, _) in enumerate(topology.arcs.names):
        if topology.devices[src].kind == "nic" and topology.arcs.kinds[arc] in BETWEEN_NODES:
            busy_s[arc] = 1.0 if src == "n1/nic0" else others
    assert name_busiest(topology, busy_s) == name


def step_s(scenario: Scenario, what_if: Mapping[str, Any]) -> float:
    fields = {f"what_if.{name}": value for name, value in what_if.items()}
    return prepare(change_scenario(scenario, fields)).step().step_time_s


@pytest.mark.parametrize(("file", "changes"), SCENARIOS.values(), ids=SCENARIOS)
def test_the_bottleneck_is_the_what_if_that_saves_most(
    made: str, file: str, changes: tuple[str, ...]
) -> None:
    shipped = ("scale=null", "plan=null") if file else ()
    scenario = load_scenario(file or made, (*shipped, *changes))
    point = run_scenario(scenario, with_first=False).main
    now_s, relief = point.step_time_s, point.relief
    saves = {
        part.name: 1 - step_s(scenario, part.what_if) / now_s for part in (*LINKS, LATENCY, LIBRARY)
    }
    at_most = 1 - step_s(scenario, {"communication": False}) / now_s
    assert max(saves.values()) <= at_most + CLOSE
    if relief is None:
        events = () if point.disturbance is None else point.disturbance.events
        costs = {event.what: event.costs_s / now_s for event in events}
        named = costs.get(point.bottleneck, WORTH_NAMING)
        assert (point.bottleneck == "compute") == (point.bottleneck not in costs)
        assert max(saves.values()) <= named + CLOSE or at_most <= 2 * WORTH_NAMING
        return
    saved = relief.saves_s / now_s
    assert saved > WORTH_NAMING
    assert max(saves.values()) <= saved + CLOSE, (point.bottleneck, saves)
    if relief.what_if and point.disturbance is None:  # else as many steps, not as many seconds
        assert 1 - step_s(scenario, relief.what_if) / now_s == pytest.approx(saved, abs=CLOSE)
        assert saved >= 0.5 * at_most - CLOSE


def test_what_the_others_do_not_need_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 10 s all three save 6, and so do the first and the last."""
    first, second, last = (Part(name, {}) for name in "abc")

    def relieve(_: object, *chosen: Part) -> Relief:
        saves_s = 6.0 if {first, last} <= set(chosen) else 4.0
        return Relief("", tuple(part.name for part in chosen), {}, saves_s)

    def saves_enough(_: object, enough_s: float, chosen: Sequence[Part]) -> bool:
        return relieve(_, *chosen).saves_s >= enough_s

    monkeypatch.setattr(_Search, "relieve", relieve)
    monkeypatch.setattr(_Search, "saves_enough", saves_enough)
    search, free = object.__new__(_Search), Relief("", (), {}, 10.0)
    assert search._relieve_together([first, second, last], free).parts == ("a", "c")
