"""What `strategy: {kind: auto}` chooses, beside the settings of published tables.

    python -m reports.choices.published [MODEL ...]

For each model, number of GPUs and global batch of a table the quickest of its settings by
prediction, and the parallel layout that `auto` finds with its default lists on the same machine.
For tables that measured many settings also what `auto` finds among their degrees, and what was
measured of it.
Writes `choices.csv` beside itself.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import PerfmodelError
from perfmodel.files.csv_rows import read_table
from perfmodel.files.read import parse_yaml
from perfmodel.scenario import Scenario, make_scenario
from perfmodel.studies.choose.search import choose_layout
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.result import LayoutSearch
from perfmodel.studies.run.steps.sized_job import simulate_reported, size_job
from perfmodel.studies.sweep.executor import Workers
from reports.validation.run import records_folder
from reports.validation.strategies.stated_step import StatedStep, count, is_same, read_step
from reports.validation.strategies.step_tables import STEPS

HERE = Path(__file__).resolve().parent
DATA = records_folder()
ZOO = {
    "GPT 3.6B": "megatron-3.6b",
    "GPT 18.4B": "megatron-18.4b",
    "GPT 39.1B": "megatron-39.1b",
    "GPT 175B": "megatron-175b",
    "GPT-3 175B": "gpt3-175b",
    "Llama 3.1 8B": "llama3.1-8b",
    "Llama 3.1 70B": "llama3.1-70b",
    "Nemotron-4 15B": "nemotron4-15b",
}
"""Names that the tables and the zoo give the same models."""
NODES = {"a100-sxm4-80gb": "dgx-a100", "h100-sxm5-80gb": "dgx-h100"}
"""Shipped nodes of these GPUs."""
SEARCHED = frozenset({"tensor", "sequence_parallel", "context", "pipeline", "expert"})
"""Fields of `parallel` that a search chooses; others, as whether tensor parallelism overlaps, are
those of the setting."""
MOST_GPUS, LEAST_GPUS = 512, 8
MEASURED_MANY = 5
"""Settings of a table from which on `auto` is asked for the best of their degrees, too."""
COLUMNS = (
    "table",
    "model",
    "gpus",
    "global_batch",
    "settings",
    "published_s",
    "auto_s",
    "auto",
    "unproven",
    "among_published",
    "its_measured_s",
    "best_measured_s",
)


@dataclass(frozen=True)
class Question:
    """Settings of a table that train the same model with the same GPUs and global batch."""

    table: str
    model: str
    gpus: int
    global_batch: int
    settings: Sequence[StatedStep]


def questions(names: Sequence[str] = ()) -> Iterator[Question]:
    """Group the rows of models that the zoo has."""
    groups: dict[tuple[str, str, int, int], list[StatedStep]] = {}
    for record in read_table(DATA / STEPS, []):
        cells = record.cells
        model, gpu = cells["model"], cells["gpu"]
        if model not in (names or ZOO) or gpu not in NODES or cells["precision"][:3] == "fp8":
            continue
        stated = read_step(cells)
        gpus = stated.size.gpus
        key = (cells["table"], model, gpus, global_batch_of(stated))
        settings = groups.setdefault(key, [])
        is_new = not any(is_same(cells, other.cells) for other in settings)
        if LEAST_GPUS <= gpus <= MOST_GPUS and stated.measured_s and is_new:
            settings.append(stated)
    for key, settings in groups.items():
        if settings:
            yield Question(*key, settings)


def as_scenario(stated: StatedStep, auto: Mapping[str, Any] | None = None) -> Scenario:
    """Return a published setting as a scenario that names its model and its machine.

    `auto`: fields of a search, which replaces what the setting chose.
    """
    cells = stated.cells
    document = stated.scenario.model_dump(mode="json", exclude_unset=True)
    document["model"] |= {
        "name": ZOO[cells["model"]],
        "sequence_length": count(cells, "sequence_length"),
    }
    document["cluster"]["node"] = NODES[cells["gpu"]]
    if auto is not None:
        document["strategy"] = {"kind": "auto", **auto}
        document["parallel"] = {
            key: value for key, value in document["parallel"].items() if key not in SEARCHED
        }
        document["compute"].pop("recompute", None)
        document["training"] = {"global_batch": global_batch_of(stated)}
        return make_scenario(document)
    # Sizes with their units, which the dump has lost.
    document["strategy"] = {**parse_yaml(cells["strategy"])}
    if count(cells, "accumulate") > 1:
        document["strategy"]["accumulate"] = count(cells, "accumulate")
    return make_scenario(document)


def global_batch_of(stated: StatedStep) -> int:
    """Samples of a step on all GPUs."""
    return count(stated.cells, "batch") * count(stated.cells, "accumulate") * stated.replicas


def predicted_s(stated: StatedStep) -> float | None:
    """Step of a published setting on the shipped machine; None: it cannot run there."""
    try:
        inputs = resolve_scenario(as_scenario(stated), None, None)
        return simulate_reported(size_job(inputs, inputs.sizes[-1])).step_s
    except PerfmodelError:
        return None


def search(question: Question, section: Mapping[str, Any], workers: Workers) -> LayoutSearch:
    """Let `auto` choose."""
    return choose_layout(as_scenario(question.settings[0], section), workers=workers)


def degrees_of(stated: StatedStep) -> tuple[int, int, int]:
    """Tensor and pipeline degrees, and samples of a micro-batch."""
    parallel = stated.scenario.parallel
    return parallel.tensor, parallel.pipeline.stages, count(stated.cells, "batch")


def among_published(question: Question, workers: Workers) -> tuple[str, float | None]:
    """What `auto` chooses of the degrees that were measured, and what was measured of it."""
    tensor, pipeline, micro_batch = (
        sorted(set(values)) for values in zip(*map(degrees_of, question.settings), strict=True)
    )
    first = question.settings[0]
    own = {**parse_yaml(first.cells["strategy"])}
    found = search(
        question,
        {
            "tensor": tensor,
            "pipeline": pipeline,
            "micro_batch": micro_batch,
            "schedules": "1f1b",
            "recompute": first.cells["recompute"],
            "sharding": [own],
            "sequence_parallel": False,
            "buckets": False,
        },
        workers,
    )
    measured = {degrees_of(stated): stated.measured_s for stated in question.settings}
    for parallel_layout in found.best:
        changes = parallel_layout.changes
        own_tensor = changes.get("parallel.tensor", 1)
        stages = changes.get("parallel.pipeline", {}).get("stages", 1)
        replicas = question.gpus // (own_tensor * stages)
        batch = question.global_batch // replicas // changes["strategy"]["accumulate"]
        if (own_tensor, stages, batch) in measured:
            return parallel_layout.text, measured[own_tensor, stages, batch]
    return found.winner.text, None


def answer(question: Question, workers: Workers) -> dict[str, Any]:
    """Make a row."""
    steps = [step_s for stated in question.settings if (step_s := predicted_s(stated))]
    found = search(question, {}, workers)
    row = {
        "table": question.table,
        "model": question.model,
        "gpus": question.gpus,
        "global_batch": question.global_batch,
        "settings": len(question.settings),
        "published_s": min(steps, default=None),
        "auto_s": found.winner.step_time_s,
        "auto": found.winner.text,
        "unproven": found.unproven,
    }
    if len(question.settings) >= MEASURED_MANY:
        text, measured_s = among_published(question, workers)
        best_s = min(stated.measured_s or float("inf") for stated in question.settings)
        row |= {"among_published": text, "its_measured_s": measured_s, "best_measured_s": best_s}
    return row


def main(names: Sequence[str]) -> None:
    """Answer all questions, the smallest first."""
    workers = Workers(jobs=1)
    asked = sorted(questions(names), key=lambda each: each.gpus)
    with (HERE / "choices.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for question in asked:
            writer.writerow(answer(question, workers))
            file.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
