"""The strategy section: one class for each strategy, and `auto`, which searches them.

Horovod and priority scheduling, which reorder and fuse reductions, are here, others beside.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema

from perfmodel.files import Bytes, Count, Seconds, SizeOrNothing
from perfmodel.scenario.sections.base import (
    OR_NAME,
    Index,
    MicroSteps,
    StrategyModel,
    Switch,
    kind_alone,
)
from perfmodel.scenario.sections.parallel import Schedule
from perfmodel.scenario.strategies.ddp import DdpStrategy, LocalSgdStrategy, ZeroRedundancyStrategy
from perfmodel.scenario.strategies.deepspeed import OneBitStrategy, ZeroStrategy
from perfmodel.scenario.strategies.servers import DataParallelStrategy, ParameterServerStrategy
from perfmodel.scenario.strategies.sharded import FsdpStrategy, MegatronStrategy


class HorovodStrategy(StrategyModel):
    """horovod.torch.DistributedOptimizer, with Horovod's own names and defaults (0.28)."""

    kind: Literal["horovod"]
    # defaults: BackgroundThreadLoop in operations.cc, and global_state.h, of horovod 0.28.1
    fusion_threshold: SizeOrNothing = Field(
        default=128.0 * 1024 * 1024, description="HOROVOD_FUSION_THRESHOLD; 0 B fuses nothing"
    )
    cycle_time: Seconds = Field(default=1e-3, description="HOROVOD_CYCLE_TIME")
    cache_capacity: Index = Field(
        default=1024, description="HOROVOD_CACHE_CAPACITY: tensors that ranks agree on by a bit"
    )
    controller: Literal["mpi", "gloo"] = Field(
        default="mpi", description="HOROVOD_CONTROLLER: by what ranks agree on what is ready"
    )
    allreduce: Literal["flat", "torus"] = Field(
        default="flat",
        description="torus (HOROVOD_TORUS_ALLREDUCE): reduce-scatter in each host, all-reduce "
        "across hosts, all-gather in each host",
    )
    compression: Literal["none", "fp16"] = Field(
        default="none", description="Compression.fp16: gradients travel in 16 bits"
    )
    accumulate: MicroSteps = Field(default=1, description="backward_passes_per_step")


class PriorityStrategy(StrategyModel):
    """Gradients cut to pieces, and sent by what the next forward needs first.

    ByteScheduler's defaults are a million fp32 parameters a piece and four pieces of credit; P3 has
    50,000 parameters (200 kB) and a credit of one piece.
    """

    kind: Literal["priority"]
    # a million fp32 parameters: BYTESCHEDULER_PARTITION (bytescheduler/common/bytecore.py)
    partition_size: Bytes = Field(default=4e6, description="tensors are cut to such pieces")
    credit: Bytes | None = Field(
        default=None, description="pieces in flight, which none can overtake; default: four"
    )
    order: Literal["priority", "fifo"] = Field(
        default="priority", description="fifo: pieces in the order in which they get ready"
    )
    accumulate: MicroSteps = 1

    @property
    def credit_bytes(self) -> float:
        """Bytes of pieces in flight; by default four pieces."""
        return self.credit or 4 * self.partition_size


MOST_LISTED = 32
"""Values of a searched field: parallel layouts multiply."""

Degrees = Annotated[tuple[Count, ...], Field(min_length=1, max_length=MOST_LISTED)]
Sharding = Annotated[
    DdpStrategy | MegatronStrategy | FsdpStrategy | ZeroStrategy, Field(discriminator="kind")
]


def _list_alone(value: object) -> object:
    """Take a value alone for a list of it."""
    return value if isinstance(value, list | tuple) else [value]


@dataclass(frozen=True)
class ListOrItem:
    """Annotation of a list that one of its items may stand for, also in the JSON schema."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_before_validator_function(_list_alone, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        listed = handler(schema)
        choices = listed.get("anyOf", [listed])
        return {"anyOf": [*choices, *[choice["items"] for choice in choices if "items" in choice]]}


ALONE = ListOrItem()


class AutoStrategy(StrategyModel):
    """The quickest parallel layout that fits, of those that its lists make.

    What is not listed stays as the scenario has it: ``parallel.order``, ``compute.precision``.
    ``training.global_batch``, or what ``training.batch_per_gpu`` is on all GPUs, is shared out to
    the micro-batches of each parallel layout.
    """

    kind: Literal["auto"]
    accumulate: ClassVar[int] = 1
    tensor: Annotated[Degrees | None, ALONE] = Field(
        default=None, description="degrees; default: powers of two up to the GPUs of a node"
    )
    sequence_parallel: Annotated[tuple[Switch, ...], ALONE, Field(min_length=1, max_length=2)] = (
        Field(default=(True,), description="with tensor degrees of 2 or more; both: [true, false]")
    )
    context: Annotated[Degrees | None, ALONE] = Field(
        default=None,
        description="degrees; default: powers of two up to the GPUs of a node that leave each "
        "GPU 8,192 tokens or more, as Llama 3's 16 of 131,072",
    )
    expert: Annotated[Degrees | None, ALONE] = Field(
        default=None,
        description="GPUs that share the experts of a layer; default: powers of two up to the GPUs "
        "of a node of models that have experts",
    )
    pipeline: Annotated[Degrees | None, ALONE] = Field(
        default=None, description="stages; default: all numbers up to 64 that divide the GPUs"
    )
    schedules: Annotated[
        tuple[Schedule, ...], ALONE, Field(min_length=1, max_length=MOST_LISTED)
    ] = Field(
        default=("1f1b", "interleaved"),
        description="of pipelines; default: those of Megatron-Core",
    )
    chunks: Annotated[Degrees, ALONE] = Field(
        default=(2, 3, 4, 5, 6, 8, 10),
        description="parts of the model on each stage, with schedules that may have any number",
    )
    micro_batch: Annotated[Degrees, ALONE] = Field(
        default=(1, 2, 4, 8), description="samples of a micro-batch"
    )
    recompute: Annotated[
        tuple[Literal["none", "selective", "operations", "full"], ...],
        ALONE,
        Field(min_length=1, max_length=4),
    ] = Field(default=("none", "selective", "full"), description="as of compute.recompute")
    sharding: Annotated[
        tuple[Sharding, ...], ALONE, Field(min_length=1, max_length=MOST_LISTED)
    ] = Field(
        default=(
            DdpStrategy(gradient_as_bucket_view=True),
            MegatronStrategy(
                kind="megatron",
                use_distributed_optimizer=True,
                overlap_grad_reduce=True,
                overlap_param_gather=True,
            ),
            FsdpStrategy(kind="fsdp"),
        ),
        description="data-parallel strategies, each with its fields, as buckets of several sizes; "
        "default: DistributedDataParallel, Megatron's distributed optimizer, fully_shard",
    )
    buckets: Switch = Field(
        default=True,
        description="other sizes of buckets are tried with the winner of all else, where its "
        "strategy has buckets and `sharding` does not state their size",
    )
    simulate: Annotated[Count, Field(le=10_000)] = Field(
        default=32,
        description="parallel layouts simulated at most; how much quicker any other can be is said",
    )


_OTHER_NAMES = {
    "bytescheduler": "'priority', whose defaults are ByteScheduler's",
    "p3": "'priority' with 'partition_size: 200 kB' and 'credit: 200 kB'",
    "hsdp": "'fsdp' with 'shard_gpus'",
    "fsdp1": "'fsdp' with 'version: 1'",
    "fsdp2": "'fsdp' with 'version: 2'",
    "zero1": "'zero' with 'stage: 1'",
    "zero2": "'zero' with 'stage: 2'",
    "zero3": "'zero' with 'stage: 3'",
    "deepspeed": "'zero'",
    "zerooffload": "'zero' with 'offload_optimizer'",
    "zeroinfinity": "'zero' with 'stage: 3', 'offload_param' and 'offload_optimizer'",
    "postlocalsgd": "'local_sgd' with 'warmup_steps'",
    "onebitadam": "'onebit'",
    "distributedoptimizer": "'megatron' with 'use_distributed_optimizer: true'",
    "pipeline": "a strategy beside 'parallel.pipeline', which splits the model",
    "tensor": "a strategy beside 'parallel.tensor', which splits the model",
}
"""What people call strategies that have another name here, and how they are written."""


StrategySection = Annotated[
    Annotated[
        DdpStrategy
        | DataParallelStrategy
        | ParameterServerStrategy
        | FsdpStrategy
        | HorovodStrategy
        | PriorityStrategy
        | ZeroStrategy
        | MegatronStrategy
        | ZeroRedundancyStrategy
        | LocalSgdStrategy
        | OneBitStrategy
        | AutoStrategy,
        Field(discriminator="kind"),
    ],
    kind_alone("ddp", _OTHER_NAMES),
    OR_NAME,
]
"""The strategies by `kind`, which may stand alone; DDP without one. Each class has a row of the
same kind in `perfmodel.training.strategies` (but `auto`, for which a study puts another in its
place), and says `accumulate`, `one_node_only`, and whether its communication `overlaps` layers."""
