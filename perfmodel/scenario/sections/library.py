"""Section ``library``: the communication library and its settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BeforeValidator, Field

from perfmodel.collectives.catalog import NCCL_ALGO_NAMES
from perfmodel.files import FileModel, Latency, Parts
from perfmodel.scenario.sections.base import Name

Word = Annotated[
    str,
    BeforeValidator(
        lambda v: str(int(v)) if isinstance(v, bool | int) else v, json_schema_input_type=str | int
    ),
]
"""Text; a whole number may stand without quotes."""


def _check_processes(value: object) -> object:
    if value == "per-host":
        raise ValueError(
            "'per-gpu', as DistributedDataParallel has them; one process that drives a host is "
            "`perfmodel collective --one-process`, or strategy.kind: data_parallel"
        )
    return value


Channels = Annotated[Parts, Field(le=1024)]
"""Parallel rings or trees; NCCL has 64 at most (MAXCHANNELS)."""


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
    channels: Channels | None = Field(
        default=None, description="default: what the library would choose"
    )
    credits: Parts | None = Field(
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
    processes: Annotated[Literal["per-gpu"], BeforeValidator(_check_processes)] = Field(
        default="per-gpu", description="one for each GPU, as DistributedDataParallel has them"
    )
    workers: Parts | None = Field(
        default=None, description="collectives in progress at once; default: the library's"
    )
    host_step: Latency | None = Field(
        default=None,
        description="what a step costs a process on a CPU beyond layers, collectives and the "
        "memory of gradients; default: the library's",
    )
