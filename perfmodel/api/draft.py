"""A first scenario of one's own: a commented file that runs at once.

What is not said is chosen: the precision that the GPU has, the optimizer that such models are
trained with, the first strategy and the largest batch that fit the memory.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import Fault, InputError, PerfmodelError
from perfmodel.files import write_atomically
from perfmodel.scenario import Scenario, load_scenario, make_scenario
from perfmodel.topology.templates.build import load_node
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.topology.templates.spec import device_names

if TYPE_CHECKING:
    from perfmodel.studies.run.result.memory import Memory

LARGEST_BATCH = 1024
"""Samples per GPU up to which the batch is doubled while it fits."""
FULL = 0.9
"""Share of a GPU's memory that the batch may fill."""

SPLITS: tuple[tuple[Mapping[str, Any], Mapping[str, Any], str], ...] = (
    ({"kind": "ddp"}, {}, "each GPU holds the whole model"),
    ({"kind": "fsdp"}, {}, "with ddp it does not fit: parameters and states over all GPUs"),
    (
        {"kind": "fsdp"},
        {"recompute": "full"},
        "with ddp it does not fit: parameters and states over all GPUs",
    ),
)
"""Strategy, fields of ``compute``, and the reason; the first that fits is taken."""


@dataclass(frozen=True, slots=True)
class DraftAnswers:
    """What a person said; None where it is to be chosen.

    `model`: a name of the zoo; `config`: a file that describes the model instead.
    `node`: a node template by name or file.
    """

    model: str | None = None
    config: str | None = None
    node: str = "dgx-a100"
    nodes: int = 1
    fabric: str | None = None
    precision: str | None = None
    batch_per_gpu: int | None = None
    strategy: str | None = None


@dataclass(frozen=True, slots=True)
class Draft:
    """A scenario's file, not yet written.

    `notes`: what was chosen and why.
    """

    text: str
    scenario: Scenario
    notes: tuple[str, ...]


def draft_scenario(answers: DraftAnswers, folder: Path = Path()) -> Draft:
    """Write the text of a scenario that runs.

    Parameters
    ----------
    answers : DraftAnswers
    folder : Path
        Where the file will stand; files in it are named relative to that.

    Raises
    ------
    InputError
        A name or file that is not known, or a model that fits in no way that is tried.
    """
    faults = []
    if (answers.model is None) == (answers.config is None):
        faults.append(Fault("model", "both, or neither", "--model NAME or --config FILE"))
    if answers.nodes < 1:
        faults.append(Fault("nodes", str(answers.nodes), "1 or more"))
    if answers.nodes == 1 and answers.fabric is not None:
        allowed = "nothing with one node, only with two or more"
        faults.append(Fault("cluster.fabric", repr(answers.fabric), allowed))
    if faults:
        raise InputError(faults)
    content = _content(answers)
    reason = "as you said"
    if answers.strategy is None:
        content, batch, memory, reason = _first_that_fits(content, answers.batch_per_gpu)
    else:
        content["strategy"] = {"kind": answers.strategy}
        batch, memory = _largest_batch(content, answers.batch_per_gpu)
    content["training"] = {"batch_per_gpu": batch}
    scenario = make_scenario(content)
    as_written = _relative_files(content, folder)
    text = _render(as_written, answers, reason, batch_said=answers.batch_per_gpu is not None)
    return Draft(text, scenario, tuple(_notes(content, memory)))


def _content(answers: DraftAnswers) -> dict[str, Any]:
    """All sections but the strategy and the batch; files as seen from here."""
    node = load_node(answers.node)
    gpu = load_gpu(node.gpu)
    precision = answers.precision
    if precision is None:
        precision = next((p for p in ("bf16", "fp16") if p in gpu.peak_flops), "fp32")
    cluster: dict[str, Any] = {"node": answers.node, "nodes": answers.nodes}
    if answers.nodes > 1:
        nics, gpus = (len(device_names(node, kind)) for kind in ("nic", "gpu"))
        usual = "rail-optimised" if nics >= gpus else "leaf-spine"
        cluster["fabric"] = answers.fabric or usual
    model = {"config": answers.config} if answers.model is None else {"name": answers.model}
    content: dict[str, Any] = {
        "model": model,
        "compute": {"precision": precision},
        "cluster": cluster,
        "training": {"batch_per_gpu": 1},
    }
    smaller = [2**n for n in range(answers.nodes.bit_length()) if 2**n < answers.nodes]
    if smaller:
        content["scale"] = {"nodes": smaller}
    content["compute"] |= _usual_training(make_scenario(content))
    return content


def relative_file(name: str, folder: Path) -> str:
    """A file as seen from the folder of the scenario; names stay as they are."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111  (Path.expanduser raises on "~nobody")
    if not os.path.isfile(path):  # noqa: PTH113  (never raises)
        return name
    return Path(os.path.relpath(path, folder)).as_posix()


def _usual_training(scenario: Scenario) -> dict[str, Any]:
    """Optimizer and layout that such models are trained with."""
    from perfmodel.studies.run.resolve.training_job import resolve_workload

    if resolve_workload(scenario).sample.is_image:
        return {"optimizer": "sgd-momentum", "channels_last": True}
    return {"optimizer": "adamw"}


def _relative_files(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Name files as seen from the folder of the scenario."""
    cluster, model = dict(content["cluster"]), dict(content["model"])
    cluster["node"] = relative_file(cluster["node"], folder)
    if "config" in model:
        model["config"] = relative_file(model["config"], folder)
    return {**content, "cluster": cluster, "model": model}


def _first_that_fits(
    content: dict[str, Any], batch: int | None
) -> tuple[dict[str, Any], int, Memory, str]:
    smallest: Memory | None = None
    for strategy, compute, reason in SPLITS:
        if strategy["kind"] == "fsdp" and _gpus(content) == 1:
            continue
        changed = {
            **content,
            "strategy": dict(strategy),
            "compute": {**content["compute"], **compute},
        }
        try:
            largest, memory = _largest_batch(changed, batch)
        except PerfmodelError:
            if smallest is None:
                raise
            continue  # a model without repeated blocks has none to recompute
        smallest = memory
        if memory.fits:
            return changed, largest, memory, reason
    from perfmodel.units import format_bytes

    assert smallest is not None
    needs, has = format_bytes(smallest.total_bytes), format_bytes(smallest.capacity_bytes)
    allowed = "more nodes (--nodes), a smaller model, or a section `parallel` (strategy: auto)"
    raise InputError(Fault("model", f"{needs} per GPU even with FSDP, of {has}", allowed))


def _gpus(content: Mapping[str, Any]) -> int:
    node = load_node(content["cluster"]["node"])
    return len(device_names(node, "gpu")) * int(content["cluster"]["nodes"])


def _largest_batch(content: Mapping[str, Any], batch: int | None) -> tuple[int, Memory]:
    """The largest power of two that fits, or the batch that was said; and the memory."""
    best = batch or 1
    memory = _memory(content, best)
    while batch is None and best < LARGEST_BATCH:
        twice = _memory(content, 2 * best)
        if not twice.fits or twice.tight or twice.total_bytes > FULL * twice.capacity_bytes:
            break
        best, memory = 2 * best, twice
    return best, memory


def _memory(content: Mapping[str, Any], batch: int) -> Memory:
    from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
    from perfmodel.studies.run.steps.sized_job import size_job

    sized_content = {**content, "training": {"batch_per_gpu": batch}}
    sized_content.pop("scale", None)
    inputs = resolve_scenario(make_scenario(sized_content), None, None)
    sized = size_job(inputs, inputs.sizes[-1])
    return sized.memory()


def _notes(content: Mapping[str, Any], memory: Memory) -> Iterator[str]:
    from perfmodel.units import format_bytes

    batch = content["training"]["batch_per_gpu"]
    used = f"{format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)}"
    verdict = "fits" if memory.fits else "does not fit"
    yield f"batch {batch} per GPU with {content['strategy']['kind']} {verdict}: {used}"


# ---------------------------------------------------------------- the file


def _render(
    content: Mapping[str, Any], answers: DraftAnswers, reason: str, *, batch_said: bool
) -> str:
    """Write the file, with what else each field may be."""
    name = answers.model or Path(answers.config or "").parent.name or "my model"
    nodes = answers.nodes
    count = "one" if nodes == 1 else str(nodes)
    cluster, compute, model = content["cluster"], content["compute"], content["model"]
    source = "or {config: config.json}, {file: my-model.csv}; names: perfmodel models"
    batch = "as you said" if batch_said else "the largest power of two that fits"
    lines = [
        f"# How long is a training step of {name} on {count} {Path(answers.node).stem}?",
        "perfmodel: 1",
        _line(f"model: {_flow(model)}", source),
        "compute:",
        _line(f"  precision: {compute['precision']}", "of products: fp32, tf32, fp16, bf16, fp8"),
        _line(f"  optimizer: {compute['optimizer']}", "sgd, sgd-momentum, adam, adamw"),
    ]
    if "channels_last" in compute:
        lines.append(
            _line("  channels_last: true", "convolutions in NHWC; false is PyTorch's default")
        )
    if "recompute" in compute:
        lines.append(
            _line("  recompute: full", "activations again in backward: else it does not fit")
        )
    lines += [
        _line("  # compiled: true", "torch.compile"),
        _line("  # measured_step: 93 ms at batch 256", MEASURED),
        _line(f"strategy: {_flow(content['strategy'])}", f"{reason}; or zero, megatron, ..."),
        "cluster:",
        _line(f"  node: {_value(cluster['node'])}", "perfmodel topology list, or a file of yours"),
        _line(f"  nodes: {nodes}", "hosts of this job"),
    ]
    if "fabric" in cluster:
        lines.append(
            _line(
                f"  fabric: {cluster['fabric']}",
                "or {kind: leaf-spine, oversubscription: 2}",
            )
        )
    lines.append(_line(f"training: {_flow(content['training'])}", batch))
    if "scale" in content:
        lines.append(_line(f"scale: {_flow(content['scale'])}", "smaller sizes of the curve"))
    return "\n".join(lines) + "\n"


_COLUMN = 40
MEASURED = "one step of yours on one such GPU narrows the interval"


def _line(text: str, comment: str) -> str:
    return f"{text:<{_COLUMN}}  # {comment}"


def _flow(section: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{name}: {_value(value)}' for name, value in section.items())}}}"


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(str, value))}]"
    text = str(value)
    plain = text and not set(text) & set(":#{}[],&*!|>'\"%@`")
    return text if plain else "'" + text.replace("'", "''") + "'"


def write_draft(draft: Draft, path: Path, *, force: bool = False) -> Scenario:
    """Write a draft and read it again.

    Raises
    ------
    InputError
        The file exists and `force` is not given, or it cannot be written.
    """
    check_new(path, force=force)
    write_atomically(path, draft.text)
    return load_scenario(path)


def check_new(path: Path, *, force: bool) -> None:
    """Refuse a file that exists, unless `force`."""
    if path.exists() and not force:
        allowed = "a new file (-o), or --force to replace it"
        raise InputError(Fault("-o", f"{str(path)!r}, which exists", allowed))
