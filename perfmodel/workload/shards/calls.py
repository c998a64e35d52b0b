"""The collectives that a layer calls among the ranks which share it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

CallGroup = Literal["tensor", "context", "expert", "expert_rail", "expert_node"]
"""Ranks that share a layer: communicators of a plan have these names. "expert_rail", "expert_node":
those of an expert group that have the same place in their nodes, and those in one node."""

CALL_GROUPS: tuple[str, ...] = get_args(CallGroup)

CallOp = Literal[
    "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "send_recv"
]
"""Operations; "send_recv": each rank sends to the next of a ring and receives from the one before.
"""

CallPhase = Literal["forward", "backward", "step"]
"""When: in each forward, in each backward, or once a step after the last backward."""


@dataclass(frozen=True, slots=True)
class LayerCall:
    """A collective that a layer calls in one of its passes.

    Parameters
    ----------
    group : {"tensor", "context", "expert", "expert_rail", "expert_node"}
    op : str
    elements : float
        Of the whole buffer, per sample, as nccl-tests counts it: of all-reduce the buffer, of
        all-gather and reduce-scatter that of all ranks together, of all-to-all and send_recv what
        one rank puts in. In phase "step": of the step, whatever its samples.
    ranks : int
        Of the group.
    phase : {"forward", "backward", "step"}
    place : {"before", "after"}
        Of the layer's kernels in this pass; among calls of one place their order is that of
        `Layer.calls`. Backward runs them in the order in which they stand, too.
    times : int
        Alike calls in a row, each after the one before.
    overlap : float
        Share of the layer's matrix kernels of this pass that runs while the calls do; 0: none, the
        calls are exposed.
    dtype : str, optional
        Of the elements; None: that of the compute.
    repeated : bool
        Whether recomputation of the layer's whole block repeats it.
    joins_previous : bool
        Whether it begins with the exposed call before it; what follows waits for both.
    """

    group: CallGroup
    op: CallOp
    elements: float
    ranks: int
    phase: CallPhase
    place: Literal["before", "after"]
    times: int = 1
    overlap: float = 0.0
    dtype: str | None = None
    repeated: bool = True
    joins_previous: bool = False

    @property
    def gathers_input(self) -> bool:
        """Whether forward begins with it, of a map's input that the tensor group has in parts."""
        place = (self.group, self.phase, self.place)
        return self.op == "all_gather" and place == ("tensor", "forward", "before")

    @property
    def sent_elements(self) -> float:
        """Elements that one rank sends per sample where the operation runs around a ring."""
        share = (self.ranks - 1) / self.ranks
        factor = {"all_reduce": 2 * share, "send_recv": 1.0, "broadcast": 1.0}.get(self.op, share)
        return self.times * factor * self.elements
