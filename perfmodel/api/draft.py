"""A first scenario of one's own: a commented file that runs at once.

What is not said is chosen: the precision that the GPU has, the optimizer that such models are
trained with, the first strategy and the largest batch that fit the memory.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import Fault, InputError, PerfmodelError, failed, raise_faults, refuse_if
from perfmodel.files import flow_yaml, is_file, path_of, write_atomically
from perfmodel.scenario import Scenario, load_scenario, make_scenario
from perfmodel.topology.templates.build import load_node
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.topology.templates.spec import NodeSpec, device_names
from perfmodel.units import format_bytes

if TYPE_CHECKING:
    from perfmodel.studies.run.usage import Memory


LARGEST_BATCH = 1024
"""Samples per GPU up to which the batch is doubled while it fits."""
MOST_MEMORY_SHARE = 0.9
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
    raise_faults(
        failed(
            (
                (answers.model is None) == (answers.config is None),
                "model",
                "both, or neither",
                "--model NAME or --config FILE",
            ),
            (answers.nodes < 1, "nodes", str(answers.nodes), "1 or more"),
            (
                answers.nodes == 1 and answers.fabric is not None,
                "cluster.fabric",
                repr(answers.fabric),
                "nothing with one node, only with two or more",
            ),
        )
    )
    content, reason = _content(answers), "as you said"
    if answers.strategy is None:
        content, batch, memory, reason = _first_that_fits(content, answers.batch_per_gpu)
    else:
        content["strategy"] = {"kind": answers.strategy}
        batch, memory = _largest_batch(content, answers.batch_per_gpu)
    content["training"] = {"batch_per_gpu": batch}
    note = (
        f"batch {batch} per GPU with {content['strategy']['kind']} "
        f"{'fits' if memory.fits else 'does not fit'}: {format_bytes(memory.total_bytes)} of "
        f"{format_bytes(memory.capacity_bytes)}"
    )
    named = content | {  # files as seen from the folder of the scenario
        "cluster": content["cluster"] | {"node": relative_file(answers.node, folder)},
        "model": content["model"]
        if answers.config is None
        else {"config": relative_file(answers.config, folder)},
    }
    return Draft(_render(named, answers, reason), make_scenario(content), (note,))


def _content(answers: DraftAnswers) -> dict[str, Any]:
    """All sections but the strategy and the batch; files as seen from here.

    Optimizer and layout are those that such models are trained with.
    """
    from perfmodel.studies.run.resolve.training_job import resolve_workload

    node = load_node(answers.node)
    known = load_gpu(node.gpu).peak_flops
    usual = next((name for name in ("bf16", "fp16") if name in known), "fp32")
    fabric = {"fabric": answers.fabric or usual_fabric(node)} if answers.nodes > 1 else {}
    smaller = [2**n for n in range(answers.nodes.bit_length()) if 2**n < answers.nodes]
    content: dict[str, Any] = {
        "model": {"config": answers.config} if answers.model is None else {"name": answers.model},
        "compute": {"precision": usual if answers.precision is None else answers.precision},
        "cluster": {"node": answers.node, "nodes": answers.nodes, **fabric},
        "training": {"batch_per_gpu": 1},
        **({"scale": {"nodes": smaller}} if smaller else {}),
    }
    content["compute"] |= (
        {"optimizer": "sgd-momentum", "channels_last": True}
        if resolve_workload(make_scenario(content)).sample.is_image
        else {"optimizer": "adamw"}
    )
    return content


def usual_fabric(node: NodeSpec) -> str:
    """Fabric that such nodes usually have: with rails where each GPU has a NIC."""
    nics, gpus = (len(device_names(node, kind)) for kind in ("nic", "gpu"))
    return "rail-optimised" if nics >= gpus else "leaf-spine"


def relative_file(name: str, folder: Path) -> str:
    """A file as seen from the folder of the scenario; names stay as they are."""
    path = path_of(name)
    return Path(os.path.relpath(path, folder)).as_posix() if is_file(path) else name


def _first_that_fits(
    content: dict[str, Any], batch: int | None
) -> tuple[dict[str, Any], int, Memory, str]:
    cluster, memory = content["cluster"], None
    gpus = len(device_names(load_node(cluster["node"]), "gpu")) * int(cluster["nodes"])
    for strategy, compute, reason in SPLITS if gpus > 1 else SPLITS[:1]:
        changed = content | {"strategy": dict(strategy), "compute": content["compute"] | compute}
        try:
            largest, memory = _largest_batch(changed, batch)
        except PerfmodelError:
            if memory is None:
                raise
            continue  # a model without repeated blocks has none to recompute
        if memory.fits:
            return changed, largest, memory, reason
    assert memory is not None
    needs, has = format_bytes(memory.total_bytes), format_bytes(memory.capacity_bytes)
    raise InputError(
        Fault(
            "model",
            f"{needs} per GPU even with FSDP, of {has}",
            "more nodes (--nodes), a smaller model, or a section `parallel` (strategy: auto)",
        )
    )


def _largest_batch(content: Mapping[str, Any], batch: int | None) -> tuple[int, Memory]:
    """The largest power of two that fits, or the batch that was said; and the memory."""
    from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
    from perfmodel.studies.run.steps.sized_job import size_job

    def memory_of(samples: int) -> Memory:
        inputs = resolve_scenario(
            make_scenario({**content, "training": {"batch_per_gpu": samples}, "scale": None}),
            None,
            None,
        )
        return size_job(inputs, inputs.sizes[-1]).memory()

    best, memory = batch or 1, memory_of(batch or 1)
    while batch is None and best < LARGEST_BATCH:
        twice = memory_of(2 * best)
        is_full = twice.total_bytes > MOST_MEMORY_SHARE * twice.capacity_bytes
        if is_full or twice.tight or not twice.fits:
            break
        best, memory = 2 * best, twice
    return best, memory


# ---------------------------------------------------------------- the file


def _render(content: Mapping[str, Any], answers: DraftAnswers, reason: str) -> str:
    """Write the file, with what else each field may be."""
    name = answers.model or Path(answers.config or "").parent.name or "my model"
    cluster, compute = content["cluster"], content["compute"]
    rows = (
        (
            True,
            f"model: {flow_yaml(content['model'])}",
            "or {config: config.json}, {file: my-model.csv}; names: perfmodel models",
        ),
        (True, "compute:", ""),
        (True, f"  precision: {compute['precision']}", "of products: fp32, tf32, fp16, bf16, fp8"),
        (True, f"  optimizer: {compute['optimizer']}", "sgd, sgd-momentum, adam, adamw"),
        (
            "channels_last" in compute,
            "  channels_last: true",
            "convolutions in NHWC; false is PyTorch's default",
        ),
        (
            "recompute" in compute,
            "  recompute: full",
            "activations again in backward: else it does not fit",
        ),
        (True, "  # compiled: true", "torch.compile"),
        (
            True,
            "  # measured_step: 93 ms at batch 256",
            "one step of yours on one such GPU narrows the interval",
        ),
        (True, f"strategy: {flow_yaml(content['strategy'])}", f"{reason}; or zero, megatron, ..."),
        (True, "cluster:", ""),
        (
            True,
            f"  node: {flow_yaml(cluster['node'])}",
            "perfmodel topology list, or a file of yours",
        ),
        (True, f"  nodes: {answers.nodes}", "hosts of this job"),
        (
            "fabric" in cluster,
            f"  fabric: {cluster.get('fabric')}",
            "or {kind: leaf-spine, oversubscription: 2}",
        ),
        (
            True,
            f"training: {flow_yaml(content['training'])}",
            "as you said" if answers.batch_per_gpu else "the largest power of two that fits",
        ),
        (
            "scale" in content,
            f"scale: {flow_yaml(content.get('scale', {}))}",
            "smaller sizes of the curve",
        ),
    )
    count = "one" if answers.nodes == 1 else str(answers.nodes)
    return "\n".join(
        [
            f"# How long is a training step of {name} on {count} {Path(answers.node).stem}?",
            "perfmodel: 1",
            *(commented(text, comment) for is_written, text, comment in rows if is_written),
            "",
        ]
    )


def commented(text: str, comment: str) -> str:
    """Write a line with a comment behind it, in a column of its own."""
    return f"{text:<40}  # {comment}" if comment else text


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
    refuse_if(
        path.exists() and not force,
        "-o",
        f"{str(path)!r}, which exists",
        "a new file (-o), or --force to replace it",
    )
