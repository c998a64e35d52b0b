"""Which collectives of their layers forward and backward call, and beside how much work."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from perfmodel.arrays import FloatArray
from perfmodel.workload.memory.recompute import (
    Recompute,
    partly_recomputed_blocks,
    recomputed_blocks,
    recomputed_layers,
    spared_results,
)
from perfmodel.workload.model import LayerTimes, Workload
from perfmodel.workload.shards.calls import CallPhase, LayerCall


@dataclass(frozen=True, slots=True)
class PassCall:
    """A call of one pass.

    `is_after`: whether it follows the kernels of its layer.
    `window_s`: kernels that run while it does; seconds. 0: it is exposed.
    """

    call: LayerCall
    is_after: bool
    window_s: float


def forward_calls(
    workload: Workload, times: LayerTimes, layers: Sequence[int]
) -> tuple[PassCall, ...]:
    """Calls of the forward of some layers, in order."""
    return tuple(
        each for layer in layers for each in _layer_calls(workload, times, layer, "forward")
    )


def backward_calls(
    workload: Workload, times: LayerTimes, layers: Sequence[int], recompute: Recompute
) -> tuple[PassCall, ...]:
    """Calls of the backward of some layers, in order, with those of what runs forward again.

    A checkpoint of Megatron runs its block before the block's backward begins. One of torch does
    when a kept tensor is first asked for, which is after the gradient of the block's result was
    gathered, and stops when it has the last one, before that result is.
    """
    return tuple(_backward_calls(workload, times, layers, recompute))


def _backward_calls(
    workload: Workload, times: LayerTimes, layers: Sequence[int], recompute: Recompute
) -> Iterator[PassCall]:
    is_torch = workload.shard.library == "torch"
    again = _repeated(workload, recompute)
    for layer in layers:
        own = tuple(_layer_calls(workload, times, layer, "backward"))
        first = sum(not each.is_after for each in own) if is_torch else 0
        yield from own[:first]
        for repeated, call in again.get(layer, ()):
            yield _pass_call(call, times, repeated, "forward", is_after=False)
        yield from own[first:]


def _layer_calls(
    workload: Workload, times: LayerTimes, layer: int, phase: CallPhase
) -> Iterator[PassCall]:
    for call in workload.layers[layer].calls:
        if call.phase == phase:
            yield _pass_call(call, times, layer, phase, is_after=call.place == "after")


def _pass_call(
    call: LayerCall, times: LayerTimes, layer: int, phase: CallPhase, *, is_after: bool
) -> PassCall:
    kernels = _kernels_s(times, phase)
    return PassCall(call, is_after, call.overlap * float(kernels[layer]))


def _kernels_s(times: LayerTimes, phase: CallPhase) -> FloatArray:
    """Time of the matrix kernels of each layer, all of its time where they are not known apart."""
    if phase == "forward":
        return times.forward_s if times.matrix_forward_s is None else times.matrix_forward_s
    return times.backward_s if times.matrix_backward_s is None else times.matrix_backward_s


# ---------------------------------------------------------------- recomputation


def _repeated(
    workload: Workload, recompute: Recompute
) -> dict[int, tuple[tuple[int, LayerCall], ...]]:
    """By the layer whose backward begins with it: calls of forward that are repeated, by layer.

    Operations whose results torchtitan's selective checkpoint keeps are attention and the
    reduce-scatter; where results are named, layers that keep theirs call nothing again.
    """
    stops_early = workload.shard.library == "torch"
    repeated: dict[int, tuple[tuple[int, LayerCall], ...]] = {}
    for block in recomputed_blocks(workload, recompute):
        repeated[block[-1]] = tuple(
            (layer, call)
            for layer, call in _forward(workload, block)
            if not (stops_early and layer == block[-1] and call.place == "after")
        )
    for layer in recomputed_layers(workload, recompute):
        repeated[layer] = tuple(_forward(workload, (layer,)))
    for block in partly_recomputed_blocks(workload, recompute):
        spared = spared_results(workload, block, recompute) if recompute.keep else ()
        repeated[block[-1]] = tuple(
            (layer, call)
            for layer, call in _forward(workload, block)
            if (
                layer not in spared
                if recompute.keep
                else call.group != "context" and call.op != "reduce_scatter"
            )
            and not (layer == block[-1] and call.place == "after")
        )
    return repeated


def _forward(workload: Workload, layers: Iterable[int]) -> Iterator[tuple[int, LayerCall]]:
    for layer in layers:
        for call in workload.layers[layer].calls:
            if call.phase == "forward" and call.repeated:
                yield layer, call
