"""Sentences and tables about tuned buckets; the page and the terminal say the same.

What ``perfmodel tune --json`` prints, and its curve as CSV.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from perfmodel.files import as_json, attributes, csv_text
from perfmodel.memo import first_applying
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Block,
    Code,
    Paragraph,
    Table,
    paragraphs,
    tabulate,
)
from perfmodel.report.common.words import words_blocks
from perfmodel.studies.tune.caps import format_caps, number
from perfmodel.studies.tune.model import (
    MIN_GAIN,
    Choice,
    Horovod,
    MinimaxCap,
    SharedCap,
    Spans,
    TuneResult,
)
from perfmodel.training.ddp.options import MIB
from perfmodel.training.words import Words, words_of

SLIVER_SHARE_OF_CAP = 0.02
"""Gaps between equally good caps that are narrower than this share of the cap are ignored."""
MOST_SPANS = 3
COMMUNICATION_BOUND = 0.1
"""Share of the step that exposed communication is at least, and of which buckets save less, where
communication is named as the limit."""
SLIGHT_REGRET = MIN_GAIN / 2
"""Difference of regrets that is no reason to leave the default."""
LEAST_RELATIVE_CHANGE = 5e-5
"""Relative change below which there is none."""


def headline(tuned: TuneResult) -> str:
    """State in one sentence what to do about the buckets; where it matters, that it is little."""
    return (
        f"{tuned.workload} on {quantities.gpus(tuned.gpus)} ({tuned.machine}): {_verdict(tuned)}."
        f"{_limit(tuned)}"
    )


def answer(tuned: TuneResult) -> tuple[str, str]:
    """The same for a page, which names the training above: what to do, and what limits it."""
    verdict = _verdict(tuned)
    return f"{verdict[:1].upper()}{verdict[1:]}.", _limit(tuned).strip()


def _verdict(tuned: TuneResult) -> str:
    default, best = tuned.default.step_time_s, tuned.best_list.step_time_s
    takes, recommended = f"a step takes {fine(default)}", tuned.recommended
    doubt = "" if recommended.unsure is None else _doubt(recommended.unsure)
    if recommended.own is not None:
        own_s = fine(recommended.own.step_time_s)
        return f"the scenario's own buckets are as good as any, keep them; a step takes {own_s}"
    if not recommended.keep:
        chosen = recommended.choices[0]
        return (
            f"with {_setting(chosen)} a step takes {fine(chosen.step_time_s)}, "
            f"{_percent(chosen.gains[0])} less than with PyTorch's default"
        )
    if tuned.requested is not None:
        own_s = fine(tuned.requested.step_time_s)
        said = f"use PyTorch's default buckets; {takes} instead of {own_s} with the scenario's own"
        return f"{said}; {doubt}" if doubt else said
    if 1.0 - best / default < LEAST_RELATIVE_CHANGE:
        return f"PyTorch's default buckets are as good as any; {takes}"
    if doubt:
        return f"keep PyTorch's default buckets; {takes}, and {doubt}"
    return (
        f"PyTorch's default buckets are as good, keep them; {takes}, and the best list of caps "
        f"would save {_percent(1.0 - best / default)} of it"
    )


def _setting(choice: Choice) -> str:
    one_cap = f"{number(choice.bucket_cap_mb or 0.0)} MiB buckets"
    return one_cap if choice.bucket_cap_mb_list is None else "the best list of caps"


def _doubt(unsure: Choice) -> str:
    """Why a setting that is quicker on the likely machine is not recommended."""
    saves = f"{_setting(unsure)} would save {_percent(unsure.gains[0])} on the likely machine"
    nearby, least = min(unsure.gains_nearby, default=math.inf), min(unsure.gains)
    doubt = first_applying(
        (
            nearby <= min(0.0, least),
            (
                f" but may cost {_percent(-nearby)} with 2 % of bandwidth or 3 % of delay more or "
                "less, where messages meet in another order"
            ),
        ),
        (least > 0, f", give or take {_percent(unsure.noise)}"),
        (unsure.gains[1] == least, f" but may cost {_percent(-least)} on a quicker one"),
        (True, f" but may cost {_percent(-least)} on a slower one"),
    )
    return f"{saves}{doubt}"


def _limit(tuned: TuneResult) -> str:
    """Say that communication is the limit where buckets hide little of what is waited for it."""
    waits_s, step_s = tuned.default.exposed_comm_s, tuned.default.step_time_s
    saved_s = step_s - tuned.best_list.step_time_s
    is_hidden = waits_s < COMMUNICATION_BOUND * step_s or saved_s >= COMMUNICATION_BOUND * waits_s
    if tuned.limit != "communication" or is_hidden:
        return ""
    return (
        f" Communication is the limit ({tuned.bottleneck}): a step waits "
        f"{quantities.duration(waits_s)} for it, of which "
        "no buckets that were found save "
        f"{f'more than {quantities.duration(saved_s)}' if saved_s > 0 else 'anything'}."
    )


def _percent(fraction: float) -> str:
    value = 0.0 if 0 <= fraction < LEAST_RELATIVE_CHANGE else 100 * fraction
    return f"{value:.2g}\N{NO-BREAK SPACE}%"


def settings_table(tuned: TuneResult) -> Table:
    """Each setting with its figures."""
    whole, bound_s = tuned.best_integer_list, tuned.lower_bound_s
    differs = whole.bucket_cap_mb_list != tuned.best_list.bucket_cap_mb_list

    def to_default(step_s: float) -> str:
        return change(step_s / tuned.default.step_time_s - 1.0)

    settings = tabulate(
        (
            (name, choice)
            for name, choice in (
                ("PyTorch's default: 1, then 25", tuned.default),
                ("the scenario's own", tuned.requested),
                (f"best cap for all: {caps(tuned.best_uniform)}", tuned.best_uniform),
                (f"best list: {caps(tuned.best_list)}", tuned.best_list),
                (f"best list of whole MiB: {caps(whole)}", whole if differs else None),
            )
            if choice is not None
        ),
        (
            ("setting", lambda row: row[0]),
            (">step", lambda row: fine(row[1].step_time_s)),
            (">exposed", lambda row: quantities.duration(row[1].exposed_comm_s)),
            (">to default", lambda row: to_default(row[1].step_time_s)),
            (">buckets", lambda row: f"{len(row[1].buckets)}"),
            (">first step", lambda row: quantities.duration(row[1].first_step_time_s)),
        ),
        ruled=False,
    )
    if bound_s is None:
        return settings
    bound = ("lower bound: no buckets beat it", fine(bound_s), "", to_default(bound_s), "", "")
    return replace(settings, rows=[*settings.rows, bound])


def fine(time_s: float) -> str:
    """Write a step time with four digits: settings often differ by less than the third.

    Examples
    --------
    >>> fine(0.18932).replace(chr(160), " ")
    '189.3 ms'
    """
    return quantities.duration(time_s, digits=4)


def change(fraction: float) -> str:
    """Write a relative change with its sign."""
    if abs(fraction) < LEAST_RELATIVE_CHANGE:
        return "same"
    digits = 2 if abs(fraction) < 0.01 else 1
    return quantities.signed(100 * fraction, f"{{:.{digits}f}}\N{NO-BREAK SPACE}%".format)


def caps(choice: Choice) -> str:
    """Caps in MiB, as one would type them; long lists are cut."""
    values = choice.bucket_cap_mb_list
    if values is None:
        return "default" if choice.bucket_cap_mb is None else number(choice.bucket_cap_mb)
    if len(values) <= 8:
        return format_caps(values)
    return f"{format_caps(values[:6])[:-1]}, ... {len(values) - 6} more]"


def advice(tuned: TuneResult) -> list[str]:
    """Say which caps for all are as good as the best, which is safe, what the default loses."""
    unsure, robust = tuned.recommended.unsure, tuned.robust
    likely, most = tuned.default_regrets[0], max(tuned.default_regrets)
    said = [
        (
            f"Caps within {quantities.percent(tuned.plateau.within)} of the best cap: "
            f"{spans(tuned.plateau.spans_mb)}."
        )
    ]
    if unsure is not None and not tuned.recommended.keep:
        said.append(f"Not recommended: {_doubt(unsure)}.")
    if robust is not None:
        worst, cap = robust.worst_regret, number(robust.bucket_cap_mb)
        loses = "nothing" if worst < LEAST_RELATIVE_CHANGE else f"at most {_percent(worst)}"
        safest = first_applying(
            (most <= worst + SLIGHT_REGRET, ", no cap for all is safer than PyTorch's default"),
            (True, f": {cap} MiB; it loses {loses} to the cap that is best then"),
        )
        said.append(
            f"If communication is as quick or as slow as its {quantities.INTERVAL} allows{safest}."
        )
    does = first_applying(
        (likely < -LEAST_RELATIVE_CHANGE, f"is {_percent(-likely)} quicker than the best cap"),
        (likely < LEAST_RELATIVE_CHANGE, "loses nothing to the best cap"),
        (True, f"loses {_percent(likely)} to the best cap"),
    )
    beyond = first_applying(
        (len(tuned.default_regrets) < 2, ""),
        (most < LEAST_RELATIVE_CHANGE, ", nor anywhere in that interval"),
        (True, f"; it may lose up to {_percent(most)} within that interval"),
    )
    return [*said, f"PyTorch's default (1, then 25 MiB) {does}{beyond}."]


def spans(equal: Spans) -> str:
    """Write spans of caps in MiB by growing cap; of many only the widest."""
    wide = wide_spans(equal)
    if wide[0][0] * MIB <= 1.0 and math.isinf(wide[0][1]):
        return "any"
    more = len(wide) - MOST_SPANS
    narrower = f", and {more} narrower range{'' if more == 1 else 's'}"
    return (
        f"{'; '.join(mb_span(*span) for span in sorted(wide[:MOST_SPANS]))} MiB"
        f"{narrower if more > 0 else ''}"
    )


def wide_spans(equal: Spans) -> list[tuple[float, float]]:
    """Spans of equally good caps, those with slivers between them joined, widest first."""
    joined: list[tuple[float, float]] = []
    for low, high in equal:
        if joined and low - joined[-1][1] <= SLIVER_SHARE_OF_CAP * low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return sorted(joined, key=lambda span: -math.log(min(span[1], 1e9) / span[0]))


def mb_span(low: float, high: float) -> str:
    """Two caps in MiB, with three digits."""
    first, last = (f"{end:.3g}" if end < 100 else f"{end:.0f}" for end in (low, high))
    return first_applying(
        (math.isinf(high), f"{first} and more"),
        (low * MIB <= 1.0, f"up to {last}"),
        (True, f"{first} to {last}"),
    )


def first_step(tuned: TuneResult) -> str:
    """Say what a list does to the first iteration, and that nothing changes where times agree."""
    listed, usual = (fine(choice.first_step_time_s) for choice in (tuned.best_list, tuned.default))
    return (
        "A list also makes the buckets of the first iteration, in the order of registration; "
        "otherwise that has one bucket per dtype: "
        f"{f'it takes {usual} either way' if listed == usual else f'{listed} instead of {usual}'}."
    )


def horovod_line(horovod: Horovod) -> str:
    """The best fusion threshold, and what it saves."""
    best, default = horovod.best, horovod.default
    gain = 1.0 - best.step_time_s / default.step_time_s
    return (
        f"Horovod: HOROVOD_FUSION_THRESHOLD of {number(best.threshold_mb)} MiB "
        f"({round(best.threshold_mb * 2**20)}), a step of {quantities.duration(best.step_time_s)}, "
        f"{f'{quantities.percent(gain)} less than' if gain > 5e-5 else 'as with'} the default of "
        f"{number(default.threshold_mb)} MiB, in {best.all_reduces} all-reduces."
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
    return tabulate(
        zip(compromise.each, compromise.best.regrets, compromise.default.regrets, strict=True),
        (
            ("scenario", lambda row: row[0].scenario.name),
            (">GPUs", lambda row: f"{row[0].gpus:,}"),
            (">own best cap", lambda row: f"{number(row[0].best_uniform.bucket_cap_mb or 0)} MiB"),
            (">step", lambda row: fine(row[0].best_uniform.step_time_s)),
            (">shared cap", lambda row: change(row[1])),
            (">default", lambda row: change(row[2])),
        ),
        ruled=False,
    )


# ---------------------------------------------------------------- terminal


def tuned_lines(tuned: TuneResult) -> list[Block]:
    """Arrange a tuning for the terminal: the answer, settings, what to paste."""
    fusion = tuned.horovod
    return [
        Paragraph(headline(tuned), "headline"),
        settings_table(tuned),
        *paragraphs(advice(tuned)),
        *words_blocks(recommended_words(tuned)),
        *paragraphs([horovod_line(fusion)] if fusion else []),
        *paragraphs([first_step(tuned), *tuned.assumptions], "note"),
        *paragraphs(fusion.assumptions if fusion else (), "note"),
    ]


def compromise_lines(compromise: MinimaxCap) -> list[Block]:
    """Arrange one setting for several scenarios for the terminal."""
    return [
        Paragraph(shared_headline(compromise), "headline"),
        scenarios_table(compromise),
        Code(shared_snippet(compromise)),
    ]


def tuned_json(tuned: TuneResult) -> dict[str, Any]:
    """Return a tuning as JSON; times in seconds, caps in MiB (what PyTorch calls MB)."""
    advised, horovod = tuned.recommended, tuned.horovod
    best = {
        each: getattr(tuned, each) for each in ("best_uniform", "best_list", "best_integer_list")
    }

    def name(choice: Choice) -> str:
        return next(field for field, own in best.items() if own is choice)

    return dict(
        as_json(
            {
                "scenario": tuned.scenario.name,
                **attributes(tuned, "workload machine gpus nodes bottleneck"),
                "default": _choice(tuned, tuned.default),
                "asked": None if tuned.requested is None else _choice(tuned, tuned.requested),
                **{field: _choice(tuned, choice) for field, choice in best.items()},
                **attributes(tuned, "lower_bound_s exact plateau"),
                "robust": None
                if tuned.robust is None
                else attributes(tuned.robust, "bucket_cap_mb worst_regret within spans_mb"),
                **attributes(tuned, "default_regrets curve"),
                "recommended": {
                    "keep": None if not advised.keep else "asked" if advised.own else "default",
                    "choices": list(map(name, advised.choices)),
                    "unsure": None if advised.unsure is None else name(advised.unsure),
                },
                "words": recommended_words(tuned),
                "horovod": None
                if horovod is None
                else {
                    **attributes(horovod, "cycle_s default best curve"),
                    "snippet": "HOROVOD_FUSION_THRESHOLD="
                    f"{round(horovod.best.threshold_mb * 2**20)}",
                    "assumptions": horovod.assumptions,
                },
                **attributes(tuned, "compute_s assumptions provenance"),
            },
            "tuning",
            infinite_as_null=True,
        )
    )


def compromise_json(compromise: MinimaxCap) -> dict[str, Any]:
    """Return one setting for several scenarios as JSON."""
    return dict(
        as_json(
            {
                "best": _shared(compromise.best) | attributes(compromise, "low_mb high_mb"),
                "default": _shared(compromise.default),
                "snippet": shared_snippet(compromise),
                "scenarios": [tuned_json(tuned) for tuned in compromise.each],
            },
            "tuning",
            infinite_as_null=True,
        )
    )


def shared_snippet(compromise: MinimaxCap) -> str:
    """Return what to paste for a cap that serves several scenarios."""
    cap = f", bucket_cap_mb={number(compromise.best.bucket_cap_mb or 0.0)}"
    return f"DistributedDataParallel(model{'' if compromise.keep_default else cap})"


def recommended_words(tuned: TuneResult) -> dict[str, Words]:
    """Return what programs are told to train with what is recommended.

    One cap is for programs that take no list, PyTorch before 2.13 among them.
    """
    if not tuned.has_words:
        return {}
    advised = tuned.recommended
    kept = advised.own or tuned.default
    first = next(iter(advised.choices), kept)
    for_all = next((each for each in advised.choices if each.bucket_cap_mb), kept)
    best, others = {"pytorch": _words(tuned, first)["pytorch"]}, _words(tuned, for_all)
    is_two = first.bucket_cap_mb_list and for_all.bucket_cap_mb
    older = {"pytorch_older": replace(others["pytorch"], title="PyTorch before 2.13")}
    return best | (older if is_two else {}) | others | best


def _words(tuned: TuneResult, choice: Choice) -> dict[str, Words]:
    scenario, listed, cap = tuned.scenario, choice.bucket_cap_mb_list, choice.bucket_cap_mb
    if choice is not tuned.recommended.own:
        caps = {
            "bucket_cap": None if cap is None else cap * MIB,
            "first_bucket": None,
            "bucket_caps": None if listed is None else tuple(each * MIB for each in listed),
        }
        scenario = scenario.model_copy(
            update={"strategy": scenario.strategy.model_copy(update=caps)}
        )
    return words_of(scenario, tuned.gpus, tuned.nodes)


def curve_csv(tuned: TuneResult) -> str:
    """Return the curve as CSV, one line per partition that one cap can make."""
    regrets = ("regret", "regret_quick", "regret_slow")[: len(tuned.curve[0].regrets)]
    rows = (
        (
            number(point.bucket_cap_mb),
            repr(point.low_mb),
            "" if math.isinf(point.high_mb) else repr(point.high_mb),
            point.buckets,
            repr(point.step_time_s),
            repr(point.exposed_comm_s),
            int(point.simulated),
            *(f"{regret:.6g}" for regret in point.regrets),
        )
        for point in tuned.curve
    )
    return csv_text(
        [
            "bucket_cap_mb",
            "low_mb",
            "high_mb",
            "buckets",
            "step_time_s",
            "exposed_comm_s",
            "simulated",
            *regrets,
        ],
        rows,
    )


def _choice(tuned: TuneResult, choice: Choice) -> dict[str, Any]:
    caps = choice.bucket_cap_mb_list
    return {
        "bucket_cap_mb": choice.bucket_cap_mb,
        "bucket_cap_mb_list": None
        if caps is None
        else [int(cap) if cap == int(cap) else cap for cap in caps],
        **attributes(choice, "step_time_s exposed_comm_s first_step_time_s"),
        **attributes(choice, "gains gains_nearby noise"),
        "regret": tuned.regret(choice),
        "buckets": [
            attributes(each, "index nbytes ready_s start_s end_s") for each in choice.buckets
        ],
    }


def _shared(shared: SharedCap) -> dict[str, Any]:
    return {
        "bucket_cap_mb": shared.bucket_cap_mb,
        "step_time_s": shared.steps_s,
        **attributes(shared, "regrets worst_regret"),
    }
