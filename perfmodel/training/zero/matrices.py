"""Muon under ZeRO: which matrices a rank makes orthogonal whole, and what is gathered for it.

As DeepSpeed 0.19 has it (``deepspeed/runtime/zero``), where matrices and all other parameters are
groups by themselves, the matrices by their rows and columns (of models that are made outside of
``zero.Init``, in which all parameters look alike):

- Stages 1 and 2: a rank updates every matrix of which it owns a piece (``get_flat_partition`` in
  stage_1_and_2.py), so that one on the border of two parts is updated twice. Momenta are of whole
  matrices, in the dtype of the gradients, and there are two of each: what a step makes of one is
  kept apart until it is known that no gradient overflowed (``_muon_staging_momentum``).
- Stage 3 (``_apply_muon_to_accumulated_grads`` in stage3.py): gradients of as many matrices as fit
  into `reduce_bucket_size` are gathered, and their momenta, which are split and in the dtype that
  is sent. The ranks take turns with them; after each round, updates and momenta are gathered, all
  as large as the largest of the round. The host copies each part of each matrix to its place.

Updates and gathers wait for each other, so that plans have all updates after the gathers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from perfmodel.memo import grouped
from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.training.sharding_step import full_groups
from perfmodel.training.strategy import StepRequest
from perfmodel.training.zero.offload import part_elements, sub_groups
from perfmodel.training.zero.sharded_states import partition
from perfmodel.workload.memory.optimizer_states import (
    optimizer_of,
    parameter_groups,
    shares_of_step,
    without,
)
from perfmodel.workload.model import Workload


def matrix_rounds(
    workload: Workload, options: ZeroStrategy, ranks: int, optimizer: str
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Return the matrices that stage 3 gathers at once, in rounds of one for each rank."""
    return tuple(
        tuple(chunk[at : at + ranks] for at in range(0, len(chunk), ranks))
        for group in sub_groups(workload, options, ranks, optimizer)
        if options.stage == 3 and optimizer_of(workload.tensors[group[0]], optimizer).rounds
        for chunk in full_groups(group, workload, options.reduce_bucket_size, exceeds=False)
    )


def matrix_gathers(
    workload: Workload, options: ZeroStrategy, ranks: int, optimizer: str
) -> Iterator[tuple[str, int, int]]:
    """Return what stage 3 gathers for its matrices: a name, elements, and copies out of them."""
    return (
        (name, elements, copies)
        for rounds in matrix_rounds(workload, options, ranks, optimizer)
        for elements, copies in (
            (
                ranks * sum(part_elements(workload, each, ranks) for each in rounds),
                ranks * sum(map(len, rounds)),
            ),
            *((ranks * max(workload.tensors[i].numel for i in each), ranks) for each in rounds),
        )
        for name in ("gradients of matrices", "momenta of matrices")
    )


def own_matrices(
    workload: Workload, options: ZeroStrategy, ranks: int, optimizer: str
) -> list[int]:
    """Return the matrices of the rank that updates most elements; in stage 3, of each round.

    The others wait for it at the next collective.
    """
    owned = grouped(
        (rank, each)
        for layout in [partition(workload, options, ranks, optimizer)]
        for each, (name, _) in layout.starts.items()
        if name == "matrices"
        for rank, _ in layout.owners(each, workload.tensors[each].numel)
    )
    return (
        [
            max(each, key=lambda matrix: workload.tensors[matrix].numel)
            for rounds in matrix_rounds(workload, options, ranks, optimizer)
            for each in rounds
        ]
        if options.stage == 3
        else max(
            owned.values(),
            key=lambda own: sum(workload.tensors[matrix].numel for matrix in own),
            default=[],
        )
    )


def with_own_matrices(request: StepRequest, options: ZeroStrategy) -> StepRequest:
    """Return a request whose optimizer takes `ranks` times as long as that of one rank.

    For plans take the part of one rank of it. Its kernels are those of one rank. Where no matrices
    are made orthogonal, the request stays as it is.
    """
    own = own_matrices(request.workload, options, request.ranks, request.optimizer)
    if request.gpu is None or not own:
        return request
    (whole_s, whole), (split_s, split) = (
        shares_of_step(
            request.workload,
            request.optimizer,
            request.ranks,
            request.gpu,
            share=without(request.workload, {*request.workload.ready_order}.difference(each)),
            gram=options.ns_method == "gram",
        )
        for each in (
            own,
            parameter_groups(request.workload, request.optimizer).get("others", []),
        )
    )
    return replace(
        request,
        times=replace(
            request.times,
            optimizer_s=(request.ranks * whole_s + split_s) * request.times.optimizer_s,
            optimizer_kernels=round((whole + split) * request.times.optimizer_kernels),
        ),
    )
