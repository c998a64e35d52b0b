"""How much is gathered at once, and how much is under way: what compilers and Megatron-FSDP limit.

PyTorch's compiler fills buckets up to a size; Megatron-FSDP gathers ahead, and lets reductions run
behind, by elements.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, partial
from itertools import accumulate
from pathlib import Path
from statistics import fmean

from perfmodel.files import read_yaml
from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.training.frameworks import fixed_in
from perfmodel.training.fsdp.units import SizedUnit
from perfmodel.units import parse_bandwidth, parse_bytes, parse_time

_bucket_table = cache(partial(read_yaml, Path(__file__).with_name("buckets.yaml")))


def bucket_bytes(options: FsdpStrategy, ranks: int, generation: str, ranks_per_host: int) -> float:
    """Return the bytes of a bucket that PyTorch's compiler stops at, as ``buckets.yaml`` has it.

    A bucket of s bytes reaches s / (s + t r) of a ring's rate r, of which a gather takes t beside
    its bytes: a start, and a hop to each other rank.

    `ranks`: that share a unit. `generation`: of their GPUs. `ranks_per_host`: on one node.
    """
    table, where = _bucket_table(), "between" if ranks > ranks_per_host else "inside"
    own = table[where][table["counts_as"].get(generation, "ampere")]
    takes_s = parse_time(own["start"]) + (ranks - 1) * parse_time(own["hop"])
    sent_s = takes_s * table["efficiency"] / (1 - table["efficiency"])
    least = max(parse_bytes(table["least"]), parse_bytes(own["least"]))
    saturating = max(least, sent_s * parse_bandwidth(own["rate"]))
    return options.bucket_cap or min(saturating, parse_bytes(table["most"]))


def communication_unit(options: FsdpStrategy, units: Sequence[SizedUnit]) -> int:
    """Elements that Megatron-FSDP has under way: half in gathers ahead, all in reductions.

    By default those of two units on average, and no less than 10^9 (``megatron_fsdp.py``).
    """
    return options.suggested_communication_unit_size or max(
        fixed_in("fsdp", "communication_unit"),
        2 * int(fmean([sum(p.numel for p in u.parameters) for u in units if not u.is_root] or [0])),
    )


def inputs_kept(options: FsdpStrategy, units: Sequence[SizedUnit], unit: SizedUnit) -> int:
    """Return how many inputs of reductions such as a unit's there are before one has to be freed.

    In Megatron-FSDP those before it hold `communication_unit` at most, and with a double buffer one
    is another unit's (``wait_for_previous_grad_reduce``, ``_enforce_double_buffer_limit``).
    """
    return (
        options.reduce_buffers + options.fsdp_double_buffer
        if options.version != "megatron" or options.fsdp_double_buffer
        else communication_unit(options, units) // max(1, unit.reduced_elements) + 1
    )


def window(
    options: FsdpStrategy, units: Iterable[SizedUnit], unit: SizedUnit, *, backward: bool
) -> list[SizedUnit]:
    """Return what Megatron-FSDP gathers where it comes to a unit: it, and units ahead of it.

    These follow in the order of registration, up to the one with which half of `communication_unit`
    is under way; with a double buffer two units are whole at most
    (``AllGatherPipeline.all_gather_params``). So with a root that begins the model backward gathers
    none ahead of the last one, and forward gathers the first ones again where it comes to layers of
    the root behind all.
    """
    ordered = sorted(units, key=lambda each: each.tensors, reverse=backward)
    following = ordered[ordered.index(unit) + 1 :]
    sizes, half = [each.elements for each in following], communication_unit(options, ordered) // 2
    ahead = sum(before < half for before in accumulate(sizes[:-1], initial=0))
    return [
        unit,
        *following[: min(ahead, 1 + unit.is_root) if options.fsdp_double_buffer else ahead],
    ]
