"""A training step in simulated time: `engine.engine.simulate`.

The package can be called, as ``perfmodel.simulate(plan, machine)`` (`simulate_plan`).

The reference is the model, written to be read; ``perfmodel/README.md`` walks through it. Eight
quicker models time the same schedules. Each equals it where the table says exact, to 1e-9.

===========  ================================  ===============================  ==================
model        used for                          exact for                        cost
===========  ================================  ===============================  ==================
reference    fidelity "reference": a process   what it says: it is the          1e4 sends/s,
             for each stream, task and send    definition                       up to 2e5 sends
recurrence   one collective alone: choice of   unshared links, or alike edges   1e8 sends/s; rings
             algorithm, bounds, calibration    that share a link and start      that repeat are
                                               together; chunks of equal bytes  not stepped
flow         fidelity "flow", the default:     as the recurrence; elsewhere     a few events for
             any number of collectives         `Run.notes` gives the error      each collective
message      fidelity "message": every send    any schedule, graph and plan     1e5 sends/s, 6e5
             is an event; up to 5e6 sends;                                      with numba; 3e6 by
             by rounds where none is shared                                     rounds
sockets      Gloo without other traffic or a   one connection for each pair     an event and a
             profile, in run, tune and         of ranks, where nothing queues   booking of each link
             collective; ranks that are alike  (elsewhere measurements say      for each message of
             stand for each other, so that     more: ready messages, shared     a rank that stands
             one host or 71 unlike ranks are   cores, jobs that take turns)     for others
             simulated; larger: flow, noted
rank vector  ranks with jitter, if one         at most one collective at a      an array operation
             collective is in progress at a    time, among all ranks            for each task
             time
longest      fidelity "flow" where            plans whose collectives, while   a microsecond for
path         collectives leave each other     in progress, want no more of a   each task, and each
             their links; else a simulation   link than it has; no changes,    collective once
             follows                          traffic or jitter
retiming     ends of intervals and limits of   one job without changes,         a microsecond for
             a run: other durations in place   traffic or jitter, whose         each task, by a
             of those that were simulated      collectives do not delay each    queue in order of
                                               other; beyond up to 6e-4         time
surrogate    search for buckets in `perfmodel  one all-reduce at a time, alike  microseconds for a
             tune`; the simulation checks it   ranks, host ahead of the device  set of buckets
===========  ================================  ===============================  ==================

Tasks of a plan are run by `engine/plan_run.py`, which is quicker than the reference's processes and
equals them. Messages of workers to servers (`engine/loop_run.py`) are streams, which share links
max-min fairly: `flow/stream_network.py`, thousands at once, exact up to 64 pushes a round; beyond,
rates are solved 400 times a round at most, and a step is off by up to 1 %.

Where flow and the recurrence are not exact, bytes of unequal chunks are averaged (up to 1e-3 of a
small collective, 1e-5 of the communication of a step); Rabenseifner's all-reduce of ranks that are
no power of two is up to 20 % too slow; and ``reports/oracle/fidelities.md`` says how far off edges
are that differ and share links.

===========  =====================================  ==============================================
model        module                                 held by
===========  =====================================  ==============================================
reference    simulate/reference.py                  theory: tests/simulate/reference/
                                                    test_network, test_shared_links
recurrence   collectives/timing/recurrence.py       = reference: tests/simulate/reference/
                                                    test_network; tests/collectives/timing
flow         simulate/flow/network.py               = reference: tests/simulate/reference, one by
                                                    one, in plans and in shipped scenarios;
                                                    near message elsewhere: tests/simulate/
                                                    test_agreement, test_all_algorithms
streams      simulate/flow/stream_network.py        = reference: tests/simulate/reference/
                                                    test_network, test_scenarios
message      simulate/message/network.py            = reference: tests/simulate/reference on any
                                                    graph, test_agreement, message/
                                                    test_event_loop (links change);
                                                    = SimGrid: tests/simulate/test_simgrid;
                                                    rounds = message by message: tests/
                                                    collectives/timing/test_chunk_recurrence
sockets      simulate/sockets/network.py            = reference where nothing queues, and
                                                    measurements: tests/simulate/sockets/
                                                    test_network, test_alike_ranks (who stands
                                                    for whom), tests/reports/
                                                    validation/trainings
rank vector  simulate/engine/rank_vectors.py         = reference, a process for each rank: tests/
                                                    simulate/reference/test_plan_processes
longest      simulate/engine/uncontended_run.py     = simulation: tests/simulate/engine/
path                                                test_uncontended_run; = reference: tests/
                                                    simulate/reference/test_plan_processes
retiming     simulate/engine/retiming.py             = simulation: tests/simulate/engine/
                                                    test_retiming, tests/studies/run/steps/
                                                    test_retimed_steps
surrogate    studies/tune/surrogate.py              = reference: tests/studies/tune/test_run
engine       simulate/engine/plan_run.py            = reference on random plans: tests/simulate/
                                                    reference/test_plan_processes
===========  =====================================  ==============================================

Edges of collectives that meet are prepared once (`sharing/between_collectives.py`); groups of a
communicator that run alike are found once for all machines with their links (`alike_groups.py`),
and are one job (`flow/alike_collectives.py`).

Costs are from ``reports/benchmarks``. Max-min filling is written three times: to be read
(`reference.py`), for arrays (`sharing/max_min.py`), and for the linked lists of the
message kernel (`message/link_sharing.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from perfmodel.library.machine import Machine
    from perfmodel.simulate.engine.engine import Fidelity
    from perfmodel.simulate.engine.outcome import Run
    from perfmodel.topology.model import Topology
    from perfmodel.training.plan.step_plan import StepPlan


def simulate_plan(
    plan: StepPlan,
    machine: Topology | Machine,
    *,
    library: str = "nccl",
    steps: int = 1,
    fidelity: Fidelity = "flow",
    processes: Sequence[Callable[..., Any]] = (),
) -> Run:
    """Run a step plan on a machine, as ``perfmodel.simulate(plan, machine)``.

    Parameters
    ----------
    plan : StepPlan
        Ranks are the GPUs of the machine, in order.
    machine : Topology or Machine
        As `perfmodel.topology` builds it, or with a library of your own.
    library : str
        "nccl", "gloo", "mpi" or "plain"; nothing beside a `Machine`, which has its own.
    steps : int
        One after the other; the first ones may be shorter or longer than those that follow.
    fidelity : {"flow", "message", "reference"}
    processes : sequence of callable
        SimPy processes beside it, from the start on: generator functions of (env, network).

    Returns
    -------
    Run
        With `step_times_s` and `timeline`.

    Raises
    ------
    InputError
        What is no plan, no machine or no process.
    ScheduleError
        A plan that is not well formed; every fault.
    SimulationError
        A plan that cannot finish, or a process that fails.

    Examples
    --------
    >>> import perfmodel as pm
    >>> work = pm.Task("work", "forward", "all", "compute", pm.Compute(1e-3))
    >>> all_ranks, compute = pm.RankClass("all", range(8)), pm.Stream("compute", "compute")
    >>> plan = pm.StepPlan("one kernel", (all_ranks,), (compute,), (), (work,), samples=8)
    >>> pm.simulate(plan, pm.topology("dgx-a100")).step_times_s
    (0.001,)
    """
    from perfmodel.errors import describe_type, failed, raise_faults, refuse_if
    from perfmodel.library.machine import Machine, make_machine
    from perfmodel.library.model import load_library
    from perfmodel.simulate.engine.engine import simulate
    from perfmodel.simulate.engine.own_processes import OwnProcess
    from perfmodel.testing.check_plan import check_plan
    from perfmodel.topology.model import Topology
    from perfmodel.training.plan.step_plan import StepPlan

    is_machine, built = isinstance(machine, Topology | Machine), "what perfmodel.topology builds"
    raise_faults(
        failed(
            (not isinstance(plan, StepPlan), "plan", describe_type(plan), "a perfmodel.StepPlan"),
            (not is_machine, "machine", describe_type(machine), f"{built}, or a Machine"),
        )
    )
    check_plan(plan)
    if not isinstance(machine, Machine):
        machine = make_machine(machine, load_library(library))
    last = max(rank for each in plan.classes for rank in each.ranks)
    gpus = len(machine.topology.ranks)
    refuse_if(last >= gpus, "plan.classes", f"rank {last}", f"0 to {gpus - 1}, the GPUs")
    own = [OwnProcess(each, f"processes.{number}") for number, each in enumerate(processes)]
    return simulate(plan, machine, steps=steps, fidelity=fidelity, processes=own)


class _CallablePackage(ModuleType):
    """A package that is called like `simulate_plan`."""

    __call__ = staticmethod(simulate_plan)


_package: Any = sys.modules[__name__]
_package.__class__ = _CallablePackage
