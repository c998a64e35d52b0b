"""A model: its parameter tensors and the work of each of its layers.

What one sample of a model is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from perfmodel.workload.kernels.shapes import LayerKernel, MatrixProduct
from perfmodel.workload.layer_calls import LayerCall
from perfmodel.workload.shard import WHOLE, Shard


@dataclass(frozen=True, slots=True)
class Sample:
    """What one sample is; as a text its `unit` and its `detail`: "sequence of 512 tokens".

    `unit`: a word that takes an "s" where there are several.
    `detail`: what follows it.
    `tokens`: of a sequence; None where a sample is none.
    `is_image`: whether a model of images is trained with it, as such are: with SGD.
    """

    unit: str = "sample"
    detail: str = ""
    tokens: int | None = None
    is_image: bool = False

    def __str__(self) -> str:
        return f"{self.unit} {self.detail}".rstrip()

    @property
    def units(self) -> str:
        """Several, in one word.

        Examples
        --------
        >>> sequence_of(512).units, str(sequence_of(512)), sequence_of(512).plural
        ('sequences', 'sequence of 512 tokens', 'sequences of 512 tokens')
        """
        return f"{self.unit}s"

    @property
    def plural(self) -> str:
        """Several, in full."""
        return f"{self.units} {self.detail}".rstrip()


SAMPLE = Sample()
"""Of a model that does not say what it is."""


def sequence_of(tokens: int) -> Sample:
    """Return a sequence of so many tokens."""
    return Sample("sequence", f"of {tokens} tokens", tokens)


def stated_sample(text: str, tokens: int | None) -> Sample:
    """Return what a model file says that a sample is: its first word is the unit.

    `tokens`: as the file states them.
    """
    unit, _, detail = text.strip().partition(" ")
    return Sample(unit, detail.strip(), tokens, is_image=unit == "image")


ELEMENT_BYTES = 4
"""Layers state their traffic at 4 bytes per element (see `Layer`)."""

ITEM_BYTES: Mapping[str, int] = {
    "fp64": 8,
    "fp32": 4,
    "tf32": 4,
    "bf16": 2,
    "fp16": 2,
    "fp8": 1,
    "int64": 8,
    "int32": 4,
    "int8": 1,
    "uint8": 1,
}
"""Bytes per element of each dtype (tf32 is stored as fp32)."""

LayerKind = Literal["linear", "conv", "attention"]
"""Families of matrix kernels with different efficiencies and operand copies."""


TRAINING_PASSES = 3
"""Products of a training step over those of forward: backward has two of the same size."""


@dataclass(frozen=True)
class ParameterTensor:
    """One parameter tensor, in registration order, as ``named_parameters()`` lists it."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "fp32"
    of_experts: bool = False
    """Whether it holds experts, which expert parallelism spreads over ranks: its gradient is summed
    over the ranks that hold the same experts alone."""

    @cached_property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @cached_property
    def nbytes(self) -> int:
        """Size in bytes."""
        return self.numel * ITEM_BYTES[self.dtype]


@dataclass(frozen=True, slots=True)
class Kept:
    """What a layer keeps for backward; the fields are those of `Layer` with the same names.

    A compiler that makes one graph of both passes keeps fewer tensors: it computes again what costs
    memory traffic alone, unless a matrix product reads it anyway
    (torch/_functorch/partitioners.py, `min_cut_rematerialization_partition`).
    """

    saved_elements: float = 0.0
    stream_elements: float = 0.0
    saved_bytes: float = 0.0
    copied_elements: float = 0.0


@dataclass(frozen=True, slots=True)
class Layer:
    """One step of the forward pass (a convolution with its normalisation, a linear map ...).

    Layers stand in the order in which forward runs them; backward runs them in reverse. Work that
    grows with the batch is given per sample.

    Parameters
    ----------
    name : str
    tensors : tuple of int
        Indices (registration order) of the parameters whose gradients are complete when the
        backward of this layer ends. Every trained tensor stands in exactly one layer (a tied
        tensor in the layer whose backward runs last), in the order in which they get ready.
    matmul_flops : float
        Forward operations on matrix units, per sample.
    vector_bytes : float
        Forward device-memory traffic of the element-wise and normalising kernels, per sample, at
        4 bytes per element (scaled by the precision when timed).
    matmul_bytes : float
        Forward activation traffic of the matrix kernels, per sample, at 4 bytes per element.
    weight_elements : float
        Parameter elements read once per pass, whatever the batch.
    saved_elements : float
        Activation elements kept for backward at the precision of the compute, per sample.
    stream_elements : float
        Those kept as they flow between a transformer's blocks: in fp32 under autocast.
    copied_elements : float
        Those of an input that other layers keep too, and of which autocast makes each its copy.
    saved_bytes : float
        Bytes kept whatever the precision, per sample: masks, indices, sums and losses in fp32.
    narrow_elements : float
        Elements kept beside where parameters are as narrow as the compute: an input as it is,
        where its copy in fp32 is kept, too.
    once_bytes : float
        Bytes kept whatever the batch and the precision (indices of relative positions).
    bias_elements : float
        Elements of a bias of scores that all samples share, kept where attention is fused.
    held_elements : float
        Elements kept where attention is fused: of storage that a query, key or value is a part of,
        and of a result that is laid out anew.
    score_dropout, wide_scores, capped_scores : bool
        Where attention is not fused: whether scores are dropped out after their softmax, whether
        that is in fp32 in any precision, and whether they pass a tanh before it.
    dropout_apart : bool
        Whether dropout of the scores stays a kernel of its own where others are fused.
    kernels : int
        Kernels launched by forward.
    kind : {"linear", "conv", "attention"}
        Family of its matrix kernels.
    score_elements : float
        Elements of the attention scores (heads x s x s), per sample: memory traffic and saved
        activations where attention is not fused into one kernel.
    matrix : MatrixProduct, Convolution, Attention, GroupedProduct or Scan, optional
        Shape of its matrix kernel, of one sample. Where a file states operations alone, a product
        of that many operations is taken. (`matmul_flops` counts masked scores of attention too, as
        published formulas and FLOP counters do.)
    norm_bytes : float
        Part of `vector_bytes` that normalisations over rows move (layer and RMS norm).
    wide_norm : bool
        Whether these normalisations run as single operations in fp32, whatever the precision.
    statistics_elements : float
        Elements of a batch normalisation, per sample.
    wide_bytes : float
        Part of `vector_bytes`, beside those of normalisations, that moves in fp32 whatever the
        precision (losses).
    chunked_loss : bool
        Whether its product and the loss run over chunks of tokens, in forward with their gradients.
    fused_bytes : float, optional
        What is left of `vector_bytes` where a compiler fuses chains of element-wise kernels; None
        where the chains are not known, and nothing is taken to be saved.
    fused_kernels : int
        Kernels launched by forward in that case.
    fused_kept : Kept, optional
        Kept for backward in that case; None: as where it is not compiled.
    calls : tuple of LayerCall
        Collectives that it calls among the ranks that share it.
    remote_rows : tuple of int
        Rows of tables on other hosts that it looks up, per sample, and bytes of each.
    output_elements : float
        Elements that it hands to the next layer, per sample, where it ends a block of a model whose
        blocks hand on different numbers of them (maps of features); 0 elsewhere.
    gradients : int
        Products of its backward for each of forward: 2, of the input and of the weight; 1, where
        one of both needs no gradient (a frozen weight); 0, where nothing up to it is trained, and
        it has no backward.
    """

    name: str
    tensors: tuple[int, ...] = ()
    matmul_flops: float = 0.0
    vector_bytes: float = 0.0
    matmul_bytes: float = 0.0
    weight_elements: float = 0.0
    saved_elements: float = 0.0
    kernels: int = 1
    kind: LayerKind = "linear"
    score_elements: float = 0.0
    matrix: LayerKernel | None = None
    norm_bytes: float = 0.0
    wide_norm: bool = False
    statistics_elements: float = 0.0
    wide_bytes: float = 0.0
    chunked_loss: bool = False
    fused_bytes: float | None = None
    fused_kernels: int = 1
    stream_elements: float = 0.0
    copied_elements: float = 0.0
    saved_bytes: float = 0.0
    narrow_elements: float = 0.0
    once_bytes: float = 0.0
    bias_elements: float = 0.0
    held_elements: float = 0.0
    score_dropout: bool = True
    wide_scores: bool = False
    capped_scores: bool = False
    dropout_apart: bool = False
    fused_kept: Kept | None = None
    calls: tuple[LayerCall, ...] = ()
    remote_rows: tuple[int, int] = (0, 0)
    output_elements: float = 0.0
    gradients: int = 2


@dataclass(frozen=True, slots=True)
class Buffers:
    """Buffers of one dtype (running statistics ...), which DDP broadcasts together.

    `tensors`: how many there are; each is copied back by a kernel of its own.
    `nbytes`: of all of them.
    """

    dtype: str
    tensors: int
    nbytes: int


@dataclass(frozen=True)
class Workload:
    """A model: its parameter tensors in registration order and its layers in forward order.

    Parameters
    ----------
    name : str
    tensors : tuple of ParameterTensor
    layers : tuple of Layer
    sample : Sample
        What one sample is.
    buffers : tuple of Buffers
        Running statistics and the like, by dtype, that DDP broadcasts from rank 0 before forward.
    output_elements : float
        Elements of the model's output per sample (gathered by nn.DataParallel).
    input_elements : float
        Elements of the model's input per sample (scattered by nn.DataParallel).
    stream_elements : float
        Elements that one repeated block hands to the next, per sample, the same between all: tokens
        times width. Zero where it is not known, or where there is more than one such tensor.
    source : str
        Where architecture and counts come from.
    kept_range : tuple of float
        Least and most of the elements kept for backward, over `Layer.saved_elements`, where these
        are estimated.
    notes : tuple of str
        What is left out, taken or estimated, in sentences.
    is_estimated : bool
        Whether shapes of products and what kernels move are guessed from operations and weights.
    shard : Shard
        Which part of the model it is: tensors, work and what is kept are those of one rank.
    routed_share : float
        Part of the experts that a token is routed to.
    """

    name: str
    tensors: tuple[ParameterTensor, ...]
    layers: tuple[Layer, ...]
    sample: Sample = SAMPLE
    buffers: tuple[Buffers, ...] = ()
    output_elements: float = 0.0
    input_elements: float = 0.0
    stream_elements: float = 0.0
    source: str = ""
    kept_range: tuple[float, float] = (1.0, 1.0)
    notes: tuple[str, ...] = ()
    is_estimated: bool = False
    shard: Shard = WHOLE
    routed_share: float = 1.0

    @cached_property
    def states_activations(self) -> bool:
        """Whether anything is known of what forward keeps for backward."""
        return any(layer.saved_elements for layer in self.layers)

    @cached_property
    def ready_order(self) -> tuple[int, ...]:
        """Trained tensors (indices) in the order in which backward completes their gradients."""
        return tuple(index for layer in reversed(self.layers) for index in layer.tensors)

    @cached_property
    def training_flops(self) -> float:
        """Operations of the matrix products of one sample, forward and twice that backward.

        As MFU counts them (Chowdhery et al. 2022, PaLM, appendix B): masked scores of attention are
        counted, recomputation is not. What frozen parameters spare is not counted, nor is what runs
        once for all samples.
        """
        return sum(
            (TRAINING_PASSES if layer.tensors else 1 + layer.gradients) * layer.matmul_flops
            for layer in self.layers
            if not (isinstance(layer.matrix, MatrixProduct) and layer.matrix.shared)
        )

    @cached_property
    def buffer_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(group.nbytes for group in self.buffers)

    @cached_property
    def parameters(self) -> int:
        """Number of parameter elements."""
        return sum(tensor.numel for tensor in self.tensors)

    @cached_property
    def nbytes(self) -> int:
        """Bytes of all parameters."""
        return sum(tensor.nbytes for tensor in self.tensors)


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Time of each layer on one GPU for one micro-batch.

    Parameters
    ----------
    forward_s, backward_s : ndarray of float, shape (layers,)
        Seconds on the device.
    forward_kernels, backward_kernels : ndarray of int, shape (layers,)
        Kernels that the host has to issue.
    launch_s : float
        Host time to issue an operation alone; seconds.
    layer_launches : float
        Host time to issue a kernel of a layer, over `launch_s`.
    optimizer_s : float
        Device time of the optimizer step; seconds.
    optimizer_kernels : int
        Operations alone that take the host as long as the optimizer step.
    optimizer_lists : int
        Part of them before the first kernel.
    unscale_s : float
        Device time to divide gradients by the loss scale of fp16 and check them, for whose result
        the host waits before it runs the optimizer; seconds. Zero: losses are not scaled.
    copy_Bps : float
        Bytes per second at which a device copy moves data, counting each byte read and written
        once as one byte copied (so half of the memory's traffic rate).
    copies_measured : bool
        `copy_Bps` was measured on the rank itself, not taken from a data sheet.
    matrix_forward_s, matrix_backward_s : ndarray of float, shape (layers,), optional
        Part of `forward_s` and of `backward_s`, without what is recomputed, that matrix kernels
        take; None where it is not known.
    weight_gradient_s : ndarray of float, shape (layers,), optional
        Part of `backward_s` that makes gradients of weights alone, which nothing before the layer
        waits for; None where it is not known.
    source : str
        "roofline on <gpu>" or the file that the times come from.
    spread : tuple of float
        Factors on all these times at once between which eight of ten measured ones lie; 1 and 1
        where nothing is known of it.
    """

    forward_s: NDArray[np.float64]
    backward_s: NDArray[np.float64]
    forward_kernels: NDArray[np.int64]
    backward_kernels: NDArray[np.int64]
    launch_s: float
    optimizer_s: float
    optimizer_kernels: int
    copy_Bps: float
    source: str
    spread: tuple[float, float] = (1.0, 1.0)
    copies_measured: bool = False
    layer_launches: float = 1.0
    unscale_s: float = 0.0
    optimizer_lists: int = 0
    matrix_forward_s: NDArray[np.float64] | None = None
    matrix_backward_s: NDArray[np.float64] | None = None
    weight_gradient_s: NDArray[np.float64] | None = None


_LAYERS_S = (
    "forward_s",
    "backward_s",
    "optimizer_s",
    "unscale_s",
    "matrix_forward_s",
    "matrix_backward_s",
    "weight_gradient_s",
)
"""Fields of `LayerTimes` that are times on the device."""


def scaled_fields(
    times: LayerTimes, by: float | NDArray[np.float64], fields: Iterable[str], **changes: Any
) -> LayerTimes:
    """Return the times with these fields, where they are known, `by` times as long.

    `changes`: other fields that differ.
    """
    known = {field: getattr(times, field) for field in fields}
    return replace(
        times,
        **{field: value * by for field, value in known.items() if value is not None},
        **changes,
    )


def scale_times(times: LayerTimes, by: float, source: str | None = None) -> LayerTimes:
    """Return the times with all work, on the device and on the host, `by` times as long.

    `source`: instead of the one that the times have.
    """
    return scaled_fields(
        times,
        by,
        (*_LAYERS_S, "launch_s"),
        copy_Bps=times.copy_Bps / by,
        source=times.source if source is None else source,
    )


def slow_device(times: LayerTimes, by: float) -> LayerTimes:
    """Return the times with kernels on the device `by` times as long, and the host as it is."""
    return times if by == 1 else scaled_fields(times, by, _LAYERS_S)
