"""What acts on a step acts on `tune` as well, or is refused; and every field of a sweep acts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from perfmodel.files import plain
from perfmodel.files.read import parse_yaml
from perfmodel.report.tuning_text import tuned_json
from perfmodel.scenario.sections.variants import SweepSection
from perfmodel.studies.sweep import run_sweep, variants
from perfmodel.studies.tune.run import tune_scenario
from tests.fields import Document, acts, list_fields
from tests.studies import test_scenario_fields as scenario_fields
from tests.studies.test_scenario_fields import Context, document_of, scenario_of, values_for

folder = scenario_fields.folder

# ---------------------------------------------------------------- tune

NO_CHANCE, NO_EVENT = scenario_fields.NO_CHANCE, scenario_fields.NO_EVENT
OTHER_COMMAND = scenario_fields.OTHER_COMMAND
JOB, IMAGINED = scenario_fields.CONTEXTS["job"], scenario_fields.CONTEXTS["what if"]
NOT_IN_FILE = "the model's file has no convolution; the context of images tries it"
SLOWER = "the network is slower, and no step changes; the context of PCIe tries it"
CONTEXTS = {
    "job": Context(
        "",
        "",
        {
            **JOB.idle,
            "compute.channels_last": NOT_IN_FILE,
            "scale": OTHER_COMMAND,
        },
        JOB.implied,
    ),
    "images": Context("model: {file: images.yaml}", "compute.channels_last", implied=JOB.implied),
    "what if": Context(
        IMAGINED.changes,
        IMAGINED.tried,
        {
            **IMAGINED.idle,
            "what_if.pcie_bandwidth": SLOWER,
            "what_if.memory_bandwidth": SLOWER,
            "what_if.cpu_bandwidth": SLOWER,
        },
    ),
    "what if on PCIe": Context(
        "cluster: {node: rtx4090-x8}\nwhat_if: {compute: 1.5}",
        "what_if.pcie_bandwidth what_if.memory_bandwidth what_if.cpu_bandwidth",
    ),
    "library": Context(
        scenario_fields.A100 + "library: {name: nccl}\nstrategy: {bucket_cap: 4 MiB}", "library."
    ),
    "jitter": Context("events: [{jitter: {cv: 0.01}}]", "events.0.jitter.cv seed"),
}
"""Scenarios of `perfmodel run` in which buckets are asked for as well."""

CASES = [
    pytest.param(context, name, id=f"{label}: {name}")
    for label, context in CONTEXTS.items()
    for name in scenario_fields.tried_fields(context)
]

ECHOED = (
    "scenario",
    "question",
    "machine",
    "assumptions",
    "provenance",
    "words",
)
"""Parts of an answer that say what was asked."""

TUNED: dict[str, object] = {}
"""By document: every field of a context is compared with the same one."""


def tune(document: Document, folder: Path) -> object:
    text = json.dumps(document)
    if text not in TUNED:
        whole = tuned_json(tune_scenario(scenario_of(document, folder)))
        TUNED[text] = {name: part for name, part in whole.items() if name not in ECHOED}
    return TUNED[text]


@pytest.mark.slow
@pytest.mark.parametrize(("context", "name"), CASES)
def test_every_field_acts_on_tune_or_is_refused(context: Context, name: str, folder: Path) -> None:
    document = document_of(context)
    values = values_for(context, name)
    effect = acts(document, lambda asked: tune(asked, folder), name, values)
    reason = context.idle.get(name)
    assert effect == (reason is None), f"{name} with {values}: acts {effect}, listed: {reason}"


# ---------------------------------------------------------------- sweep

SWEEP = "sweep: {grid: {seed: [1]}, zip: {cluster.gpus_per_node: [1], training.batch_per_gpu: [2]}}"
SWEEP_VALUES: Mapping[str, list[Any]] = {
    "grid": [{"training.batch_per_gpu": [4]}, {"cluster.nodes": [1, 2]}, {"scale.nodes": [[1]]}],
    "zip": [{"training.batch_per_gpu": [4]}, {"cluster.nodes": [1, 2], "seed": [1]}],
}


def sweep(document: Document, folder: Path) -> object:
    swept = run_sweep(variants(scenario_of(document, folder)), jobs=1)
    return [answer.as_row for answer in swept.answers]


@pytest.mark.parametrize("name", SweepSection.model_fields)
def test_every_field_of_a_sweep_acts_or_is_refused(name: str, folder: Path) -> None:
    document = document_of(Context("", "")) | dict(plain(parse_yaml(SWEEP)))
    assert sorted(list_fields(SweepSection, document["sweep"])) == ["grid", "zip"]
    for value in SWEEP_VALUES[name]:
        assert acts(document, lambda asked: sweep(asked, folder), f"sweep.{name}", [value])
