"""Every field of a plan changes its answer, or is refused by name, or says why it may not."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from perfmodel.files import plain
from perfmodel.files.read import parse_yaml
from perfmodel.scenario import Scenario, change_scenario, load_scenario
from perfmodel.scenario.sections.plan import PlanSection
from perfmodel.studies.plan import plan_scenario
from perfmodel.studies.plan.export import to_json
from tests.fields import Document, acts, list_fields, other_values, value_at

BASE = """\
# Which of these should train it?
perfmodel: 1
model: {file: small.yaml}
compute: {precision: fp16}
cluster: {node: v100-x8-25g}
training: {batch_per_gpu: 8}
"""
MODEL = """\
parameters: [{name: a, shape: [1000, 1000]}, {name: b, shape: [1000, 3000]}]
layers:
  - {name: first, parameters: [a], matmul_flops: 1e9, vector: 2 MB}
  - {name: second, parameters: [b], matmul_flops: 3e9, vector: 2 MB}
"""
PLANS = {
    "epochs": """
target: {epochs: 2, dataset: 1e9 samples, critical_batch: 256, reference_batch: 32}
deadline: 4 h
budget: 100 USD
currency: USD
failures: {mtbf_per_node: 10 d, storage_bandwidth: 1 GB/s, checkpoint_size: 1 GB,
           checkpoint_every: 20 min, restart: 10 min, runs: 20}
candidates:
  - name: rented
    node: v100-x8-25g
    fabric: {kind: leaf-spine, oversubscription: 2, hosts_per_leaf: 1, radix: 8, routing: ecmp}
    nodes: [2]
    gpus_per_node: 2
    price_per_gpu_hour: 2.00 USD/h
    power: {per_gpu: 250 W, factor: 1.5, pue: 1.2, energy_price: 0.20 USD/kWh}
    mtbf_per_node: 5 d
    set: {training.batch_per_gpu: 4}
  - name: bought
    node: v100-x8-25g
    nodes: [1]
    gpus_per_node: 2
    purchase: {price_per_node: 100_000 USD, years: 4, utilisation: 0.5}
    power: {per_node: 2 kW}
upgrades:
  - {name: network, set: {what_if.network_bandwidth: 4}, candidates: [rented],
     price_per_node: 5 USD}
  - {name: rent, set: {what_if.network_bandwidth: 4}, price_per_gpu_hour: 0.01 USD/h}
  - {name: storage, set: {plan.failures.storage_bandwidth: 2 GB/s}, price: 5 USD}
""",
    "samples": """
target: {samples: 1e9}
failures: {mtbf_per_node: 10 d, checkpoint_write: 10 s, restart: 10 min, runs: 20}
candidates: [{name: rented, node: v100-x8-25g, nodes: [1], gpus_per_node: 2}]
""",
}
VALUES: Mapping[str, list[Any]] = {
    "target.tokens": [1e9],
    "dataset": ["1e8 samples"],
    "currency": ["EUR"],
    "name": ["other"],
    "node": ["dgx-a100"],
    "fabric": ["one-switch"],
    "kind": ["fat-tree", "one-switch"],
    "candidates.0.nodes": [[1, 2]],
    "candidates.0.fabric.routing": ["rail", "adaptive"],
    "dims": [[2, 4]],
    "nodes": [[2]],
    "set": [{"training.batch_per_gpu": 16}, {"what_if.network_bandwidth": 16}],
    "candidates": [["bought"], [{"name": "a", "node": "dgx-a100", "nodes": [1]}]],
    "upgrades": [[{"name": "rent", "set": {"what_if.compute": 2}}]],
    "purchase": [{"price_per_node": "1 USD", "years": 4}],
    "power": [{"per_gpu": "100 W"}],
    "failures": [{"mtbf_per_node": "1 d", "checkpoint_write": "1 s", "restart": "1 min"}],
    "budget": ["1e9 USD"],
    "deadline": ["1000 d"],
    "prices": ["list"],
    "spot": [{"interrupted_every": "1 d", "back_after": "1 h"}],
}
"""Values that no schema can give, by field or by its last part."""
ONE_NODE = "one node has no network; a candidate keeps its fabric at every size"
IDLE = {
    "epochs: candidates.0.fabric.oversubscription": (
        "a ring crosses the spines once each way; the test of fabrics tries it"
    ),
    "epochs: candidates.0.fabric.routing": "as above",
    "epochs: candidates.0.fabric.radix": "as above",
    "epochs: candidates.1.fabric": ONE_NODE,
    "samples: candidates.0.fabric": ONE_NODE,
    "epochs: prices": "all candidates state a price and a rate of failures",
}
"""Fields that change nothing here, and why."""

ECHOED = (
    "scenario",
    "question",
    "target",
    "deadline_s",
    "budget",
    "assumptions",
    "sources",
    "provenance",
)
"""Parts of an answer that say what was asked."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scenario that is planned for, and room for steps that were predicted."""
    place = tmp_path_factory.mktemp("plan")
    (place / "small.yaml").write_text(MODEL)
    (place / "asked.yaml").write_text(BASE)
    return place


@cache
def read_base(folder: Path) -> Scenario:
    return load_scenario(folder / "asked.yaml")


ANSWERS: dict[str, object] = {}
"""Of whole plans, by document."""


def answer(document: Document, folder: Path) -> object:
    """All that `perfmodel plan` answers; equal steps of several plans are simulated once."""
    if repr(document) not in ANSWERS:
        scenario = change_scenario(read_base(folder), {"plan": document})
        planned = plan_scenario(scenario, jobs=1, store=folder / "steps.sqlite")
        whole = to_json(planned)
        for option in whole["options"]:
            del option["node"], option["fabric"]
        ANSWERS[repr(document)] = {name: whole[name] for name in whole if name not in ECHOED}
    return ANSWERS[repr(document)]


def document_of(label: str) -> Document:
    return dict(plain(parse_yaml(PLANS[label])))


def values_for(document: Document, name: str) -> list[Any]:
    last = name.rpartition(".")[2]
    values = VALUES.get(name) or other_values(PlanSection, document, name) or VALUES.get(last, [])
    return [value for value in values if value != value_at(document, name)]


@pytest.mark.parametrize(
    ("label", "name"),
    [(label, name) for label in PLANS for name in list_fields(PlanSection, document_of(label))],
)
def test_every_field_of_a_plan_acts_or_is_refused(label: str, name: str, folder: Path) -> None:
    document = document_of(label)
    values = values_for(document, name)
    assert values, f"no other value for {name}: give one in VALUES"
    effect = acts(document, lambda asked: answer(asked, folder), name, values)
    reason = IDLE.get(f"{label}: {name}")
    assert effect == (reason is None), f"{name} with {values}: acts {effect}, listed: {reason}"
