"""How a library runs experts: kernels, capacity, balance, and how tokens reach them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from perfmodel.arrays import round_bits
from perfmodel.errors import failed, raise_faults
from perfmodel.scenario.sections.model import ExpertsSection
from perfmodel.workload.shard import Shard

if TYPE_CHECKING:
    from perfmodel.workload.zoo.decoder_sizes import RoutedShape

GRID_POINTS = 4096
"""Points of the integral; ten times as many change its result by less than 1e-6."""
TAIL_DEVIATIONS = 12.0
"""Standard deviations about the mean that it spans, and some more for exponential tails."""
LEAST_VARIATION = 1e-4
"""Below, loads are taken to be equal."""


def concentration(experts: int, variation: float) -> float:
    """Parameter of the Dirichlet distribution whose loads have a coefficient of variation.

    A load of mean 1 has the variance (E - 1) / (E a + 1).
    """
    return ((experts - 1) / variation**2 - 1) / experts


def busiest_load(experts: int, ranks: int, variation: float) -> float:
    """Expected load of the busiest of so many ranks with as many experts each, over the mean.

    `variation`: coefficient of variation of an expert's load, below the root of `experts` - 1.
    """
    if ranks == 1 or variation < LEAST_VARIATION:
        return 1.0
    from scipy import special  # rarely needed

    shape = concentration(experts, variation) * experts / ranks
    # the largest of gamma variables is independent of their sum: its mean over that of the sum
    lowest = max(0.0, shape - TAIL_DEVIATIONS * math.sqrt(shape))
    span = shape + TAIL_DEVIATIONS * (math.sqrt(shape) + math.log(ranks * GRID_POINTS)) - lowest
    edges = np.linspace(0.0, 1.0, GRID_POINTS + 1)
    # squares put points close together near zero, where small shapes have their mass
    points = lowest + span * ((edges[:-1] + edges[1:]) / 2) ** 2
    beyond = 1.0 - special.gammainc(shape, points) ** ranks
    largest = lowest + float(np.sum(beyond * span * np.diff(edges**2)))
    return min(float(ranks), float(round_bits(np.array([largest / shape]))[0]))


def dropped_share(experts: int, variation: float, capacity: float) -> float:
    """Share of tokens beyond what each expert takes: `capacity` times the mean load.

    A load X has a beta distribution; E[(X - c)+] = E[X; X > c] - c P(X > c).
    """
    if variation < LEAST_VARIATION or capacity >= experts:
        return max(0.0, 1.0 - capacity)
    from scipy import special  # rarely needed

    a = concentration(experts, variation)
    rest, limit = a * (experts - 1), capacity / experts
    return float(
        1.0
        - special.betainc(a + 1, rest, limit)
        - capacity * (1.0 - special.betainc(a, rest, limit))
    )


def distinct_domains(
    experts: int, top_k: int, domains: int, groups: int = 1, top_groups: int = 1
) -> float:
    """Expected number of domains (nodes, ranks) that a token's experts stand in.

    A token takes `top_k` of the experts of `top_groups` of `groups`, each choice as likely; domains
    hold as many experts each, of whole groups or within one.
    """
    each, size = experts // domains, experts // groups
    pool = top_groups * size

    def missed(absent: int) -> float:
        """Chance that no expert is among so many of the pool."""
        return math.comb(pool - absent, top_k) / math.comb(pool, top_k)

    if each <= size:
        return domains * top_groups / groups * (1.0 - missed(each))
    held, selections = groups // domains, math.comb(groups, top_groups)
    return domains * sum(
        math.comb(held, chosen)
        * math.comb(groups - held, top_groups - chosen)
        / selections
        * (1.0 - missed(chosen * size))
        for chosen in range(1, min(held, top_groups) + 1)
    )


class ExpertSettings(ExpertsSection):
    """How experts are run: as a scenario says, and where those who share them are.

    Transformer Engine's grouped linear in Megatron-LM (``per-expert``) issues one product after
    another. Experts that take all (no `capacity`) are the default of all libraries. Loads are alike
    by default (no `imbalance`), as benchmarks force them to be, and as a loss or a bias makes them;
    without force Qwen3 235B-A22B on 256 H100 with 8 ranks of experts took 9 to 24 % longer (NVIDIA,
    Megatron-MoE-ModelZoo). Of deduplicated tokens, a node spreads those it gets (DeepEP; within one
    node: once to each rank). Tokens in fp8 have a scale of fp32 for each 128 elements, and what
    comes back is never fp8 (arXiv 2412.19437, section 3.3.3). Without `router_padding` Transformer
    Engine's grouped linear copies all rows before its first map and after its last one
    (``Fp8Padding``), unless DeepEP's permutation fills them up on the way.
    """

    ranks_per_node: int | None = None
    """Ranks of an expert group that share a node; None: all of them."""

    @property
    def copies_to_pad(self) -> bool:
        """Whether rows are copied to fill groups up, where they are multiplied in fp8."""
        filled = self.router_padding or self.pad_to_capacity or self.dispatcher == "deduplicated"
        return self.implementation == "per-expert" and not filled

    def busiest(self, routed: RoutedShape, ranks: int) -> float:
        """Rows of the busiest of the ranks that share experts, over the mean without drops.

        With a capacity this is an upper limit: no rank has more than its experts take.
        """
        if self.capacity is None:
            return busiest_load(routed.experts, ranks, self.imbalance)
        if self.pad_to_capacity:
            return self.capacity
        accepted = 1.0 - dropped_share(routed.experts, self.imbalance, self.capacity)
        if ranks == 1:
            return accepted
        return max(
            accepted, min(busiest_load(routed.experts, ranks, self.imbalance), self.capacity)
        )


def check_settings(settings: ExpertSettings, routed: RoutedShape, shard: Shard) -> None:
    """Raise InputError with all that a model's experts cannot do."""
    experts, tensor, node = routed.experts, settings.tensor, settings.ranks_per_node
    idle = "where each GPU holds all experts (expert: 1)"
    degree = "" if shard.tensor == 1 else f" or {shard.tensor}, the degree of tensor parallelism"
    gathers, padded = settings.dispatcher == "all_gather", settings.pad_to_capacity
    checks = [
        (
            routed.top_k > experts,
            "top_k",
            str(routed.top_k),
            f"1 to {experts}, the experts of a layer",
        ),
        (
            settings.capacity is not None and not settings.capacity > 0,
            "experts.capacity",
            repr(settings.capacity),
            "a number above zero, or nothing",
        ),
        (
            padded and settings.capacity is None,
            "experts.pad_to_capacity",
            "true without a capacity",
            "false, or a capacity",
        ),
        (
            not 0 <= settings.imbalance < max(experts - 1, 1) ** 0.5,
            "experts.imbalance",
            repr(settings.imbalance),
            f"0 to below {(experts - 1) ** 0.5:.3g}, where one of {experts} experts has all",
        ),
        (tensor not in {1, shard.tensor}, "experts.tensor", str(tensor), f"1{degree}"),
        (
            routed.width % tensor,
            "experts.tensor",
            str(tensor),
            f"a divisor of the {routed.width} columns of an expert",
        ),
        (
            shard.tensor > 1 and not shard.sequence_parallel,
            "sequence_parallel",
            "false",
            f"true with experts and tensor: {shard.tensor}, whose ranks route their own tokens",
        ),
    ]
    where_shared = [
        (
            settings.dispatch_dtype is not None and gathers,
            "experts.dispatcher",
            "'all_gather'",
            "all_to_all or deduplicated beside dispatch_dtype",
        ),
        (
            settings.buffer_factor != 1.0 and gathers,
            "experts.buffer_factor",
            f"{settings.buffer_factor:g}",
            "1 beside dispatcher all_gather",
        ),
        (tensor > 1 and gathers, "experts.tensor", str(tensor), "1 beside dispatcher all_gather"),
        (
            node is not None and (node < 1 or shard.expert % node),
            "experts.ranks_per_node",
            str(node),
            f"a divisor of the {shard.expert} ranks that share experts",
        ),
    ]
    where_idle = [
        (
            settings.dispatcher != "all_to_all",
            "experts.dispatcher",
            repr(settings.dispatcher),
            f"'all_to_all' {idle}",
        ),
        (
            settings.dispatch_dtype is not None,
            "experts.dispatch_dtype",
            repr(settings.dispatch_dtype),
            f"nothing {idle}",
        ),
        (settings.overlap, "experts.overlap", "true", f"false {idle}"),
        (
            settings.buffer_factor != 1.0,
            "experts.buffer_factor",
            f"{settings.buffer_factor:g}",
            f"1 {idle}",
        ),
        (node is not None, "experts.ranks_per_node", str(node), f"nothing {idle}"),
        (
            settings.imbalance and settings.capacity is None,
            "experts.imbalance",
            repr(settings.imbalance),
            f"0, or a capacity, {idle}: it has all tokens, however they fall",
        ),
    ]
    raise_faults(failed(*checks, *(where_idle if shard.expert == 1 else where_shared)))
