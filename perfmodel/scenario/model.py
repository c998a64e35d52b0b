"""A scenario as a whole: its sections, its sizes, its digest, and errors about its fields."""

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated, Literal

from pydantic import Field, PrivateAttr

from perfmodel.errors import Fault, InputError, changed_faults, raise_faults
from perfmodel.files import FileModel
from perfmodel.scenario.sections.base import Name
from perfmodel.scenario.sections.cluster import ClusterSection, LibrarySection
from perfmodel.scenario.sections.events import EventSection, OtherJob
from perfmodel.scenario.sections.model import ModelSection
from perfmodel.scenario.sections.parallel import ParallelSection
from perfmodel.scenario.sections.plan import PlanSection
from perfmodel.scenario.sections.training import ComputeSection, ScaleSection, TrainingSection
from perfmodel.scenario.sections.variants import SweepSection, WhatIf
from perfmodel.scenario.source_map import SourceMap, format_fields
from perfmodel.scenario.strategies.ddp import DdpStrategy
from perfmodel.scenario.strategies.strategy import StrategySection

_MOST_DIVISORS = 8
"""Products of degrees that a message lists."""


class Scenario(FileModel):
    """A training job: its model, strategy and hardware, by name, and what to compute of it."""

    perfmodel: Literal[1] = Field(default=1, description="version of this file format")
    model: ModelSection
    compute: ComputeSection
    strategy: StrategySection = DdpStrategy()
    parallel: ParallelSection = ParallelSection()
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
    fidelity: Literal["flow", "message", "reference"] = "flow"
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
        """First comment line of its file, and what flags changed since it was asked."""
        asked, changes = self._origin.question, self._origin.changes
        return f"{asked} Changed: {format_fields(changes)}." if asked and changes else asked

    def data_ranks(self, gpus: int) -> int:
        """Count data-parallel ranks, each with micro-batches of its own, among some GPUs.

        Raises `InputError`: the degrees of model parallelism do not divide them.
        """
        shared = self.parallel.gpus_per_replica
        if gpus % shared:
            degrees = ", ".join(f"{name} {n}" for name, n in self.parallel.degrees.items() if n > 1)
            divisors = [str(n) for n in range(1, gpus + 1) if gpus % n == 0]
            more = ["..."] if len(divisors) > _MOST_DIVISORS else []
            listed = ", ".join(divisors[:_MOST_DIVISORS] + more)
            raise self.fault(
                "parallel",
                f"{degrees}: {shared} GPUs together",
                f"degrees whose product divides the {gpus} GPUs: {listed}",
            )
        return gpus // shared

    def fault(self, field: str, found: str, allowed: str) -> InputError:
        """Return an error about a dotted field that names its file and line, or its flag."""
        return InputError(self._origin.fault(field, found, allowed))

    def refuse_if(self, fails: object, field: str, found: str, allowed: str) -> None:
        """Raise the error about a dotted field where a check fails."""
        if fails:
            raise self.fault(field, found, allowed)

    def with_origin(self, origin: SourceMap) -> "Scenario":
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
    """Cluster sizes by growing number of GPUs; the last one, the whole cluster, is the main size.

    Where a flag gave the cluster's size, sizes of the file's ``scale`` beyond it are left out
    (`sizes_left_out`); beside a cluster of the same file they are faults.

    Parameters
    ----------
    gpus_in_node : int
        GPUs that the node template has.

    Raises
    ------
    InputError
        More GPUs than the node or the cluster has, or a size that leaves a node half used.
    """
    cluster, scale = scenario.cluster, scenario.scale
    per_node = cluster.gpus_per_node or gpus_in_node
    scenario.refuse_if(
        per_node > gpus_in_node,
        "cluster.gpus_per_node",
        str(per_node),
        f"at most {gpus_in_node}, as {cluster.node} has",
    )
    whole = ClusterSize(per_node * cluster.nodes, cluster.nodes, per_node)
    scenario.data_ranks(whole.gpus)
    pipeline, shared = scenario.parallel.pipeline, scenario.parallel.gpus_per_replica
    scenario.refuse_if(
        pipeline.one_process and per_node % pipeline.stages,
        "parallel.pipeline.stages",
        str(pipeline.stages),
        f"a divisor of the {per_node} GPUs of a node, of which one process drives so many",
    )
    if scale is None or cluster.graph is not None:
        return (whole,)
    smaller = _smaller_sizes(scenario, scale, whole)
    uneven = next((size.gpus for size in smaller if size.gpus % shared), None)
    scenario.refuse_if(
        uneven is not None,
        "scale",
        f"{uneven} GPUs",
        f"sizes of the curve that are multiples of {shared} GPUs (parallel)",
    )
    return (*smaller, whole)


def _smaller_sizes(
    scenario: Scenario, scale: ScaleSection, whole: ClusterSize
) -> tuple[ClusterSize, ...]:
    """Sizes of the curve below the whole cluster."""
    origin, per_node = scenario.origin, whole.gpus_per_node
    if scale.nodes is not None:
        return tuple(ClusterSize(per_node * n, n, per_node) for n in scale.nodes if n < whole.nodes)
    allowed = (
        f"1 to {per_node}, or whole nodes of {per_node} up to the {whole.gpus} GPUs of this cluster"
    )
    raise_faults(
        origin.fault(f"scale.gpus.{at}", str(gpus), allowed)
        for at, gpus in enumerate(scale.gpus or ())
        if (gpus > per_node and gpus % per_node)
        or (gpus > whole.gpus and not is_resized_by_flag(origin))
    )
    return tuple(
        ClusterSize(gpus, max(1, gpus // per_node), min(gpus, per_node))
        for gpus in scale.gpus or ()
        if gpus < whole.gpus
    )


def is_resized_by_flag(origin: SourceMap) -> bool:
    """Whether flags gave the size of the cluster, and not the sizes of its curve."""
    size = ("cluster.node", "cluster.nodes", "cluster.gpus_per_node")
    curve = ("scale", "scale.gpus", "scale.nodes")
    return any(map(origin.from_flag, size)) and not any(map(origin.from_flag, curve))


def sizes_left_out(scenario: Scenario, whole: ClusterSize) -> tuple[str, ...]:
    """Say which sizes of ``scale`` the cluster is too small for, in one sentence; none if none.

    `whole`: the main size of the scenario.
    """
    scale = scenario.scale
    if scale is None:
        return ()
    if scenario.cluster.graph is not None:
        return ("Sizes of the curve are left out: a graph is one cluster.",)
    unit, most = ("GPUs", whole.gpus) if scale.gpus else ("nodes", whole.nodes)
    larger = ", ".join(str(size) for size in scale.gpus or scale.nodes or () if size > most)
    left_out = f"Sizes beyond the {most} {unit} of the cluster are left out: {larger}."
    return (left_out,) if larger else ()


def batch_per_gpu(scenario: Scenario, gpus: int) -> int:
    """Return the samples of one forward pass of a data-parallel rank when `gpus` GPUs train.

    Raises
    ------
    InputError
        The global batch does not divide.
    """
    training = scenario.training
    if training.batch_per_gpu is not None:
        return training.batch_per_gpu
    ranks = scenario.data_ranks(gpus)
    total, micro_batches = training.global_batch or 0, ranks * scenario.strategy.accumulate
    unit = "GPUs" if scenario.parallel.gpus_per_replica == 1 else "data-parallel ranks"
    allowed = divisible_by((ranks,), scenario.strategy.accumulate, unit)
    scenario.refuse_if(total % micro_batches, "training.global_batch", str(total), allowed)
    return total // micro_batches


def divisible_by(sizes: Sequence[int], steps: int, unit: str = "GPUs") -> str:
    """Phrase for a fault: a multiple of the micro-batches of a step at every size.

    Examples
    --------
    >>> divisible_by([2, 4, 6], 1)
    'a multiple of 12 (to split over 2, 4, 6 GPUs)'
    """
    over = ", ".join(str(ranks) for ranks in sizes)
    micro = f" and {steps} micro-steps" if steps > 1 else ""
    return f"a multiple of {math.lcm(*sizes) * steps} (to split over {over} {unit}{micro})"


_NOT_IN_DIGEST = frozenset({"sweep", "plan"})
"""Sections that other commands than `run` read."""

_LATER_SOURCES: Mapping[str, object] = dict.fromkeys(
    ("transformer", "config", "megatron", "tokens", "adapters", "document_length")
)
"""Newer fields of models, those of other jobs as well."""

_LATER_SHAPES: Mapping[str, object] = dict.fromkeys(
    (
        "dims",
        "dimensions",
        "groups",
        "routers_per_group",
        "hosts_per_router",
        "trunk_cables",
        "global_cables",
    )
)
"""Newer fields of fabrics."""

_LATER_FIELDS: Mapping[str, Mapping[str, object]] = {
    "model": {"experts": None, **_LATER_SOURCES},
    "cluster": {"graph": None},
    "library": {"workers": None, "host_step": None},
    "compute": {
        "compiled": False,
        "cuda_graphs": False,
        "fp8": None,
        "fused_loss": False,
        "gpu_spread": None,
        "master_weights": True,
        "measured_step": None,
        "optimizer_kernels": "foreach",
        "offload_activations": "none",
        "recompute": "none",
    },
    "strategy": {
        "batched_grad_copy": False,
        "process_group_gpus": None,
        "distributed_optimizer": False,
        "join": False,
        "layer_wise_distributed_optimizer": False,
        "throw_on_early_termination": False,
        "joined_gpus": 0,
        "mixed_precision": None,
        "offload_optimizer": None,
        "offload_param": None,
        "buckets": True,
    },
}
"""Newer fields by section, with their defaults: scenarios without them keep their digests."""


def scenario_digest(scenario: Scenario) -> str:
    """SHA-256 of the canonical JSON of the fields that `run` reads.

    Comments, order and file name do not change it; files that the scenario names are not part.
    """
    content = scenario.model_dump(mode="json", exclude=set(_NOT_IN_DIGEST))
    if scenario.what_if is None or not scenario.what_if.changes:
        del content["what_if"]
    if scenario.parallel == ParallelSection():
        del content["parallel"]
    sections = [(content[name], fields) for name, fields in _LATER_FIELDS.items()]
    sections += [(job["model"], _LATER_SOURCES) for job in content["jobs"]]
    sections.append((content["cluster"]["fabric"] or {}, _LATER_SHAPES))
    for section, fields in sections:
        for name, default in fields.items():
            if name in section and section[name] == default:
                del section[name]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


# ---------------------------------------------------------------- errors of lower layers

_FIELD_OF_PARAMETER = {
    "topology": "cluster.node",
    "hosts": "cluster.nodes",
    "gpus_per_host": "cluster.gpus_per_node",
    "fabric": "cluster.fabric",
    "library": "library.name",
    "protocol": "library.protocol",
    "env.NCCL_ALGO": "library.algorithm",
    "env.NCCL_PROTO": "library.protocol",
    "profile": "profile",
    "precision": "compute.precision",
    "batch": "training.batch_per_gpu",
    "fidelity": "fidelity",
}
"""Fields of the scenario behind the parameters of the functions that read them."""


def relocated_errors(
    scenario: Scenario, section: str, also: Mapping[str, str] = MappingProxyType({})
) -> AbstractContextManager[None]:
    """Add the scenario's file, line and field to errors of a lower layer.

    Faults in another file (a node template, a model file) keep their place.
    """
    fields = {**_FIELD_OF_PARAMETER, "model": f"model.{scenario.model.source}", **also}

    def relocate(fault: Fault) -> Fault:
        field = fault.field
        if fault.file or field.startswith("--set "):
            return fault
        first, dot, _ = field.partition(".")
        if not (dot and first in Scenario.model_fields):  # a lower layer's parameter
            field = fields.get(field, f"{section}.{field}")
        return scenario.origin.fault(field, fault.found, fault.allowed)

    return changed_faults(relocate)
