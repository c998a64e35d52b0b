"""Units of sharding, and the order in which forward enters and leaves them.

A unit has parameters that are gathered, used and freed together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from perfmodel.errors import Fault, InputError, allowed_names
from perfmodel.workload.memory.blocks import block_of
from perfmodel.workload.model import Layer, ParameterTensor, Workload

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
    of_experts : bool
        Whether it is split over the ranks that hold the same experts alone.
    """

    name: str
    tensors: tuple[int, ...]
    is_root: bool = False
    of_experts: bool = False


def wrap_units(
    workload: Workload, wrap: str | Sequence[str], least: int = 1, *, experts_apart: bool = False
) -> tuple[ShardUnit, ...]:
    """Split a model into units, the root last; units without parameters are left out.

    Parameters
    ----------
    workload : Workload
    wrap : {"block", "layer", "size", "model"} or sequence of str
        Each repeated block (PyTorch's ``ModuleWrapPolicy``), each layer, modules by the number of
        their parameters (``size_based_auto_wrap_policy``), nothing but the whole, or paths of
        modules, in which ``*`` stands for one name.
    least : int
        Parameters that a module needs for a unit of its own with "size".
    experts_apart : bool
        Whether the experts of each layer are units of their own, as those that ranks share have to
        be (torchtitan's ``apply_fsdp``).

    Raises
    ------
    InputError
        Paths that no module has, or blocks of a model that has none.
    """
    owner = {**_owners(workload, wrap, least)}
    shared = {
        index
        for index, tensor in enumerate(workload.tensors)
        if experts_apart and tensor.of_experts
    }
    if wrap != "layer":
        owner |= {index: workload.tensors[index].name.rpartition(".")[0] for index in shared}
    members: dict[str, list[int]] = {}
    for index in range(len(workload.tensors)):
        members.setdefault(owner.get(index) or ROOT, []).append(index)
    rest = members.pop(ROOT, [])
    units = [
        ShardUnit(name, tuple(indices), of_experts=shared.issuperset(indices))
        for name, indices in members.items()
    ]
    return (*units, *([ShardUnit(ROOT, tuple(rest), is_root=True)] if rest else []))


def _owners(workload: Workload, wrap: str | Sequence[str], least: int) -> Mapping[int, str | None]:
    tensors = enumerate(workload.tensors)
    if wrap == "model":
        return {}
    if wrap == "layer":
        named = {layer.name for layer in workload.layers}
        trained = {tensor: layer.name for layer in workload.layers for tensor in layer.tensors}
        return {index: innermost(named, tensor.name) for index, tensor in tensors} | trained
    if wrap == "block":
        owners = {index: block_of(tensor.name) for index, tensor in tensors}
        if not any(owners.values()):
            allowed = f"'layer', 'size', 'model' or paths of modules: {workload.name} has no blocks"
            raise InputError(Fault("wrap", "'block'", allowed))
        return owners
    wrapped = (
        _modules_by_size(workload, least)
        if isinstance(wrap, str)
        else _modules_by_path(workload, wrap)
    )
    return {index: innermost(wrapped, tensor.name) for index, tensor in tensors}


def innermost(modules: Collection[str], name: str) -> str | None:
    """The innermost of some modules that a tensor or layer lies in; None where it is in none."""
    parts = name.split(".")
    paths = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((path for path in paths if path in modules), None)


def _modules_by_path(workload: Workload, paths: Sequence[str]) -> frozenset[str]:
    """Modules whose path matches one of `paths`, name by name."""
    names = [tensor.name.split(".")[:-1] for tensor in workload.tensors]
    modules = {tuple(parts[:length]) for parts in names for length in range(1, len(parts) + 1)}
    matched: set[str] = set()
    faults = []
    for path in paths:
        matches = {".".join(module) for module in modules if _matches(module, path.split("."))}
        matched |= matches
        if not matches:
            allowed = f"paths of modules with parameters: {allowed_names(_patterns(modules), path)}"
            faults.append(Fault("wrap", repr(path), allowed))
    if faults:
        raise InputError(faults)
    return frozenset(matched)


def _patterns(modules: Collection[tuple[str, ...]]) -> list[str]:
    """Paths of modules, with ``*`` for numbers."""
    return sorted({".".join("*" if part.isdecimal() else part for part in m) for m in modules})


def _matches(module: Sequence[str], pattern: Sequence[str]) -> bool:
    return len(module) == len(pattern) and all(
        name in ("*", part) for part, name in zip(module, pattern, strict=True)
    )


def _modules_by_size(workload: Workload, least: int) -> frozenset[str]:
    """Modules that ``size_based_auto_wrap_policy`` wraps (``_recursive_wrap``, fsdp/wrap.py).

    Assumption: a module whose children have numbers for names is a list of modules, which is not
    wrapped itself; attention with ``in_proj_weight`` is ``nn.MultiheadAttention``, whose parts are
    not wrapped.
    """
    numel: Counter[str] = Counter()
    children: dict[str, dict[str, None]] = {}
    for tensor in workload.tensors:
        parts = tensor.name.split(".")[:-1]
        for length in range(len(parts) + 1):
            path = ".".join(parts[:length])
            numel[path] += tensor.numel
            if length < len(parts):
                children.setdefault(path, {})[".".join(parts[: length + 1])] = None
    attention = {
        tensor.name.removesuffix(".in_proj_weight")
        for tensor in workload.tensors
        if tensor.name.endswith(".in_proj_weight")
    }
    wrapped: set[str] = set()

    def wrap(path: str) -> int:
        parts = children.get(path, {})
        if numel[path] < least or path in attention:
            return 0
        inside = sum(wrap(child) for child in parts)
        is_list = bool(parts) and all(child.rpartition(".")[2].isdecimal() for child in parts)
        if path and not is_list and numel[path] - inside >= least:
            wrapped.add(path)
            return numel[path]
        return inside

    wrap("")
    return frozenset(wrapped)


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
    rows = split_rows(tensor, ranks)
    return math.ceil(rows / ranks) * ranks * (tensor.numel // max(rows, 1))


def split_rows(tensor: ParameterTensor, ranks: int) -> int:
    """Length of the dimension that ranks split: the first one.

    Of experts that are fewer than the ranks it is the second (``Shard(1)``, torchtitan's
    ``apply_fsdp``).
    """
    if tensor.of_experts and tensor.shape[0] < ranks:
        return tensor.shape[1]
    return tensor.shape[0] if tensor.shape else 1


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
