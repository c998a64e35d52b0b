"""Faults of sizes, nodes and jobs: what the file alone says of how much there is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perfmodel.errors import Fault
from perfmodel.scenario.model import divisible_by, is_resized_by_flag
from perfmodel.scenario.sections.strategies.parameter_server import server_nodes
from perfmodel.scenario.source_map import SourceMap


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
