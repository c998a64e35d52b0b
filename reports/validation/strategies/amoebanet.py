"""AmoebaNet-D as torchgpipe trains it: cells of two inputs, found by evolution.

Real et al. 2018 (arXiv 1802.01548), with the cells of kakaobrain/torchgpipe
(benchmarks/models/amoebanet), whose parameters are as many as table 1 of GPipe (arXiv 1811.06965)
counts: a normal cell joins its first input and three of its sums, not the last three.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from perfmodel.workload.kernels.element_wise import passes_of
from perfmodel.workload.model import ELEMENT_BYTES, Layer, Workload
from perfmodel.workload.zoo.image_layers import (
    IMAGENET_CLASSES,
    Image,
    convolution,
    hand_on,
    image_model,
    norm_buffers,
    pooling,
)
from perfmodel.workload.zoo.layers import (
    Module,
    linear,
    names,
    norm_parameters,
    weight_and_bias,
    with_work,
)

Kernel = tuple[int, int]
Operation = Callable[[str, Image, int], tuple[list[Module], Image]]
"""From a name, an input and a stride to layers and an output."""


@dataclass(frozen=True, slots=True)
class _Cell:
    """Ten operations, of which neighbours are added, and the states that are joined in the end.

    `operations`: the state that each reads, and what it does. States 0 and 1 are the inputs.
    """

    operations: tuple[tuple[int, Operation], ...]
    joined: tuple[int, ...]


def amoebanet(layers: int, filters: int, *, dtype: str = "fp32", image_size: int = 224) -> Workload:
    """AmoebaNet-D of so many cells and filters."""
    width, image = filters // 4, Image(3, image_size, image_size)
    parts, now = _rectified(
        "stem1.conv", image, width, (3, 3), stride=2, padding=(1, 1), norm="stem1.bn"
    )
    parts = hand_on(parts, now.elements)
    before, reduced_before = now, False
    for path, cell in _cells(layers // 3):
        reduces = cell is _REDUCTION
        width *= 2 if reduces else 1
        block, after = _cell(path, cell, before, now, width, reduced_before)
        parts += hand_on(block, after.elements + now.elements)
        before, now, reduced_before = now, after, reduces
    pool, pooled = pooling("classify.pool", now, 7, stride=7, indices=False)
    head = weight_and_bias("classify.fc", IMAGENET_CLASSES, pooled.elements)
    parts += [pool, linear("classify.fc", 1, pooled.elements, IMAGENET_CLASSES, parameters=head)]
    return image_model(
        f"amoebanet-d-l{layers}-d{filters}",
        parts,
        dtype=dtype,
        image_size=image_size,
        source="kakaobrain/torchgpipe, benchmarks/models/amoebanet; arXiv 1802.01548",
    )


def _cells(repeats: int) -> list[tuple[str, _Cell]]:
    """Cells by name, in order: two that reduce, then three runs of normal ones between two more."""
    cells = [("stem2", _REDUCTION), ("stem3", _REDUCTION)]
    for run, reduction in ((1, "cell2_reduction"), (3, "cell4_reduction"), (5, "")):
        cells += [(f"cell{run}_normal{number}", _NORMAL) for number in range(1, repeats + 1)]
        cells += [(reduction, _REDUCTION)] if reduction else []
    return cells


def _cell(
    path: str, cell: _Cell, before: Image, now: Image, width: int, reduced_before: bool
) -> tuple[list[Module], Image]:
    """Map both inputs to one width, run the operations, add them in pairs, join the states."""
    parts, first = _rectified(f"{path}.reduce1.1", now, width, (1, 1), norm=f"{path}.reduce1.2")
    second = before
    if reduced_before:
        more, second = _halved(f"{path}.reduce2", before, width)
        parts += more
    elif before.channels != width:
        more, second = _rectified(
            f"{path}.reduce2.1", before, width, (1, 1), norm=f"{path}.reduce2.2"
        )
        parts += more
    states, pooled = [first, second], set[int]()
    for place, (state, operation) in enumerate(cell.operations):
        stride = 2 if cell is _REDUCTION and state < 2 else 1
        more, out = operation(f"{path}.operations.{place}.module", states[state], stride)
        if operation in (_averaged, _greatest):
            kept_once = {"saved_elements": 0.0} if state in pooled else {}  # by the first alone
            more = [with_work(each, **kept_once) for each in more]
            pooled.add(state)
        parts += more
        if place % 2:
            states.append(out)
    adds = passes_of("addition") * sum(state.elements for state in states[2:])
    joined = Image(width * len(cell.joined), states[-1].height, states[-1].width)
    moved = float(ELEMENT_BYTES * (adds + passes_of("activation") * joined.elements))
    return [*parts, Module(Layer(f"{path}.joined", vector_bytes=moved, kernels=6))], joined


# ---------------------------------------------------------------- operations


def _rectified(
    name: str,
    image: Image,
    channels: int,
    kernel: Kernel,
    *,
    norm: str,
    stride: int | Kernel = 1,
    padding: Kernel = (0, 0),
    rectifies: bool = True,
) -> tuple[list[Module], Image]:
    """ReLU, a convolution without bias, and batch normalisation, if it is named.

    Kept: what ReLU puts out, and what is normalised.
    """
    part, out = convolution(
        name, image, channels, kernel, stride=stride, padding=padding, norm=norm, relu=False
    )
    passes = passes_of("activation") * rectifies * image.elements + (
        passes_of("batch_norm") * bool(norm) * out.elements
    )
    kernels = 1 + rectifies + 2 * bool(norm)
    return [
        with_work(
            part,
            vector_bytes=float(ELEMENT_BYTES * passes),
            fused_bytes=float(ELEMENT_BYTES * passes),
            fused_kernels=kernels,
            saved_elements=float(image.elements * rectifies + out.elements * bool(norm)),
            kernels=kernels,
        )
    ], out


def _halved(path: str, image: Image, channels: int) -> tuple[list[Module], Image]:
    """Half of the size: two maps, of every second place and of those between, normalised."""
    half = channels // 2
    parts, out = _rectified(f"{path}.conv1", image, half, (1, 1), norm="", stride=2)
    more, _ = _rectified(f"{path}.conv2", image, half, (1, 1), norm="", stride=2, rectifies=False)
    whole = replace(out, channels=channels)
    # cut and padded, joined, normalised
    copies = 2 * passes_of("activation") * image.elements + passes_of("activation") * whole.elements
    passes = float(copies + passes_of("batch_norm") * whole.elements)
    normed = norm_parameters(f"{path}.bn", channels)
    layer = Layer(
        f"{path}.bn",
        vector_bytes=ELEMENT_BYTES * passes,
        kernels=6,
        saved_elements=float(image.elements + whole.elements),
    )
    return [*parts, *more, Module(layer, normed, names(normed), norm_buffers(channels))], whole


def _unchanged(name: str, image: Image, stride: int) -> tuple[list[Module], Image]:
    return ([], image) if stride == 1 else _halved(name, image, image.channels)


def _averaged(name: str, image: Image, stride: int) -> tuple[list[Module], Image]:
    """Average of 3 x 3 ("max_pool_3x3", too, averages there)."""
    part, out = pooling(name, image, 3, stride=stride, padding=1, indices=False)
    return [with_work(part, saved_elements=float(image.elements))], out


def _greatest(name: str, image: Image, stride: int) -> tuple[list[Module], Image]:
    """Greatest of 2 x 2."""
    part, out = pooling(name, image, 2, stride=stride)
    return [with_work(part, saved_elements=float(image.elements))], out


def _convolved(
    kernels: Sequence[tuple[Kernel, int]], name: str, image: Image, stride: int
) -> tuple[list[Module], Image]:
    """Convolutions one after the other: kernel, and by what the width is divided.

    The only one, or those of several places along an axis, step along it.
    """
    parts: list[Module] = []
    channels = image.channels
    for place, (kernel, divisor) in enumerate(kernels):
        steps = [stride if side > 1 or len(kernels) == 1 else 1 for side in kernel]
        more, image = _rectified(
            f"{name}.{3 * place + 1}",
            image,
            channels // divisor,
            kernel,
            norm=f"{name}.{3 * place + 2}",
            stride=(steps[0], steps[1]),
            padding=(kernel[0] // 2, kernel[1] // 2),
        )
        parts += more
    return parts, image


_ONE = (1, 1)
_MAP = partial(_convolved, ((_ONE, 1),))
_SEVEN = partial(_convolved, ((_ONE, 4), ((1, 7), 4), ((7, 1), 4), (_ONE, 1)))
_THREE = partial(_convolved, ((_ONE, 4), ((3, 3), 4), (_ONE, 1)))

_NORMAL = _Cell(
    (
        (1, _MAP),
        (1, _averaged),
        (1, _unchanged),
        (0, _SEVEN),
        (0, _MAP),
        (0, _SEVEN),
        (2, _averaged),
        (2, _unchanged),
        (1, _averaged),
        (5, _MAP),
    ),
    (0, 3, 4, 6),
)
_REDUCTION = _Cell(
    (
        (0, _greatest),
        (0, _averaged),
        (2, _unchanged),
        (1, _THREE),
        (2, _SEVEN),
        (2, _averaged),
        (3, _unchanged),
        (1, _greatest),
        (2, _averaged),
        (3, _MAP),
    ),
    (4, 5, 6),
)
