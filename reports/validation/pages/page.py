"""The report of a validation: a self-contained page, with Markdown and CSV files beside it."""

from __future__ import annotations

from pathlib import Path

from perfmodel.report.common.document import (
    Block,
    Box,
    Bullets,
    Definitions,
    Figure,
    Folded,
    Header,
    Heading,
    Markup,
    Paragraph,
    Section,
    Table,
    Tile,
    Tiles,
    header,
    pair,
    section,
    table_section,
)
from perfmodel.report.common.html import legend, render_html, write_report_files
from perfmodel.report.validation import MODE_NAMES, WEIGHING, percent, points_csv
from perfmodel.validate.forecast import SweepPrediction
from perfmodel.validate.scores import LARGE
from reports.validation.pages import figures, strategy_tables, tables, training_tables
from reports.validation.pages.text import (
    MODE_MEANINGS,
    TARGETS,
    fitted_lines,
    sentences,
    setting,
    trainings_csv,
    validation_markdown,
)
from reports.validation.run import Validation, to_json
from reports.validation.score import breakdowns
from reports.validation.score.training_scores import SEVERAL_NODES, by_group, entries_of


def write_validation(validation: Validation, folder: Path) -> Path:
    """Write the report into a folder.

    ``validation.html``, ``validation.md``, ``validation.json`` (as ``--json`` prints it),
    ``points.csv`` (every size of every sweep in every mode) and ``trainings.csv``.

    Returns and raises as `write_report_files`.
    """
    files = {
        "validation.html": validation_html(validation),
        "validation.md": validation_markdown(validation),
        "validation.json": to_json(validation),
        "points.csv": points_csv(validation.predicted),
        "trainings.csv": trainings_csv(validation),
    }
    return write_report_files(folder, files)


def validation_html(validation: Validation) -> str:
    """Build the page as one string."""
    style = Path(__file__).with_name("validation.css").read_text("utf-8")
    return render_html(
        "Predicted versus measured",
        [
            Markup(f"<style>\n{style}</style>"),
            _header(validation),
            _tiles(validation),
            _errors(validation),
            _machines(validation),
            _coverage(validation),
            _trainings(validation),
            _strategies(validation),
            _sweeps(validation),
            _left_out(validation),
            _grounds(validation),
        ],
    )


def _header(validation: Validation) -> Header:
    note = (
        "Collectives of 256 KiB and more, sweeps of trust 3 and up whose hardware is stated. "
        f"{WEIGHING}"
    )
    first, *others = sentences(validation)
    return header(setting(validation), first, [note], sentences=[f"{text}." for text in others])


def _tiles(validation: Validation) -> Tiles:
    tiles, honest = [], validation.honest_mode
    for mode, band, title in (
        (honest, LARGE, "Datasheet, 256 KiB and up"),
        (honest, "latency", "Datasheet, below 256 KiB"),
        ("transferred", LARGE, "Transferred, 256 KiB and up"),
        ("nccl tuner", LARGE, "NCCL's own formula, 256 KiB and up"),
    ):
        score = next((b.get(band) for m, b in validation.bands.items() if m == mode), None)
        if score is not None:
            below = f"90th percentile {percent(score.p90_abs_error)}, {score.sweeps} sweeps"
            tiles.append(Tile(title, percent(score.median_abs_error), below))
    efficiency = by_group(entries_of(validation.trainings)).get("efficiency", {})
    for name, title in (("NVLink", "NVLink"), (SEVERAL_NODES, "between nodes")):
        scaling = efficiency.get("network", {}).get(name)
        if scaling is not None:
            below = f"90th percentile {percent(scaling.p90_abs_error)}, {scaling.tables} tables"
            tile = Tile(f"Scaling efficiency, {title}", percent(scaling.median_abs_error), below)
            tiles.append(tile)
    share = validation.coverages.get(honest, {}).get("all")
    if share is not None:
        sure = f"of 80 % wanted; 95 % sure: {percent(share.low)} to {percent(share.high)}"
        tiles.append(Tile("Inside the datasheet interval", percent(share.share), sure))
    return Tiles(tiles)


def _errors(validation: Validation) -> Section:
    table, common = tables.band_table(validation), tables.band_table(validation, common=True)
    distribution = figures.draw_distribution(validation.points)
    over_size = figures.draw_over_size(validation.points)
    blocks: list[Block] = [
        table,
        pair(
            [
                Heading("Share of sizes within an error, 256 KiB and up"),
                Figure(distribution, "distribution", "Share of sizes by error"),
            ],
            [
                Heading("Predicted over measured, by size"),
                Figure(over_size, "over-size", "Ratio by size"),
            ],
        ),
    ]
    if common.rows and common != table:
        blocks += [Heading("On the sweeps that every mode predicts"), common]
    lead = f"Median / 90th percentile of the absolute error. {TARGETS} {WEIGHING}"
    return section("Errors by size and mode", lead, *blocks)


def _machines(validation: Validation) -> Section:
    lead = "Median / 90th percentile from 256 KiB on, by generation of GPU, links and network."
    drawn = figures.draw_machines(breakdowns.by_machine(validation.points))
    figure = Figure(drawn, "machines", lead)
    return section("By kind of machine", lead, figure, tables.machine_table(validation))


def _coverage(validation: Validation) -> Section | None:
    lead = (
        "How often a measured time lies inside the 80 % interval of its prediction. Datasheet "
        "intervals come from residuals of other sweeps; the sweep itself is left out. The last "
        "column comes from drawing whole sweeps with replacement."
    )
    return table_section("Intervals", lead, tables.coverage_table(validation))


def _trainings(validation: Validation) -> Section | None:
    if not any(dataset.cases for dataset in validation.trainings):
        return None
    drawn = figures.draw_trainings({data.title: data.cases for data in validation.trainings})
    lead = "Published training throughputs and recorded steps, each dataset by itself."
    figure = Figure(drawn, "trainings", "Predicted over published")
    groups = training_tables.group_table(validation)
    blocks: list[Block] = [tables.training_table(validation), figure]
    if groups.rows:
        blocks += [
            Heading("Throughput and scaling efficiency, by network and precision"),
            Paragraph(f"{training_tables.LEAD} {training_tables.fitted_note(validation)}", "lead"),
            groups,
            Heading("Scaling efficiency by network"),
            Figure(
                figures.draw_trainings(training_tables.efficiencies(validation)),
                "efficiencies",
                "Predicted over published scaling efficiency, by network",
            ),
            Heading("The same by table"),
            training_tables.by_table_table(validation),
            Definitions(training_tables.MEASURE_MEANINGS),
        ]
    return section("Trainings", lead, *blocks)


def _strategies(validation: Validation) -> Section | None:
    if not any(table.steps for table in validation.strategies):
        return None
    lead = "Published steps of sharded and other strategies, and the peak of a GPU's memory."
    beside_sample = strategy_tables.sample_table(validation)
    sampled = [
        Heading("Sample and all rows"),
        Paragraph(strategy_tables.SAMPLE_LEAD),
        beside_sample,
    ]
    return section(
        "Steps by strategy",
        lead,
        Paragraph(strategy_tables.LEAD, "lead"),
        strategy_tables.strategy_table(validation),
        Heading("Measured times inside 80 % intervals"),
        strategy_tables.coverage_table(validation),
        Heading("The same by table"),
        strategy_tables.source_table(validation),
        Heading("Models split over GPUs"),
        Paragraph(strategy_tables.SPLIT_LEAD),
        strategy_tables.split_table(validation),
        *(sampled if beside_sample.rows else ()),
        Heading("The quicker of two settings"),
        Paragraph(strategy_tables.ORDER_LEAD),
        strategy_tables.order_table(validation),
        Definitions(strategy_tables.QUANTITY_MEANINGS),
    )


def _sweeps(validation: Validation) -> Section | None:
    if not validation.predicted:
        return None
    intervals = {(p.sweep, p.nbytes): p.interval_s for p in validation.judged}
    drawn_alone = [p for p in validation.predicted if not p.sweep.table]
    ordered = sorted(drawn_alone, key=lambda p: (not p.counted, p.matched.hardware, p.sweep.id))
    key, cards = "", []
    for number, prediction in enumerate(ordered):
        sweep = prediction.sweep
        own = [intervals.get((sweep.id, row.nbytes)) for row in sweep.rows]
        drawn = figures.draw_sweep(prediction, own)
        if len(sweep.rows) > 1:  # a single size is drawn as a mark
            key = max(key, legend(drawn), key=len)
        drawn.update_traces(showlegend=False)
        picture = Figure(drawn, f"sweep-{number}", f"{sweep.id}: times and ratio")
        cards.append(Box("card", [Heading(sweep.id), Paragraph(_about(prediction)), picture]))
    lead = (
        "Above: time of one collective over its size. Below: predicted over measured, with the "
        "80 % interval of the datasheet prediction. Sweeps that are one of many in a table stand "
        "below only."
    )
    table = Box("tall", [tables.sweep_table(validation)])
    return section(
        "Sweep by sweep", lead, Markup(key), Box("cards", cards), Heading("All sweeps"), table
    )


def _about(prediction: SweepPrediction) -> str:
    sweep = prediction.sweep
    listed = "" if prediction.counted else f" Listed, not counted: {prediction.why_not}."
    return (
        f"{sweep.collective}, {sweep.nranks} ranks on {sweep.nodes} x {sweep.gpu}; "
        f"predicted as {prediction.matched.topology.name}.{listed}"
    )


def _left_out(validation: Validation) -> Section | None:
    predicted = validation.predicted
    rows = [(p.sweep.id, "listed, not counted", p.why_not) for p in predicted if not p.counted]
    rows += [(sweep, "not predicted", reason) for sweep, reason in validation.unmatched.items()]
    rows += [
        (p.sweep.id, f"no {MODE_NAMES[mode]} prediction", reason)
        for p in predicted
        for mode, reason in p.forecast.missing.items()
    ]
    rows += [
        (dataset.id, f"{count} rows left out", reason)
        for dataset in validation.trainings
        for reason, count in dataset.left_out.items()
    ]
    rows += [
        (dataset.id, f"{count} rows without scaling", reason)
        for dataset in validation.trainings
        for reason, count in dataset.not_scaled.items()
    ]
    lead = "Nothing is skipped silently: this is everything without a number above."
    table = Table(("What", "How", "Why"), rows)
    return table_section("What is not counted, and why", lead, table)


def _grounds(validation: Validation) -> Section:
    titles = ("Sweep", "Source", "Machine that was predicted, and what was assumed")
    sources = [
        (p.sweep.id, p.sweep.source, "; ".join((*p.matched.assumptions, *p.sweep.notes)))
        for p in validation.predicted
    ]
    return section(
        "What this rests on",
        "",
        Heading("Modes"),
        Definitions(MODE_MEANINGS),
        Folded("What was fitted on what", [Bullets(fitted_lines(validation))]),
        Heading("Sources and assumptions"),
        Box("tall", [Table(titles, sources)]),
    )
