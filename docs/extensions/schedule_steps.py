"""What each rank of a schedule holds after each step: as pictures, and in words.

Everything is read off the rounds of the schedule that is simulated. Nothing here knows a ring.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from perfmodel.collectives.schedule import Schedule

Held = tuple[tuple[frozenset[int], ...], ...]
"""Whose numbers are in the sum that a rank holds, by rank and chunk."""

WIDTH, HEIGHT = 720, 430
BOX, CELL = 132, 26
"""Width of a rank's box, height of a chunk in it; both in units of the picture."""


@dataclass(frozen=True, slots=True)
class Send:
    """One send: `adds` to what the receiver holds, or takes its place."""

    src: int
    dst: int
    chunk: int
    adds: bool


@dataclass(frozen=True, slots=True)
class Step:
    """What is sent at once, and what all ranks hold before and after.

    `sent`: bytes that each rank has sent so far, this step among them.
    """

    sends: tuple[Send, ...]
    before: Held
    after: Held
    sent: tuple[int, ...]


def steps_of(schedule: Schedule) -> list[Step]:
    """Follow an all-reduce, round by round."""
    chunks = range(len(schedule.chunk_bytes))
    held: Held = tuple(tuple(frozenset({rank}) for _ in chunks) for rank in range(schedule.ranks))
    sent = [0] * schedule.ranks
    steps = []
    for each in schedule.rounds():
        columns = (each.src, each.dst, each.dst_chunk, each.reduce)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        sends = tuple(Send(src, dst, chunk, bool(adds)) for src, dst, chunk, adds in rows)
        for src, nbytes in zip(each.src.tolist(), each.nbytes.tolist(), strict=True):
            sent[src] += nbytes
        after = _after(held, sends)
        steps.append(Step(sends, held, after, tuple(sent)))
        held = after
    return steps


def _after(held: Held, sends: Sequence[Send]) -> Held:
    now = [list(chunks) for chunks in held]
    for send in sends:
        came = held[send.src][send.chunk]
        now[send.dst][send.chunk] = now[send.dst][send.chunk] | came if send.adds else came
    return tuple(tuple(chunks) for chunks in now)


# ---------------------------------------------------------------- in words


def step_words(step: Step) -> str:
    """Say what a step does: every send."""
    return "; ".join(
        f"rank {send.src} sends chunk {send.chunk} to rank {send.dst}, "
        + ("which adds it" if send.adds else "which keeps it")
        for send in step.sends
    )


def markdown_of(schedule: Schedule) -> str:
    """All steps as a table of what each rank holds: ``01`` is the sum of ranks 0 and 1."""
    steps = steps_of(schedule)
    chunks = len(schedule.chunk_bytes)
    lines = ["| step | rank | " + " | ".join(f"chunk {chunk}" for chunk in range(chunks)) + " |"]
    lines.append("|---|---|" + "---|" * chunks)
    held = [steps[0].before, *(step.after for step in steps)]
    for number, ranks in enumerate(held):
        for rank, row in enumerate(ranks):
            cells = " | ".join(_ranks(each) for each in row)
            lines.append(f"| {number or 'start'} | {rank} | {cells} |")
    words = [
        f"{number}. {step_words(step)}. {_sent(schedule, step)}"
        for number, step in enumerate(steps, 1)
    ]
    return "\n".join([*words, "", *lines])


def _ranks(held: frozenset[int]) -> str:
    return "+".join(map(str, sorted(held)))


# ---------------------------------------------------------------- pictures


def figures_of(schedule: Schedule, title: str) -> str:
    """All steps as HTML: a picture each, of which a page with scripts shows one at a time."""
    steps = steps_of(schedule)
    start = _figure(schedule, None, steps[0].before, f"{title}: every rank has its own numbers.")
    shown = [start]
    for number, step in enumerate(steps, 1):
        caption = f"Step {number} of {len(steps)}. {_what(step)} {_sent(schedule, step)}"
        shown.append(_figure(schedule, step, step.after, caption))
    figures = "\n".join(shown)
    return f'<div class="schedule-steps" aria-label="{escape(title)}">\n{figures}\n</div>\n'


def _sent(schedule: Schedule, step: Step) -> str:
    """How much ranks have sent up to here, of the bytes of a buffer."""
    most = "at most " if len(set(step.sent)) > 1 else ""
    sent = f"{max(step.sent) / schedule.nbytes:.3g} K"
    return f"So far a rank has sent {most}{sent}, with K the bytes of its buffer."


def _what(step: Step) -> str:
    adds = {send.adds for send in step.sends}
    if adds == {True}:
        return "Each receiver adds what comes to its own."
    return "Each receiver keeps what comes." if adds == {False} else "Some add, some keep."


def _figure(schedule: Schedule, step: Step | None, held: Held, caption: str) -> str:
    sends = step.sends if step else ()
    written = {(send.dst, send.chunk) for send in sends}
    marks = "".join(_box(schedule, rank, held[rank], written) for rank in range(schedule.ranks))
    arrows = "".join(_arrow(schedule, sends, pair) for pair in _pairs(sends))
    words = escape(step_words(step)) if step else "before the first step"
    return (
        f'<figure><svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{words}">'
        f"{marks}{arrows}</svg><figcaption>{escape(caption)}</figcaption></figure>"
    )


def _center(schedule: Schedule, rank: int) -> tuple[float, float]:
    """Ranks stand on an ellipse, clockwise from the top."""
    turn = 2 * math.pi * rank / schedule.ranks - math.pi / 2
    return WIDTH / 2 + 270 * math.cos(turn), HEIGHT / 2 + 142 * math.sin(turn)


def _height(schedule: Schedule) -> int:
    return CELL * len(schedule.chunk_bytes) + 24


def _box(
    schedule: Schedule, rank: int, row: Sequence[frozenset[int]], written: set[tuple[int, int]]
) -> str:
    x, y = _center(schedule, rank)
    left, top = x - BOX / 2, y - _height(schedule) / 2
    parts = [f'<text class="rank" x="{x:.0f}" y="{top + 15:.0f}">rank {rank}</text>']
    for chunk, held in enumerate(row):
        at = top + 22 + chunk * CELL
        kinds = ["cell", "whole" if len(held) == schedule.ranks else ""]
        kinds.append("written" if (rank, chunk) in written else "")
        parts.append(
            f'<rect class="{" ".join(filter(None, kinds))}" x="{left:.0f}" y="{at:.0f}"'
            f' width="{BOX}" height="{CELL - 3}" rx="3"/>'
        )
        parts.append(f'<text class="chunk" x="{left - 4:.0f}" y="{at + 15.5:.1f}">{chunk}</text>')
        parts += _shares(held, schedule.ranks, left, at)
    return "".join(parts)


def _shares(held: frozenset[int], ranks: int, left: float, at: float) -> Iterator[str]:
    """A block for each rank whose numbers are in the sum, at that rank's place."""
    width = (BOX - 8) / ranks
    for rank in sorted(held):
        x = left + 4 + rank * width
        yield (
            f'<rect class="share share-{rank % 8}" x="{x:.1f}" y="{at + 4:.1f}"'
            f' width="{width - 2:.1f}" height="{CELL - 11}" rx="2"/>'
            f'<text class="share" x="{x + width / 2 - 1:.1f}" y="{at + 15.5:.1f}">{rank}</text>'
        )


def _pairs(sends: Sequence[Send]) -> list[tuple[int, int]]:
    return list(dict.fromkeys((send.src, send.dst) for send in sends))


def _arrow(schedule: Schedule, sends: Sequence[Send], pair: tuple[int, int]) -> str:
    """An arrow from box to box, and the chunks that move along it."""
    (x, y), (to_x, to_y) = (_center(schedule, rank) for rank in pair)
    chunks = [send.chunk for send in sends if (send.src, send.dst) == pair]
    length = math.hypot(to_x - x, to_y - y)
    out_x, out_y = (to_x - x) / length, (to_y - y) / length
    # To the side of the straight line, so that both directions can be seen.
    side_x, side_y = -out_y * 11, out_x * 11
    gap = min(
        (BOX / 2 + 16) / max(abs(out_x), 1e-9), (_height(schedule) / 2 + 4) / max(abs(out_y), 1e-9)
    )
    start = x + out_x * gap + side_x, y + out_y * gap + side_y
    end = to_x - out_x * gap + side_x, to_y - out_y * gap + side_y
    # Nearer to the sender: chunks that cross each other would lie on one place.
    middle = tuple(0.6 * one + 0.4 * other for one, other in zip(start, end, strict=True))
    away = f"--dx:{start[0] - middle[0]:.0f}px;--dy:{start[1] - middle[1]:.0f}px"
    crossed = (pair[1], pair[0]) in _pairs(sends)
    label = ("" if crossed else "chunk ") + ", ".join(map(str, chunks))
    width = 14 + 6.5 * len(label)
    return (
        f'<line class="send" x1="{start[0]:.0f}" y1="{start[1]:.0f}" x2="{end[0]:.0f}"'
        f' y2="{end[1]:.0f}"/>'
        f'<path class="head" d="M0 -5 9 0 0 5z" transform="translate({end[0] - 5 * out_x:.0f}'
        f' {end[1] - 5 * out_y:.0f}) rotate({math.degrees(math.atan2(out_y, out_x)):.0f})"/>'
        f'<g class="moving" style="{away}"><rect x="{middle[0] - width / 2:.0f}"'
        f' y="{middle[1] - 11:.0f}" width="{width:.0f}" height="22" rx="11"/>'
        f'<text x="{middle[0]:.0f}" y="{middle[1] + 4.5:.0f}">{label}</text></g>'
    )
