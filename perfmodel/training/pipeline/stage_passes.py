"""The passes of one stage: those of its chunks in the order of the schedule, and their messages."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from perfmodel.errors import Fault, InputError
from perfmodel.memo import once
from perfmodel.training.pipeline.host_issue import (
    drop_hidden_issues,
    drop_host_ahead,
    issue_first_layer_alone,
)
from perfmodel.training.pipeline.pass_actions import (
    Message,
    PassAction,
    PipelineSchedule,
    action_groups,
    message_of,
)
from perfmodel.training.pipeline.pass_regions import (
    PassKey,
    PassKind,
    Regions,
    Work,
    merge_pass,
    part_calls,
    split_backward,
)
from perfmodel.training.pipeline.stage_workload import ModelPart
from perfmodel.training.plan.builder import HOST
from perfmodel.training.plan.step_plan import (
    PASSES,
    Collective,
    Compute,
    Op,
    StepPlan,
    Stream,
    Task,
)


@dataclass(frozen=True, slots=True)
class PipelineOptions:
    """How stages exchange what passes make.

    `transfer_bytes`: of a micro-batch's activations, and of their gradients, after each part but
        the last; one number: the same after all.
    `overlap_p2p`: passes run while messages are on their way; otherwise a stage sends and receives
        between two passes, and its host waits, too (Megatron-Core without
        ``overlap_p2p_communication``, where ``batch_p2p_sync`` lets the host wait).
    `overlap_reduction`: gradients of a part are reduced once they are ready; otherwise after all
        passes.
    `tied_dtype`: of the gradients of a tied embedding that both its holders add up; by default that
        of the tensor.
    `shared_bytes`: where all stages share the vocabulary, of a micro-batch: a score of each token
        in fp32, the input of the output layer in fp32, and as stages hand it on.
    """

    transfer_bytes: int | tuple[int, ...]
    overlap_p2p: bool = True
    overlap_reduction: bool = True
    tied_dtype: str | None = None
    shared_bytes: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class PartPlan:
    """A part of the model, and the plan of its plain data-parallel training."""

    plan: StepPlan
    part: ModelPart


@dataclass(frozen=True, slots=True)
class WrittenPass:
    """A pass that is written.

    `suffix`: of the keys of its collectives.
    `indices`: from tasks of its part's plan to those of the pipeline.
    """

    suffix: str = ""
    indices: dict[int, int] = field(default_factory=dict)


PassWorks = tuple[list[Work], list[Work], list[Work]]
"""Calls beside the kernels of another pass, what else a pass is made of, and what is put off."""


@dataclass(slots=True)
class StagePasses:
    """A stage under construction.

    `incoming`: what each stage receives on each stream, in the order in which it is sent.
    `tasks`: of all stages; this one's are appended.
    `indices`: by part, from tasks of its plan to those of the pipeline.
    `gates`: what the next pass waits for.
    `batch`: tasks before which no message is taken, where the stage waits for messages.
    `next_message`: how many messages of each stream tasks have been written for; `arrived`: which.
    `counts`: passes of each chunk and kind so far.
    `begun`: whether the stage has run a pass, during which its host gets ahead.
    `put_off`: gradients of weights that are still to be written, by chunk, with their passes.
    `prepared`: works of passes by what these depend on.
    `previous`: tasks that wait for others of the step before: index, part, tasks of its plan.
    `hidden`: the last calls of experts of each pass of a pair.
    `ended`: what the passes before wait for.
    `shared`: where all stages share the vocabulary: passes, and what stages exchange of them, by
        what it is and its micro-batch.
    """

    schedule: PipelineSchedule
    stage: int
    parts: Sequence[PartPlan]
    regions: Sequence[Regions]
    options: PipelineOptions
    incoming: Mapping[str, Sequence[Message]]
    tasks: list[Task]
    indices: dict[int, dict[int, int]] = field(default_factory=dict)
    gates: tuple[int, ...] = ()
    batch: tuple[int, ...] = ()
    next_message: dict[str, int] = field(default_factory=dict)
    arrived: dict[Message, int] = field(default_factory=dict)
    counts: dict[tuple[int, PassKind], int] = field(default_factory=dict)
    begun: bool = False
    put_off: dict[int, list[tuple[list[Work], WrittenPass]]] = field(default_factory=dict)
    prepared: dict[Hashable, PassWorks] = field(default_factory=dict)
    previous: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    hidden: list[int] = field(default_factory=list)
    ended: tuple[int, ...] = ()
    shared: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)

    @property
    def rank_class(self) -> str:
        """Name of the stage's class."""
        return f"stage {self.stage}"

    @property
    def chunks(self) -> tuple[int, ...]:
        """Chunks by the part of the model that they are.

        So two stages that hold the same parts call collectives of these in the same order.
        """
        return tuple(sorted(range(self.schedule.chunks), key=self.part))

    def part(self, chunk: int) -> int:
        """Part of the model that a chunk is."""
        return self.schedule.part(self.stage, chunk)


def write_passes(passes: StagePasses) -> None:
    """Append what precedes the passes of a stage, and these in the order of the schedule.

    Where it waits for messages, interleaved passes are sent in pairs:
    ``send_forward_backward_recv_forward_backward`` of Megatron-Core follows both of a pair.
    """
    for chunk in passes.chunks:
        write_works(passes, chunk, passes.regions[passes.part(chunk)].begin)
    waits, actions = not passes.options.overlap_p2p, passes.schedule.actions[passes.stage]
    if waits and passes.schedule.name == "interleaved":
        actions = tuple(
            replace(action, joined=action.kind == "forward" and following.kind == "backward")
            for action, following in zip(actions, (*actions[1:], actions[-1]), strict=True)
        )
    for group in action_groups(actions):
        received = [task for action in group for task in _receive(passes, action)]
        gates = (*received, *passes.gates)
        written = []
        for action in group:
            written.append(_write_pass(passes, action, gates, paired=len(group) > 1))
            gates = gates if passes.hidden else ()
        sent = [each for pair in zip(group, written, strict=True) for each in _send(passes, *pair)]
        passes.gates = (*(sent if waits else ()), *passes.hidden)
        passes.hidden, passes.ended = [], written[-1]
        passes.batch = written[-1] if waits else ()


# ---------------------------------------------------------------- messages


def _receive(passes: StagePasses, action: PassAction) -> list[int]:
    """Take the message that a pass needs, after those that were sent before it."""
    message = message_of(passes.schedule, passes.stage, action, sent=False)
    if message is None:
        return _share_vocabulary(passes, action)
    stream = f"{passes.stage} {message.received_on}"
    queue, first = passes.incoming[stream], passes.next_message.get(stream, 0)
    last = next((i for i in range(first, len(queue)) if queue[i] == message), None)
    if last is not None:  # else it came with one that was needed earlier
        passes.next_message[stream] = last + 1
        for each in queue[first : last + 1]:
            passes.arrived[each] = _transfer(passes, each, each.received_on, passes.batch)
    return [passes.arrived[message]]


def _send(passes: StagePasses, action: PassAction, written: tuple[int, ...]) -> list[int]:
    message = message_of(passes.schedule, passes.stage, action, sent=True)
    if message is not None:
        return [_transfer(passes, message, message.sent_on, written)]
    _share_vocabulary(passes, action, written)
    return []


def _transfer(passes: StagePasses, message: Message, stream: str, after: tuple[int, ...]) -> int:
    key, every = message.key, passes.options.transfer_bytes
    nbytes = every if isinstance(every, int) else every[message.boundary]
    passes.tasks.append(
        Task(
            key,
            "communication",
            passes.rank_class,
            stream,
            Collective("send", nbytes, message.communicator, key),
            after,
            micro_batch=message.micro_batch,
        )
    )
    return len(passes.tasks) - 1


# ---------------------------------------------------------------- vocabulary over all stages

PIPELINE = "stages of a pipeline"
"""Communicator of ranks of all stages, which train the same samples."""
SHARING_STREAMS = (Stream("to all stages", "comm"), Stream("of all stages", "comm"))
"""Of what one stage sends to all for their shares of the vocabulary, and of what all add up."""

EXCHANGES: Mapping[tuple[str, bool], tuple[tuple[Op, str, int, int, int], ...]] = {
    ("forward", False): (("broadcast", "output of blocks", 1, 1, -1),),
    # greatest logit, logit of the target, sum of exponentials
    ("forward", True): (
        ("all_reduce", "scores", 0, 3, 0),
        ("all_reduce", "embeddings", 2, 1, 0),
    ),
    **dict.fromkeys(
        (("backward", False), ("input_gradient", False)),
        (("broadcast", "gradients of embeddings", 2, 1, 0),),
    ),
    **dict.fromkeys(
        (("backward", True), ("input_gradient", True)),
        (("all_reduce", "gradients of blocks", 2, 1, 0),),
    ),
}
"""By pass of a share of the vocabulary, and whether it is done: what stages exchange then.

Operation, what of, number of its size in `PipelineOptions.shared_bytes`, how many in a row, and
place of the stage that sends (-1: the last). So in the authors' code (``broadcast_lm_head_input``,
``reduce_lm_head_res``, ``input_embedding_forward_step_helper`` and
``input_embedding_backward_step_helper``).
"""
AWAITED = {
    ("forward", 1): "output of blocks",
    ("backward", 1): "scores",
    ("weight_gradient", 1): "scores",
    ("backward", 0): "gradients of blocks",
}
"""By pass and chunk: what it waits for of that."""


def _share_vocabulary(
    passes: StagePasses, action: PassAction, written: tuple[int, ...] = ()
) -> list[int]:
    """Exchange what a pass with a share of the vocabulary needs, or what it made; what it awaits.

    Embeddings, and gradients of these, are those of other micro-batches, which wait for nothing.

    `written`: its tasks, where it is done; also those of the last stage's forward, whose output is
        sent to all.
    """
    if passes.schedule.layout != "vocabulary":
        return []
    kind, number, chunk = action.kind, action.micro_batch, action.chunk
    after = passes.shared[kind, number] = written or passes.shared.get(("forward", number), ())
    for op, what, size, times, root in EXCHANGES.get((kind, bool(written)), ()) * chunk:
        key, nbytes = f"{what} of micro-batch {number}", passes.options.shared_bytes[size]
        passes.shared[what, number] = (len(passes.tasks),)
        passes.tasks.append(
            Task(
                key,
                "communication",
                passes.rank_class,
                SHARING_STREAMS[op == "all_reduce"].name,
                Collective(op, nbytes, PIPELINE, key, root, times=times),
                after,
                micro_batch=number,
            )
        )
    return [*passes.shared.get((AWAITED.get((kind, chunk), ""), number), ())]


# ---------------------------------------------------------------- passes


def _write_pass(
    passes: StagePasses, action: PassAction, gates: tuple[int, ...], *, paired: bool
) -> tuple[int, ...]:
    """Write a pass; return the tasks that its output waits for.

    `paired`: it runs together with another, whose kernels hide what its experts exchange.

    The first pass that runs through a chunk is that of its plan's first micro-batch, and the last
    one reduces gradients, whichever micro-batches these are.
    """
    part = passes.part(action.chunk)
    if action.kind == "weight_gradient":
        works, own = passes.put_off[action.chunk].pop(0)
        return write_works(passes, action.chunk, works, gates, action.micro_batch, own)
    kind: PassKind = "forward" if action.kind == "forward" else "backward"
    number = passes.counts.get((action.chunk, kind), 0)
    passes.counts[action.chunk, kind] = number + 1
    shown = number if (kind, number) in passes.regions[part].passes else 1
    key = (kind, shown)  # of the pass of the plan that shows this one; see `with_micro_batches`
    splits, ahead = action.kind == "input_gradient", passes.options.overlap_p2p and passes.begun
    passes.begun = True
    calls, works, later = once(
        passes.prepared,
        (part, key, splits, ahead, paired),
        lambda: _prepare_pass(passes, part, key, splits=splits, ahead=ahead, paired=paired),
    )
    own = WrittenPass("" if key[1] == number else f", pass {number}")
    if calls:
        own_gates = (*gates, *passes.ended)  # calls would overtake the kernels before the pair
        write_works(passes, action.chunk, calls, own_gates, action.micro_batch, own)
        passes.hidden += [own.indices[member] for member in calls[-1].members]
    outputs = write_works(passes, action.chunk, works, gates, action.micro_batch, own)
    if splits:
        passes.put_off.setdefault(action.chunk, []).append((later, own))
    return (*passes.hidden[-1:], *outputs) if calls else outputs


def _prepare_pass(
    passes: StagePasses, part: int, key: PassKey, *, splits: bool, ahead: bool, paired: bool
) -> PassWorks:
    """Merge the tasks of a pass, and part them.

    `splits`: whether gradients of weights are put off.
    `ahead`: whether the host is ahead of the device.
    """
    regions, times = passes.regions[part], passes.parts[part].part.times
    kernels = times.forward_kernels if key[0] == "forward" else times.backward_kernels
    works = issue_first_layer_alone(regions.passes[key], kernels.tolist())
    works = merge_pass(works, regions.waited_for)
    works, calls, later = drop_host_ahead(works) if ahead else works, list[Work](), list[Work]()
    if paired:
        calls, works = part_calls(works, regions.expert_calls)
    if splits:
        works, later = split_backward(works, times)
    return calls, drop_hidden_issues(works), drop_hidden_issues(later)


def write_works(
    passes: StagePasses,
    chunk: int,
    works: Iterable[Work],
    gates: tuple[int, ...] = (),
    micro_batch: int | None = None,
    own: WrittenPass | None = None,
) -> tuple[int, ...]:
    """Append tasks of a chunk's plan; return those that what they make together waits for.

    `gates`: what the first layers of a pass wait for; after the passes, the first task does.
    `own`: what is written of their pass.
    """
    part, own, tasks = passes.part(chunk), own or WrittenPass(), passes.tasks
    known, local, rank_class = passes.indices.setdefault(part, {}), own.indices, passes.rank_class
    outputs: list[int] = []
    issued: list[int] = []
    begun = False
    for work in works:
        task = work.task
        runs_layers = task.kind in PASSES or bool(task.layers)
        # the first of a pass are those of its layers, and those on a host that waits, too
        first = runs_layers and not begun
        if task.stream == HOST.name:
            first = not passes.options.overlap_p2p and not local
        if micro_batch is None:
            first = first or not local
        waits, index = dict.fromkeys(gates if first else ()), len(tasks)
        for each in task.after:
            source = local.get(each, known.get(each))
            if source is None:
                raise InputError(_unordered(passes, chunk))
            waits[source] = None
        tasks.append(
            task.moved(
                of_part(task.work, part, own.suffix),
                tuple(waits),
                rank_class=rank_class,
                micro_batch=micro_batch,
                after_previous=(),
            )
        )
        if task.after_previous:
            passes.previous.append((index, part, task.after_previous))
        local.update(dict.fromkeys(work.members, index))
        begun = begun or task.kind in PASSES
        if work.ends_pass:
            issued.append(index)
        elif runs_layers:
            outputs.append(index)
    known.update(local)
    return (*outputs[-2:], *issued[-1:])


def of_part(work: Compute | Collective, part: int, suffix: str = "") -> Compute | Collective:
    """Name a collective's communicator and key after the part of the model, and its pass."""
    if not isinstance(work, Collective):
        return work
    return Collective(
        work.op,
        work.nbytes,
        f"{work.communicator} of part {part}",
        f"{work.key} of part {part}{suffix}",
        work.root,
        work.dtype,
        work.times,
    )


def _unordered(passes: StagePasses, chunk: int) -> Fault:
    name = passes.parts[passes.part(chunk)].plan.name
    return Fault(
        "strategy.kind",
        f"several micro-batches of {name}, each of which waits for the one before, in a pipeline",
        "a strategy whose micro-batches can run in another order: ddp, megatron, zero up to stage "
        "2, or fsdp that gathers and reduces once a step (reshard_after_forward, "
        "reshard_after_backward: false; sync: last), as PyTorch runs it in pipelines",
    )
