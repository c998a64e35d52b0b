"""What there is by name, with a line on each: for commands, and for the tool ``names``."""

from __future__ import annotations

from typing import Literal, get_args

from perfmodel.files import list_shipped, read_text, read_yaml
from perfmodel.files.read import first_comment

Kind = Literal[
    "scenarios", "models", "machines", "fabrics", "gpus", "libraries", "strategies", "profiles"
]


def scenario_questions() -> dict[str, str]:
    """Return the question of each shipped scenario."""
    return {
        name: first_comment(read_text(path)) for name, path in list_shipped("scenarios").items()
    }


def topology_rows() -> list[dict[str, str]]:
    """Return name, kind and description of each shipped file that describes hardware."""
    return [
        {"name": name, "kind": str(file["kind"]), "description": str(file.get("description", ""))}
        for name, path in list_shipped("topologies").items()
        for file in [read_yaml(path)]
    ]


def describe_names(kind: Kind) -> dict[str, str]:
    """Return a line on each thing of a kind, by the name that questions call it by."""
    if kind == "scenarios":
        return scenario_questions()
    if kind == "models":
        from perfmodel.workload import load_workload, zoo_names

        return {
            model.name: f"{model.parameters:,} parameters; one sample: {model.sample}"
            for model in map(load_workload, zoo_names())
        }
    if kind == "gpus":
        from perfmodel.topology.templates.gpus import gpu_names, load_gpu
        from perfmodel.units import format_bandwidth, format_bytes

        return {
            gpu.name: f"{gpu.generation}, {format_bytes(gpu.memory_bytes)} of memory, "
            f"{format_bandwidth(gpu.memory_Bps)}"
            for gpu in map(load_gpu, gpu_names())
        }
    if kind == "libraries":
        from perfmodel.library.model import load_library
        from perfmodel.scenario.sections.cluster import LibrarySection

        return {
            name: load_library(name).description
            for name in get_args(LibrarySection.model_fields["name"].annotation)
        }
    if kind == "strategies":
        from perfmodel.scenario.strategies.strategy import StrategySection

        return {
            get_args(section.model_fields["kind"].annotation)[0]: section.__doc__.split("\n")[0]
            for section in get_args(get_args(StrategySection)[0])
        }
    return {
        row["name"].rpartition("/")[2]: row["description"]
        for row in topology_rows()
        if row["kind"] == {"machines": "node", "fabrics": "fabric", "profiles": "profile"}[kind]
    }
