"""Section ``parallel``: how the model itself is split, beside the data-parallel strategy."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from perfmodel.files import Count
from perfmodel.scenario.sections.base import (
    OR_COUNT,
    Index,
    Rules,
    Section,
    Switch,
    expand_number,
    refuse,
)

DIMENSIONS = ("tp", "cp", "ep", "dp", "pp")
"""Dimensions of a parallel layout: tensor, context, expert, data, pipeline (as in Megatron)."""
DEFAULT_ORDER = "tp-cp-ep-dp-pp"
"""Megatron-Core's default: ranks of a tensor group are neighbours, those of a pipeline farthest."""


TENSOR_FIELDS = frozenset({"sequence_parallel", "overlap", "parallel_loss"})
"""Fields of `parallel` that act with a tensor degree of 2 or more alone."""


Schedule = Literal[
    "gpipe",
    "1f1b",
    "interleaved",
    "looped_bfs",
    "zb_h1",
    "zb_h2",
    "zb_v",
    "interleaved_zero_bubble",
    "dualpipe",
    "dualpipe_v",
]
"""Schedules of pipelines with a process for each stage."""


class ContextSection(Section):
    """Tokens of each sample over several GPUs."""

    degree: Count = 1
    kind: Literal["ring", "ulysses", "all_gather"] = Field(
        default="ring",
        description="keys and values go around a ring, or all-to-all between tokens and heads, or "
        "all keys and values are gathered",
    )
    balanced: Switch = Field(
        default=True,
        description="each GPU has an early and a late chunk of a causal sequence: equal work",
    )

    def _rules(self) -> Rules:
        return [
            (self.degree == 1, f"{name!r} with 'degree' of 2 or more alone")
            for name in self.changes
        ]


class PipelineSection(Section):
    """Layers over several stages, micro-batch by micro-batch (`strategy.accumulate` of them)."""

    stages: Count = 1
    schedule: Literal[Schedule, "1f1b_vocab_1", "1f1b_vocab_2", "sequential"] = Field(
        default="1f1b",
        description="order of the passes; 1f1b_vocab_1 and 1f1b_vocab_2 give each stage a share of "
        "the table of tokens and of the output layer (Algorithms 1 and 2 of vocabulary "
        "parallelism, Yeung et al. 2024, arXiv 2411.05288), sequential is one process",
    )
    chunks: Count | None = Field(
        default=None, description="parts of the model on each stage (virtual stages)"
    )
    blocks_per_part: Annotated[tuple[Index, ...], Field(min_length=1)] | None = Field(
        default=None, description="repeated blocks of each part, in order; default: equally many"
    )
    first_stage_blocks: Count | None = Field(
        default=None, description="blocks of the first stage; the others share what remains"
    )
    last_stage_blocks: Count | None = Field(
        default=None, description="blocks of the last stage; the others share what remains"
    )
    embedding_as_block: Switch = Field(
        default=False, description="the embedding counts as a block where these are divided"
    )
    loss_as_block: Switch = Field(
        default=False, description="head and loss count as a block where these are divided"
    )
    overlap_p2p: Switch | None = Field(
        default=None,
        description="stages send beside layers; default: with interleaved schedules",
    )
    micro_batch_group: Count | None = Field(
        default=None, description="micro-batches that a chunk runs in a row (interleaved)"
    )

    def _rules(self) -> Rules:
        return (
            *(
                (self.stages == 1, f"{name!r} with 'stages' of 2 or more alone")
                for name in self.changes
            ),
            (
                self.one_process and self.overlap_p2p is not None,
                "no 'overlap_p2p' with schedule: sequential, where nothing overlaps",
            ),
        )

    @property
    def one_process(self) -> bool:
        """Whether one process drives the GPUs of all stages, which take turns."""
        return self.schedule == "sequential"


class ParallelSection(Section):
    """Degrees of model parallelism; what they leave of the GPUs are data-parallel ranks.

    `training.batch_per_gpu` counts the samples of a micro-batch of each data-parallel rank.
    """

    tensor: Count = Field(default=1, description="GPUs that share every matrix")
    sequence_parallel: Switch = Field(
        default=False, description="norms and additions on a share of the tokens of a tensor group"
    )
    context: Annotated[ContextSection, expand_number("degree"), OR_COUNT] = ContextSection()
    expert: Count = Field(
        default=1,
        description="GPUs that share the experts of each layer, or the embedding tables of DLRM",
    )
    tables: Literal["table", "row", "column", "remote"] | None = Field(
        default=None,
        description="what each of them has of these tables, as TorchRec shares them out: whole "
        "ones, or rows or columns of each; or none, with 'expert' of 1: servers on CPUs hold "
        "'remote' ones, which torch.distributed.rpc asks for rows (strategy.kind: ddp)",
    )
    servers: Count = Field(
        default=1, description="processes that hold remote tables, each as many whole ones"
    )
    server_placement: Literal["dedicated", "colocated"] = Field(
        default="dedicated",
        description="dedicated: each on a node of its own beside those of `cluster.nodes`; "
        "colocated: on the first of these",
    )
    pipeline: Annotated[PipelineSection, expand_number("stages"), OR_COUNT] = PipelineSection()
    order: Annotated[
        str,
        AfterValidator(
            refuse(
                lambda order: sorted(order.split("-")) != sorted(DIMENSIONS),
                f"each of {', '.join(DIMENSIONS)} once, as in {DEFAULT_ORDER}",
            )
        ),
    ] = Field(
        default=DEFAULT_ORDER,
        description="which GPUs are neighbours: the first dimension varies fastest with the rank",
    )
    library: Literal["megatron", "torch"] = Field(
        default="megatron", description="whose tensor parallelism"
    )
    overlap: Literal["none", "gradients", "asynchronous"] | None = Field(
        default=None,
        description="what of a tensor group's collectives runs beside products; default: "
        "'gradients' of Megatron, 'none' of torch",
    )
    parallel_loss: Switch = Field(
        default=True, description="cross entropy on a share of the vocabulary each"
    )
    vocabulary_multiple: Count | None = Field(
        default=None,
        description="the vocabulary is padded to a multiple of this times the tensor degree",
    )

    def _rules(self) -> Rules:
        one_process = self.pipeline.one_process
        return (
            (
                self.tables is not None and (self.tables == "remote") == (self.expert > 1),
                "'tables' with 'expert' of 2 or more alone, but for 'remote', with 1",
            ),
            *(
                (self.tables != "remote", f"{name!r} with 'tables: remote' alone")
                for name in sorted({"servers", "server_placement"} & self.changes.keys())
            ),
            (
                one_process and self.tensor * self.context.degree * self.expert > 1,
                (
                    "'tensor', 'context' and 'expert' of 1 with pipeline.schedule: sequential, "
                    "where one process runs whole layers"
                ),
            ),
            (
                one_process and self.order != DEFAULT_ORDER,
                (
                    "no 'order' with pipeline.schedule: sequential: the GPUs of a process are "
                    "neighbours"
                ),
            ),
        )

    @property
    def idle_fields(self) -> list[str]:
        """Names of what is stated of tensor parallelism where there is none."""
        return [] if self.tensor > 1 else sorted(TENSOR_FIELDS.intersection(self.changes))

    @property
    def is_plain(self) -> bool:
        """Whether nothing is split: each GPU holds the whole model as its strategy has it."""
        return not self.changes.keys() - {"order", "library"}

    @property
    def gpus_per_replica(self) -> int:
        """GPUs that work on the same samples."""
        return self.tensor * self.context.degree * self.pipeline.stages

    @property
    def degrees(self) -> Mapping[str, int]:
        """Degree of each dimension but data (`expert` is a part of data and context)."""
        return {
            "tensor": self.tensor,
            "context": self.context.degree,
            "pipeline": self.pipeline.stages,
        }
