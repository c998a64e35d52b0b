"""The report of a validation: a self-contained page, Markdown, and CSV files."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

from perfmodel.files import write_atomically
from perfmodel.report.common.page import document, figure_html, figure_section, html_table, legend
from perfmodel.report.validation import figures, tables
from perfmodel.report.validation.tables import Table
from perfmodel.report.validation.text import (
    MODES_SAID,
    TARGETS,
    WEIGHING,
    fitted_lines,
    headline,
    percent,
    points_csv,
    setting,
    trainings_csv,
    validation_markdown,
)
from perfmodel.validate.predict.forecast import Predicted
from perfmodel.validate.run import Validation, to_json
from perfmodel.validate.score import scores
from perfmodel.validate.score.scores import LARGE


def write_validation(found: Validation, folder: Path) -> Path:
    """Write the report into a folder.

    ``validation.html``, ``validation.md``, ``validation.json`` (as ``--json`` prints it),
    ``points.csv`` (every size of every sweep in every mode) and ``trainings.csv``.

    Returns
    -------
    Path
        The page.

    Raises
    ------
    InputError
        The folder cannot be written to.
    """
    page = folder / "validation.html"
    write_atomically(page, validation_html(found))
    write_atomically(folder / "validation.md", validation_markdown(found))
    text = json.dumps(to_json(found), indent=1, allow_nan=False)
    write_atomically(folder / "validation.json", text + "\n")
    write_atomically(folder / "points.csv", points_csv(found))
    write_atomically(folder / "trainings.csv", trainings_csv(found))
    return page


# ---------------------------------------------------------------- the page


def validation_html(found: Validation) -> str:
    """Build the page as one string."""
    style = Path(__file__).with_name("validation.css").read_text("utf-8")
    sections = [
        _header(found),
        _tiles(found),
        _errors(found),
        _machines(found),
        _coverage(found),
        _trainings(found),
        _sweeps(found),
        _left_out(found),
        _grounds(found),
    ]
    body = "\n".join(section for section in sections if section)
    return document(
        "Predicted versus measured", f"<style>\n{style}</style>\n<main>\n{body}\n</main>"
    )


def _header(found: Validation) -> str:
    return (
        f'<header><p class="setting">{escape(setting(found))}</p>'
        f"<h1>{escape(headline(found))}</h1>"
        f'<p class="note">Collectives of 256 KiB and more, sweeps of trust 3 and up whose hardware '
        f"is stated. {escape(WEIGHING)}</p></header>"
    )


def _tiles(found: Validation) -> str:
    tiles = []
    for mode, band, title in (
        ("datasheet", LARGE, "Datasheet, 256 KiB and up"),
        ("datasheet", "latency", "Datasheet, below 256 KiB"),
        ("transferred", LARGE, "Transferred, 256 KiB and up"),
        ("nccl tuner", LARGE, "NCCL's own formula, 256 KiB and up"),
    ):
        one = next((b.get(band) for m, b in found.bands.items() if m == mode), None)
        if one is not None:
            below = f"90th percentile {percent(one.p90_abs_error)}, {one.sweeps} sweeps"
            tiles.append((title, percent(one.median_abs_error), below))
    share = found.coverages.get("datasheet", {}).get("all")
    if share is not None:
        sure = f"of 80 % wanted; 95 % sure: {percent(share.low)} to {percent(share.high)}"
        tiles.append(("Inside the datasheet interval", percent(share.share), sure))
    items = "".join(
        f'<div class="tile"><span>{escape(title)}</span><strong>{escape(value)}</strong>'
        f"<small>{escape(below)}</small></div>"
        for title, value, below in tiles
    )
    return f'<div class="tiles">{items}</div>'


def _html(one: Table) -> str:
    words_at = [at for at, header in enumerate(one.header) if not header.startswith(">")]
    return html_table(
        [header.removeprefix(">") for header in one.header], one.rows, words_at=words_at
    )


def _errors(found: Validation) -> str:
    common = tables.band_table(found, common=True)
    pair = (
        '<div class="pair"><div><h3>Share of sizes within an error, 256 KiB and up</h3>'
        + figure_html(figures.distribution(found.points), "distribution", "Share of sizes by error")
        + "</div><div><h3>Predicted over measured, by size</h3>"
        + figure_html(figures.over_size(found.points), "over-size", "Ratio by size")
        + "</div></div>"
    )
    parts = [_html(tables.band_table(found)), pair]
    if common.rows and common != tables.band_table(found):
        parts += ["<h3>On the sweeps that every mode predicts</h3>", _html(common)]
    lead = f"Median / 90th percentile of the absolute error. {TARGETS} {WEIGHING}"
    return figure_section("Errors by size and mode", lead, *parts)


def _machines(found: Validation) -> str:
    drawn = figures.machines(scores.by_machine(found.points))
    lead = "Median / 90th percentile from 256 KiB on, by generation of GPU, links and network."
    return figure_section(
        "By kind of machine", lead, figure_html(drawn, "machines", lead),
        _html(tables.machine_table(found)),
    )  # fmt: skip


def _coverage(found: Validation) -> str:
    one = tables.coverage_table(found)
    if not one.rows:
        return ""
    lead = (
        "How often a measured time lies inside the 80 % interval of its prediction. Datasheet "
        "intervals come from residuals of other sweeps; the sweep itself is left out. The last "
        "column comes from drawing whole sweeps with replacement."
    )
    return figure_section("Intervals", lead, _html(one))


def _trainings(found: Validation) -> str:
    if not any(one.cases for one in found.trainings):
        return ""
    drawn = figure_html(figures.trainings(found.trainings), "trainings", "Predicted over published")
    lead = "Published training throughputs and recorded steps, each dataset by itself."
    return figure_section("Trainings", lead, _html(tables.training_table(found)), drawn)


def _sweeps(found: Validation) -> str:
    if not found.predicted:
        return ""
    intervals = {(p.sweep, p.nbytes): p.interval_s for p in found.judged}
    ordered = sorted(
        found.predicted, key=lambda one: (not one.counted, one.matched.hardware, one.sweep.id)
    )
    key, cards = "", []
    for at, one in enumerate(ordered):
        own = [intervals.get((one.sweep.id, row.nbytes)) for row in one.sweep.rows]
        drawn = figures.sweep(one, own)
        if len(one.sweep.rows) > 1:  # a single size is drawn as a mark
            key = max(key, legend(drawn), key=len)
        drawn.update_traces(showlegend=False)
        picture = figure_html(drawn, f"sweep-{at}", f"{one.sweep.id}: times and ratio")
        cards.append(
            f'<div class="card"><h3>{escape(one.sweep.id)}</h3><p>{escape(_about(one))}</p>'
            f"{picture}</div>"
        )
    lead = (
        "Above: time of one collective over its size. Below: predicted over measured, with the "
        "80 % interval of the datasheet prediction."
    )
    rows = f'<div class="tall">{_html(tables.sweep_table(found))}</div>'
    return figure_section(
        "Sweep by sweep", lead, key, f'<div class="cards">{"".join(cards)}</div>',
        "<h3>All sweeps</h3>", rows,
    )  # fmt: skip


def _about(one: Predicted) -> str:
    sweep = one.sweep
    listed = "" if one.counted else f" Listed, not counted: {one.why_not}."
    return (
        f"{sweep.collective}, {sweep.nranks} ranks on {sweep.nodes} x {sweep.gpu}; "
        f"predicted as {one.matched.topology.name}.{listed}"
    )


def _left_out(found: Validation) -> str:
    rows = [(one.sweep.id, "listed, not counted", one.why_not)
            for one in found.predicted if not one.counted]  # fmt: skip
    rows += [(sweep, "not predicted", reason) for sweep, reason in found.unmatched.items()]
    rows += [
        (one.sweep.id, f"no {tables.MODE_NAMES[mode]} prediction", reason)
        for one in found.predicted
        for mode, reason in one.missing.items()
    ]
    rows += [
        (data.id, f"{count} rows left out", reason)
        for data in found.trainings
        for reason, count in data.left_out.items()
    ]
    if not rows:
        return ""
    lead = "Nothing is skipped silently: this is everything without a number above."
    shown = html_table(("What", "How", "Why"), rows, words_at=(0, 1, 2))
    return figure_section("What is not counted, and why", lead, shown)


def _grounds(found: Validation) -> str:
    modes = "".join(f"<dt>{escape(name)}</dt><dd>{escape(said)}</dd>" for name, said in MODES_SAID)
    fitted = "".join(f"<li>{escape(line)}</li>" for line in fitted_lines(found))
    split = tables.split_table(found)
    halves = _html(split) if found.fitted else ""
    sources = html_table(
        ("Sweep", "Source", "Machine that was predicted, and what was assumed"),
        [
            (
                one.sweep.id,
                one.sweep.source,
                "; ".join((*one.matched.assumptions, *one.sweep.notes)),
            )
            for one in found.predicted
        ],
        words_at=(0, 1, 2),
    )
    return figure_section(
        "What this rests on", "",
        f"<h3>Modes</h3><dl>{modes}</dl>",
        f"<h3>What was fitted on what</h3><ul>{fitted}</ul>{halves}",
        f'<h3>Sources and assumptions</h3><div class="tall">{sources}</div>',
    )  # fmt: skip
