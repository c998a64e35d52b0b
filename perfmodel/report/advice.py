"""Advice in the terminal, and as one self-contained HTML page with its JSON beside it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from html import escape
from typing import Any

from perfmodel.errors import InputError
from perfmodel.files import find_file
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    PREDICTED,
    Block,
    Bullets,
    Code,
    Figure,
    Paragraph,
    Table,
    Tile,
    Tiles,
    bullets_section,
    for_ranks_of,
    grounds,
    header,
    paragraphs,
    section,
    tabulate,
)
from perfmodel.report.common.figures import (
    Drawing,
    bars,
    error_bars,
    label_rows,
    new_figure,
    short_label,
)
from perfmodel.report.common.html import render_html
from perfmodel.report.common.palette import INK, WORK
from perfmodel.report.common.spreadsheet import SPREADSHEET, spreadsheet
from perfmodel.report.common.words import words_blocks, words_section
from perfmodel.scenario.sections.plan import Money
from perfmodel.scenario.source_map import SourceMap, format_value
from perfmodel.studies.advise.model import (
    Advice,
    Proposed,
    StepsAtEnd,
    Touches,
    Trial,
    find_narrow_gains,
    joined_fields,
    to_json,
)
from perfmodel.studies.run.result import SizeResult
from perfmodel.studies.run.steps.reliefs import join_words
from perfmodel.studies.tune.model import MIN_GAIN

_LIMITS = {
    "NVLink": "NVLink inside each server holds you back",
    "PCIe": "PCIe inside each server holds you back",
    "links of CPUs": "the link between each server's CPUs holds you back",
    "host memory": "each server's memory, through which copies go, holds you back",
    "latency": "the latency of many small messages holds you back",
    "the library's own rates": "the communication library itself holds you back",
    "launching kernels": "the CPU holds you back, which launches one kernel after the other",
    "communication": "communication holds you back, by no single part of it",
    "updates": "the servers' updates hold you back",
}
"""Sentence for each part of the machine that may be the limit."""

LEVELS = {
    "nothing": "training stays as it is",
    "rounding": "training stays as it is but for rounding",
    "training": "training changes: watch the loss",
    "hardware": "needs other hardware",
}

INTERVALS = (
    "Gains are samples per second over those of the scenario. Their 80 % intervals compare like "
    "ends with like: what both steps share, such as the error of a model's compute time, cancels "
    "in them. How well a change itself is modelled (what torch.compile fuses, what a cast costs) "
    "is not in them: measure a step before you rely on a gain of a few per cent."
)


def limit_words(advice: Advice) -> str:
    """Say what holds the scenario back, as one would of each server."""
    point, relief = advice.base, advice.base.relief
    if relief is None:
        return (
            "computing is the limit, nothing else costs more than 1 % of a step"
            if point.limit == "compute"
            else f"{point.bottleneck} holds you back"
        )
    if relief.parts != ("network",):
        together = f"{point.bottleneck} hold you back together"
        return _LIMITS.get(relief.parts[0], together) if len(relief.parts) == 1 else together
    at_nic = any("nic" in link.devices for link in point.limiting_links)
    if advice.adapter_Bps is None or not at_nic:
        return f"the network between switches holds you back ({point.bottleneck})"
    rate = f"{advice.adapter_Bps * 8 / 1e9:g} Gbit/s"
    if advice.adapters == 1:
        return f"each server's {rate} adapter holds you back"
    return f"each server's {advice.adapters} adapters of {rate} hold you back"


def headline(advice: Advice) -> str:
    """Say in one sentence what limits, and what to change first."""
    limit, best = _upper(limit_words(advice)), advice.best
    if best is None:
        return f"{limit}; none of the changes that were tried gains 1 %."
    alone = (t for t in advice.trials if t.text in {change.text for change in best.changes})
    first = max(alone, key=lambda trial: trial.ratio, default=best)  # gains most alone
    change = first.changes[0]
    others = [named(each) for each in best.changes if each.text != change.text]
    together = f", with {join_words(others)} {quantities.percent(best.saves)}"
    return (
        f"{limit}; {named(change)} {'save' if change.is_plural else 'saves'} "
        f"{quantities.percent(first.saves)}{together if len(best.changes) > 1 else ''} of the time "
        f"per {advice.samples.unit}{'' if best.sure else ', though not surely'}."
    )


def named(change: Proposed) -> str:
    """Name a change within a sentence: "the fp16 hook"."""
    return f"the {change.text}" if change.takes_article else change.text


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def gain_text(ratio: float) -> str:
    """Write a gain of throughput with its sign.

    Examples
    --------
    >>> [gain_text(ratio).replace(chr(160), " ") for ratio in (1.66, 1.0)]
    ['+66 %', 'same']
    """
    return "same" if abs(ratio - 1.0) < 5e-4 else quantities.signed(ratio - 1.0, quantities.percent)


def gain_interval(trial: Trial) -> str:
    """Write the ends of a gain."""
    if trial.gain is None or trial.gain.interval is None:
        return "not known"
    return " to ".join(dict.fromkeys(map(gain_text, trial.gain.interval)))


def changes_table(advice: Advice, trials: Sequence[Trial]) -> Table:
    """One row per change: its gain, the memory that it takes, and what else it costs."""
    return tabulate(
        (trial for trial in trials if trial.point is not None),
        (
            ("change", lambda trial: trial.text),
            (f">{advice.samples.units}/s", lambda trial: gain_text(trial.ratio)),
            (">80 % interval", gain_interval),
            (">step", lambda trial: quantities.duration(trial.point.step_time_s)),
            (">memory", lambda trial: quantities.size(trial.point.memory.total_bytes)),
            ("costs", costs),
        ),
        ruled=False,
    )


def costs(trial: Trial) -> str:
    """What changes cost beside memory."""

    def money(amount: Money) -> str:
        return f"{amount.amount:,.10g} {amount.currency}"

    changes = trial.changes
    said = [
        *(money(change.price) for change in changes if change.price is not None),
        *(f"{money(change.rent)} an hour" for change in changes if change.rent is not None),
        *dict.fromkeys(change.note for change in changes if change.note),
    ]
    return "; ".join(said) or "nothing"


def proposals(advice: Advice) -> Iterator[str]:
    """State each proposal that was simulated as a whole."""
    for trial in advice.together:
        point = trial.point
        assert point is not None
        computes = point.limit == "compute"
        yield (
            f"{_upper(LEVELS[trial.touches])}: {trial.text}: {gain_text(trial.ratio)} "
            f"{advice.samples.units} per second (80 % interval {gain_interval(trial)}), a step "
            f"takes {quantities.duration(point.step_time_s)} in "
            f"{quantities.size(point.memory.total_bytes)}; then "
            f"{'computing is the limit' if computes else f'the limit is {point.bottleneck}'}."
            f"{_cost_of_samples(advice, trial)}"
        )


def narrow_gains(advice: Advice) -> Iterator[str]:
    """Say of each such proposal how long steps are at both ends of what is uncertain."""
    for reason in find_narrow_gains(advice):
        (change,) = reason.alone.changes
        rest = " + ".join(each.text for each in reason.together.changes if each.text != change.text)
        quick, slow = map(_steps, sorted((reason.least, reason.most), key=lambda end: end.base_s))
        yield (
            f"Why {named(change)} gains less surely alone than with {rest}: the "
            f"{reason.origin.partition(' of ')[0]} is uncertain. At its quick end a step takes "
            f"{quick}; at its slow end {slow}."
        )


def _steps(end: StepsAtEnd) -> str:
    base, alone, together = map(quantities.duration, (end.base_s, end.alone_s, end.together_s))
    return (
        f"{base} as it is, {alone} with that change ({gain_text(end.alone)}), {together} with all "
        f"({gain_text(end.together)})"
    )


def power_limits(advice: Advice) -> list[str]:
    """Say what limits on the power of boards would save and cost, where that is worth it."""
    limits = "; ".join(
        f"{trial.text}: {gain_text(trial.ratio)} {advice.samples.units} per second for "
        f"{quantities.percent(1 - advice.energy_ratio(trial))} less energy of each"
        for trial in advice.thrifty
    )
    counted = "boards counted at what they may draw; cluster.node.power_limit"
    return [f"To save energy: {limits} ({counted})."] if limits else []


def _cost_of_samples(advice: Advice, trial: Trial) -> str:
    """What a million samples cost, where the scenario states what an hour does."""
    if advice.hourly is None or trial.point is None:
        return ""
    now = advice.hourly.amount
    then = now + sum(change.rent.amount for change in trial.changes if change.rent is not None)
    before, after = (
        quantities.count(hourly / 3600 / point.samples_per_s * 1e6)
        for hourly, point in ((now, advice.base), (then, trial.point))
    )
    return (
        f" A million {advice.samples.units} cost {after} {advice.hourly.currency} of rent instead "
        f"of {before}."
    )


def command(advice: Advice, trial: Trial) -> str:
    """The command that runs a proposal."""
    origin = advice.scenario.origin
    return " ".join(
        [
            f"perfmodel run {_typed_name(origin)}",
            *(
                f"--set '{name}={format_value(value)}'"
                for name, value in (origin.changes | joined_fields(trial.changes)).items()
            ),
        ]
    )


def _typed_name(origin: SourceMap) -> str:
    """A scenario's name, or its path where the name is that of no file or of another."""
    with suppress(InputError):
        if origin.file is None or str(find_file(origin.name, "scenarios")) == origin.file:
            return origin.name
    return shlex.quote(origin.file or origin.name)


def left_out(advice: Advice) -> list[str]:
    """Say what gains nothing, what fits no GPU and what no host, and what is not proposed."""
    has = quantities.size(advice.base.memory.capacity_bytes)
    needs = [(trial.text, trial.memory) for trial in advice.too_big if trial.memory is not None]
    said = (
        (
            "Less than 1 %, or slower",
            [trial.text for trial in advice.trials if trial.ratio < 1.0 + MIN_GAIN],
        ),
        (
            f"Does not fit the {has} of a GPU, with its runtime beside it",
            [
                f"{text} ({quantities.size(memory.total_bytes)})"
                for text, memory in needs
                if not (memory.fits_gpu and memory.overfull)
            ],
        ),
        (
            "Does not fit the host",
            [
                f"{text} ({quantities.host_memory(memory)})"
                for text, memory in needs
                if memory.fits_gpu and memory.overfull
            ],
        ),
        ("Not possible here", [trial.text for trial in advice.refused]),
    )
    return [f"{what}: {', '.join(which)}." for what, which in said if which]


def as_it_is(advice: Advice) -> str:
    """Describe the scenario as it is."""
    point = advice.base
    imagined = " It does not fit its GPUs: gains are over an imagined step."
    return (
        f"As it is: {quantities.gpus(point.gpus)}, {quantities.count(point.samples_per_s)} "
        f"{advice.samples.units}/s, a step takes {quantities.duration(point.step_time_s)}, "
        f"{quantities.waiting(point)}; bottleneck: {point.bottleneck}."
        f"{'' if point.memory.fits else imagined}"
    )


def advice_lines(advice: Advice) -> list[Block]:
    """Arrange advice for the terminal."""
    return for_ranks_of(
        advice.topology,
        [
            Paragraph(headline(advice), "headline"),
            Paragraph(as_it_is(advice)),
            *([changes_table(advice, advice.worth)] if advice.worth else []),
            *paragraphs(proposals(advice)),
            *([] if advice.best is None else [Code(command(advice, advice.best))]),
            *words_blocks(advice.words),
            *paragraphs(
                [
                    *power_limits(advice),
                    *left_out(advice),
                    *narrow_gains(advice),
                    INTERVALS,
                    quantities.rests_on(advice.base),
                ],
                "note",
            ),
        ],
    )


MOST_BARS = 14
_ROW_PIXELS = 34

_COLOURS: dict[Touches, tuple[str, str]] = {
    "nothing": (WORK["backward"], "training as it is"),
    "rounding": (WORK["forward"], "as it is but for rounding"),
    "training": (WORK["communication"], "training changes"),
    "hardware": (WORK["host"], "other hardware"),
}


def draw_gains(advice: Advice) -> Drawing:
    """Draw the gain of changes alone and together, the largest on top, with 80 % intervals.

    Of changes together the label says what they touch, which tells proposals apart.
    """
    every = [*advice.trials, *(trial for trial in advice.together if len(trial.changes) > 1)]
    listed = sorted(every, key=lambda trial: -trial.ratio)[:MOST_BARS]
    labels = [
        short_label(trial.text)
        if len(trial.changes) == 1
        else f"<b>{short_label(f'{len(trial.changes)} together: {_COLOURS[trial.touches][1]}')}</b>"
        for trial in listed
    ]
    return new_figure(
        90 + _ROW_PIXELS * max(1, len(listed)),
        [
            _gain_bars(own, colour, name)
            for touches, (colour, name) in _COLOURS.items()
            if (own := {at: trial for at, trial in enumerate(listed) if trial.touches == touches})
        ],
        **label_rows(labels, f"{advice.samples.units}/s, change in %"),
        bargap=0.35,
    )


def _gain_bars(chosen: Mapping[int, Trial], colour: str, name: str) -> dict[str, Any]:
    """Describe the bars of changes that touch the same, by their place from the top."""
    gains = [100 * (trial.ratio - 1.0) for trial in chosen.values()]
    ends = [
        [
            100 * (end - 1.0)
            for end in (trial.gain.interval if trial.gain else None) or [trial.ratio] * 2
        ]
        for trial in chosen.values()
    ]
    return bars(
        name,
        gains,
        list(chosen),
        colour,
        [
            f"<b>{escape(trial.text, quote=False)}</b><br>{gain_text(trial.ratio)} "
            f"(80 % interval {gain_interval(trial)})<br>{escape(costs(trial), quote=False)}"
            for trial in chosen.values()
        ],
        orientation="h",
        error_x=error_bars(gains, ends) | {"color": INK, "thickness": 1.2, "width": 4},
    )


ALONE = "Sorted by gain; bars end where the simulation does, lines hold 80 % of what is uncertain."


def advice_html(advice: Advice) -> str:
    """Build the page as one string."""
    setting, best = f"{advice.workload} on {advice.machine}", advice.best
    return render_html(
        f"What to change: {setting}",
        for_ranks_of(
            advice.topology,
            [
                header(
                    setting,
                    headline(advice),
                    [PREDICTED],
                    [advice.scenario.question],
                    [as_it_is(advice)],
                ),
                None if best is None or best.point is None else _tiles(advice, best, best.point),
                None
                if best is None
                else section(
                    "What to do",
                    "Changes that belong together, each proposal simulated as a whole.",
                    Bullets(list(proposals(advice))),
                    Code("\n".join(command(advice, trial) for trial in advice.together)),
                ),
                words_section(advice.words),
                section(
                    "Each change alone",
                    ALONE,
                    Figure(
                        draw_gains(advice), "gains", "Gain of each change, with its 80 % interval"
                    ),
                    changes_table(advice, advice.trials),
                ),
                bullets_section("Power", power_limits(advice)),
                section("What is left out", "", Bullets(left_out(advice))),
                grounds(
                    [*narrow_gains(advice), INTERVALS, quantities.rests_on(advice.base)],
                    dict(advice.provenance),
                ),
            ],
        ),
    )


def _tiles(advice: Advice, best: Trial, point: SizeResult) -> Tiles:
    now, surely = advice.base, "80 % interval" if best.sure else "not surely a gain"
    step, step_now = (quantities.duration(each.step_time_s) for each in (point, now))
    held, held_now = (quantities.size(each.memory.total_bytes) for each in (point, now))
    return Tiles(
        [
            Tile("Best proposal", gain_text(best.ratio), f"{surely} {gain_interval(best)}"),
            Tile("Step time", step, f"now {step_now}"),
            Tile("Memory per GPU", held, f"now {held_now}"),
            Tile("Bottleneck then", point.bottleneck, f"now {now.bottleneck}", "text"),
        ]
    )


FILES = {
    "advice.html": advice_html,
    "advice.json": to_json,
    SPREADSHEET: lambda answer: spreadsheet(to_json(answer)),
}
"""Files of an advice, and what makes them."""
