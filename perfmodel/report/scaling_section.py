"""The scaling curve as a section of the page."""

from __future__ import annotations

from html import escape

from perfmodel.report import scaling_figures, sizes, words
from perfmodel.report.page import embed, figure_section, table
from perfmodel.report.scaling import grown, runs
from perfmodel.report.scaling_words import basis, findings, sizes_of
from perfmodel.result import Result


def section(result: Result) -> str:
    """Build the section: findings, figures with intervals, what limits each size, all sizes."""
    titles, rows, words_at = sizes.listed(result)
    moved = [at for at, row in enumerate(grown(result)) if row.moved]
    listed = table(titles, rows, words_at=words_at, marked=moved)
    hints = sizes.hints(result)
    if moved:
        hints.append("A line marks where the bottleneck changes.")
    listed += f'<p class="hint">{escape(" ".join(hints))}</p>' if hints else ""
    lead = basis(result)
    if len(result.points) < 2:
        return figure_section("Scaling", lead, listed)
    said = "".join(f"<li>{escape(sentence)}</li>" for sentence in findings(result))
    return figure_section(
        "Scaling", lead, f'<ul class="findings">{said}</ul>', _figures(result),
        f"<h3>All sizes</h3>{listed}",
    )  # fmt: skip


def _figures(result: Result) -> str:
    speed = embed(
        scaling_figures.throughput(result), "scaling", "Throughput against number of GPUs"
    )
    share = embed(
        scaling_figures.efficiency(result), "efficiency", "Efficiency against number of GPUs"
    )
    steps = embed(scaling_figures.step_time(result), "steptime", "Step time against number of GPUs")
    samples = escape(words.samples(result))
    return (
        f'<div class="pair"><div><h3>Throughput, {samples} per second</h3>{speed}</div>'
        f"<div><h3>Efficiency, share of linear scaling</h3>{share}</div></div>"
        f'<div class="pair"><div><h3>Step time</h3>{steps}</div>'
        f"<div><h3>What limits which size</h3>{_limits(result)}</div></div>"
    )


def _limits(result: Result) -> str:
    colours = scaling_figures.bottleneck_colours(result)
    items = "".join(
        f'<li><i class="swatch" style="--c:{colours[run.kind]}"></i>'
        f"<span><b>{sizes_of(run)}</b> {escape(run.bottleneck)}</span></li>"
        for run in runs(result)
    )
    foot = "The strip at the foot of the efficiency figure has the same colours."
    return f'<ul class="limits">{items}</ul><p class="hint">{foot}</p>'
