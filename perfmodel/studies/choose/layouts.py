"""Which layouts there are, the job of each on one machine, and the causes of its step's time.

A layout is a set of parallel degrees with its batch, recomputation and data-parallel strategy;
there are all combinations of the lists of a section ``auto``.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from perfmodel.errors import InputError
from perfmodel.files.spec import AS_WRITTEN
from perfmodel.memo import T, once
from perfmodel.scenario import ClusterSize, Scenario, change_scenario
from perfmodel.scenario.sections.base import MOST_MICRO_STEPS
from perfmodel.scenario.strategies.strategy import AutoStrategy
from perfmodel.studies.run.resolve.resolved_scenario import ResolvedScenario, resolve_scenario
from perfmodel.studies.run.resolve.training_job import expert_ranks_per_node, resolve_share
from perfmodel.studies.run.steps.simulate_step import ReportedRun
from perfmodel.studies.run.steps.sized_job import (
    SizedJob,
    size_job,
)
from perfmodel.studies.run.steps.step_parts import (
    busiest_class,
    communicates,
    computes,
    intervals_of,
    spans_by_step,
)
from perfmodel.timeline import covered_s, exposed_s
from perfmodel.training.pipeline.schedules import SCHEDULES
from perfmodel.training.plan.step_plan import Dimension, dimension_of
from perfmodel.workload.memory.blocks import repeated_blocks
from perfmodel.workload.model import Workload

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile


MOST_STAGES = 64
"""Stages that are tried without a list: deeper pipelines than any published training has."""
LEAST_TOKENS = 8192
"""Tokens of a sample that a GPU has at least in context degrees tried without a list: as many as in
Llama 3's training on 131,072 with 16 GPUs (arXiv 2407.21783, table 4)."""
END_BLOCKS = 2
"""Embedding and loss, where they count as blocks."""
GATHERS_FROM_STAGE = 3
"""Stage of ZeRO from which parameters are gathered in each pass."""


@dataclass(frozen=True, slots=True)
class LayoutCandidate:
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
        """Fields of the scenario that make it this layout."""
        pipeline: dict[str, Any] = {"stages": self.pipeline, "schedule": self.schedule}
        pipeline |= {} if self.chunks is None else {"chunks": self.chunks}
        if self.ends_as_blocks:
            pipeline |= {"embedding_as_block": True, "loss_as_block": True}
        split = {
            "tensor": (self.tensor > 1, self.tensor),
            "sequence_parallel": (self.tensor > 1, self.sequence_parallel),
            "context": (self.context > 1, self.context),
            "expert": (self.expert > 1, self.expert),
            "pipeline": (self.pipeline > 1, pipeline),
        }
        return {
            "strategy": {
                **_as_written(section.sharding[self.sharding]),
                **({} if self.bucket_size is None else dict([self.bucket_size])),
                "accumulate": self.micro_batches,
            },
            "compute.recompute": self.recompute,
            **{f"parallel.{name}": value for name, (holds, value) in split.items() if holds},
        }

    def describe(self, section: AutoStrategy, data: int) -> str:
        """Write the layout in words; `data`: data-parallel ranks."""
        own, field, size = section.sharding[self.sharding], *(self.bucket_size or ("", ""))
        is_sharding = getattr(own, "use_distributed_optimizer", False)
        chunks = "" if self.chunks is None else f", {self.chunks} chunks each"
        schedule = f" ({SCHEDULES[self.schedule].title}{chunks})" if self.schedule else ""
        sequences = " with sequence parallelism" if self.sequence_parallel else ""
        parts = {
            f"tensor {self.tensor}{sequences}": True,
            f"context {self.context}": self.context > 1,
            f"expert {self.expert}": self.expert > 1,
            f"pipeline {self.pipeline}{schedule}": True,
            f"data {data} ({'distributed optimizer' if is_sharding else own.kind})": True,
            f"{self.micro_batches} {'micro-batch' if self.micro_batches == 1 else 'micro-batches'} "
            f"of {self.micro_batch} {'sample' if self.micro_batch == 1 else 'samples'}": True,
            f"{'no' if self.recompute == 'none' else self.recompute} recomputation": True,
            f"{field} {size if isinstance(size, str) else f'{size / 1e6:g} million'}": bool(field),
        }
        return ", ".join(part for part, is_said in parts.items() if is_said)


def _as_written(section: Any) -> dict[str, Any]:
    """Return a strategy's section as a file has it: its kind, and what is not by default."""
    return {
        "kind": section.kind,
        **section.model_dump(mode="json", exclude_defaults=True, context=AS_WRITTEN),
    }


def list_layouts(
    scenario: Scenario, section: AutoStrategy, size: ClusterSize, workload: Workload
) -> tuple[list[LayoutCandidate], int]:
    """Return layouts whose degrees divide GPUs, batch and blocks, and how many others there are.

    Combinations that differ in what has no effect (a schedule with one stage) are one.
    """
    blocks = len(repeated_blocks(workload)) if workload.stream_elements else 0
    total, experts = scenario.training.global_batch or 0, scenario.model.experts
    has_experts = any(tensor.of_experts for tensor in workload.tensors)
    listed = [
        _fill(each, section, total, size.gpus, blocks, experts.tensor if experts else 1)
        for each in _combinations(section, size, scenario.model.sequence_length, has_experts)
    ]
    candidates = [each for each in listed if each is not None]
    return candidates, len(listed) - len(candidates)


def _fill(
    candidate: LayoutCandidate,
    section: AutoStrategy,
    total: int,
    gpus: int,
    blocks: int,
    expert_tensor: int,
) -> LayoutCandidate | None:
    """Return the candidate with the micro-batches of a batch; None where degrees do not divide.

    `expert_tensor`: ranks that share each expert where a tensor group does.
    """
    own, replicas = section.sharding[candidate.sharding], gpus // candidate.gpus_per_replica
    shares = _shares_experts(candidate, own, gpus, expert_tensor)
    if gpus % candidate.gpus_per_replica or not shares:
        return None
    micro_batches, rest = divmod(total, replicas * candidate.micro_batch)
    if rest or micro_batches > MOST_MICRO_STEPS:
        return None
    filled = replace(candidate, micro_batches=micro_batches)
    if candidate.pipeline == 1:
        return filled
    # A strategy that gathers parameters in each pass cannot run passes in another order.
    gathers_in_passes = own.kind == "fsdp" or getattr(own, "stage", 0) >= GATHERS_FROM_STAGE
    if not blocks or blocks < candidate.parts or gathers_in_passes:
        return None
    ends = (n for n in (0, END_BLOCKS) if (blocks + n) % candidate.parts == 0)
    return next((replace(filled, ends_as_blocks=n > 0) for n in ends), None)


def _shares_experts(
    candidate: LayoutCandidate, section: Any, gpus: int, expert_tensor: int
) -> bool:
    """Return whether experts can be shared so: Megatron and ``fully_shard`` reduce them themselves.

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
    sharing = gpus // candidate.pipeline // (candidate.tensor if expert_tensor > 1 else 1)
    return (section.kind == "megatron" or sharding) and sharing % candidate.expert == 0


def _combinations(
    section: AutoStrategy, size: ClusterSize, tokens: int | None, has_experts: bool
) -> Iterator[LayoutCandidate]:
    in_node = [2**n for n in range(size.gpus_per_node.bit_length())]
    contexts = [n for n in in_node if n == 1 or (tokens or 0) >= n * LEAST_TOKENS]
    for tensor, context, expert, pipeline, micro_batch, recompute, sharding in product(
        _distinct(section.tensor or in_node),
        _distinct(section.context or contexts),
        _distinct(section.expert or (in_node if has_experts else (1,))),
        _distinct(section.pipeline or [n for n in range(1, MOST_STAGES + 1) if size.gpus % n == 0]),
        _distinct(section.micro_batch),
        _distinct(section.recompute),
        range(len(section.sharding)),
    ):
        for is_parallel, (schedule, chunks) in product(
            _distinct(section.sequence_parallel) if tensor > 1 else (False,),
            _schedules(section) if pipeline > 1 else ((None, None),),
        ):
            yield LayoutCandidate(
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


def _distinct(values: Sequence[T]) -> list[T]:
    return list(dict.fromkeys(values))


# ---------------------------------------------------------------- jobs of layouts


def result_or_error(work: Callable[[], T]) -> T | InputError:
    """Return a result, or the error instead of it, to be kept or sent like a result."""
    try:
        return work()
    except InputError as error:
        return error


def result_of(kept: T | InputError) -> T:
    """Return a kept result; raises the error that was kept instead."""
    if isinstance(kept, InputError):
        raise kept
    return kept


@dataclass
class LayoutJobs:
    """Jobs of layouts on one machine: models are cut, and collectives timed, once.

    `scenario`: with a global batch.
    `base`: the job as if nothing were split.
    `batch`: the section with that global batch where the user stated another one.
    """

    inputs: ResolvedScenario
    scenario: Scenario
    section: AutoStrategy
    base: SizedJob
    batch: Mapping[str, Any]
    _shares: dict[Hashable, Workload | InputError] = field(default_factory=dict)

    def make(self, candidate: LayoutCandidate) -> SizedJob:
        """Make the job of a layout; raises `InputError`: the model cannot be split so."""
        changed, size = change_scenario(self.scenario, self.changes(candidate)), self.base.size
        key = (
            candidate.tensor,
            candidate.context,
            candidate.expert,
            candidate.sequence_parallel,
            expert_ranks_per_node(changed, size),
        )

        def cut() -> Workload | InputError:
            return result_or_error(lambda: resolve_share(changed, self.inputs.workload, size))

        return self.base.with_scenario(
            changed, candidate.micro_batch, result_of(once(self._shares, key, cut))
        )

    def changes(self, candidate: LayoutCandidate) -> dict[str, Any]:
        """Fields of the scenario that make it a layout."""
        return {
            **self.batch,
            **candidate.changes(self.section),
            **_unsplit(self.scenario, tensor=candidate.tensor == 1, expert=candidate.expert == 1),
        }


def prepare_jobs(scenario: Scenario, profile: Profile | None, fidelity: str | None) -> LayoutJobs:
    """Look up all names but those of layouts, and build the machine.

    Raises `InputError`: another strategy than ``auto``, or a name that does not resolve.
    """
    section = scenario.strategy
    if not isinstance(section, AutoStrategy):
        raise scenario.fault("strategy.kind", repr(section.kind), "'auto'")
    changes = {
        "strategy": _as_written(section.sharding[0]),
        "training": {"batch_per_gpu": 1},
        **_unsplit(  # by default, degrees are all that the node allows
            scenario,
            tensor=max(section.tensor or [2]) > 1,
            expert=max(section.expert or [2]) > 1,
        ),
    }
    inputs = resolve_scenario(change_scenario(scenario, changes), profile, fidelity)
    base = size_job(inputs, inputs.sizes[-1])
    scenario, batch = _with_global_batch(scenario, base.size.gpus)
    return LayoutJobs(inputs, scenario, section, base, batch)


def _with_global_batch(scenario: Scenario, gpus: int) -> tuple[Scenario, dict[str, Any]]:
    """Take a batch per GPU as that of all GPUs, and say so; also return the section for it."""
    each = scenario.training.batch_per_gpu
    if each is None:
        return scenario, {}
    batch = {"training": {"global_batch": each * gpus}}
    changed = change_scenario(scenario, batch)
    note = (
        f"A batch of {each} per GPU is a global batch of {each * gpus:,} samples on {gpus:,} GPUs, "
        "of which each parallel layout makes its own micro-batches."
    )
    return changed.with_origin(replace(changed.origin, notes=(*changed.origin.notes, note))), batch


def _unsplit(scenario: Scenario, *, tensor: bool, expert: bool) -> dict[str, Any]:
    """Return the changes that take back what is stated of tensor groups, and of shared experts."""
    parallel, experts = scenario.parallel, scenario.model.experts
    fields = {
        f"parallel.{name}": type(parallel).model_fields[name].default
        for name in (parallel.idle_fields if tensor else ())
    }
    if experts is None:
        return fields
    taken_back = {
        "tensor": tensor,
        "dispatcher": expert,
        "dispatch_dtype": expert,
        # A capacity drops tokens on one GPU, too.
        "imbalance": expert and experts.capacity is None,
    }
    return fields | {
        f"model.experts.{name}": type(experts).model_fields[name].default
        for name, holds in taken_back.items()
        if holds and name in experts.model_fields_set
    }


# ---------------------------------------------------------------- causes of the time of a step

CALLED_DIMENSIONS: tuple[Dimension, ...] = ("tensor", "context", "expert")
"""Dimensions of layers' collectives (`perfmodel.training.plan.layer_calls`)."""


def step_causes(reported: ReportedRun) -> dict[str, float]:
    """Return parts of the last counted step of the class that computes longest; seconds.

    They add up to the step. "data" is what gradients and parameters are exchanged for longer than
    kernels hide, "pipeline" messages between stages, "bubble" all other waiting.
    """
    at, kinds = reported.counted_steps[-1], reported.plan.stream_kinds
    spans = spans_by_step(reported.run)[at]
    busiest = busiest_class(spans, kinds)
    own = [span for span in spans if span.rank_class == busiest]
    exchanged = [span for span in own if kinds[span.stream] == "comm"]
    communicators = {each.name: each for each in reported.plan.communicators}
    sent = [span for span in own if span.kind == "communication" and communicates(span, kinds)]
    cover = intervals_of(span for span in own if computes(span, kinds))
    parts = {"compute": covered_s(cover)}
    for cause, spans_of_cause in {
        **{
            dimension: [s for s in sent if dimension_of(communicators[s.communicator]) == dimension]
            for dimension in CALLED_DIMENSIONS
        },
        "data": [s for s in exchanged if communicators[s.communicator].role != "stages"],
        "pipeline": [s for s in exchanged if communicators[s.communicator].role == "stages"],
    }.items():
        busy = intervals_of(spans_of_cause)
        parts[cause] = exposed_s(busy, cover)
        cover = cover + busy
    parts["bubble"] = max(0.0, reported.run.step_times_s[at] - sum(parts.values()))
    return parts
