"""Device memory of activations and optimizer states, and what recomputation trades for it."""

from perfmodel.workload.memory.activations import cast_weights
from perfmodel.workload.memory.optimizer_states import (
    OptimizerKernels,
    optimizer_bytes,
    optimizer_launches,
    optimizer_state_bytes,
)
from perfmodel.workload.memory.recompute import NO_RECOMPUTE, Recompute, add_recompute

__all__ = [
    "NO_RECOMPUTE",
    "OptimizerKernels",
    "Recompute",
    "add_recompute",
    "cast_weights",
    "optimizer_bytes",
    "optimizer_launches",
    "optimizer_state_bytes",
]
