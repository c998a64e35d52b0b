"""Faults between sections that need nothing but the file, found even if other sections fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perfmodel.errors import Fault, allowed_names
from perfmodel.files import is_file, is_folder
from perfmodel.scenario import strategy_rules
from perfmodel.scenario.model import Scenario, divisible_by, is_resized_by_flag
from perfmodel.scenario.sections.model import transformer_findings
from perfmodel.scenario.sections.plan import PlanSection
from perfmodel.scenario.source_map import SourceMap
from perfmodel.scenario.strategies.servers import server_nodes


def sizes_fit(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Find sizes that the cluster does not have."""
    cluster, scale = parts.get("cluster"), parts.get("scale")
    if cluster is None or scale is None:
        return
    if cluster.graph is not None and not origin.from_flag("cluster.graph"):
        allowed = "nothing beside cluster.graph, which is one cluster"
        yield origin.fault("scale", "sizes of a curve", allowed)
        return
    if cluster.graph is not None or is_resized_by_flag(origin):
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


def batch_divides(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Find a global batch that the GPUs of some size cannot share evenly."""
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


def network_given(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Find nodes without a network between them."""
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


def jobs_fit(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Find a pool that is smaller than the nodes of all jobs."""
    cluster = parts.get("cluster")
    if cluster is None or cluster.pool is None or cluster.pool >= _nodes_needed(parts):
        return
    needed = _nodes_needed(parts)
    jobs = " and its jobs" if parts.get("jobs") else ""
    yield origin.fault("cluster.pool", str(cluster.pool), f"at least {needed}, for this job{jobs}")


def placement_has_choice(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Refuse a placement where all nodes are of this job."""
    cluster = parts.get("cluster")
    if cluster is None or cluster.placement == "packed":
        return
    if max(_nodes_needed(parts), cluster.pool or 1) == cluster.nodes:
        allowed = "'packed': all nodes are this job's; others need cluster.pool or jobs"
        yield origin.fault("cluster.placement", repr(cluster.placement), allowed)


def job_names_differ(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Find jobs of the same name."""
    names: set[str] = set()
    for i, job in enumerate(parts.get("jobs", ())):
        if job.name is not None and job.name in names:
            yield origin.fault(f"jobs.{i}.name", repr(job.name), "a name that no other job has")
        names.add(job.name)


def events_fit(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
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


def plan_is_valid(parts: Mapping[str, Any], origin: SourceMap) -> Iterator[Fault]:
    """Find faults between the parts of a plan."""
    plan = parts.get("plan")
    for field, text, allowed in () if plan is None else _plan_faults(plan):
        yield origin.fault(f"plan.{field}", text, allowed)


def _plan_faults(plan: PlanSection) -> Iterator[tuple[str, str, str]]:
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
    "model",
    "compute",
    "strategy",
    "parallel",
    "cluster",
    "training",
    "scale",
    "events",
    "jobs",
    "plan",
    "library",
    "fidelity",
)


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
    """Find files of sections that do not exist."""
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
    """Find what does not go together in a transformer's shape."""
    section = getattr(parts.get("model"), "transformer", None)
    for field, text, allowed in () if section is None else transformer_findings(section):
        yield origin.fault(f"model.transformer.{field}", text, allowed)


_RULES = (
    _files_exist,
    _transformer_fits,
    sizes_fit,
    batch_divides,
    strategy_rules.one_node_only,
    strategy_rules.overlap_exists,
    strategy_rules.recompute_within_units,
    strategy_rules.masters_kept,
    strategy_rules.tensor_fields_act,
    strategy_rules.mixes,
    strategy_rules.auto_chooses,
    strategy_rules.computes_in_param_dtype,
    strategy_rules.float8_fits,
    strategy_rules.float8_gathers_fit,
    network_given,
    jobs_fit,
    placement_has_choice,
    job_names_differ,
    events_fit,
    strategy_rules.servers_fit,
    plan_is_valid,
)
"""In the order in which their faults are found."""
