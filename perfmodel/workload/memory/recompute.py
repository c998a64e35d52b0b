"""Recomputation: what forward does not keep, backward runs forward for once more.

A recomputed block (``torch.utils.checkpoint`` around it, Megatron's ``full`` granularity) keeps its
input alone; its backward begins with its whole forward, after which it holds what it would have
kept. Selective recomputation (Megatron's ``selective``, of the core attention) runs the layer
between the projections again: scores, their softmax and its dropout, and the weighted sum. It
keeps query, key and value, and the result, which the projection after it needs. By operations
(torchtitan's selective activation checkpointing ``op``), each block keeps its input, the results of
every second matrix product, from the first on, and of attention; all else runs again.

Of single modules (Megatron's ``recompute-modules``, megatron/core/transformer) feed-forward parts
and experts keep what they read; norms, activations of experts and latent attention's maps to heads
keep what they read and not what they put out (``CheckpointWithoutOutput``), which the layer behind
them reads.

JAX's policies name the results that are kept (``save_only_these_names``, as MaxText has them). What
backward does not need is not run again: of a block its last product, whose result is only added to
what flows between blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from perfmodel.errors import Fault, InputError, failed, raise_faults, refuse_if
from perfmodel.workload.kernels.shapes import (
    Attention,
    Convolution,
    GroupedProduct,
    MatrixProduct,
    Scan,
)
from perfmodel.workload.memory.blocks import repeated_blocks
from perfmodel.workload.model import ELEMENT_BYTES, Layer, LayerTimes, Workload


@dataclass(frozen=True, slots=True)
class Recompute:
    """Which layers backward runs forward of once more.

    `kind`: none of them, attention alone, blocks but for some operations, or whole blocks.
    `blocks`: the first so many of them (Megatron's ``block`` method), of each part of a pipeline;
        None: all.
    `keep`: ends of the names of products and attention whose results are kept, of kind
        "operations"; empty: torchtitan's choice.
    `modules`: of kind "selective", Megatron's names: core_attn, mlp, moe, layernorm, moe_act,
        mla_up_proj.
    """

    kind: Literal["none", "selective", "operations", "full"] = "none"
    blocks: int | None = None
    keep: tuple[str, ...] = ()
    modules: tuple[str, ...] = ("core_attn",)


NO_RECOMPUTE = Recompute()


def recomputed_blocks(
    workload: Workload, recompute: Recompute, parts: Sequence[range] | None = None
) -> tuple[range, ...]:
    """Layers of each block, or of each of its feed-forward parts, that is recomputed as a whole.

    `parts`: layers of each part of a pipeline, of which each has so many; None: one part.
    """
    blocks = repeated_blocks(workload)
    if recompute.kind != "full":
        return tuple(
            part
            for block in blocks
            if recompute.kind == "selective"
            and (part := _feed_forward(workload, block))
            and ("moe" if _has_experts(workload, part) else "mlp") in recompute.modules
        )
    if parts is None:
        return blocks[: recompute.blocks]
    of_parts = ([block for block in blocks if block.start in part] for part in parts)
    return tuple(block for own in of_parts for block in own[: recompute.blocks])


def recomputed_layers(workload: Workload, recompute: Recompute) -> frozenset[int]:
    """Layers of which each is recomputed by itself."""
    if recompute.kind != "selective" or "core_attn" not in recompute.modules:
        return frozenset()
    return frozenset(i for i, layer in enumerate(workload.layers) if is_attention(layer))


def _feed_forward(workload: Workload, block: range) -> range:
    """Layers of a block behind its attention and the map that follows it; empty without any."""
    layers = workload.layers
    attended = [i for i in block if is_attention(layers[i]) or isinstance(layers[i].matrix, Scan)]
    return range(attended[-1] + 2 if attended else block.stop, block.stop)


def _has_experts(workload: Workload, layers: range) -> bool:
    return any(isinstance(workload.layers[i].matrix, GroupedProduct) for i in layers)


def remade_inputs(workload: Workload, recompute: Recompute) -> dict[int, tuple[float, list[int]]]:
    """Layers whose input, or a part of it, is made again before their backward.

    Elements of it per sample, and the products that put it out; none: an element-wise kernel.
    """
    found: dict[int, tuple[float, list[int]]] = {}
    if recompute.kind != "selective":
        return found
    layers = workload.layers
    for block in repeated_blocks(workload):
        width = input_elements(layers[block.start])
        for i in block:
            grouped = isinstance(layers[i].matrix, GroupedProduct)
            second = grouped and isinstance(layers[i - 1].matrix, GroupedProduct)
            normed = layers[i].norm_bytes and input_elements(layers[i]) == width
            if (second and "moe_act" in recompute.modules) or (
                normed and "layernorm" in recompute.modules
            ):
                found[i] = input_elements(layers[i]), []
            if is_attention(layers[i]) and "mla_up_proj" in recompute.modules:
                before = _products(workload, range(block.start, i))
                maps = [each for each in before if input_elements(layers[each]) != width]
                found[i] = sum(result_elements(layers[each]) for each in maps), maps
    return {i: each for i, each in found.items() if each[0]}


def partly_recomputed_blocks(workload: Workload, recompute: Recompute) -> tuple[range, ...]:
    """Layers of each block of which all but some operations run again."""
    return repeated_blocks(workload) if recompute.kind == "operations" else ()


def kept_results(
    workload: Workload, layers: range, recompute: Recompute, *, compiled: bool = False
) -> tuple[int, ...]:
    """Layers of a block whose product or attention keeps its result, recomputed by operations.

    `compiled`: without that of the last product, which is only added to what flows between blocks,
        so that backward does not need it. Where results are named, those are kept.
    """
    products = _products(workload, layers)
    if recompute.keep:
        return tuple(
            i
            for i in layers
            if (i in products or is_attention(workload.layers[i]))
            and is_named(workload.layers[i], recompute.keep)
        )
    if compiled and len(products) % 2:
        products = products[:-1]
    return (*products[::2], *(i for i in layers if is_attention(workload.layers[i])))


def spared_results(workload: Workload, layers: range, recompute: Recompute) -> tuple[int, ...]:
    """Layers of a block whose product or attention does not run again, recomputed by operations.

    Those whose results are kept, and where results are named the last product.
    """
    last = _products(workload, layers)[-1:] if recompute.keep else []
    return tuple(dict.fromkeys([*kept_results(workload, layers, recompute), *last]))


def _products(workload: Workload, layers: range) -> list[int]:
    kinds = (MatrixProduct, GroupedProduct)
    return [i for i in layers if isinstance(workload.layers[i].matrix, kinds)]


def is_named(layer: Layer, names: Sequence[str]) -> bool:
    """Whether a layer's name ends with one of some names."""
    return any(f".{layer.name}".endswith(f".{name}") for name in names)


def is_attention(layer: Layer) -> bool:
    """Whether a layer is the core attention, between the projections."""
    return layer.kind == "attention" or isinstance(layer.matrix, Attention)


def check_recompute(workload: Workload, recompute: Recompute) -> None:
    """Raise InputError where a model does not have what is to be recomputed."""
    if recompute.kind == "none":
        return
    name, blocks = workload.name, len(repeated_blocks(workload))
    is_selective = recompute.kind == "selective"
    lacking = [each for each in recompute.modules if is_selective and not _found(workload, each)]
    shape = failed(
        (
            lacking == ["core_attn"],
            "recompute",
            f"selective for {name!r}, which has no layer of attention",
            "none, full or blocks",
        ),
        (
            bool(lacking) and lacking != ["core_attn"],
            "recompute.modules",
            f"{lacking} for {name!r}, which has none",
            "modules that its blocks have",
        ),
        (
            not is_selective and not blocks,
            "recompute",
            f"recomputed blocks of {name!r}, whose layers are not in numbered blocks",
            "none or selective",
        ),
        (
            not is_selective and 0 < blocks < (recompute.blocks or 0),
            "recompute",
            f"{recompute.blocks} blocks",
            f"1 to {blocks}, the blocks of {name!r}",
        ),
    )
    raise_faults(shape or _name_faults(workload, recompute))
    refuse_if(
        not workload.states_activations,
        "recompute",
        f"recomputation of {name!r}, of which no activations are known",
        "none, or a model that states what layers keep",
    )


def _found(workload: Workload, module: str) -> bool:
    """Whether a model has a module."""
    alone = Recompute("selective", modules=(module,))
    return bool(
        recomputed_layers(workload, alone)
        or recomputed_blocks(workload, alone)
        or remade_inputs(workload, alone)
    )


def _name_faults(workload: Workload, recompute: Recompute) -> list[Fault]:
    """Return faults of names of results that no block has."""
    layers = [
        workload.layers[i]
        for block in repeated_blocks(workload)
        for i in block
        if _products(workload, range(i, i + 1)) or is_attention(workload.layers[i])
    ]
    allowed = sorted({layer.name.rpartition(".")[2] for layer in layers})
    return [
        Fault(f"recompute.keep.{at}", repr(name), f"a product of {workload.name!r}: {allowed}")
        for at, name in enumerate(recompute.keep)
        if not any(is_named(layer, (name,)) for layer in layers)
    ]


def add_recompute(
    workload: Workload,
    times: LayerTimes,
    recompute: Recompute,
    parts: Sequence[range] | None = None,
) -> LayerTimes:
    """Return the times with forward of what is recomputed in backward.

    A block runs its whole forward before the backward of its last layer, which therefore has the
    time and the kernels of all of it. `parts`: see `recomputed_blocks`.

    Raises `InputError`: a model that does not have what is to be recomputed.
    """
    check_recompute(workload, recompute)
    backward_s, kernels = times.backward_s.copy(), times.backward_kernels.copy()
    own = recomputed_layers(workload, recompute)
    for layers in partly_recomputed_blocks(workload, recompute):
        again_s, again_kernels = _partly_again(workload, times, layers, recompute)
        backward_s[layers[-1]] += again_s
        kernels[layers[-1]] += again_kernels
    for i, (_, products) in remade_inputs(workload, recompute).items():
        matrix_s = 0.0 if times.matrix_forward_s is None else times.matrix_forward_s[i]
        again_s = times.forward_s[products].sum() if products else times.forward_s[i] - matrix_s
        backward_s[i] += again_s
        kernels[i] += times.forward_kernels[products].sum() if products else 1
    for layers in (*recomputed_blocks(workload, recompute, parts), *(range(i, i + 1) for i in own)):
        again = slice(layers.start, layers.stop)
        backward_s[layers[-1]] += times.forward_s[again].sum()
        kernels[layers[-1]] += times.forward_kernels[again].sum()
    return replace(times, backward_s=backward_s, backward_kernels=kernels)


def _partly_again(
    workload: Workload, times: LayerTimes, layers: range, recompute: Recompute
) -> tuple[float, int]:
    """Time and kernels of a block without the products and attention that do not run again."""
    if times.matrix_forward_s is None:
        text = "operations, with layer times of which products are no part of their own"
        raise InputError(Fault("recompute", text, "none, selective, full or blocks"))
    whole, results = (
        slice(layers.start, layers.stop),
        list(spared_results(workload, layers, recompute)),
    )
    again_s = times.forward_s[whole].sum() - times.matrix_forward_s[results].sum()
    return float(again_s), int(times.forward_kernels[whole].sum()) - len(results)


def result_elements(layer: Layer) -> float:
    """Elements that a layer's product or attention puts out, per sample."""
    match layer.matrix:
        case MatrixProduct(rows=rows, columns=columns, count=count):
            return float(rows * columns * count)
        case GroupedProduct(rows=grouped_rows, columns=columns):
            return float(grouped_rows * columns)
        case Attention() as attention:
            return float(
                attention.sequences * attention.tokens * attention.heads * attention.value_size
            )
    return 0.0


def input_elements(layer: Layer) -> float:
    """Elements that a layer reads, per sample: what a checkpoint before it keeps.

    Where ranks gather their parts of it, a rank keeps its own part.
    """
    return _read_elements(layer) / max(
        (call.ranks for call in layer.calls if call.gathers_input), default=1
    )


def _read_elements(layer: Layer) -> float:
    match layer.matrix:
        case MatrixProduct(rows=rows, depth=depth, count=count):
            return float(rows * depth * count)
        case GroupedProduct(rows=grouped_rows, depth=depth):
            return float(grouped_rows * depth)
        case Convolution() as convolution:
            return float(convolution.in_elements)
        case Attention() as attention:
            queries = attention.tokens * attention.heads * attention.head_size
            pair = attention.head_size + attention.value_size
            pairs = attention.all_keys * attention.kv_heads * pair
            return float(attention.sequences * (queries + pairs))
    moved = layer.matmul_bytes if layer.matmul_flops else layer.vector_bytes
    return moved / ELEMENT_BYTES / 2  # read and written
