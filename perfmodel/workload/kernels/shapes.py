"""Shapes of the matrix kernels that layers run: data, with their operations and elements.

A layer states its kernel for one sample; `batched` makes that of a batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

WIDE_BYTES = 4
"""Bytes of an element of fp32: of partial sums, losses, scales and what optimizers keep."""


ALIGNED = (0, 0)
"""Strides of operands that are laid out for their kernel."""


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """`count` products of a (rows x depth) with a (depth x columns) matrix.

    Of a product with a weight the rows grow with the batch, of one of two activations `count`.
    """

    rows: int
    columns: int
    depth: int
    count: int = 1
    has_bias: bool = False
    """Whether a vector is added to each row of the result; backward sums its gradient over rows."""
    of_activations: bool = False
    """Whether both operands are activations (scores of attention that is not fused)."""
    shared: bool = False
    """Whether the rows are the same for all samples, so that it runs once (rows of positions)."""
    strides: tuple[int, int] | None = None
    """Elements from a row of each operand to the next; None: columns and depth, as of a product
    with a weight; `ALIGNED`: kernels get them as they want them."""

    @property
    def alignment(self) -> int:
        """Elements that every row of the operands begins at a multiple of; 0: any number."""
        return math.gcd(*(self.strides or (self.columns, self.depth)))

    @property
    def flops(self) -> float:
        """Operations: a multiplication and an addition per element and step of the depth."""
        return 2.0 * self.count * self.rows * self.columns * self.depth

    @property
    def elements(self) -> float:
        """Elements of both operands and of the result."""
        m, n, k = self.rows, self.columns, self.depth
        return float(self.count * (m * k + k * n + m * n))

    @property
    def input_gradient(self) -> MatrixProduct:
        """Gradient of the rows: of the result, times the transposed columns."""
        return replace(self, columns=self.depth, depth=self.columns)

    @property
    def weight_gradient(self) -> MatrixProduct:
        """Gradient of the columns: summed over the rows."""
        strides = self.strides or (self.columns, self.depth)
        return replace(
            self, rows=self.columns, columns=self.depth, depth=self.rows, strides=strides
        )


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution of `images`: channels and sizes (height, width) before and after, kernel.

    `groups`: parts of the channels that see each other only.
    `has_bias`: whether a kernel of its own adds a vector over the channels, whose gradient another
        one sums.
    `channels_last`: whether its images are in NHWC whatever the model is in.
    """

    in_channels: int
    out_channels: int
    in_size: tuple[int, int]
    out_size: tuple[int, int]
    kernel: tuple[int, int]
    images: int = 1
    groups: int = 1
    has_bias: bool = False
    channels_last: bool = False

    @property
    def is_depthwise(self) -> bool:
        """Whether each channel is filtered by itself."""
        return self.groups == self.in_channels > 1

    @property
    def flops(self) -> float:
        """Operations: a multiplication and an addition per result, weight of it and position."""
        return 2.0 * self.out_elements * (self.in_channels // self.groups) * math.prod(self.kernel)

    @property
    def in_elements(self) -> int:
        """Elements read."""
        return self.images * self.in_channels * self.in_size[0] * self.in_size[1]

    @property
    def out_elements(self) -> int:
        """Elements written."""
        return self.images * self.out_channels * self.out_size[0] * self.out_size[1]

    @property
    def weight_elements(self) -> int:
        """Elements of the kernel."""
        return self.in_channels // self.groups * self.out_channels * math.prod(self.kernel)


@dataclass(frozen=True, slots=True)
class Attention:
    """Scores, softmax and weighted sum of `sequences` of `tokens` with themselves.

    `kv_heads` < `heads`: grouped queries share keys and values.
    `causal`: half of the scores are masked, which a fused kernel skips.
    `keys`: tokens that are looked at, where they are not the same (cross attention).
    `window`: tokens that a query sees at most (sliding window), half of them after it where not
        causal.
    `blocks`: parts of the keys, each a kernel of its own (ring attention).
    `last`: whether causal queries are the last tokens of the keys, instead of all or a fair share.
    `value_head_size`: of a value and of the result, where it is not that of queries and keys.
    """

    tokens: int
    heads: int
    kv_heads: int
    head_size: int
    causal: bool
    sequences: int = 1
    keys: int | None = None
    window: int | None = None
    blocks: int = 1
    last: bool = False
    value_head_size: int | None = None

    @property
    def value_size(self) -> int:
        """Elements of one head's value."""
        return self.head_size if self.value_head_size is None else self.value_head_size

    @property
    def all_keys(self) -> int:
        """Tokens that are looked at, masked or not."""
        return self.keys or self.tokens

    @property
    def seen_keys(self) -> float:
        """Tokens that a query sees, on average: half of those before it where causal.

        With a window w of s tokens, the first w queries see w / 2 and the others w; where not
        causal, w / 2 on either side see 3 / 4 w. The last t of s tokens see s - t / 2.
        """
        if self.window is not None and self.window < self.all_keys:
            return self.window * (
                1 - self.window / ((4 - 2 * self.causal) * self.all_keys) * (not self.last)
            )
        if self.causal and self.last:
            return self.all_keys - self.tokens / 2
        return self.all_keys * (0.5 if self.causal else 1.0)

    @property
    def flops(self) -> float:
        """Operations of both products, masked scores counted."""
        sizes = self.head_size + self.value_size
        return 2.0 * self.sequences * self.heads * self.tokens * self.all_keys * sizes

    @property
    def elements(self) -> float:
        """Elements of queries, keys, values and the result, as often as kernels read them."""
        rows = self.blocks * self.tokens * self.heads + self.all_keys * self.kv_heads
        return float(self.sequences * (self.head_size + self.value_size) * rows)

    @property
    def scores(self) -> MatrixProduct:
        """Queries times keys, as an unfused implementation runs it."""
        return MatrixProduct(
            self.tokens, self.all_keys, self.head_size, self.sequences * self.heads
        )

    @property
    def weighted_sum(self) -> MatrixProduct:
        """Scores times values, likewise."""
        return MatrixProduct(
            self.tokens, self.value_size, self.all_keys, self.sequences * self.heads
        )


@dataclass(frozen=True, slots=True)
class GroupedProduct:
    """Products of `groups` weights (depth x columns), each with rows of its own: experts.

    `rows`: of all groups together; they grow with the batch.
    `single_kernel`: whether one kernel runs all groups, or each group has a kernel of its own.
    `padded_elements`: of rows that a kernel of its own copies in each pass, to fill groups up to
        the multiple of a recipe of fp8; they grow with the batch, too.
    `cast_before`: what the kernel before it, fused with its activation, has cast to fp8 already.
    """

    rows: float
    columns: int
    depth: int
    groups: int
    single_kernel: bool = True
    padded_elements: float = 0.0
    cast_before: Literal["input", "gradient"] | None = None

    @property
    def flops(self) -> float:
        """Operations: a multiplication and an addition per element and step of the depth."""
        return 2.0 * self.rows * self.columns * self.depth

    @property
    def mean(self) -> MatrixProduct:
        """Product of a group with its mean share of the rows, `groups` of them."""
        return MatrixProduct(
            max(1, math.ceil(self.rows / self.groups)), self.columns, self.depth, self.groups
        )


@dataclass(frozen=True, slots=True)
class Scan:
    """A recurrence over the tokens of `sequences`, with what is around it, run chunk by chunk.

    `rule`: row of ``scan_kernels.yaml``, of the kernels that run it.
    `heads`, `value_size`: that have a state each, and elements of a head's value.
    `groups`, `key_size`: heads of keys and queries, which heads share, and elements of one.
    `chunk`: tokens whose pairs are multiplied.
    """

    rule: str
    tokens: int
    heads: int
    groups: int
    value_size: int
    key_size: int
    chunk: int
    sequences: int = 1


MatrixKernel = MatrixProduct | Convolution | Attention | GroupedProduct
LayerKernel = MatrixKernel | Scan


def batched(kernel: LayerKernel, batch: int) -> LayerKernel:
    """Return the kernel of `batch` samples."""
    match kernel:
        case MatrixProduct(shared=True):
            return kernel
        case MatrixProduct(of_activations=True):
            return replace(kernel, count=kernel.count * batch)
        case MatrixProduct():
            return replace(kernel, rows=kernel.rows * batch)
        case GroupedProduct():
            return replace(
                kernel, rows=kernel.rows * batch, padded_elements=kernel.padded_elements * batch
            )
        case Convolution():
            return replace(kernel, images=kernel.images * batch)
        case Attention() | Scan():
            return replace(kernel, sequences=kernel.sequences * batch)
