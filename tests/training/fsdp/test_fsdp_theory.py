"""Fully sharded training against published formulas, closed forms and bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.scenario.strategies.sharded import FsdpStrategy
from perfmodel.simulate.engine.engine import simulate
from perfmodel.simulate.engine.jitter import Jitter, Variation
from perfmodel.simulate.engine.rank_vectors import simulate_ranks, why_unsuited
from perfmodel.testing.check_plan import check_plan
from perfmodel.topology.model import Topology
from perfmodel.training.fsdp.step_plan import fsdp_plan
from perfmodel.training.plan.split_class import one_class_per_rank
from perfmodel.training.plan.step_plan import Collective, Compute, StepPlan
from perfmodel.training.strategy import StepRequest
from perfmodel.workload.model import ITEM_BYTES, Layer, LayerTimes, ParameterTensor, Workload
from reports.oracle.closed_forms import form

Maker = Callable[..., Topology]
FORWARD_S, BACKWARD_S, OPTIMIZER_S = 1e-3, 2e-3, 4e-4


def model_of(rows: list[int], ranks: int) -> Workload:
    """One block for each entry, of so many rows per rank; a root of one row per rank."""
    names = [f"blocks.{number}.linear" for number in range(len(rows))]
    shapes = [(each * ranks, 8) for each in rows]
    tensors = [ParameterTensor(f"{n}.weight", s) for n, s in zip(names, shapes, strict=True)]
    tensors.append(ParameterTensor("head.weight", (ranks, 8)))
    layers = [Layer(name, (index,)) for index, name in enumerate([*names, "head"])]
    return Workload("blocks", tuple(tensors), tuple(layers))


def request_of(model: Workload, ranks: int, **changes: Any) -> StepRequest:
    layers = len(model.layers)
    times = LayerTimes(
        np.full(layers, FORWARD_S),
        np.full(layers, BACKWARD_S),
        np.ones(layers, int),
        np.ones(layers, int),
        0.0,
        OPTIMIZER_S,
        3,
        1e30,
        "equal",
    )
    return StepRequest(model, times, ranks, 1, **changes)


def copied_bytes(plan: StepPlan, copy_Bps: float) -> float:
    """Bytes that copies within the device read and write once."""
    seconds = [
        t.work.duration_s for t in plan.tasks if t.kind == "copy" and isinstance(t.work, Compute)
    ]
    return sum(seconds) * copy_Bps


@pytest.mark.parametrize("version", [1, 2])
def test_copies_within_the_device(version: Any) -> None:
    """Version 1 gathers in place but joins gradients; version 2 copies out of each gather.

    The root is whole from forward to backward, and so gathered once.
    """
    ranks, model = 8, model_of([4, 4, 4], 8)
    request = request_of(model, ranks)
    request = replace(request, times=replace(request.times, copy_Bps=1e6))
    plan = fsdp_plan(request, FsdpStrategy(kind="fsdp", version=version))
    whole, gathered = model.nbytes, 2 * model.nbytes - model.tensors[-1].nbytes
    expected = {
        1: 2 * whole + whole / ranks,  # gradients joined and divided, their shards divided
        2: gathered / ranks + gathered + whole,  # shards in, gathers out, gradients in
    }
    assert copied_bytes(plan, 1e6) == pytest.approx(expected[version])


def sent_bytes(plan: StepPlan) -> float:
    """Bytes that each rank sends with rings."""
    ranks = {each.name: len(each.groups[0]) for each in plan.communicators}
    works = [task.work for task in plan.tasks if isinstance(task.work, Collective)]
    return sum(
        form(work.op, "ring", ranks[work.communicator], work.nbytes).sent_bytes for work in works
    )


DTYPES = st.sampled_from(["fp32", "bf16", "fp16"])
ROWS = st.lists(st.integers(1, 50), min_size=1, max_size=6)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(ROWS, st.sampled_from([1, 2, 3]), st.sampled_from([2, 3, 4, 8]), DTYPES, DTYPES, st.data())
def test_bytes_sent_are_those_of_the_published_formulas(
    rows: list[int], copies: int, shards: int, parameter: str, reduced: str, data: st.DataObject
) -> None:
    """Psi (e_p, once or twice, and e_g) times (f - 1) / f, and 2 (r - 1) / r of a shard.

    Rajbhandari et al. 2019 (arXiv 1910.02054, section 7); Zhao et al. 2023 (arXiv 2304.11277,
    section 3.2) for copies of shards.
    """
    version = data.draw(st.sampled_from([1, 2]))
    frees = data.draw(st.booleans())
    micro_batches = data.draw(st.integers(1, 3))
    syncs = ["each", "last", "shards"][: 3 if version == 2 and copies > 1 else 2]
    sync = data.draw(st.sampled_from(syncs))
    ranks = copies * shards
    model = model_of(rows, shards)
    options = FsdpStrategy(
        kind="fsdp",
        version=version,
        wrap="layer",
        reshard_after_forward=frees,
        param_dtype=parameter,
        reduce_dtype=reduced,
        accumulate=micro_batches,
        sync=sync,
        shard_gpus=shards if copies > 1 else None,
    )
    plan = fsdp_plan(request_of(model, ranks), options)
    check_plan(plan)
    psi, e_p, e_g = model.parameters, ITEM_BYTES[parameter], ITEM_BYTES[reduced]
    stays = version == 1 and not frees and sync == "last"  # whole from one micro-step to the next
    gathers = (2 if frees else 1) * (1 if stays else micro_batches)
    reductions = 1 if sync == "last" else micro_batches
    averages = micro_batches if sync == "each" else 1
    expected = (shards - 1) / shards * psi * (gathers * e_p + reductions * e_g)
    expected += averages * 2 * (copies - 1) / copies * psi / shards * e_g
    assert sent_bytes(plan) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("micro_batches", [2, 5])
def test_micro_steps_without_sync_reduce_once(version: int, micro_batches: int) -> None:
    options = FsdpStrategy(kind="fsdp", version=version, accumulate=micro_batches, sync="last")  # type: ignore[arg-type]
    plan = fsdp_plan(request_of(model_of([3, 4], 4), 4), options)
    works = [task.work.op for task in plan.tasks if isinstance(task.work, Collective)]
    assert works.count("reduce_scatter") == 3
    assert works.count("all_gather") == micro_batches * 5


@pytest.mark.parametrize("ranks", [2, 3, 8])
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("rate_Bps", [50e9, 5e6])
def test_one_unit_takes_the_sum_of_its_parts(
    version: int, ranks: int, rate_Bps: float, switched_topology: Maker, theory: ModuleType
) -> None:
    """Gather, forward, backward, reduce, update: nothing overlaps.

    A unit that is freed after forward is gathered again at once, as the host is ahead: beside
    forward, if it is longer.
    """
    model = model_of([500], ranks)
    machine = Machine(switched_topology([rate_Bps] * ranks, [1e-6] * ranks), load_library("plain"))
    link = {"alpha_s": 1e-6, "beta_s_per_B": 1 / rate_Bps}
    moved_s = theory.ring_all_reduce_s(ranks, model.nbytes, **link) / 2
    for regathers in (False, True) if version == 2 else (False,):
        options = FsdpStrategy(kind="fsdp", version=version, wrap="model", reshard_root=regathers)  # type: ignore[arg-type]
        run = simulate(
            fsdp_plan(request_of(model, ranks), options), machine, steps=2, overlap_slowdown=1.0
        )
        forward_s = max(2 * FORWARD_S, moved_s) if regathers else 2 * FORWARD_S
        expected_s = moved_s + forward_s + 2 * BACKWARD_S + moved_s + OPTIMIZER_S / ranks
        assert run.step_times_s[-1] == pytest.approx(expected_s, rel=1e-9)


def longest_path_s(plan: StepPlan, collective_s: Callable[[Collective], float]) -> float:
    """Time of the longest chain of tasks that wait for each other."""
    ends: list[float] = []
    for task in plan.tasks:
        work = task.work
        assert isinstance(work, Collective | Compute)
        lasts_s = work.duration_s if isinstance(work, Compute) else collective_s(work)
        ends.append(max((ends[other] for other in task.after), default=0.0) + lasts_s)
    return max(ends)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(
    ROWS,
    st.sampled_from([1, 2]),
    st.booleans(),
    st.sampled_from(["pre", "post", "none"]),
    st.sampled_from([1e8, 1e10]),
    st.sampled_from([1, 2]),
    st.booleans(),
)
def test_no_step_beats_its_bounds(
    switched_topology: Maker,
    rows: list[int],
    version: int,
    frees: bool,
    prefetch: str,
    rate_Bps: float,
    micro_batches: int,
    hybrid: bool,
) -> None:
    """Compute, what each port sends, and the longest chain of tasks."""
    ranks = 4
    model = model_of([100 * each for each in rows], ranks)
    machine = Machine(switched_topology([rate_Bps] * ranks, [1e-6] * ranks), load_library("plain"))
    options = FsdpStrategy(
        kind="fsdp",
        version=version,
        reshard_after_forward=frees,
        accumulate=micro_batches,  # type: ignore[arg-type]
        backward_prefetch=prefetch if version == 1 else "pre",  # type: ignore[arg-type]
        shard_gpus=2 if hybrid else None,
    )
    plan = fsdp_plan(request_of(model, ranks), options)
    step_s = simulate(plan, machine, steps=3, overlap_slowdown=1.0).step_times_s[-1]
    compute = [
        task.work.duration_s
        for task in plan.tasks
        if isinstance(task.work, Compute) and task.stream == "compute"
    ]
    sizes = {each.name: len(each.groups[0]) for each in plan.communicators}

    def alone_s(work: Collective) -> float:
        moved = form(work.op, "ring", sizes[work.communicator], work.nbytes)
        return moved.path_bytes / rate_Bps

    assert step_s >= sum(compute) * (1 - 1e-9)
    assert step_s >= sent_bytes(plan) / rate_Bps * (1 - 1e-9)
    assert step_s >= longest_path_s(plan, alone_s) * (1 - 1e-9)


def test_gathers_ahead_hide_behind_layers(switched_topology: Maker) -> None:
    """Where a gather takes as long as the layers of a unit, only the first one is waited for."""
    ranks, units = 4, 8
    model = model_of([1000] * units, ranks)
    gather_s = FORWARD_S / 2
    rate_Bps = (ranks - 1) * model.tensors[0].nbytes / ranks / gather_s
    machine = Machine(switched_topology([rate_Bps] * ranks, [0.0] * ranks), load_library("plain"))
    takes = {}
    for prefetch in ("pre", "none"):
        options = FsdpStrategy(kind="fsdp", version=1, backward_prefetch=prefetch)  # type: ignore[arg-type]
        plan = fsdp_plan(request_of(model, ranks), options)
        takes[prefetch] = simulate(plan, machine, steps=3, overlap_slowdown=1.0).step_times_s[-1]
    layers_s = (units + 1) * (FORWARD_S + BACKWARD_S)
    assert takes["pre"] < layers_s + 4 * gather_s
    # every unit of backward but the first waits for its own gather, behind a reduction
    assert takes["none"] > takes["pre"] + (units - 2) * gather_s


def test_the_host_waits_for_freed_units(switched_topology: Maker) -> None:
    """Without the limit of version 1, a slow network is never waited for by the host."""
    model = model_of([1000] * 6, 4)
    request = request_of(model, 4)
    request = replace(request, times=replace(request.times, launch_s=1e-6))
    machine = Machine(switched_topology([1e9] * 4, [0.0] * 4), load_library("plain"))
    gathers = {}
    for limited in (True, False):
        plan = fsdp_plan(request, FsdpStrategy(kind="fsdp", version=1, limit_all_gathers=limited))
        check_plan(plan)
        spans = simulate(plan, machine, steps=3, overlap_slowdown=1.0).timeline.spans
        issued = [s for s in spans if s.name.startswith("issue gather blocks.5") and s.step == 2]
        gathers[limited] = min(span.start_s for span in issued)
    assert gathers[False] < gathers[True]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("per", ["step", "layer"])
def test_ranks_that_vary_are_a_vector(
    switched_topology: Maker, version: int, per: Literal["step", "layer"]
) -> None:
    """Gathers and reductions take turns: clocks of ranks suffice, as a process for each agrees."""
    ranks = 4
    request = request_of(model_of([300, 500, 200], ranks), ranks)
    request = replace(request, times=replace(request.times, copy_Bps=1e9))
    options = FsdpStrategy(kind="fsdp", version=version, accumulate=2)  # type: ignore[arg-type]
    plan = fsdp_plan(request, options)
    assert why_unsuited(plan) is None
    machine = Machine(switched_topology([1e8] * ranks, [1e-6] * ranks), load_library("plain"))
    jitter = (Jitter("normal", 0.2, per, 7),)
    vector = simulate_ranks(
        plan, machine, steps=4, overlap_slowdown=1.3, stretch=Variation(plan, jitter, ())
    )
    each = one_class_per_rank(plan)
    engine = simulate(
        each, machine, steps=4, overlap_slowdown=1.3, stretch=Variation(each, jitter, ())
    )
    assert vector.step_ends_s == pytest.approx(engine.step_ends_s, rel=1e-9)


def test_reductions_that_overlap_gathers_are_no_vector() -> None:
    plan = fsdp_plan(
        request_of(model_of([3, 4], 4), 4), FsdpStrategy(kind="fsdp", separate_reduce=True)
    )
    assert "several streams" in str(why_unsuited(plan))
