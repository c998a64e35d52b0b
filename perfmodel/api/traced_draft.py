"""A scenario from a profiler's trace: its model, its buckets, its machine or another."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.api.draft import Draft, check_new, commented, relative_file, usual_fabric
from perfmodel.errors import refuse_if
from perfmodel.files import flow_yaml
from perfmodel.scenario import Scenario, load_scenario
from perfmodel.topology.templates.build import load_node
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.topology.templates.spec import device_names
from perfmodel.traces.model import RankTrace
from perfmodel.traces.rebuild.layer_profile import Profile, profile_ranks
from perfmodel.traces.rebuild.scenario_files import MACHINE, MODEL, SCENARIO, rebuild
from perfmodel.traces.run import read_ranks

COMMENTS: Mapping[str, str] = {
    "file": "layers and tensors; edit it",
    "model.name": "whose work is known, so that another GPU prices its layers anew",
    "times": "of the trace, and the device that they are of",
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


def draft_from_trace(
    traces: Sequence[Path],
    output: Path,
    *,
    gpu: str | None = None,
    batch_per_gpu: int | None = None,
    model: str | None = None,
    node: str | None = None,
    nodes: int | None = None,
    fabric: str | None = None,
    force: bool = False,
) -> Draft:
    """Write the model and the machine of a trace, and draft a scenario beside them.

    Parameters
    ----------
    traces : sequence of Path
        Files of ranks, or folders of them.
    output : Path
        Where the scenario will stand: the other files lie beside it, named after it.
    gpu, batch_per_gpu : str, int, optional
        Default: as the trace says.
    model : str, optional
        Of the zoo, or a file, that names the parameters.
    node, nodes, fabric : str, int, str, optional
        Another machine than the recorded one.
    force : bool
        Replace files that exist.

    Raises
    ------
    InputError
        No trace of training that a scenario can express, or files that exist.
    """
    refuse_if(
        node is None and (nodes is not None or fabric is not None),
        "--nodes, --fabric",
        "a machine without its name",
        "--node beside it: the recorded machine is what it is",
    )
    ranks = read_ranks(traces)
    profile = profile_ranks(ranks)
    rebuilt = rebuild(ranks, profile, gpu=gpu, batch=batch_per_gpu, model=model)
    names = {MODEL: f"{output.stem}-{MODEL}", MACHINE: f"{output.stem}-{MACHINE}"}
    written = names if node is None else {MODEL: names[MODEL]}
    for name in written.values():
        check_new(output.with_name(name), force=force)
    content = dict(rebuilt.documents[SCENARIO])
    content["model"] = {**content["model"], "file": names[MODEL]}
    content["compute"] = {**content["compute"], "times": names[MODEL]}
    content["cluster"] = {**content["cluster"], "node": names[MACHINE]}
    if node is not None:
        content |= _other_machine(node, nodes, fabric, ranks[0], output.parent)
        if model is not None:  # its work is known, to price the layers anew
            key = "file" if Path(model).is_file() else "name"
            content["model"] = {key: relative_file(model, output.parent)}
    for kind, name in written.items():
        output.with_name(name).write_text(rebuilt.text(kind), encoding="utf-8")
    text = _render_trace(content, ranks[0])
    return Draft(
        text, _check(text, output), (*_trace_notes(ranks[0], profile, node), *rebuilt.notes)
    )


def _check(text: str, output: Path) -> Scenario:
    """The scenario as it will be read: its files lie beside it."""
    trial = output.with_name(f".{output.name}.draft.yaml")
    trial.write_text(text, encoding="utf-8")
    try:
        return load_scenario(str(trial))
    finally:
        trial.unlink()


def _other_machine(
    node: str, nodes: int | None, fabric: str | None, trace: RankTrace, folder: Path
) -> dict[str, Any]:
    host_node = load_node(node)
    size, world = len(device_names(host_node, "gpu")), trace.world_size
    nodes = nodes or max(1, -(-world // size))
    cluster: dict[str, Any] = {"node": relative_file(node, folder), "nodes": nodes}
    if nodes > 1:
        cluster["fabric"] = fabric or usual_fabric(host_node)
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
            commented(
                f"  {key}: {flow_yaml(each)}",
                COMMENTS.get(f"{name}.{key}") or COMMENTS.get(key, "as recorded"),
            )
            for key, each in fields.items()
        ]
    return "\n".join(lines) + "\n"


def _trace_notes(trace: RankTrace, profile: Profile, node: str | None) -> Iterator[str]:
    yield (
        f"{len(profile.steps_s)} steps of {trace.world_size} ranks on {trace.device}, median "
        f"{1e3 * profile.step_s:.4g} ms"
    )
    if node is not None:
        gpu = load_node(node).gpu
        yield (
            f"times of layers are those of {trace.device}; the machine has {gpu}: if that is "
            "another, run prices layers anew, for which --model names a model whose work is known"
        )
