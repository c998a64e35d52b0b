"""Communication hooks: how each reduces a bucket, and what it keeps in memory.

Hooks that all-reduce whole buckets are PyTorch's default, its ``allreduce_hook``, and 16 bits. With
hooks that gather what each rank compressed (largest elements, signs, 8 bits), each rank receives
what all others send, and adds it up itself. `power_sgd` has its own module.

PowerSGD (Vogels and others, NeurIPS 2019) as torch 2.13 runs it.

The tensors of a bucket that are worth it become products of two thin matrices, P and Q. Three
all-reduces follow one another: the other tensors, all P, all Q
(``torch/distributed/algorithms/ddp_comm_hooks/powerSGD_hook.py``). The hook then waits for the
device, so backward goes on once the bucket is reduced: nothing overlaps.

Thin products are bound by memory, or by the GPU's rate where the rank is large. A QR factorisation
takes a reflection per column to factorise and another to write Q, of two kernels each.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from perfmodel.errors import Fault, InputError
from perfmodel.scenario.strategies.ddp import (
    CastHook,
    Hook,
    OneBitHook,
    PowerSgdHook,
    QuantizationHook,
    TopKHook,
)
from perfmodel.training.ddp.bucket_reduction import CALLBACK, CAST, BucketReduction
from perfmodel.training.ddp.buckets import Bucket
from perfmodel.training.plan.builder import COMPUTE
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor, Workload

SECTOR_BYTES = 32
"""Memory moves at least so much for an element that stands alone (CUDA C++ Programming Guide)."""

SELECT_PASSES = 6
"""Reads of all elements by ``torch.topk`` of 32-bit values: a radix select of 8 bits at a time,
one to count and one to gather (torch/csrc, ``TensorTopK.cu``)."""
SELECT_KERNELS = 14
"""Kernels of it: three per digit, and two to gather."""
SORT_PASSES = 4
"""Passes of a radix sort of the selected, 8 bits at a time."""

OBSERVER_KERNELS = 24
"""Small kernels of an observer and of scale and zero point from its extremes
(``torch/ao/quantization/observer.py``)."""


def reduce_bucket(reduction: BucketReduction, hook: Hook) -> int:
    """Reduce a bucket; return the task after which its gradients are reduced."""
    match hook:
        case CastHook():
            return _reduce_whole(reduction, hook)
        case PowerSgdHook():
            return reduce_factors(reduction, hook)
        case TopKHook():
            return _reduce_largest(reduction, hook)
        case OneBitHook():
            return _reduce_signs(reduction, hook)
        case QuantizationHook():
            return _reduce_quantised(reduction, hook)


def _largest_elements(hook: TopKHook, numel: int) -> int:
    """Elements of a bucket that are sent."""
    return max(1, math.ceil(hook.ratio * numel))


def _sums(*passes: tuple[object, float, int]) -> tuple[float, int]:
    """Bytes and kernels of those passes over memory that are made.

    A pass: whether it is made, the bytes that it moves, and its kernels.
    """
    made = [(nbytes, kernels) for is_made, nbytes, kernels in passes if is_made]
    return sum(nbytes for nbytes, _ in made), sum(kernels for _, kernels in made)


def _reduce_largest(reduction: BucketReduction, hook: TopKHook) -> int:
    """Gather the largest elements and their places, and add them up."""
    dtype, places_dtype, ranks = reduction.bucket.dtype, hook.index_dtype, reduction.ranks
    item, index = ITEM_BYTES[dtype], ITEM_BYTES[places_dtype]
    nbytes, chosen = reduction.bucket.nbytes, _largest_elements(hook, reduction.numel)
    moved, kernels = _sums(
        (True, 2 * nbytes, 1),  # magnitudes
        (True, SELECT_PASSES * nbytes, SELECT_KERNELS),
        (True, SORT_PASSES * 2 * chosen * (item + 8), SORT_PASSES),
        # the elements themselves, and places in their dtype
        (True, chosen * (SECTOR_BYTES + item + 8 + index), 2),
        # the error is added, and what is not sent is kept
        (hook.use_error_feedback, 3 * nbytes + 2 * nbytes + chosen * SECTOR_BYTES, 3),
    )
    ready, sent = reduction.compress(moved, kernels), ranks * chosen
    values = reduction.send("values of", "all_gather", sent * item, dtype, after=(ready,))
    places = reduction.send("places of", "all_gather", sent * index, places_dtype, after=(values,))
    moved = nbytes + sent * (index + item + 2 * SECTOR_BYTES) + 2 * nbytes
    return reduction.call_back("add up", moved, 2 + ranks, after=(values, places))


def _packed_bytes(numel: int) -> int:
    """Bytes of so many signs."""
    return -(-numel // 8)


def _reduce_signs(reduction: BucketReduction, hook: OneBitHook) -> int:
    """Gather signs and a scale, and add them up.

    All signs are read and added in one kernel, which is the fewest bytes.
    """
    nbytes, ranks = reduction.bucket.nbytes, reduction.ranks
    packed = _packed_bytes(reduction.numel)
    moved, kernels = _sums(
        (True, 2 * nbytes + packed, 2),  # mean of magnitudes; signs into bits
        (hook.use_error_feedback, 3 * nbytes + 2 * nbytes, 2),
    )
    ready = reduction.compress(moved, kernels)
    scales = reduction.send("scales of", "all_gather", ranks * 4, "fp32", after=(ready,))
    signs = reduction.send("signs of", "all_gather", ranks * packed, "uint8", after=(scales,))
    return reduction.call_back("add up", ranks * packed + nbytes, 1, after=(scales, signs))


def _quantised_channels(hook: QuantizationHook, numel: int) -> tuple[int, int]:
    """Scales of a bucket, and its elements with padding: a whole channel where none is needed."""
    if hook.kind == "quantization_pertensor":
        return 1, numel
    size = hook.channel_elements
    channels = (numel + size - numel % size) // size
    return channels, channels * size


def _reduce_quantised(reduction: BucketReduction, hook: QuantizationHook) -> int:
    """Gather scales, then 8-bit elements, and add them up.

    Every operation is a pass of its own, per rank; with channels, operations of each channel are
    (``torch/distributed/algorithms/ddp_comm_hooks/quantization_hooks.py``). Python reads the
    scale, for which it waits.
    """
    ranks = reduction.ranks
    channels, padded = _quantised_channels(hook, reduction.numel)
    pad, observers, quantisers, adders = 0, OBSERVER_KERNELS, 5, 1 + 4
    if hook.kind == "quantization_perchannel":
        pad, observers = 2 * 4 * padded, observers + 1
        quantisers, adders = 4 * channels + 3, 1 + 3 * channels + 3
    ready = reduction.compress(reduction.bucket.nbytes + pad, observers)
    reduction.hold_host((ready,))
    scales = reduction.send(
        "scales of", "all_gather", ranks * 2 * channels * 4, "fp32", after=(ready,)
    )
    # division, rounding, zero point, clamp: 4 bytes read and written; then to 8 bits
    moved = (4 * 8 + 5) * padded + ranks * padded
    quantised = reduction.call_back("quantise", moved, quantisers + ranks, after=(scales,))
    data = reduction.send("data of", "all_gather", ranks * padded, "uint8", after=(quantised,))
    # out of the gathered whole; to 32 bits, zero point, scale, sum; then the mean
    moved = 4 * padded + ranks * (2 + 5 + 8 + 8 + 12) * padded + 8 * padded
    return reduction.call_back("add up", moved, 2 + ranks * adders, after=(data,))


def _reduce_whole(reduction: BucketReduction, hook: CastHook) -> int:
    """All-reduce a bucket, converted to 16 bits if the hook does."""
    bucket, nbytes, dtype = reduction.bucket, reduction.bucket.nbytes, reduction.bucket.dtype
    if hook.kind in ("none", "allreduce"):
        ready = reduction.ready
        if hook.kind == "allreduce":  # div_ in place (_allreduce_fut in default_hooks.py)
            ready = (reduction.compress(2 * nbytes, 1),)
        return reduction.send("", "all_reduce", nbytes, dtype, after=ready)
    nbytes = ITEM_BYTES[hook.kind] * reduction.numel
    converted = _convert(reduction, nbytes)
    sent = reduction.send("", "all_reduce", nbytes, hook.kind, after=(converted,))
    name, moved = f"decompress {reduction.name}", (bucket.nbytes + nbytes) / 2
    return reduction.copy(name, moved, 1, after=(sent,), stream=CALLBACK)


def _convert(reduction: BucketReduction, nbytes: int) -> int:
    """Convert a bucket to 16 bits and divide it, on the device or on the host."""
    step, name = reduction.step, f"compress {reduction.name}"
    if step.request.cast_Bps is not None:
        return step.tasks.compute(
            name,
            "copy",
            reduction.bucket.nbytes / step.request.cast_Bps,
            step.rank_class,
            after=reduction.ready,
            stream=CAST,
            role="compress",
            **reduction.marks,
        )
    issued = step.tasks.issue(name, 2, step.rank_class, **reduction.marks)
    moved, after = (reduction.bucket.nbytes + nbytes) / 2 + nbytes, (*issued, *reduction.ready)
    return reduction.copy(name, moved, 2, after=after, stream=COMPUTE.name, role="compress")


def hook_at(hook: Hook, iteration: str) -> Hook:
    """Return what reduces in an iteration: PowerSGD starts late, after whole buckets."""
    if iteration == "first" and isinstance(hook, PowerSgdHook) and hook.start_iteration > 0:
        return CastHook(kind=hook.wrapper or "allreduce")
    return hook


def check_library(hook: Hook, request: StepRequest, buckets: Sequence[Bucket]) -> None:
    """Refuse hooks that cannot run with a library whose threads run callbacks.

    Raises `InputError`: PowerSGD waits in its callbacks for all-reduces, for which no thread is
    free (seen to hang: torch 2.13, Gloo, two threads, several buckets); the quantisation hooks
    index what NCCL's gathers return (seen to fail on Gloo with an IndexError).
    """
    if not request.blocking_wait or request.ranks == 1:
        return
    if isinstance(hook, QuantizationHook):
        allowed = "a hook that all-reduces: PyTorch's quantisation hooks fail on Gloo and MPI"
        raise InputError(Fault("strategy.hook", repr(hook.kind), allowed))
    threads = request.comm_workers
    if isinstance(hook, PowerSgdHook) and len(buckets) >= threads:
        needed = max(threads - 1, 0)
        allowed = (
            f"at most {needed} with the {threads} threads of this library, such as one bucket by a "
            "large bucket_cap, or NCCL: callbacks of PowerSGD wait in these threads for all-reduces"
        )
        raise InputError(Fault("strategy.hook", f"'powersgd' and {len(buckets)} buckets", allowed))


def hook_bytes(hook: Hook, workload: Workload, buckets: Sequence[Bucket], ranks: int) -> float:
    """Bytes on a GPU beside buckets and gradients.

    What hooks keep, of all buckets; what they need in passing, of the largest; for hooks that do
    not wait, all buckets may be in flight.
    """
    held = [
        _held_bytes(hook, each, tuple(workload.tensors[index] for index in each.tensors), ranks)
        for each in buckets
    ]
    return float(sum(kept for kept, _ in held) + max((passing for _, passing in held), default=0))


def _held_bytes(
    hook: Hook, bucket: Bucket, tensors: tuple[ParameterTensor, ...], ranks: int
) -> tuple[int, int]:
    """Bytes of a bucket that stay, and that are there while it is reduced."""
    numel = sum(tensor.numel for tensor in tensors)
    match hook:
        case CastHook():
            return ITEM_BYTES.get(hook.kind, 0) * numel, 0
        case PowerSgdHook():
            return held_bytes(hook, bucket, tensors)
        case QuantizationHook():
            channels, padded = _quantised_channels(hook, numel)
            # lists of gathered scales and bytes, the flat buffer, the sum
            return (ranks + 1) * 8 * channels + (2 * ranks + 1) * padded + 4 * padded, 0
        case TopKHook():
            each = ITEM_BYTES[bucket.dtype] + ITEM_BYTES[hook.index_dtype]
            sent = _largest_elements(hook, numel) * each
        case OneBitHook():
            sent = _packed_bytes(numel)
    return (ranks + 1) * sent + bucket.nbytes * (1 + hook.use_error_feedback), 0


GRAM_SCHMIDT_RANK = 2
"""Largest rank that fp32 is orthogonalised by Gram-Schmidt at (``_orthogonalize``)."""

RANDOM_NUMBERS_PER_S = 1e8
"""Normal numbers that ``torch.randn`` draws on one core (own run, torch 2.13, x86-64)."""


@dataclass(frozen=True, slots=True)
class ThinMatrices:
    """Alike matrices that are compressed together.

    `count` of `rows` x `columns`, each as a product of rank `rank`.
    """

    count: int
    rows: int
    columns: int
    rank: int

    @property
    def elements(self) -> int:
        """Of the whole matrices."""
        return self.count * self.rows * self.columns

    @property
    def p_elements(self) -> int:
        """Of the left factors."""
        return self.count * self.rows * self.rank

    @property
    def q_elements(self) -> int:
        """Of the right factors."""
        return self.count * self.columns * self.rank


@dataclass(frozen=True, slots=True)
class Factors:
    """What becomes of a bucket: matrices, and the tensors that travel whole.

    `whole_tensors`: how many, of `whole_elements` together.
    `p_elements`, `q_elements`: of all left and of all right factors.
    `stacked_matrices`: how many are compressed together with others, of `stacked_elements`.
    """

    matrices: tuple[ThinMatrices, ...]
    whole_tensors: int
    whole_elements: int
    p_elements: int
    q_elements: int
    stacked_elements: int
    stacked_matrices: int


def factorise(hook: PowerSgdHook, tensors: tuple[ParameterTensor, ...]) -> Factors:
    """Split the tensors of a bucket as the hook does.

    Examples
    --------
    >>> weight, bias = ParameterTensor("w", (64, 32)), ParameterTensor("b", (64,))
    >>> factors = factorise(PowerSgdHook(kind="powersgd", rank=4), (weight, bias))
    >>> factors.p_elements, factors.q_elements, factors.whole_elements
    (256, 128, 64)
    """
    shapes: Counter[tuple[int, int]] = Counter()
    whole = []
    for tensor in tensors:
        rows = tensor.shape[0] if tensor.shape else 1
        columns = tensor.numel // max(rows, 1)
        rank = min(rows, columns, hook.rank)
        if (rows + columns) * rank * hook.min_compression_rate < rows * columns:
            shapes[rows, columns] += 1
        else:
            whole.append(tensor.numel)
    joined = hook.batch_tensors_with_same_shape
    matrices = tuple(
        ThinMatrices(count if joined else 1, *shape, min(*shape, hook.rank))
        for shape, count in shapes.items()
        for _ in range(1 if joined else count)
    )
    return Factors(
        matrices,
        len(whole),
        sum(whole),
        sum(each.p_elements for each in matrices),
        sum(each.q_elements for each in matrices),
        sum(each.elements for each in matrices if each.count > 1),
        sum(each.count for each in matrices if each.count > 1),
    )


def reduce_factors(reduction: BucketReduction, hook: PowerSgdHook) -> int:
    """Reduce a bucket by its factors; return the last task."""
    dtype = hook.wrapper or reduction.bucket.dtype
    factors, item = factorise(hook, reduction.tensors), ITEM_BYTES[dtype]
    sent = _first_product(reduction, hook, factors, dtype)
    whole = item * factors.whole_elements
    sent = reduction.send("whole tensors of", "all_reduce", whole, dtype, after=(sent,))
    unpacked = 1 + factors.whole_tensors  # a division, and a copy per tensor
    sent = reduction.call_back("unpack", 4 * whole, unpacked, after=(sent,))
    sent = reduction.send("P of", "all_reduce", item * factors.p_elements, dtype, after=(sent,))
    basis_s, basis = _orthogonalisation(reduction, hook, factors, dtype, of_rows=True)
    products_s, products = _products(reduction, factors, dtype)
    sent = reduction.call_back(
        "multiply", 0, basis + products, after=(sent,), more_s=basis_s + products_s
    )
    sent = reduction.send("Q of", "all_reduce", item * factors.q_elements, dtype, after=(sent,))
    return _decompress(reduction, hook, factors, dtype, sent)


def _first_product(
    reduction: BucketReduction, hook: PowerSgdHook, factors: Factors, dtype: str
) -> int:
    """Add the error, keep a copy, orthogonalise Q and multiply by it.

    Without a warm start the host draws Q in each step.
    """
    step, item = reduction.step, ITEM_BYTES[dtype]
    nbytes, stacks = item * reduction.numel, sum(each.count > 1 for each in factors.matrices)
    moved, kernels = _sums(
        (hook.wrapper, reduction.bucket.nbytes + nbytes, 1),
        (hook.use_error_feedback, 5 * nbytes, 2),  # reads two, writes one; then a copy
        (factors.whole_tensors, 2 * item * factors.whole_elements, 1),
        (True, 2 * item * factors.stacked_elements, stacks),
    )
    if not hook.warm_start and step.tasks.launch_s > 0:
        draws = math.ceil(factors.q_elements / RANDOM_NUMBERS_PER_S / step.tasks.launch_s)
        name = f"random Q of {reduction.name}"
        step.tasks.issue(name, draws, step.rank_class, **reduction.marks)
    products_s, products = _products(reduction, factors, dtype)
    basis_s, basis = _orthogonalisation(reduction, hook, factors, dtype, of_rows=False)
    return reduction.compress(moved, kernels + products + basis, more_s=products_s + basis_s)


def _decompress(
    reduction: BucketReduction, hook: PowerSgdHook, factors: Factors, dtype: str, after: int
) -> int:
    """Multiply the factors, wait for the device, keep the error."""
    item = ITEM_BYTES[dtype]
    products_s, products = _products(reduction, factors, dtype)
    moved = 2 * item * (factors.q_elements + factors.stacked_elements)
    kernels = 1 + products + factors.stacked_matrices
    end = reduction.call_back("decompress", moved, kernels, after=(after,), more_s=products_s)
    reduction.hold_host((end,))
    if hook.use_error_feedback:  # reads the copy and the result, writes the error
        end = reduction.call_back("error of", 3 * item * reduction.numel, 1, after=(end,))
    if hook.wrapper is not None:  # copy_ of the 16-bit buffer onto itself
        end = reduction.call_back("convert", 2 * item * reduction.numel, 1, after=(end,))
    return end


def _products(reduction: BucketReduction, factors: Factors, dtype: str) -> tuple[float, int]:
    """Time without ramps, and kernels, of one product of each matrix with a factor."""
    item, flops_per_s = ITEM_BYTES[dtype], _matrix_flops(reduction, dtype)
    seconds = sum(
        max(
            reduction.work_s(item * (each.elements + each.p_elements + each.q_elements), 0),
            2 * each.elements * each.rank / flops_per_s,
        )
        for each in factors.matrices
    )
    return seconds, len(factors.matrices)


def _matrix_flops(reduction: BucketReduction, dtype: str) -> float:
    """Operations per second of matrix products on the GPU; infinite where none is stated."""
    gpu = reduction.step.request.gpu
    if gpu is None:
        return math.inf
    precision = dtype if dtype in gpu.matmul_efficiency else "fp32"
    return gpu.peak_flops[precision] * gpu.matmul_efficiency[precision]


def _orthogonalisation(
    reduction: BucketReduction, hook: PowerSgdHook, factors: Factors, dtype: str, *, of_rows: bool
) -> tuple[float, int]:
    """Time without ramps, and kernels, of making the columns of each P or Q orthonormal."""
    item, seconds, kernels = ITEM_BYTES[dtype], 0.0, 0
    for each in factors.matrices:
        rank = each.rank
        nbytes = item * each.count * (each.rows if of_rows else each.columns)
        if rank <= GRAM_SCHMIDT_RANK or dtype in {"fp16", "bf16"}:
            # per column: norm and division; of what remains: product, sum, product, difference
            kernels += rank * (2 + bool(hook.orthogonalization_epsilon)) + 4 * (rank - 1)
            moved = nbytes * (3 * rank + 8 * rank * (rank - 1) / 2)
        else:
            kernels += 4 * rank * each.count
            moved = nbytes * 2 * 3 * rank * (rank + 1) / 2
        seconds += reduction.work_s(moved, 0)
    return seconds, kernels


def held_bytes(
    hook: PowerSgdHook, bucket: Bucket, tensors: tuple[ParameterTensor, ...]
) -> tuple[int, int]:
    """Return bytes that stay from step to step, and that a bucket takes while it is reduced.

    The error, P and Q stay, and the 16-bit bucket of a wrapper; in passing a copy, whole tensors
    and stacked ones, and without a warm start P and Q.
    """
    factors, item = factorise(hook, tensors), ITEM_BYTES[hook.wrapper or bucket.dtype]
    elements = sum(tensor.numel for tensor in tensors)
    error, wrapped = (elements if kept else 0 for kept in (hook.use_error_feedback, hook.wrapper))
    basis = factors.p_elements + factors.q_elements
    staying, passing = (basis, 0) if hook.warm_start else (0, basis)
    return (
        item * (error + staying + wrapped),
        item * (error + factors.whole_elements + factors.stacked_elements + passing),
    )
