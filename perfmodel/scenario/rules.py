"""Faults between sections that need nothing but the file, found even if other sections fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from perfmodel.errors import Fault
from perfmodel.scenario.model import Scenario, divisible_by
from perfmodel.scenario.origin import Origin
from perfmodel.scenario.sections import (
    ClusterSection,
    ComputeSection,
    DataParallelStrategy,
    ModelSection,
    ScaleSection,
    Strategy,
    TrainingSection,
)

_SECTIONS: Mapping[str, TypeAdapter[Any]] = {
    "model": TypeAdapter(ModelSection),
    "compute": TypeAdapter(ComputeSection),
    "strategy": TypeAdapter(Strategy),
    "cluster": TypeAdapter(ClusterSection),
    "training": TypeAdapter(TrainingSection),
    "scale": TypeAdapter(ScaleSection),
}


def broken_rules(content: Mapping[str, Any], origin: Origin) -> list[Fault]:
    """Faults between sections; a section that is itself faulty is left out.

    Parameters
    ----------
    content : mapping
        The file with its overrides, as plain values.
    """
    parts: dict[str, Any] = {}
    for name, adapter in _SECTIONS.items():
        try:
            parts[name] = adapter.validate_python(content[name])
        except (KeyError, ValidationError):
            continue
    if "strategy" not in content:
        parts["strategy"] = Scenario.model_fields["strategy"].default
    faults: list[Fault] = []
    for rule in (_files_exist, _sizes_fit, _batch_divides, _one_node_only, _network_given):
        faults += rule(parts, origin)
    return faults


def _files_exist(parts: Mapping[str, Any], origin: Origin) -> Iterator[Fault]:
    for section, key in (("model", "file"), ("compute", "times")):
        value = getattr(parts.get(section), key, None)
        if value is not None and not origin.resolve(f"{section}.{key}", value).is_file():
            path: Path = origin.resolve(f"{section}.{key}", value)
            why = "which is a folder" if path.is_dir() else "and there is no such file"
            yield origin.fault(f"{section}.{key}", f"{str(path)!r}, {why}", "a readable file")


def _sizes_fit(parts: Mapping[str, Any], origin: Origin) -> Iterator[Fault]:
    cluster, scale = parts.get("cluster"), parts.get("scale")
    if cluster is None or scale is None:
        return
    for i, nodes in enumerate(scale.nodes or ()):
        if nodes > cluster.nodes:
            allowed = f"at most {cluster.nodes}, the nodes of this cluster"
            yield origin.fault(f"scale.nodes.{i}", str(nodes), allowed)
    most = cluster.nodes * (cluster.gpus_per_node or 0)
    for i, gpus in enumerate(scale.gpus or ()):
        if most and gpus > most:
            allowed = f"at most {most}, the GPUs of this cluster"
            yield origin.fault(f"scale.gpus.{i}", str(gpus), allowed)


def _batch_divides(parts: Mapping[str, Any], origin: Origin) -> Iterator[Fault]:
    training, scale, cluster = (parts.get(name) for name in ("training", "scale", "cluster"))
    if training is None or training.global_batch is None:
        return
    each = None if cluster is None else cluster.gpus_per_node
    if scale is not None:
        counts = scale.gpus or tuple(nodes * each for nodes in scale.nodes or () if each)
    else:
        counts = (cluster.nodes * each,) if cluster and each else ()
    steps = getattr(parts.get("strategy"), "accumulate", 1)
    if any(training.global_batch % (gpus * steps) for gpus in counts):
        allowed = divisible_by(counts, steps)
        yield origin.fault("training.global_batch", str(training.global_batch), allowed)


def _one_node_only(parts: Mapping[str, Any], origin: Origin) -> Iterator[Fault]:
    cluster = parts.get("cluster")
    if isinstance(parts.get("strategy"), DataParallelStrategy) and cluster and cluster.nodes > 1:
        allowed = "1 with strategy.kind: data_parallel, which drives the GPUs of one node"
        yield origin.fault("cluster.nodes", str(cluster.nodes), allowed)


def _network_given(parts: Mapping[str, Any], origin: Origin) -> Iterator[Fault]:
    cluster = parts.get("cluster")
    if cluster and cluster.nodes > 1 and cluster.fabric is None:
        allowed = f"the network between the {cluster.nodes} nodes, such as 'rail-optimised'"
        yield origin.fault("cluster.fabric", "nothing", allowed)
