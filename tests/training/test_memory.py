"""Memory per GPU: published totals, what each option saves, and advice that is true."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfmodel.errors import InputError
from perfmodel.report.common import quantities
from perfmodel.scenario.strategies.ddp import CastHook
from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.studies.run.usage import Memory
from perfmodel.training.data_parallel import data_parallel_memory
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.strategy import ddp_memory as memory
from perfmodel.training.fsdp.strategy import fsdp_memory
from perfmodel.training.memory_use import (
    MemoryRule,
    Setup,
    add_temporaries,
    context_bytes,
    unused_bytes,
)
from perfmodel.workload import Layer, ParameterTensor, Workload
from perfmodel.workload.memory.recompute import Recompute
from perfmodel.workload.zoo import build_model
from tests.activations import activation_bytes


def setup_of(model: str = "resnet50", dtype: str = "fp32", **changed: Any) -> Setup:
    given: dict[str, Any] = {
        "precision": "fp32",
        "optimizer": "sgd-momentum",
        "ranks": 8,
        "batch_per_gpu": 32,
    }
    return Setup(workload=build_model(model, dtype=dtype), **(given | changed))


def test_gpt2_needs_24_gb_with_adam_in_half_precision() -> None:
    """Rajbhandari et al. 2019 (arXiv 1910.02054): 16 bytes per parameter, 24 GB for 1.5 B."""
    use = memory(setup_of("gpt2-xl", "fp16", precision="fp16", optimizer="adam", batch_per_gpu=1))
    assert use.states_bytes == pytest.approx(16 * 1.5576e9, rel=1e-3)
    assert use.parameters_bytes == use.gradients_bytes
    assert use.optimizer_bytes == 6 * use.parameters_bytes


@pytest.mark.parametrize(("optimizer", "states"), [("sgd", 0), ("sgd-momentum", 1), ("adamw", 2)])
def test_optimizer_states(optimizer: str, states: int) -> None:
    setup = setup_of(optimizer=optimizer)
    assert memory(setup).optimizer_bytes == states * setup.workload.nbytes


def test_parts_add_up() -> None:
    setup = setup_of()
    use = memory(setup)
    parts = (
        use.parameters_bytes,
        use.gradients_bytes,
        use.optimizer_bytes,
        use.buckets_bytes,
        use.activations_bytes,
    )
    assert use.total_bytes == sum(parts)
    assert use.parameters_bytes == setup.workload.nbytes + setup.workload.buffer_bytes


def test_buckets_are_a_copy_of_the_gradients_unless_views() -> None:
    setup = setup_of()
    nbytes = setup.workload.nbytes
    views = DdpOptions(gradient_as_bucket_view=True)
    assert memory(setup).buckets_bytes == nbytes
    assert memory(replace(setup, options=views)).buckets_bytes == 0
    half = DdpOptions(hook=CastHook(kind="bf16"))
    assert memory(replace(setup, options=half)).buckets_bytes == 1.5 * nbytes
    assert memory(replace(setup, ranks=1)).buckets_bytes == 0


def test_gpu_0_of_data_parallel_holds_reduced_gradients_and_all_outputs() -> None:
    setup = setup_of()
    served, alone = (data_parallel_memory(replace(setup, ranks=ranks)) for ranks in (8, 1))
    assert served.buckets_bytes == setup.workload.nbytes
    assert served.activations_bytes - alone.activations_bytes == 2 * 8 * 32 * 1000 * 4


def test_measured_activations_replace_the_count() -> None:
    views = DdpOptions(gradient_as_bucket_view=True)
    setup = setup_of(activations_bytes=3e9, options=views)
    assert memory(setup).activations_bytes == 3e9
    counted = [
        memory(setup_of(recompute=each, options=views)).activations_bytes
        for each in (Recompute("full"), Recompute())
    ]
    recomputed = memory(replace(setup, recompute=Recompute("full")))
    assert recomputed.activations_bytes == pytest.approx(3e9 * counted[0] / counted[1])


def test_backward_begins_with_the_logits_and_two_gradients_of_theirs() -> None:
    """Beside the fp32 logarithm of their softmax: its gradient and that of the logits."""
    views = DdpOptions(gradient_as_bucket_view=True)  # buckets stay, and gradients with them
    setup = setup_of("gpt2", optimizer="sgd", batch_per_gpu=2, precision="bf16", options=views)
    kept_bytes = activation_bytes(setup.workload, 2, "bf16")
    assert memory(setup).activations_bytes == kept_bytes + 2 * 1024 * 50257 * (4 + 4)


def test_gradients_grow_while_activations_shrink() -> None:
    """Three maps of one weight each: backward holds what is left, and the gradients so far."""
    tensors = tuple(ParameterTensor(f"{i}.weight", (1000,)) for i in range(3))
    kept = (500.0, 100.0, 700.0)
    layers = tuple(Layer(f"{i}", (i,), matmul_flops=1.0, saved_elements=kept[i]) for i in range(3))
    setup = Setup(Workload("maps", tensors, layers), "fp32", "sgd", ranks=1, batch_per_gpu=1)
    for batch, held in ((1, 500 + 3000), (2, 1000 + 3000), (6, 6 * 1300 + 1000)):
        use = memory(replace(setup, batch_per_gpu=batch))
        assert use.total_bytes == 4 * (3000 + held)
        assert use.gradients_bytes == 4 * 3000
        whole = replace(setup, batch_per_gpu=batch, options=DdpOptions(accumulate=2))
        assert memory(whole).total_bytes == 4 * (6000 + batch * 1300)


@pytest.mark.parametrize(("optimizer", "copies"), [("adamw", 1), ("adam", 1), ("sgd-momentum", 1)])
def test_an_optimizer_operation_by_operation_makes_copies(optimizer: str, copies: int) -> None:
    """``_multi_tensor_adam`` takes the root of all second moments at once."""
    setup = setup_of("gpt2-xl", optimizer=optimizer, batch_per_gpu=1, activations_bytes=1e9)
    nbytes = copies * setup.workload.nbytes - memory(setup).activations_bytes
    assert 0 < memory(setup).activations_bytes <= 1e9
    assert add_temporaries(setup, memory(setup)).temporary_bytes == pytest.approx(nbytes)
    fused = replace(setup, optimizer_kernels="fused")
    assert add_temporaries(fused, memory(fused)).temporary_bytes == 0


@pytest.mark.slow
@given(
    name=st.sampled_from(["resnet18", "gpt2", "bert-base"]),
    batch=st.integers(1, 512),
    precision=st.sampled_from(["fp32", "bf16"]),
    ranks=st.sampled_from([1, 2, 8]),
    optimizer=st.sampled_from(["sgd", "sgd-momentum", "adamw"]),
)
def test_more_samples_take_more_and_shards_never_more_than_copies(
    name: str, batch: int, precision: str, ranks: int, optimizer: str
) -> None:
    setup = setup_of(
        name, precision=precision, batch_per_gpu=batch, ranks=ranks, optimizer=optimizer
    )

    def total(setup: Setup, rule: MemoryRule) -> float:
        return add_temporaries(setup, rule(setup)).total_bytes

    assert total(replace(setup, batch_per_gpu=batch + 1), memory) >= total(setup, memory)
    assert memory(replace(setup, batch_per_gpu=batch + 1)).total_bytes > memory(setup).total_bytes
    less = replace(setup, recompute=Recompute("full"))
    assert total(less, memory) <= total(setup, memory)
    sharded = replace(setup, options=FsdpStrategy(kind="fsdp"))
    states = fsdp_memory(sharded)
    assert states.states_bytes <= memory(setup).states_bytes * (1 + 1e-2 * (ranks > 1))


def test_refuses_unknown_words() -> None:
    with pytest.raises(InputError) as caught:
        memory(setup_of(precision="fp33", ranks=0))
    assert [fault.field for fault in caught.value.faults] == ["ranks", "precision"]
    with pytest.raises(InputError, match="sgd-momentum"):
        memory(setup_of(optimizer="sgd-momentun"))


def memory_of(share: float) -> Memory:
    """A GPU of 80 GiB of which training takes a share."""
    capacity = 80 * 2.0**30
    fixed = context_bytes(1)
    reserve = fixed + unused_bytes(share * capacity)
    return Memory(
        parameters_bytes=share * capacity,
        capacity_bytes=capacity,
        low_bytes=0.9 * share * capacity,
        high_bytes=1.2 * share * capacity,
        reserve_bytes=reserve,
        context_bytes=fixed,
    )


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        (0.8, "fits"),
        (0.85, "probably fits"),
        (0.92, "probably fits"),
        (0.97, "tight"),
        (0.997, "may not fit"),
        (1.12, "does not fit"),
    ],
)
def test_the_last_percents_are_tight(share: float, verdict: str) -> None:
    """CUDA's context, NCCL's buffers and the allocator need 5 to 6 GiB of a full A100."""
    assert quantities.memory_verdict(memory_of(share)) == verdict
    assert quantities.memory(memory_of(share)).lower().startswith(verdict)


def test_the_reserve_has_its_parts() -> None:
    """NCCL's defaults: LL 512 KiB, LL128 4800 KiB, Simple 4 MiB for each connection."""
    buffers = context_bytes(1) - context_bytes(0)
    assert buffers % (8 * 512 * 8 * 16 + 120 * 640 * 8 * 8 + 2**22) == 0
    assert 0.25 * 2**30 < buffers < 2**30
    assert 0.3 * 2**30 <= context_bytes(0) <= 0.6 * 2**30
    assert context_bytes(3) - context_bytes(0) == 3 * buffers  # each communicator has its own
