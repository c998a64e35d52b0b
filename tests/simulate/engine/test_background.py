"""A machine that changes, other traffic and jobs, odd ranks, two communicators; and deadlocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from perfmodel.errors import SimulationError, TopologyError
from perfmodel.library.machine import Machine
from perfmodel.library.model import load_library
from perfmodel.simulate.engine.background import BackgroundJob, Change, Traffic
from perfmodel.simulate.engine.engine import Fidelity, simulate
from perfmodel.simulate.engine.jitter import Jitter, Variation
from perfmodel.simulate.engine.task_graph import participants_of
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.resolve.placement import place_plan
from perfmodel.topology.faults import degrade_links, remove_links
from perfmodel.topology.model import Topology
from perfmodel.topology.templates.build import build_topology
from perfmodel.training.plan.split_class import ClassPart, split
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)

Maker = Callable[..., Topology]
STREAMS = (Stream("compute", "compute"), Stream("comm", "comm"), Stream("tensor", "comm"))
BOTH = pytest.mark.parametrize("fidelity", ["flow", "message"])


def reduce_(
    name: str, group: str = "dp", *, stream: str = "comm", after: tuple[int, ...] = ()
) -> Task:
    """All-reduce of 4 MB: 6 ms over 4 GPUs at 1 GB/s, 4 ms over 2."""
    work = Collective("all_reduce", 4_000_000, group, name)
    return Task(name, "communication", "all", stream, work, after)


def work(name: str, seconds: float, *, after: tuple[int, ...] = (), where: str = "all") -> Task:
    return Task(name, "forward", where, "compute", Compute(seconds), after)


def plan(
    *tasks: Task,
    ranks: range | tuple[int, ...] = range(4),
    groups: Mapping[str, tuple[range | tuple[int, ...], ...]] | None = None,
    name: str = "test",
) -> StepPlan:
    groups = groups or {"dp": (ranks,)}
    found = tuple(Communicator(group, members) for group, members in groups.items())
    return StepPlan(name, (RankClass("all", ranks),), STREAMS, found, tasks, len(ranks))


@pytest.fixture(scope="module")
def topology(switched_topology: Maker) -> Topology:
    return switched_topology([1e9] * 4, [0.0] * 4)


@pytest.fixture(scope="module")
def machine(topology: Topology) -> Machine:
    return Machine(topology, load_library("plain"))


def changed(topology: Topology) -> Machine:
    return Machine(topology, load_library("plain"))


# ---------------------------------------------------------------- odd ranks


def test_a_slow_rank_is_a_class_of_its_own_and_all_wait_for_it(machine: Machine) -> None:
    step = plan(work("w", 10e-3), reduce_("r", after=(0,)), work("end", 1e-3, after=(1,)))
    cut = split(step, "all", [ClassPart("slow", (2,), scale=1.5)])
    run = simulate(cut, machine, steps=2)
    assert run.step_times_s[0] == pytest.approx(15e-3 + 6e-3 + 1.5e-3)
    assert [task.work.key for task in cut.tasks if isinstance(task.work, Collective)] == ["r", "r"]
    meeting = run.arrivals[0]
    assert (meeting.name, meeting.last, meeting.last_rank) == ("r", "slow", 2)
    assert meeting.waited_s == meeting.longest_s == pytest.approx(5e-3)


def test_what_waited_for_a_class_waits_for_all_of_its_parts(machine: Machine) -> None:
    classes = (RankClass("all", range(1, 4)), RankClass("zero", range(1)))
    tasks = (work("w", 2e-3), work("after", 1e-3, after=(0,), where="zero"))
    step = StepPlan("two classes", classes, STREAMS, (), tasks, 4)
    cut = split(step, "all", [ClassPart("slow", (3,), scale=4.0)])
    (after,) = (s for s in simulate(cut, machine).timeline.spans if s.name == "after")
    assert after.start_s == pytest.approx(8e-3)


def test_another_gpu_is_a_part_with_its_own_durations(machine: Machine) -> None:
    here, there = plan(work("w", 2e-3)), plan(work("w", 7e-3), name="other GPU")
    cut = split(here, "all", [ClassPart("old", (0, 1), like=there)])
    ends = {s.rank_class: s.end_s for s in simulate(cut, machine).timeline.spans}
    assert ends == {"all": pytest.approx(2e-3), "old": pytest.approx(7e-3)}


def test_ranks_of_a_class_that_differ_need_classes_of_their_own(machine: Machine) -> None:
    step = plan(work("w", 2e-3))
    vary = Variation(step, [Jitter("normal", 0.1, "step", 0)])
    with pytest.raises(SimulationError, match="w: ranks of class 'all' differ"):
        simulate(step, machine, stretch=vary)


# ---------------------------------------------------------------- two communicators


@BOTH
def test_two_communicators_share_links_while_groups_of_both_are_active(
    switched_topology: Maker, fidelity: Fidelity
) -> None:
    """Tensor groups {0,1} {2,3} beside the data-parallel ring 0-1-2-3.

    Links 0->1 and 2->3 carry both. The ring of four sends 6 MB over each of its edges, a pair 4 MB
    in each direction; senders 0 and 2 send for both, so 10 MB at 1 GB/s is the least.
    Rank 1 sends to 0 for its pair and to 2 for the ring by the same port: 10 MB as well.
    Alike flows that start together share alike until the pairs end at 8 ms, having taken 4 ms of
    each port; the ring has 2 ms left: 10 ms.
    """
    machine = Machine(switched_topology([1e9] * 4, [0.0] * 4), load_library("plain"))
    groups = {"dp": (range(4),), "tp": (range(2), range(2, 4))}
    step = plan(reduce_("r"), reduce_("t", "tp", stream="tensor"), groups=groups)
    run = simulate(step, machine, fidelity=fidelity)
    ends = {span.name: span.end_s for span in run.timeline.spans}
    assert ends == {"t": pytest.approx(8e-3), "r": pytest.approx(10e-3)}
    alone = simulate(plan(reduce_("t", "tp"), groups=groups), machine, fidelity=fidelity)
    assert alone.step_time_s == pytest.approx(4e-3)


def test_groups_without_a_common_class_start_each_by_itself(machine: Machine) -> None:
    """Once its ranks are cut into pairs, the fast pair does not wait for the slow one."""
    step = plan(
        work("w", 2e-3),
        reduce_("t", "tp", after=(0,)),
        groups={"tp": (range(2), range(2, 4))},
    )
    together = simulate(step, machine)
    assert together.step_time_s == pytest.approx(6e-3)
    cut = split(step, "all", [ClassPart("slow", (2, 3), scale=3.0)])
    starts = {
        s.rank_class: s.start_s for s in simulate(cut, machine).timeline.spans if s.name == "t"
    }
    assert starts == {"all": pytest.approx(2e-3), "slow": pytest.approx(6e-3)}
    odd = split(step, "all", [ClassPart("slow", (2,), scale=3.0)])
    starts = {
        s.rank_class: s.start_s for s in simulate(odd, machine).timeline.spans if s.name == "t"
    }
    assert starts == {"all": pytest.approx(6e-3), "slow": pytest.approx(6e-3)}


def test_groups_that_a_class_joins_start_together() -> None:
    """{0,1} and {2,3} have no rank in common, but ranks 1 and 2 move as one."""
    classes = (RankClass("a", (0,)), RankClass("b", (1, 2)), RankClass("c", (3,)))
    groups = (Communicator("tp", ((0, 1), (2, 3))), Communicator("pair", ((0, 3),)))
    found = participants_of(StepPlan("three", classes, STREAMS, groups, (), 4))
    assert found["tp"]["a"] == found["tp"]["c"] == (("a", "b", "c"), ((0, 1), (2, 3)))
    assert found["pair"]["a"] == (("a", "c"), ((0, 3),))
    assert "b" not in found["pair"]


# ---------------------------------------------------------------- the machine changes


@BOTH
def test_a_link_that_slows_down_halfway(machine: Machine, fidelity: Fidelity) -> None:
    """Half of the 6 rounds of 1 ms are done after 3 ms; the others take 2 ms each: 9 ms."""
    slower = changed(degrade_links(machine.topology, {0: 0.5e9}))
    change = Change(3e-3, slower, "half speed")
    run = simulate(plan(reduce_("r")), machine, fidelity=fidelity, changes=[change])
    assert run.step_time_s == pytest.approx(9e-3, rel=1e-6)


@BOTH
def test_a_link_that_comes_back(machine: Machine, fidelity: Fidelity) -> None:
    slower = changed(degrade_links(machine.topology, {0: 0.5e9}))
    changes = [Change(5e-3, machine, "repaired"), Change(3e-3, slower, "half speed")]
    run = simulate(plan(reduce_("r")), machine, fidelity=fidelity, changes=changes)
    assert run.step_time_s == pytest.approx(7e-3, rel=1e-6)


@BOTH
def test_a_link_that_stands_still_for_a_while(machine: Machine, fidelity: Fidelity) -> None:
    """Nothing moves for 20 ms; a collective that begins meanwhile waits as well."""
    still = changed(degrade_links(machine.topology, {0: 0.0}))
    changes = [Change(3e-3, still, "down"), Change(23e-3, machine, "up again")]
    one = simulate(plan(reduce_("r")), machine, fidelity=fidelity, changes=changes)
    assert one.step_time_s == pytest.approx(26e-3, rel=1e-6)
    late = plan(work("w", 10e-3), reduce_("r", after=(0,)))
    two = simulate(late, machine, fidelity=fidelity, changes=changes)
    assert two.step_time_s == pytest.approx(29e-3, rel=1e-6)


@BOTH
def test_a_link_that_stays_down_is_named(machine: Machine, fidelity: Fidelity) -> None:
    still = changed(degrade_links(machine.topology, {0: 0.0}))
    with pytest.raises(SimulationError, match=r"(stalls|waiting)"):
        simulate(
            plan(reduce_("r")), machine, fidelity=fidelity, changes=[Change(3e-3, still, "down")]
        )


@pytest.fixture(scope="module")
def pair() -> Topology:
    return build_topology("dgx-a100", hosts=2, fabric="rail-optimised")


@BOTH
def test_a_lost_nic_is_routed_around_and_costs_time(pair: Topology, fidelity: Fidelity) -> None:
    machine = Machine(pair, load_library("nccl"))
    step = plan(
        Task(
            "r",
            "communication",
            "all",
            "comm",
            Collective("all_reduce", 64 * 1024 * 1024, "dp", "r"),
        ),
        ranks=range(16),
    )
    whole_s = simulate(step, machine, fidelity=fidelity).step_time_s
    lost = Machine(remove_links(pair, nodes=["n1/nic3"]), load_library("nccl"))
    change = Change(whole_s / 2, lost, "n1/nic3 lost")
    half_s = simulate(step, machine, fidelity=fidelity, changes=[change]).step_time_s
    early = Change(whole_s / 10, lost, "n1/nic3 lost")
    most_s = simulate(step, machine, fidelity=fidelity, changes=[early]).step_time_s
    assert whole_s < half_s < most_s < 3 * whole_s


@pytest.mark.parametrize("when", ["being launched", "under way"])
@BOTH
def test_who_is_out_of_reach_is_named(pair: Topology, fidelity: Fidelity, when: str) -> None:
    machine = Machine(pair, load_library("nccl"))
    nics = [name for name in pair.graph if name.startswith("n1/nic")]
    cut_off = Machine(remove_links(pair, nodes=nics), load_library("nccl"))
    step = plan(
        Task(
            "reduce it",
            "communication",
            "all",
            "comm",
            Collective("all_reduce", 64 * 1024 * 1024, "dp", "r"),
        ),
        ranks=range(16),
    )
    collective = UncontendedTimer(machine).best("all_reduce", 64 * 1024 * 1024, range(16), 0)[0]
    at_s = collective.launch_s * (0.5 if when == "being launched" else 1.5)
    change = Change(at_s, cut_off, "n1 lost its NICs")
    with pytest.raises(SimulationError) as caught:
        simulate(step, machine, fidelity=fidelity, changes=[change])
    text = str(caught.value)
    assert "n1 lost its NICs" in text
    assert "reduce it (all)" in text
    assert "unreachable" in text
    assert "n1/" in text


def test_a_collective_that_cannot_start_is_named(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from perfmodel.simulate.network import FreeNetwork

    def refuse(*_: object) -> None:
        raise TopologyError("n3/gpu2 is unreachable from n0/gpu2")

    monkeypatch.setattr(FreeNetwork, "collective", refuse)
    with pytest.raises(SimulationError, match=r"r \(all\) cannot start: n3/gpu2 is unreachable"):
        simulate(plan(reduce_("r")), machine, fidelity="free")


# ---------------------------------------------------------------- other traffic


@BOTH
def test_a_steady_stream_takes_its_rate(machine: Machine, fidelity: Fidelity) -> None:
    """0.25 GB/s of rank 0's 1 GB/s: its rounds take 4/3 ms; a stream at full speed takes half."""
    quiet = Traffic("n0/gpu0", "n0/gpu2", rate_Bps=0.25e9)
    run = simulate(plan(reduce_("r")), machine, fidelity=fidelity, traffic=[quiet])
    assert run.step_time_s == pytest.approx(8e-3, rel=1e-6)
    loud = Traffic("n0/gpu0", "n0/gpu2", rate_Bps=9e9)
    run = simulate(plan(reduce_("r")), machine, fidelity=fidelity, traffic=[loud])
    assert run.step_time_s == pytest.approx(12e-3, rel=1e-6)


def test_a_burst_delays_what_it_meets_and_nothing_else(machine: Machine) -> None:
    """1 MB at full speed against the ring: both at half speed until it has gone, 2 ms later."""
    burst = Traffic("n0/gpu0", "n0/gpu2", nbytes=1_000_000, start_s=1e-3)
    run = simulate(plan(reduce_("r")), machine, fidelity="flow", traffic=[burst], steps=3)
    assert run.step_times_s == pytest.approx((7e-3, 6e-3, 6e-3), rel=1e-6)
    again = Traffic("n0/gpu0", "n0/gpu2", nbytes=1_000_000, start_s=1e-3, every_s=8e-3)
    run = simulate(plan(reduce_("r")), machine, fidelity="flow", traffic=[again], steps=3)
    assert run.step_times_s == pytest.approx((7e-3, 7e-3, 7e-3), rel=1e-6)


@BOTH
def test_a_deadlock_is_named_although_traffic_never_ends(
    machine: Machine, fidelity: Fidelity
) -> None:
    steady = Traffic("n0/gpu0", "n0/gpu2", nbytes=1000, every_s=1e-3)
    tasks = (work("first", 1e-3), work("second", 1e-3))
    from dataclasses import replace

    tasks = tuple(replace(task, acquires="one") for task in tasks)
    step = replace(plan(*tasks), semaphores=(("one", 1),))
    with pytest.raises(SimulationError, match=r"cannot finish; waiting: second \(step 0\)"):
        simulate(step, machine, fidelity=fidelity, traffic=[steady])


def test_a_class_that_never_comes_is_named(machine: Machine) -> None:
    """The collective of one class waits for the other, which has no task in it."""
    classes = (RankClass("all", range(1)), RankClass("rest", range(1, 4)))
    group = (Communicator("dp", (range(4),)),)
    step = StepPlan("half", classes, STREAMS, group, (reduce_("r"),), 4)
    with pytest.raises(SimulationError, match=r"r \(step 0\) of 'all' for 'rest'"):
        simulate(step, machine)


@pytest.mark.parametrize(
    "wrong", [{"rate_Bps": 0.0}, {}, {"rate_Bps": 1.0, "every_s": 1.0}, {"nbytes": -1.0}]
)
def test_traffic_without_sense_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"(above zero|steady stream)"):
        Traffic("a", "b", **wrong)


# ---------------------------------------------------------------- other jobs


@BOTH
def test_two_like_jobs_on_one_link_take_turns_or_share(
    switched_topology: Maker, fidelity: Fidelity
) -> None:
    """Both cross one trunk at the same time: each has half of it, so twice the time."""
    topology = switched_topology([1e12] * 4, [0.0] * 4, shared_Bps=1e9)
    machine = Machine(topology, load_library("plain"))
    mine, theirs = plan(reduce_("r"), ranks=range(2)), plan(reduce_("o"), ranks=range(2, 4))
    alone = simulate(mine, machine, fidelity=fidelity)
    run = simulate(mine, machine, fidelity=fidelity, background_jobs=[theirs], steps=2)
    assert run.step_times_s == pytest.approx([2 * alone.step_time_s] * 2, rel=1e-6)
    assert run.others_step_ends_s["test"][0] == pytest.approx(run.step_ends_s[0])


def test_a_job_begins_at_its_time_and_goes_on_until_the_main_one_ends(machine: Machine) -> None:
    mine = plan(work("w", 100e-3), ranks=range(2))
    theirs = BackgroundJob(plan(work("v", 10e-3), ranks=range(2, 4), name="other"), start_s=25e-3)
    run = simulate(mine, machine, background_jobs=[theirs])
    assert run.step_time_s == pytest.approx(100e-3)
    wanted = [35e-3, 45e-3, 55e-3, 65e-3, 75e-3, 85e-3, 95e-3]
    assert run.others_step_ends_s["other"] == pytest.approx(wanted)


def test_a_job_whose_host_runs_ahead_is_held_back(machine: Machine) -> None:
    """Its host needs no time and would run for ever within one instant."""
    streams = (Stream("host", "host"), Stream("compute", "compute"))
    tasks = (
        Task("issue", "issue", "all", "host", Compute(0.0)),
        Task("w", "forward", "all", "compute", Compute(1e-3), (0,)),
    )
    theirs = StepPlan("busy", (RankClass("all", range(2, 4)),), streams, (), tasks, 2)
    run = simulate(plan(work("w", 10.5e-3), ranks=range(2)), machine, background_jobs=[theirs])
    assert len(run.others_step_ends_s["busy"]) == 10


@pytest.mark.parametrize("slow_host", [False, True])
def test_a_job_beside_takes_its_steps_as_it_does_alone(machine: Machine, slow_host: bool) -> None:
    """Pieces in a row, slower while its own collective runs; a host ahead, or one it waits for."""
    streams = (Stream("host", "host"), *STREAMS)
    issues = [
        Task(f"issue {at}", "issue", "all", "host", Compute(4e-3 if slow_host else 1e-5))
        for at in range(4)
    ]
    pieces = [work(f"w{at}", (at + 1) * 1e-3, after=(at,)) for at in range(4)]
    tasks = (*issues, *pieces[:2], reduce_("r", after=(5,)), *pieces[2:])
    group = (Communicator("dp", (range(2, 4),)),)
    theirs = StepPlan("other", (RankClass("all", range(2, 4)),), streams, group, tasks, 2)
    usual = {"overlap_slowdown": 1.25}
    alone = simulate(theirs, machine, steps=4, **usual)
    beside = BackgroundJob(theirs, **usual)
    mine = plan(work("w", 1.01 * alone.step_ends_s[-1]), ranks=range(2))
    run = simulate(mine, machine, background_jobs=[beside])
    assert run.others_step_ends_s["other"][:4] == pytest.approx(alone.step_ends_s, rel=1e-12)
    recorded = [each for each in alone.executions if each[1] == 0]
    assert len(recorded) == len(tasks), "each piece and each launch is recorded by itself"


def test_a_deadlock_of_another_job_is_named(machine: Machine) -> None:
    classes = (RankClass("all", (2,)), RankClass("rest", (3,)))
    group = (Communicator("dp", ((2, 3),)),)
    theirs = StepPlan("stuck job", classes, STREAMS, group, (reduce_("r"),), 2)
    with pytest.raises(SimulationError, match="'stuck job' cannot finish"):
        simulate(plan(work("w", 1.0), ranks=range(2)), machine, background_jobs=[theirs])


def test_a_plan_moves_to_other_ranks(machine: Machine) -> None:
    step = plan(reduce_("r"), ranks=range(2))
    moved = place_plan(step, (3, 1))
    assert moved.classes[0].ranks == moved.communicators[0].groups[0] == (3, 1)
    assert moved.tasks[0].work.root == 3  # type: ignore[union-attr]
    assert place_plan(step, range(2)) is step
    assert simulate(moved, machine).step_time_s == simulate(step, machine).step_time_s
