"""Tuned buckets as one self-contained HTML page, with the data behind it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

from perfmodel.files import write_atomically, write_json
from perfmodel.report.common import quantities
from perfmodel.report.common.page import document, figure_html, figure_section, html_table
from perfmodel.report.tuning import figures
from perfmodel.report.tuning import text as said
from perfmodel.report.tuning.export import compromise_json, curve_csv, tuned_json
from perfmodel.studies.tune.caps import number
from perfmodel.studies.tune.choice.minimax_regret import Compromise
from perfmodel.studies.tune.model import TuneResult

PREDICTED = "A prediction by simulation, not a measurement."


def write_tuned(tuned: TuneResult, folder: Path) -> Path:
    """Write ``tune.html``, ``tune.json`` (as ``--json`` prints it) and ``curve.csv``.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    InputError
        The folder cannot be written to.
    """
    page = folder / "tune.html"
    write_json(folder / "tune.json", tuned_json(tuned))
    write_atomically(page, tuned_html(tuned))
    write_atomically(folder / "curve.csv", curve_csv(tuned))
    return page


def write_compromise(found: Compromise, folder: Path) -> Path:
    """Write ``tune.html`` with all scenarios, ``tune.json``, and a curve for each scenario.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    InputError
        The folder cannot be written to.
    """
    page = folder / "tune.html"
    write_json(folder / "tune.json", compromise_json(found))
    write_atomically(page, compromise_html(found))
    for at, tuned in enumerate(found.each):
        write_atomically(folder / f"curve-{at}.csv", curve_csv(tuned))
    return page


def tuned_html(tuned: TuneResult) -> str:
    """Build the page of one scenario as one string."""
    question = tuned.scenario.question
    asked = f'<p class="question">{escape(question)}</p>' if question else ""
    setting = f"{tuned.workload} with DistributedDataParallel on {tuned.machine}"
    header = (
        f'<header><p class="setting">{escape(setting)}</p><h1>{escape(said.headline(tuned))}</h1>'
        f'{asked}<p class="note">{PREDICTED}</p></header>'
    )
    sections = [
        header,
        _tiles(tuned),
        _paste(tuned),
        _curve(tuned),
        _buckets(tuned),
        _horovod(tuned),
        _grounds(tuned),
    ]
    body = "\n".join(section for section in sections if section)
    return document(f"Buckets of {setting}", f"<main>\n{body}\n</main>")


def compromise_html(found: Compromise) -> str:
    """Build the page of several scenarios as one string."""
    cap = number(found.best.bucket_cap_mb or 0.0)
    header = (
        f'<header><p class="setting">{len(found.each)} scenarios</p>'
        f"<h1>{escape(said.shared_headline(found))}</h1>"
        f'<p class="note">{PREDICTED}</p></header>'
    )
    rows = list(said.shared_rows(found))
    lead = "Regrets: how much longer a step is than with the best cap of that scenario alone."
    sections = [
        header,
        figure_section(
            "One cap for all",
            lead,
            html_table(said.SHARED_COLUMNS, rows, words_at=(0,)),
            _code((f"DistributedDataParallel(model, bucket_cap_mb={cap})", "")),
        ),
    ]
    for at, tuned in enumerate(found.each):
        title = f"{tuned.scenario.name}, {quantities.gpus(tuned.gpus)}"
        figure = figure_html(
            figures.curve(tuned), f"curve-{at}", f"Step time against the cap: {title}"
        )
        sections.append(figure_section(title, said.headline(tuned), figure))
    body = "\n".join(sections)
    return document("One bucket cap for several scenarios", f"<main>\n{body}\n</main>")


def _tiles(tuned: TuneResult) -> str:
    best, default = tuned.best_list, tuned.default
    uniform = tuned.best_uniform
    tiles = [
        ("Best list", said.fine(best.step_time_s), _gain(tuned, best.step_time_s)),
        (
            f"Best cap: {number(uniform.bucket_cap_mb or 0.0)} MiB",
            said.fine(uniform.step_time_s),
            _gain(tuned, uniform.step_time_s),
        ),
        ("PyTorch's default", said.fine(default.step_time_s), "1 MiB first, then 25 MiB"),
    ]
    if tuned.lower_bound_s is not None:
        above = best.step_time_s / tuned.lower_bound_s - 1.0
        tiles.append(
            (
                "Lower bound",
                said.fine(tuned.lower_bound_s),
                f"the list is {quantities.percent(above)} above it",
            )
        )
    items = "".join(
        f'<div class="tile"><span>{escape(name)}</span><strong>{escape(value)}</strong>'
        f"<small>{escape(below)}</small></div>"
        for name, value, below in tiles
    )
    return f'<div class="tiles">{items}</div>'


def _gain(tuned: TuneResult, step_s: float) -> str:
    change = said.change(step_s / tuned.default.step_time_s - 1.0)
    return "as with the default" if change == "same" else f"{change} against the default"


def _paste(tuned: TuneResult) -> str:
    rows = said.rows(tuned)
    return figure_section(
        "What to use",
        "",
        _list(said.advice(tuned)),
        _code(*said.to_paste(tuned)),
        html_table(said.COLUMNS, rows, words_at=(0,)),
        f'<p class="hint">{escape(said.first_step(tuned))}</p>',
    )


def _code(*lines: tuple[str, str]) -> str:
    text = "\n".join(f"{code}  # {note}" if note else code for code, note in lines)
    return (
        '<div class="scroll" tabindex="0" style="margin-bottom: 16px">'
        f'<pre style="margin: 12px 14px"><code>{escape(text)}</code></pre></div>'
    )


def _curve(tuned: TuneResult) -> str:
    within = quantities.percent(tuned.plateau.within)
    lead = (
        f"Each of the {len(tuned.curve)} steps of the line is one partition into buckets. Shaded: "
        f"caps within {within} of the best one on the likely network."
    )
    if tuned.robust is not None:
        lead += (
            f" Marked below: caps that lose at most {within} more than "
            f"{number(tuned.robust.bucket_cap_mb)} MiB does wherever in its {said.INTERVAL} the "
            "network lies."
        )
    return figure_section(
        "What each cap costs",
        lead,
        figure_html(figures.curve(tuned), "curve", "Step time against the bucket cap"),
        figure_html(
            figures.exposed(tuned), "exposed", "Exposed communication against the bucket cap"
        ),
    )


def _buckets(tuned: TuneResult) -> str:
    lead = "One settled step: when each bucket is complete, and when it is reduced."
    drawn = figure_html(
        figures.buckets(tuned), "buckets", "All-reduces of each setting in one step"
    )
    return figure_section("When the buckets travel", lead, drawn)


def _horovod(tuned: TuneResult) -> str:
    found = tuned.horovod
    if found is None:
        return ""
    rows = [
        (
            "off" if one.threshold_mb == 0 else f"{number(one.threshold_mb)} MiB",
            quantities.duration(one.step_time_s),
            quantities.duration(one.exposed_comm_s),
            f"{one.all_reduces}",
        )
        for one in found.curve
    ]
    header = ("fusion threshold", "step", "exposed", "all-reduces")
    return figure_section(
        "Horovod", said.horovod_line(found), html_table(header, rows), _list(found.assumptions)
    )


def _grounds(tuned: TuneResult) -> str:
    rows = "".join(
        f"<dt>{escape(name.replace('_', ' '))}</dt><dd>{escape(value)}</dd>"
        for name, value in tuned.provenance.items()
    )
    provenance = f"<details><summary>Provenance</summary><dl>{rows}</dl></details>"
    return figure_section("What this rests on", "", _list(tuned.assumptions), provenance)


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"
