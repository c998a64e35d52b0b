"""Loops of a parameter server: bytes, who holds what, what is pushed when, work of the servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.scenario.strategies.servers import ParameterServerStrategy
from perfmodel.training.memory_use import Setup, replicated
from perfmodel.training.parameter_server import (
    MOST_PUSHES,
    parameter_server_loops,
    parameter_server_memory,
    server_bytes,
    shard,
)
from perfmodel.training.plan.step_plan import LoopPlan
from perfmodel.training.server_rates import cpu_rate_Bps
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import LayerTimes, ParameterTensor, Workload
from perfmodel.workload.zoo import build_model

Times = Callable[..., LayerTimes]
OPTIONS = ParameterServerStrategy(kind="parameter_server")


def switched(**fields: Any) -> ParameterServerStrategy:
    """Return the usual options with other fields."""
    return OPTIONS.model_copy(update=fields)


@pytest.fixture(scope="module")
def resnet() -> Workload:
    return build_model("resnet50")


def plan(
    workload: Workload,
    times_of: Times,
    ranks: int = 4,
    options: ParameterServerStrategy = OPTIONS,
    **kw: int,
) -> LoopPlan:
    return parameter_server_loops(
        StepRequest(workload, times_of(workload), ranks, 8, **kw),  # type: ignore[arg-type]
        options,
    )


# ---------------------------------------------------------------- shards


@given(
    sizes=st.lists(st.integers(1, 5_000_000), min_size=1, max_size=30),
    servers=st.integers(1, 9),
    assignment=st.sampled_from(["greedy", "hash"]),
    slice_bytes=st.sampled_from([None, 4_096_000.0, 1e5]),
)
@settings(max_examples=60)
def test_every_element_has_one_server(
    sizes: list[int], servers: int, assignment: str, slice_bytes: float | None
) -> None:
    tensors = [ParameterTensor(f"t{at}", (size,), "fp32") for at, size in enumerate(sizes)]
    shards = shard(
        tensors,
        servers,
        assignment=assignment,
        slice_bytes=slice_bytes,  # type: ignore[arg-type]
    )
    held = [sum(each.elements for each in shards if each.tensor == at) for at in range(len(sizes))]
    assert held == sizes
    assert {each.server for each in shards} <= set(range(servers))
    if slice_bytes is not None:
        assert max(4 * each.elements for each in shards) <= slice_bytes
    if assignment == "greedy":
        load = [sum(4 * e.elements for e in shards if e.server == at) for at in range(servers)]
        largest = 4_000_000 if slice_bytes is None else slice_bytes
        assert max(load) - min(load) <= largest + 4 * len(sizes)


def test_large_tensors_are_cut_and_small_ones_hashed_as_in_mxnet() -> None:
    """An array of 1e6 elements or more goes in equal parts to all, key k else to k * 9973 mod n."""
    sizes = (1_000_000, 999_999, 10, 2_000_003)
    tensors = [ParameterTensor(f"t{at}", (size,), "fp32") for at, size in enumerate(sizes)]
    shards = shard(tensors, 4, assignment="hash")
    where = {(each.tensor, each.server): each.elements for each in shards}
    assert [where[0, at] for at in range(4)] == [250_000] * 4
    assert where[1, 9973 % 4] == 999_999
    assert where[2, 2 * 9973 % 4] == 10
    assert sum(where[3, at] for at in range(4)) == 2_000_003


# ---------------------------------------------------------------- plan


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_all_gradients_are_pushed_and_all_parameters_pulled(
    resnet: Workload, times_of: Times, servers: int, accumulate: int
) -> None:
    options = switched(servers=servers, accumulate=accumulate)
    loops = plan(resnet, times_of, 4, options)
    assert sum(each.push_bytes for each in loops.exchanges) == pytest.approx(resnet.nbytes)
    assert sum(each.pull_bytes for each in loops.exchanges) == pytest.approx(resnet.nbytes)
    (items,) = loops.items
    sent = [exchange for item in items for exchange in item.sends]
    needed = [exchange for item in items for exchange in item.needs]
    assert sorted(sent) == sorted(needed) == list(range(len(loops.exchanges)))
    assert all(item.micro_batch == accumulate - 1 for item in items if item.sends)
    assert all(item.micro_batch == 0 for item in items if item.needs)
    assert loops.samples == 4 * 8 * accumulate
    kinds = {
        kind: sum(i.duration_s for i in items if i.kind == kind) for kind in ("forward", "backward")
    }
    layers = len(resnet.layers)
    assert kinds["forward"] == pytest.approx(accumulate * layers * 1e-3)
    added_s = (accumulate - 1) * 1.5 * resnet.nbytes / 1e12
    assert kinds["backward"] == pytest.approx(accumulate * layers * 2e-3 + added_s)


def test_forward_waits_for_the_parameters_of_its_own_layers(
    resnet: Workload, times_of: Times
) -> None:
    (items,) = plan(resnet, times_of).items
    pushes = [item.sends for item in items if item.kind == "backward"]
    waits = [item.needs for item in items if item.kind == "forward"]
    assert waits == pushes[::-1]
    loops = plan(resnet, times_of, 4, switched(overlap=False))
    first, *others = loops.items[0]
    assert first.needs == loops.items[0][-1].sends == tuple(range(len(loops.exchanges)))
    assert not any(item.needs for item in others)


def test_servers_sum_and_update_at_the_rate_of_their_memory(
    resnet: Workload, times_of: Times
) -> None:
    """A sum reads two and writes one; SGD with momentum moves 20 bytes for an element."""
    elements = resnet.nbytes / 4
    together = plan(resnet, times_of, 4, switched(memory_bandwidth=1e9))
    assert sum(each.each_s for each in together.exchanges) == pytest.approx(12 * elements / 1e9)
    assert sum(each.all_s for each in together.exchanges) == pytest.approx(20 * elements / 1e9)
    options = switched(memory_bandwidth=1e9, mode="asynchronous", gradient_dtype="fp16")
    apart = plan(resnet, times_of, 4, options)
    assert sum(each.each_s for each in apart.exchanges) == pytest.approx(20 * elements / 1e9)
    assert sum(each.push_bytes for each in apart.exchanges) == pytest.approx(2 * elements)
    assert sum(each.pull_bytes for each in apart.exchanges) == pytest.approx(4 * elements)
    gpu = plan(resnet, times_of, 4, switched(device="gpu"))
    assert sum(each.all_s for each in gpu.exchanges) == pytest.approx(20 * elements / 2e12)


def test_four_threads_and_no_more_than_the_memory() -> None:
    assert cpu_rate_Bps() == 4 * 12e9
    assert cpu_rate_Bps(threads=8) == 96e9
    assert cpu_rate_Bps(threads=64) == 190e9
    assert cpu_rate_Bps(threads=64, memory_Bps=100e9) == 100e9


@pytest.mark.parametrize("ranks", [1, 16, 256])
def test_messages_are_few_enough_to_simulate(resnet: Workload, times_of: Times, ranks: int) -> None:
    for options in (OPTIONS, switched(slice=1e5), switched(servers=8)):
        loops = plan(resnet, times_of, ranks, options)
        servers = len(loops.servers)
        # slices of one segment are not joined with those of another
        assert ranks * len(loops.exchanges) <= 2 * max(MOST_PUSHES, ranks * servers)


def test_nodes_as_workers(resnet: Workload, times_of: Times) -> None:
    loops = plan(resnet, times_of, 8, switched(local_reduce=True), nodes=2)
    assert [worker.ranks for worker in loops.workers] == [(0, 1, 2, 3), (4, 5, 6, 7)]
    assert sum(each.local_bytes for each in loops.exchanges) == pytest.approx(resnet.nbytes)
    assert loops.samples == 64


def test_modes_say_how_far_workers_drift_apart(resnet: Workload, times_of: Times) -> None:
    bounded = plan(resnet, times_of, 4, switched(mode="bounded", staleness=4))
    assert bounded.slack == 4
    assert not bounded.together
    free = plan(resnet, times_of, 4, switched(mode="asynchronous", device="gpu"))
    assert free.slack is None
    assert all(server.on_gpu for server in free.servers)
    usual = plan(resnet, times_of)
    assert (usual.slack, usual.together) == (0, True)
    assert not any(server.on_gpu for server in usual.servers)


# ---------------------------------------------------------------- memory


def test_workers_keep_no_optimizer_states_and_servers_do(resnet: Workload) -> None:
    setup = Setup(resnet, "fp32", "adam", 4, 8, options=OPTIONS)
    use = parameter_server_memory(setup)
    assert use.optimizer_bytes == use.buckets_bytes == 0
    assert use.parameters_bytes == replicated(setup).parameters_bytes
    size = resnet.nbytes
    assert server_bytes(resnet, OPTIONS, "adam", 1, 4) == pytest.approx(size * (1 + 2 + 4 + 1))
    halves = [server_bytes(resnet, OPTIONS, "adam", count, 4) for count in (1, 2)]
    assert halves[1] == pytest.approx(halves[0] / 2, rel=0.05)
    own = switched(placement="colocated", servers=2, device="gpu", gradient_dtype="bf16")
    served = parameter_server_memory(replace(setup, options=own))
    assert served.optimizer_bytes == pytest.approx(size, rel=0.05)  # half of two states
    assert served.buckets_bytes == pytest.approx(size / 2 + size / 2 * 2, rel=0.05)
    assert np.isfinite(served.total_bytes)
