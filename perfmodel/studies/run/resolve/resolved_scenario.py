"""A scenario with its names looked up: node, models, profile, fidelity, cluster sizes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast, get_args

from perfmodel.errors import (
    Fault,
    InputError,
    ScheduleError,
    allowed_names,
    check_schedule,
    describe_type,
    raise_faults,
    refuse_if,
)
from perfmodel.files import collect_faults
from perfmodel.own_functions import call_function, check_function, name_of
from perfmodel.scenario import ClusterSize, Scenario, sizes
from perfmodel.scenario.model import relocated_errors
from perfmodel.scenario.strategies.ddp import DdpStrategy
from perfmodel.simulate.engine.engine import Fidelity
from perfmodel.studies.run.resolve.disturbance import Disturbance
from perfmodel.studies.run.resolve.machine import named_node
from perfmodel.studies.run.resolve.training_job import resolve_share, resolve_workload
from perfmodel.topology.model import Gpu, Topology
from perfmodel.topology.templates.build import load_node
from perfmodel.topology.templates.gpus import load_gpu
from perfmodel.topology.templates.spec import NodeSpec, device_names
from perfmodel.training.plan.step_plan import StepPlan
from perfmodel.training.strategy import StepRequest, Strategy
from perfmodel.workload.model import ITEM_BYTES, Workload
from perfmodel.workload.readers.layer_times import read_stated

if TYPE_CHECKING:
    from perfmodel.calibrate import Profile


@dataclass(frozen=True, slots=True)
class ResolvedScenario:
    """A scenario and what its names refer to.

    `node`: template of every node, or the whole machine where the scenario has its graph.
    `share`: what one rank of a tensor, context and expert group holds of `workload`.
    `other_workloads`: models of the other jobs on the network.
    `sizes`: of the scaling curve; the last one is the scenario's main size.
    `own`: a strategy of the user's, in place of the scenario's.
    `processes`: of the user's, beside the job.
    """

    scenario: Scenario
    node: NodeSpec | Topology
    workload: Workload
    share: Workload
    other_workloads: tuple[Workload, ...]
    profile: Profile | None
    fidelity: Fidelity
    sizes: tuple[ClusterSize, ...]
    own: Strategy | None = None
    processes: tuple[Disturbance, ...] = ()


def resolve_scenario(
    scenario: Scenario,
    profile: Profile | None,
    fidelity: str | None,
    strategy: OwnStrategy | None = None,
) -> ResolvedScenario:
    """Look up the names of a scenario.

    `profile`: instead of the scenario's.
    `fidelity`: instead of the scenario's.
    `strategy`: a function of the user's, in place of the scenario's.
    Raises `InputError`: a name that does not resolve; names file, line and field.
    """
    own = None if strategy is None else make_strategy(strategy)
    scenario = scenario if own is None else without_strategy(scenario)
    scenario.refuse_if(
        scenario.strategy.kind == "auto",
        "strategy.kind",
        "'auto'",
        "a strategy that stands: perfmodel run, compare, sweep and plan choose it",
    )
    checked, fidelities = fidelity or scenario.fidelity, get_args(Fidelity)
    refuse_if(
        checked not in fidelities, "fidelity", repr(checked), allowed_names(fidelities, checked)
    )
    if profile is None and scenario.profile is not None:
        from perfmodel.calibrate import read_profile

        with relocated_errors(scenario, "profile"):
            profile = read_profile(scenario.origin.beside("profile", scenario.profile))
    node, workload, other_workloads = resolve_names(scenario)
    if isinstance(node, Topology):
        scenario = scenario.model_copy(
            update={"cluster": scenario.cluster.model_copy(update={"nodes": node.hosts})}
        )
    scenario, workload = _of_this_device(scenario, workload, _gpu_of(node))
    all_sizes = tuple(sizes(scenario, gpus_of(node)))
    share = resolve_share(scenario, workload, all_sizes[-1])
    _check_groups(scenario, all_sizes[-1].gpus)
    return ResolvedScenario(
        scenario,
        node,
        workload,
        share,
        other_workloads,
        profile,
        cast("Fidelity", checked),
        all_sizes,
        own,
    )


_GROUPS = (
    "shard_gpus",
    "zero_hpz_partition_size",
    "num_distributed_optimizer_instances",
    "process_group_gpus",
    "gradient_gpus",
)
"""Fields of strategies that are GPUs of a group, or groups of at least a GPU."""


def _check_groups(scenario: Scenario, gpus: int) -> None:
    """Refuse groups that are larger than the cluster; smaller sizes of a curve share all."""
    section = scenario.strategy
    groups = {name: getattr(section, name, None) for name in _GROUPS}
    groups |= {
        f"levels.{number}.gpus": level.gpus
        for number, level in enumerate(getattr(section, "levels", None) or ())
    }
    raise_faults(
        scenario.origin.fault(f"strategy.{name}", str(size), f"at most the {gpus} GPUs")
        for name, size in groups.items()
        if size is not None and size > gpus
    )


def _of_this_device(scenario: Scenario, workload: Workload, gpu: Gpu) -> tuple[Scenario, Workload]:
    """The scenario and its model; times that were taken on another device are priced anew.

    What was recorded beside them, how unlike GPUs are and what collectives slow down, goes, too.
    Raises `InputError`: the work of the model's layers is not known.
    """
    compute, field = scenario.compute, "compute.times"
    if compute.times is None:
        return scenario, workload
    with relocated_errors(scenario, "compute", {"gpu": field}):
        stated = read_stated(scenario.origin.resolve(field, compute.times)).device
        measured = load_gpu(stated) if stated else gpu
    if gpu.name == measured.name or gpu.generation == measured.generation == "cpu":
        return scenario, workload
    scenario.refuse_if(
        not any(layer.matmul_flops or layer.vector_bytes for layer in workload.layers),
        field,
        f"times of {stated}, on a machine of {gpu.name}",
        f"a machine of {stated}; or a model whose work is known, of which layers are priced "
        "anew: --set 'model={name: ...}', or matmul_flops per layer in its file",
    )
    note = f"Times of layers in {compute.times} are of {stated}: priced anew for {gpu.name}."
    roofline = {"source": "roofline", "times": None, "gpu_spread": None, "overlap_slowdown": None}
    return (
        scenario.model_copy(update={"compute": compute.model_copy(update=roofline)}),
        replace(workload, notes=(*workload.notes, note)),
    )


def gpus_of(node: NodeSpec | Topology) -> int:
    """GPUs of one node."""
    return node.gpus_per_host if isinstance(node, Topology) else len(device_names(node, "gpu"))


def _gpu_of(node: NodeSpec | Topology) -> Gpu:
    return node.gpu if isinstance(node, Topology) else load_gpu(node.gpu)


def _read_node(scenario: Scenario) -> NodeSpec | Topology:
    """Read the template of every node, or the graph of the whole machine."""
    named = named_node(scenario)
    if scenario.cluster.graph is None:
        return load_node(named)
    from perfmodel.topology.graph_files import read_topology  # and what few need

    return read_topology(Path(str(named)))


def resolve_names(
    scenario: Scenario,
) -> tuple[NodeSpec | Topology, Workload, tuple[Workload, ...]]:
    """Look up the node or the machine, the model, and the models of the other jobs of a scenario.

    Raises `InputError`: with the faults of all names at once.
    """
    faults: list[Fault] = []
    node: NodeSpec | Topology | None = None
    workload = None
    other_workloads: list[Workload] = []
    with collect_faults(faults), relocated_errors(scenario, "cluster.node"):
        node = _read_node(scenario)
    with collect_faults(faults):
        workload = resolve_workload(scenario)
        scenario.refuse_if(
            not scenario.compute.master_weights
            and all(ITEM_BYTES[each.dtype] >= ITEM_BYTES["fp32"] for each in workload.tensors),
            "compute.master_weights",
            "false",
            "true with parameters of fp32, which need no copies; or model.dtype: bf16",
        )
    for number, job in enumerate(scenario.jobs):
        with collect_faults(faults):
            other_workloads.append(resolve_workload(scenario, job.model, f"jobs.{number}.model"))
    own = None if node is None else _gpu_of(node)
    for number, mixed in enumerate(scenario.cluster.mixed):
        with (
            collect_faults(faults),
            relocated_errors(scenario, "cluster.mixed", {"gpu": f"cluster.mixed.{number}.gpu"}),
        ):
            gpu = load_gpu(mixed.gpu)
            if own is not None and gpu.amd != own.amd:  # RCCL and NCCL do not speak to each other
                raise InputError(Fault("gpu", repr(gpu.name), f"a GPU of the maker of {own.name}"))
    if node is None or workload is None or faults:
        raise InputError(faults)
    return node, workload, tuple(other_workloads)


# ---------------------------------------------------------------- a strategy of the user's

OwnStrategy = Callable[[StepRequest], StepPlan]

A_FUNCTION: Final = "a function of a StepRequest that returns a perfmodel.StepPlan"


@dataclass(frozen=True, slots=True)
class OwnOptions:
    """What is asked of a strategy of the user's: it plans its micro-batches itself."""

    accumulate: int = 1


def make_strategy(function: OwnStrategy) -> Strategy:
    """Return the row of a strategy that a function plans.

    Raises `InputError`: no function, or one that takes other arguments.
    """
    check_function("strategy", function, "(request)", A_FUNCTION)
    name = name_of(function)
    return Strategy(
        name=name,
        options=lambda _: OwnOptions(),
        plan=partial(_plan, function),
        memory=None,
        assumptions=(f"The step is what {name} plans: what that leaves out takes no time.",),
    )


def without_strategy(scenario: Scenario) -> Scenario:
    """Return the scenario without its own strategy.

    Raises `InputError`: the model is split over ranks, which the user's strategy would not know.
    """
    scenario.refuse_if(
        scenario.parallel.gpus_per_replica > 1 or scenario.parallel.expert > 1,
        "parallel",
        "a model that ranks share",
        "nothing with a strategy of your own, whose plan has all ranks",
    )
    return scenario.model_copy(update={"strategy": DdpStrategy()})


def _plan(function: OwnStrategy, request: StepRequest, _: object) -> StepPlan:
    """Plan a step.

    Raises `ScheduleError`: what was expected of the function, and what came.
    """
    from perfmodel.testing.check_plan import check_plan  # and what few need

    try:
        plan = call_function("strategy", function, (request,), "(request)", A_FUNCTION)
    except InputError as error:  # of no field of the scenario
        raise ScheduleError(str(error)) from error.__cause__
    name = name_of(function)
    if not isinstance(plan, StepPlan):
        raise ScheduleError(
            f"strategy: {name} returned {describe_type(plan)}; allowed: {A_FUNCTION}"
        )
    check_plan(plan, request.ranks)
    check_schedule(
        (not plan.tasks, f"plan {plan.name!r}: tasks: found none; allowed: at least one")
    )
    return plan
