"""What kernels see of a GPU: the rates of one precision, and the constants of its generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from perfmodel.errors import look_up
from perfmodel.files import read_yaml
from perfmodel.topology.model import Gpu


@dataclass(frozen=True)
class ProductConstants:
    """Of matrix products: ramp, prologue of a tile (bytes of the depth), loads of its edges.

    `demand_Bps`: bytes per second that the operations of one multiprocessor need, from which on
        these hold; below, prologue and loads weigh less in proportion.
    `flops_per_load_byte`: operations per second of a multiprocessor for each byte that its threads
        load at once, where rows are not aligned to 16 bytes.
    """

    ramp_s: float
    prologue_bytes: float
    tile_edge: float
    demand_Bps: float
    flops_per_load_byte: float


@dataclass(frozen=True)
class GroupedConstants:
    """Speed of the products of several experts, relative to one plain matrix product.

    `single_kernel_rate`: rate of one kernel that does all groups, over that of a plain product.
    `dispatch_s`: least time of a group where each has a kernel of its own; seconds.
    `own_kernel_slowdown`: time of such a kernel over that of a plain product.
    """

    single_kernel_rate: float
    dispatch_s: float
    own_kernel_slowdown: float

    def own_kernels_s(self, each_s: float, groups: int) -> float:
        """Time of a kernel for each group; a group alone is a plain product."""
        return groups * max(
            self.dispatch_s, (self.own_kernel_slowdown if groups > 1 else 1.0) * each_s
        )


@dataclass(frozen=True)
class ConvolutionConstants:
    """Elements per second of one multiprocessor: over feature maps, and in transposing copies.

    `depthwise_Bps`: bytes per second that it loads where channels are filtered one by one, an
        element for each multiplication.
    `wide_sums_per_s`: multiplications per second in the gradient of such a filter in 32 bits.
    """

    map_elements_per_s: float
    copy_elements_per_s: float
    depthwise_Bps: float
    wide_sums_per_s: float


@dataclass(frozen=True)
class AttentionConstants:
    """Of attention.

    `half_rate_keys`: keys per query at which a fused kernel reaches half its rate.
    `backward_flops`, `backward_passes`: operations and traffic of its backward over forward.
    `first_flash_rate`: rate of FlashAttention 1 against the second.
    `unfused_passes`, `unfused_kernels`: memory passes and kernels per score where attention is not
        fused.
    `compiled_passes`: those passes where a compiler fuses what lies between the products.
    `dropout_passes`: of dropout, where it stays a kernel of its own beside fused ones.
    """

    half_rate_keys: float
    backward_flops: float
    backward_passes: float
    first_flash_rate: float
    unfused_passes: float
    unfused_kernels: int
    compiled_passes: float
    dropout_passes: float


@dataclass(frozen=True)
class AttentionRate:
    """Rate of fused attention over that of large products, for heads of up to 64 and from 128.

    `backward`: rate of backward over that of forward.
    `half_rate_keys`: keys that a query sees at half of the rate; None: as elsewhere.
    `narrow`, `narrow_backward`: rates with fp8 operands over those in bf16; None: there are none.
    """

    small_heads: float
    large_heads: float
    backward: float = 1.0
    half_rate_keys: float | None = None
    narrow: float | None = None
    narrow_backward: float | None = None

    def at(self, head_size: int) -> float:
        """Interpolate by head size."""
        share = min(1.0, max(0.0, (head_size - 64) / 64))
        return self.small_heads + share * (self.large_heads - self.small_heads)


@dataclass(frozen=True)
class NormConstants:
    """Elements per second of one multiprocessor; time of backward over forward."""

    elements_per_s: float
    backward: float


@dataclass(frozen=True, slots=True)
class Factors:
    """Square matrices that an optimizer keeps for the sides of a tensor (Kronecker factors).

    Each side has two: the mean of the tensor's products with itself, one a step, and what is made
    of it now and then.

    `projections`: products of each step with what is made of the mean.
    `passes`, `kernels`: over a matrix beside the products, and of a side, with them.
    `operations`: operations alone that take the host as long as a side.
    `refresh_products`: products of two such matrices, each `refresh_steps` steps, that take as long
        as making anew what is made of the mean; `column_s`: what each column adds; seconds.
    `longest`: side that has them; `cuts`: whether longer ones are cut into blocks.
    """

    projections: int = 0
    passes: float = 0.0
    kernels: int = 0
    operations: int = 0
    refresh_products: int = 0
    refresh_steps: int = 1
    column_s: float = 0.0
    longest: int = 0
    cuts: bool = False


@dataclass(frozen=True, slots=True)
class OptimizerKind:
    """An optimizer's fp32 state per parameter element, and its kernels.

    `tensors_per_launch`: of the fused kernel.
    `operations`, `passes`, `copies`: where it is not fused: element-wise operations, how often
        these read or write a tensor of the parameters' size, and such tensors that they make.
    `corrections`: whether the host then computes factors for each tensor.
    `fused_passes`: where the fused kernels read or write more than once what there is.
    `tensor_kernels`: of each tensor, where no kernel is over several; then `passes` are theirs.
    `tensor_operations`: operations alone that take the host as long as those kernels, with their
        Python.
    `waits`: the host waits for the kernels of each tensor, so that its time is the device's, too.
    `work_bytes`: of an element in the passes, where they are wider than parameters.
    `element_flops`: operations of an element that the passes do not hide, at the rate of fp32.
    `state_item_bytes`: of an element of state, in tensors of `narrow_from` elements or more.
    `edges`: states of a mean for each row and column.
    `rounds`: of products of Newton and Schulz, which make a matrix orthogonal.
    `factors`: of the sides of what is no vector.
    `matrices`: how matrices are updated, where that is another way; with rounds, those of blocks.
    """

    state_tensors: int
    passes: float
    tensors_per_launch: int = 1
    operations: int = 1
    copies: int = 0
    corrections: bool = False
    fused_passes: int = 0
    tensor_kernels: int = 0
    tensor_operations: int = 0
    waits: bool = False
    work_bytes: int = 0
    element_flops: int = 0
    state_item_bytes: float = 4.0
    narrow_from: int = 0
    edges: int = 0
    rounds: int = 0
    factors: Factors = Factors()
    matrices: OptimizerKind | None = None

    def item_bytes(self, elements: int, wide_bytes: int = 4) -> float:
        """Bytes of an element of state in a tensor of so many, which else is so wide."""
        return (
            min(self.state_item_bytes, wide_bytes) if elements >= self.narrow_from else wide_bytes
        )


@dataclass(frozen=True)
class ForLoopConstants:
    """Operations and passes that keeping gradients costs, where each tensor has its own kernels."""

    operations: int
    passes: int


@dataclass(frozen=True)
class HostConstants:
    """Time of the host, over that of an operation alone.

    `layer_kernel`: to issue a kernel of a layer.
    `tensor`: to list a tensor for an optimizer.
    `corrections`: to compute Adam's factors of a tensor.
    `sharded_call`: to call a collective of a DTensor, with the operations that it is for.
    """

    layer_kernel: float
    tensor: float
    corrections: float
    sharded_call: float


@dataclass(frozen=True, eq=False)
class KernelConstants:
    """All of them; the file states each source.

    `elementwise_backward`: traffic of backward over that of forward.
    `elements_per_launch`: parameter elements that one optimizer launch can cover.
    `tensors_per_operation`: tensors that a launch of one of its operations covers, not fused.
    """

    product: ProductConstants
    grouped: GroupedConstants
    convolution: ConvolutionConstants
    attention: AttentionConstants
    attention_rates: Mapping[str, AttentionRate]
    norm: NormConstants
    elementwise_backward: float
    optimizers: Mapping[str, OptimizerKind]
    host: HostConstants
    elements_per_launch: int
    tensors_per_operation: int
    for_loop: ForLoopConstants

    def attention_rate(self, gpu: str, generation: str, library: str = "") -> AttentionRate:
        """Rate on a GPU where it is stated, else of its generation, or that of `other`.

        `library`: whose kernels run, where they are not the usual ones, or "fp32".
        """
        names = (f"{generation} {library}", library, gpu, generation, "other")
        return next(self.attention_rates[name] for name in names if name in self.attention_rates)

    def issued_in_loop(self, kernels: int) -> float:
        """How many kernels of layers take the host as long as so many of one call of a library."""
        return 1.0 + (kernels - 1) / self.host.layer_kernel

    def optimizer(self, name: str) -> OptimizerKind:
        """Look an optimizer up.

        Raises `InputError`: nothing by that name.
        """
        return look_up(self.optimizers, name, "optimizer")


@cache
def kernel_constants() -> KernelConstants:
    """Read the shipped constants."""
    data = read_yaml(Path(__file__).parent / "kernel_constants.yaml")

    def values(section: str) -> dict[str, Any]:
        return {
            name: entry["value"]
            for name, entry in data[section].items()
            if isinstance(entry, Mapping) and "value" in entry
        }

    return KernelConstants(
        product=ProductConstants(**values("product")),
        grouped=GroupedConstants(**values("grouped")),
        convolution=ConvolutionConstants(**values("convolution")),
        attention=AttentionConstants(**values("attention")),
        attention_rates={
            name: AttentionRate(**{key: float(entry[key]) for key in entry if key != "source"})
            for name, entry in data["attention_rates"].items()
        },
        norm=NormConstants(**values("norm")),
        elementwise_backward=float(data["elementwise"]["backward"]["value"]),
        optimizers={name: _optimizer(**entry) for name, entry in data["optimizers"].items()},
        host=HostConstants(**values("host")),
        elements_per_launch=int(data["elements_per_launch"]),
        tensors_per_operation=int(data["tensors_per_operation"]),
        for_loop=ForLoopConstants(**values("for_loop")),
    )


def _optimizer(
    matrices: Mapping[str, Any] | None = None, factors: Mapping[str, Any] | None = None, **own: Any
) -> OptimizerKind:
    return OptimizerKind(
        **own,
        factors=Factors(**factors or {}),
        matrices=None if matrices is None else OptimizerKind(**matrices),
    )


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU at one precision.

    `matrix_flops`: operations per second of large matrix products.
    `memory_Bps`: that large element-wise kernels reach.
    `norm_s`, `map_s`, `copy_s`: that multiprocessors add per element of a normalisation over rows,
        of a kernel over feature maps, and of a transposing copy; seconds.
    `ramp_s`: device time of a memory-bound kernel beyond its bytes.
    `tile_edge`, `prologue`: of a tile of a product, in elements (`ProductConstants`).
    `item_bytes`: per element of matrix kernels.
    `attention`: of fused attention, of this generation.
    """

    multiprocessors: int
    matrix_flops: float
    memory_Bps: float
    norm_s: float
    map_s: float
    copy_s: float
    ramp_s: float
    item_bytes: int
    tile_edge: float
    prologue: float
    attention: AttentionRate
    constants: KernelConstants


def make_device(gpu: Gpu, precision: str, item_bytes: int, attention: str = "") -> Device:
    """Look the rates of a GPU up.

    `attention`: whose kernels of fused attention run, where they are not the usual ones.
    """
    constants = kernel_constants()
    multiprocessors = gpu.streaming_multiprocessors
    # bytes that a multiprocessor's operations need, against those of the GPUs of the fit
    share = min(
        1.0,
        gpu.peak_flops[precision] / multiprocessors * item_bytes / constants.product.demand_Bps,
    )
    return Device(
        multiprocessors=multiprocessors,
        matrix_flops=gpu.peak_flops[precision] * gpu.matmul_efficiency[precision],
        memory_Bps=gpu.memory_Bps * gpu.memory_efficiency,
        norm_s=1 / (constants.norm.elements_per_s * multiprocessors),
        map_s=1 / (constants.convolution.map_elements_per_s * multiprocessors),
        copy_s=1 / (constants.convolution.copy_elements_per_s * multiprocessors),
        ramp_s=gpu.kernel_overhead_s,
        item_bytes=item_bytes,
        tile_edge=constants.product.tile_edge * share,
        prologue=constants.product.prologue_bytes / item_bytes * share,
        attention=constants.attention_rate(
            gpu.name, gpu.generation, "fp32" if precision in {"fp32", "tf32"} else attention
        ),
        constants=constants,
    )
