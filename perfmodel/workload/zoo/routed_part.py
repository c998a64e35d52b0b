"""The feed-forward part of experts: router, rows gathered by expert, grouped products, their sum.

Rows are gathered by expert before the first product and gathered back, weighed and summed after the
second. Where ranks share the experts, rows travel between gathering and products, there and back.

Sources of the collectives that take tokens to experts, and back what these say: Megatron-Core 0.16
``transformer/moe/token_dispatcher.py``; torchtitan's ``ExpertParallel``, which sends counts by an
all-to-all and weighs at home; DeepEP, whose kernels send a token once to each node that needs it,
and count and weigh on the way.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from perfmodel.workload.kernels.element_wise import kernels_of, passes_of
from perfmodel.workload.kernels.shapes import WIDE_BYTES, GroupedProduct
from perfmodel.workload.layer_calls import (
    CallGroup,
    CallOp,
    CallPhase,
    Calls,
    LayerCall,
    norm_calls,
)
from perfmodel.workload.model import ELEMENT_BYTES, Kept, Layer
from perfmodel.workload.zoo.decoder_block import (
    BlockPlace,
    feed_forward_part,
    kept_by_norm,
    rms_norm_work,
    stream_norm,
)
from perfmodel.workload.zoo.decoder_sizes import (
    USUAL_NAMES,
    ExpertNames,
    RoutedShape,
)
from perfmodel.workload.zoo.expert_settings import ExpertSettings, distinct_domains
from perfmodel.workload.zoo.layers import (
    ACTIVATIONS,
    CLAMPED,
    GATED,
    INDEX_BYTES,
    Module,
    Parameter,
    linear,
    names,
    names_reversed,
    numels,
    weight_and_bias,
)

BIAS = "_bias"
"""Ends the name of a bias of experts."""
HALF = frozenset({"bf16", "fp16"})


@dataclass(frozen=True, slots=True)
class RoutedPlace:
    """Experts of one block: where they stand, their sizes, how they run and how they are shared.

    `dtype`: of the parameters.
    `names`: as their family has them.
    """

    block: BlockPlace
    routed: RoutedShape
    settings: ExpertSettings
    dtype: str
    names: ExpertNames = USUAL_NAMES

    @property
    def tokens(self) -> int:
        """Tokens of one sample that a rank routes."""
        return self.block.shard.stream_tokens(self.block.tokens)

    @property
    def sent_rows(self) -> float:
        """Rows that come to the busiest rank of the expert group, for which all others wait."""
        load = self.settings.busiest(self.routed, self.block.shard.expert)
        return self.tokens * self.routed.top_k * load

    @property
    def rows(self) -> float:
        """Rows that the busiest rank's experts have, of one sample of each rank."""
        return self.sent_rows * self.settings.tensor

    @property
    def buffer_rows(self) -> float:
        """Rows of the buffers that take what arrives: all are copied and kept, filled or not."""
        return self.rows * self.settings.buffer_factor

    @property
    def copied_rows(self) -> float:
        """Rows that are written in the order of experts, on their way to them.

        What an all-to-all brings comes rank by rank, and is sorted once more (Megatron-Core 0.16
        ``sort_chunks_by_idxs``, torchtitan ``_permute``). Tokens that travel once are gathered for
        all of their experts where they arrive.
        """
        pairs, ranks = float(self.tokens * self.routed.top_k), self.block.shard.expert
        if ranks == 1 or self.settings.dispatcher == "all_gather":
            return pairs
        if self.settings.dispatcher == "deduplicated":
            return self.buffer_rows
        return pairs + self.buffer_rows * (ranks < self.routed.experts)

    def named(self, part: str) -> str:
        """Full name of a part."""
        return ".".join(filter(None, (self.block.prefix, self.names.path, part)))


def routed_part(place: RoutedPlace) -> list[Module]:
    """Modules in the order of forward."""
    routed, block = place.routed, place.block
    plural = place.names.path == "mlp" and not routed.shared_gate
    path = f"{place.names.path}.{'shared_experts' if plural else 'shared_expert'}"
    shared, normed = (
        feed_forward_part(block, path=path, width=routed.shared_width, normed=is_normed)
        if routed.shared_width
        else []
        for is_normed in (False, True)
    )
    experts = _expert_maps(place)
    if routed.beside:
        return [
            *feed_forward_part(block),
            _router(place, normed=True),
            stream_norm(block, "pre_feedforward_layernorm_2"),
            *experts,
            stream_norm(block, "post_feedforward_layernorm_2"),
            stream_norm(block, "post_feedforward_layernorm"),  # of the sum with the dense part
        ]
    if not routed.shared_gate:
        return [_router(place, normed=True), *experts, *shared]
    # the shared expert reads the part's input first, behind its norm; its gate and the sum are last
    return [normed[0], *shared[1:], _router(place, normed=False), *experts, _shared_gate(place)]


def _router(place: RoutedPlace, *, normed: bool) -> Module:
    block, routed = place.block, place.routed
    s, h, shape = place.tokens, block.shape.width, block.shape
    norm = (
        weight_and_bias(f"{block.prefix}.{shape.block_names.before_mlp}", h, bias=False)
        if normed
        else ()
    )
    router, scaled = place.named(place.names.router), float(routed.beside * s * h)
    own = weight_and_bias(router, routed.experts, h, bias=routed.biased)
    if routed.beside:
        norm = ((place.named("router.scale"), (h,)),)
        own += ((place.named("router.per_expert_scale"), (routed.experts,)),)
    chosen = routed.top_k if routed.scores == "top" else routed.experts
    scores, balance = s * routed.experts, place.settings.auxiliary_loss
    scoring = f"router_{routed.scores}"
    wide = (passes_of(scoring) + balance * passes_of("load_balance")) * scores
    # the norm's result, cast, where parameters are narrower than the router's product
    cast = routed.wide_router and place.dtype in HALF
    norm_passes, norm_kernels = rms_norm_work(shape)
    saved = kept_by_norm(s * h * normed, s * normed, shape)
    saved["saved_elements"] += float(s * h * normed) + scaled
    score_bytes = float(WIDE_BYTES * s * chosen + INDEX_BYTES * s * routed.top_k)
    saved["saved_bytes"] += score_bytes + WIDE_BYTES * (cast * s * h - scaled)
    return linear(
        router,
        s,
        h,
        routed.experts,
        parameters=norm + own,
        ready=names_reversed(own) + names(norm),
        vector_elements=wide + cast * 1.5 * s * h + 2 * passes_of("activation") * scaled,
        wide_elements=wide,
        norm_elements=float(norm_passes * s * h * normed),
        wide_norm=normed and not shape.fused_norms,
        fused_elements=float(passes_of("fused_norm") * s * h * normed + 2 * scores),
        copied_elements=float((not normed) * s * h),
        fused_kept=Kept(float(s * h * normed), float(s * h * normed), score_bytes),
        kernels=1
        + norm_kernels * normed
        + kernels_of(scoring)
        + cast
        + kernels_of("load_balance") * balance
        + kernels_of("router_scales") * routed.beside,
        **saved,
        calls=norm_calls(block.shard, numels(norm + own)),
    )


def _expert_maps(place: RoutedPlace) -> tuple[Module, Module]:
    """Gather rows and widen them; gate, narrow, weigh, gather back and sum them."""
    block, routed = place.block, place.routed
    s, h, rows = place.tokens, block.shape.width, place.buffer_rows
    wide, ungated = routed.width // place.settings.tensor, block.shape.ungated
    pairs = float(s * routed.top_k)
    copied = passes_of("activation") * place.copied_rows * h
    gathered = copied + routed.weighs_input * passes_of("activation") * pairs * h
    if place.settings.dispatch_dtype == "fp8":
        # cast before tokens leave, and back where they arrive; gradients likewise in backward
        gathered += passes_of("cast") * (s * h + rows * h)
    weighs = not routed.weighs_input
    restored = (
        copied
        + weighs * passes_of("activation") * pairs * h
        + pairs * h
        + passes_of("addition") * s * h
    )
    widen = _grouped(
        place,
        "up_proj" if ungated else "gate_up_proj",
        h,
        wide if ungated else 2 * wide,
        vector=gathered,
        fused=copied,
        saved=rows * h + routed.weighs_input * pairs * h,
        fused_saved=rows * h,
        indices=2,
        kernels=kernels_of("expert_sort"),
        calls=_dispatch_calls(place),
        cast_before="gradient",
    )
    function = ACTIVATIONS[ungated] if ungated else CLAMPED if routed.clamped else GATED
    implementation = place.settings.implementation
    adds_bias = routed.biased and implementation == "per-expert"
    is_apart = implementation != "fused"  # the activation, from the products
    activated = rows * wide * is_apart
    narrow = _grouped(
        place,
        "down_proj",
        wide,
        h,
        vector=function.passes * activated
        + restored
        + adds_bias * passes_of("expert_bias") * rows * h,
        fused=passes_of("fused_addition") * activated
        + copied
        + passes_of("fused_addition") * s * h
        + adds_bias * passes_of("expert_bias") * rows * h,
        saved=float(function.saved) * rows * wide + weighs * rows * h,
        fused_saved=passes_of("fused_addition") * rows * wide,
        indices=1,
        kernels=kernels_of("expert_restore")
        + (function.kernels * is_apart + 2)
        + kernels_of("expert_bias") * adds_bias,
        calls=_combine_calls(place),
        cast_before="input",
    )
    return widen, narrow


def _grouped(
    place: RoutedPlace,
    name: str,
    inputs: int,
    outputs: int,
    *,
    vector: float,
    fused: float,
    saved: float,
    fused_saved: float,
    indices: int,
    kernels: int,
    calls: tuple[LayerCall, ...],
    cast_before: Literal["input", "gradient"],
) -> Module:
    """One product of all experts.

    `indices`: of rows, that are kept.
    `cast_before`: as of `GroupedProduct`, where kernels are fused.
    `fused_saved`: elements that Megatron-Core keeps, which weighs rows in the kernel of their
        activation (``weighted_bias_swiglu_impl``), and not what the second map puts out.
    """
    groups = place.routed.experts // place.block.shard.expert
    implementation = place.settings.implementation
    sides = (inputs, outputs) if place.names.transposed else (outputs, inputs)
    weight = place.named(f"experts.{name}")
    own: tuple[Parameter, ...] = (
        (weight, (groups, *sides)),
        *([(f"{weight}{BIAS}", (groups, outputs))] if place.routed.biased else []),
    )
    pairs = float(place.tokens * place.routed.top_k)
    layer = Layer(
        name=own[0][0],
        # as routing asks for: what imbalance or padding adds is no work of the model
        matmul_flops=2.0 * pairs * place.settings.tensor * inputs * outputs,
        matmul_bytes=float(ELEMENT_BYTES * place.rows * (inputs + outputs)),
        vector_bytes=ELEMENT_BYTES * vector,
        fused_bytes=ELEMENT_BYTES * fused,
        fused_kernels=1 + kernels_of("expert_sort") // 2,
        weight_elements=float(groups * inputs * outputs),
        saved_elements=saved,
        saved_bytes=float(INDEX_BYTES * indices * pairs),
        fused_kept=Kept(fused_saved, 0.0, float(INDEX_BYTES * indices * pairs))
        if place.block.shard.library == "megatron"
        else None,
        kernels=kernels + 1,
        matrix=GroupedProduct(
            place.rows,
            outputs,
            inputs,
            groups,
            implementation != "per-expert",
            place.rows * place.block.shape.width * place.settings.copies_to_pad,
            cast_before if implementation == "fused" else None,
        ),
        # beside a micro-batch's products, for which those of another one stand
        calls=tuple(
            replace(call, overlap=float(place.settings.overlap and call.group != "tensor"))
            for call in calls
        ),
    )
    return Module(layer, own, names_reversed(own), of_experts=frozenset(names(own)))


def _shared_gate(place: RoutedPlace) -> Module:
    """How much each token takes of what the shared experts say, and the sum (Qwen 2)."""
    s, h = place.tokens, place.block.shape.width
    own = weight_and_bias(place.named("shared_expert_gate"), 1, h, bias=False)
    gate = linear(
        place.named("shared_expert_gate"),
        s,
        h,
        1,
        parameters=own,
        vector_elements=float(2 * passes_of("addition") * s * h),
        fused_elements=float(passes_of("fused_addition") * s * h),
        saved_elements=float(s * h + s),
        copied_elements=float(s * h),
        kernels=4,
        calls=norm_calls(place.block.shard, numels(own)),
    )
    return replace(gate, ready=names(own))


Place = Literal["before", "after"]

SCALED_ELEMENTS, SCALE_BYTES = 128, 4
"""fp8 travels with a scale of fp32 for so many elements (arXiv 2412.19437, section 3.3.2)."""


def _dispatch_calls(part: RoutedPlace) -> Calls:
    """Calls of the layer that widens: tokens come before forward, gradients go after backward."""
    settings, width = part.settings, part.block.shape.width
    if settings.dispatcher == "all_gather":
        return (
            _gathered(part, "all_gather", "forward", "before"),
            _gathered(part, "reduce_scatter", "backward", "after"),
        )
    return (
        *_counts(part),
        *_travel(part, "forward", "before", settings.dispatch_dtype),
        *_weights(part, "forward", "before"),
        _tensor(part, "all_gather", part.sent_rows * width, "forward", "before"),
        _tensor(part, "reduce_scatter", part.sent_rows * width, "backward", "after"),
        *_travel(part, "backward", "after"),
        *_weights(part, "backward", "after"),
    )


def _combine_calls(part: RoutedPlace) -> Calls:
    """Calls of the layer that narrows: its rows go home after forward, gradients come before."""
    settings, rows = part.settings, part.sent_rows * part.block.shape.width
    if settings.dispatcher == "all_gather":
        return (
            _gathered(part, "reduce_scatter", "forward", "after"),
            _gathered(part, "all_gather", "backward", "before"),
        )
    return (
        _tensor(part, "reduce_scatter", rows, "forward", "after"),
        *_travel(part, "forward", "after"),
        *_travel(part, "backward", "before", settings.dispatch_dtype),
        _tensor(part, "all_gather", rows, "backward", "before"),
    )


def _travel(part: RoutedPlace, phase: CallPhase, place: Place, dtype: str | None = None) -> Calls:
    """Rows on their way: one for each expert of a token; or one for each rank or node with some.

    Between nodes a token goes once to the rank of its own place in each node, which passes it on to
    the ranks there while others arrive (DeepEP's normal kernels: ``internode.cu`` forwards from
    RDMA's to NVLink's buffers), and what experts say comes back the same way.
    """
    settings, routed, ranks = part.settings, part.routed, part.block.shard.expert
    if settings.dispatcher == "all_to_all":
        rows = part.sent_rows * part.block.shape.width
        return (_call("expert", "all_to_all", _scaled(rows, dtype), ranks, phase, place, dtype),)
    busiest = part.tokens * settings.busiest(routed, ranks) * part.block.shape.width

    def copies(group: CallGroup, domains: int, own: int) -> LayerCall:
        """One of each token to each of the domains with experts for it."""
        elements = busiest * distinct_domains(
            routed.experts, routed.top_k, domains, routed.groups, routed.top_groups
        )
        return _call(group, "all_to_all", _scaled(elements, dtype), own, phase, place, dtype)

    own = settings.ranks_per_node or ranks
    nodes = ranks // own
    if nodes == 1:
        return (copies("expert", ranks, ranks),)
    node = copies("expert_node", ranks, own)
    return copies("expert_rail", nodes, nodes), replace(node, joins_previous=True)


def _scaled(elements: float, dtype: str | None) -> float:
    """Elements with what their scales take."""
    return elements * (1 + (dtype == "fp8") * SCALE_BYTES / SCALED_ELEMENTS)


def _counts(part: RoutedPlace) -> Calls:
    """How many rows each rank sends to each expert, which all have to know first."""
    ranks, experts = part.block.shard.expert, part.routed.experts
    if part.settings.dispatcher == "deduplicated":
        return ()
    if part.block.shard.library == "torch":
        return (_call("expert", "all_to_all", experts, ranks, "forward", "before", "int64"),)
    return (_call("expert", "all_gather", experts * ranks, ranks, "forward", "before", "int64"),)


def _weights(part: RoutedPlace, phase: CallPhase, place: Place) -> Calls:
    """Weights of rows, in fp32, which Megatron sends along, and their gradients back."""
    if part.block.shard.library == "torch" or part.settings.dispatcher == "deduplicated":
        return ()
    ranks = part.block.shard.expert
    return (_call("expert", "all_to_all", part.sent_rows, ranks, phase, place, "fp32"),)


def _tensor(
    part: RoutedPlace, op: CallOp, rows: float, phase: CallPhase, place: Place
) -> LayerCall:
    """Ranks that share each expert have the rows of all of them."""
    ranks = part.settings.tensor
    return _call("tensor", op, ranks * rows, ranks, phase, place)


def _gathered(part: RoutedPlace, op: CallOp, phase: CallPhase, place: Place) -> LayerCall:
    """All ranks get all tokens, or add up what their experts say of each."""
    ranks = part.block.shard.expert
    return _call("expert", op, ranks * part.tokens * part.block.shape.width, ranks, phase, place)


def _call(
    group: CallGroup,
    op: CallOp,
    elements: float,
    ranks: int,
    phase: CallPhase,
    place: Place,
    dtype: str | None = None,
) -> LayerCall:
    return LayerCall(group, op, float(elements), ranks, phase, place, dtype=dtype)
