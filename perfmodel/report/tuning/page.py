"""Tuned buckets as one self-contained HTML page, with the data behind it."""

from __future__ import annotations

from pathlib import Path

from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    Bullets,
    Code,
    Definitions,
    Figure,
    Folded,
    Paragraph,
    Section,
    Table,
    Tile,
    Tiles,
    header,
    section,
)
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.report.tuning import text
from perfmodel.report.tuning.export import compromise_json, curve_csv, shared_snippet, tuned_json
from perfmodel.report.tuning.figures import draw_buckets, draw_curve, draw_exposed
from perfmodel.studies.tune.caps import number
from perfmodel.studies.tune.model import MinimaxCap, TuneResult

PREDICTED = "A prediction by simulation, not a measurement."


FILES = ("tune.html", "tune.json", "curve.csv")
"""Files that `write_tuned` writes."""


def write_tuned(tuned: TuneResult, folder: Path) -> Path:
    """Write ``tune.html``, ``tune.json`` (as ``--json`` prints it) and ``curve.csv``.

    Returns and raises as `write_report_files`.
    """
    files = {
        "tune.html": tuned_html(tuned),
        "tune.json": tuned_json(tuned),
        "curve.csv": curve_csv(tuned),
    }
    return write_report_files(folder, files)


def write_compromise(compromise: MinimaxCap, folder: Path) -> Path:
    """Write ``tune.html`` with all scenarios, ``tune.json``, and a curve for each scenario.

    Returns and raises as `write_report_files`.
    """
    curves = {f"curve-{at}.csv": curve_csv(tuned) for at, tuned in enumerate(compromise.each)}
    pages = {"tune.html": compromise_html(compromise), "tune.json": compromise_json(compromise)}
    return write_report_files(folder, pages | curves)


def tuned_html(tuned: TuneResult) -> str:
    """Build the page of one scenario as one string."""
    job = f"{tuned.workload} with DistributedDataParallel on"
    setting = f"{job} {quantities.gpus(tuned.gpus)} of {tuned.machine}"
    answer, limit = text.answer(tuned)
    return render_html(
        f"Buckets of {setting}",
        [
            header(setting, answer, [PREDICTED], [tuned.scenario.question], [limit]),
            _tiles(tuned),
            _paste(tuned),
            _curve(tuned),
            _buckets(tuned),
            _horovod(tuned),
            _grounds(tuned),
        ],
    )


def compromise_html(compromise: MinimaxCap) -> str:
    """Build the page of several scenarios as one string."""
    lead = "Regrets: how much longer a step is than with the best cap of that scenario alone."
    code = Code(shared_snippet(compromise))
    sections = [section("One cap for all", lead, text.scenarios_table(compromise), code)]
    for at, tuned in enumerate(compromise.each):
        title = f"{tuned.scenario.name}, {quantities.gpus(tuned.gpus)}"
        description = f"Step time against the cap: {title}"
        figure = Figure(draw_curve(tuned), f"curve-{at}", description)
        sections.append(section(title, text.headline(tuned), figure))
    setting, headline = f"{len(compromise.each)} scenarios", text.shared_headline(compromise)
    blocks = [header(setting, headline, [PREDICTED]), *sections]
    return render_html("One bucket cap for several scenarios", blocks)


def _tiles(tuned: TuneResult) -> Tiles:
    best_s, uniform = tuned.best_list.step_time_s, tuned.best_uniform
    cap = number(uniform.bucket_cap_mb or 0.0)
    default_s = text.fine(tuned.default.step_time_s)
    tiles = [
        Tile("Best list", text.fine(best_s), _gain(tuned, best_s)),
        Tile(
            f"Best cap: {cap} MiB",
            text.fine(uniform.step_time_s),
            _gain(tuned, uniform.step_time_s),
        ),
        Tile("PyTorch's default", default_s, "1 MiB first, then 25 MiB"),
    ]
    if tuned.lower_bound_s is not None:
        above = quantities.percent(best_s / tuned.lower_bound_s - 1.0)
        bound = text.fine(tuned.lower_bound_s)
        tiles.append(Tile("Lower bound", bound, f"the list is {above} above it"))
    return Tiles(tiles)


def _gain(tuned: TuneResult, step_s: float) -> str:
    change = text.change(step_s / tuned.default.step_time_s - 1.0)
    return "as with the default" if change == "same" else f"{change} against the default"


def _paste(tuned: TuneResult) -> Section:
    lines = [f"{code}  # {note}" if note else code for code, note in text.to_paste(tuned)]
    return section(
        "What to use",
        "",
        Bullets(text.advice(tuned)),
        Code("\n".join(lines)),
        text.settings_table(tuned),
        Paragraph(text.first_step(tuned), "hint"),
    )


def _curve(tuned: TuneResult) -> Section:
    within = quantities.percent(tuned.plateau.within)
    lead = (
        f"Each of the {len(tuned.curve)} steps of the line is one partition into buckets. Shaded: "
        f"caps within {within} of the best one on the likely network."
    )
    if tuned.robust is not None:
        lead += (
            f" Green bar: caps that stay within {within} of the safest one, "
            f"{number(tuned.robust.bucket_cap_mb)} MiB, however quick or slow the network is "
            f"within its {text.INTERVAL}."
        )
    exposed = "Exposed communication against the bucket cap"
    return section(
        "What each cap costs",
        lead,
        Figure(draw_curve(tuned), "curve", "Step time against the bucket cap"),
        Figure(draw_exposed(tuned), "exposed", exposed),
    )


def _buckets(tuned: TuneResult) -> Section:
    lead = "One settled step: when each bucket is complete, and when it is reduced."
    figure = Figure(draw_buckets(tuned), "buckets", "All-reduces of each setting in one step")
    return section("When the buckets travel", lead, figure)


def _horovod(tuned: TuneResult) -> Section | None:
    horovod = tuned.horovod
    if horovod is None:
        return None
    rows = [
        (
            "off" if fusion.threshold_mb == 0 else f"{number(fusion.threshold_mb)} MiB",
            quantities.duration(fusion.step_time_s),
            quantities.duration(fusion.exposed_comm_s),
            f"{fusion.all_reduces}",
        )
        for fusion in horovod.curve
    ]
    titles = (">fusion threshold", ">step", ">exposed", ">all-reduces")
    table, assumptions = Table(titles, rows), Bullets(horovod.assumptions)
    return section("Horovod", text.horovod_line(horovod), table, assumptions)


def _grounds(tuned: TuneResult) -> Section:
    facts = {name.replace("_", " "): value for name, value in tuned.provenance.items()}
    provenance = Folded("Provenance", [Definitions(facts)])
    return section("What this rests on", "", Bullets(tuned.assumptions), provenance)
