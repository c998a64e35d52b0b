"""Faults between sections that need nothing but the file, found even if other sections fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perfmodel.errors import Fault, allowed_names
from perfmodel.files import is_file, is_folder
from perfmodel.scenario import strategy_rules
from perfmodel.scenario.model import Scenario, divisible_by, is_resized_by_flag
from perfmodel.scenario.sections.base import Row, mistakes
from perfmodel.scenario.sections.model import transformer_findings
from perfmodel.scenario.sections.plan import PlanSection
from perfmodel.scenario.source_map import SourceMap
from perfmodel.scenario.strategies.servers import server_nodes

Rule = Callable[[SimpleNamespace, SourceMap], Iterable[Row]]
"""Rows of mistakes, from sections by name, of which the optional ones may be None, and the file."""


# ---------------------------------------------------------------- the cluster


def sizes_fit(parts: SimpleNamespace, origin: SourceMap) -> Iterable[Row]:
    """Find sizes that the cluster does not have."""
    cluster, scale = parts.cluster, parts.scale
    if cluster.graph is not None:
        return [
            (
                not origin.from_flag("cluster.graph"),
                "scale",
                "sizes of a curve",
                "nothing beside cluster.graph, which is one cluster",
            )
        ]
    if is_resized_by_flag(origin):
        return []
    limits = {"nodes": cluster.nodes, "gpus": cluster.nodes * (cluster.gpus_per_node or 0)}
    units = {"nodes": "nodes", "gpus": "GPUs"}
    return [
        (
            most and size > most,
            f"scale.{name}.{at}",
            size,
            f"at most {most}, the {units[name]} of this cluster",
        )
        for name, most in limits.items()
        for at, size in enumerate(getattr(scale, name) or ())
    ]


def batch_divides(parts: SimpleNamespace, _: SourceMap) -> Iterable[Row]:
    """Find a global batch that the GPUs of some size cannot share evenly."""
    batch, per_node = parts.training.global_batch, parts.cluster.gpus_per_node
    if batch is None or per_node is None:
        return []
    whole, scale = parts.cluster.nodes * per_node, parts.scale
    curve = () if scale is None else scale.gpus or [nodes * per_node for nodes in scale.nodes]
    counts = (*(gpus for gpus in curve if gpus < whole), whole)
    steps = getattr(parts.strategy, "accumulate", 1)
    shared = 1 if parts.parallel is None else parts.parallel.gpus_per_replica
    if any(gpus % shared for gpus in counts):
        return []  # said where sizes are worked out
    ranks = tuple(gpus // shared for gpus in counts)
    allowed = divisible_by(ranks, steps, "GPUs" if shared == 1 else "data-parallel ranks")
    return [
        (any(batch % (count * steps) for count in ranks), "training.global_batch", batch, allowed)
    ]


def nodes_suffice(parts: SimpleNamespace, _: SourceMap) -> Iterable[Row]:
    """Find nodes without a network, a pool that is too small, and a placement without choice."""
    cluster = parts.cluster
    others = sum(job.nodes for job in parts.jobs or ()) + server_nodes(
        parts.strategy, parts.parallel
    )
    needed, pool = cluster.nodes + others, cluster.pool or 1
    nodes, jobs = max(needed, pool), " and its jobs" if parts.jobs else ""
    return [
        (
            cluster.fabric is None and nodes > 1,
            "cluster.fabric",
            "nothing",
            f"the network between the {nodes} nodes, such as 'rail-optimised'",
        ),
        (
            cluster.pool is not None and pool < needed,
            "cluster.pool",
            pool,
            f"at least {needed}, for this job{jobs}",
        ),
        (
            cluster.placement != "packed" and nodes == cluster.nodes,
            "cluster.placement",
            repr(cluster.placement),
            "'packed': all nodes are this job's; others need cluster.pool or jobs",
        ),
    ]


# ---------------------------------------------------------------- events and other jobs


def repeated_names(kind: str, names: list[str | None]) -> list[Row]:
    """Find names that stand twice in a list of sections; None is no name."""
    allowed = f"a name that no other of the {kind} has"
    return [
        (name is not None and name in names[:at], f"{kind}.{at}.name", repr(name), allowed)
        for at, name in enumerate(names)
    ]


def events_fit(parts: SimpleNamespace, _: SourceMap) -> Iterable[Row]:
    """Check nodes and ranks that events name, as far as the file alone gives their number."""
    cluster = parts.cluster
    per_node = cluster.gpus_per_node
    limits = {"nodes": cluster.nodes, "ranks": cluster.nodes * per_node if per_node else None}
    named = [(f"events.{at}.slow", event.slow) for at, event in enumerate(parts.events or ())]
    named += [(f"cluster.mixed.{at}", mixed) for at, mixed in enumerate(cluster.mixed)]
    mixed_nodes = [
        (f"cluster.mixed.{at}.nodes.{index}", node)
        for at, mixed in enumerate(cluster.mixed)
        for index, node in enumerate(mixed.nodes)
    ]
    before = [node for _, node in mixed_nodes]
    return [
        *(
            (
                limit is not None and number >= limit,
                f"{path}.{field}.{index}",
                number,
                f"0 to {(limit or 1) - 1}, the {field} of this job",
            )
            for path, section in named
            for field, limit in limits.items()
            for index, number in enumerate(getattr(section, field, None) or ())
        ),
        *(
            (node in before[:at], path, node, "each node once at most")
            for at, (path, node) in enumerate(mixed_nodes)
        ),
    ]


# ---------------------------------------------------------------- the plan


def plan_is_valid(parts: SimpleNamespace, _: SourceMap) -> Iterable[Row]:
    """Find faults between the parts of a plan."""
    return [
        (is_made, f"plan.{field}", found, allowed)
        for is_made, field, found, allowed in _plan_rows(parts.plan)
    ]


def _plan_rows(plan: PlanSection) -> Iterator[Row]:
    """Find mistakes between the parts of a plan, by fields within it."""
    currency, budget = plan.paid_in, plan.budget
    converted = f"{currency}, the currency of this plan: nothing is converted"
    for field, money in plan.money.items():
        yield money.currency != currency, field, f"{money.amount:g} {money.currency}", converted
    yield budget is not None and not budget.amount, "budget", f"0 {currency}", "more than zero"
    names = [candidate.name for candidate in plan.candidates]
    yield from repeated_names("candidates", [*names])
    yield from repeated_names("upgrades", [upgrade.name for upgrade in plan.upgrades])
    for index, candidate in enumerate(plan.candidates):
        field, nodes = f"candidates.{index}", candidate.nodes[-1]
        network = f"the network between the {nodes} nodes, such as 'rail-optimised'"
        yield candidate.fabric is None and nodes > 1, f"{field}.fabric", "nothing", network
        for name in ("mtbf_per_node", "spot"):
            unused = getattr(candidate, name) is not None and plan.failures is None
            yield unused, f"{field}.{name}", "no 'failures'", "'failures' beside it"
        unknown = plan.failures and not (plan.failures.mtbf_per_node or candidate.mtbf_per_node)
        rate = "a time such as '264 d', or 'prices: list' in the plan"
        yield unknown and plan.prices is None, "failures.mtbf_per_node", "nothing", rate
        yield from _change_rows(f"{field}.set", candidate.set or {})
    for index, upgrade in enumerate(plan.upgrades):
        yield from _change_rows(f"upgrades.{index}.set", upgrade.set, "plan.failures")
        for position, name in enumerate(upgrade.candidates or ()):
            field = f"upgrades.{index}.candidates.{position}"
            yield name not in names, field, repr(name), allowed_names(names, name)


_HARDWARE = {"cluster"} | {f"cluster.{n}" for n in ("node", "nodes", "gpus_per_node", "mixed")}
"""Fields that a candidate gives itself, together with their price and power."""


def _change_rows(field: str, changes: Mapping[str, Any], also: str = "") -> Iterator[Row]:
    """Find changes that no candidate may make: to its hardware, or outside the training step.

    `also`: a section of the plan whose fields may change as well.
    """
    a_field = "a field of a training step"
    within = f"{a_field}, or of {also}" if also else a_field
    for name in changes:
        place, section = f"{field}.{name}", name.partition(".")[0]
        is_own, is_outside = name in _HARDWARE, section in {"plan", "sweep", "perfmodel"}
        is_outside = is_outside and not (also and name.startswith(f"{also}."))
        other = f"{a_field}; other hardware is another candidate"
        yield is_own, place, "a field of the candidate itself", other
        yield is_outside, place, f"a field of {section!r}", within


# ---------------------------------------------------------------- the model and its files


def files_exist(parts: SimpleNamespace, origin: SourceMap) -> Iterator[Row]:
    """Find files of sections that do not exist."""
    keys = (("model", "file"), ("model", "config"), ("model", "megatron"), ("compute", "times"))
    for section, key in keys:
        value = getattr(getattr(parts, section), key, None)
        if value is None or (key == "megatron" and "--" in value):  # arguments themselves
            continue
        path: Path = origin.resolve(f"{section}.{key}", value)
        path = path / "config.json" if key == "config" and is_folder(path) else path
        problem = "which is a folder" if is_folder(path) else "and there is no such file"
        yield not is_file(path), f"{section}.{key}", f"{str(path)!r}, {problem}", "a readable file"


def transformer_fits(parts: SimpleNamespace, _: SourceMap) -> Iterable[Row]:
    """Find what does not go together in a transformer's shape."""
    section = parts.model.transformer
    findings = () if section is None else transformer_findings(section)
    return [(True, f"model.transformer.{name}", text, allowed) for name, text, allowed in findings]


# ---------------------------------------------------------------- all rules

_RULES: tuple[tuple[str, Rule], ...] = (
    ("", files_exist),
    ("model", transformer_fits),
    ("cluster scale", sizes_fit),
    ("training cluster", batch_divides),
    ("cluster strategy", strategy_rules.one_node_only),
    ("compute strategy parallel", strategy_rules.compute_suits),
    ("parallel", strategy_rules.tensor_fields_act),
    ("parallel strategy", strategy_rules.splits_models),
    ("parallel compute", strategy_rules.splits_times),
    ("strategy", strategy_rules.auto_chooses),
    ("compute", strategy_rules.float8_fits),
    ("cluster", nodes_suffice),
    ("jobs", lambda parts, _: repeated_names("jobs", [job.name for job in parts.jobs])),
    ("cluster", events_fit),
    ("strategy", strategy_rules.servers_fit),
    ("plan", plan_is_valid),
)
"""Sections that a rule cannot do without, and the rule, in the order in which faults are found."""

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
    named = [name for name in _SECTIONS if name in content]
    sound = (
        _sound_sections({name: content[name] for name in named})
        if scenario is None
        else {name: getattr(scenario, name) for name in named}
    )
    defaults = {name: Scenario.model_fields[name].default for name in ("strategy", "parallel")}
    others = {name: None if name in content else defaults.get(name) for name in _SECTIONS}
    parts = SimpleNamespace(**others | sound)
    return [
        origin.fault(*mistake)
        for needed, rule in _RULES
        if all(getattr(parts, name) is not None for name in needed.split())
        for mistake in mistakes(rule(parts, origin))
    ]


def _sound_sections(content: Mapping[str, Any]) -> dict[str, Any]:
    """Sections of a faulty file that can be read on their own."""
    parts: dict[str, Any] = {}
    for name, value in content.items():
        section: TypeAdapter[Any] = TypeAdapter(Scenario.model_fields[name].rebuild_annotation())
        with suppress(ValidationError):
            parts[name] = section.validate_python(value)
    return parts
