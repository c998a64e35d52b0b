"""What each layer keeps for backward, in terms that hold for every precision.

A layer keeps elements at the precision of the compute, elements that flow in fp32 under autocast,
second copies that autocast makes, and bytes whatever the precision (masks, indices, sums in fp32).
Three steps tell them apart: one in fp32, one in bf16 and one under autocast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.torch_modules.layer_groups import LayerGroup, layer_of_place
from perfmodel.torch_modules.trace.step_recorder import StepTrace
from perfmodel.workload.kernels.shapes import Convolution

WIDE, HALF = 4, 2
"""Bytes of an element in fp32, and in half precision."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Elements and bytes that a layer keeps, of the whole batch (fields as of `Layer`)."""

    saved_elements: float
    stream_elements: float
    copied_elements: float
    saved_bytes: float


@dataclass(frozen=True, slots=True)
class _Totals:
    """Bytes that a layer keeps: in all, and those in half precision."""

    nbytes: float = 0.0
    half_bytes: float = 0.0


def kept_by_layers(
    groups: Sequence[LayerGroup],
    wide: StepTrace,
    narrow: tuple[Sequence[LayerGroup], StepTrace] | None,
    autocast: tuple[Sequence[LayerGroup], StepTrace] | None,
) -> list[Kept]:
    """Return what each layer keeps.

    `wide`, `narrow`, `autocast`: the step in fp32, in bf16 and under autocast, with its layers;
    without the others real numbers are taken to be as narrow as the compute.
    """
    in_wide = _totals(groups, wide)
    if narrow is None or autocast is None:
        return _by_type(groups, wide)
    names = [group.name for group in groups]
    in_narrow, in_autocast = _as_named(names, *narrow), _as_named(names, *autocast)
    solved = map(_solve, in_wide, in_narrow, in_autocast)
    return [
        _as_copies(each) if group.matrix and isinstance(group.matrix.shape, Convolution) else each
        for group, each in zip(groups, solved, strict=True)
    ]


def _as_copies(layer: Kept) -> Kept:
    """State what a layer of a convolution keeps in fp32 under autocast as kept and copied.

    Streams of such layers are taken to be as narrow as the compute (see `Layer`).
    """
    stream = layer.stream_elements
    return Kept(
        layer.saved_elements + stream, 0.0, layer.copied_elements + stream, layer.saved_bytes
    )


def _as_named(
    names: Sequence[str], groups: Sequence[LayerGroup], trace: StepTrace
) -> list[_Totals]:
    """Totals of the layers of these names; casts that make a layer count for the one before it."""
    places = {name: place for place, name in enumerate(names)}
    totals, at = [_Totals()] * len(names), 0
    for group, own in zip(groups, _totals(groups, trace), strict=True):
        at = places.get(group.name, at)
        before = totals[at]
        totals[at] = _Totals(before.nbytes + own.nbytes, before.half_bytes + own.half_bytes)
    return totals


def _solve(wide: _Totals, narrow: _Totals, autocast: _Totals) -> Kept:
    """Four sums of four unknowns, of which none may be negative."""
    elements = max(0.0, (wide.nbytes - narrow.nbytes) / (WIDE - HALF))
    fixed = max(0.0, wide.nbytes - WIDE * elements)
    stream = (autocast.nbytes - autocast.half_bytes - fixed) / WIDE
    stream = min(elements, max(0.0, stream))
    saved = elements - stream
    copied = max(0.0, autocast.half_bytes / HALF - saved)
    return Kept(saved, stream, copied, fixed)


def _totals(groups: Sequence[LayerGroup], trace: StepTrace) -> list[_Totals]:
    nbytes, half = [0.0] * len(groups), [0.0] * len(groups)
    layers = layer_of_place(groups)
    for tensor in trace.kept:
        layer = layers.get(tensor.place, len(groups) - 1)
        nbytes[layer] += tensor.nbytes
        half[layer] += tensor.nbytes * (tensor.dtype in {"bfloat16", "float16"})
    return [_Totals(*each) for each in zip(nbytes, half, strict=True)]


def _by_type(groups: Sequence[LayerGroup], trace: StepTrace) -> list[Kept]:
    elements, fixed = [0.0] * len(groups), [0.0] * len(groups)
    layers = layer_of_place(groups)
    for tensor in trace.kept:
        layer = layers.get(tensor.place, len(groups) - 1)
        if tensor.is_floating:
            size = {"float64": 8, "bfloat16": HALF, "float16": HALF}.get(tensor.dtype, WIDE)
            elements[layer] += tensor.nbytes / size
        else:
            fixed[layer] += tensor.nbytes
    return [Kept(each, 0.0, 0.0, nbytes) for each, nbytes in zip(elements, fixed, strict=True)]
