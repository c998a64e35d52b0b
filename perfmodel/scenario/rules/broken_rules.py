"""Faults between sections that need nothing but the file, found even if other sections fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perfmodel.errors import Fault
from perfmodel.files import is_file, is_folder
from perfmodel.scenario.model import Scenario
from perfmodel.scenario.rules import cluster_rules, plan_rules, precision_rules, strategy_rules
from perfmodel.scenario.sections.model import transformer_findings
from perfmodel.scenario.source_map import SourceMap

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
    cluster_rules.sizes_fit,
    cluster_rules.batch_divides,
    strategy_rules.one_node_only,
    strategy_rules.overlap_exists,
    strategy_rules.recompute_within_units,
    precision_rules.masters_kept,
    strategy_rules.tensor_fields_act,
    strategy_rules.mixes,
    strategy_rules.auto_chooses,
    precision_rules.computes_in_param_dtype,
    precision_rules.float8_fits,
    precision_rules.float8_gathers_fit,
    cluster_rules.network_given,
    cluster_rules.jobs_fit,
    cluster_rules.placement_has_choice,
    cluster_rules.job_names_differ,
    cluster_rules.events_fit,
    strategy_rules.servers_fit,
    plan_rules.plan_is_valid,
)
"""In the order in which their faults are found."""
