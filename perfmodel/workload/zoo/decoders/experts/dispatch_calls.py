"""Collectives that take tokens to the ranks of their experts, and what these say back.

Sources: Megatron-Core 0.16 ``transformer/moe/token_dispatcher.py``; torchtitan's
``ExpertParallel``, which sends counts by an all-to-all and weighs at home; DeepEP, whose kernels
send a token once to each node that needs it, and count and weigh on the way.
"""

from __future__ import annotations

from typing import Literal

from perfmodel.workload.shards.calls import CallGroup, CallOp, CallPhase, LayerCall
from perfmodel.workload.shards.shard import Shard
from perfmodel.workload.zoo.decoders.experts.expert_load import distinct_domains
from perfmodel.workload.zoo.decoders.experts.expert_settings import ExpertSettings
from perfmodel.workload.zoo.decoders.experts.expert_sizes import RoutedShape

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
    travelling = _travel(settings, routed, shard, tokens) * width
    return (
        *_counts(settings, routed, shard),
        *_all_to_all(shard, travelling, "forward", "before", settings.dispatch_dtype),
        *_weights(settings, shard, rows, "forward", "before"),
        *_tensor(settings, "all_gather", rows * width, "forward", "before"),
        *_tensor(settings, "reduce_scatter", rows * width, "backward", "after"),
        *_all_to_all(shard, travelling, "backward", "after"),
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
    travelling = _travel(settings, routed, shard, tokens) * width
    return (
        *_tensor(settings, "reduce_scatter", rows, "forward", "after"),
        *_all_to_all(shard, travelling, "forward", "after"),
        *_all_to_all(shard, travelling, "backward", "before", settings.dispatch_dtype),
        *_tensor(settings, "all_gather", rows, "backward", "before"),
    )


def _rows(settings: ExpertSettings, routed: RoutedShape, shard: Shard, tokens: int) -> float:
    """Rows that come to the busiest rank of the expert group, for which all others wait."""
    return tokens * routed.top_k * settings.busiest(routed, shard.expert)


def _travel(settings: ExpertSettings, routed: RoutedShape, shard: Shard, tokens: int) -> float:
    """Rows that a rank puts in: one for each expert of a token, or for each domain that has some.

    Domains are nodes, so that the bytes between nodes are exact; what goes on inside of them over
    faster links is taken to be hidden behind. Within one node they are ranks.
    """
    if settings.dispatcher == "all_to_all":
        return _rows(settings, routed, shard, tokens)
    nodes = shard.expert // (settings.ranks_per_node or shard.expert)
    domains = nodes if nodes > 1 else shard.expert
    copies = distinct_domains(
        routed.experts, routed.top_k, domains, routed.groups, routed.top_groups
    )
    return tokens * copies * settings.busiest(routed, shard.expert)


def _all_to_all(
    shard: Shard, elements: float, phase: CallPhase, place: Place, dtype: str | None = None
) -> Calls:
    if shard.expert == 1:
        return ()
    scaled = elements * (1 + (dtype == "fp8") * SCALE_BYTES / SCALED_ELEMENTS)
    return (_call("expert", "all_to_all", scaled, shard.expert, phase, place, dtype),)


def _counts(settings: ExpertSettings, routed: RoutedShape, shard: Shard) -> Calls:
    """How many rows each rank sends to each expert, which all have to know first."""
    if shard.expert == 1 or settings.dispatcher == "deduplicated":
        return ()
    if shard.library == "torch":
        return (_call("expert", "all_to_all", routed.experts, shard.expert, "forward", "before",
                      "int64"),)  # fmt: skip
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
    group: CallGroup, op: CallOp, elements: float, ranks: int, phase: CallPhase, place: Place,
    dtype: str | None = None,
) -> LayerCall:  # fmt: skip
    return LayerCall(group, op, float(elements), ranks, phase, place, dtype=dtype)
