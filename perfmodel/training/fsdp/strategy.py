"""Fully sharded training as a row of the table of strategies, and the memory that it takes.

That is to the byte what torch 2.13 allocates on a GPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, repeat

from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.fsdp.budgets import bucket_bytes, inputs_kept, window
from perfmodel.training.fsdp.step_plan import fsdp_plan
from perfmodel.training.fsdp.units import (
    BY_LAYER,
    ROOT,
    Moment,
    SizedUnit,
    sized_units,
    split_rows,
    walk_units,
)
from perfmodel.training.memory_use import MemoryUse, Setup, held_in_backward, replicated
from perfmodel.training.strategy import Setting, Strategy
from perfmodel.workload.kernels.device import kernel_constants
from perfmodel.workload.memory.activations import BackwardBytes
from perfmodel.workload.memory.optimizer_states import optimizer_of
from perfmodel.workload.model import ITEM_BYTES, Buffers

FLOATS = ("fp64", "fp32", "fp16", "bf16")


def fsdp_memory(setup: Setup) -> MemoryUse:
    """Add up what the fullest rank keeps: its shards, units while they are whole, and gradients.

    Shards of a rank are those of the first rank, which no other rank exceeds. With `offload`, they
    lie in host memory, and the optimizer's states, too.

    Raises `InputError`: ranks or batch below 1, an unknown precision or optimizer.
    """
    options: FsdpStrategy = setup.options
    use, workload = replicated(setup), setup.workload
    if setup.ranks == 1:
        return use
    units = sized_units(
        workload,
        options,
        options.shard_ranks(setup.ranks),
        setup.gathered_narrow,
        setup.expert_copies,
        cap_bytes=bucket_bytes(
            options, options.shard_ranks(setup.ranks), setup.generation, setup.ranks_per_host
        ),
    )
    shards = rank_shards(units, options, setup.optimizer)
    parameters, gradients, states = (0, 0, 0) if options.offload else shards
    walk = walk_units(workload, units, by_layer=options.wrap in BY_LAYER)
    gathered, held, reduced = _Allocated(options, held_in_backward(setup)).fullest_of(walk)
    missing = gradients - reduced
    return replace(
        use,
        parameters_bytes=parameters + _buffer_bytes(workload.buffers, options),
        gradients_bytes=gradients,
        optimizer_bytes=states,
        activations_bytes=max(0.0, held - missing),
        gathered_bytes=gathered + min(0.0, held - missing),
        idle_bytes=missing,
        host_bytes=sum(shards) if options.offload else 0.0,
    )


def rank_shards(
    units: Sequence[SizedUnit], options: FsdpStrategy, optimizer: str
) -> tuple[int, int, int]:
    """Return bytes that the first rank keeps of parameters, gradients and states, with padding.

    States have the dtype of their parameter. Adam counts steps for each parameter that its
    optimizer sees: a flat one for each unit of version 1, or those of which the rank has a part.
    """
    count_bytes = fixed_in("torch", "step_count_bytes") if optimizer in ("adam", "adamw") else 0
    return (
        # Megatron-FSDP keeps a share in the dtype that it sends, too
        sum(
            unit.own_bytes // unit.ranks
            + (options.version == "megatron" and unit.gathered_dtype != unit.own_dtype)
            * (unit.gathered_bytes // unit.ranks)
            for unit in units
        ),
        sum(unit.kept_gradient_bytes // unit.ranks for unit in units),
        sum(
            own.state_tensors
            * round(own.item_bytes(elements, ITEM_BYTES[unit.own_dtype]) * elements)
            + count_bytes
            for unit in units
            if unit.trained
            for own, elements in zip(
                [optimizer_of(each, optimizer) for each in unit.trained]
                if options.version == 2
                else repeat(kernel_constants().optimizer(optimizer)),
                _updated_elements(unit, options),
                strict=False,
            )
        ),
    )


def _updated_elements(unit: SizedUnit, options: FsdpStrategy) -> list[int]:
    """Elements of each parameter of a unit that the first rank's optimizer updates."""
    if options.version == 2:
        rows = [(split_rows(tensor, unit.ranks), tensor.numel) for tensor in unit.trained]
        return [-(-row // unit.ranks) * (numel // max(row, 1)) for row, numel in rows]
    shard = unit.elements // unit.ranks
    if not options.use_orig_params:
        return [shard]
    begins, trained = accumulate(unit.aligned, initial=0), set(unit.trained)
    parts = (
        min(shard - begin, tensor.numel)
        for begin, tensor in zip(begins, unit.parameters, strict=False)
        if tensor in trained
    )
    return [part for part in parts if part > 0]


def _buffer_bytes(buffers: Iterable[Buffers], options: FsdpStrategy) -> int:
    """Bytes of buffers, which each rank keeps whole; floating-point ones in `buffer_dtype`."""
    return sum(
        group.nbytes // ITEM_BYTES[group.dtype] * ITEM_BYTES[options.buffer_dtype]
        if options.buffer_dtype and group.dtype in FLOATS
        else group.nbytes
        for group in buffers
    )


# ---------------------------------------------------------------- whole units


@dataclass(slots=True)
class _Allocated:
    """What is allocated beside the shards at one point of a micro-batch; bytes.

    Beside the units that are whole: gathers ahead; in version 2 the gather that a unit is copied
    out of; gradients of units that backward is in; the input of the reduction before; and without
    synchronisation the gradients of all units. Activations grow and shrink, and reduced gradients
    add up from unit to unit, unless they go to the memory of the host.

    `whole`: units, or shares of them, by name. `gradients`: of whole units. `inputs`: of reductions
        that are not freed. `counts_shards`: whether reduced gradients add up. `held`: activations.
    `fullest`: whole units with their gradients, activations and shards at the fullest moment.
    """

    options: FsdpStrategy
    activations: BackwardBytes
    whole: dict[str, int] = field(default_factory=dict)
    gradients: dict[str, int] = field(default_factory=dict)
    inputs: list[int] = field(default_factory=list)
    counts_shards: bool = True
    shards: float = 0.0
    held: float = 0.0
    fullest: tuple[float, float, float] = (0.0, 0.0, 0.0)

    def fullest_of(self, walk: Sequence[Moment[SizedUnit]]) -> tuple[float, float, float]:
        """Return the bytes of the fullest moment: of units, activations and reduced gradients."""
        options = self.options
        order = [each.unit for each in walk if each.kind == "enter" and each.unit]
        self.counts_shards = not options.offload
        if options.accumulate > 1 and options.sync == "last":
            # version 2 adds up whole gradients in the dtype of the reduction
            summed = options.reduce_dtype if options.version == 2 else None
            self.gradients = {
                unit.name: unit.reduced_elements * ITEM_BYTES[summed or unit.gathered_dtype]
                for unit in order
            }
        elif options.accumulate > 1:
            for unit in dict.fromkeys(order):
                self._count_shard(unit)
            self.counts_shards = False
        self._forward(walk, order)
        self.held = self.activations.of_loss
        self._note()
        self._backward(walk)
        return self.fullest

    def _note(self, more: int = 0) -> None:
        """Look at the total."""
        units = (self.whole.values(), self.gradients.values(), self.inputs, [more])
        self.fullest = max(self.fullest, (sum(map(sum, units)), self.held, self.shards), key=sum)

    def _count_shard(self, unit: SizedUnit) -> None:
        if self.counts_shards:
            self.shards += unit.kept_gradient_bytes // unit.ranks

    def _gather(self, units: Iterable[SizedUnit]) -> None:
        """Make units whole; version 2 holds the gather and, until then, what it is copied to."""
        for unit in units:
            if unit.name not in self.whole:
                self.whole[unit.name] = unit.gathered_bytes
                self._note(unit.gathered_bytes if self.options.version == 2 else 0)

    def _forward(self, walk: Sequence[Moment[SizedUnit]], order: Sequence[SizedUnit]) -> None:
        options, entered = self.options, 0
        ahead = 0 if options.version == "megatron" else 1 + max(1, options.forward_prefetch)
        for moment in walk:
            unit = moment.unit
            if moment.kind == "layers":
                self._gather(
                    window(options, order, unit, backward=False)
                    if unit and options.version == "megatron"
                    else ()
                )
                self.held = self.activations.of_layers[moment.layers[-1]]
                self._note()
            elif unit and moment.kind == "enter":
                # the host is ahead: version 2 by a gather, version 1 by as many as its limit allows
                self._gather(order[entered : entered + ahead])
                entered += 1
            elif (
                unit
                and options.reshard_after_forward
                and not (unit.is_root and not options.reshard_root)
            ):
                self.whole.pop(unit.name, None)
                if options.regather_gpus is not None:
                    self.whole[_share_of(unit)] = unit.gathered_bytes // options.regather_gpus

    def _backward(self, walk: Sequence[Moment[SizedUnit]]) -> None:
        order = [each.unit for each in reversed(walk) if each.kind == "leave" and each.unit]
        ahead, entered = 1 + self.options.units_ahead, 0
        # what Megatron-FSDP gathered ahead is freed again where backward gathers anything
        self.whole = {
            name: nbytes
            for name, nbytes in self.whole.items()
            if name == ROOT or self.options.version != "megatron" or len(self.whole) == len(order)
        }
        for moment in reversed(walk):
            unit = moment.unit
            if moment.kind == "layers":
                self.held = max(self.activations.of_layers[index] for index in moment.layers)
                self._note()
            elif unit and moment.kind == "leave":
                self._gather(
                    window(self.options, order, unit, backward=True)
                    if self.options.version == "megatron"
                    else order[entered : entered + ahead]
                )
                entered += 1
                self.gradients[unit.name] = max(
                    self.gradients.get(unit.name, 0), unit.gradient_bytes
                )
                self._note()
            elif unit and moment.is_first:
                for name in (_share_of(unit), unit.name):
                    self.whole.pop(name, None)
                self._reduce(unit, inputs_kept(self.options, order, unit))

    def _reduce(self, unit: SizedUnit, kept: int) -> None:
        """Copy gradients to the input of their reduction, and free the oldest inputs."""
        copies = (
            self.options.version != 1
            or (unit.reduced_dtype != unit.gathered_dtype)
            or unit.is_padded
        )
        del self.inputs[: max(0, len(self.inputs) - kept + 1)]
        gradients = self.gradients.pop(unit.name, 0)
        self.inputs.append(unit.reduced_bytes if copies else gradients)
        self._count_shard(unit)
        self._note(gradients if copies else 0)


def _share_of(unit: SizedUnit) -> str:
    """Name of what smaller groups keep of a unit after forward."""
    return f"share of {unit.name}"


# ---------------------------------------------------------------- the row


def _settings(section: FsdpStrategy, ranks: int, nodes: int) -> tuple[Setting, ...]:
    """What is gathered at once, when, and among which GPUs: nothing that changes what is computed.

    Shards are of a node's or of two nodes' GPUs beside those of all.
    """
    own = ranks // nodes
    groups = [gpus for gpus in (own, 2 * own) if 1 < gpus < ranks and ranks % gpus == 0]
    wraps = ("block", "layer", "size", "model")
    of_version = {
        1: (
            Setting("backward_prefetch", ("pre", "post", "none")),
            Setting("limit_all_gathers", (True, False)),
        ),
        2: (Setting("reshard_root", (False, True)),),
        "megatron": (
            Setting("suggested_communication_unit_size", (None, 10**8, 3 * 10**8), "elements"),
            Setting("fsdp_double_buffer", (False, True)),
        ),
    }
    return (
        Setting("wrap", wraps if section.wrap in wraps else (*wraps, section.wrap)),
        Setting("reshard_after_forward", (True, False)),
        Setting("forward_prefetch", (0, 1, 2)),
        *([Setting("shard_gpus", (*groups, None))] if groups else []),
        *of_version[section.version],
    )


FSDP = Strategy(
    "fully sharded data parallel",
    fsdp_plan,
    fsdp_memory,
    held_dtype=lambda options: options.param_dtype,
    lighter=({}, {"reshard_after_forward": True}, {"offload": True}),
    assumptions=(
        "Gathers and reductions of units follow each other in PyTorch's order on one communicator.",
        "Shard groups are neighbours: a node's GPUs before those of the next one.",
    ),
    settings=_settings,
    first_differs=lambda options: options.sync_module_states,
)
