"""Units of sharding: what they hold, their bytes, and the order in which forward enters them.

A unit has parameters that are gathered, used and freed together.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

from perfmodel.arrays import round_up
from perfmodel.errors import Fault, allowed_names, raise_faults, refuse_if
from perfmodel.memo import grouped
from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.training.frameworks import fixed_in
from perfmodel.workload.memory.blocks import block_of
from perfmodel.workload.model import ITEM_BYTES, Layer, ParameterTensor, Workload

BY_LAYER = ("layer", "auto")
"""Ways to make units of layers, which lie in no other."""
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
    workload: Workload,
    wrap: str | Sequence[str],
    least: int = 1,
    *,
    most: float = math.inf,
    experts_apart: bool = False,
) -> tuple[ShardUnit, ...]:
    """Split a model into units, the root last; units without parameters are left out.

    Parameters
    ----------
    workload : Workload
    wrap : {"block", "layer", "auto", "size", "model"} or sequence of str
        Each repeated block (PyTorch's ``ModuleWrapPolicy``), each layer, buckets of PyTorch's
        compiler, modules by the number of their parameters (``size_based_auto_wrap_policy``),
        nothing but the whole, or paths of modules, in which ``*`` stands for one name.
    least : int
        Parameters that a module needs for a unit of its own with "size".
    most : float
        Elements of a bucket of several layers with "auto".
    experts_apart : bool
        Whether the experts of each layer are units of their own, as those that ranks share have to
        be (torchtitan's ``apply_fsdp``).

    Raises
    ------
    InputError
        Paths that no module has, or blocks of a model that has none.
    """
    owner = {**_owners(workload, wrap, least)}
    if wrap == "auto":
        owner = _bucketed(workload, owner, most)
    shared = {
        index
        for index, tensor in enumerate(workload.tensors)
        if experts_apart and tensor.of_experts
    }
    if wrap != "layer":
        owner |= {index: workload.tensors[index].name.rpartition(".")[0] for index in shared}
    members = grouped((owner.get(index) or ROOT, index) for index in range(len(workload.tensors)))
    if ROOT in members:
        members[ROOT] = members.pop(ROOT)
    return tuple(
        ShardUnit(name, tuple(held), name == ROOT, name != ROOT and shared.issuperset(held))
        for name, held in members.items()
    )


def _owners(workload: Workload, wrap: str | Sequence[str], least: int) -> Mapping[int, str | None]:
    names = [tensor.name for tensor in workload.tensors]
    if wrap == "model":
        return {}
    if wrap == "block":
        owners = {index: block_of(name) for index, name in enumerate(names)}
        refuse_if(
            not any(owners.values()),
            "wrap",
            "'block'",
            f"'layer', 'size', 'model' or paths of modules: {workload.name} has no blocks",
        )
        return owners
    if wrap in BY_LAYER:
        wrapped: Collection[str] = {layer.name for layer in workload.layers}
    else:
        wrapped = (
            _modules_by_size(workload, least)
            if isinstance(wrap, str)
            else _modules_by_path(names, wrap)
        )
    trained = {tensor: layer.name for layer in workload.layers for tensor in layer.tensors}
    owners = {index: innermost(wrapped, name) for index, name in enumerate(names)}
    return owners | trained if wrap in BY_LAYER else owners


def _bucketed(
    workload: Workload, owner: Mapping[int, str | None], most: float
) -> dict[int, str | None]:
    """Join neighbours in the order of forward, so many elements at most, by the first one's name.

    ``greedy_bucket_collective_by_mb`` in torch/_inductor/fx_passes/bucketing.py; its neighbours are
    single parameters, here all of a layer.
    """
    held, first = math.inf, ""
    numel, bucket_of = Counter[str | None](), dict[str | None, str]()
    for index, name in owner.items():
        numel[name] += workload.tensors[index].numel
    for layer in workload.layers:
        if numel[layer.name] and held + numel[layer.name] > most:
            held, first = 0.0, layer.name
        held += numel[layer.name]
        bucket_of[layer.name] = first
    return {index: bucket_of.get(name) for index, name in owner.items()}


def module_paths(name: str) -> list[str]:
    """Return the paths of the modules that a name lies in, outermost first, and the name."""
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts) + 1)]


def innermost(modules: Collection[str], name: str) -> str | None:
    """Return the innermost of some modules that a tensor or layer lies in, if there is one."""
    return next((path for path in reversed(module_paths(name)) if path in modules), None)


def _modules_by_path(names: Sequence[str], paths: Sequence[str]) -> set[str]:
    """Modules whose path matches one of `paths`, name by name."""
    modules = {path for name in names for path in module_paths(name)[:-1]}
    matched: set[str] = set()
    faults = []
    for path in paths:
        pattern = r"\.".join(
            "[^.]+" if part == "*" else re.escape(part) for part in path.split(".")
        )
        matches = set(filter(re.compile(pattern).fullmatch, modules))
        matched |= matches
        if not matches:
            split = (each.split(".") for each in modules)
            patterns = {".".join("*" if p.isdecimal() else p for p in parts) for parts in split}
            allowed = f"paths of modules with parameters: {allowed_names(sorted(patterns), path)}"
            faults.append(Fault("wrap", repr(path), allowed))
    raise_faults(faults)
    return matched


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


# ---------------------------------------------------------------- bytes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SizedUnit(ShardUnit):
    """A unit with its sizes; elements and bytes are over all ranks that share it, with padding.

    `ranks`: that share it. `parameters`: it holds; of these `trained` have gradients and `narrow`
        are gathered in fp8. `aligned`: elements of each with what is padded before the next one.
    `elements`, `reduced_elements`: of parameters and of gradients; flat parameters have all or
        none. `is_padded`: whether a flat gradient has to be padded before it can be reduced.
    `own_dtype`: what its parameters are kept in. `gathered_dtype`: what layers have them in, those
        aside that are fp8, and their gradients. `sent_dtype`: what they travel in: bytes, where
        some are fp8 and others are not (``_get_param_all_gather_inputs`` and ``all_gather_dtype``
        in torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py). `reduced_dtype`: what
        gradients travel in.
    `own_bytes`, `gathered_bytes`: of parameters as they are kept and as they travel.
    `gradient_bytes`, `reduced_bytes`, `kept_gradient_bytes`: of gradients as backward makes them,
        as they travel, and as the optimizer takes them.
    """

    ranks: int
    parameters: tuple[ParameterTensor, ...]
    trained: tuple[ParameterTensor, ...]
    narrow: tuple[ParameterTensor, ...]
    aligned: tuple[int, ...]
    elements: int
    reduced_elements: int
    is_padded: bool
    own_dtype: str
    gathered_dtype: str
    sent_dtype: str
    reduced_dtype: str
    own_bytes: int
    gathered_bytes: int
    gradient_bytes: int
    reduced_bytes: int
    kept_gradient_bytes: int


def sized_units(
    workload: Workload,
    options: FsdpStrategy,
    ranks: int,
    narrow: frozenset[int] = frozenset(),
    expert_copies: int | None = None,
    *,
    cap_bytes: float = math.inf,
) -> tuple[SizedUnit, ...]:
    """Split a model that so many ranks share into units, and size them.

    `narrow`: parameters that are gathered in fp8.
    `expert_copies`: ranks that hold the same experts, where ranks share experts.
    `cap_bytes`: of a bucket of several layers with ``wrap: auto``, as it is gathered.
    Raises `InputError`: as `wrap_units`.
    """
    apart, ready = expert_copies is not None, frozenset(workload.ready_order)
    most = cap_bytes / ITEM_BYTES[options.param_dtype or workload.tensors[0].dtype]
    return tuple(
        _sized(unit, workload, options, ranks, expert_copies or ranks, ready, narrow)
        for unit in wrap_units(
            workload, options.wrap, options.unit_elements, most=most, experts_apart=apart
        )
    )


def _sized(
    unit: ShardUnit,
    workload: Workload,
    options: FsdpStrategy,
    shard_ranks: int,
    expert_ranks: int,
    ready: frozenset[int],
    narrow: frozenset[int],
) -> SizedUnit:
    ranks = expert_ranks if unit.of_experts else shard_ranks
    tensors, trained, in_fp8 = (
        tuple(workload.tensors[index] for index in unit.tensors if index in chosen)
        for chosen in (unit.tensors, ready, narrow)
    )
    own = tensors[0].dtype
    gathered = options.param_dtype or own
    reduced = options.reduce_dtype or gathered
    by = fixed_in("fsdp", "aligned_bytes") // ITEM_BYTES[gathered]
    *others, last = (tensor.numel for tensor in tensors)
    aligned = (*(math.ceil(numel / by) * by for numel in others), last)

    def padded(members: Sequence[ParameterTensor]) -> int:
        if options.version == 2:  # the first dimension of each (``_fsdp_param.py``)
            rows = [split_rows(each, ranks) for each in members]
            sizes = [each.numel // max(n, 1) for n, each in zip(rows, members, strict=True)]
            return sum(math.ceil(n / ranks) * ranks * s for n, s in zip(rows, sizes, strict=True))
        numels = aligned if options.use_orig_params else [each.numel for each in members]
        if options.version == "megatron":  # by rows of all (``build_data_parallel_buffer_index``)
            by = math.lcm(*(each.numel // split_rows(each, 1) for each in members))
            return round_up(
                max(sum(round_up(n, by) for n in numels if n >= by), sum(numels)), ranks * by
            )
        return math.ceil(sum(numels) / shard_ranks) * shard_ranks  # as one (``_flat_param.py``)

    elements, narrow_elements = padded(tensors), padded(in_fp8) if in_fp8 else 0
    gradients = padded(trained) if options.version == 2 else (elements if trained else 0)
    sent = "fp8" if len(in_fp8) == len(tensors) else "uint8" if in_fp8 else gathered
    wide_bytes = (elements - narrow_elements) * ITEM_BYTES[gathered]
    return SizedUnit(
        unit.name,
        unit.tensors,
        unit.is_root,
        unit.of_experts,
        ranks=ranks,
        parameters=tensors,
        trained=trained,
        narrow=in_fp8,
        aligned=aligned,
        elements=elements,
        reduced_elements=gradients,
        is_padded=not options.use_orig_params and sum(each.numel for each in tensors) < elements,
        own_dtype=own,
        gathered_dtype=gathered,
        sent_dtype=sent,
        reduced_dtype=reduced,
        own_bytes=elements * ITEM_BYTES[own],
        gathered_bytes=wide_bytes + narrow_elements * ITEM_BYTES["fp8"],
        gradient_bytes=gradients * ITEM_BYTES[gathered],
        reduced_bytes=gradients * ITEM_BYTES[reduced],
        kept_gradient_bytes=gradients * ITEM_BYTES[own],
    )


def split_rows(tensor: ParameterTensor, ranks: int) -> int:
    """Return the length of the dimension that ranks split: the first one.

    Of experts that are fewer than the ranks it is the second (``Shard(1)``, torchtitan's
    ``apply_fsdp``).
    """
    if tensor.of_experts and tensor.shape[0] < ranks:
        return tensor.shape[1]
    return tensor.shape[0] if tensor.shape else 1


# ---------------------------------------------------------------- order


UnitT = TypeVar("UnitT", bound=ShardUnit)


@dataclass(frozen=True, slots=True)
class Moment(Generic[UnitT]):
    """A point of forward: a unit is entered or left, or layers run.

    `unit`: of "layers", the innermost unit that they lie in; None for a root without parameters.
    `has_input_grad`: whether something before it is trained, so that autograd comes back to it.
    `has_output_grad`: whether something up to it is trained.
    `is_first`: whether a unit is entered for the first time.
    """

    kind: Literal["enter", "layers", "leave"]
    unit: UnitT | None
    layers: tuple[int, ...] = ()
    has_input_grad: bool = False
    has_output_grad: bool = False
    is_first: bool = True


def walk_units(
    workload: Workload, units: Sequence[UnitT], *, by_layer: bool = False
) -> tuple[Moment[UnitT], ...]:
    """List what forward meets, from the root that it enters first to the root that it leaves.

    A unit lies in another if its path does. A layer without parameters belongs to the innermost
    unit on its path, or to that of the layer before it.

    `by_layer`: units are layers or neighbouring ones, which lie in no other unit.
    """
    named = {unit.name: unit for unit in units}
    if by_layer:
        owner = {tensor: unit for unit in units for tensor in unit.tensors}
        named |= {each.name: owner[each.tensors[0]] for each in workload.layers if each.tensors}
    walk: list[Moment[UnitT]] = []
    open_units: list[UnitT] = []
    entered: set[str] = set()
    trained = False

    def move_to(chain: Sequence[UnitT]) -> None:
        same = sum(
            1
            for _ in itertools.takewhile(
                lambda pair: pair[0] is pair[1], zip(chain, open_units, strict=False)
            )
        )
        while len(open_units) > same:
            walk.append(Moment("leave", open_units.pop(), has_output_grad=trained))
        for unit in chain[same:]:
            walk.append(
                Moment("enter", unit, has_input_grad=trained, is_first=unit.name not in entered)
            )
            entered.add(unit.name)
            open_units.append(unit)

    for index, layer in enumerate(workload.layers):
        for chain in _chains(named, workload, layer, open_units, by_layer):
            move_to(chain)
        inner = open_units[-1] if open_units else None
        trained = trained or bool(layer.tensors)
        before = walk.pop().layers if walk and walk[-1].kind == "layers" else ()
        walk.append(Moment("layers", inner, (*before, index)))
    move_to(())
    return tuple(walk)


def _chains(
    units: Mapping[str, UnitT],
    workload: Workload,
    layer: Layer,
    before: Sequence[UnitT],
    by_layer: bool,
) -> list[list[UnitT]]:
    """Units that a layer needs, outermost first, for each of its tensors; of the largest last."""

    def chain(name: str | None) -> list[UnitT]:
        return [units[path] for path in (ROOT, *module_paths(name or "")) if path in units]

    if by_layer:
        inside = layer.name in units
        return [[*chain(None), units[layer.name]] if inside else list(before) or chain(None)]
    if not layer.tensors:
        name = innermost(units, layer.name)
        inside = name is not None or block_of(layer.name) is None
        return [chain(name) if inside else list(before)]
    tensors = sorted((workload.tensors[i] for i in layer.tensors), key=lambda each: each.numel)
    names = dict.fromkeys(innermost(units, each.name) for each in tensors)
    largest = innermost(units, tensors[-1].name)
    return [chain(name) for name in sorted(names, key=lambda name: name == largest)]
