"""Device memory of activations and optimizer states, and what recomputation trades for it."""

from perfmodel.workload.memory.activations import activation_bytes, cast_weights
from perfmodel.workload.memory.recompute import (
    NO_RECOMPUTE,
    OptimizerKernels,
    Recompute,
    add_recompute,
    optimizer_bytes,
    optimizer_launches,
    optimizer_state_bytes,
)

__all__ = [
    "NO_RECOMPUTE",
    "OptimizerKernels",
    "Recompute",
    "activation_bytes",
    "add_recompute",
    "cast_weights",
    "optimizer_bytes",
    "optimizer_launches",
    "optimizer_state_bytes",
]
