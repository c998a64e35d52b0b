"""Which dimension of a mixture a communicator serves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from perfmodel.training.plan.step_plan import Communicator, CommunicatorRole, StepPlan

Dimension = Literal["tensor", "context", "expert", "pipeline", "data", "all ranks"]

DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
"""In the order in which reports list them; "data": gradients, and parameters that are sharded."""

_DIMENSION_OF: Mapping[CommunicatorRole, Dimension] = {
    "replicas": "data",
    "tensor": "tensor",
    "context": "context",
    "expert": "expert",
    "expert_rail": "expert",
    "expert_node": "expert",
    "expert_copies": "data",
    "amaxes": "data",
    "stages": "pipeline",
    "embedding_holders": "pipeline",
    "all_stages": "all ranks",
}


def dimension_of(communicator: Communicator) -> Dimension:
    """Dimension whose ranks a communicator joins.

    A gradient of the embedding that both ends of a pipeline hold is the pipeline's.

    Examples
    --------
    >>> dimension_of(Communicator("pairs", ((0, 1), (2, 3)), "expert_rail"))
    'expert'
    """
    return _DIMENSION_OF[communicator.role]


def has_stages(plan: StepPlan) -> bool:
    """Whether a plan has a pipeline's stages, which wait for each other's messages."""
    return any(dimension_of(each) == "pipeline" for each in plan.communicators)
