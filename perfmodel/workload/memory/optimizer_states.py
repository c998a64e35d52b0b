"""Device memory of optimizer states, and traffic and launches of an optimizer step."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from itertools import chain, cycle, product
from math import prod
from typing import Literal

from perfmodel.errors import refuse_if
from perfmodel.memo import grouped
from perfmodel.topology.model import Gpu, fp32_peak
from perfmodel.workload.kernels.device import (
    Factors,
    OptimizerKind,
    kernel_constants,
    make_device,
)
from perfmodel.workload.kernels.kernel_times import product_s
from perfmodel.workload.kernels.shapes import WIDE_BYTES, MatrixProduct
from perfmodel.workload.memory.blocks import block_of
from perfmodel.workload.model import ITEM_BYTES, ParameterTensor, Workload

OptimizerKernels = Literal["foreach", "fused", "for-loop"]
"""How an optimizer runs: an operation at a time on all tensors (PyTorch's default from 2.0 on), all
of it in one pass (``fused=True``, Apex, DeepSpeed), or tensor by tensor (PyTorch before 2.0)."""


def optimizer_state_bytes(
    workload: Workload, optimizer: str, *, master_weights: bool = True
) -> int:
    """Bytes of the optimizer's state over all trained parameters.

    fp32 states per element (momentum 1, Adam 2), and fp32 master weights where parameters are
    narrower (Rajbhandari et al. 2019, arXiv 1910.02054, section 3.1: K = 12 for Adam); and the
    factors of its sides (Gupta et al. 2018, arXiv 1802.09568).

    `master_weights`: False: states of the parameters' own dtype and no copies, as torch.optim has.
    """
    return round(
        sum(
            number
            * (
                _states_bytes(tensor, kind, wide)
                + 2 * wide * _factor_elements(tensor, kind)
                + wide * tensor.numel * (wide > ITEM_BYTES[tensor.dtype])
            )
            for tensor, kind, wide, number in _updates(workload, optimizer, master_weights)
        )
    )


def _updates(
    workload: Workload, optimizer: str, master_weights: bool = True
) -> list[tuple[ParameterTensor, OptimizerKind, int, int]]:
    """Return one of each kind of trained tensors, of which most models have a dozen.

    With what updates it, bytes of an element that is updated, and how many are alike.
    """
    matrices = kernel_constants().optimizer(optimizer).matrices
    alike = grouped(
        ((each.shape, each.dtype, each.of_experts, matrices and _is_matrix(each, matrices)), each)
        for each in map(workload.tensors.__getitem__, workload.ready_order)
    )
    return [
        (
            first,
            optimizer_of(first, optimizer),
            WIDE_BYTES if master_weights else ITEM_BYTES[first.dtype],
            1 + len(others),
        )
        for first, *others in alike.values()
    ]


def optimizer_of(tensor: ParameterTensor, optimizer: str) -> OptimizerKind:
    """What updates a tensor: of Muon, matrices of repeated blocks are updated another way."""
    kind = kernel_constants().optimizer(optimizer)
    return kind.matrices if kind.matrices and _is_matrix(tensor, kind.matrices) else kind


def _is_matrix(tensor: ParameterTensor, kind: OptimizerKind) -> bool:
    """Whether a tensor is updated as a matrix; by products only within repeated blocks."""
    return len(tensor.shape) > 1 and (kind.rounds == 0 or block_of(tensor.name) is not None)


def parameter_groups(workload: Workload, optimizer: str) -> dict[str, list[int]]:
    """Return trained parameters in order: "matrices" that are made orthogonal, then all "others".

    The matrices with most rows first (``MuonWithAuxAdam`` of KellerJordan/Muon).
    """
    return grouped(
        (name, each)
        for name, _, each in sorted(
            (
                ("matrices", tuple(-length for length in workload.tensors[each].shape), each)
                if optimizer_of(workload.tensors[each], optimizer).rounds
                else ("others", (), each)
            )
            for each in workload.ready_order
        )
    )


def gathered_matrices(workload: Workload, optimizer: str, ranks: int) -> list[list[int]]:
    """Matrices that so many ranks share out, those of a list one each, the largest first.

    Source: ``step`` of Muon in muon.py of KellerJordan/Muon.
    """
    kind, tensors = kernel_constants().optimizer(optimizer), workload.tensors
    matrices = sorted(
        (i for i in workload.ready_order if _is_matrix(tensors[i], kind.matrices or kind)),
        key=lambda i: tensors[i].shape,
        reverse=True,
    )
    return [matrices[at : at + ranks] for at in range(0, len(matrices), ranks)]


def layer_wise_shares(workload: Workload, ranks: int) -> list[list[int]]:
    """Tensors that each of so many ranks updates, those of the rank with most elements first.

    The smallest tensors are dealt out first, to and fro (``shard_params`` in
    megatron/core/optimizer/layer_wise_optimizer.py).
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    numels = [tensor.numel for tensor in workload.tensors]
    order = sorted(workload.ready_order, key=numels.__getitem__)
    for share, tensor in zip(cycle((*shares, *reversed(shares))), order, strict=False):
        share.append(tensor)
    return sorted(shares, key=lambda own: -sum(numels[index] for index in own))


def calls_of_matrices(
    workload: Workload, optimizer: str
) -> Iterator[tuple[str, Literal["all_reduce", "all_gather"], int, int]]:
    """Yield calls of ``torch.optim.Muon`` where each rank has some rows of all matrices.

    Whose, what, elements in bf16, and how many alike. As DTensor spreads them: norms are summed up,
    and X, A and B of a round are gathered. Where columns are fewer than rows, A is a sum over
    ranks, and so is B. Recorded with ``fully_shard`` of torch 2.13.
    """
    for name, rows, columns, rounds in _products_of_rows(workload, optimizer):
        yield name, "all_reduce", 1, 1
        if rows > columns:
            yield name, "all_reduce", columns**2, 2 * rounds
        else:
            yield name, "all_gather", rows * columns, 2 * rounds
            yield name, "all_gather", rows**2, rounds


def undivided_products_s(workload: Workload, optimizer: str, gpu: Gpu) -> float:
    """Time of A A where columns are fewer than rows, which each rank makes whole; seconds."""
    bf16 = ("bf16", ITEM_BYTES["bf16"])  # not every GPU has it, and other optimizers need none
    return sum(
        rounds * product_s(MatrixProduct(columns, columns, columns), make_device(gpu, *bf16))
        for _, rows, columns, rounds in _products_of_rows(workload, optimizer)
        if rows > columns
    )


def _products_of_rows(workload: Workload, optimizer: str) -> list[tuple[str, int, int, int]]:
    """Name, rows and columns of each matrix that is made orthogonal, and its rounds."""
    trained = map(workload.tensors.__getitem__, workload.ready_order)
    return [
        (tensor.name, *tensor.shape, kind.rounds)
        for tensor, kind in ((each, optimizer_of(each, optimizer)) for each in trained)
        if kind.rounds and len(tensor.shape) == 2
    ]


def fullest_share(
    workload: Workload, optimizer: str, ranks: int, *, layer_wise: bool = False
) -> Workload:
    """Return the workload with what that of the ranks updates which has most to do.

    `layer_wise`: as Megatron-Core deals out all tensors, and not as Muon's authors do matrices.
    """
    return without(
        workload,
        set(
            chain.from_iterable(
                layer_wise_shares(workload, ranks)[1:]
                if layer_wise
                else (m[1:] for m in gathered_matrices(workload, optimizer, ranks))
            )
        ),
    )


def without(workload: Workload, others: Collection[int]) -> Workload:
    """Return the workload without some of its tensors."""
    return replace(
        workload,
        layers=tuple(
            replace(each, tensors=tuple(i for i in each.tensors if i not in others))
            for each in workload.layers
        ),
    )


def _states_bytes(tensor: ParameterTensor, kind: OptimizerKind, wide_bytes: int) -> float:
    """Bytes of one tensor's state, without a copy of its elements and without factors."""
    full = kind.state_tensors * kind.item_bytes(tensor.numel, wide_bytes) * tensor.numel
    return full + kind.edges * wide_bytes * sum(tensor.numel / n for n in tensor.shape[-2:])


def _factor_elements(tensor: ParameterTensor, kind: OptimizerKind) -> int:
    """Elements of one matrix for each of a tensor's sides."""
    return sum(number * side**2 for side, _, number in _sides(tensor, kind.factors))


def _sides(tensor: ParameterTensor, factors: Factors) -> Iterator[tuple[int, int, int]]:
    """Sides of a tensor or its blocks that have factors: length, what stands across, how many."""
    count, *shape = _batch(tensor) if factors.longest else (1,)  # most optimizers have none
    cuts = [
        Counter({length % most: 1, most: length // most}) - Counter({0: 1})
        for length in shape
        for most in [factors.longest if factors.cuts else length]
    ]
    for block in product(*cuts) if len(cuts) > 1 else ():
        number = count * prod(cut[length] for cut, length in zip(cuts, block, strict=True))
        yield from (
            (side, prod(block) // side, number) for side in block if side <= factors.longest
        )


def _batch(tensor: ParameterTensor) -> tuple[int, ...]:
    """Tensors that are updated by themselves, and the shape of one: experts in one are several."""
    return tensor.shape if tensor.of_experts and len(tensor.shape) > 2 else (1, *tensor.shape)


def optimizer_unhidden_s(
    workload: Workload, optimizer: str, gpu: Gpu, *, gram: bool = False
) -> float:
    """Time of what traffic does not hide: work on elements, waits of the host, products; seconds.

    `gram`: whether matrices are made orthogonal by their Gram matrices.
    Raises `InputError`: the GPU has not the precision of the products.
    """
    seconds, times = 0.0, defaultdict[tuple[str, MatrixProduct], float](float)
    for tensor, kind, _, alike in _updates(workload, optimizer):
        for made, number in _products(tensor, kind, gram):
            times[made] += alike * number
        seconds += alike * (
            kind.element_flops * tensor.numel / fp32_peak(gpu.peak_flops)
            + kind.waits * kind.tensor_operations * gpu.launch_s
            + sum(side * number for side, _, number in _sides(tensor, kind.factors))
            * (kind.factors.column_s / kind.factors.refresh_steps)
        )
    for (precision, each), number in times.items():
        lacks = precision not in gpu.matmul_efficiency
        refuse_if(lacks, "optimizer", f"{optimizer!r} on {gpu.name}", f"a GPU that has {precision}")
        seconds += number * product_s(each, make_device(gpu, precision, ITEM_BYTES[precision]))
    return seconds


def _products(
    tensor: ParameterTensor, kind: OptimizerKind, gram: bool
) -> Iterator[tuple[tuple[str, MatrixProduct], float]]:
    """Products of a step, with their precision, and how many times each is made.

    Newton and Schulz make matrices of updates orthogonal. Of a matrix X, whose rows are the shorter
    side, each round is A = X X', B = b A + c A A and a X + B X (torch/optim/_muon.py).

    With `gram`, a round is of R = X X' alone: Z = b R + c R R, Q = (a + Z) Q and, for the next one,
    R = (a + Z) (a + Z) R. X becomes Q X after the second, from which all starts anew, and at the
    end. Squares are multiplied as without it, and all in fp16 (``zeropower_via_gram_newtonschulz``
    in deepspeed/runtime/zero/muon/original_muon.py).

    A side's factor is a mean of X X', and what is made of it (eigenvectors, an inverse root) is
    multiplied with what stands for X (arXiv 1802.09568, 2409.11321).
    """
    if kind.rounds:
        count, height, *width = _batch(tensor)
        m, n = sorted((height, prod(width)))
        for columns, depth, by_gram in ((m, n, 2), (m, m, 4 * kind.rounds - 6), (n, m, 2)):
            yield (
                ("fp16" if gram else "bf16", MatrixProduct(m, columns, depth, count)),
                by_gram if gram and m < n else kind.rounds,
            )
    for side, across, number in _sides(tensor, kind.factors):
        yield ("fp32", MatrixProduct(side, side, across)), number
        yield ("fp32", MatrixProduct(across, side, side)), number * kind.factors.projections
        yield (
            ("fp32", MatrixProduct(side, side, side)),
            (number * kind.factors.refresh_products / kind.factors.refresh_steps),
        )


def shares_of_step(
    workload: Workload,
    optimizer: str,
    ranks: int,
    gpu: Gpu,
    *,
    layer_wise: bool = False,
    share: Workload | None = None,
    gram: bool = False,
) -> tuple[float, float]:
    """Time and operations of the fullest rank's share of a step, over those of all of it.

    `layer_wise`: as in `fullest_share`.
    `share`: where it is another one; `gram`: its matrices as in `optimizer_unhidden_s`.
    """
    (own_s, own), (whole_s, whole) = (
        (
            optimizer_unhidden_s(each, optimizer, gpu, gram=by_gram)
            + optimizer_bytes(each, optimizer) / gpu.memory_Bps / gpu.memory_efficiency,
            optimizer_operations(each, optimizer),
        )
        for each, by_gram in (
            (share or fullest_share(workload, optimizer, ranks, layer_wise=layer_wise), gram),
            (workload, False),
        )
    )
    return own_s / whole_s, own / whole


def temporary_share(workload: Workload, optimizer: str) -> float:
    """Copies that a step makes operation by operation, over all of the optimizer's states."""
    updates = _updates(workload, optimizer)
    copies_bytes = sum(n * kind.copies * WIDE_BYTES * each.numel for each, kind, _, n in updates)
    return copies_bytes / (optimizer_state_bytes(workload, optimizer) or 1)


def optimizer_bytes(
    workload: Workload,
    optimizer: str,
    kernels: OptimizerKernels = "foreach",
    *,
    master_weights: bool = True,
) -> int:
    """Memory traffic of one optimizer step; bytes.

    Fused, per fp32 element: gradient read, weight read and written, each state read and written; so
    12 bytes for SGD, 20 with momentum, 28 for Adam. Narrow parameters are only written, and their
    master weights read and written. Not fused, each operation reads and writes its tensors.

    `master_weights`: as for `optimizer_state_bytes`.
    """
    return round(
        sum(
            number * _moved_bytes(tensor, kind, wide_bytes, kernels)
            for tensor, kind, wide_bytes, number in _updates(workload, optimizer, master_weights)
        )
    )


def _moved_bytes(
    tensor: ParameterTensor, kind: OptimizerKind, wide_bytes: int, kernels: OptimizerKernels
) -> float:
    """Bytes that a step moves of one tensor and its state."""
    own, once = ITEM_BYTES[tensor.dtype], 3 + 2 * kind.state_tensors
    is_fused = kernels == "fused" and not kind.tensor_kernels
    passes = max(kind.fused_passes if is_fused else kind.passes, once) - once
    passes += kernel_constants().for_loop.passes if kernels == "for-loop" else 0
    weight = 2 * wide_bytes + own if wide_bytes > own else 2 * own
    states = 2 * _states_bytes(tensor, kind, wide_bytes)
    states += kind.factors.passes * wide_bytes * _factor_elements(tensor, kind)
    return tensor.numel * (own + weight + passes * max(wide_bytes, kind.work_bytes)) + states


def optimizer_launches(
    workload: Workload, optimizer: str, kernels: OptimizerKernels = "foreach"
) -> int:
    """Kernels of one optimizer step: a launch has a limit of tensors and one of elements.

    Source: ATen/native/cuda/MultiTensorApply.cuh.
    """
    updates = _updates(workload, optimizer)
    updated = grouped((kind, numel) for each, kind, _, n in updates for numel in [each.numel] * n)
    return sum(_launches(kind, sizes, kernels) for kind, sizes in updated.items()) + sum(
        alike * number * kind.factors.kernels
        for tensor, kind, _, alike in updates
        for *_, number in _sides(tensor, kind.factors)
    )


def _launches(kind: OptimizerKind, sizes: Sequence[int], kernels: OptimizerKernels) -> int:
    """Kernels over tensors of some sizes, in elements."""
    constants = kernel_constants()
    if kernels == "for-loop" or kind.tensor_kernels:
        more = constants.for_loop.operations if kernels == "for-loop" else 0
        return len(sizes) * ((kind.tensor_kernels or kind.operations) + more)
    each, times = (
        (constants.tensors_per_operation, kind.operations)
        if kernels == "foreach"
        else (kind.tensors_per_launch, 1)
    )
    return times * (-(-len(sizes) // each) + sum(sizes) // constants.elements_per_launch)


def optimizer_operations(
    workload: Workload, optimizer: str, kernels: OptimizerKernels = "foreach"
) -> int:
    """Operations alone that take the host as long as one optimizer step: launches, and lists."""
    host, updates = kernel_constants().host, _updates(workload, optimizer)
    lists = host.tensor * sum(alike for *_, alike in updates)
    lists += (
        host.corrections
        * sum(alike * kind.corrections for _, kind, _, alike in updates)
        * (kernels != "fused")
    )
    slow = sum(
        alike * max(0, kind.tensor_operations - (kind.tensor_kernels or kind.operations))
        + sum(
            alike * number * (kind.factors.operations - kind.factors.kernels)
            for *_, number in _sides(tensor, kind.factors)
        )
        for tensor, kind, _, alike in updates
        if not kind.waits
    )
    return round(optimizer_launches(workload, optimizer, kernels) + lists + slow)
