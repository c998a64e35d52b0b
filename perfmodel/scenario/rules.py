"""Faults between sections that need nothing but the file, found even if other sections fail.

Faults between the parts of a plan.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perfmodel.errors import Fault, allowed_names
from perfmodel.files import is_file, is_folder
from perfmodel.scenario.model import Scenario, divisible_by, is_resized_by_flag
from perfmodel.scenario.sections.model import transformer_findings
from perfmodel.scenario.sections.strategies.auto import AutoStrategy
from perfmodel.scenario.sections.strategies.parameter_server import (
    ParameterServerStrategy,
    server_nodes,
)
from perfmodel.scenario.sections.studies.plan import PlanSection
from perfmodel.scenario.source_map import SourceMap


def plan_faults(plan: PlanSection) -> Iterator[tuple[str, str, str]]:
    """Find faults between the parts of a plan: field within it, what was found, what is allowed."""
    currency = plan.paid_in
    for field, money in plan.money.items():
        if money.currency != currency:
            price = f"{money.amount:g} {money.currency}"
            yield field, price, f"{currency}, the currency of this plan: nothing is converted"
    if plan.budget is not None and not plan.budget.amount:
        yield "budget", f"0 {currency}", "more than zero"
    names = [candidate.name for candidate in plan.candidates]
    yield from _repeated_names("candidates", names)
    yield from _repeated_names("upgrades", [upgrade.name for upgrade in plan.upgrades])
    yield from _candidate_faults(plan)
    for index, upgrade in enumerate(plan.upgrades):
        yield from _change_faults(f"upgrades.{index}.set", upgrade.set, ("plan.failures.",))
        for position, name in enumerate(upgrade.candidates or ()):
            if name not in names:
                field = f"upgrades.{index}.candidates.{position}"
                yield field, repr(name), allowed_names(names, name)


def _candidate_faults(plan: PlanSection) -> Iterator[tuple[str, str, str]]:
    for index, candidate in enumerate(plan.candidates):
        if candidate.fabric is None and candidate.nodes[-1] > 1:
            nodes = candidate.nodes[-1]
            allowed = f"the network between the {nodes} nodes, such as 'rail-optimised'"
            yield f"candidates.{index}.fabric", "nothing", allowed
        if candidate.mtbf_per_node is not None and plan.failures is None:
            yield f"candidates.{index}.mtbf_per_node", "no 'failures'", "'failures' beside it"
        yield from _change_faults(f"candidates.{index}.set", candidate.set or {}, ())


_HARDWARE = {"cluster"} | {f"cluster.{n}" for n in ("node", "nodes", "gpus_per_node", "mixed")}
"""Fields that a candidate gives itself, together with their price and power."""


def _change_faults(
    field: str, changes: Mapping[str, Any], allowed: tuple[str, ...]
) -> Iterator[tuple[str, str, str]]:
    """Find changes that no candidate may make: to its hardware, or outside the training step."""
    for name in changes:
        if name in _HARDWARE:
            expected = "a field of a training step; other hardware is another candidate"
            yield f"{field}.{name}", "a field of the candidate itself", expected
        section = name.partition(".")[0]
        if section in {"plan", "sweep", "perfmodel"} and not name.startswith(allowed):
            expected = "a field of a training step" + (", or of plan.failures" if allowed else "")
            yield f"{field}.{name}", f"a field of {section!r}", expected


def _repeated_names(kind: str, names: list[str]) -> Iterator[tuple[str, str, str]]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield f"{kind}.{index}.name", repr(name), f"a name that no other of the {kind} has"


_SECTIONS = (
    "model", "compute", "strategy", "parallel", "cluster", "training", "scale", "events",
    "jobs", "plan", "library", "fidelity",
)  # fmt: skip


def broken_rules(
    content: Mapping[str, Any], origin: SourceMap, scenario: Scenario | None
) -> list[Fault]:
    """Find faults between sections; sections that are faulty themselves are skipped.

    `content`: the file with its overrides, as plain values. `scenario`: made of it, where no
    section is faulty.
    """
    parts = _sound_sections(content) if scenario is None else _written_sections(content, scenario)
    for name in ("strategy", "parallel"):
        if name not in content:
            parts[name] = Scenario.model_fields[name].default
    faults: list[Fault] = []
    for rule in _RULES:
        faults += rule(parts, origin)
    return faults


def _written_sections(content: Mapping[str, Any], scenario: Scenario) -> dict[str, Any]:
    return {name: getattr(scenario, name) for name in _SECTIONS if name in content}


def _sound_sections(content: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of a faulty file that can be read on their own."""
    parts: dict[str, Any] = {}
    for name in (name for name in _SECTIONS if name in content):
        section: TypeAdapter[Any] = TypeAdapter(Scenario.model_fields[name].rebuild_annotation())
        with suppress(ValidationError):
            parts[name] = section.validate_python(content[name])
    return parts


def _files_exist(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    for section, key in (("model", "file"), ("model", "config"), ("compute", "times")):
        value = getattr(parts.get(section), key, None)
        if value is None:
            continue
        path: Path = origin.resolve(f"{section}.{key}", value)
        if key == "config" and is_folder(path):
            path /= "config.json"
        if not is_file(path):
            problem = "which is a folder" if is_folder(path) else "and there is no such file"
            yield origin.fault(f"{section}.{key}", f"{str(path)!r}, {problem}", "a readable file")


def _transformer_fits(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    section = getattr(parts.get("model"), "transformer", None)
    for field, text, allowed in () if section is None else transformer_findings(section):
        yield origin.fault(f"model.transformer.{field}", text, allowed)


def _sizes_fit(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    cluster, scale = parts.get("cluster"), parts.get("scale")
    if cluster is None or scale is None or is_resized_by_flag(origin):
        return
    for i, nodes in enumerate(scale.nodes or ()):
        if nodes > cluster.nodes:
            allowed = f"at most {cluster.nodes}, the nodes of this cluster"
            yield origin.fault(f"scale.nodes.{i}", str(nodes), allowed)
    gpus_in_all = cluster.nodes * (cluster.gpus_per_node or 0)
    for i, gpus in enumerate(scale.gpus or ()):
        if gpus_in_all and gpus > gpus_in_all:
            allowed = f"at most {gpus_in_all}, the GPUs of this cluster"
            yield origin.fault(f"scale.gpus.{i}", str(gpus), allowed)


def _batch_divides(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    training, scale, cluster = (parts.get(name) for name in ("training", "scale", "cluster"))
    if training is None or training.global_batch is None:
        return
    if cluster is None or cluster.gpus_per_node is None:
        return
    per_node = cluster.gpus_per_node
    whole, counts = cluster.nodes * per_node, tuple[int, ...]()
    if scale is not None:
        counts = scale.gpus or tuple(nodes * per_node for nodes in scale.nodes)
    counts = (*(gpus for gpus in counts if gpus < whole), whole)
    steps = getattr(parts.get("strategy"), "accumulate", 1)
    parallel = parts.get("parallel")
    shared = 1 if parallel is None else parallel.gpus_per_replica
    if any(gpus % shared for gpus in counts):
        return  # said where sizes are worked out
    counts = tuple(gpus // shared for gpus in counts)
    if any(training.global_batch % (ranks * steps) for ranks in counts):
        unit = "GPUs" if shared == 1 else "data-parallel ranks"
        allowed = divisible_by(counts, steps, unit)
        yield origin.fault("training.global_batch", str(training.global_batch), allowed)


def _one_node_only(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    cluster, strategy = parts.get("cluster"), parts.get("strategy")
    if cluster and cluster.nodes > 1 and strategy and strategy.one_node_only:
        allowed = f"1 with strategy.kind: {strategy.kind}, which drives the GPUs of one node"
        yield origin.fault("cluster.nodes", str(cluster.nodes), allowed)


def _overlap_exists(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    compute, strategy = parts.get("compute"), parts.get("strategy")
    if not compute or not strategy or compute.overlap_slowdown is None or strategy.overlaps:
        return
    allowed = f"nothing with strategy.kind: {strategy.kind}, where no collective runs beside layers"
    yield origin.fault("compute.overlap_slowdown", f"{compute.overlap_slowdown:g}", allowed)


def _recompute_within_units(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Refuse recomputed blocks of several units that are gathered again, which no plan has."""
    compute, strategy = parts.get("compute"), parts.get("strategy")
    if not compute or not getattr(strategy, "regathers_recomputed", False):
        return
    if compute.recompute not in ("none", "selective"):
        allowed = (
            "'block', or version 2: with compute.recompute units in a block are gathered again"
        )
        yield origin.fault("strategy.wrap", "'layer'", allowed)


def _masters_kept(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Refuse optimizers without fp32 copies where a library always has them."""
    compute, strategy = parts.get("compute"), parts.get("strategy")
    if not compute or not strategy or compute.master_weights:
        return
    if getattr(strategy, "keeps_masters", False):
        allowed = f"true with strategy.kind: {strategy.kind}, whose optimizer keeps fp32 copies"
        yield origin.fault("compute.master_weights", "false", allowed)


def _computes_in_param_dtype(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Layers whose parameters are gathered in, or cast to 16 bits multiply them in these."""
    compute, strategy = parts.get("compute"), parts.get("strategy")
    mixed, field = getattr(strategy, "mixed_precision", None), "strategy.param_dtype"
    dtype = getattr(strategy, "param_dtype", None)
    if mixed is not None:
        dtype, field = mixed.param_dtype, "strategy.mixed_precision.param_dtype"
    precision = compute.precision if compute else None
    wide = "bf16" if precision == "fp8" else precision
    if compute and dtype in ("bf16", "fp16") and dtype != wide:
        combination = f"'{dtype}' with compute.precision: {precision}"
        allowed = f"'{wide}' or nothing; or compute.precision: {dtype}"
        yield origin.fault(field, combination, allowed)


def _float8_fits(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Find what a strategy or model cannot have of fp8."""
    compute, strategy, model = (parts.get(name) for name in ("compute", "strategy", "model"))
    if compute is None or compute.precision != "fp8":
        return
    if model is not None and model.dtype == "fp16":
        allowed = "'bf16' or 'fp32' with compute.precision: fp8, whose other layers are bf16"
        yield origin.fault("model.dtype", "'fp16'", allowed)
    if strategy is None:
        return
    kind = f"strategy.kind: {strategy.kind}"
    if strategy.kind in ("data_parallel", "parameter_server"):
        allowed = f"another precision with {kind}, of which nobody's fp8 is known"
        yield origin.fault("compute.precision", "'fp8'", allowed)
    section = compute.fp8
    agrees = section is None or (section.recipe == "delayed" and section.reduce_amax)
    if agrees and getattr(strategy, "join", False):
        allowed = (
            f"false with {kind} and join: a GPU without inputs takes part in no such all-reduce"
        )
        yield origin.fault("compute.fp8.reduce_amax", "true", allowed)


def _float8_gathers_fit(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Find gathers of fp8 that a strategy does not have, and what a split model leaves out."""
    section, strategy = getattr(parts.get("compute"), "fp8", None), parts.get("strategy")
    if section is None or strategy is None:
        return
    if section.fp8_param_gather and not getattr(strategy, "use_distributed_optimizer", False):
        allowed = "false, or strategy.kind: megatron with use_distributed_optimizer: true"
        yield origin.fault("compute.fp8.fp8_param_gather", "true", allowed)
    is_fsdp2 = strategy.kind == "fsdp" and strategy.version == 2
    if section.enable_fsdp_float8_all_gather and not is_fsdp2:
        allowed = "false, or strategy.kind: fsdp with version: 2"
        yield origin.fault("compute.fp8.enable_fsdp_float8_all_gather", "true", allowed)
    parallel = parts.get("parallel")
    if parallel is None:
        return
    if section.tp_only_amax_red and parallel.tensor > 1:
        allowed = "false with parallel.tensor above 1: all-reduces within it are not planned"
        yield origin.fault("compute.fp8.tp_only_amax_red", "true", allowed)
    if section.fp8_param_gather and section.first_last_layers_bf16 and parallel.pipeline.stages > 1:
        allowed = "false with fp8_param_gather and parallel.pipeline: each stage would have ends"
        yield origin.fault("compute.fp8.first_last_layers_bf16", "true", allowed)


def _network_given(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    cluster = parts.get("cluster")
    if cluster is None or cluster.fabric is not None:
        return
    nodes = max(_nodes_needed(parts), cluster.pool or 1)
    if nodes > 1:
        allowed = f"the network between the {nodes} nodes, such as 'rail-optimised'"
        yield origin.fault("cluster.fabric", "nothing", allowed)


def _nodes_needed(parts: Mapping[str, Any]) -> int:
    """Nodes of this job, of all other jobs, and of servers that have nodes for themselves."""
    others = sum(job.nodes for job in parts.get("jobs", ()))
    return int(parts["cluster"].nodes + others + server_nodes(parts.get("strategy")))


def _jobs_fit(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    cluster = parts.get("cluster")
    if cluster is None or cluster.pool is None or cluster.pool >= _nodes_needed(parts):
        return
    needed = _nodes_needed(parts)
    jobs = " and its jobs" if parts.get("jobs") else ""
    yield origin.fault("cluster.pool", str(cluster.pool), f"at least {needed}, for this job{jobs}")


def _placement_has_choice(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    cluster = parts.get("cluster")
    if cluster is None or cluster.placement == "packed":
        return
    if max(_nodes_needed(parts), cluster.pool or 1) == cluster.nodes:
        allowed = "'packed': all nodes are this job's; others need cluster.pool or jobs"
        yield origin.fault("cluster.placement", repr(cluster.placement), allowed)


def _job_names_differ(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    names: set[str] = set()
    for i, job in enumerate(parts.get("jobs", ())):
        if job.name is not None and job.name in names:
            yield origin.fault(f"jobs.{i}.name", repr(job.name), "a name that no other job has")
        names.add(job.name)


def _events_fit(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Check nodes and ranks that events name, as far as the file alone gives their number."""
    cluster = parts.get("cluster")
    if cluster is None:
        return
    per_node = cluster.gpus_per_node
    limits = {"nodes": cluster.nodes, "ranks": cluster.nodes * per_node if per_node else None}
    mixed_nodes: set[int] = set()
    named = [(f"events.{i}.slow", event.slow) for i, event in enumerate(parts.get("events", ()))]
    named += [(f"cluster.mixed.{i}", mixed) for i, mixed in enumerate(cluster.mixed)]
    for path, section in named:
        for field, limit in limits.items():
            for index, number in enumerate(getattr(section, field, None) or ()):
                if limit is not None and number >= limit:
                    allowed = f"0 to {limit - 1}, the {field} of this job"
                    yield origin.fault(f"{path}.{field}.{index}", str(number), allowed)
    for i, mixed in enumerate(cluster.mixed):
        for index, number in enumerate(mixed.nodes):
            if number in mixed_nodes:
                yield origin.fault(
                    f"cluster.mixed.{i}.nodes.{index}", str(number), "each node once at most"
                )
            mixed_nodes.add(number)


def _servers_fit(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Find what a strategy whose workers loop on their own cannot have."""
    strategy, cluster = parts.get("strategy"), parts.get("cluster")
    if not isinstance(strategy, ParameterServerStrategy):
        return
    kind = f"strategy.kind: {strategy.kind}"
    if parts.get("jobs"):
        allowed = f"nothing with {kind}: collectives beside its messages are not simulated"
        yield origin.fault("jobs", f"{len(parts['jobs'])} jobs", allowed)
    compute = parts.get("compute")
    if compute and compute.optimizer_kernels != "foreach":
        allowed = f"nothing with {kind}, whose servers run the optimizer in one pass"
        yield origin.fault("compute.optimizer_kernels", repr(compute.optimizer_kernels), allowed)
    library = parts.get("library")
    if library and not strategy.local_reduce and library != type(library)():
        allowed = f"nothing with {kind}, unless local_reduce: messages need no collective library"
        yield origin.fault("library", repr(library.name), allowed)
    if parts.get("fidelity") == "message":
        yield origin.fault("fidelity", "'message'", f"'flow' with {kind}, which has messages only")
    colocated = strategy.placement == "colocated"
    if cluster and colocated and (strategy.servers or 1) > cluster.nodes:
        allowed = f"at most {cluster.nodes}, the nodes of this cluster, with placement: colocated"
        yield origin.fault("strategy.servers", str(strategy.servers), allowed)


def _auto_chooses(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Refuse beside ``auto`` what it chooses itself, or what it has no meaning for."""
    strategy, training = parts.get("strategy"), parts.get("training")
    if not isinstance(strategy, AutoStrategy):
        return
    kind = f"strategy.kind: {strategy.kind}"
    if training is not None and training.global_batch is None:
        allowed = f"training.global_batch with {kind}, which chooses micro-batches"
        yield origin.fault("training.batch_per_gpu", str(training.batch_per_gpu), allowed)
    parallel, compute = parts.get("parallel"), parts.get("compute")
    written = set() if parallel is None else parallel.model_fields_set
    for name in sorted(written & {"tensor", "sequence_parallel", "context", "expert", "pipeline"}):
        allowed = f"nothing with {kind}: strategy.{name} lists what it chooses from"
        yield origin.fault(f"parallel.{name}", _short(getattr(parallel, name)), allowed)
    if compute is not None and "recompute" in compute.model_fields_set:
        allowed = f"nothing with {kind}: strategy.recompute lists what it chooses from"
        yield origin.fault("compute.recompute", _short(compute.recompute), allowed)
    if parts.get("scale") is not None:
        allowed = f"nothing with {kind}: the best differs from size to size"
        yield origin.fault("scale", "sizes", allowed)
    for section in strategy.sharding:
        if section.accumulate > 1:
            allowed = f"nothing with {kind}: micro-batches follow from training.global_batch"
            yield origin.fault("strategy.sharding", f"accumulate {section.accumulate}", allowed)


def _short(value: object) -> str:
    return repr(value) if isinstance(value, str | int | bool) else "a section"


def _mixes(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Refuse to split a model under a strategy whose ranks are whole replicas by nature."""
    parallel, strategy = parts.get("parallel"), parts.get("strategy")
    if parallel is None or parallel.is_plain:
        return
    if strategy is not None and strategy.kind in ("data_parallel", "parameter_server"):
        allowed = f"nothing with strategy.kind: {strategy.kind}, whose workers hold whole models"
        yield origin.fault("parallel", "a model that is split", allowed)
    local_steps = getattr(strategy, "local_steps", 1)
    if parallel.pipeline.stages > 1 and local_steps > 1:
        allowed = "1 with parallel.pipeline.stages above 1, whose micro-batches are of one step"
        yield origin.fault("strategy.local_steps", str(local_steps), allowed)
    if strategy is not None and parallel.expert > 1 and strategy.kind not in ("megatron", "fsdp"):
        allowed = (
            "1, or strategy.kind: megatron or fsdp, which reduce experts among those that hold them"
        )
        yield origin.fault("parallel.expert", str(parallel.expert), allowed)
    if strategy is not None and parallel.pipeline.one_process and strategy.kind != "ddp":
        allowed = "one of a pipeline, or strategy.kind: ddp, around a module on several GPUs"
        yield origin.fault("parallel.pipeline.schedule", "'sequential'", allowed)
    compute = parts.get("compute")
    if compute is not None and compute.source == "file":
        allowed = "'roofline' with parallel: a file has the times of whole layers"
        yield origin.fault("compute.source", "'file'", allowed)
    if compute is not None and compute.measured_step is not None:
        allowed = "nothing with parallel: it is a step of the whole model on one GPU"
        yield origin.fault("compute.measured_step", "a step", allowed)


def _plan_is_valid(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    plan = parts.get("plan")
    for field, text, allowed in () if plan is None else plan_faults(plan):
        yield origin.fault(f"plan.{field}", text, allowed)


_RULES = (
    _files_exist, _transformer_fits, _sizes_fit, _batch_divides, _one_node_only, _overlap_exists,
    _recompute_within_units, _masters_kept, _mixes, _auto_chooses,
    _computes_in_param_dtype, _float8_fits,
    _float8_gathers_fit, _network_given, _jobs_fit, _placement_has_choice, _job_names_differ,
    _events_fit, _servers_fit, _plan_is_valid,
)  # fmt: skip
