"""Memory per GPU: published totals, what each option saves, and advice that is true."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from perfmodel.errors import InputError
from perfmodel.report.common import quantities
from perfmodel.scenario.sections.strategies.gradient_hooks import CastHook
from perfmodel.studies.run.result import Memory
from perfmodel.training.ddp.options import DdpOptions
from perfmodel.training.ddp.strategy import ddp_memory as memory
from perfmodel.training.memory.advice import advice, largest_batch
from perfmodel.training.memory.reserve import reserve_bytes
from perfmodel.training.memory.use import Setup
from perfmodel.training.servers.data_parallel import data_parallel_memory
from perfmodel.units import format_bytes
from perfmodel.workload.zoo import build_model

GB = 1e9


def setup_of(model: str = "resnet50", dtype: str = "fp32", **changed: Any) -> Setup:
    given: dict[str, Any] = {
        "precision": "fp32", "optimizer": "sgd-momentum", "ranks": 8, "batch_per_gpu": 32,
    }  # fmt: skip
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
        use.parameters_bytes, use.gradients_bytes, use.optimizer_bytes, use.buckets_bytes,
        use.activations_bytes,
    )  # fmt: skip
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
    setup = setup_of(activations_bytes=3e9)
    assert memory(setup).activations_bytes == 3e9
    fixed = memory(setup).total_bytes - 3e9
    assert largest_batch(setup, fixed + 6e9, memory) == 64


@pytest.mark.parametrize("capacity", [2 * GB, 16 * GB, 80 * GB])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_the_largest_batch_just_fits(capacity: float, precision: str) -> None:
    setup = setup_of(precision=precision)
    batch = largest_batch(setup, capacity, memory)
    assert memory(replace(setup, batch_per_gpu=batch)).total_bytes <= capacity
    assert memory(replace(setup, batch_per_gpu=batch + 1)).total_bytes > capacity


def test_no_advice_where_it_fits() -> None:
    assert advice(setup_of(), 80 * GB, memory) == ()


def test_advice_is_true() -> None:
    setup = setup_of(batch_per_gpu=512)
    capacity = 16 * GB
    proposals = advice(setup, capacity, memory)
    match = re.search(r"at most (\d+) per GPU instead of 512: with (\d+) accumulated", proposals[0])
    assert match is not None
    batch, micro_batches = map(int, match.groups())
    assert batch == largest_batch(setup, capacity, memory)
    assert batch * micro_batches >= 512 > batch * (micro_batches - 1)
    assert [line.split("=")[0].split(" ")[0] for line in proposals[1:]] == [
        "gradient_as_bucket_view", "bf16", "FSDP",
    ]  # fmt: skip
    assert all(line.endswith("not enough alone") for line in proposals[1:])


def test_sharding_makes_a_large_model_fit() -> None:
    setup = setup_of("gpt2-xl", optimizer="adam", batch_per_gpu=1, ranks=8, precision="bf16")
    proposals = advice(setup, 24 * GB, memory)
    assert proposals[0].startswith("no smaller batch")
    sharded = next(line for line in proposals if line.startswith("FSDP"))
    assert "over 8" in sharded
    use = memory(setup)
    embeddings = (50257 + 1024) * 1600 * 4  # the largest unit; two may be whole at once
    expected = use.states_bytes / 8 + 2 * embeddings + use.activations_bytes
    assert f": {format_bytes(expected)} of" in sharded
    assert sharded.endswith(", fits")


def test_advice_does_not_repeat_what_is_done() -> None:
    options = DdpOptions(gradient_as_bucket_view=True)
    setup = setup_of(batch_per_gpu=4096, options=options, ranks=1, precision="bf16")
    assert len(advice(setup, GB, memory)) == 1


def test_refuses_unknown_words() -> None:
    with pytest.raises(InputError) as caught:
        memory(setup_of(precision="fp33", ranks=0))
    assert [fault.field for fault in caught.value.faults] == ["ranks", "precision"]
    with pytest.raises(InputError, match="sgd-momentum"):
        memory(setup_of(optimizer="sgd-momentun"))


def memory_of(share: float) -> Memory:
    """A GPU of 80 GiB of which training takes a share."""
    capacity = 80 * 2.0**30
    reserve = reserve_bytes(share * capacity, nccl=True)
    return Memory(share * capacity, 0, 0, 0, 0, 0, capacity, reserve_bytes=reserve)


@pytest.mark.parametrize(
    ("share", "verdict"),
    [(0.5, "fits"), (0.94, "fits"), (0.97, "tight"), (0.997, "tight"), (1.01, "does not fit")],
)
def test_the_last_percents_are_tight(share: float, verdict: str) -> None:
    """CUDA's context, NCCL's buffers and the allocator need 3 to 4 GiB of a full A100."""
    assert quantities.memory_verdict(memory_of(share)) == verdict
    assert quantities.memory(memory_of(share)).lower().startswith(verdict)


def test_the_reserve_has_its_parts() -> None:
    """NCCL's defaults: LL 512 KiB, LL128 4800 KiB, Simple 4 MiB for each connection."""
    buffers = reserve_bytes(0.0, nccl=True) - reserve_bytes(0.0, nccl=False)
    assert buffers % (8 * 512 * 8 * 16 + 120 * 640 * 8 * 8 + 2**22) == 0
    assert 0.25 * 2**30 < buffers < 2**30
    assert 0.3 * 2**30 <= reserve_bytes(0.0, nccl=False) <= 0.6 * 2**30
