"""Constants of the roofline, read from ``kernels.yaml`` with their sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.files import read_yaml


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """An optimizer's fp32 state per parameter element, and its batching of tensors."""

    state_tensors: int
    tensors_per_launch: int


@dataclass(frozen=True, slots=True)
class KernelConstants:
    """Assumptions of the roofline about kernels on every GPU; the file states each source.

    `overlap_exponent`: p in (compute^p + memory^p)^(1/p), the time of one matrix kernel.
    `attention_efficiency`: of a fused attention kernel, against the GPU's efficiency in large
        matrix products.
    `vector_backward`: element-wise traffic of backward over that of forward.
    `fused_attention_backward`: operations of backward over those of forward in a fused attention
        kernel.
    `unfused_passes`, `unfused_kernels`, `unfused_saved`: memory passes, kernels and kept elements
        per score where attention is not fused.
    `elements_per_launch`: parameter elements that one optimizer launch can cover.
    """

    overlap_exponent: float
    attention_efficiency: float
    vector_backward: float
    fused_attention_backward: float
    unfused_passes: float
    unfused_kernels: int
    unfused_saved: float
    optimizers: Mapping[str, OptimizerKind]
    elements_per_launch: int

    def optimizer(self, name: str) -> OptimizerKind:
        """Look an optimizer up.

        Raises `InputError`: nothing by that name.
        """
        if name not in self.optimizers:
            raise InputError(Fault("optimizer", repr(name), allowed_names(self.optimizers, name)))
        return self.optimizers[name]


@cache
def kernel_constants() -> KernelConstants:
    """Read the shipped constants."""
    data = read_yaml(Path(__file__).with_suffix(".yaml"))
    attention, backward = data["attention"], data["backward"]
    return KernelConstants(
        overlap_exponent=float(data["overlap_exponent"]["value"]),
        attention_efficiency=float(data["attention_efficiency"]["value"]),
        vector_backward=float(backward["vector_passes"]["value"]),
        fused_attention_backward=float(backward["fused_attention_flops"]["value"]),
        unfused_passes=float(attention["unfused_passes"]["value"]),
        unfused_kernels=int(attention["unfused_kernels"]["value"]),
        unfused_saved=float(attention["unfused_saved"]["value"]),
        optimizers={
            name: OptimizerKind(int(entry["state_tensors"]), int(entry["tensors_per_launch"]))
            for name, entry in data["optimizers"].items()
        },
        elements_per_launch=int(data["elements_per_launch"]),
    )
