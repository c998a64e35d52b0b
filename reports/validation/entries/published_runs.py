"""Published trainings of a collection, ``llm_training.csv``, read as rows of `strategy_steps.csv`.

What a source leaves open is presumed as for the rows that are there (``published_runs.yaml``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.files import read_yaml

Cells = Mapping[str, str]


class NotExpressible(Exception):
    """No scenario can express a row; its text says why."""


@cache
def readings() -> Any:
    """How rows are read."""
    return read_yaml(Path(__file__).with_suffix(".yaml"))


def as_stated_step(run: Cells, model: Cells) -> dict[str, str]:
    """Return the cells of `reports.validation.strategies.stated_step` that a published run is.

    `model`: its sizes, a row of ``models.csv``; empty: they are not known.
    Raises `NotExpressible`.
    """
    _refuse(run, model)
    framework = _framework(run)
    gpu = _named("gpus", run["gpu"], "GPU")
    nodes, each = _nodes(run, gpu.get("rack"))
    network, presumed = _network(run, gpu["network"], nodes)
    stages = _count(run, "pp")
    strategy = framework.get("pipelined") if stages > 1 else None
    tuning = run["task"] in ("lora", "sft")
    return {
        "table": run["source"],
        "model": run["model"],
        **_sizes(run, model),
        "fused_norms": framework["fused_norms"],
        "sequence_length": run["seq_len"],
        "document_length": framework["document_length"] if tuning else "",
        "gpu": gpu["gpu"],
        "intra": gpu["intra"],
        "network": network,
        "nodes": str(nodes),
        "gpus_per_node": str(each),
        "precision": _named("precisions", run["precision"], "precision"),
        "dtype": "bf16",
        "batch": run["micro_batch"],
        "accumulate": str(_micro_batches(run)),
        "strategy": strategy or framework["strategy"],
        "parallel": _parallel(run, framework),
        "experts": _experts(run, framework),
        "adapters": framework["adapters"] if run["task"] == "lora" else "",
        "recompute": "none",
        "attention": framework["attention"],
        "compiled": _compiled(run, framework),
        "dropout": "0",
        "optimizer_kernels": framework["optimizer_kernels"],
        "master_weights": framework["master_weights"],
        "step_s": run["step_time_s"],
        "peak_GB": "",
        "memory_kind": "",
        "unlike": "",
        "presumed": presumed,
        "trust": run["trust"],
        "source": run["source_url"],
        "note": run["id"],
    }


SETUP = (
    *("framework", "model", "task", "gpu", "gpus", "global_batch", "micro_batch"),
    *("tp", "pp", "vpp", "cp", "ep", "seq_len"),
)
"""What two releases of a recipe have in common."""


def with_recipe(run: Cells, others: Iterable[Cells]) -> Cells:
    """Return a run with the settings that the first of the others, older ones, states of its setup.

    A run whose tokens are dropped is of another recipe.
    """
    if "recipe=" in run["config_other"] or "tokendrop" in run["config_other"]:
        return run
    names = readings()["precisions"]
    for other in others:
        if (
            "recipe=" in other["config_other"]
            and names.get(other["precision"]) == names.get(run["precision"])
            and all((run[name] or "1") == (other[name] or "1") for name in SETUP)
        ):
            return {**run, "config_other": other["config_other"], "recompute": other["recompute"]}
    return run


def _framework(run: Cells) -> Any:
    for beginning, shared in readings()["frameworks"].items():
        if run["framework"].startswith(beginning):
            return shared
    raise NotExpressible(f"how {run['framework']} runs is not known")


def _refuse(run: Cells, model: Cells) -> None:
    """Raise for what no scenario says."""
    reasons = {
        "activations that are offloaded in part": run["offload"],
        "Megatron-FSDP": run["sharding"] == "megatron_fsdp",
        "layers with a state space (Mamba)": "mamba" in model.get("kind", ""),
        "sizes of the model are not stated": not (run["layers"] or model.get("layers")),
        "samples of a step are not stated": not run["global_batch"],
        "step time is not stated": not run["step_time_s"],
        "how many GPUs share the experts is not stated": run["experts"] and not run["ep"],
    }
    for reason, applies in reasons.items():
        if applies:
            raise NotExpressible(reason)


def _named(table: str, name: str, what: str) -> Any:
    try:
        return readings()[table][name]
    except KeyError:
        raise NotExpressible(f"{what} {name!r} is not known") from None


def _count(run: Cells, name: str) -> int:
    """Degree of a split; 1 where the cell is empty."""
    return int(run[name] or 1)


def _nodes(run: Cells, rack: int | None) -> tuple[int, int]:
    """Nodes, and GPUs of each; racks that NVLink joins count as nodes."""
    gpus = int(run["gpus"])
    each = min(gpus, rack or int(run["gpus_per_node"]))
    if gpus % each:
        raise NotExpressible("nodes have unlike numbers of GPUs")
    return gpus // each, each


def _network(run: Cells, usual: str, nodes: int) -> tuple[str, str]:
    """Network, and what is presumed of it."""
    if nodes == 1:
        return "", ""
    for text, network in readings()["networks"].items():
        if text in run["network"]:
            return str(network), ""
    return usual, "network"


def _micro_batches(run: Cells) -> int:
    """Micro-batches of a step and replica."""
    samples = int(run["global_batch"])
    each = int(run["micro_batch"]) * _count(run, "dp")
    if samples % each:
        raise NotExpressible("samples of a step do not divide by those of its micro-batches")
    return samples // each


def _sizes(run: Cells, model: Cells) -> dict[str, str]:
    key = run["model_key"]
    family = readings()["families"].get(key, "llama")
    return {
        "family": "experts" if key in readings()["experts"] else family,
        "layers": run["layers"] or model["layers"],
        "width": run["hidden"] or model["hidden"],
        "heads": run["heads"] or model["heads"],
        "kv_heads": run["kv_heads"] or model["kv_heads"],
        "mlp_width": run["ffn"] or model["ffn"] or "1",
        "vocabulary": run["vocab"] or model["vocab"],
        "tied": model.get("tied_embeddings") or "0",
    }


def _experts(run: Cells, framework: Any) -> str:
    if not run["experts"]:
        return ""
    model = _named("experts", run["model_key"], "model")
    text = run["config_other"]
    deduplicated = "hybridep" in text or "DeepEP" in text
    dispatcher = "deduplicated" if deduplicated else "all_to_all"
    dropped = ", capacity: 1.0, pad_to_capacity: true" if "tokendrop" in text else ""
    overlap = ", overlap: true" if "moe_a2a_overlap=1" in text else ""
    return (
        f"{{model: {model}, implementation: {framework['experts']}, dispatcher: {dispatcher}"
        f"{dropped}{overlap}}}"
    )


def _compiled(run: Cells, framework: Any) -> str:
    """What is fused, or "graphs" where the kernels of a whole step are replayed, too.

    A recipe that says ``none:`` before the scope runs without graphs.
    """
    if any(f"cuda_graph={kind}" in run["config_other"] for kind in ONE_GRAPH):
        return "graphs"
    return str(framework["compiled_experts" if run["experts"] else "compiled"])


ONE_GRAPH = ("full_iteration:", "local:full_iteration")
"""Kind and scope of CUDA graphs of a whole step, as recipes of Megatron-Bridge have it."""


def _parallel(run: Cells, framework: Any) -> str:
    """Return the section `parallel`; empty: the model is not split."""
    tensor, context, expert = (_count(run, name) for name in ("tp", "cp", "ep"))
    parts = []
    if tensor > 1:
        parts.append(f"tensor: {tensor}")
        parts += ["sequence_parallel: true"] * ("1" in (run["sp"], framework["sequence_parallel"]))
        parts += ["overlap: asynchronous"] * (expert == 1 and "vocabulary_multiple" in framework)
        parts.append(f"library: {framework['library']}")
    if context > 1:
        parts.append(f"context: {{degree: {context}}}")
    if expert > 1:
        parts.append(f"expert: {expert}")
    if _count(run, "pp") > 1:
        parts.append(f"pipeline: {_pipeline(run)}")
    if parts and "vocabulary_multiple" in framework:
        parts.append(f"vocabulary_multiple: {framework['vocabulary_multiple']}")
    return f"{{{', '.join(parts)}}}" if parts else ""


def _pipeline(run: Cells) -> str:
    """Return its section; embedding and head count as layers where layers alone do not divide."""
    stages, chunks = _count(run, "pp"), _count(run, "vpp")
    schedule = f"schedule: interleaved, chunks: {chunks}" if chunks > 1 else "schedule: 1f1b"
    divides = int(run["layers"]) % (stages * chunks) == 0
    ends = "" if divides else ", embedding_as_block: true, loss_as_block: true"
    return f"{{stages: {stages}, {schedule}{ends}}}"
