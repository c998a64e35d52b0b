"""Muon under ZeRO: what a rank makes orthogonal, and for how long.

Its calls are in tests/training/recorded.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest

import perfmodel as pm
from perfmodel.errors import InputError
from perfmodel.scenario import load_scenario
from perfmodel.scenario.strategies.deepspeed import ZeroStrategy
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.training.memory_use import Setup
from perfmodel.training.plan.step_plan import Compute
from perfmodel.training.strategy import StepRequest
from perfmodel.training.zero.matrices import own_matrices, with_own_matrices
from perfmodel.training.zero.strategy import zero_memory, zero_plan
from perfmodel.workload.model import Layer, ParameterTensor, Workload
from tests.training.recorded.toy_workload import request

SQUARE = (4096, 4096)


def matrices(*shapes: tuple[int, ...]) -> Workload:
    """Matrices of repeated blocks."""
    tensors = tuple(ParameterTensor(f"layers.{i}.weight", each) for i, each in enumerate(shapes))
    layers = tuple(Layer(f"layers.{i}", (i,)) for i in range(len(shapes)))
    return Workload("matrices", tensors, layers)


def asked(workload: Workload, ranks: int) -> StepRequest:
    return request(ranks, workload, optimizer="muon", gpu=load_gpu("h100-sxm5-80gb"))


def options(stage: int, **changes: object) -> ZeroStrategy:
    scatters = {"reduce_scatter": False} if stage == 3 else {}
    return ZeroStrategy.model_validate({"kind": "zero", "stage": stage, **scatters, **changes})


# of 6 matrices, each of 2 ranks has 3, of 4 one and half of another, of 12 half of one; in stage 3
# there are so many rounds
@pytest.mark.parametrize(
    ("stage", "ranks", "updated"),
    [(1, 2, 3), (2, 4, 2), (2, 12, 1), (3, 2, 3), (3, 4, 2), (3, 12, 1)],
)
def test_time_is_that_of_whole_matrices(stage: int, ranks: int, updated: int) -> None:
    step = asked(matrices(*[SQUARE] * 6), ranks)
    made = with_own_matrices(step, options(stage, ns_method="standard")).times
    # a plan takes the part of one rank of it
    assert made.optimizer_s / ranks == pytest.approx(step.times.optimizer_s * updated / 6)
    assert made.optimizer_kernels == round(step.times.optimizer_kernels * updated / 6)


def test_a_matrix_on_a_border_is_updated_twice() -> None:
    """Three ranks have 5/3 of five matrices: the second one has pieces of three."""
    workload = matrices(*[SQUARE] * 5)
    assert own_matrices(workload, options(2), 3, "muon") == [1, 2, 3]


# in the order of MuonWithAuxAdam, by rows and columns: 3 x 2 elements, 2 x 4, 2 x 3, 1 x 9
def test_rounds_take_as_long_as_the_largest_of_each() -> None:
    workload = matrices((2, 3), (3, 2), (2, 4), (1, 9))
    assert own_matrices(workload, options(3), 2, "muon") == [2, 3]
    assert own_matrices(workload, options(3, reduce_bucket_size=15), 2, "muon") == [2, 3]
    assert own_matrices(workload, options(3, reduce_bucket_size=14), 2, "muon") == [2, 0, 3]


def test_all_else_is_split_as_adam_splits_it() -> None:
    """An embedding beside a matrix: a rank of eight has the eighth of it."""
    table = ParameterTensor("embed.weight", (50_000, 4096))
    both = Workload(
        "both",
        (table, ParameterTensor("layers.0.weight", (64, 64))),
        (Layer("embed", (0,)), Layer("layers.0", (1,))),
    )
    step = asked(both, 8)
    made = with_own_matrices(step, options(2)).times.optimizer_s / 8
    assert made == pytest.approx(step.times.optimizer_s / 8, rel=0.05)
    many = replace(step, times=replace(step.times, optimizer_kernels=1000))
    # one of 48 launches at most of each operation on lists: those of both, whatever the ranks
    assert with_own_matrices(many, options(2)).times.optimizer_kernels == 1000
    adam = request(8, both, optimizer="adamw", gpu=load_gpu("h100-sxm5-80gb"))
    assert with_own_matrices(adam, options(2)) is adam


def test_the_host_copies_each_part_of_each_gathered_matrix() -> None:
    """Six matrices of four ranks: 24 parts of gradients and of momenta, then four of each round."""
    step = replace(asked(matrices(*[SQUARE] * 6), 4), kernel_s=1e-3)
    plan = zero_plan(step, options(3, stage3_param_persistence_threshold=0))
    copied_s = [
        task.work.duration_s
        for task in plan.tasks
        if isinstance(task.work, Compute) and task.name.startswith("copy out ")
        if "matrices" in task.name
    ]
    item, rate = 4, step.times.copy_Bps
    expected = [
        parts * 1e-3 + item * gathered * prod(SQUARE) / rate
        for parts, gathered in ((24, 6), (24, 6), *[(4, 4)] * 4)
    ]
    assert copied_s == pytest.approx(expected)


def test_a_step_has_room_for_whole_gradients_and_momenta() -> None:
    """What is gathered of four matrices of fp32 three times, as activations are none here."""
    setup = Setup(matrices(*[SQUARE] * 4), "fp32", "muon", 4, 1, options(3), activations_bytes=0.0)
    use = zero_memory(setup)
    room = use.temporary_bytes + use.idle_bytes
    assert room == pytest.approx(3 * 4 * 4 * prod(SQUARE))
    alone = zero_memory(replace(setup, optimizer="adamw"))
    assert alone.temporary_bytes + alone.idle_bytes == pytest.approx(4 * prod(SQUARE))


def test_gram_matrices_make_long_ones_quicker() -> None:
    """On one rank, too; squares are multiplied the usual way, in fp16."""
    long, square = matrices((4096, 16384)), matrices(SQUARE)
    for ranks in (1, 2):
        quick, slow = (
            with_own_matrices(asked(long, ranks), options(1, ns_method=each)).times.optimizer_s
            for each in ("gram", "standard")
        )
        # products of 2 m m (4 n + 14 m) operations instead of 5 x 2 m m (2 n + m): 30 of 45
        assert 30 / 45 < quick / slow < 0.8
        alike = [
            with_own_matrices(asked(square, ranks), options(1, ns_method=each)).times.optimizer_s
            for each in ("gram", "standard")
        ]
        assert alike[0] == pytest.approx(alike[1], rel=0.06)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (["compute.optimizer=muon", "strategy={kind: zero, stage: 3}"], "DeepSpeed stops at both"),
        (["strategy={kind: zero, ns_method: standard}"], "nothing without compute.optimizer"),
        (
            ["compute.optimizer=muon", "strategy={kind: zero, offload_optimizer: {device: cpu}}"],
            "'muon' without offload",
        ),
        (["compute.optimizer=soap", "strategy={kind: zero}"], "an optimizer of elements"),
        (
            ["compute.optimizer=muon", "strategy={kind: zero}", "parallel={tensor: 2}"],
            "an optimizer of elements",
        ),
    ],
)
def test_what_deepspeed_or_no_plan_has_is_refused(changes: list[str], told: str) -> None:
    with pytest.raises(InputError, match=told):
        load_scenario("llama2-7b-fsdp-h100", changes)


def test_stage_3_sends_matrices_for_muon() -> None:
    """Twice each: gradients and momenta, and again what was made of them, at least."""

    def sent_bytes(optimizer: str) -> float:
        changes = [
            "strategy={kind: zero, stage: 3, reduce_scatter: false}",
            f"compute.optimizer={optimizer}",
            "cluster.nodes=1",
            "scale.gpus=[8]",
            "model.dtype=bf16",
        ]
        main = pm.run(load_scenario("llama2-7b-fsdp-h100", changes)).main
        return sum(use.nbytes for use in main.communication if use.op == "all_gather")

    matrices_bytes = 2 * 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    assert sent_bytes("muon") - sent_bytes("adamw") >= 4 * matrices_bytes
