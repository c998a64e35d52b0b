"""Advice as one self-contained HTML page, with its JSON beside it."""

from __future__ import annotations

from pathlib import Path

from perfmodel.report.advice import text
from perfmodel.report.advice.figures import draw_gains
from perfmodel.report.common import quantities
from perfmodel.report.common.document import (
    PREDICTED,
    Bullets,
    Code,
    Definitions,
    Figure,
    Folded,
    Section,
    Tile,
    Tiles,
    header,
    section,
)
from perfmodel.report.common.html import render_html, write_report_files
from perfmodel.studies.advise.model import Advice, to_json

ALONE = "Sorted by gain; bars end where the simulation does, lines hold 80 % of what is uncertain."

FILES = ("advice.html", "advice.json")
"""Files that `write_advice` writes."""


def write_advice(advice: Advice, folder: Path) -> Path:
    """Write ``advice.html`` and ``advice.json``; returns and raises as `write_report_files`."""
    files = {"advice.html": advice_html(advice), "advice.json": to_json(advice)}
    return write_report_files(folder, files)


def advice_html(advice: Advice) -> str:
    """Build the page as one string."""
    setting = f"{advice.workload} on {advice.machine}"
    limits = text.power_limits(advice)
    figure = Figure(draw_gains(advice), "gains", "Gain of each change, with its 80 % interval")
    return render_html(
        f"What to change: {setting}",
        [
            header(
                setting,
                text.headline(advice),
                [PREDICTED],
                [advice.scenario.question],
                [text.as_it_is(advice)],
            ),
            _tiles(advice),
            _together(advice),
            section(
                "Each change alone",
                ALONE,
                figure,
                text.changes_table(advice, advice.trials),
            ),
            section("Power", "", Bullets(limits)) if limits else None,
            section("What is left out", "", Bullets(text.left_out(advice))),
            section(
                "What this rests on",
                "",
                Bullets([*text.narrow_gains(advice), text.INTERVALS]),
                Folded("Provenance", [Definitions(dict(advice.provenance))]),
            ),
        ],
    )


def _tiles(advice: Advice) -> Tiles | None:
    best = advice.best
    if best is None or best.point is None:
        return None
    surely = "80 % interval" if best.sure else "not surely a gain"
    return Tiles(
        [
            Tile(
                "Best proposal",
                text.gain_text(best.ratio),
                f"{surely} {text.gain_interval(best)}",
            ),
            Tile(
                "Step time",
                quantities.duration(best.point.step_time_s),
                f"now {quantities.duration(advice.base.step_time_s)}",
            ),
            Tile(
                "Memory per GPU",
                quantities.size(best.point.memory.total_bytes),
                f"now {quantities.size(advice.base.memory.total_bytes)}",
            ),
            Tile("Bottleneck then", best.point.bottleneck, f"now {advice.base.bottleneck}", "text"),
        ]
    )


def _together(advice: Advice) -> Section | None:
    if advice.best is None:
        return None
    lead = "Changes that belong together, each proposal simulated as a whole."
    commands = "\n".join(text.command(advice, trial) for trial in advice.together)
    return section("What to do", lead, Bullets(text.proposals(advice)), Code(commands))
