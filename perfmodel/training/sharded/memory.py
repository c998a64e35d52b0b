"""Memory that fully sharded training takes on a GPU."""

from __future__ import annotations

from dataclasses import replace

from perfmodel.training.memory.use import MemoryUse, Setup, replicated
from perfmodel.training.sharded.options import FsdpOptions
from perfmodel.training.sharded.shard_units import (
    ShardUnit,
    flat_elements,
    row_elements,
    wrap_units,
)
from perfmodel.workload.model import ITEM_BYTES

WHOLE_UNITS = {1: 3, 2: 2}
"""Units beside the root that are whole at once in backward, by version: the one in hand and what
the rate limiter lets be gathered ahead (`perfmodel.training.sharded.step`)."""


def fsdp_memory(setup: Setup) -> MemoryUse:
    """Add up what a rank keeps: its shards, units while they are whole, and their gradients.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    use, options = replicated(setup), setup.options
    assert isinstance(options, FsdpOptions)
    ranks = options.shard_ranks or setup.ranks
    units = [unit for unit in wrap_units(setup.workload, options.wrap) if unit.tensors]
    elements = {unit.name: _elements(setup, unit, ranks) for unit in units}
    shard = sum(elements.values()) / ranks
    share = shard / setup.workload.parameters
    own = ITEM_BYTES[setup.workload.tensors[0].dtype]
    return replace(
        use,
        parameters_bytes=shard * own + setup.workload.buffer_bytes,
        gradients_bytes=shard * own,
        optimizer_bytes=use.optimizer_bytes * share,
        gathered_bytes=_whole_bytes(setup, options, units, elements),
    )


def _elements(setup: Setup, unit: ShardUnit, ranks: int) -> int:
    options = setup.options
    pad = (
        flat_elements if isinstance(options, FsdpOptions) and options.version == 1 else row_elements
    )
    return pad([setup.workload.tensors[index] for index in unit.tensors], ranks)


def _whole_bytes(
    setup: Setup, options: FsdpOptions, units: list[ShardUnit], elements: dict[str, int]
) -> float:
    """The fullest moment of backward."""
    own = setup.workload.tensors[0].dtype
    parameter = ITEM_BYTES[options.param_dtype or own]
    reduced = ITEM_BYTES[options.reduce_dtype or options.param_dtype or own]
    root = sum(elements[unit.name] for unit in units if unit.is_root)
    sizes = sorted((elements[unit.name] for unit in units if not unit.is_root), reverse=True)
    if options.reshard_after_forward:
        whole = root + sum(sizes[: WHOLE_UNITS[options.version]])
    else:
        whole = root + sum(sizes)
    in_hand = sizes[0] if sizes else 0
    return whole * parameter + (root + in_hand) * parameter + in_hand * reduced
