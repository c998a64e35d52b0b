"""The schedules by name: which passes each stage runs in which order, and what a schedule needs.

Whole backwards: GPipe, breadth-first looping, 1F1B, interleaved 1F1B, and no pipeline at all, one
micro-batch after the other. Zero bubble (Qi et al. 2024, arXiv:2401.10241) splits backward: the
stage before waits for the gradients of inputs alone, and gradients of weights fill what would be
bubbles. DualPipe (DeepSeek-V3 report, arXiv:2412.19437, 3.2.1), and its half as a V, join forward
of a micro-batch with backward of another, so that each hides what the other communicates; the order
is that of DeepSeek's implementation (github.com/deepseek-ai/DualPipe, ``dualpipe.py``), and for the
V of torch 2.13, ``ScheduleDualPipeV``. Vocabulary parallelism (Yeung et al. 2024, arXiv:2411.05288)
gives each stage a share of the table of tokens and of the output layer, whose passes stand between
those of 1F1B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from operator import itemgetter

from perfmodel.errors import Fault, failed, look_up, raise_faults, refuse_if
from perfmodel.training.pipeline.pass_actions import (
    MICRO_BATCHES,
    SECTION,
    Layout,
    PassAction,
    PassKind,
    PipelineSchedule,
    count_faults,
)

MOST_PASSES = 50_000
"""Passes of all stages together that a step may have. A pass of a 405B model in four dimensions is
13 tasks; extrapolated from 106,020 tasks, as many passes take ten minutes and 1.6 GiB for a `run`
(reports/benchmarks/crowded)."""


@dataclass(frozen=True, slots=True)
class Passes:
    """What the passes of a stage depend on.

    `group`: micro-batches that a chunk runs in a row (``microbatch_group_size_per_vp_stage``).
    """

    stages: int
    micro_batches: int
    chunks: int
    group: int


KINDS: Mapping[str, PassKind] = {
    "F": "forward",
    "B": "backward",
    "I": "input_gradient",
    "W": "weight_gradient",
}


Turn = tuple[PassKind, int | None, bool]
"""Kind of a pass, its chunk (None: any), and whether it is joined with the pass after it."""


def _in_turn(*runs: tuple[int, str]) -> list[PassAction]:
    """Passes, each run of them so many times.

    "F0" is the next forward of chunk 0, "F0+" one that is joined with the pass after it, "B0" a
    whole backward, "I0" one whose weight gradients are put off. "W0" are the weight gradients of
    chunk 0 put off for longest, "W" those of any; none where none are put off.
    """
    turns = list[Turn]()
    for times, passes in runs:
        read = [
            (KINDS[each[0]], each[1:].rstrip("+"), each.endswith("+")) for each in passes.split()
        ]
        turns += [
            (kind, int(chunk) if chunk else None, joined) for kind, chunk, joined in read
        ] * times
    return _numbered(turns)


def _numbered(turns: Iterable[Turn]) -> list[PassAction]:
    """Give each pass its micro-batch: the next one of its chunk and kind."""
    actions: list[PassAction] = []
    counts: Counter[tuple[int | None, bool]] = Counter()
    put_off: list[tuple[int, int]] = []  # chunks and micro-batches
    for kind, chunk, joined in turns:
        if kind == "weight_gradient":
            place = next((of for of in put_off if chunk in {None, of[0]}), None)
            if place is not None:
                put_off.remove(place)
                actions.append(PassAction(kind, *place))
            continue
        assert chunk is not None
        place = chunk, counts[chunk, kind == "forward"]
        counts[chunk, kind == "forward"] += 1
        actions.append(PassAction(kind, *place, joined))
        if kind == "input_gradient":
            put_off.append(place)
    return actions


def _alternate(passes: Passes, warm_up: int, put_off: int | None = None) -> list[PassAction]:
    """Forwards and backwards by turns, after so many forwards.

    Chunks are taken group after group, within one chunk after chunk, by backward in reverse. The
    last group may be smaller.

    `put_off`: how many backwards later gradients of weights follow; None: backwards are whole.
    """
    order = [
        chunk
        for first in range(0, passes.micro_batches, passes.group)
        for chunk in range(passes.chunks)
        for _ in range(first, min(first + passes.group, passes.micro_batches))
    ]
    forwards: list[Turn] = [("forward", chunk, False) for chunk in order]
    backward: PassKind = "backward" if put_off is None else "input_gradient"
    weights: Turn = ("weight_gradient", None, False)
    turns = forwards[:warm_up]
    for number, chunk in enumerate(order):
        turns += forwards[warm_up + number : warm_up + number + 1]
        turns.append((backward, passes.chunks - 1 - chunk, False))
        if put_off is not None and number >= put_off:
            turns.append(weights)
    return _numbered([*turns, *[weights] * (put_off or 0)])


# ---------------------------------------------------------------- passes of a stage


def _by_turns(
    forwards_per_stage: int | None, put_off_per_stage: int | None = None
) -> Callable[[Passes, int], Iterable[PassAction]]:
    """Write forwards and backwards by turns.

    `forwards_per_stage`: that precede the first backward, for each stage behind; None: all do.
    `put_off_per_stage`: backwards after which gradients of weights follow, for each stage before;
        None: backwards are whole.
    """

    def write(passes: Passes, stage: int) -> Iterable[PassAction]:
        warm_up = passes.micro_batches
        if forwards_per_stage is not None:
            behind, ahead = passes.stages - 1 - stage, (passes.chunks - 1) * passes.group
            warm_up = forwards_per_stage * behind + ahead
        put_off = None if put_off_per_stage is None else put_off_per_stage * stage
        return _alternate(passes, warm_up, put_off)

    return write


def _looped_bfs(passes: Passes, _: int) -> Iterator[PassAction]:
    """Breadth first (Lamy-Poirier 2023, arXiv:2211.05953): a chunk runs all micro-batches.

    In torch 2.13, ``ScheduleLoopedBFS``, backward takes them in reverse.
    """
    forward = [(c, m) for c in range(passes.chunks) for m in range(passes.micro_batches)]
    yield from (PassAction("forward", *each) for each in forward)
    yield from (PassAction("backward", *each) for each in reversed(forward))


def _zb_v(passes: Passes, stage: int) -> Iterator[PassAction]:
    """Two chunks in the shape of a V, no bubble where all passes take as long.

    The order is that of torch 2.13, ``ScheduleZBVZeroBubble``: with fewer than 2 P - 1
    micro-batches it is that of 2 P - 1 without those that there are not.
    """
    stages, behind = passes.stages, passes.stages - stage
    full = max(2 * stages - 1, passes.micro_batches)
    actions = _in_turn(
        (2 * behind - 1, "F0"),
        (stage, "F1 F0"),
        (behind, "F1 I1 W1"),
        (full - stages - behind + 1, "F0 I0 W0 F1 I1 W1"),
        (behind - 1, "I0 W0 F1 I1 W1"),
        (stage, "I0 I1"),
        (behind, "I0 W0"),
        (full, "W1"),
        (full, "W0"),
    )
    return (action for action in actions if action.micro_batch < passes.micro_batches)


def _dualpipe_v(passes: Passes, stage: int) -> list[PassAction]:
    """DualPipe cut in half, so that each parameter is held once.

    Micro-batches enter chunk 0, turn in the last stage, and leave. Half of the backwards after the
    last forward put weight gradients off.
    """
    outer, held = passes.stages - 1 - stage, stage + 1
    alone = int(outer == 0)  # the first pair of the last stage, so that what follows starts earlier
    return _in_turn(
        (2 * outer, "F0"),
        (held, "F0 F1"),
        (outer, "I1 W F1"),
        (alone, "F0 B1 F1+ B0"),
        (passes.micro_batches - 2 * passes.stages + held - alone, "F0+ B1 F1+ B0"),
        (outer, "B1 F1+ B0"),
        (held // 2, "B1 B0"),
        (held % 2, "B1 I0"),
        (held // 2, "I1 I0"),
        (outer, "W I0"),
        (held, "W"),
    )


def _dualpipe(passes: Passes, stage: int) -> Iterator[PassAction]:
    """DualPipe: half of the micro-batches run from the last stage to the first.

    Stage s holds parts s and P - 1 - s of P, each parameter being held twice in all.
    """
    stages, half = passes.stages, passes.micro_batches // 2
    for action in _dualpipe_v(
        replace(passes, stages=stages // 2, micro_batches=half), min(stage, stages - 1 - stage)
    ):
        direction = action.chunk ^ int(stage >= stages // 2)
        yield replace(action, chunk=direction, micro_batch=action.micro_batch + direction * half)


VOCABULARY_STEPS: Mapping[int, tuple[tuple[PassKind, int], ...]] = {
    1: (("weight_gradient", -1), ("forward", 0), ("input_gradient", 0)),
    2: (("backward", -1), ("forward", 0)),
}
"""Passes that an output layer runs in a row, each of the micro-batch of the step or of the one
before, by how often all stages wait for each other for a micro-batch. With one such barrier the
gradient of its input is made before scores of all stages are added up."""


def _vocabulary(passes: Passes, stage: int, barriers: int) -> list[PassAction]:
    """1F1B in chunk 0, with a micro-batch more in flight for each barrier, and steps of chunk 1.

    These stand where the authors' code has them if backward takes twice as long as forward
    (``forward_backward_pipelining_with_split_vocab_parallel`` in ``schedules.py`` of
    github.com/sail-sg/VocabularyParallelism): a stage first runs those that fill the time until its
    first gradient comes, then one behind each backward, or, in every third stage, behind the
    forward that follows it.
    """
    last, behind = passes.micro_batches - 1, passes.stages - 1 - stage
    late = behind > 0 and behind % 3 == 0
    own = _alternate(replace(passes, chunks=1), behind + barriers)
    at = {(action.kind, action.micro_batch): index for index, action in enumerate(own)}
    placed: list[tuple[float, PassAction]] = [*enumerate(own)]
    for step in range(last + 2):
        number = step - barriers - behind + max(0, behind - 1) // 3 + late
        place = (
            at["forward", min(last, behind + step)] + 0.5
            if step < barriers
            else at["backward", max(0, number)] + (0.5 if number >= 0 and not late else -0.5)
        )
        placed += [
            (place, PassAction(kind, 1, step + shift))
            for kind, shift in VOCABULARY_STEPS[barriers]
            if 0 <= step + shift <= last
        ]
    return [action for _, action in sorted(placed, key=itemgetter(0))]


# ---------------------------------------------------------------- what a schedule needs


def _rounds(passes: Passes) -> list[Fault]:
    """Fault of micro-batches that do not fill rounds of equally many."""
    rounds = max(1, passes.micro_batches // passes.stages)
    return failed(
        (
            passes.micro_batches % rounds,
            MICRO_BATCHES,
            str(passes.micro_batches),
            f"a multiple of the {passes.stages} stages, or of the {rounds} rounds that they make",
        )
    )


def _groups(passes: Passes) -> list[Fault]:
    """Fault of a group of micro-batches as Megatron-Core 0.16 finds it (schedules.py)."""
    name, stages, group = f"{SECTION}.micro_batch_group", passes.stages, passes.group
    batches, fits = passes.micro_batches, stages <= group <= passes.micro_batches
    return failed(
        (
            not fits,
            name,
            str(group),
            f"from {stages} (stages) to {batches} (micro-batches)",
        ),
        (
            fits and 0 < batches % group < stages,
            name,
            f"{group}: leaves {batches % group}",
            f"what leaves no remainder of {batches} micro-batches, or {stages} or more",
        ),
    )


def _filled(passes: Passes, less: int = 0, why: str = ", twice the stages") -> list[Fault]:
    """Fault of fewer micro-batches than twice the stages, `less` so many."""
    return count_faults(MICRO_BATCHES, passes.micro_batches, 2 * passes.stages - less, why)


def _halves(passes: Passes) -> list[Fault]:
    counts = ((f"{SECTION}.stages", passes.stages), (MICRO_BATCHES, passes.micro_batches))
    odd = ((value % 2, name, str(value), "an even number, half each way") for name, value in counts)
    return failed(*odd) + _filled(passes)


@dataclass(frozen=True, slots=True)
class ScheduleRow:
    """A schedule.

    `title`: what it is called in sentences.
    `write`: passes of a stage, in order.
    `chunks`: of each stage; None: any number, but one where the schedule is then `with_one`.
    `needs`: faults of counts that it cannot have.
    """

    title: str
    write: Callable[[Passes, int], Iterable[PassAction]]
    layout: Layout = "loop"
    chunks: int | None = 1
    with_one: str = ""
    needs: Callable[[Passes], list[Fault]] = lambda _: []


SCHEDULES: Mapping[str, ScheduleRow] = {
    # Huang et al. 2019, with backward in the order of forward, as ``ScheduleGPipe``
    "gpipe": ScheduleRow("GPipe", _by_turns(None)),
    # Narayanan et al. 2019; "PipeDream-Flush"
    "1f1b": ScheduleRow("1F1B", _by_turns(1)),
    # Yeung et al. 2024, Algorithms 1 and 2
    "1f1b_vocab_1": ScheduleRow("1F1B Vocab-1", partial(_vocabulary, barriers=2), "vocabulary", 2),
    "1f1b_vocab_2": ScheduleRow("1F1B Vocab-2", partial(_vocabulary, barriers=1), "vocabulary", 2),
    # Narayanan et al. 2021, as Megatron-Core 0.16 runs it
    "interleaved": ScheduleRow(
        "interleaved 1F1B", _by_turns(2), chunks=None, with_one="1f1b", needs=_rounds
    ),
    "looped_bfs": ScheduleRow("breadth-first", _looped_bfs, chunks=None),
    # 1F1B's forwards, and no more micro-batches in flight
    "zb_h1": ScheduleRow("ZB-H1", _by_turns(1, 1)),
    # Each stage begins and ends one pass after the one before, without a bubble where all passes
    # take as long. Stages hold up to 2 P - 1 micro-batches. What waits for all stages at the end
    # of a step, as a norm of gradients does, takes away what this gains over ZB-H1 (section 4).
    "zb_h2": ScheduleRow(
        "ZB-H2",
        _by_turns(2, 2),
        needs=partial(_filled, less=1, why=", those that its first stage holds"),
    ),
    # ZB-H1 over several chunks as torch 2.13 has it (``ScheduleInterleavedZeroBubble``)
    "interleaved_zero_bubble": ScheduleRow(
        "interleaved zero bubble", _by_turns(1, 1), chunks=None, with_one="zb_h1", needs=_rounds
    ),
    "zb_v": ScheduleRow("ZB-V", _zb_v, "v", 2),
    # A module whose layers sit on several GPUs of one process runs one micro-batch after the other
    # (PyTorch's tutorial on DDP, "Combining DDP with Model Parallelism")
    "sequential": ScheduleRow("one GPU after the other", _by_turns(0)),
    "dualpipe": ScheduleRow("DualPipe", _dualpipe, "bidirectional", 2, needs=_halves),
    "dualpipe_v": ScheduleRow("DualPipeV", _dualpipe_v, "v", 2, needs=_filled),
}


def make_schedule(
    kind: str,
    stages: int,
    micro_batches: int,
    chunks: int | None = None,
    *,
    micro_batch_group: int | None = None,
) -> PipelineSchedule:
    """Return a schedule by name.

    `chunks`: of each stage; by default as many as the schedule has, 2 where it may have any number.
    `micro_batch_group`: of "interleaved"; by default as many as stages, or where these do not
        divide the micro-batches, as many as torch 2.13 takes (``ScheduleInterleaved1F1B``).
    Raises `InputError`: no such schedule, counts that it does not allow, or more than
        `MOST_PASSES` passes.
    """
    row = look_up(SCHEDULES, kind, f"{SECTION}.schedule")
    number = (row.chunks or 2) if chunks is None else chunks
    _check_passes(stages, micro_batches, number)
    refuse_if(
        micro_batch_group is not None and kind != "interleaved",
        f"{SECTION}.micro_batch_group",
        str(micro_batch_group),
        "with interleaved only",
    )
    counts = ((f"{SECTION}.stages", stages), (MICRO_BATCHES, micro_batches))
    of_counts = (count_faults(*each) for each in counts)
    raise_faults(chain(*of_counts, _chunk_faults(kind, row, number)))
    passes = Passes(
        stages,
        micro_batches,
        number,
        micro_batch_group or (micro_batches // max(1, micro_batches // stages)),
    )
    raise_faults((row.needs if micro_batch_group is None else _groups)(passes))
    actions = tuple(tuple(row.write(passes, stage)) for stage in range(stages))
    return PipelineSchedule(kind, stages, micro_batches, number, row.layout, actions)


def _chunk_faults(kind: str, row: ScheduleRow, chunks: int) -> list[Fault]:
    """Fault of a number of chunks that a schedule does not have."""
    name = f"{SECTION}.chunks"
    if row.with_one:
        return count_faults(name, chunks, 2, f": with one, the schedule is {row.with_one}")
    if row.chunks is None or chunks < 1:
        return count_faults(name, chunks)
    allowed = f"{row.chunks}, which {kind} has by definition"
    return failed((chunks != row.chunks, name, repr(chunks), allowed))


def _check_passes(stages: int, micro_batches: int, chunks: int) -> None:
    """Refuse schedules whose simulation would take many minutes."""
    each = 2 * stages * chunks
    refuse_if(
        each * micro_batches > MOST_PASSES,
        MICRO_BATCHES,
        f"{micro_batches:,} micro-batches, {each * micro_batches:,} passes",
        f"at most {MOST_PASSES:,} passes, {MOST_PASSES // max(1, each):,} micro-batches on "
        f"{stages} stages of {chunks} chunk{'s' if chunks > 1 else ''}",
    )
