"""Which dimension of a mixture a communicator serves, by its name in a plan."""

from __future__ import annotations

from perfmodel.training.parallel.expand_ranks import (
    CONTEXT,
    EXPERT,
    EXPERT_NODE,
    EXPERT_RAIL,
    TENSOR,
)
from perfmodel.training.pipeline.stage_end import ALL_STAGES, TIED
from perfmodel.training.plan.step_plan import StepPlan

PIPELINE, DATA, EVERYONE = "pipeline", "data", "all ranks"
DIMENSIONS = (TENSOR, CONTEXT, EXPERT, PIPELINE, DATA, EVERYONE)
"""In the order in which reports list them; "data": gradients, and parameters that are sharded."""


def dimension_of(communicator: str) -> str:
    """Dimension whose ranks a communicator joins.

    A gradient of the embedding that both ends of a pipeline hold is the pipeline's.

    Examples
    --------
    >>> dimension_of("tensor of part 3"), dimension_of("stage 0 to stage 1")
    ('tensor', 'pipeline')
    """
    name = communicator.partition(" of part ")[0]
    if name in (TENSOR, CONTEXT, EXPERT):
        return name
    if name in (EXPERT_RAIL, EXPERT_NODE):
        return EXPERT
    if name == ALL_STAGES:
        return EVERYONE
    joins_stages = name.startswith("stage ") and " to stage " in name
    return PIPELINE if name == TIED or joins_stages else DATA


def has_stages(plan: StepPlan) -> bool:
    """Whether a plan has a pipeline's stages, which wait for each other's messages."""
    return any(dimension_of(each.name) == PIPELINE for each in plan.communicators)
