"""Bytes of units of sharding, as they are kept and as they travel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.training.sharded.fsdp.options import FsdpOptions
from perfmodel.training.sharded.fsdp.units import ShardUnit, flat_elements, row_elements
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor, Workload

ALIGNED_BYTES = 16
"""With ``use_orig_params`` (``_get_aligned_numel``, _flat_param.py)."""


def unit_sizes(
    workload: Workload,
    options: FsdpOptions,
    ranks: int,
    narrow: frozenset[int] = frozenset(),
    expert_copies: int | None = None,
) -> UnitSizes:
    """Sizes of units of a model that so many ranks share.

    `narrow`: parameters that are gathered in fp8.
    `expert_copies`: ranks that hold the same experts, where ranks share experts.
    """
    ready = frozenset(workload.ready_order)
    return UnitSizes(workload, options, ranks, ready, narrow, expert_copies or ranks)


@dataclass(frozen=True, slots=True)
class UnitSizes:
    """Sizes of units that so many ranks share."""

    workload: Workload
    options: FsdpOptions
    ranks: int
    ready: frozenset[int]
    """Parameters that have gradients."""
    narrow: frozenset[int] = frozenset()
    """Parameters that are gathered in fp8."""
    expert_ranks: int = 1
    """Ranks that share units of experts."""

    def ranks_of(self, unit: ShardUnit) -> int:
        """Ranks that share a unit."""
        return self.expert_ranks if unit.of_experts else self.ranks

    def tensors(self, unit: ShardUnit) -> tuple[ParameterTensor, ...]:
        """Parameters of a unit."""
        return tuple(self.workload.tensors[index] for index in unit.tensors)

    def trained(self, unit: ShardUnit) -> tuple[ParameterTensor, ...]:
        """Parameters of a unit that have gradients."""
        return tuple(self.workload.tensors[i] for i in unit.tensors if i in self.ready)

    def elements(self, unit: ShardUnit) -> int:
        """Elements of all parameters of a unit, padding included."""
        return self._padded(self.tensors(unit), unit)

    def reduced_elements(self, unit: ShardUnit) -> int:
        """Elements of a unit's gradients: flat parameters have all or none, padding included."""
        trained = self.trained(unit)
        if self.options.version == 1:
            return self.elements(unit) if trained else 0
        return self._padded(trained, unit)

    def _padded(self, tensors: Sequence[ParameterTensor], unit: ShardUnit) -> int:
        if self.options.version == 2:
            return row_elements(tensors, self.ranks_of(unit))
        if not self.options.use_orig_params:
            return flat_elements(tensors, self.ranks)
        return math.ceil(sum(self.aligned(unit)) / self.ranks) * self.ranks

    def aligned(self, unit: ShardUnit) -> list[int]:
        """Elements of each parameter with what is padded before the next one."""
        by = ALIGNED_BYTES // ITEM_BYTES[self.gathered_dtype(unit)]
        numels = [tensor.numel for tensor in self.tensors(unit)]
        return [*(math.ceil(numel / by) * by for numel in numels[:-1]), numels[-1]]

    def is_padded(self, unit: ShardUnit) -> bool:
        """Whether a flat gradient has to be padded before it can be reduced."""
        numel = sum(tensor.numel for tensor in self.tensors(unit))
        return not self.options.use_orig_params and numel < self.elements(unit)

    def narrow_tensors(self, unit: ShardUnit) -> tuple[ParameterTensor, ...]:
        """Parameters of a unit that are gathered in fp8."""
        return tuple(self.workload.tensors[i] for i in unit.tensors if i in self.narrow)

    def narrow_elements(self, unit: ShardUnit) -> int:
        """Elements of these, padding included."""
        tensors = self.narrow_tensors(unit)
        return self._padded(tensors, unit) if tensors else 0

    def own_dtype(self, unit: ShardUnit) -> str:
        """What a unit's parameters are kept in."""
        return self.tensors(unit)[0].dtype

    def gathered_dtype(self, unit: ShardUnit) -> str:
        """What layers have a unit's parameters in, those aside that are fp8, and its gradients."""
        return self.options.param_dtype or self.own_dtype(unit)

    def sent_dtype(self, unit: ShardUnit) -> str:
        """What a unit's parameters travel in: bytes, where some are fp8 and others are not.

        ``_get_param_all_gather_inputs`` and ``all_gather_dtype`` in
        torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py.
        """
        narrow = len(self.narrow_tensors(unit))
        if not narrow:
            return self.gathered_dtype(unit)
        return "fp8" if narrow == len(unit.tensors) else "uint8"

    def reduced_dtype(self, unit: ShardUnit) -> str:
        """What a unit's gradients travel in."""
        return self.options.reduce_dtype or self.gathered_dtype(unit)

    def own_bytes(self, unit: ShardUnit) -> int:
        """Bytes of a unit's parameters as they are kept, over all ranks."""
        return self.elements(unit) * ITEM_BYTES[self.own_dtype(unit)]

    def gathered_bytes(self, unit: ShardUnit) -> int:
        """Bytes of a unit's parameters as they travel."""
        narrow = self.narrow_elements(unit)
        wide = self.elements(unit) - narrow
        return wide * ITEM_BYTES[self.gathered_dtype(unit)] + narrow * ITEM_BYTES["fp8"]

    def gradient_bytes(self, unit: ShardUnit) -> int:
        """Bytes of a unit's gradients as backward makes them."""
        return self.reduced_elements(unit) * ITEM_BYTES[self.gathered_dtype(unit)]

    def reduced_bytes(self, unit: ShardUnit) -> int:
        """Bytes of a unit's gradients as they travel."""
        return self.reduced_elements(unit) * ITEM_BYTES[self.reduced_dtype(unit)]

    def kept_gradient_bytes(self, unit: ShardUnit) -> int:
        """Bytes of a unit's gradients as the optimizer takes them, over all ranks."""
        return self.reduced_elements(unit) * ITEM_BYTES[self.own_dtype(unit)]
