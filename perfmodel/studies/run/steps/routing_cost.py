"""What the static hash of a fabric costs, where flows collide in it.

InfiniBand fabrics may route adaptively, which the default, a hash of each flow (ECMP), is not: the
result names the routing where it makes collectives much slower.
"""

from __future__ import annotations

from dataclasses import replace

from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.resolved_scenario import ResolvedScenario
from perfmodel.studies.run.result import LinkUse, SizeResult
from perfmodel.studies.run.steps.simulate_step import timer_of
from perfmodel.studies.run.steps.sized_job import SizedJob
from perfmodel.units import format_bytes

FABRIC = "fabric/"
"""What names of switches begin with (`perfmodel.topology.fabric`)."""
MUCH = 1.1
"""Time of a collective with the hash over that without collisions, from which it is named."""


def describe_routing(
    inputs: ResolvedScenario, sized: SizedJob, point: SizeResult
) -> tuple[str, ...]:
    """Name the routing of the fabric where an all-reduce is much quicker with an adaptive one.

    Both are timed alone, for the largest bucket, and only where a link between switches is busier
    than any that a host has to the fabric: elsewhere nothing collides.
    """
    section = inputs.scenario.cluster.fabric
    if section is None or section.kind.endswith((".yaml", ".yml")) or not point.buckets:
        return ()
    if section.routing not in {None, "ecmp"} or not _collides(point.links):
        return ()
    adaptive = section.model_copy(update={"routing": "adaptive"})
    cluster = inputs.scenario.cluster.model_copy(update={"fabric": adaptive})
    scenario = inputs.scenario.model_copy(update={"cluster": cluster})
    machine = replace(inputs, scenario=scenario).ensemble_at(sized.size).likely
    nbytes, group = max(bucket.nbytes for bucket in point.buckets), sized.allocation.own
    hashed_s, spread_s = (
        timer.best("all_reduce", nbytes, group)[1]
        for timer in (timer_of(sized.setup(), ()), UncontendedTimer(machine))
    )
    if hashed_s <= MUCH * spread_s:
        return ()
    note = (
        "The fabric sends each flow one way by a static hash (ECMP), and flows collide: an "
        f"all-reduce of {format_bytes(nbytes)} alone takes {hashed_s / spread_s:.2g} times as long "
        "as with `cluster.fabric.routing: adaptive`."
    )
    return (note,)


def _collides(links: tuple[LinkUse, ...]) -> bool:
    """Whether a link between switches is busier than any between a host and the fabric."""
    inside = [use.utilisation for use in links if _ends_in_fabric(use) == 2]
    edges = [use.utilisation for use in links if _ends_in_fabric(use) == 1]
    return max(inside, default=0.0) > MUCH * max(edges, default=0.0) > 0.0


def _ends_in_fabric(use: LinkUse) -> int:
    return use.src.startswith(FABRIC) + use.dst.startswith(FABRIC)
