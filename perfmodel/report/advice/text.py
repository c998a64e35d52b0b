"""Advice as sentences and tables: what a colleague would say."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from perfmodel.errors import InputError
from perfmodel.files import find_file
from perfmodel.report.common import quantities
from perfmodel.report.common.document import Block, Paragraph, Table, paragraphs
from perfmodel.scenario.sections.studies.money import Money
from perfmodel.scenario.source_map import SourceMap
from perfmodel.studies.advise.model import (
    WORTH,
    Advice,
    NarrowGain,
    Proposed,
    StepsAtEnd,
    Trial,
    find_narrow_gains,
    joined_fields,
)

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
    first = _first_of(advice, best)
    text = f"{_upper(limit)}; {named(first.changes[0])} {_saving(first)}"
    if len(best.changes) > 1:
        others = [named(each) for each in best.changes if each.text != first.changes[0].text]
        text += f", with {_listed(others)} {quantities.percent(best.saves)}"
    doubt = "" if best.sure else ", though not surely"
    return f"{text} of the time per {advice.samples.unit}{doubt}."


def _first_of(advice: Advice, best: Trial) -> Trial:
    """The change of a proposal that gains most alone."""
    names = {change.text for change in best.changes}
    alone = [trial for trial in advice.trials if trial.text in names]
    return max(alone, key=lambda trial: trial.ratio, default=best)


def _saving(trial: Trial) -> str:
    verb = "save" if trial.changes[0].is_plural else "saves"
    return f"{verb} {quantities.percent(trial.saves)}"


def named(change: Proposed) -> str:
    """Name a change within a sentence: "the fp16 hook"."""
    return f"the {change.text}" if change.takes_article else change.text


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def gain_text(ratio: float) -> str:
    """Write a gain of throughput with its sign.

    Examples
    --------
    >>> [gain_text(ratio).replace(chr(160), " ") for ratio in (1.66, 1.0)]
    ['+66 %', 'same']
    """
    if abs(ratio - 1.0) < 5e-4:
        return "same"
    sign = "+" if ratio > 1.0 else "\N{MINUS SIGN}"
    return f"{sign}{quantities.percent(abs(ratio - 1.0))}"


def gain_interval(trial: Trial) -> str:
    """Write the ends of a gain."""
    if trial.gain is None or trial.gain.interval is None:
        return "not known"
    low, high = trial.gain.interval
    if gain_text(low) == gain_text(high):
        return gain_text(low)
    return f"{gain_text(low)} to {gain_text(high)}"


def changes_table(advice: Advice, trials: Sequence[Trial]) -> Table:
    """One row per change: its gain, the memory that it takes, and what else it costs."""
    rows = [
        (
            trial.text,
            gain_text(trial.ratio),
            gain_interval(trial),
            quantities.duration(trial.point.step_time_s),
            quantities.size(trial.point.memory.total_bytes),
            costs(trial),
        )
        for trial in trials
        if trial.point is not None
    ]
    rate = f">{advice.samples.units}/s"
    header = ("change", rate, ">80 % interval", ">step", ">memory", "costs")
    return Table(header, rows, ruled=False)


def costs(trial: Trial) -> str:
    """What changes cost beside memory."""
    notes = [note for note in dict.fromkeys(change.note for change in trial.changes) if note]
    prices = [_money(change.price) for change in trial.changes if change.price is not None]
    rents = [f"{_money(c.rent)} an hour" for c in trial.changes if c.rent is not None]
    return "; ".join([*prices, *rents, *notes]) or "nothing"


def _money(money: Money) -> str:
    return f"{money.amount:,.10g} {money.currency}"


def proposals(advice: Advice) -> list[str]:
    """State each proposal that was simulated as a whole."""
    lines = []
    for trial in advice.together:
        assert trial.point is not None
        step = quantities.duration(trial.point.step_time_s)
        line = (
            f"{_upper(LEVELS[trial.touches])}: {trial.text}: {gain_text(trial.ratio)} "
            f"{advice.samples.units} per second (80 % interval {gain_interval(trial)}), a step "
            f"takes {step} in {quantities.size(trial.point.memory.total_bytes)}; then "
            f"{_then(trial)}."
        )
        lines.append(line + _cost_of_samples(advice, trial))
    return lines


def narrow_gains(advice: Advice) -> list[str]:
    """Say of each such proposal how long steps are at both ends of what is uncertain."""
    return [_sentence(each) for each in find_narrow_gains(advice)]


def _sentence(reason: NarrowGain) -> str:
    (change,) = reason.alone.changes
    rest = [each.text for each in reason.together.changes if each.text != change.text]
    quick = reason.least.base_s < reason.most.base_s
    ends = (reason.least, reason.most) if quick else (reason.most, reason.least)
    first, second = map(_steps, ends)
    return (
        f"Why {named(change)} gains less surely alone than with {' + '.join(rest)}: the "
        f"{_short(reason.origin)} is uncertain. At its quick end a step takes {first}; at its slow "
        f"end {second}."
    )


def _short(origin: str) -> str:
    """What is uncertain, without of which machine or model."""
    return origin.partition(" of ")[0]


def _steps(end: StepsAtEnd) -> str:
    base, alone, together = map(quantities.duration, (end.base_s, end.alone_s, end.together_s))
    return (
        f"{base} as it is, {alone} with that change ({gain_text(end.alone)}), {together} with all "
        f"({gain_text(end.together)})"
    )


def power_limits(advice: Advice) -> list[str]:
    """Say what limits on the power of boards would save and cost, where that is worth it."""
    lines = [
        f"{trial.text}: {gain_text(trial.ratio)} {advice.samples.units} per second for "
        f"{quantities.percent(1 - advice.energy_ratio(trial))} less energy of each"
        for trial in advice.thrifty
    ]
    if not lines:
        return []
    counted = "boards counted at what they may draw; cluster.node.power_limit"
    return [f"To save energy: {'; '.join(lines)} ({counted})."]


def _then(trial: Trial) -> str:
    assert trial.point is not None
    if trial.point.limit == "compute":
        return "computing is the limit"
    return f"the limit is {trial.point.bottleneck}"


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
    flags = [f"--set '{name}={_written(value)}'" for name, value in fields.items()]
    return " ".join([f"perfmodel run {_typed_name(origin)}", *flags])


def _typed_name(origin: SourceMap) -> str:
    """A scenario's name, or its path where the name is that of no file or of another."""
    if origin.file is None or str(_found(origin.name)) == origin.file:
        return origin.name
    return shlex.quote(origin.file)


def _found(name: str) -> Path | None:
    try:
        return find_file(name, "scenarios")
    except InputError:
        return None


def _written_at(content: Mapping[str, Any], field: str) -> Any:
    """The value of a dotted field that a flag gave."""
    value: Any = content
    for part in field.split("."):
        value = value[int(part)] if isinstance(value, list) else value.get(part)
    return value


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def left_out(advice: Advice) -> list[str]:
    """Say what gains nothing, and what is not proposed."""
    lines = []
    idle = [trial.text for trial in advice.trials if trial.ratio < 1.0 + WORTH]
    if idle:
        lines.append(f"Less than 1 %, or slower: {', '.join(idle)}.")
    lines += _too_big(advice)
    if advice.refused:
        lines.append(f"Not possible here: {', '.join(trial.text for trial in advice.refused)}.")
    return lines


def _too_big(advice: Advice) -> Iterator[str]:
    """Say what fits no GPU and what fits no host; each change is named with what it needs."""
    needs = [(trial.text, trial.memory) for trial in advice.too_big if trial.memory is not None]
    has = quantities.size(advice.base.memory.capacity_bytes)
    for_gpu = [
        f"{text} ({quantities.size(memory.total_bytes)})"
        for text, memory in needs
        if not (memory.fits_gpu and memory.overfull)
    ]
    for_host = [
        f"{text} ({quantities.host_memory(memory)})"
        for text, memory in needs
        if memory.fits_gpu and memory.overfull
    ]
    if for_gpu:
        listed = ", ".join(for_gpu)
        yield f"Does not fit the {has} of a GPU, with CUDA and NCCL beside it: {listed}."
    if for_host:
        yield f"Does not fit the host: {', '.join(for_host)}."


def as_it_is(advice: Advice) -> str:
    """Describe the scenario as it is."""
    point = advice.base
    rate = f"{quantities.count(point.samples_per_s)} {advice.samples.units}/s"
    fits = (
        "" if point.memory.fits else " It does not fit its GPUs: gains are over an imagined step."
    )
    return (
        f"As it is: {quantities.gpus(point.gpus)}, {rate}, a step takes "
        f"{quantities.duration(point.step_time_s)}, {quantities.waiting(point)}; bottleneck: "
        f"{point.bottleneck}.{fits}"
    )


def advice_lines(advice: Advice) -> list[Block]:
    """Arrange advice for the terminal."""
    blocks: list[Block] = [Paragraph(headline(advice), "headline"), Paragraph(as_it_is(advice))]
    if advice.worth:
        blocks.append(changes_table(advice, advice.worth))
    blocks += paragraphs(proposals(advice))
    if advice.best is not None:
        blocks.append(Paragraph(f"  {command(advice, advice.best)}"))
    notes = [*power_limits(advice), *left_out(advice), *narrow_gains(advice), INTERVALS]
    return [*blocks, *paragraphs(notes, "note")]
