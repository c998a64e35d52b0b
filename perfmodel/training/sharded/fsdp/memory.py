"""Memory that fully sharded training takes on a GPU, to the byte what torch 2.13 allocates."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from perfmodel.training.memory.use import MemoryUse, Setup, held_in_backward, replicated
from perfmodel.training.sharded.fsdp.options import MIN_WRAPPED, FsdpOptions
from perfmodel.training.sharded.fsdp.unit_sizes import UnitSizes, unit_sizes
from perfmodel.training.sharded.fsdp.units import (
    Moment,
    ShardUnit,
    split_rows,
    walk_units,
    wrap_units,
)
from perfmodel.workload.kernels.device import kernel_constants
from perfmodel.workload.memory.activations import BackwardBytes
from perfmodel.workload.model import ITEM_BYTES, Buffers

STEP_BYTES = 4
"""Of the count of steps that Adam keeps for each parameter (a float32 tensor, torch/optim/adam.py);
unless fused, it lies in host memory."""

FLOATS = ("fp64", "fp32", "fp16", "bf16")


def fsdp_memory(setup: Setup) -> MemoryUse:
    """Add up what the fullest rank keeps: its shards, units while they are whole, and gradients.

    Shards of a rank are those of the first rank, which no other rank exceeds. With `offload`, they
    lie in host memory, and the optimizer's states, too.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    use, options = replicated(setup), setup.options
    assert isinstance(options, FsdpOptions)
    if setup.ranks == 1:
        return use
    units = wrap_units(
        setup.workload,
        options.wrap,
        options.wrap_elements or MIN_WRAPPED,
        experts_apart=setup.expert_copies is not None,
    )
    sizes = unit_sizes(
        setup.workload,
        options,
        options.shard_ranks(setup.ranks),
        setup.gathered_narrow,
        setup.expert_copies,
    )
    shards = rank_shards(sizes, units, setup.optimizer)
    on_host = 0.0
    if options.offload:
        on_host = shards.parameters_bytes + shards.gradients_bytes + shards.optimizer_bytes
        shards = RankShards(0, 0, 0)
    walk = walk_units(setup.workload, units, by_layer=options.wrap == "layer")
    state = walk_memory(sizes, walk, held_in_backward(setup), offload=options.offload)
    missing_bytes = shards.gradients_bytes - state.shards_bytes
    return replace(
        use,
        parameters_bytes=shards.parameters_bytes + buffer_bytes(setup.workload.buffers, options),
        gradients_bytes=shards.gradients_bytes,
        optimizer_bytes=shards.optimizer_bytes,
        activations_bytes=max(0.0, state.held_bytes - missing_bytes),
        gathered_bytes=state.gathered_bytes + min(0.0, state.held_bytes - missing_bytes),
        idle_bytes=missing_bytes,
        host_bytes=on_host,
    )


@dataclass(frozen=True, slots=True)
class RankShards:
    """Bytes that the first rank keeps of parameters, of their gradients and of their states."""

    parameters_bytes: int
    gradients_bytes: int
    optimizer_bytes: int


def rank_shards(sizes: UnitSizes, units: Sequence[ShardUnit], optimizer: str) -> RankShards:
    """Add up the shards of the first rank, what pads them included.

    States have the dtype of their parameter. Adam counts steps for each parameter that its
    optimizer sees: a flat one for each unit of version 1, or those of which the rank has a part.
    """
    states = kernel_constants().optimizer(optimizer).state_tensors
    counts_steps = optimizer in ("adam", "adamw")
    parameters = gradients = state_bytes = 0
    for unit in units:
        item = ITEM_BYTES[sizes.own_dtype(unit)]
        parameters += sizes.own_bytes(unit) // sizes.ranks_of(unit)
        gradients += sizes.kept_gradient_bytes(unit) // sizes.ranks_of(unit)
        updated = _updated_elements(sizes, unit)
        state_bytes += states * item * sum(updated) + counts_steps * STEP_BYTES * len(updated)
    return RankShards(parameters, gradients, state_bytes)


def _updated_elements(sizes: UnitSizes, unit: ShardUnit) -> list[int]:
    """Elements of each parameter of a unit that the first rank's optimizer updates."""
    trained = sizes.trained(unit)
    if not trained:
        return []
    if sizes.options.version == 2:
        ranks = sizes.ranks_of(unit)
        rows = [(split_rows(tensor, ranks), tensor.numel) for tensor in trained]
        return [-(-row // ranks) * (numel // max(row, 1)) for row, numel in rows]
    shard = sizes.elements(unit) // sizes.ranks
    if not sizes.options.use_orig_params:
        return [shard]
    return [part for part in _parts(sizes, unit, shard) if part]


def _parts(sizes: UnitSizes, unit: ShardUnit, shard: int) -> Iterator[int]:
    """Elements of each trained parameter that lie in the first rank's share of a flat one."""
    begin = 0
    for index, tensor, aligned in zip(
        unit.tensors, sizes.tensors(unit), sizes.aligned(unit), strict=True
    ):
        if index in sizes.ready:
            yield max(0, min(shard - begin, tensor.numel))
        begin += aligned


def buffer_bytes(buffers: Sequence[Buffers], options: FsdpOptions) -> int:
    """Bytes of buffers, which each rank keeps whole; floating-point ones in `buffer_dtype`."""
    total = 0
    for group in buffers:
        cast = options.buffer_dtype if group.dtype in FLOATS else None
        total += group.nbytes // ITEM_BYTES[group.dtype] * ITEM_BYTES[cast or group.dtype]
    return total


# ---------------------------------------------------------------- whole units


@dataclass(frozen=True, slots=True)
class FullestMoment:
    """What a GPU holds beside parameters and states at the fullest moment of a micro-batch; bytes.

    `gathered_bytes`: of whole units and their gradients.
    `held_bytes`: of activations.
    `shards_bytes`: of the gradients that have been reduced by then.
    """

    gathered_bytes: float = 0.0
    held_bytes: float = 0.0
    shards_bytes: float = 0.0

    @property
    def total_bytes(self) -> float:
        """All of them."""
        return self.gathered_bytes + self.held_bytes + self.shards_bytes


@dataclass(slots=True)
class _Allocated:
    """What is allocated beside the shards at one point of a step; bytes.

    `shards`: of reduced gradients.
    `held`: activations.
    """

    sizes: UnitSizes
    whole: dict[str, int]
    gradients: dict[str, int]
    inputs: list[int]
    activations: BackwardBytes
    counts_shards: bool = True
    shards: float = 0.0
    held: float = 0.0
    fullest: FullestMoment = FullestMoment()

    def note(self, more: int = 0) -> None:
        """Look at the total."""
        gathered = sum(self.whole.values()) + sum(self.gradients.values()) + sum(self.inputs)
        moment = FullestMoment(gathered + more, self.held, self.shards)
        if moment.total_bytes > self.fullest.total_bytes:
            self.fullest = moment


def walk_memory(
    sizes: UnitSizes, walk: Sequence[Moment], activations: BackwardBytes, *, offload: bool
) -> FullestMoment:
    """Find the fullest moment of a micro-batch.

    Beside the units that are whole: gathers ahead; in version 2 the gather that a unit is copied
    out of; gradients of units that backward is in; the input of the reduction before; and without
    synchronisation the gradients of all units. Activations grow and shrink, and reduced gradients
    add up from unit to unit.

    `offload`: reduced gradients go to the memory of the host.
    """
    options = sizes.options
    state = _Allocated(sizes, {}, {}, [], activations, counts_shards=not offload)
    order = [moment.unit for moment in walk if moment.kind == "enter" and moment.unit]
    if options.accumulate > 1 and options.sync != "last":
        for unit in {unit.name: unit for unit in order}.values():
            _count_shard(state, unit)
        state.counts_shards = False
    if options.sync == "last" and options.accumulate > 1:
        item = _accumulated_dtype(options)
        for unit in order:
            nbytes = ITEM_BYTES[item or sizes.gathered_dtype(unit)]
            state.gradients[unit.name] = sizes.reduced_elements(unit) * nbytes
    _forward(state, walk, order)
    state.held = activations.of_loss
    state.note()
    _backward(state, walk)
    return state.fullest


def _count_shard(state: _Allocated, unit: ShardUnit) -> None:
    if state.counts_shards:
        state.shards += state.sizes.kept_gradient_bytes(unit) // state.sizes.ranks_of(unit)


def _accumulated_dtype(options: FsdpOptions) -> str | None:
    """What version 2 adds up whole gradients in: that of the reduction."""
    return options.reduce_dtype if options.version == 2 else None


def _gather(state: _Allocated, unit: ShardUnit | None) -> None:
    """Make a unit whole; version 2 holds the gather and, until then, what it is copied to."""
    if unit is None or unit.name in state.whole:
        return
    nbytes = state.sizes.gathered_bytes(unit)
    state.whole[unit.name] = nbytes
    state.note(nbytes if state.sizes.options.version == 2 else 0)


def _forward(state: _Allocated, walk: Sequence[Moment], order: Sequence[ShardUnit]) -> None:
    options, entered = state.sizes.options, 0
    for moment in walk:
        stays = moment.unit is not None and moment.unit.is_root and not options.reshard_root
        if moment.kind == "enter" and moment.unit:
            entered += 1
            _gather(state, moment.unit)
            # the host is ahead: version 2 by a gather, version 1 by as many as its limit allows
            for ahead in order[entered : entered + max(1, options.forward_prefetch)]:
                _gather(state, ahead)
        elif moment.kind == "layers":
            state.held = state.activations.of_layers[moment.layers[-1]]
            state.note()
        elif moment.unit is None:
            continue
        elif options.reshard_after_forward and not stays:
            _shrink(state, moment.unit)


def _shrink(state: _Allocated, unit: ShardUnit) -> None:
    """Free a unit after forward, but for what smaller groups keep of it."""
    smaller = state.sizes.options.regather_gpus
    state.whole.pop(unit.name, None)
    if smaller is not None:
        state.whole[f"share of {unit.name}"] = state.sizes.gathered_bytes(unit) // smaller


def _backward(state: _Allocated, walk: Sequence[Moment]) -> None:
    sizes, options = state.sizes, state.sizes.options
    order = [moment.unit for moment in reversed(walk) if moment.kind == "leave" and moment.unit]
    entered = 0
    for moment in reversed(walk):
        unit = moment.unit
        if moment.kind == "layers":
            state.held = max(state.activations.of_layers[index] for index in moment.layers)
            state.note()
            continue
        if unit is None:
            continue
        if moment.kind == "leave":
            entered += 1
            _gather(state, unit)
            if options.backward_prefetch == "pre":
                _gather(state, order[entered] if entered < len(order) else None)
            earlier = state.gradients.get(unit.name, 0)
            state.gradients[unit.name] = max(earlier, sizes.gradient_bytes(unit))
            state.note()
        elif moment.is_first:
            state.whole.pop(f"share of {unit.name}", None)
            state.whole.pop(unit.name, None)
            _reduce(state, unit)


def _reduce(state: _Allocated, unit: ShardUnit) -> None:
    """Copy gradients to the input of their reduction, and free the oldest input."""
    sizes, options = state.sizes, state.sizes.options
    copies = options.version == 2 or sizes.reduced_dtype(unit) != sizes.gathered_dtype(unit)
    copies = copies or sizes.is_padded(unit)
    del state.inputs[: max(0, len(state.inputs) - options.reduce_buffers + 1)]
    gradients = state.gradients.pop(unit.name, 0)
    state.inputs.append(sizes.reduced_bytes(unit) if copies else gradients)
    _count_shard(state, unit)
    state.note(gradients if copies else 0)
