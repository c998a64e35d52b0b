"""What runs with what: tables of strategies, made by asking for each combination.

A small model on two nodes is planned with it; what the code refuses stands in the table, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from perfmodel.errors import Fault, InputError
from perfmodel.memo import grouped
from perfmodel.scenario.load import make_scenario
from perfmodel.studies.run.resolve.resolved_scenario import resolve_scenario
from perfmodel.studies.run.steps.sized_job import locate_errors, size_job
from perfmodel.topology.from_text.parts import hardware_parts
from perfmodel.topology.templates.build import build_topology
from perfmodel.topology.templates.gpus import gpu_names, load_gpu
from perfmodel.topology.templates.load import template_names
from perfmodel.training.strategies import STRATEGIES

Changes = Mapping[str, Any]

SIZES = {"hidden": 256, "layers": 8, "heads": 4, "vocab": 1024}
BASE: Changes = {
    "model": {"transformer": SIZES, "tokens": 128},
    "compute": {"precision": "bf16", "optimizer": "adamw"},
    "cluster": {"node": "dgx-h100", "nodes": 2, "gpus_per_node": 4, "fabric": "rail-optimised"},
    "training": {"batch_per_gpu": 2},
}
ONE_NODE: Changes = {"cluster": {"node": "dgx-h100", "gpus_per_node": 8}}
FIELDS: Mapping[str, Changes] = {
    "data_parallel": ONE_NODE,
    "onebit": {"compute.precision": "fp16"},
}
"""What a strategy needs beside its kind."""
SETTINGS: Mapping[str, Mapping[str, Changes]] = {
    "fsdp": {
        "FSDP2": {"kind": "fsdp"},
        "FSDP2, gathered once a step": {
            "kind": "fsdp",
            "reshard_after_forward": False,
            "reshard_after_backward": False,
            "sync": "last",
        },
        "FSDP1": {"kind": "fsdp", "version": 1},
        "HSDP": {"kind": "fsdp", "shard_gpus": 4},
        "Megatron-FSDP": {"kind": "fsdp", "version": "megatron"},
    },
    "zero": {f"ZeRO-{stage}": {"kind": "zero", "stage": stage} for stage in (1, 2, 3)},
}
"""Settings of a strategy that are allowed other things; of the others the defaults are asked."""

PARTS = {"chunks": 2}
PIPELINES: Mapping[str, Changes] = {
    "1f1b": {},
    "interleaved": PARTS,
    "zb_h1": {},
    "dualpipe": {},
    "sequential": {},
}
LAYOUTS: Mapping[str, Sequence[Changes]] = {
    "tensor": ({"parallel.tensor": 2},),
    "context": ({"parallel.context.degree": 2},),
    "expert": ({"model.transformer": SIZES | {"experts": 4}, "parallel.expert": 2},),
    **{
        name: tuple(
            {"parallel.pipeline": {"stages": 2, "schedule": name, **fields}} | micro_batches
            for micro_batches in (
                {"strategy.accumulate": 4},
                {"strategy.ddp": {"accumulate": 4}},
                {},
            )
        )
        for name, fields in PIPELINES.items()
    },
}
"""Ways to split the model, with changes that ask for it: the first that a strategy has counts."""
FEATURES: Mapping[str, Sequence[Changes]] = {
    "accumulate": ({"strategy.accumulate": 4}, {"strategy.ddp": {"accumulate": 4}}),
    "hook: fp16": ({"strategy.hook": "fp16"}, {"strategy.ddp": {"hook": "fp16"}}),
    "hook: powersgd": ({"strategy.hook": "powersgd"}, {"strategy.ddp": {"hook": "powersgd"}}),
    "fp8": ({"compute.precision": "fp8"},),
    "recompute": ({"compute.recompute": "full"},),
    "compiled": ({"compute.compiled": True},),
    "CUDA graphs": ({"compute.compiled": True, "compute.cuda_graphs": True},),
    "LoRA": ({"model.adapters": {"rank": 8}},),
    "offload": (
        {"strategy.offload": True},
        {"strategy.offload_optimizer": {"device": "cpu"}},
    ),
    "unlike GPUs": ({"cluster.mixed": [{"nodes": [0], "gpu": "h200-sxm5-141gb"}]},),
    "straggler": ({"events": [{"slow": {"ranks": [1], "by": 1.2}}]},),
}
"""Features, as `LAYOUTS`."""
PRECISIONS: Mapping[str, Sequence[Changes]] = {
    **{name: ({"compute.precision": name},) for name in ("fp32", "tf32", "bf16", "fp16", "fp8")},
    **{
        f"fp8, {recipe}": ({"compute.precision": "fp8", "compute.fp8": {"recipe": recipe}},)
        for recipe in ("blockwise", "mxfp8", "nvfp4", "mxfp4")
    },
}
"""Precisions and recipes, as `LAYOUTS`."""
RUNS, ABSENT = Fault("", "yes", ""), Fault("", "-", "")
"""What runs; what the strategy has no field for."""


def refusal(content: Changes) -> Fault:
    """Plan a step; return what is refused, `RUNS` or `ABSENT`."""
    try:
        inputs = resolve_scenario(make_scenario(content), None, None)
        sized = size_job(inputs, inputs.sizes[-1])
        with locate_errors(sized):
            if sized.job.strategy.loops is None:
                sized.plan_for(None)
            else:
                sized.loops_for()
            sized.memory()
    except InputError as error:
        unknown = "an unknown field"
        return next((each for each in error.faults if not each.found.startswith(unknown)), ABSENT)
    return RUNS


def strategy_rows() -> Mapping[str, Changes]:
    """Every strategy that there is, by the name of its row; with what it needs."""
    rows: dict[str, Changes] = {}
    for kind in STRATEGIES:
        own = SETTINGS.get(kind, {kind: {"kind": kind}})
        rows |= {name: {"strategy": each, **FIELDS.get(kind, {})} for name, each in own.items()}
    return rows


def gpu_rows() -> Mapping[str, Changes]:
    """The first GPU of each generation that ships, by its name; two nodes where no text says it."""
    first: dict[str, str] = {}
    for name in gpu_names():
        first.setdefault(load_gpu(name).generation, name)
    templates = {build_topology(name).gpu.name: name for name in template_names()}
    rows: dict[str, Changes] = {}
    for generation, name in first.items():
        if name in hardware_parts().gpus:
            rows[name] = {"cluster": {"node": f"2 x {name}"}}
        elif generation != "cpu" and name in templates:
            rows[name] = {"cluster": {"node": templates[name], "nodes": 2, "fabric": "one-switch"}}
    return rows


TABLES: Mapping[str, tuple[Callable[[], Mapping[str, Changes]], Mapping[str, Sequence[Changes]]]]
TABLES = {
    "layouts": (strategy_rows, LAYOUTS),
    "features": (strategy_rows, FEATURES),
    "precisions": (gpu_rows, PRECISIONS),
}


def answers(table: str) -> dict[tuple[str, str], Fault]:
    """Ask for each combination: by row and column."""
    rows, columns = TABLES[table]
    found = {}
    for row, fields in rows().items():
        for column, ways in columns.items():
            said = (refusal({**BASE, **fields, **way}) for way in ways)
            found[row, column] = next((each for each in said if each != ABSENT), ABSENT)
    return found


def support(table: str) -> str:
    """Write a table, with its reasons below."""
    found = answers(table)
    reasons: dict[tuple[str, str], str] = {}
    lines = list[str]()
    by_row = grouped((row, fault) for (row, _), fault in found.items())
    for row, cells in by_row.items():
        words = [row]
        for each in cells:
            if each in {RUNS, ABSENT}:
                words.append(each.found)
                continue
            key = each.field, each.allowed
            reasons.setdefault(key, f"`{each.field}`: found {each.found}; allowed: {each.allowed}")
            words.append(f"no ({list(reasons).index(key) + 1})")
        lines.append(f"| {' | '.join(words)} |")
    columns = dict.fromkeys(column for _, column in found)
    head = [f"| | {' | '.join(columns)} |", f"|---{'|---' * len(columns)}|"]
    return "\n".join(
        [*head, *lines, "", *(f"{at}. {why}" for at, why in enumerate(reasons.values(), 1))]
    )
