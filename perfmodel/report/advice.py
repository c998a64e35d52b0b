"""Advice in the terminal, and as one self-contained HTML page with its JSON beside it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
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
from perfmodel.scenario.sections.plan import Money
from perfmodel.scenario.source_map import SourceMap
from perfmodel.studies.advise.model import (
    Advice,
    NarrowGain,
    Proposed,
    StepsAtEnd,
    Touches,
    Trial,
    find_narrow_gains,
    joined_fields,
    to_json,
)
from perfmodel.studies.run.result import SizeResult
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
    point = advice.base
    relief = point.relief
    if relief is None:
        if point.limit == "compute":
            return "computing is the limit, nothing else costs more than 1 % of a step"
        return f"{point.bottleneck} holds you back"
    if relief.parts != ("network",):
        sentence = _LIMITS.get(relief.parts[0]) if len(relief.parts) == 1 else None
        return sentence or f"{point.bottleneck} hold you back together"
    at_nic = any("nic" in link.devices for link in point.limiting_links)
    if at_nic and advice.adapter_Bps is not None:
        rate = f"{advice.adapter_Bps * 8 / 1e9:g} Gbit/s"
        if advice.adapters == 1:
            return f"each server's {rate} adapter holds you back"
        return f"each server's {advice.adapters} adapters of {rate} hold you back"
    return f"the network between switches holds you back ({point.bottleneck})"


def headline(advice: Advice) -> str:
    """Say in one sentence what limits, and what to change first."""
    limit = limit_words(advice)
    best = advice.best
    if best is None:
        return f"{_upper(limit)}; none of the changes that were tried gains 1 %."
    names = {change.text for change in best.changes}
    alone = [trial for trial in advice.trials if trial.text in names]
    first = max(alone, key=lambda trial: trial.ratio, default=best)  # gains most alone
    verb = "save" if first.changes[0].is_plural else "saves"
    text = f"{_upper(limit)}; {named(first.changes[0])} {verb} {quantities.percent(first.saves)}"
    if len(best.changes) > 1:
        others = [named(each) for each in best.changes if each.text != first.changes[0].text]
        text += f", with {quantities.listed(others)} {quantities.percent(best.saves)}"
    doubt = "" if best.sure else ", though not surely"
    return f"{text} of the time per {advice.samples.unit}{doubt}."


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
    prices = [money(change.price) for change in changes if change.price is not None]
    rents = [f"{money(change.rent)} an hour" for change in changes if change.rent is not None]
    notes = dict.fromkeys(change.note for change in changes if change.note)
    return "; ".join([*prices, *rents, *notes]) or "nothing"


def proposals(advice: Advice) -> list[str]:
    """State each proposal that was simulated as a whole."""
    lines = []
    for trial in advice.together:
        point = trial.point
        assert point is not None
        computes = point.limit == "compute"
        then = "computing is the limit" if computes else f"the limit is {point.bottleneck}"
        lines.append(
            f"{_upper(LEVELS[trial.touches])}: {trial.text}: {gain_text(trial.ratio)} "
            f"{advice.samples.units} per second (80 % interval {gain_interval(trial)}), a step "
            f"takes {quantities.duration(point.step_time_s)} in "
            f"{quantities.size(point.memory.total_bytes)}; then {then}."
            f"{_cost_of_samples(advice, trial)}"
        )
    return lines


def narrow_gains(advice: Advice) -> list[str]:
    """Say of each such proposal how long steps are at both ends of what is uncertain."""
    return [_sentence(each) for each in find_narrow_gains(advice)]


def _sentence(reason: NarrowGain) -> str:
    (change,) = reason.alone.changes
    rest = " + ".join(each.text for each in reason.together.changes if each.text != change.text)
    quick = reason.least.base_s < reason.most.base_s
    first, second = map(_steps, (reason.least, reason.most)[:: 1 if quick else -1])
    return (
        f"Why {named(change)} gains less surely alone than with {rest}: the "
        f"{reason.origin.partition(' of ')[0]} is uncertain. At its quick end a step takes "
        f"{first}; at its slow end {second}."
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
    rents = [change.rent.amount for change in trial.changes if change.rent is not None]
    per_s = advice.hourly.amount / 3600
    before = per_s / advice.base.samples_per_s * 1e6
    after = (per_s + sum(rents) / 3600) / trial.point.samples_per_s * 1e6
    unit = advice.hourly.currency
    return (
        f" A million {advice.samples.units} cost {quantities.count(after)} {unit} of rent instead "
        f"of {quantities.count(before)}."
    )


def command(advice: Advice, trial: Trial) -> str:
    """The command that runs a proposal."""
    origin = advice.scenario.origin
    fields = {name: _written_at(origin.content, name) for name in origin.flags}
    fields |= joined_fields(trial.changes)
    flags = [
        f"--set '{name}={value if isinstance(value, str) else json.dumps(value)}'"
        for name, value in fields.items()
    ]
    return " ".join([f"perfmodel run {_typed_name(origin)}", *flags])


def _typed_name(origin: SourceMap) -> str:
    """A scenario's name, or its path where the name is that of no file or of another."""
    with suppress(InputError):
        if origin.file is None or str(find_file(origin.name, "scenarios")) == origin.file:
            return origin.name
    return shlex.quote(origin.file or origin.name)


def _written_at(content: Mapping[str, Any], field: str) -> Any:
    """The value of a dotted field that a flag gave."""
    value: Any = content
    for part in field.split("."):
        value = value[int(part)] if isinstance(value, list) else value.get(part)
    return value


def left_out(advice: Advice) -> list[str]:
    """Say what gains nothing, what fits no GPU and what no host, and what is not proposed."""
    idle = ", ".join(trial.text for trial in advice.trials if trial.ratio < 1.0 + MIN_GAIN)
    has = quantities.size(advice.base.memory.capacity_bytes)
    needs = [(trial.text, trial.memory) for trial in advice.too_big if trial.memory is not None]
    in_host = {text: memory for text, memory in needs if memory.fits_gpu and memory.overfull}
    gpu_needs = ", ".join(
        f"{text} ({quantities.size(memory.total_bytes)})"
        for text, memory in needs
        if not (memory.fits_gpu and memory.overfull)
    )
    host_needs = ", ".join(
        f"{text} ({quantities.host_memory(memory)})" for text, memory in in_host.items()
    )
    said = (
        ("Less than 1 %, or slower", idle),
        (f"Does not fit the {has} of a GPU, with CUDA and NCCL beside it", gpu_needs),
        ("Does not fit the host", host_needs),
        ("Not possible here", ", ".join(trial.text for trial in advice.refused)),
    )
    return [f"{what}: {which}." for what, which in said if which]


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
    notes = [*power_limits(advice), *left_out(advice), *narrow_gains(advice), INTERVALS]
    return [
        Paragraph(headline(advice), "headline"),
        Paragraph(as_it_is(advice)),
        *([changes_table(advice, advice.worth)] if advice.worth else []),
        *paragraphs(proposals(advice)),
        *([] if advice.best is None else [Paragraph(f"  {command(advice, advice.best)}")]),
        *paragraphs(notes, "note"),
    ]


MOST_BARS = 14
_ROW_PIXELS = 34

_COLOURS: dict[Touches, tuple[str, str]] = {
    "nothing": (WORK["backward"], "training as it is"),
    "rounding": (WORK["forward"], "as it is but for rounding"),
    "training": (WORK["communication"], "training changes"),
    "hardware": (WORK["host"], "other hardware"),
}


def draw_gains(advice: Advice) -> Drawing:
    """Draw the gain of changes alone and together, the largest on top, with 80 % intervals."""
    every = [*advice.trials, *(trial for trial in advice.together if len(trial.changes) > 1)]
    listed = sorted(every, key=lambda trial: -trial.ratio)[:MOST_BARS]
    return new_figure(
        90 + _ROW_PIXELS * max(1, len(listed)),
        [
            _gain_bars(places, listed, colour, name)
            for touches, (colour, name) in _COLOURS.items()
            if (places := [at for at, trial in enumerate(listed) if trial.touches == touches])
        ],
        **label_rows(list(map(_label, listed)), f"{advice.samples.units}/s, change in %"),
        bargap=0.35,
    )


def _gain_bars(
    places: Sequence[int], listed: Sequence[Trial], colour: str, name: str
) -> dict[str, Any]:
    """Describe the bars of changes that touch the same."""
    chosen = [listed[at] for at in places]
    gains = [100 * (trial.ratio - 1.0) for trial in chosen]
    intervals = [
        (trial.gain.interval if trial.gain else None) or (trial.ratio, trial.ratio)
        for trial in chosen
    ]
    ends = [(100 * (low - 1.0), 100 * (high - 1.0)) for low, high in intervals]
    hover = [
        f"<b>{escape(trial.text, quote=False)}</b><br>{gain_text(trial.ratio)} "
        f"(80 % interval {gain_interval(trial)})<br>{escape(costs(trial), quote=False)}"
        for trial in chosen
    ]
    error_x = error_bars(gains, ends) | {"color": INK, "thickness": 1.2, "width": 4}
    return bars(name, gains, places, colour, hover, orientation="h", error_x=error_x)


def _label(trial: Trial) -> str:
    """Name one change, or what several together touch, which tells proposals apart."""
    if len(trial.changes) == 1:
        return short_label(trial.text)
    return f"<b>{short_label(f'{len(trial.changes)} together: {_COLOURS[trial.touches][1]}')}</b>"


ALONE = "Sorted by gain; bars end where the simulation does, lines hold 80 % of what is uncertain."


def advice_html(advice: Advice) -> str:
    """Build the page as one string."""
    setting, best, together = f"{advice.workload} on {advice.machine}", advice.best, None
    figure = Figure(draw_gains(advice), "gains", "Gain of each change, with its 80 % interval")
    if best is not None:
        together = section(
            "What to do",
            "Changes that belong together, each proposal simulated as a whole.",
            Bullets(proposals(advice)),
            Code("\n".join(command(advice, trial) for trial in advice.together)),
        )
    return render_html(
        f"What to change: {setting}",
        [
            header(
                setting,
                headline(advice),
                [PREDICTED],
                [advice.scenario.question],
                [as_it_is(advice)],
            ),
            None if best is None or best.point is None else _tiles(advice, best, best.point),
            together,
            section("Each change alone", ALONE, figure, changes_table(advice, advice.trials)),
            bullets_section("Power", power_limits(advice)),
            section("What is left out", "", Bullets(left_out(advice))),
            grounds([*narrow_gains(advice), INTERVALS], dict(advice.provenance)),
        ],
    )


def _tiles(advice: Advice, best: Trial, point: SizeResult) -> Tiles:
    now, surely = advice.base, "80 % interval" if best.sure else "not surely a gain"
    duration, size = quantities.duration, quantities.size
    held, held_now = size(point.memory.total_bytes), size(now.memory.total_bytes)
    return Tiles(
        [
            Tile("Best proposal", gain_text(best.ratio), f"{surely} {gain_interval(best)}"),
            Tile("Step time", duration(point.step_time_s), f"now {duration(now.step_time_s)}"),
            Tile("Memory per GPU", held, f"now {held_now}"),
            Tile("Bottleneck then", point.bottleneck, f"now {now.bottleneck}", "text"),
        ]
    )


FILES = {"advice.html": advice_html, "advice.json": to_json}
"""Files of an advice, and what makes them."""
