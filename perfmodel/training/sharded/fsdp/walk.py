"""The order in which forward enters and leaves units of sharding."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from perfmodel.training.sharded.shard_units import ROOT, ShardUnit, innermost
from perfmodel.workload.memory.blocks import block_of
from perfmodel.workload.model import Layer, Workload


@dataclass(frozen=True, slots=True)
class Moment:
    """A point of forward: a unit is entered or left, or layers run.

    `unit`: of "layers", the innermost unit that they lie in; None for a root without parameters.
    `has_input_grad`: whether something before it is trained, so that autograd comes back to it.
    `has_output_grad`: whether something up to it is trained.
    `is_first`: whether a unit is entered for the first time.
    """

    kind: Literal["enter", "layers", "leave"]
    unit: ShardUnit | None
    layers: tuple[int, ...] = ()
    has_input_grad: bool = False
    has_output_grad: bool = False
    is_first: bool = True


def walk_units(
    workload: Workload, units: Sequence[ShardUnit], *, by_layer: bool = False
) -> tuple[Moment, ...]:
    """List what forward meets, from the root that it enters first to the root that it leaves.

    A unit lies in another if its path does. A layer without parameters belongs to the innermost
    unit on its path, or to that of the layer before it.

    `by_layer`: units are layers, which lie in no other unit.
    """
    chains = _Chains({unit.name: unit for unit in units}, workload, by_layer)
    walk: list[Moment] = []
    open_units: list[ShardUnit] = []
    entered: set[str] = set()
    trained = False

    def move_to(chain: Sequence[ShardUnit]) -> None:
        same = 0
        while same < min(len(chain), len(open_units)) and open_units[same] == chain[same]:
            same += 1
        while len(open_units) > same:
            walk.append(Moment("leave", open_units.pop(), has_output_grad=trained))
        for unit in chain[same:]:
            first = unit.name not in entered
            walk.append(Moment("enter", unit, has_input_grad=trained, is_first=first))
            entered.add(unit.name)
            open_units.append(unit)

    for index, layer in enumerate(workload.layers):
        for chain in chains.of(layer, open_units):
            move_to(chain)
        inner = open_units[-1] if open_units else None
        trained = trained or bool(layer.tensors)
        if walk and walk[-1].kind == "layers":
            walk[-1] = Moment("layers", inner, (*walk[-1].layers, index))
        else:
            walk.append(Moment("layers", inner, (index,)))
    move_to(())
    return tuple(walk)


@dataclass(frozen=True, slots=True)
class _Chains:
    """Units that layers lie in, outermost first."""

    units: Mapping[str, ShardUnit]
    workload: Workload
    by_layer: bool

    def of(self, layer: Layer, before: Sequence[ShardUnit]) -> list[list[ShardUnit]]:
        """Chains that a layer needs, that of its largest tensor last."""
        if self.by_layer:
            root = self._chain(None)
            unit = self.units.get(layer.name)
            return [[*root, unit]] if unit else [list(before) or root]
        if not layer.tensors:
            name = innermost(self.units, layer.name)
            inside_block = name is not None or block_of(layer.name) is None
            return [self._chain(name) if inside_block else list(before)]
        order = sorted(layer.tensors, key=lambda index: self.workload.tensors[index].numel)
        names = dict.fromkeys(
            innermost(self.units, self.workload.tensors[index].name) for index in order
        )
        largest = innermost(self.units, self.workload.tensors[order[-1]].name)
        names.pop(largest)
        return [self._chain(name) for name in (*names, largest)]

    def _chain(self, name: str | None) -> list[ShardUnit]:
        parts = [] if name is None else name.split(".")
        paths = (".".join(parts[: length + 1]) for length in range(len(parts)))
        inner = [self.units[path] for path in paths if path in self.units]
        return [*([self.units[ROOT]] if ROOT in self.units else []), *inner]
