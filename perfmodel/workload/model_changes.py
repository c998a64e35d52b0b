"""Low-rank adapters beside frozen maps (LoRA: Hu et al. 2021, arXiv 2106.09685).

Every weight of the model is frozen: backward makes gradients of inputs, none of weights. Beside a
chosen map with input x its adapter adds ``scale * B(A(dropout(x)))`` with two weights that are
trained.

What the layers of a model are where kernels written by hand fuse, or documents are packed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import chain, groupby
from typing import Any

from perfmodel.errors import Fault, raise_faults, refuse_if
from perfmodel.scenario.sections.model import AdaptersSection
from perfmodel.workload.kernels.element_wise import kernels_of, passes_of
from perfmodel.workload.kernels.shapes import WIDE_BYTES, Attention, GroupedProduct, MatrixProduct
from perfmodel.workload.layer_calls import Calls, LayerCall, tensor_call
from perfmodel.workload.memory.recompute import result_elements
from perfmodel.workload.model import ELEMENT_BYTES, Layer, ParameterTensor, Workload
from perfmodel.workload.shard import Shard
from perfmodel.workload.zoo.layers import MASK_BYTES, linear

FORWARD_SHARE = 3 / 8
"""Forward's part of what element-wise kernels of both passes move, where backward is taken to move
5/3 of forward (`kernel_constants.yaml`)."""
TWO_PRODUCTS = 2
"""Of backward: of an input's gradient and of a weight's."""
QKV = ("q_proj", "k_proj", "v_proj")
JOINED = {"qkv_proj": QKV, "gate_up_proj": ("gate_proj", "up_proj")}
"""Maps that libraries of model parallelism run as one product, and their parts elsewhere."""


def add_adapters(workload: Workload, adapters: AdaptersSection) -> Workload:
    """Freeze a model, or what one rank holds of it, and add adapters to its maps.

    A tensor group shares them as NeMo's ``ParallelLinearAdapter``: A's rows where the map is cut by
    rows, B's columns always (torch: where the map's are). Of a map cut by rows B's parts are
    exchanged as wide as the model.

    Raises `InputError`: a target that no map has, a model without maps of stated shapes.
    """
    _check_targets(workload, adapters)
    dtype = workload.tensors[0].dtype
    tensors, layers = list(workload.tensors), list[Layer]()
    for target, part in groupby(workload.layers, key=lambda layer: _target_of(layer, adapters)):
        members = list(part)
        for maps in [members] if target in JOINED else [[layer] for layer in members]:
            layers += map(_frozen, maps, [target is not None] * len(maps))
            if target is not None:
                for layer, shape in _adapter(maps, adapters, workload.shard):
                    layers.append(replace(layer, tensors=(len(tensors),)))
                    tensors.append(ParameterTensor(f"{layer.name}.weight", shape, dtype))
    return replace(
        workload,
        tensors=tuple(tensors),
        layers=tuple(_without_backward(layers)),
        notes=(*workload.notes, f"Adapters of rank {adapters.rank}; all else is frozen."),
    )


def _check_targets(workload: Workload, adapters: AdaptersSection) -> None:
    used = {_target_of(layer, adapters) for layer in workload.layers}
    names = sorted(
        {
            layer.name.rpartition(".")[2]
            for layer in workload.layers
            if isinstance(layer.matrix, MatrixProduct)
        }
    )
    raise_faults(
        Fault(f"adapters.targets.{at}", repr(target), f"a map of {workload.name}: {names}")
        for at, target in enumerate(adapters.targets)
        if target not in used and not any(target in JOINED.get(str(each), ()) for each in used)
    )


def _target_of(layer: Layer, adapters: AdaptersSection) -> str | None:
    """The target that a layer is, or is a part of; None: it has no adapter."""
    if not isinstance(layer.matrix, MatrixProduct):
        return None
    named = (
        target
        for target in adapters.targets
        if any(_ends_with(layer.name, each) for each in (target, *JOINED.get(target, ())))
    )
    joined = (
        name
        for name, parts in JOINED.items()
        if _ends_with(layer.name, name) and set(parts) & set(adapters.targets)
    )
    return next(chain(named, joined), None)


def _ends_with(name: str, end: str) -> bool:
    return f".{name}".endswith(f".{end}")


def _frozen(layer: Layer, has_adapter: bool) -> Layer:
    """A layer whose weights have no gradient: its input is not kept for one.

    An adapter of its own keeps that input, the whole of it where a tensor group gathered it. For no
    gradient of the weight nothing is gathered again (Transformer Engine's
    ``backward_input_needs_gather``, Megatron-Core's ``LinearWithFrozenWeight``).
    """
    if not layer.tensors and not (layer.matmul_flops and layer.weight_elements):
        return layer
    gathers = any(call.gathers_input for call in layer.calls)
    # a kept share of the input is gathered for the gradient of the weight
    regathers = [
        call
        for call in layer.calls
        if gathers and (call.group, call.op, call.phase) == ("tensor", "all_gather", "backward")
    ]
    spared = 0.0
    if isinstance(layer.matrix, MatrixProduct):
        whole = float(layer.matrix.rows * layer.matrix.depth)
        if not has_adapter:
            spared = whole
        elif regathers:
            spared = whole / regathers[0].ranks - whole
    fused = layer.fused_kept
    return replace(
        layer,
        tensors=(),
        gradients=1,
        saved_elements=max(0.0, layer.saved_elements - spared),
        copied_elements=0.0 if spared > 0 else layer.copied_elements,
        fused_kept=fused and replace(fused, saved_elements=max(0.0, fused.saved_elements - spared)),
        calls=tuple(
            _beside_one_product(call)
            for call in layer.calls
            if call.phase != "step" and call not in regathers
        ),
    )


def _beside_one_product(call: LayerCall) -> LayerCall:
    """A call of backward without the product of the weight's gradient.

    Sums of inputs' gradients ran beside it, and wait now. A gather that is cut runs beside the
    other, which is all of backward.
    """
    if call.phase != "backward" or call.group != "tensor":
        return call
    return replace(
        call, overlap=min(1.0, TWO_PRODUCTS * call.overlap) if call.op == "all_gather" else 0.0
    )


def _without_backward(layers: Iterable[Layer]) -> Iterator[Layer]:
    """Leave out backward of what stands before the first trained weight: tables."""
    trained = False
    for layer in layers:
        trained = trained or bool(layer.tensors)
        yield layer if trained or layer.matmul_flops else replace(layer, gradients=0)


def _adapter(
    maps: list[Layer], adapters: AdaptersSection, shard: Shard
) -> list[tuple[Layer, tuple[int, int]]]:
    """Both layers of an adapter of maps with one input, with the shape of their weights."""
    products = [layer.matrix for layer in maps if isinstance(layer.matrix, MatrixProduct)]
    first = products[0]
    tokens, inputs, width = first.rows, first.depth, adapters.rank
    outputs = sum(product.columns for product in products)
    # a tensor group shares the rows of a map whose forward ends with a sum
    by_rows = any((call.phase, call.place) == ("forward", "after") for call in maps[0].calls)
    if by_rows and shard.library == "megatron":
        outputs //= shard.tensor
    narrow, whole, drops = float(tokens * inputs), float(tokens * outputs), adapters.dropout
    # a sum and a scale forward, the scale and the sum of the input's gradients backward
    both = 2 * passes_of("adapter_scale") * whole + passes_of("addition") * (whole + narrow)
    prefix = maps[0].name if len(maps) == 1 else f"{maps[0].name.rpartition('.')[0]}.qkv_proj"
    down = _map(
        f"{prefix}.lora_A",
        (tokens, inputs, width),
        vector_elements=passes_of("dropout") * narrow * drops,
        saved_elements=narrow * drops,
        saved_bytes=MASK_BYTES * narrow * drops,
        kernels=1 + drops,
    )
    up = _map(
        f"{prefix}.lora_B",
        (tokens, width, outputs),
        vector_elements=FORWARD_SHARE * both,
        saved_elements=float(tokens * width),
        kernels=3,
    )
    if shard.tensor > 1:
        first_calls, last_calls = (
            _row_calls(shard, tokens * width, float(tokens * outputs * shard.tensor), adapters)
            if by_rows
            else _column_calls(shard, tokens * width, narrow)
        )
        down, up = replace(down, calls=first_calls), replace(up, calls=last_calls)
    return [(down, (width, inputs)), (up, (outputs, width))]


def _map(name: str, sizes: tuple[int, int, int], **work: Any) -> Layer:
    """A map without bias. Kernels beside it are its own: libraries do not fuse them."""
    return replace(
        linear(name, *sizes, parameters=(), **work).layer, fused_bytes=None, fused_kernels=1
    )


def _row_calls(
    shard: Shard, narrow: float, whole: float, adapters: AdaptersSection
) -> tuple[Calls, Calls]:
    """Of A and B beside a map cut by rows: sums of A's parts, then B's columns made whole.

    Each rank keeps its tokens of these, whose gradient is gathered (``linear_out`` with
    ``gather_output``, ``scatter_to_sequence_parallel_region``, ``all2all_hp2sp``).

    `narrow`, `whole`: elements of the result of A, and of B in all ranks.
    """
    down = (tensor_call(shard, "all_reduce", narrow, "forward", "after"),)
    if shard.library == "torch":
        return down, ()
    if shard.sequence_parallel and adapters.a2a_experimental:
        part = whole / shard.tensor
        return down, (
            tensor_call(shard, "all_to_all", part, "forward", "after"),
            tensor_call(shard, "all_to_all", part, "backward", "before"),
        )
    gather = tensor_call(shard, "all_gather", whole, "forward", "after")
    if not shard.sequence_parallel:
        return down, (gather,)
    return down, (gather, tensor_call(shard, "all_gather", whole, "backward", "before"))


def _column_calls(shard: Shard, narrow: float, inputs: float) -> tuple[Calls, Calls]:
    """Of A and B beside a map cut by columns: sums of the gradient that B's columns make.

    The map's gathered input is A's, too, unless it was gathered in parts beside products of the map
    (``return_layernorm_output_gathered`` is off with ``tp_comm_overlap``): A gathers it again.

    `narrow`, `inputs`: elements of the result of A, and of its input.
    """
    down = [tensor_call(shard, "all_reduce", narrow, "backward", "before")]
    if shard.sequence_parallel and shard.library == "megatron" and shard.hides == "asynchronous":
        down.append(tensor_call(shard, "all_gather", inputs, "forward", "before"))
        down.append(tensor_call(shard, "reduce_scatter", inputs, "backward", "after"))
    return tuple(down), ()


def fuse_by_hand(workload: Workload) -> Workload:
    """Return the workload with what kernels written by hand do not fuse.

    Dropout of scores: Megatron's and apex's kernels scale, mask and normalise these at once, the
    rest is PyTorch's. What routes tokens and takes them to experts: operations of their own.
    """
    return replace(
        workload,
        layers=tuple(
            replace(
                layer,
                dropout_apart=True,
                fused_kernels=kernels_of("fused_routing")
                if isinstance(layer.matrix, GroupedProduct) and not layer.matrix.single_kernel
                else layer.fused_kernels,
            )
            for layer in workload.layers
        ),
    )


def chunk_loss(workload: Workload) -> Workload:
    """Return the workload with head and loss as one operation over chunks of tokens.

    As Liger-Kernel has it (ops/fused_linear_cross_entropy.py), whose kernel of cross entropy moves
    what a compiler's does and leaves the gradient of the logits in their place.
    Raises `InputError`: no loss over a vocabulary.
    """
    refuse_if(
        not any(layer.wide_bytes for layer in workload.layers),
        "fused_loss",
        f"fused with the head of {workload.name!r}, which has no loss over a vocabulary",
        "false",
    )
    layers = (_with_chunked_loss(layer) if layer.wide_bytes else layer for layer in workload.layers)
    return replace(workload, layers=tuple(layers))


def _with_chunked_loss(layer: Layer) -> Layer:
    logits, fused = result_elements(layer), layer.fused_kept
    is_wide = layer.saved_bytes >= WIDE_BYTES * logits
    less = passes_of("fused_loss") * ELEMENT_BYTES * logits - layer.wide_bytes
    return replace(
        layer,
        vector_bytes=layer.vector_bytes + less,
        wide_bytes=0.0,
        chunked_loss=True,
        saved_bytes=layer.saved_bytes - is_wide * WIDE_BYTES * logits,
        stream_elements=layer.stream_elements - (not is_wide) * logits,
        fused_kept=fused and replace(fused, saved_elements=fused.saved_elements - logits),
    )


def pack_documents(workload: Workload, tokens: int) -> Workload:
    """Return the model with attention within documents of so many tokens, side by side.

    Of documents of unlike lengths that is the mean of the squares over the mean, which attention's
    work follows.
    Raises `InputError`: a model without attention, whose documents are never apart; documents
        longer than a sequence; attention that ranks share by tokens.
    """
    refuse_if(
        not any(isinstance(layer.matrix, Attention) for layer in workload.layers),
        "document_length",
        str(tokens),
        "nothing: the model has no attention that would tell documents apart",
    )
    return replace(workload, layers=tuple(_packed(layer, tokens) for layer in workload.layers))


def _packed(layer: Layer, tokens: int) -> Layer:
    attention = layer.matrix
    if not isinstance(attention, Attention):
        return layer
    refuse_if(
        attention.keys is not None or attention.blocks > 1,
        "document_length",
        f"{tokens} with keys of other ranks or of another sequence",
        "self-attention of whole sequences",
    )
    refuse_if(
        tokens > attention.tokens,
        "document_length",
        str(tokens),
        f"at most the {attention.tokens} tokens of a sequence",
    )
    documents, share = round(attention.tokens / tokens), tokens / attention.tokens
    return replace(
        layer,
        matmul_flops=layer.matmul_flops * share,
        score_elements=layer.score_elements * share,
        matrix=replace(
            attention,
            tokens=attention.tokens // documents,
            sequences=attention.sequences * documents,
        ),
    )
