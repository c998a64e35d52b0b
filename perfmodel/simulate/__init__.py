"""A training step in simulated time: `engine.engine.simulate`.

The package can be called, as ``perfmodel.simulate(plan, machine)`` (`simulate_plan`).

`simulate.reference` says in four hundred lines of SimPy what a step is: streams, tasks,
collectives, sends that share links. Six quicker models time the same plans and schedules; each is
the reference where it says that it is exact, and tests tie it to that.

===========  ================================  ===============================  ==================
model        used for                          exact for                        cost
===========  ================================  ===============================  ==================
reference    fidelity "reference": up to       everything, but ranks that       3e3 sends/s
             2e5 sends; what the others        share cores, lost links, other
             mean                              jobs (refused)
recurrence   one collective alone: choice of   unshared links, or alike edges   1e8 sends/s; rings
             algorithm, bounds, calibration    that share a link and start      that repeat are
                                               together                         not stepped
flow         fidelity "flow", the default:     as the recurrence; elsewhere     a few events for
             any number of collectives         `Run.notes` gives the error      each collective
message      fidelity "message": every send    max-min fair sharing of links    1e5 sends/s, 6e5
             is an event; up to 5e6 sends;                                      with numba; 3e6 by
             by rounds where none is shared                                     rounds
sockets      Gloo without other traffic or a   one connection for each pair     an event and a
             profile, in run, tune and         of ranks, ready messages,        booking of each link
             collective; ranks that are alike  shared cores; jobs take turns    for each message of
             stand for each other, so that                                      a rank that stands
             one host or 71 unlike ranks are                                    for others
             simulated; larger: flow, noted
rank vector  ranks with jitter, if one         at most one collective at a      an array operation
             collective is in progress at a    time, among all ranks            for each task
             time
surrogate    search for buckets in `perfmodel  one all-reduce at a time, alike  microseconds for a
             tune`; the simulation checks it   ranks, host ahead of the device  set of buckets
===========  ================================  ===============================  ==================

Messages of workers to servers (`engine/loop_run.py`) are streams, which share links max-min
fairly: `flow/stream_network.py`, exact, thousands at once; = flow:
tests/simulate/flow/test_stream_network.

===========  =====================================  ==============================================
model        module                                 held by
===========  =====================================  ==============================================
recurrence   collectives/timing/recurrence.py       = send by send: tests/collectives/timing
flow         simulate/flow/network.py               = reference on links of their own:
                                                    tests/simulate/reference; = message:
                                                    tests/simulate/test_all_algorithms,
                                                    test_legs, test_agreement (near elsewhere)
reference    simulate/reference/                    = closed forms and what links allow:
                                                    tests/simulate/reference
message      simulate/message/network.py            = reference, send by send:
                                                    tests/simulate/message/test_event_loop,
                                                    tests/simulate/reference/test_network;
                                                    = SimGrid: tests/simulate/test_simgrid;
                                                    rounds = message by message: tests/
                                                    collectives/timing/test_chunk_recurrence
sockets      simulate/sockets/network.py            = reference where ready messages cost nothing
                                                    (test_network there), = flow where nothing
                                                    queues, and measurements:
                                                    tests/simulate/sockets/test_network,
                                                    test_alike_ranks (who stands for whom),
                                                    tests/validate/trainings
rank vector  simulate/ranks/rank_vectors.py         = reference:
                                                    reference/test_plan_processes; = engine:
                                                    tests/simulate/ranks/test_rank_vectors
surrogate    studies/tune/objective/surrogate.py    = simulation of all partitions:
                                                    tests/studies/tune/test_run
===========  =====================================  ==============================================

Costs are from ``reports/benchmarks``. Max-min filling is written twice, each for other data: arrays
(`sharing/max_min.py`), and the linked lists of the message kernel
(`message/kernel/link_sharing.py`).
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
    fidelity : {"flow", "message"}
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
    from perfmodel.errors import Fault, InputError, describe_type
    from perfmodel.library.machine import Machine, make_machine
    from perfmodel.library.model import load_library
    from perfmodel.simulate.engine.engine import simulate
    from perfmodel.simulate.engine.own_processes import OwnProcess
    from perfmodel.testing.check_plan import check_plan
    from perfmodel.topology.model import Topology
    from perfmodel.training.plan.step_plan import StepPlan

    faults = [
        Fault(name, describe_type(value), allowed)
        for name, value, kinds, allowed in (
            ("plan", plan, StepPlan, "a perfmodel.StepPlan"),
            (
                "machine",
                machine,
                (Topology, Machine),
                "what perfmodel.topology builds, or a Machine",
            ),
        )
        if not isinstance(value, kinds)
    ]
    if faults:
        raise InputError(faults)
    check_plan(plan)
    if not isinstance(machine, Machine):
        machine = make_machine(machine, load_library(library))
    last = max(rank for each in plan.classes for rank in each.ranks)
    if last >= (gpus := len(machine.topology.ranks)):
        raise InputError(Fault("plan.classes", f"rank {last}", f"0 to {gpus - 1}, the GPUs"))
    own = [OwnProcess(each, f"processes.{number}") for number, each in enumerate(processes)]
    return simulate(plan, machine, steps=steps, fidelity=fidelity, processes=own)


class _CallablePackage(ModuleType):
    """A package that is called like `simulate_plan`."""

    __call__ = staticmethod(simulate_plan)


_package: Any = sys.modules[__name__]
_package.__class__ = _CallablePackage
