"""A scenario drafted from an execution trace alone: layers, buckets and collectives, no times.

Times of layers are estimated from their shapes, those of collectives by the library's model: an
execution trace has neither, nor the name of a GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perfmodel.errors import refuse_if
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.result import Result
from perfmodel.traces.execution_trace import ExecutionTrace, read_execution_trace
from perfmodel.traces.rebuild.executed_model import HOW, ExecutedModel, read_executed_model
from perfmodel.traces.rebuild.scenario_files import MODEL, SCENARIO, Draft
from perfmodel.units import format_bytes

FILES = (MODEL, SCENARIO)
"""Files that `write_draft` writes."""

OPTIMIZERS = {"AdamW": "adamw", "Adam": "adam", "SGD": "sgd"}
"""PyTorch's optimizers that a scenario has; of SGD the trace does not say whether with momentum."""

DATA_PARALLEL = frozenset({"all_reduce", "broadcast", "barrier", "all_gather"})
"""Collectives of DistributedDataParallel; the last where it compares ranks as it begins."""
SHARDED = DATA_PARALLEL | {"reduce_scatter"}
MOST_NORMS = 4096
"""Elements of an all-reduce of norms of gradients: gloo has one for each tensor together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecutedDraft(Draft):
    """A scenario of an execution trace.

    `recorded_bytes`: of each all-reduce or reduce-scatter of gradients, in the order of calls.
    """

    recorded_bytes: tuple[int, ...]


def run_draft(
    trace: Path, cluster: Mapping[str, Any], folder: Path, batch: int | None = None
) -> tuple[Path, Result, tuple[str, ...]]:
    """Draft a scenario of an execution trace, write it, and simulate it.

    Returns the file of the scenario, the result, and what to say of both.

    `cluster`, `batch`: as of `draft_scenario` and `read_executed_model`.
    Raises `InputError`: as these, or a cluster that does not resolve.
    """
    draft = draft_scenario(read_execution_trace(trace), read_executed_model(trace, batch), cluster)
    path = draft.write(folder)
    result = run_scenario(load_scenario(path))
    compared = compare_buckets(
        draft.recorded_bytes, [bucket.nbytes for bucket in result.main.buckets]
    )
    return path, result, (*draft.notes, *filter(None, [compared]))


def draft_scenario(
    trace: ExecutionTrace, model: ExecutedModel, cluster: Mapping[str, Any]
) -> ExecutedDraft:
    """Draft a scenario of one rank's step on a cluster.

    `cluster`: the section, which the trace does not know.
    Raises `InputError`: collectives of training that one rank's layers do not describe.
    """
    operations, source = {each.op for each in trace.collectives}, trace.path.name
    refuse_if(
        others := sorted(operations - SHARDED),
        "trace",
        ", ".join(others),
        "a step of DistributedDataParallel, of FSDP or of one GPU; of other training the "
        "profiler's traces of all ranks, or Chakra's (a folder of PREFIX.RANK.et)",
        str(trace.path),
    )
    is_sharded = "reduce_scatter" in operations
    op = "reduce_scatter" if is_sharded else "all_reduce"
    strategy: dict[str, Any] = _sharded_strategy(trace, model) if is_sharded else {"kind": "ddp"}
    if model.passes > 1:
        strategy["accumulate"] = model.passes
    optimizer = OPTIMIZERS.get(model.optimizer)
    return ExecutedDraft(
        documents={
            MODEL: {
                "perfmodel": 1,
                "kind": "model",
                "name": trace.path.stem,
                "parameters": list(model.parameters),
                "layers": list(model.layers),
            },
            SCENARIO: {
                "perfmodel": 1,
                "model": {"file": MODEL},
                "compute": {
                    "precision": trace.dtype if trace.dtype in ("bf16", "fp16") else "fp32",
                    "optimizer": optimizer or "adamw",
                },
                "strategy": strategy,
                "cluster": dict(cluster),
                "training": {"batch_per_gpu": model.batch},
            },
        },
        comments={
            MODEL: f"Layers of {source} by their shapes; times are estimated, the trace has none.",
            SCENARIO: f"How long is the step of {source} on this machine?",
        },
        notes=_notes(trace, model, optimizer),
        recorded_bytes=tuple(
            each.nbytes for each in trace.collectives if each.op == op and each.elements > 1
        ),
    )


def _sharded_strategy(trace: ExecutionTrace, model: ExecutedModel) -> dict[str, Any]:
    """Write FSDP with the units, precisions and collectives of the trace."""
    sharding, counts = model.sharding, Counter(each.op for each in trace.collectives)
    units, is_known = len(sharding.units) + 1, bool(sharding.version)
    norms = (c.elements < MOST_NORMS for c in trace.collectives if c.op == "all_reduce")
    ranks = _shard_ranks(trace)
    dtypes = {op: each.dtype for each in trace.collectives if (op := each.op) in SHARDED}
    fields = {
        "version": (sharding.version, is_known),
        "wrap": (sharding.wrap or "model", is_known),
        "reshard_after_forward": (
            False,
            is_known and counts["all_gather"] <= units * model.passes,
        ),
        "sync": ("last", is_known and model.passes > 1 and counts["reduce_scatter"] <= units),
        "clip_norm": (True, any(norms)),
        "shard_gpus": (ranks, _has_copies(trace) and ranks),
        "param_dtype": (dtypes.get("all_gather"), sharding.casts),
        "reduce_dtype": (dtypes.get("reduce_scatter"), sharding.casts),
    }
    return {"kind": "fsdp", **{name: value for name, (value, holds) in fields.items() if holds}}


def _has_copies(trace: ExecutionTrace) -> bool:
    """Tell whether gradients are reduced over copies of shards, too (HSDP)."""
    operations = {each.op for each in trace.collectives if each.elements >= MOST_NORMS}
    return operations >= {"all_reduce", "reduce_scatter"}


def _shard_ranks(trace: ExecutionTrace) -> int | None:
    scatters = (each for each in trace.collectives if each.op == "reduce_scatter")
    return next((each.ranks for each in scatters if each.ranks), None)


def _notes(trace: ExecutionTrace, model: ExecutedModel, optimizer: str | None) -> tuple[str, ...]:
    named = f"{model.optimizer!r}" if model.optimizer else "no optimizer"
    rows = (
        (
            True,
            (
                f"Drafted from {trace.path.name} alone: times are estimates by the model, because "
                f"an execution trace has none. For recorded ones give {HOW.partition('; or ')[2]}."
            ),
        ),
        (
            True,
            f"{model.batch:,} samples a micro-batch, by the first size of the inputs (--batch).",
        ),
        (optimizer is None, f"The trace has {named}; AdamW is taken (compute.optimizer)."),
        (
            _has_copies(trace) and not _shard_ranks(trace),
            (
                "All-reduces beside reduce-scatters: of HSDP say strategy.shard_gpus, which the "
                "trace does not state."
            ),
        ),
        (
            model.unread > 0,
            (
                f"{model.unread:,} elements of parameters have gradients and no layer that was "
                "found reads them: their bytes count, their work does not."
            ),
        ),
    )
    return tuple(note for holds, note in rows if holds)


def compare_buckets(recorded: Sequence[int], drafted: Sequence[int]) -> str:
    """Say whether the drafted scenario sends gradients as was recorded; "" where nothing was."""
    if not recorded or not drafted:
        return ""
    listed = _sizes(recorded)
    if list(recorded) == list(drafted):
        return f"Gradients travel as recorded: {listed}."
    return (
        f"Recorded reductions: {len(recorded):,} ({listed}); drafted: {len(drafted):,} "
        f"({_sizes(drafted)}): see strategy.bucket_cap and first_bucket."
    )


MOST_SIZES = 6


def _sizes(sizes: Sequence[int]) -> str:
    more = f" and {len(sizes) - MOST_SIZES:,} more" if len(sizes) > MOST_SIZES else ""
    return ", ".join(map(format_bytes, sizes[:MOST_SIZES])) + more
