"""Units of sharding: parameters that are gathered, used and freed together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby

from perfmodel.workload.memory.blocks import block_of
from perfmodel.workload.model import ParameterTensor, Workload

ROOT = "root"
"""Name of the unit of all parameters that no wrapped module holds."""


@dataclass(frozen=True, slots=True)
class ShardUnit:
    """Parameters that travel in one all-gather and one reduce-scatter.

    Parameters
    ----------
    name : str
    tensors : tuple of int
        In registration order.
    is_root : bool
        Whether it is the outermost module, which stays gathered from forward to backward.
    """

    name: str
    tensors: tuple[int, ...]
    is_root: bool = False


@dataclass(frozen=True, slots=True)
class Visit:
    """Consecutive layers of one unit, as forward meets them."""

    unit: ShardUnit
    layers: tuple[int, ...]


def wrap_units(workload: Workload, wrap: str) -> tuple[ShardUnit, ...]:
    """Split a model into units, the root last.

    Parameters
    ----------
    workload : Workload
    wrap : {"block", "layer", "model"}
        Each repeated block (PyTorch's ``ModuleWrapPolicy``), each layer, or nothing but the whole.
    """
    owner = _owners(workload, wrap)
    names = dict.fromkeys(name for name in owner.values() if name is not None)
    units = [
        ShardUnit(name, tuple(i for i in range(len(workload.tensors)) if owner.get(i) == name))
        for name in names
    ]
    rest = tuple(i for i in range(len(workload.tensors)) if owner.get(i) is None)
    return (*units, ShardUnit(ROOT, rest, is_root=True))


def visit_units(workload: Workload, units: Sequence[ShardUnit], wrap: str) -> tuple[Visit, ...]:
    """List runs of consecutive layers of one unit, in the order of forward."""
    by_name = {unit.name: unit for unit in units}
    unit_of = {tensor: unit.name for unit in units for tensor in unit.tensors}
    names: list[str] = []
    for layer in workload.layers:
        if layer.tensors:
            name = unit_of[layer.tensors[0]]
        elif wrap == "block":
            name = block_of(layer.name) or ROOT
        else:
            name = names[-1] if names else ROOT
        names.append(name if name in by_name else ROOT)
    visits = []
    for name, places in groupby(range(len(names)), key=names.__getitem__):
        visits.append(Visit(by_name[name], tuple(places)))
    return tuple(visits)


def _owners(workload: Workload, wrap: str) -> dict[int, str | None]:
    if wrap == "model":
        return {}
    if wrap == "block":
        return {i: block_of(tensor.name) for i, tensor in enumerate(workload.tensors)}
    return {tensor: layer.name for layer in workload.layers for tensor in layer.tensors}


# ---------------------------------------------------------------- elements as they travel

Padding = Callable[[Sequence[ParameterTensor], int], int]
"""Elements of some tensors, padded so that they can be split over so many ranks."""


def flat_elements(tensors: Sequence[ParameterTensor], ranks: int) -> int:
    """Pad the flattened tensors together, as FSDP1 does (``_flat_param.py``)."""
    return math.ceil(sum(tensor.numel for tensor in tensors) / ranks) * ranks


def row_elements(tensors: Sequence[ParameterTensor], ranks: int) -> int:
    """Pad the first dimension of each tensor, as FSDP2 does (``_fsdp_param.py``)."""
    return sum(_padded_rows(tensor, ranks) for tensor in tensors)


def _padded_rows(tensor: ParameterTensor, ranks: int) -> int:
    rows = tensor.shape[0] if tensor.shape else 1
    return math.ceil(rows / ranks) * ranks * (tensor.numel // max(rows, 1))
