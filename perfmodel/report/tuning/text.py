"""Sentences and tables about tuned buckets; the page and the terminal say the same."""

from __future__ import annotations

import math

from perfmodel.report.common import quantities
from perfmodel.report.common.document import Block, Paragraph, Table, paragraphs
from perfmodel.report.tuning.export import shared_snippet, snippet
from perfmodel.studies.tune.caps import format_caps, number
from perfmodel.studies.tune.model import WORTH, Choice, Horovod, MinimaxCap, Spans, TuneResult
from perfmodel.training.ddp.options import MIB

SLIVER = 0.02
"""Gaps between equally good caps that are narrower than this share of the cap are ignored."""
MOST_SPANS = 3
NETWORK_BOUND = 0.1
"""Share of the step that exposed communication is at least, and of which buckets save less, where
the network is named as the limit."""
SLIGHT = WORTH / 2
"""Difference of regrets that is no reason to leave the default."""
ROUNDING = 5e-5
"""Relative change below which there is none."""
INTERVAL = "80\N{NO-BREAK SPACE}% interval"


def headline(tuned: TuneResult) -> str:
    """State in one sentence what to do about the buckets; where it matters, that it is little."""
    where = f"{tuned.workload} on {quantities.gpus(tuned.gpus)} ({tuned.machine})"
    return f"{where}: {_verdict(tuned)}.{_limit(tuned)}"


def answer(tuned: TuneResult) -> tuple[str, str]:
    """The same for a page, which names the training above: what to do, and what limits it."""
    verdict = _verdict(tuned)
    return f"{verdict[:1].upper()}{verdict[1:]}.", _limit(tuned).strip()


def _verdict(tuned: TuneResult) -> str:
    default, best = tuned.default.step_time_s, tuned.best_list.step_time_s
    takes, gain = f"a step takes {fine(default)}", 1.0 - best / default
    recommended = tuned.recommended
    if recommended.own is not None:
        own_s = recommended.own.step_time_s
        return (
            f"the scenario's own buckets are as good as any, keep them; a step takes {fine(own_s)}"
        )
    if not recommended.keep:
        chosen = recommended.choices[0]
        better = f"{_percent(chosen.gains[0])} less than with PyTorch's default"
        return f"with {_setting(chosen)} a step takes {fine(chosen.step_time_s)}, {better}"
    if tuned.requested is not None:
        worse = f"of {fine(tuned.requested.step_time_s)} with the scenario's own"
        doubt = "" if recommended.unsure is None else f"; {_doubt(recommended.unsure)}"
        return f"use PyTorch's default buckets; {takes} instead {worse}{doubt}"
    if gain < ROUNDING:
        return f"PyTorch's default buckets are as good as any; {takes}"
    if recommended.unsure is None:
        saved = f"the best list of caps would save {_percent(gain)} of it"
        return f"PyTorch's default buckets are as good, keep them; {takes}, and {saved}"
    return f"keep PyTorch's default buckets; {takes}, and {_doubt(recommended.unsure)}"


def _setting(choice: Choice) -> str:
    if choice.bucket_cap_mb_list is not None:
        return "the best list of caps"
    return f"{number(choice.bucket_cap_mb or 0.0)} MiB buckets"


def _doubt(unsure: Choice) -> str:
    """Why a setting that is quicker on the likely network is not recommended."""
    saves = f"{_setting(unsure)} would save {_percent(unsure.gains[0])} on the likely network"
    nearby = min(unsure.gains_nearby, default=math.inf)
    if nearby <= min(0.0, *unsure.gains):
        worse = f"may cost {_percent(-nearby)} with 2 % of bandwidth or 3 % of delay more or less"
        return f"{saves} but {worse}, where messages meet in another order"
    if min(unsure.gains) > 0:
        return f"{saves}, give or take {_percent(unsure.noise)}"
    at = "quicker" if unsure.gains[1] == min(unsure.gains) else "slower"
    return f"{saves} but may cost {_percent(-min(unsure.gains))} on a {at} one"


def _limit(tuned: TuneResult) -> str:
    """Say that the network is the limit where buckets hide little of what is waited for it."""
    default, best = tuned.default, tuned.best_list
    saved_s = default.step_time_s - best.step_time_s
    waits = default.exposed_comm_s >= NETWORK_BOUND * default.step_time_s
    if not waits or saved_s >= NETWORK_BOUND * default.exposed_comm_s:
        return ""
    exposed = quantities.duration(default.exposed_comm_s)
    return (
        f" The network is the limit: a step waits {exposed} for it, of which no buckets that were "
        f"found save more than {quantities.duration(saved_s) if saved_s > 0 else 'nothing'}."
    ).replace("save more than nothing", "save anything")


def _percent(fraction: float) -> str:
    if 0 <= fraction < 5e-5:
        return "0\N{NO-BREAK SPACE}%"
    return f"{100 * fraction:.2g}\N{NO-BREAK SPACE}%"


def settings_table(tuned: TuneResult) -> Table:
    """Each setting with its figures."""
    whole = tuned.best_integer_list
    settings = [
        ("PyTorch's default: 1, then 25", tuned.default),
        ("the scenario's own", tuned.requested),
        (f"best cap for all: {caps(tuned.best_uniform)}", tuned.best_uniform),
        (f"best list: {caps(tuned.best_list)}", tuned.best_list),
    ]
    if whole.bucket_cap_mb_list != tuned.best_list.bucket_cap_mb_list:
        settings.append((f"best list of whole MiB: {caps(whole)}", whole))
    rows = [
        (
            name,
            fine(choice.step_time_s),
            quantities.duration(choice.exposed_comm_s),
            change(choice.step_time_s / tuned.default.step_time_s - 1.0),
            f"{len(choice.buckets)}",
            quantities.duration(choice.first_step_time_s),
        )
        for name, choice in settings
        if choice is not None
    ]
    if tuned.lower_bound_s is not None:
        bound_s = tuned.lower_bound_s
        below = change(bound_s / tuned.default.step_time_s - 1.0)
        rows.append(("lower bound: no buckets beat it", fine(bound_s), "", below, "", ""))
    header = ("setting", ">step", ">exposed", ">to default", ">buckets", ">first step")
    return Table(header, rows, ruled=False)


def fine(time_s: float) -> str:
    """Write a step time with four digits: settings often differ by less than the third.

    Examples
    --------
    >>> fine(0.18932).replace(chr(160), " ")
    '189.3 ms'
    """
    return quantities.duration(time_s, digits=4)


def slower(fraction: float) -> str:
    """Write how much longer something takes.

    Examples
    --------
    >>> slower(0.0), slower(0.0142).replace(chr(160), " ")
    ('just as quick', '1.4 % slower')
    """
    return "just as quick" if fraction < ROUNDING else f"{_percent(fraction)} slower"


def change(fraction: float) -> str:
    """Write a relative change with its sign."""
    if abs(fraction) < ROUNDING:
        return "same"
    digits = 2 if abs(fraction) < 0.01 else 1
    return quantities.signed(100 * fraction, f"{{:.{digits}f}}\N{NO-BREAK SPACE}%".format)


def caps(choice: Choice) -> str:
    """Caps in MiB, as one would type them; long lists are cut."""
    if choice.bucket_cap_mb_list is not None:
        values = choice.bucket_cap_mb_list
        if len(values) <= 8:
            return format_caps(values)
        return f"{format_caps(values[:6])[:-1]}, ... {len(values) - 6} more]"
    return "default" if choice.bucket_cap_mb is None else number(choice.bucket_cap_mb)


def advice(tuned: TuneResult) -> tuple[str, ...]:
    """Say which caps for all are as good as the best, which is safe, what the default loses."""
    within = quantities.percent(tuned.plateau.within)
    lines = [f"Caps within {within} of the best cap: {spans(tuned.plateau.spans_mb)}."]
    if tuned.recommended.unsure is not None and not tuned.recommended.keep:
        lines.append(f"Not recommended: {_doubt(tuned.recommended.unsure)}.")
    return (*lines, *_robust_sentence(tuned), _default_sentence(tuned))


def _robust_sentence(tuned: TuneResult) -> tuple[str, ...]:
    """Say which cap for all is safe, which may be the default's buckets."""
    robust = tuned.robust
    if robust is None:
        return ()
    condition = f"If the network is as quick or as slow as its {INTERVAL} allows"
    if max(tuned.default_regrets) <= robust.worst_regret + SLIGHT:
        return (f"{condition}, no cap for all is safer than PyTorch's default.",)
    worst = robust.worst_regret
    loses = "nothing" if worst < ROUNDING else f"at most {_percent(worst)}"
    cap = number(robust.bucket_cap_mb)
    return (f"{condition}: {cap} MiB; it loses {loses} to the cap that is best then.",)


def _default_sentence(tuned: TuneResult) -> str:
    likely, *others = tuned.default_regrets
    text = f"PyTorch's default (1, then 25 MiB) {_default_loss(likely)}"
    if not others:
        return f"{text}."
    most = max(tuned.default_regrets)
    if most < ROUNDING:
        return f"{text}, nor anywhere in that interval of the network."
    return f"{text}; it may lose up to {_percent(most)} within that interval of the network."


def _default_loss(regret: float) -> str:
    if regret < -ROUNDING:
        return f"is {_percent(-regret)} quicker than the best cap"
    if regret < ROUNDING:
        return "loses nothing to the best cap"
    return f"loses {_percent(regret)} to the best cap"


def spans(equal: Spans) -> str:
    """Write spans of caps in MiB by growing cap; of many only the widest."""
    wide = wide_spans(equal)
    if wide[0][0] * MIB <= 1.0 and math.isinf(wide[0][1]):
        return "any"
    text = "; ".join(mb_span(*span) for span in sorted(wide[:MOST_SPANS]))
    more = len(wide) - MOST_SPANS
    narrower = f", and {more} narrower range{'' if more == 1 else 's'}"
    return f"{text} MiB{narrower if more > 0 else ''}"


def wide_spans(equal: Spans) -> list[tuple[float, float]]:
    """Spans of equally good caps, those with slivers between them joined, widest first."""
    joined: list[tuple[float, float]] = []
    for low, high in equal:
        if joined and low - joined[-1][1] <= SLIVER * low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return sorted(joined, key=lambda span: -math.log(min(span[1], 1e9) / span[0]))


def mb_span(low: float, high: float) -> str:
    """Two caps in MiB, with three digits."""
    is_least = low * MIB <= 1.0
    first, last = (f"{end:.3g}" if end < 100 else f"{end:.0f}" for end in (low, high))
    if math.isinf(high):
        return f"{first} and more"
    return f"up to {last}" if is_least else f"{first} to {last}"


def to_paste(tuned: TuneResult) -> tuple[tuple[str, str], ...]:
    """What to paste, and a word about it: nothing that may be slower than PyTorch's default."""
    recommended, whole = tuned.recommended, tuned.best_integer_list
    if recommended.own is not None:
        return ((snippet(tuned, recommended.own), "the scenario's own: keep it"),)
    if recommended.keep:
        return ((snippet(tuned, tuned.default), "PyTorch's default: keep it"),)
    lines: dict[str, str] = {}
    for choice in recommended.choices:
        text = "any torch" if choice.bucket_cap_mb_list is None else "torch 2.13 or later"
        if choice is whole and whole.bucket_cap_mb_list != tuned.best_list.bucket_cap_mb_list:
            lost = whole.step_time_s / tuned.best_list.step_time_s - 1.0
            text = f"the same in whole MiB, {slower(lost)}"
        lines.setdefault(snippet(tuned, choice), text)
    return tuple(lines.items())


def first_step(tuned: TuneResult) -> str:
    """What a list does to the first iteration."""
    listed, usual = tuned.best_list.first_step_time_s, tuned.default.first_step_time_s
    return (
        "A list also makes the buckets of the first iteration, in the order of registration; "
        f"otherwise that has one bucket per dtype: {fine(listed)} instead of {fine(usual)}."
    )


def horovod_line(horovod: Horovod) -> str:
    """The best fusion threshold, and what it saves."""
    best, default = horovod.best, horovod.default
    gain = 1.0 - best.step_time_s / default.step_time_s
    worth = f"{quantities.percent(gain)} less than" if gain > 5e-5 else "as with"
    return (
        f"Horovod: HOROVOD_FUSION_THRESHOLD of {number(best.threshold_mb)} MiB "
        f"({round(best.threshold_mb * 2**20)}), a step of {quantities.duration(best.step_time_s)}, "
        f"{worth} the default of {number(default.threshold_mb)} MiB, in {best.all_reduces} "
        f"all-reduces."
    )


# ---------------------------------------------------------------- several scenarios


def shared_headline(compromise: MinimaxCap) -> str:
    """Say in one sentence which cap serves all."""
    count, default = len(compromise.each), max(0.0, compromise.default.worst_regret)
    best = (
        f"{number(compromise.best.bucket_cap_mb or 0)} MiB, at most "
        f"{_percent(compromise.best.worst_regret)} slower than the best cap of each"
    )
    if compromise.keep_default:
        return (
            f"For all {count}: keep PyTorch's default buckets, at most {_percent(default)} slower "
            f"than the best cap of each; one cap for all would be {best}."
        )
    return (
        f"One cap for all {count}: {best}; PyTorch's default is at most {_percent(default)} slower."
    )


def scenarios_table(compromise: MinimaxCap) -> Table:
    """Scenario by scenario: its own best cap, and what it loses by the shared one."""
    rows = [
        (
            tuned.scenario.name,
            f"{tuned.gpus:,}",
            f"{number(tuned.best_uniform.bucket_cap_mb or 0)} MiB",
            fine(tuned.best_uniform.step_time_s),
            change(shared),
            change(default),
        )
        for tuned, shared, default in zip(
            compromise.each, compromise.best.regrets, compromise.default.regrets, strict=True
        )
    ]
    header = ("scenario", ">GPUs", ">own best cap", ">step", ">shared cap", ">default")
    return Table(header, rows, ruled=False)


# ---------------------------------------------------------------- terminal


def tuned_lines(tuned: TuneResult) -> list[Block]:
    """Arrange a tuning for the terminal: the answer, settings, what to paste."""
    fusion = tuned.horovod
    notes = [first_step(tuned), *tuned.assumptions, *(fusion.assumptions if fusion else ())]
    return [
        Paragraph(headline(tuned), "headline"),
        settings_table(tuned),
        *paragraphs(advice(tuned)),
        *paragraphs(f"  {code}  # {note}" for code, note in to_paste(tuned)),
        *paragraphs([horovod_line(fusion)] if fusion else []),
        *paragraphs(notes, "note"),
    ]


def compromise_lines(compromise: MinimaxCap) -> list[Block]:
    """Arrange one setting for several scenarios for the terminal."""
    return [
        Paragraph(shared_headline(compromise), "headline"),
        scenarios_table(compromise),
        Paragraph(f"  {shared_snippet(compromise)}"),
    ]
