"""The sections of a scenario file: shapes, units and defaults; no unknown keys anywhere."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Field,
    GetJsonSchemaHandler,
    StringConstraints,
    model_validator,
)
from pydantic_core import CoreSchema

from perfmodel.collectives.catalog import NCCL_ALGO_NAMES
from perfmodel.files import Bytes, Count, FileModel, Seconds

Name = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Dtype = Literal["fp32", "fp16", "bf16"]
Switch = Annotated[bool, Field(strict=True)]
Word = Annotated[
    str,
    BeforeValidator(
        lambda v: str(int(v)) if isinstance(v, bool | int) else v, json_schema_input_type=str | int
    ),
]
"""Text; a whole number may stand without quotes."""
Index = Annotated[int, Field(strict=True, ge=0)]
"""A rank, a node or a step, counted from 0."""
Placement = Literal["packed", "spread", "random"]
"""Which of the free nodes a job gets: neighbours, evenly spread ones, or any (by `seed`)."""


class ModelSection(FileModel):
    """What is trained: a model of the zoo by `name`, or a parameter list in `file`.

    `dtype` is that of parameters and gradients (default fp32; a file states its own);
    `compute.precision` is that of the arithmetic.
    """

    name: Name | None = Field(
        default=None, description="a model of the zoo: see `perfmodel models`"
    )
    file: Name | None = Field(
        default=None,
        description="CSV or YAML of parameter tensors, relative to the scenario's folder",
    )
    dtype: Dtype | None = None
    sequence_length: Count | None = Field(
        default=None, description="tokens per sample, for transformers"
    )
    image_size: Count | None = Field(default=None, description="pixels per side, for vision models")

    @model_validator(mode="after")
    def _one_source(self) -> ModelSection:
        if (self.name is None) == (self.file is None):
            raise ValueError("either 'name' (of the zoo) or 'file' (of parameters), exactly one")
        return self


class ComputeSection(FileModel):
    """How long each layer takes: from the GPU's roofline, or from a file of measured times."""

    source: Literal["roofline", "file"] = "roofline"
    precision: Literal["bf16", "fp16", "tf32", "fp32"] = Field(
        description="of the matrix products; parameters keep `model.dtype`"
    )
    times: Name | None = Field(
        default=None, description="CSV of seconds per layer, relative to the scenario's folder"
    )
    overlap_slowdown: Annotated[float, Field(strict=True, ge=1)] | None = Field(
        default=None,
        description="factor on compute while a collective runs on the same GPU; default: the GPU's",
    )
    optimizer: Literal["sgd", "sgd-momentum", "adam", "adamw"] = "sgd-momentum"
    channels_last: Switch = Field(
        default=False, description="convolutions in NHWC, which spares tensor cores a transposition"
    )
    fused_attention: Switch = Field(
        default=True, description="attention as one kernel (scaled_dot_product_attention)"
    )

    @model_validator(mode="after")
    def _times_with_file(self) -> ComputeSection:
        if (self.source == "file") != (self.times is not None):
            raise ValueError("'times' together with 'source: file', and only then")
        return self


class DdpStrategy(FileModel):
    """DistributedDataParallel, with PyTorch's own names and defaults.

    With neither cap nor list the buckets are PyTorch's default (1 MiB first, then 25 MiB). An
    explicit `bucket_cap` drops the small first bucket unless `first_bucket` is given too, as in
    torch 2.13.
    """

    kind: Literal["ddp"] = "ddp"
    bucket_cap: Bytes | None = None
    first_bucket: Bytes | None = None
    bucket_caps: Annotated[tuple[Bytes, ...], Field(min_length=1)] | None = Field(
        default=None, description="one cap per bucket, the last one repeats (bucket_cap_mb_list)"
    )
    find_unused_parameters: Switch = False
    static_graph: Switch = False
    gradient_as_bucket_view: Switch = False
    broadcast_buffers: Switch = True
    accumulate: Count = Field(
        default=1, description="micro-steps per step; all but the last under no_sync"
    )
    hook: Literal["none", "fp16", "bf16"] = Field(
        default="none", description="gradient compression hook"
    )

    @model_validator(mode="after")
    def _caps_one_way(self) -> DdpStrategy:
        if self.bucket_caps is not None and (self.bucket_cap or self.first_bucket):
            raise ValueError("'bucket_caps', or 'bucket_cap' with 'first_bucket', not both")
        return self


class DataParallelStrategy(FileModel):
    """nn.DataParallel: one process drives all GPUs of one node; device 0 is the server."""

    kind: Literal["data_parallel"]


def _ddp_unless_named(value: object) -> object:
    return {"kind": "ddp", **value} if isinstance(value, Mapping) else value


Strategy = Annotated[
    Annotated[DdpStrategy | DataParallelStrategy, Field(discriminator="kind")],
    BeforeValidator(_ddp_unless_named),
]
"""Told apart by `kind`; DDP if there is none."""


class FabricSection(FileModel):
    """The network between nodes: a kind, and what differs from that kind's defaults."""

    kind: Name = Field(description="see `perfmodel topology list`")
    oversubscription: Annotated[float, Field(strict=True, ge=1)] | None = Field(
        default=None, description="bandwidth into a leaf switch over bandwidth out of it"
    )
    hosts_per_leaf: Count | None = None
    radix: Count | None = Field(default=None, description="ports of one switch")
    routing: Literal["ecmp", "rail", "adaptive"] | None = Field(
        default=None, description="how flows choose among equal ways; default: the fabric's"
    )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """Say that the kind alone, as a word, will do."""
        return {"anyOf": [{"type": "string", "minLength": 1}, handler(core_schema)]}


def _named(value: object) -> object:
    return {"kind": value} if isinstance(value, str) else value


Fabric = Annotated[FabricSection, BeforeValidator(_named)]
"""A network between nodes; its kind alone, as a word, will do."""


class MixedSection(FileModel):
    """Nodes of this job whose GPUs are others; links stay those of `cluster.node`."""

    nodes: Annotated[tuple[Index, ...], Field(min_length=1)] = Field(
        description="nodes of this job, counted from 0"
    )
    gpu: Name = Field(description="a GPU of `topologies/gpus.yaml`, such as 'v100-sxm2-32gb'")


class ClusterSection(FileModel):
    """The hardware: a node template, how many of them, and the network between them."""

    node: Name = Field(description="a node template by name or file: see `perfmodel topology list`")
    nodes: Count = Field(default=1, description="nodes of this job")
    gpus_per_node: Count | None = Field(
        default=None, description="how many of a node's GPUs are used"
    )
    fabric: Fabric | None = None
    pool: Count | None = Field(
        default=None,
        description="nodes on the network, those of this job among them; default: what `nodes` "
        "and `jobs` need",
    )
    placement: Placement = "packed"
    mixed: tuple[MixedSection, ...] = ()


class TrainingSection(FileModel):
    """The batch: per GPU and growing with the cluster (weak), or global and fixed (strong).

    `batch_per_gpu` counts the samples of one forward pass; with `strategy.accumulate` a step
    trains that many times more.
    """

    scaling: Literal["weak", "strong"] = Field(
        default="weak", description="default: weak with batch_per_gpu, strong with global_batch"
    )
    batch_per_gpu: Count | None = None
    global_batch: Count | None = None

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, data: Any) -> Any:
        if isinstance(data, Mapping) and "scaling" not in data:
            strong = data.get("global_batch") is not None
            return {**data, "scaling": "strong" if strong else "weak"}
        return data

    @model_validator(mode="after")
    def _batch_of_its_kind(self) -> TrainingSection:
        weak = self.scaling == "weak"
        if weak != (self.global_batch is None) or weak == (self.batch_per_gpu is None):
            wanted, other = ("batch_per_gpu", "global_batch")[:: 1 if weak else -1]
            raise ValueError(f"{wanted!r} and no {other!r} with scaling: {self.scaling}")
        return self


class ScaleSection(FileModel):
    """Sizes of the scaling curve, growing; the last one is the size that is asked about."""

    gpus: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None
    nodes: Annotated[tuple[Count, ...], Field(min_length=1)] | None = None

    @model_validator(mode="after")
    def _growing(self) -> ScaleSection:
        if (self.gpus is None) == (self.nodes is None):
            raise ValueError("either 'gpus' or 'nodes', exactly one list")
        sizes = self.gpus or self.nodes or ()
        if any(b <= a for a, b in itertools.pairwise(sizes)):
            raise ValueError("sizes that grow, such as [1, 2, 4, 8]")
        return self


if TYPE_CHECKING:
    AlgorithmName = str
else:
    AlgorithmName = Literal[("auto", *NCCL_ALGO_NAMES)]


class LibrarySection(FileModel):
    """The communication library, and what of its own choices to override."""

    name: Literal["nccl", "plain", "gloo", "mpi"] = "nccl"
    algorithm: AlgorithmName = Field(
        default="auto", description="of NCCL, as NCCL_ALGO would say; others have their own"
    )
    protocol: Literal["auto", "simple", "ll", "ll128"] = "auto"
    channels: Count | None = Field(
        default=None, description="default: what the library would choose"
    )
    credits: Count | None = Field(
        default=None,
        description="chunks in flight per edge; 1 makes each step wait for its latency",
    )
    version: Name | None = Field(
        default=None, description="of NCCL, such as '2.26.2'; default: the newest that is known"
    )
    env: dict[str, Word] = Field(
        default_factory=dict,
        description="NCCL's environment variables, such as NCCL_PROTO: Simple",
    )
    processes: Literal["per-gpu", "per-host"] = Field(
        default="per-gpu", description="whether one process drives all GPUs of a host"
    )
    workers: Count | None = Field(
        default=None, description="collectives in progress at once; default: the library's"
    )
    host_step: Seconds | None = Field(
        default=None,
        description="what a step costs a process on a CPU beyond layers, collectives and the "
        "memory of gradients; default: the library's",
    )
