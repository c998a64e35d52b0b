"""A scenario as a whole: its sections, its sizes, its digest."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr

from perfmodel.errors import InputError
from perfmodel.files import FileModel
from perfmodel.scenario.sections.base import Name
from perfmodel.scenario.sections.cluster import ClusterSection
from perfmodel.scenario.sections.events import EventSection, OtherJob
from perfmodel.scenario.sections.library import LibrarySection
from perfmodel.scenario.sections.plan import PlanSection
from perfmodel.scenario.sections.strategy import DdpStrategy, StrategySection
from perfmodel.scenario.sections.sweep import SweepSection
from perfmodel.scenario.sections.training import (
    ComputeSection,
    ModelSection,
    ScaleSection,
    TrainingSection,
)
from perfmodel.scenario.sections.what_if import WhatIf
from perfmodel.scenario.source_map import SourceMap


class Scenario(FileModel):
    """A training job: its model, strategy and hardware, by name, and what to compute of it."""

    perfmodel: Literal[1] = Field(description="version of this file format")
    model: ModelSection
    compute: ComputeSection
    strategy: StrategySection = DdpStrategy()
    cluster: ClusterSection
    training: TrainingSection
    scale: ScaleSection | None = None
    events: tuple[EventSection, ...] = Field(
        default=(), description="what goes wrong, and what else moves"
    )
    jobs: tuple[OtherJob, ...] = Field(default=(), description="other jobs on the same network")
    library: LibrarySection = LibrarySection()
    profile: Name | None = Field(
        default=None, description="measured numbers, by name or file: see `perfmodel calibrate`"
    )
    what_if: WhatIf | None = Field(
        default=None, description="factors on the machine: twice the network, no latency"
    )
    sweep: SweepSection | None = Field(
        default=None, description="variants of this scenario, for `perfmodel sweep`"
    )
    plan: PlanSection | None = Field(
        default=None, description="candidate clusters for a target, for `perfmodel plan`"
    )
    fidelity: Literal["flow", "message"] = "flow"
    seed: Annotated[int, Field(strict=True, ge=0)] = 0

    _origin: SourceMap = PrivateAttr(default_factory=SourceMap)

    @property
    def origin(self) -> SourceMap:
        """File, lines and flags that it came from."""
        return self._origin

    @property
    def name(self) -> str:
        """Name of its file."""
        return self._origin.name

    @property
    def question(self) -> str:
        """First comment line of its file."""
        return self._origin.question

    @property
    def accumulate(self) -> int:
        """Micro-steps per training step."""
        return self.strategy.accumulate

    def locate(self, field: str) -> tuple[str | None, int | None]:
        """File and line of a dotted field."""
        return self._origin.locate(field)

    def fault(self, field: str, found: str, allowed: str) -> InputError:
        """Return an error about a dotted field that names its file and line, or its flag."""
        return InputError(self._origin.fault(field, found, allowed))

    def with_origin(self, origin: SourceMap) -> Scenario:
        """Return the same scenario with another source map."""
        copy = self.model_copy()
        copy._origin = origin
        return copy


@dataclass(frozen=True, slots=True)
class ClusterSize:
    """One size of the cluster: `gpus` in all, on `nodes` nodes, `gpus_per_node` used in each."""

    gpus: int
    nodes: int
    gpus_per_node: int


def sizes(scenario: Scenario, gpus_in_node: int) -> tuple[ClusterSize, ...]:
    """Cluster sizes by growing number of GPUs; the last one is the main size of the scenario.

    Parameters
    ----------
    gpus_in_node : int
        GPUs that the node template has.

    Raises
    ------
    InputError
        More GPUs than the node or the cluster has, or a size that leaves a node half used.
    """
    cluster, scale, origin = scenario.cluster, scenario.scale, scenario.origin
    per_node = cluster.gpus_per_node or gpus_in_node
    if per_node > gpus_in_node:
        raise scenario.fault(
            "cluster.gpus_per_node", str(per_node), f"at most {gpus_in_node}, as {cluster.node} has"
        )
    if scale is None:
        return (ClusterSize(per_node * cluster.nodes, cluster.nodes, per_node),)
    if scale.nodes is not None:
        return tuple(ClusterSize(per_node * nodes, nodes, per_node) for nodes in scale.nodes)
    gpu_counts = scale.gpus or ()
    total = per_node * cluster.nodes
    faults = [
        origin.fault(f"scale.gpus.{i}", str(gpus), _allowed_gpus(per_node, total))
        for i, gpus in enumerate(gpu_counts)
        if gpus > total or (gpus > per_node and gpus % per_node)
    ]
    if faults:
        raise InputError(faults)
    return tuple(
        ClusterSize(gpus, max(1, gpus // per_node), min(gpus, per_node)) for gpus in gpu_counts
    )


def _allowed_gpus(per_node: int, total: int) -> str:
    return f"1 to {per_node}, or whole nodes of {per_node} up to the {total} GPUs of this cluster"


def batch_per_gpu(scenario: Scenario, gpus: int) -> int:
    """Return the samples of one forward pass on one GPU when `gpus` of them train.

    Raises
    ------
    InputError
        The global batch does not divide.
    """
    training = scenario.training
    if training.batch_per_gpu is not None:
        return training.batch_per_gpu
    total, micro_batches = training.global_batch or 0, gpus * scenario.accumulate
    if total % micro_batches:
        raise scenario.fault(
            "training.global_batch", str(total), divisible_by((gpus,), scenario.accumulate)
        )
    return total // micro_batches


def divisible_by(sizes: Sequence[int], steps: int) -> str:
    """Phrase for a fault: a multiple of the micro-batches of a step at every size.

    Examples
    --------
    >>> divisible_by([2, 4, 6], 1)
    'a multiple of 12 (to split over 2, 4, 6 GPUs)'
    """
    over = ", ".join(str(gpus) for gpus in sizes)
    micro = f" and {steps} micro-steps" if steps > 1 else ""
    return f"a multiple of {math.lcm(*sizes) * steps} (to split over {over} GPUs{micro})"


_NOT_IN_DIGEST = frozenset({"sweep", "plan"})
"""Sections that do not change the result of `run`."""

_LATER_LIBRARY_FIELDS = ("workers", "host_step")
"""Newer fields of `library`: scenarios without them keep their digests."""


def scenario_digest(scenario: Scenario) -> str:
    """SHA-256 of the canonical JSON of the fields that `run` reads.

    Comments, order and file name do not change it; files that the scenario names are not part.
    """
    content = scenario.model_dump(mode="json", exclude=set(_NOT_IN_DIGEST))
    if scenario.what_if is None or not scenario.what_if.changes:
        del content["what_if"]
    for name in _LATER_LIBRARY_FIELDS:
        if content["library"][name] is None:
            del content["library"][name]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()
