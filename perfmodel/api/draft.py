"""A first scenario of one's own: a commented file that runs at once.

What is not said is chosen: the precision that the GPU has, the optimizer that such models are
trained with, the first strategy and the largest batch that fit the memory. From a profiler's trace:
its model, its buckets, its machine or another.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import Fault, InputError, PerfmodelError, failed, raise_faults
from perfmodel.files import write_atomically
from perfmodel.scenario import Scenario, load_scenario, make_scenario
from perfmodel.topology.templates.build import load_node
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.topology.templates.spec import NodeSpec, device_names
from perfmodel.traces.model import RankTrace
from perfmodel.traces.rebuild.layer_profile import Profile, profile_ranks
from perfmodel.traces.rebuild.scenario_files import MACHINE, MODEL, SCENARIO, rebuild
from perfmodel.traces.run import read_ranks
from perfmodel.units import format_bytes

if TYPE_CHECKING:
    from perfmodel.studies.run.result.usage import Memory


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
    faults = failed(
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
    raise_faults(faults)
    content, reason = _content(answers), "as you said"
    if answers.strategy is None:
        content, batch, memory, reason = _first_that_fits(content, answers.batch_per_gpu)
    else:
        content["strategy"] = {"kind": answers.strategy}
        batch, memory = _largest_batch(content, answers.batch_per_gpu)
    content["training"] = {"batch_per_gpu": batch}
    used = f"{format_bytes(memory.total_bytes)} of {format_bytes(memory.capacity_bytes)}"
    verdict = f"{'fits' if memory.fits else 'does not fit'}: {used}"
    note = f"batch {batch} per GPU with {content['strategy']['kind']} {verdict}"
    is_said = answers.batch_per_gpu is not None
    text = _render(_relative_files(content, folder), answers, reason, batch_said=is_said)
    return Draft(text, make_scenario(content), (note,))


def _content(answers: DraftAnswers) -> dict[str, Any]:
    """All sections but the strategy and the batch; files as seen from here.

    Optimizer and layout are those that such models are trained with.
    """
    from perfmodel.studies.run.resolve.training_job import resolve_workload

    node = load_node(answers.node)
    known = load_gpu(node.gpu).peak_flops
    usual = next((name for name in ("bf16", "fp16") if name in known), "fp32")
    cluster: dict[str, Any] = {"node": answers.node, "nodes": answers.nodes}
    if answers.nodes > 1:
        cluster["fabric"] = answers.fabric or _usual_fabric(node)
    content: dict[str, Any] = {
        "model": {"config": answers.config} if answers.model is None else {"name": answers.model},
        "compute": {"precision": usual if answers.precision is None else answers.precision},
        "cluster": cluster,
        "training": {"batch_per_gpu": 1},
    }
    smaller = [2**n for n in range(answers.nodes.bit_length()) if 2**n < answers.nodes]
    if smaller:
        content["scale"] = {"nodes": smaller}
    content["compute"] |= (
        {"optimizer": "sgd-momentum", "channels_last": True}
        if resolve_workload(make_scenario(content)).sample.is_image
        else {"optimizer": "adamw"}
    )
    return content


def _usual_fabric(node: NodeSpec) -> str:
    nics, gpus = (len(device_names(node, kind)) for kind in ("nic", "gpu"))
    return "rail-optimised" if nics >= gpus else "leaf-spine"


def relative_file(name: str, folder: Path) -> str:
    """A file as seen from the folder of the scenario; names stay as they are."""
    path = Path(os.path.expanduser(name))  # noqa: PTH111  (Path.expanduser raises on "~nobody")
    if not os.path.isfile(path):  # noqa: PTH113  (never raises)
        return name
    return Path(os.path.relpath(path, folder)).as_posix()


def _relative_files(content: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Name files as seen from the folder of the scenario."""
    cluster = content["cluster"] | {"node": relative_file(content["cluster"]["node"], folder)}
    model = {
        name: relative_file(value, folder) if name == "config" else value
        for name, value in content["model"].items()
    }
    return {**content, "cluster": cluster, "model": model}


def _first_that_fits(
    content: dict[str, Any], batch: int | None
) -> tuple[dict[str, Any], int, Memory, str]:
    cluster, memory = content["cluster"], None
    gpus = len(device_names(load_node(cluster["node"]), "gpu")) * int(cluster["nodes"])
    for strategy, compute, reason in SPLITS if gpus > 1 else SPLITS[:1]:
        both = {**content["compute"], **compute}
        changed = {**content, "strategy": dict(strategy), "compute": both}
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
    allowed = "more nodes (--nodes), a smaller model, or a section `parallel` (strategy: auto)"
    raise InputError(Fault("model", f"{needs} per GPU even with FSDP, of {has}", allowed))


def _largest_batch(content: Mapping[str, Any], batch: int | None) -> tuple[int, Memory]:
    """The largest power of two that fits, or the batch that was said; and the memory."""
    best = batch or 1
    memory = _memory(content, best)
    while batch is None and best < LARGEST_BATCH:
        twice = _memory(content, 2 * best)
        if (
            not twice.fits
            or twice.tight
            or twice.total_bytes > MOST_MEMORY_SHARE * twice.capacity_bytes
        ):
            break
        best, memory = 2 * best, twice
    return best, memory


def _memory(content: Mapping[str, Any], batch: int) -> Memory:
    from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
    from perfmodel.studies.run.steps.sized_job import size_job

    sized_content = {**content, "training": {"batch_per_gpu": batch}, "scale": None}
    inputs = resolve_scenario(make_scenario(sized_content), None, None)
    return size_job(inputs, inputs.sizes[-1]).memory()


# ---------------------------------------------------------------- the file


def _render(
    content: Mapping[str, Any], answers: DraftAnswers, reason: str, *, batch_said: bool
) -> str:
    """Write the file, with what else each field may be."""
    name = answers.model or Path(answers.config or "").parent.name or "my model"
    count = "one" if answers.nodes == 1 else str(answers.nodes)
    cluster, compute = content["cluster"], content["compute"]
    source = "or {config: config.json}, {file: my-model.csv}; names: perfmodel models"
    batch = "as you said" if batch_said else "the largest power of two that fits"
    rows = (
        (True, f"model: {_flow(content['model'])}", source),
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
        (True, f"strategy: {_flow(content['strategy'])}", f"{reason}; or zero, megatron, ..."),
        (True, "cluster:", ""),
        (
            True,
            f"  node: {_value(cluster['node'])}",
            "perfmodel topology list, or a file of yours",
        ),
        (True, f"  nodes: {answers.nodes}", "hosts of this job"),
        ("fabric" in cluster, f"  fabric: {cluster.get('fabric')}", COMMENTS["fabric"]),
        (True, f"training: {_flow(content['training'])}", batch),
        (
            "scale" in content,
            f"scale: {_flow(content.get('scale', {}))}",
            "smaller sizes of the curve",
        ),
    )
    question = f"# How long is a training step of {name} on {count} {Path(answers.node).stem}?"
    lines = [_line(text, comment) for is_written, text, comment in rows if is_written]
    return "\n".join([question, "perfmodel: 1", *lines]) + "\n"


_COLUMN = 40


def _line(text: str, comment: str) -> str:
    return f"{text:<{_COLUMN}}  # {comment}" if comment else text


def _flow(section: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{name}: {_value(value)}' for name, value in section.items())}}}"


def _value(value: Any) -> str:
    """A value as YAML writes it within a line."""
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    text = str(value).lower() if isinstance(value, bool) else str(value)
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


COMMENTS: Mapping[str, str] = {
    "file": "layers, tensors and measured times of the trace; edit it",
    "times": "the same file: the trace's own times",
    "precision": "of the gradients that were reduced",
    "gpu_spread": "the recorded ranks are as slow as they were",
    "overlap_slowdown": "of work beside collectives, as recorded",
    "kind": "as the trace's collectives show",
    "version": "of FSDP",
    "wrap": "units, by their hooks",
    "reshard_after_forward": "whether backward gathers them again",
    "shard_gpus": "ranks that a unit is split over; the others hold copies",
    "bucket_caps": "recorded buckets, which PyTorch's default caps would not make",
    "broadcast_buffers": "as recorded",
    "gradient_as_bucket_view": "nothing was copied out of buckets",
    "node": "the machine as its collectives show it, or a name (perfmodel topology list)",
    "gpus_per_node": "ranks of the trace",
    "nodes": "hosts of this job",
    "fabric": "or {kind: leaf-spine, oversubscription: 2}",
    "batch_per_gpu": "of the first operator, or --batch",
    "name": "plain: rings on the recorded links; nccl, gloo or mpi on another machine",
    "workers": "collectives in progress at once",
    "host_step": "in the times of layers",
}
"""What a field says, by its name."""


@dataclass(frozen=True, slots=True)
class TraceAnswers:
    """What a person said beside the traces; None where the trace decides.

    `model`: of the zoo, or a file, that names the parameters.
    `node`, `nodes`, `fabric`: another machine than the recorded one.
    """

    gpu: str | None = None
    batch_per_gpu: int | None = None
    model: str | None = None
    node: str | None = None
    nodes: int | None = None
    fabric: str | None = None


def draft_from_trace(
    traces: Sequence[Path], output: Path, answers: TraceAnswers, *, force: bool = False
) -> Draft:
    """Write the model and the machine of a trace, and draft a scenario beside them.

    Parameters
    ----------
    traces : sequence of Path
        Files of ranks, or folders of them.
    output : Path
        Where the scenario will stand: the other files lie beside it, named after it.
    answers : TraceAnswers
    force : bool
        Replace files that exist.

    Raises
    ------
    InputError
        No trace of training that a scenario can express, or files that exist.
    """
    if answers.node is None and (answers.nodes is not None or answers.fabric is not None):
        allowed = "--node beside it: the recorded machine is what it is"
        raise InputError(Fault("--nodes, --fabric", "a machine without its name", allowed))
    ranks = read_ranks(traces)
    profile = profile_ranks(ranks)
    rebuilt = rebuild(
        ranks, profile, gpu=answers.gpu, batch=answers.batch_per_gpu, model=answers.model
    )
    names = {MODEL: f"{output.stem}-{MODEL}", MACHINE: f"{output.stem}-{MACHINE}"}
    written = names if answers.node is None else {MODEL: names[MODEL]}
    for name in written.values():
        check_new(output.with_name(name), force=force)
    content = _renamed(rebuilt.documents[SCENARIO], names)
    if answers.node is not None:
        content |= _other_machine(answers, ranks[0], output.parent)
    for kind, name in written.items():
        output.with_name(name).write_text(rebuilt.text(kind), encoding="utf-8")
    text = _render_trace(content, ranks[0])
    return Draft(
        text, _check(text, output), (*_trace_notes(ranks[0], profile, answers), *rebuilt.notes)
    )


def _check(text: str, output: Path) -> Scenario:
    """The scenario as it will be read: its files lie beside it."""
    trial = output.with_name(f".{output.name}.draft.yaml")
    trial.write_text(text, encoding="utf-8")
    try:
        return load_scenario(str(trial))
    finally:
        trial.unlink()


def _renamed(document: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    return {
        **document,
        "model": {**document["model"], "file": names[MODEL]},
        "compute": {**document["compute"], "times": names[MODEL]},
        "cluster": {**document["cluster"], "node": names[MACHINE]},
    }


def _other_machine(answers: TraceAnswers, trace: RankTrace, folder: Path) -> dict[str, Any]:
    assert answers.node is not None
    host_node = load_node(answers.node)
    size, world = len(device_names(host_node, "gpu")), trace.world_size
    nodes = answers.nodes or max(1, -(-world // size))
    cluster: dict[str, Any] = {"node": relative_file(answers.node, folder), "nodes": nodes}
    if nodes > 1:
        cluster["fabric"] = answers.fabric or _usual_fabric(host_node)
    elif world < size:
        cluster["gpus_per_node"] = world
    on_cpu = load_gpu(host_node.gpu).generation == "cpu"
    library = {"name": "gloo", "host_step": "0 s"} if on_cpu else {"name": "nccl"}
    return {"cluster": cluster, "library": library}


def _render_trace(content: Mapping[str, Any], trace: RankTrace) -> str:
    lines = [f"# How long is the step of {trace.path.name} on this machine, or on another?"]
    for name, value in content.items():
        fields = value if isinstance(value, Mapping) else {}
        lines.append(f"{name}:" if fields else f"{name}: {value}")
        lines += [
            _line(f"  {key}: {_value(each)}", COMMENTS.get(key, "as recorded"))
            for key, each in fields.items()
        ]
    return "\n".join(lines) + "\n"


def _trace_notes(trace: RankTrace, profile: Profile, answers: TraceAnswers) -> Iterator[str]:
    steps = f"{len(profile.steps_s)} steps of {trace.world_size} ranks on {trace.device}"
    yield f"{steps}, median {1e3 * profile.step_s:.4g} ms"
    if answers.node is not None:
        gpu = load_node(answers.node).gpu
        yield f"times of layers are those of {trace.device}; the machine has {gpu}"
