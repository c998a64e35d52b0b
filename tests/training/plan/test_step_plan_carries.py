"""StepPlans written by hand for strategies that are not built yet: the type can carry them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perfmodel.errors import ScheduleError
from perfmodel.testing.check_plan import check_plan
from perfmodel.training.plan.step_plan import (
    Collective,
    Communicator,
    Compute,
    RankClass,
    StepPlan,
    Stream,
    Task,
)

COMPUTE, COMM = Stream("compute", "compute"), Stream("comm", "comm")


def fsdp(units: int = 4, in_flight: int = 2) -> StepPlan:
    """Full sharding: gather each unit ahead of use, at most two whole at once, scatter gradients.

    The all-gather takes a slot; the compute that frees the unit gives it back. Forward gathers
    0, 1, 2 ...; backward gathers again in reverse. Issue order on the one comm stream is what
    prefetching means: the next gather stands before the reduce-scatter of this unit.
    """
    tasks: list[Task] = []

    def add(*arguments: object, **named: object) -> int:
        tasks.append(Task(*arguments, **named))  # type: ignore[arg-type]
        return len(tasks) - 1

    def gather(unit: int, direction: str) -> int:
        work = Collective("all_gather", 1000, "dp", f"{direction} gather {unit}")
        return add(
            work.key, "communication", "ranks", "comm", work, bucket=unit, acquires="gathered"
        )

    def run(unit: int, direction: str, gathered: int) -> int:
        return add(
            f"{direction} {unit}",
            direction,
            "ranks",
            "compute",
            Compute(1e-3),
            (gathered,),
            bucket=unit,
            releases="gathered",
        )

    gathered = [gather(0, "forward")]
    for unit in range(units):
        if unit + 1 < units:
            gathered.append(gather(unit + 1, "forward"))
        run(unit, "forward", gathered[unit])
    ready = gather(units - 1, "backward")
    scattered = []
    for unit in reversed(range(units)):
        following = gather(unit - 1, "backward") if unit else None
        done = run(unit, "backward", ready)
        work = Collective("reduce_scatter", 1000, "dp", f"scatter {unit}")
        scattered.append(
            add(work.key, "communication", "ranks", "comm", work, (done,), bucket=unit)
        )
        ready = ready if following is None else following
    end = add("optimizer", "optimizer", "ranks", "compute", Compute(1e-4), tuple(scattered))
    tasks[0] = replace(tasks[0], after_previous=(end,))
    return StepPlan(
        "FSDP",
        (RankClass("ranks", range(8)),),
        (COMPUTE, COMM),
        (Communicator("dp", (range(8),)),),
        tuple(tasks),
        8,
        (("gathered", in_flight),),
    )


def pipeline(micro_batches: int = 3) -> StepPlan:
    """Two stages, one forward one backward; activations go down, their gradients come up."""
    tasks: list[Task] = []

    def add(stage: int, kind: str, micro_batch: int, after: tuple[int, ...] = ()) -> int:
        name = f"{kind} {micro_batch} on stage {stage}"
        work = Compute(1e-3)
        tasks.append(
            Task(name, kind, f"stage {stage}", "compute", work, after, micro_batch=micro_batch)
        )
        return len(tasks) - 1

    def send(src: int, dst: int, what: str, micro_batch: int, after: int) -> int:
        work = Collective("send", 4096, f"{src} to {dst}", f"{what} {micro_batch}")
        for stage, waits in ((src, (after,)), (dst, ())):
            stream = "down" if src < dst else "up"
            tasks.append(
                Task(
                    work.key,
                    "communication",
                    f"stage {stage}",
                    stream,
                    work,
                    waits,
                    micro_batch=micro_batch,
                )
            )
        return len(tasks) - 1

    def up(micro_batch: int) -> None:
        add(0, "backward", micro_batch, (gradients[micro_batch],))

    gradients = []
    for micro_batch in range(micro_batches):
        arrived = send(0, 1, "activations", micro_batch, add(0, "forward", micro_batch))
        add(1, "forward", micro_batch, (arrived,))
        done = add(1, "backward", micro_batch)
        gradients.append(send(1, 0, "gradients", micro_batch, done))
        if micro_batch:  # stage 0 runs one micro-batch ahead: 1F1B
            up(micro_batch - 1)
    up(micro_batches - 1)
    streams = (COMPUTE, Stream("down", "comm"), Stream("up", "comm"))
    classes = (RankClass("stage 0", (0,)), RankClass("stage 1", (1,)))
    ways = (Communicator("0 to 1", ((0, 1),)), Communicator("1 to 0", ((1, 0),)))
    return StepPlan("1F1B", classes, streams, ways, tuple(tasks), micro_batches)


def tensor_parallel(layers: int = 2, nodes: int = 4, per_node: int = 8) -> StepPlan:
    """All-reduce of activations inside each node at once, then one of gradients across nodes.

    All ranks are alike: one class. A communicator with a group per node runs them together; the
    second communicator has one group per position inside the node.
    """
    ranks = nodes * per_node
    tp = tuple(range(node * per_node, (node + 1) * per_node) for node in range(nodes))
    dp = tuple(range(position, ranks, per_node) for position in range(per_node))
    tasks: list[Task] = []
    for direction in ("forward", "backward"):
        for layer in range(layers):
            previous = (len(tasks) - 1,) if tasks else ()
            key = f"{direction} {layer}"
            tasks.append(Task(key, direction, "ranks", "compute", Compute(1e-3), previous))
            work = Collective("all_reduce", 4096, "tensor", key)
            after = (len(tasks) - 1,)
            tasks.append(Task(f"sum {key}", "communication", "ranks", "tp", work, after))
    work = Collective("all_reduce", 10**6, "data", "gradients")
    tasks.append(Task("gradients", "communication", "ranks", "dp", work, (len(tasks) - 1,)))
    return StepPlan(
        "tensor and data parallel",
        (RankClass("ranks", range(ranks)),),
        (COMPUTE, Stream("tp", "comm"), Stream("dp", "comm")),
        (Communicator("tensor", tp), Communicator("data", dp)),
        tuple(tasks),
        nodes,
    )


@pytest.mark.parametrize("plan", [fsdp(), pipeline(), tensor_parallel()], ids=lambda p: p.name)
def test_the_type_carries(plan: StepPlan) -> None:
    check_plan(plan)


def test_fsdp_gathers_twice_and_scatters_once() -> None:
    plan = fsdp(units=4)
    ops = [task.work.op for task in plan.tasks if isinstance(task.work, Collective)]
    assert ops.count("all_gather") == 8
    assert ops.count("reduce_scatter") == 4
    taken = [task.acquires for task in plan.tasks].count("gathered")
    assert taken == [task.releases for task in plan.tasks].count("gathered") == 8


def test_a_slot_that_is_never_given_back_is_found() -> None:
    plan = fsdp()
    tasks = tuple(replace(t, releases=None) if t.name == "backward 0" else t for t in plan.tasks)
    with pytest.raises(ScheduleError, match="gathered"):
        check_plan(replace(plan, tasks=tasks))


def test_a_pipeline_whose_message_nobody_receives_is_found() -> None:
    plan = pipeline()
    orphan = next(i for i, t in enumerate(plan.tasks) if t.name == "activations 0" and not t.after)
    task = replace(plan.tasks[orphan], work=Compute(0.0))
    tasks = (*plan.tasks[:orphan], task, *plan.tasks[orphan + 1 :])
    with pytest.raises(ScheduleError, match="activations 0"):
        check_plan(replace(plan, tasks=tasks))


def test_a_pipeline_that_sends_and_receives_in_a_circle_is_found() -> None:
    """With one comm stream a stage would wait for a gradient before it sends what makes it."""
    plan = pipeline()
    down = [t for t in plan.tasks if t.rank_class == "stage 0"]
    late = {t.name for t in down if t.name.startswith("activations")}
    assert late
    one = replace(plan, streams=(COMPUTE, COMM))
    merged = tuple(
        replace(task, stream="comm") if task.stream in ("up", "down") else task
        for task in one.tasks
    )
    check_plan(replace(one, tasks=merged))  # in this issue order one stream is enough
    swapped = _receive_gradient_before_sending(replace(one, tasks=merged))
    with pytest.raises(ScheduleError, match="wait for each other"):
        check_plan(swapped)


def _receive_gradient_before_sending(plan: StepPlan) -> StepPlan:
    """Exchange stage 0's first send and its first receive, which stays after nothing."""
    first, second = (
        next(i for i, t in enumerate(plan.tasks) if t.rank_class == "stage 0" and t.name == name)
        for name in ("activations 0", "gradients 0")
    )
    works = plan.tasks[first].work, plan.tasks[second].work
    tasks = list(plan.tasks)
    tasks[first] = replace(tasks[first], name="gradients 0", work=works[1])
    tasks[second] = replace(tasks[second], name="activations 0", work=works[0])
    return replace(plan, tasks=tuple(tasks))


def test_groups_of_a_communicator_run_at_once() -> None:
    plan = tensor_parallel(nodes=4, per_node=8)
    tensor, data = plan.communicators
    assert [len(group) for group in tensor.groups] == [8] * 4
    assert [len(group) for group in data.groups] == [4] * 8
    assert len(plan.classes) == 1
