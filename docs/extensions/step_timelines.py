"""A simulated step as a picture: what each stream does when, and the same in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape

from perfmodel.studies.run.result import SizeResult
from perfmodel.timeline import Span, assign_lanes

WIDTH, LEFT = 760, 150
ROW = 34
LEAST_SHARE = 0.004
"""Part of the step below which a bar is not drawn."""
LEAST_GAP = 0.02
"""Part of the step below which a gap between bars that are alike is not drawn."""

KINDS = ("forward", "backward", "communication", "optimizer", "copy")
"""Kinds of spans that are drawn; each has a colour in ``pictures.css``."""
HOST_KIND = "issue"
"""Drawn where the host is the limit."""


@dataclass(frozen=True, slots=True)
class Bar:
    """Something that a stream does, in seconds from the start of the step.

    `busy_s`: how long it does so; shorter than the bar where short pauses are painted over.
    """

    row: str
    kind: str
    label: str
    start_s: float
    end_s: float
    busy_s: float


def bars_of(size: SizeResult) -> list[Bar]:
    """Bars of the last step that was simulated; without what is too short to be seen."""
    timeline = size.timeline
    last = timeline.spans[-1].step
    kinds = (*KINDS, HOST_KIND) if size.limit == "host" else KINDS
    spans = [each for each in timeline.spans if each.step == last and each.kind in kinds]
    begin = min(each.start_s for each in spans if each.kind in KINDS)
    several = len({each.micro_batch for each in spans}) > 1
    bars = []
    for row, own in _rows(spans, several_classes=len(timeline.classes) > 1):
        drawn = [
            Bar(row, each.kind, _label(each, several), start_s, end_s, end_s - start_s)
            for each in own
            if (end_s := each.end_s - begin) > (start_s := max(0.0, each.start_s - begin))
        ]
        bars += _merged(drawn, size.step_time_s)
    return [each for each in bars if each.end_s - each.start_s > LEAST_SHARE * size.step_time_s]


def _rows(spans: Sequence[Span], *, several_classes: bool) -> Iterator[tuple[str, list[Span]]]:
    """Spans by what is written beside their row; side by side where they overlap."""
    names = dict.fromkeys((each.rank_class, each.stream) for each in spans)
    for rank_class, stream in names:
        own = [each for each in spans if (each.rank_class, each.stream) == (rank_class, stream)]
        name = f"{rank_class}: {stream}" if several_classes else stream
        for lane in assign_lanes(own):
            yield name, lane


def _label(span: Span, several: bool) -> str:
    if span.kind == "communication":
        return "" if span.bucket is None else str(span.bucket)
    return str(span.micro_batch) if several and span.kind in ("forward", "backward") else ""


def _merged(bars: Sequence[Bar], step_s: float) -> list[Bar]:
    """Join what follows its like at once; copies among what is joined are not drawn."""
    work = _joined((each for each in bars if each.kind != "copy"), LEAST_GAP * step_s)
    copies = [
        each
        for each in bars
        if each.kind == "copy"
        and not any(over.start_s <= each.start_s and each.end_s <= over.end_s for over in work)
    ]
    joined = [*work, *_joined(copies, LEAST_SHARE * step_s)]
    return sorted(joined, key=lambda each: each.start_s)


def _joined(bars: Iterable[Bar], gap_s: float) -> list[Bar]:
    joined: list[Bar] = []
    for bar in bars:
        last = joined[-1] if joined else None
        if last and bar.start_s - last.end_s < gap_s and _alike(last, bar):
            joined[-1] = replace(last, end_s=bar.end_s, busy_s=last.busy_s + bar.busy_s)
        else:
            joined.append(bar)
    return joined


def _alike(one: Bar, other: Bar) -> bool:
    """Whether two bars may be drawn as one: buckets are always apart."""
    has_bucket = one.kind == "communication" and one.label
    return not has_bucket and (one.kind, one.label) == (other.kind, other.label)


# ---------------------------------------------------------------- in words


NOTE = (
    f"Pauses below {LEAST_GAP:.0%} of the step, and copies in them, are painted over; "
    f"what is shorter than {LEAST_SHARE:.1%} is not drawn."
).replace("%", "\N{NO-BREAK SPACE}%")
"""What each picture leaves out."""


def markdown_of(bars: Sequence[Bar]) -> str:
    """Return the bars as a table."""
    lines = ["| stream | what | from, ms | to, ms | busy, ms |", "|---|---|---|---|---|"]
    for bar in bars:
        what = f"{bar.kind} {bar.label}".strip()
        times = " | ".join(f"{at * 1e3:.4g}" for at in (bar.start_s, bar.end_s, bar.busy_s))
        lines.append(f"| {bar.row} | {what} | {times} |")
    return "\n".join(lines)


# ---------------------------------------------------------------- picture


def figure_of(pictures: Sequence[tuple[str, Sequence[Bar]]]) -> str:
    """Draw timelines below each other on one axis, each with its title."""
    longest = max(bar.end_s for _, bars in pictures for bar in bars)
    parts: list[str] = []
    y = 0
    for title, bars in pictures:
        rows = list(dict.fromkeys(bar.row for bar in bars))
        parts.append(f'<text class="title" x="0" y="{y + 16}">{escape(title)}</text>')
        y += 24
        for row in rows:
            own = [bar for bar in bars if bar.row == row]
            parts.append(f'<text class="row" x="0" y="{y + 20}">{escape(row)}</text>')
            parts += [_bar(bar, y, (WIDTH - LEFT) / longest) for bar in own]
            y += ROW
        y += 10
    parts = [*_axis(longest, y), *parts]  # bars cover the marks
    kinds = dict.fromkeys(bar.kind for _, bars in pictures for bar in bars)
    words = {HOST_KIND: "launch of kernels"}
    legend = "".join(f'<span class="key {each}">{words.get(each, each)}</span>' for each in kinds)
    titles = escape(" and ".join(title for title, _ in pictures))
    return (
        f'<figure class="step-timeline"><svg viewBox="0 0 {WIDTH + 16} {y + 30}" role="img"'
        f' aria-label="{titles}">{"".join(parts)}</svg>'
        f"<figcaption>{legend}<p>{NOTE}</p></figcaption></figure>\n"
    )


def _bar(bar: Bar, y: int, per_s: float) -> str:
    x, width = LEFT + bar.start_s * per_s, (bar.end_s - bar.start_s) * per_s
    hint = (
        f"{bar.kind} {bar.label}".strip()
        + f": {bar.start_s * 1e3:.4g} to {bar.end_s * 1e3:.4g} ms, busy {bar.busy_s * 1e3:.4g} ms"
    )
    rect = (
        f'<rect class="{bar.kind}" x="{x:.1f}" y="{y + 3}" width="{max(0.5, width - 0.6):.1f}"'
        f' height="{ROW - 8}" rx="2"><title>{escape(hint)}</title></rect>'
    )
    if not bar.label or width < 7 * len(bar.label) + 3:
        return rect
    return rect + f'<text class="label" x="{x + width / 2:.1f}" y="{y + 20}">{bar.label}</text>'


def _axis(longest_s: float, y: int) -> Iterator[str]:
    """Marks at round numbers of milliseconds."""
    rough = longest_s * 1e3 / 8
    power = 10.0 ** (len(str(int(rough))) - 1) if rough >= 1 else 0.1
    every = next(each * power for each in (1, 2, 5, 10) if each * power >= rough)
    at = 0.0
    while at <= longest_s * 1e3:
        x = LEFT + at / (longest_s * 1e3) * (WIDTH - LEFT)
        yield f'<line class="tick" x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{y}"/>'
        yield f'<text class="tick" x="{x:.1f}" y="{y + 16}">{at:g} ms</text>'
        at += every
