"""PowerSGD (Vogels and others, NeurIPS 2019) as torch 2.13 runs it.

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
from dataclasses import dataclass

from perfmodel.scenario.strategies.ddp import (
    PowerSgdHook,
)
from perfmodel.training.ddp.bucket_reduction import BucketReduction, sum_passes
from perfmodel.training.ddp.buckets import Bucket
from perfmodel.training.frameworks import fixed_in
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor


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
    moved, kernels = sum_passes(
        (hook.wrapper, reduction.bucket.nbytes + nbytes, 1),
        (hook.use_error_feedback, 5 * nbytes, 2),  # reads two, writes one; then a copy
        (factors.whole_tensors, 2 * item * factors.whole_elements, 1),
        (True, 2 * item * factors.stacked_elements, stacks),
    )
    if not hook.warm_start and step.tasks.launch_s > 0:
        draws = math.ceil(
            factors.q_elements / fixed_in("torch", "random_numbers_per_s") / step.tasks.launch_s
        )
        step.tasks.issue(f"random Q of {reduction.name}", draws, step.rank_class, **reduction.marks)
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
    """Operations per second of matrix products on the GPU; infinite where none is stated.

    In fp32 where it has not the type, and in its slowest one where it has no fp32.
    """
    gpu = reduction.step.request.gpu
    if gpu is None:
        return math.inf
    rates = {name: gpu.peak_flops[name] * share for name, share in gpu.matmul_efficiency.items()}
    return rates.get(dtype, rates.get("fp32", min(rates.values())))


def _orthogonalisation(
    reduction: BucketReduction, hook: PowerSgdHook, factors: Factors, dtype: str, *, of_rows: bool
) -> tuple[float, int]:
    """Time without ramps, and kernels, of making the columns of each P or Q orthonormal."""
    item, seconds, kernels = ITEM_BYTES[dtype], 0.0, 0
    for each in factors.matrices:
        rank = each.rank
        nbytes = item * each.count * (each.rows if of_rows else each.columns)
        if rank <= fixed_in("torch", "gram_schmidt_rank") or dtype in {"fp16", "bf16"}:
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
