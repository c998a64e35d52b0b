"""Collectives that take tokens to the ranks of their experts, and what these say back.

Sources: Megatron-Core 0.16 ``transformer/moe/token_dispatcher.py``; torchtitan's
``ExpertParallel``, which sends counts by an all-to-all and weighs at home; DeepEP, whose kernels
send a token once to each node that needs it, and count and weigh on the way.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Literal

from perfmodel.workload.shards.calls import CallGroup, CallOp, CallPhase, LayerCall
from perfmodel.workload.shards.shard import Shard
from perfmodel.workload.zoo.expert_settings import ExpertSettings, distinct_domains
from perfmodel.workload.zoo.expert_sizes import RoutedShape

Calls = tuple[LayerCall, ...]
Place = Literal["before", "after"]

SCALED_ELEMENTS, SCALE_BYTES = 128, 4
"""fp8 travels with a scale of fp32 for so many elements (arXiv 2412.19437, section 3.3.2)."""


def dispatch_calls(
    settings: ExpertSettings, routed: RoutedShape, shard: Shard, tokens: int, width: int
) -> Calls:
    """Calls of the layer that widens: tokens come before forward, gradients go after backward.

    `tokens`: of one sample that a rank routes; `width`: elements of one.
    """
    if shard.expert == 1 and settings.tensor == 1:
        return ()
    if settings.dispatcher == "all_gather":
        return _gathered(shard, tokens * width, "before")
    rows = _rows(settings, routed, shard, tokens)
    travel = partial(_travel, settings, routed, shard, tokens, width)
    return (
        *_counts(settings, routed, shard),
        *travel("forward", "before", settings.dispatch_dtype),
        *_weights(settings, shard, rows, "forward", "before"),
        *_tensor(settings, "all_gather", rows * width, "forward", "before"),
        *_tensor(settings, "reduce_scatter", rows * width, "backward", "after"),
        *travel("backward", "after"),
        *_weights(settings, shard, rows, "backward", "after"),
    )


def combine_calls(
    settings: ExpertSettings, routed: RoutedShape, shard: Shard, tokens: int, width: int
) -> Calls:
    """Calls of the layer that narrows: its rows go home after forward, gradients come before."""
    if shard.expert == 1 and settings.tensor == 1:
        return ()
    if settings.dispatcher == "all_gather":
        return _gathered(shard, tokens * width, "after")
    rows = _rows(settings, routed, shard, tokens) * width
    travel = partial(_travel, settings, routed, shard, tokens, width)
    return (
        *_tensor(settings, "reduce_scatter", rows, "forward", "after"),
        *travel("forward", "after"),
        *travel("backward", "before", settings.dispatch_dtype),
        *_tensor(settings, "all_gather", rows, "backward", "before"),
    )


def _rows(settings: ExpertSettings, routed: RoutedShape, shard: Shard, tokens: int) -> float:
    """Rows that come to the busiest rank of the expert group, for which all others wait."""
    return tokens * routed.top_k * settings.busiest(routed, shard.expert)


def _travel(
    settings: ExpertSettings,
    routed: RoutedShape,
    shard: Shard,
    tokens: int,
    width: int,
    phase: CallPhase,
    place: Place,
    dtype: str | None = None,
) -> Calls:
    """Rows on their way: one for each expert of a token; or one for each rank or node with some.

    Between nodes a token goes once to the rank of its own place in each node, which passes it on to
    the ranks there while others arrive (DeepEP's normal kernels: ``internode.cu`` forwards from
    RDMA's to NVLink's buffers), and what experts say comes back the same way.
    """
    if settings.dispatcher == "all_to_all":
        rows = _rows(settings, routed, shard, tokens)
        return _all_to_all(shard, rows * width, phase, place, dtype)
    busiest = tokens * settings.busiest(routed, shard.expert) * width

    def copies(domains: int) -> float:
        return busiest * distinct_domains(
            routed.experts, routed.top_k, domains, routed.groups, routed.top_groups
        )

    own = settings.ranks_per_node or shard.expert
    nodes = shard.expert // own
    if nodes == 1:
        return _all_to_all(shard, copies(shard.expert), phase, place, dtype)
    rail = _call(
        "expert_rail", "all_to_all", _scaled(copies(nodes), dtype), nodes, phase, place, dtype
    )
    node = _call(
        "expert_node", "all_to_all", _scaled(copies(shard.expert), dtype), own, phase, place, dtype
    )
    return (rail, replace(node, joins_previous=True)) if own > 1 else (rail,)


def _all_to_all(
    shard: Shard, elements: float, phase: CallPhase, place: Place, dtype: str | None = None
) -> Calls:
    if shard.expert == 1:
        return ()
    scaled = _scaled(elements, dtype)
    return (_call("expert", "all_to_all", scaled, shard.expert, phase, place, dtype),)


def _scaled(elements: float, dtype: str | None) -> float:
    """Elements with what their scales take."""
    return elements * (1 + (dtype == "fp8") * SCALE_BYTES / SCALED_ELEMENTS)


def _counts(settings: ExpertSettings, routed: RoutedShape, shard: Shard) -> Calls:
    """How many rows each rank sends to each expert, which all have to know first."""
    if shard.expert == 1 or settings.dispatcher == "deduplicated":
        return ()
    if shard.library == "torch":
        return (
            _call(
                "expert", "all_to_all", routed.experts, shard.expert, "forward", "before", "int64"
            ),
        )
    whole = routed.experts * shard.expert
    return (_call("expert", "all_gather", whole, shard.expert, "forward", "before", "int64"),)


def _weights(
    settings: ExpertSettings, shard: Shard, rows: float, phase: CallPhase, place: Place
) -> Calls:
    """Weights of rows, in fp32, which Megatron sends along, and their gradients back."""
    if shard.library == "torch" or settings.dispatcher == "deduplicated":
        return ()
    return _all_to_all(shard, rows, phase, place, "fp32")


def _tensor(
    settings: ExpertSettings, op: CallOp, rows: float, phase: CallPhase, place: Place
) -> Calls:
    """Ranks that share each expert have the rows of all of them."""
    if settings.tensor == 1:
        return ()
    return (_call("tensor", op, settings.tensor * rows, settings.tensor, phase, place),)


def _gathered(shard: Shard, elements: float, place: Place) -> Calls:
    """All ranks get all tokens, and add up what their experts say of each."""
    group, whole = shard.expert, shard.expert * elements
    if place == "before":
        return (
            _call("expert", "all_gather", whole, group, "forward", "before"),
            _call("expert", "reduce_scatter", whole, group, "backward", "after"),
        )
    return (
        _call("expert", "reduce_scatter", whole, group, "forward", "after"),
        _call("expert", "all_gather", whole, group, "backward", "before"),
    )


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
