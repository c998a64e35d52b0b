"""What a validation says in words, and its Markdown and CSV files."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence

from perfmodel.report.validation import tables
from perfmodel.report.validation.tables import Table
from perfmodel.validate.run import Validation
from perfmodel.validate.score import scores
from perfmodel.validate.score.scores import LARGE

TARGETS = (
    "Aimed at, from 256 KiB on: datasheet mode 15 % in the median and 40 % in the 90th percentile, "
    "transferred 5 % and 25 %; below 256 KiB 30 % and 12 % in the median. Two independent logs of "
    "one machine differ by 1 to 12 % in the median and 5 to 40 % in the 90th percentile."
)
WEIGHING = "Every sweep weighs the same, however many sizes it has."


def percent(fraction: float) -> str:
    """Write an error in per cent; the space does not break."""
    return tables.percent(fraction).replace(" ", "\N{NO-BREAK SPACE}")


def headline(found: Validation) -> str:
    """Say in one sentence how far datasheet predictions are off."""
    one = found.bands.get("datasheet", {}).get(LARGE)
    if one is None:
        return "No sweep could be scored"
    return (
        f"From datasheets alone, half of the times are within {percent(one.median_abs_error)} and "
        f"nine of ten within {percent(one.p90_abs_error)} of what was measured"
    )


def setting(found: Validation) -> str:
    """Say what was compared: how many sweeps count, and of how many kinds of machine."""
    counted = sum(one.counted for one in found.predicted)
    kinds = len({p.machine for p in found.points})
    return (
        f"{found.data}: {counted} counted, {len(found.predicted) - counted} listed only, "
        f"{len(found.unmatched)} without a prediction; {kinds} kinds of machine"
    )


MODES_SAID = (
    ("datasheet", ("nothing was fitted on this machine: its parts, and constants shared by all "
                   "machines of a generation of GPU and a kind of network")),
    ("transferred", ("a profile fitted on other sweeps of the same hardware and collective at any "
                     "scale, the sweep itself left out")),
    ("NCCL's own formula", "the cost that NCCL's tuner computes for what it would choose"),
    ("alpha-beta", "steps of a ring times one latency, plus bytes over the nominal rate"),
)  # fmt: skip


def fitted_lines(found: Validation) -> list[str]:
    """Say which sweeps the shipped constants were fitted on."""
    if not found.fitted:
        return ["No constant of the library models was fitted on any of these sweeps."]
    return [f"{one.constants}: fitted on {', '.join(one.sweeps)}" for one in found.fitted]


# ---------------------------------------------------------------- Markdown


def validation_markdown(found: Validation) -> str:
    """Write the same tables as Markdown."""
    return "\n".join(_markdown(found)).rstrip() + "\n"


def _markdown(found: Validation) -> Iterator[str]:
    yield from ("# Predicted versus measured", "", headline(found) + ".", "")
    yield from (setting(found) + ".", "", "Remade by `perfmodel validate`.", "")
    common = tables.band_table(found, common=True)
    for title, text, one in (
        ("Errors by size and mode", f"Median / 90th percentile. {TARGETS} {WEIGHING}",
         tables.band_table(found)),
        ("On the sweeps that every mode predicts", "", common),
        ("By kind of machine", "From 256 KiB on.", tables.machine_table(found)),
        ("Intervals", "Measured times inside 80 % intervals, which come from other sweeps.",
         tables.coverage_table(found)),
        ("Trainings", "", tables.training_table(found)),
        ("Sweep by sweep", "", tables.sweep_table(found)),
    ):  # fmt: skip
        if one.rows:
            yield from (f"## {title}", "", *([text, ""] if text else ()), *markdown_table(one), "")
    fitted, left_out = fitted_lines(found), tables.lists(found)
    yield from ("## What was fitted on what", "", *(f"- {as_text(x)}" for x in fitted), "")
    if found.fitted:
        yield from (*markdown_table(tables.split_table(found)), "")
    yield from ("## What is not counted, and why", "", *(f"- {as_text(x)}" for x in left_out), "")
    yield from ("## Modes", "", *(f"- **{name}**: {said}" for name, said in MODES_SAID))


def as_text(words: str) -> str:
    """Words of strangers for Markdown, which would take ``<`` for HTML and ``](`` for a link."""
    return words.replace("&", "&amp;").replace("<", "&lt;").replace("](", "]\\(")


def markdown_table(one: Table) -> Iterator[str]:
    """Lines of a Markdown table; numbers to the right."""

    def line(cells: Sequence[str]) -> str:
        return "| " + " | ".join(as_text(cell).replace("|", "\\|") for cell in cells) + " |"

    yield line([header.removeprefix(">") for header in one.header])
    yield line(["---:" if header.startswith(">") else "---" for header in one.header])
    yield from (line(row) for row in one.rows)


# ---------------------------------------------------------------- CSV


def points_csv(found: Validation) -> str:
    """One row per sweep and size; times in microseconds, a column per mode."""
    modes = [mode for mode in scores.MODES if any(mode in one.times for one in found.predicted)]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(
        ("sweep_id", "counted", "nbytes", "way", "measured_us", *(f"{m}_us" for m in modes))
    )
    for one in found.predicted:
        for at, row in enumerate(one.sweep.rows):
            times = [one.times[m].time_s[at] if m in one.times else None for m in modes]
            writer.writerow(
                (one.sweep.id, int(one.counted), row.nbytes, one.ways[at],
                 f"{row.time_s * 1e6:.6g}",
                 *("" if t is None else f"{t * 1e6:.5g}" for t in times))
            )  # fmt: skip
    return text.getvalue()


def trainings_csv(found: Validation) -> str:
    """One row per published number of a training."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("dataset", "case", "published", "predicted", "unit", "error", "source"))
    for data in found.trainings:
        for case in data.cases:
            writer.writerow(
                (data.id, case.name, f"{case.published:.6g}", f"{case.predicted:.6g}", case.unit,
                 f"{case.error:.4f}", case.source)
            )  # fmt: skip
    return text.getvalue()
