"""Units of FSDP in an execution trace: which unit is whole while an operator of forward runs.

FSDP frees a unit's parameters and gathers the next ones into the same memory, so that a tensor is
known by its unit and its storage, not by its storage alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from perfmodel.traces.rebuild.executed_operations import ExecutedNodes, Operation

BEGINS = {2: "FSDP::pre_forward", 1: "FullyShardedDataParallel._pre_forward"}
ENDS = {2: "FSDP::post_forward", 1: "FullyShardedDataParallel._post_forward"}
"""Ranges around the forward of a unit, by FSDP's version (torch/distributed/fsdp)."""
ROOTS = {2: "FSDP::root_pre_forward", 1: "FullyShardedDataParallel.forward"}
"""Ranges of which the outermost one of a forward pass is the root's."""
CASTS = "FSDP::cast_forward_inputs"
"""Where a MixedPrecisionPolicy states `param_dtype`."""
_NAMED = re.compile(r"[^(]*\((.+)\)")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Sharding:
    """What a trace says of FSDP.

    `version`: of FSDP; 0 where there is none. `units`: without the root, in the order of forward.
    `passes`: forward passes until the optimizer. `casts`: whether units are gathered in another
    precision.
    """

    version: int = 0
    units: tuple[str, ...] = ()
    passes: int = 0
    casts: bool = False

    @property
    def wrap(self) -> list[str]:
        """The units as `strategy.wrap` has them, numbers as ``*``."""
        return list(dict.fromkeys(_NUMBER.sub("*", unit) for unit in self.units))


def sharding_of(nodes: ExecutedNodes, end: float) -> Sharding:
    """Find the units of a step; `end`: number of the optimizer's node."""
    names = {number: name for number, (name, _) in nodes.parents.items() if number < end}
    version = next(
        (v for v, word in BEGINS.items() if any(_is_range(name, word) for name in names.values())),
        0,
    )
    if not version:
        return Sharding()
    units = [unit for _, unit, begins in _marks(names, version) if begins and unit]
    roots = sum(
        name == ROOTS[version] and ROOTS[version] not in nodes.ancestors(number)
        for number, name in names.items()
    )
    casts = CASTS in names.values()
    return Sharding(version, tuple(dict.fromkeys(units)), roots, casts)


def in_units(
    nodes: ExecutedNodes, operations: Sequence[Operation], version: int
) -> list[Operation]:
    """Return the operators with the unit that each runs in; "" is the root."""
    names = {number: name for number, (name, _) in nodes.parents.items()}
    marks, running, placed = list(_marks(names, version)), [""], []
    for operation in operations:
        while marks and marks[0][0] < operation.number:
            _, unit, begins = marks.pop(0)
            if begins:
                running.append(unit)
            elif len(running) > 1:
                running.pop()
        placed.append(replace(operation, unit=running[-1]))
    return placed


def _is_range(name: str, word: str) -> bool:
    """Whether a range has this name, of a unit or of the root."""
    return name == word or name.startswith(f"{word} (")


def _marks(names: Mapping[int, str], version: int) -> Iterator[tuple[int, str, bool]]:
    """Number of a node, the unit, and whether its forward begins there or ends.

    Version 1 does not name its units: they are numbered, and the first one is the root.
    """
    begun = 0
    for number in sorted(names):
        name = names[number]
        begins = _is_range(name, BEGINS[version])
        if not begins and not _is_range(name, ENDS[version]):
            continue
        named = _NAMED.fullmatch(name)
        unit = named[1] if named else ""
        if version == 1 and begins:
            unit, begun = f"units.{begun - 1}" if begun else "", begun + 1
        yield number, unit, begins
