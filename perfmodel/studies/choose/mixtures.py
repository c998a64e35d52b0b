"""Which mixtures there are: all combinations of the lists of a section ``auto``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, TypeVar

from perfmodel.files.spec import AS_WRITTEN
from perfmodel.scenario import ClusterSize, Scenario
from perfmodel.scenario.sections.strategies.auto import AutoStrategy
from perfmodel.scenario.sections.strategies.counts import MOST_MICRO_STEPS
from perfmodel.training.pipeline.schedules import SCHEDULES
from perfmodel.workload.memory.blocks import repeated_blocks
from perfmodel.workload.model import Workload

T = TypeVar("T")

MOST_STAGES = 64
"""Stages that are tried without a list: deeper pipelines than any published training has."""
LEAST_TOKENS = 8192
"""Tokens of a sample that a GPU has at least in context degrees tried without a list: as many as in
Llama 3's training on 131,072 with 16 GPUs (arXiv 2407.21783, table 4)."""
ENDS = 2
"""Embedding and loss, where they count as blocks."""
WHOLE_FROM = 3
"""Stage of ZeRO from which parameters are gathered in each pass."""


@dataclass(frozen=True, slots=True)
class MixtureCandidate:
    """One way to train.

    `sharding`: number of the data-parallel strategy in the section's list.
    `schedule`: None with one stage.
    `chunks`: None where the schedule has a number of its own.
    `ends_as_blocks`: embedding and loss count as a block each where blocks are dealt out.
    `bucket_size`: field of the data-parallel strategy and its value; None: as the list has it.
    """

    tensor: int
    sequence_parallel: bool
    context: int
    pipeline: int
    schedule: str | None
    chunks: int | None
    micro_batch: int
    micro_batches: int
    recompute: str
    sharding: int
    ends_as_blocks: bool = False
    expert: int = 1
    bucket_size: tuple[str, int | str] | None = None

    @property
    def parts(self) -> int:
        """Parts that the model is cut into."""
        if self.schedule is None:
            return 1
        row = SCHEDULES[self.schedule]
        both_ways = row.layout == "bidirectional"
        return self.pipeline * (1 if both_ways else self.chunks or row.chunks or 1)

    @property
    def gpus_per_replica(self) -> int:
        """GPUs that work on the same samples."""
        return self.tensor * self.context * self.pipeline

    def changes(self, section: AutoStrategy) -> dict[str, Any]:
        """Fields of the scenario that make it this mixture."""
        own = section.sharding[self.sharding]
        fields: dict[str, Any] = {
            "strategy": {
                "kind": own.kind,
                **own.model_dump(mode="json", exclude_defaults=True, context=AS_WRITTEN),
                **({} if self.bucket_size is None else dict([self.bucket_size])),
                "accumulate": self.micro_batches,
            },
            "compute.recompute": self.recompute,
        }
        if self.tensor > 1:
            fields["parallel.tensor"] = self.tensor
            fields["parallel.sequence_parallel"] = self.sequence_parallel
        if self.context > 1:
            fields["parallel.context"] = self.context
        if self.expert > 1:
            fields["parallel.expert"] = self.expert
        if self.pipeline > 1:
            pipeline: dict[str, Any] = {"stages": self.pipeline, "schedule": self.schedule}
            if self.chunks is not None:
                pipeline["chunks"] = self.chunks
            if self.ends_as_blocks:
                pipeline |= {"embedding_as_block": True, "loss_as_block": True}
            fields["parallel.pipeline"] = pipeline
        return fields

    def describe(self, section: AutoStrategy, data: int) -> str:
        """Write the mixture in words; `data`: data-parallel ranks."""
        parts = [f"tensor {self.tensor}" + " with sequence parallelism" * self.sequence_parallel]
        parts += [f"context {self.context}"] * (self.context > 1)
        parts += [f"expert {self.expert}"] * (self.expert > 1)
        if self.pipeline > 1:
            chunks = "" if self.chunks is None else f", {self.chunks} chunks each"
            assert self.schedule is not None
            parts.append(f"pipeline {self.pipeline} ({SCHEDULES[self.schedule].title}{chunks})")
        else:
            parts.append("pipeline 1")
        unit = "sample" if self.micro_batch == 1 else "samples"
        count = "micro-batch" if self.micro_batches == 1 else "micro-batches"
        own = section.sharding[self.sharding]
        name = "distributed optimizer" if shards_optimizer(own) else own.kind
        parts += [
            f"data {data} ({name})",
            f"{self.micro_batches} {count} of {self.micro_batch} {unit}",
            "no recomputation" if self.recompute == "none" else f"{self.recompute} recomputation",
        ]
        if self.bucket_size is not None:
            field, value = self.bucket_size
            size = value if isinstance(value, str) else f"{value / 1e6:g} million"
            parts.append(f"{field} {size}")
        return ", ".join(parts)


def shards_optimizer(section: Any) -> bool:
    """Whether a section is that of Megatron's distributed optimizer."""
    return bool(getattr(section, "use_distributed_optimizer", False))


def list_mixtures(
    scenario: Scenario, section: AutoStrategy, size: ClusterSize, workload: Workload
) -> tuple[list[MixtureCandidate], int]:
    """Mixtures whose degrees divide GPUs, batch and blocks, and how many others there are.

    Combinations that differ in what has no effect (a schedule with one stage) are one.
    """
    blocks = len(repeated_blocks(workload)) if workload.stream_elements else 0
    total = scenario.training.global_batch or 0
    tokens = scenario.model.sequence_length
    experts = scenario.model.experts
    expert_tensor = experts.tensor if experts else 1
    listed = [
        _fill(each, section, total, size.gpus, blocks, expert_tensor)
        for each in _combinations(section, size, tokens, _has_experts(workload))
    ]
    candidates = [each for each in listed if each is not None]
    return candidates, len(listed) - len(candidates)


def _fill(
    candidate: MixtureCandidate,
    section: AutoStrategy,
    total: int,
    gpus: int,
    blocks: int,
    expert_tensor: int,
) -> MixtureCandidate | None:
    """The candidate with the micro-batches of a global batch; None where degrees do not divide.

    `expert_tensor`: ranks that share each expert where a tensor group does.
    """
    own = section.sharding[candidate.sharding]
    shares_experts = _shares_experts(candidate, own, gpus, expert_tensor)
    if gpus % candidate.gpus_per_replica or not shares_experts:
        return None
    samples = gpus // candidate.gpus_per_replica * candidate.micro_batch
    if total % samples or total // samples > MOST_MICRO_STEPS:
        return None
    filled = replace(candidate, micro_batches=total // samples)
    if candidate.pipeline == 1:
        return filled
    if not _runs_in_pipelines(own):
        return None
    for ends in (0, ENDS):
        if blocks and (blocks + ends) % candidate.parts == 0 and blocks >= candidate.parts:
            return replace(filled, ends_as_blocks=ends > 0)
    return None


def _shares_experts(
    candidate: MixtureCandidate, section: Any, gpus: int, expert_tensor: int
) -> bool:
    """Whether experts can be shared so: Megatron and ``fully_shard`` reduce them by themselves.

    Ranks of a tensor group hold different experts, or all a part of each (`RankGrid`).
    """
    if candidate.tensor > 1 and expert_tensor not in {1, candidate.tensor}:
        return False
    if candidate.expert == 1:
        return True
    whole_groups = getattr(section, "shard_gpus", None) is None and isinstance(
        getattr(section, "reshard_after_forward", True), bool
    )
    sharding = section.kind == "fsdp" and section.version == 2 and whole_groups
    sharing = gpus // candidate.pipeline
    if expert_tensor > 1:
        sharing //= candidate.tensor
    return (section.kind == "megatron" or sharding) and sharing % candidate.expert == 0


def _runs_in_pipelines(section: Any) -> bool:
    """Whether passes can run in another order: nothing is gathered in each micro-batch."""
    return section.kind != "fsdp" and getattr(section, "stage", 0) < WHOLE_FROM


def _has_experts(workload: Workload) -> bool:
    return any(tensor.of_experts for tensor in workload.tensors)


def _combinations(
    section: AutoStrategy, size: ClusterSize, tokens: int | None, has_experts: bool
) -> Iterator[MixtureCandidate]:
    in_node = _powers_of_two(size.gpus_per_node)
    contexts = [n for n in in_node if n == 1 or (tokens or 0) >= n * LEAST_TOKENS]
    stages = [n for n in range(1, MOST_STAGES + 1) if size.gpus % n == 0]
    for tensor, context, expert, pipeline, micro_batch, recompute, sharding in product(
        _distinct(section.tensor or in_node),
        _distinct(section.context or contexts),
        _distinct(section.expert or (in_node if has_experts else (1,))),
        _distinct(section.pipeline or stages),
        _distinct(section.micro_batch),
        _distinct(section.recompute),
        range(len(section.sharding)),
    ):
        for is_parallel, (schedule, chunks) in product(
            _distinct(section.sequence_parallel) if tensor > 1 else (False,),
            _schedules(section) if pipeline > 1 else ((None, None),),
        ):
            yield MixtureCandidate(
                tensor=tensor,
                sequence_parallel=is_parallel,
                context=context,
                pipeline=pipeline,
                schedule=schedule,
                chunks=chunks,
                micro_batch=micro_batch,
                micro_batches=0,
                recompute=recompute,
                sharding=sharding,
                expert=expert,
            )


def _schedules(section: AutoStrategy) -> Iterator[tuple[str, int | None]]:
    for schedule in _distinct(section.schedules):
        if SCHEDULES[schedule].chunks is None:
            yield from ((schedule, chunks) for chunks in _distinct(section.chunks) if chunks > 1)
        else:
            yield schedule, None


def _powers_of_two(most: int) -> list[int]:
    return [2**n for n in range(most.bit_length()) if 2**n <= most]


def _distinct(values: Sequence[T]) -> list[T]:
    return list(dict.fromkeys(values))
