"""How a library runs experts: kernels, capacity, balance, and how tokens reach them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from perfmodel.errors import Fault, InputError
from perfmodel.workload.zoo.decoders.experts.expert_load import busiest_load, dropped_share
from perfmodel.workload.zoo.decoders.experts.expert_sizes import RoutedShape

Implementation = Literal["grouped", "per-expert"]
Dispatcher = Literal["all_to_all", "all_gather", "deduplicated"]


@dataclass(frozen=True, slots=True)
class ExpertSettings:
    """How experts are run.

    Parameters
    ----------
    implementation : {"grouped", "per-expert"}
        One kernel for the products of all experts (``torch._grouped_mm``: Hugging Face
        transformers 5, torchtitan), or a product for each (Transformer Engine's grouped linear in
        Megatron-LM, which issues one after another).
    capacity : float, optional
        An expert takes at most so many times the mean load, and drops the rest; None: it takes all
        (the default of all of them).
    pad_to_capacity : bool
        Whether each expert's rows are filled up to its capacity.
    imbalance : float
        Coefficient of variation of the experts' loads, which are Dirichlet distributed. 0, the
        default: all alike, as benchmarks force them to be, and as a loss or a bias makes them.
    auxiliary_loss : bool
        Whether each layer computes a loss of its balance.
    dispatcher : {"all_to_all", "all_gather", "deduplicated"}
        A row for each expert of a token; all tokens to all ranks; or a token once to each node
        that has experts for it, which spreads it (DeepEP; within one node: once to each rank).
    dispatch_dtype : {"bf16", "fp8"}, optional
        Of tokens on their way to experts, and of gradients of what experts said; fp8 with a scale
        of fp32 for each 128 elements. What comes back is never fp8 (arXiv 2412.19437, section
        3.3.3). None: that of the compute.
    ranks_per_node : int, optional
        Ranks of an expert group that share a node; None: all of them.
    tensor : int
        Ranks that share each expert: 1, or the degree of tensor parallelism.
    """

    implementation: Implementation = "grouped"
    capacity: float | None = None
    pad_to_capacity: bool = False
    imbalance: float = 0.0
    auxiliary_loss: bool = False
    dispatcher: Dispatcher = "all_to_all"
    dispatch_dtype: Literal["bf16", "fp8"] | None = None
    ranks_per_node: int | None = None
    tensor: int = 1

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


def check_settings(settings: ExpertSettings, routed: RoutedShape, ranks: int, tensor: int) -> None:
    """Raise InputError with all that a model's experts cannot do.

    `ranks`, `tensor`: degrees of expert and tensor parallelism.
    """
    faults = list(_faults(settings, routed, ranks, tensor))
    if faults:
        raise InputError(faults)


def _faults(
    settings: ExpertSettings, routed: RoutedShape, ranks: int, tensor: int
) -> Iterator[Fault]:
    experts = routed.experts
    if routed.top_k > experts:
        yield Fault("top_k", str(routed.top_k), f"1 to {experts}, the experts of a layer")
    if experts % ranks:
        divisors = ", ".join(
            str(degree) for degree in range(1, experts + 1) if not experts % degree
        )
        yield Fault("expert", str(ranks), f"a divisor of {experts} experts: {divisors}")
    if settings.capacity is not None and not settings.capacity > 0:
        yield Fault("experts.capacity", repr(settings.capacity), "a number above zero, or nothing")
    if settings.pad_to_capacity and settings.capacity is None:
        yield Fault("experts.pad_to_capacity", "true without a capacity", "false, or a capacity")
    if not 0 <= settings.imbalance**2 < max(experts - 1, 1):
        most = f"0 to below {(experts - 1) ** 0.5:.3g}, where one of {experts} experts has all"
        yield Fault("experts.imbalance", repr(settings.imbalance), most)
    if settings.tensor not in {1, tensor}:
        degrees = "1" if tensor == 1 else f"1 or {tensor}, the degree of tensor parallelism"
        yield Fault("experts.tensor", str(settings.tensor), degrees)
    if routed.width % settings.tensor:
        yield Fault("experts.tensor", str(settings.tensor), f"a divisor of {routed.width}")
    yield from _dispatch_faults(settings, ranks)


def _dispatch_faults(settings: ExpertSettings, ranks: int) -> Iterator[Fault]:
    if settings.dispatch_dtype == "fp8" and settings.dispatcher == "all_gather":
        allowed = "all_to_all or deduplicated beside dispatch_dtype fp8"
        yield Fault("experts.dispatcher", "all_gather", allowed)
    node = settings.ranks_per_node
    if node is not None and (node < 1 or ranks % node):
        yield Fault("experts.ranks_per_node", str(node), f"a divisor of {ranks} expert ranks")
