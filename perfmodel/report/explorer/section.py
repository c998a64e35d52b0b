"""The what-if explorer as a section of the page: sliders over a grid of simulated points."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import median
from typing import Any

from perfmodel.files import require_finite
from perfmodel.report.common import quantities
from perfmodel.report.common.document import Markup, Section, join_applying, section
from perfmodel.report.explorer.design import Axis
from perfmodel.report.explorer.grid import Grid, InterpolationCheck
from perfmodel.studies.run.result import Result

_TILES = (
    ("step", "Step time", ""),
    ("speed", "Throughput, {samples}/s", ""),
    ("share", "Scaling efficiency", ""),
    ("exposed", "Waiting for communication", ""),
    ("limit", "Bottleneck", "text"),
)

_HINT = "Arrow keys move a slider, Page Up and Page Down go to the next simulated setting."
_NETWORK_HINT = (
    " Network bandwidth and latency are those of all links between nodes; the library's own "
    "latency between nodes is scaled alike, and it chooses its algorithms anew."
)
_DOTS = "Dots are simulated, crosses do not fit in GPU memory. The ring is where the slider stands"
_BETWEEN_DOTS = (
    "Dots are simulated; dashed lines and hollow dots are estimated, crosses do not fit in GPU "
    "memory. The ring is where the slider stands"
)

FEW_MOVED = 2
"""Sliders that people move at once; estimates are worse with more of them."""

COARSE_ERROR_SHARE = 0.05
"""Error of interpolation from which on the page advises to simulate a setting itself."""

_FILE = re.compile(r"^.*?(?=\S+: found )")

COLUMNS = (
    "step_time_s",
    "low_s",
    "high_s",
    "comm_s",
    "exposed_comm_s",
    "samples",
    "memory_bytes",
)


def explorer_section(result: Result, grid: Grid) -> Section:
    """Build the section: sliders, the figures that they show, the data and the script."""
    others = "" if grid.design.is_complete else "; others are estimated from those and say so"
    lead = (
        f"Move a slider: {len(grid.rows):,} combinations of the ticked settings were simulated "
        f"beforehand{others}. Efficiency is relative to {grid.axes[-1].points[0].label} with the "
        "same other settings."
    )
    network = any(axis.key in {"bandwidth", "latency"} for axis in grid.axes)
    markup = [
        f"<style>\n{_read('explorer.css')}</style>",
        (
            f'<div class="explorer" id="explorer"><div>{"".join(map(_slider, grid.axes))}'
            '<button type="button" id="explorer-reset">Back to what was asked</button>'
            f'<p class="hint">{_HINT}{_NETWORK_HINT if network else ""}</p></div>'
            '<div><p id="explorer-mark" role="status">The explorer needs JavaScript.</p>'
            f'<div class="answers">{"".join(_tile(result, *tile) for tile in _TILES)}</div>'
            "</div></div>"
            '<h3 id="explorer-chart-title"></h3>'
            '<div><svg id="explorer-chart" role="img"></svg></div>'
            f'<p class="hint">{_BETWEEN_DOTS if grid.checks else _DOTS}; shaded: '
            "80\N{NO-BREAK SPACE}% interval.</p>"
            f'<p class="hint">{escape(_simulated_sentence(grid))} '
            f"{escape(interpolation_sentence(grid))}</p>"
        ),
        f'<script type="application/json" id="explorer-data">{_embed_json(to_data(grid))}</script>',
        f"<script>\n{_read('explorer.js')}</script>",
    ]
    return section("What if", lead, Markup("\n".join(markup)))


def _simulated_sentence(grid: Grid) -> str:
    if grid.design.is_complete:
        return "All combinations of ticked settings are simulated."
    most = max(map(len, grid.design.groups))
    sets = "alone, and together with each of every other slider" if most > 1 else "alone"
    if most > 2:  # two sliders are in every group of three
        hubs = set.intersection(*(set(group) for group in grid.design.groups if len(group) > 2))
        names = sorted(grid.axes[at].name for at in hubs)[:2]
        inner = (name if name[:2].isupper() else name[0].lower() + name[1:] for name in names)
        sets += f", and in threes with {' and '.join(inner)}"
    return f"Every ticked setting is simulated {sets}."


def interpolation_sentence(grid: Grid) -> str:
    """State the errors at the places where they were measured."""
    if not grid.checks:
        return "Nothing lies between them."
    few, more = map(_errors, by_sliders_moved(grid))
    measured = join_applying(
        (few, f"with one or two sliders moved {few}"),
        (more, f"{'with more' if few else 'with several sliders moved'} {more}"),
        by="; ",
    )
    hint = " Simulate a setting itself before you rely on it: perfmodel run --set."
    return (
        "All others are estimated from those and say so. Some were drawn at random and simulated "
        f"only to see how good that is: {measured}."
        f"{hint if grid.worst_error > COARSE_ERROR_SHARE else ''}"
    )


def by_sliders_moved(grid: Grid) -> tuple[Sequence[InterpolationCheck], ...]:
    """Checks with few sliders moved, which most people do, and with more."""
    return tuple(
        [check for check in grid.checks if (check.moved <= FEW_MOVED) is few]
        for few in (True, False)
    )


def _errors(checks: Sequence[InterpolationCheck]) -> str:
    if not checks:
        return ""
    errors = [check.error for check in checks]
    return (
        f"the step time was off by {_share(median(errors))} in the median of {len(errors)} and by "
        f"{_share(max(errors))} at worst"
    )


def _share(error: float) -> str:
    return quantities.percent(error) if error >= 0.0005 else "less than 0.1\N{NO-BREAK SPACE}%"


def to_data(grid: Grid) -> dict[str, Any]:
    """Write the grid as the script reads it: flat columns, the last axis varying fastest."""
    rows = grid.rows
    names = sorted({row["bottleneck"] for row in rows if row is not None})

    def column(write: Callable[[Mapping[str, Any]], object]) -> list[object]:
        return [None if row is None else write(row) for row in rows]

    def number(name: str) -> Callable[[Mapping[str, Any]], float | None]:
        return lambda row: None if row[name] is None else require_finite(float(row[name]), name)

    return {
        "axes": [
            {
                "key": axis.key,
                "name": axis.name,
                "points": len(axis),
                "asked": _baseline_stop(axis),
                "stops": [
                    {"at": stop.at, "label": stop.label, "short": stop.short}
                    | ({"gpus": int(stop.value)} if axis.key == "gpus" else {})
                    for stop in axis.stops
                ],
            }
            for axis in grid.axes
        ],
        "points": grid.design.points,
        "groups": grid.design.groups,
        "room": grid.room_bytes,
        "columns": {
            **{name: column(number(name)) for name in COLUMNS},
            "bottleneck": column(lambda row: names.index(row["bottleneck"])),
            "fits": column(lambda row: bool(row["fits"])),
        },
        "bottlenecks": names,
        "errors": list(map(_worst, by_sliders_moved(grid))),
        "few": FEW_MOVED,
        # without the path of the scenario's file, so that a shared page does not name it
        "failed": _FILE.sub("", grid.failed.partition("\n")[0], count=1),
    }


def _worst(checks: Sequence[InterpolationCheck]) -> str:
    """Say how far estimates are off, beside one of them."""
    if not checks:
        return ""
    worst = quantities.percent(max(check.error for check in checks))
    tried = f"At {len(checks)} such places, drawn at random"
    return f"{tried}, it was off by up to {worst}; rarely more."


def _baseline_stop(axis: Axis) -> int:
    """Number of the stop at which the slider starts."""
    return next(number for number, stop in enumerate(axis.stops) if stop.at == axis.baseline)


def _slider(axis: Axis) -> str:
    name, stops, own = f"explorer-{axis.key}", axis.stops, _baseline_stop(axis)
    ticks = "".join(
        f'<option value="{number}"></option>'
        for number, stop in enumerate(stops)
        if stop.at.is_integer()
    )
    # one of a single stop has nothing to move, but the script reads it
    return (
        f'<div class="axis"{" hidden" if len(stops) < 2 else ""}><label for="{name}">'
        f"<span>{escape(axis.name)}</span>"
        f'<output id="{name}-value" for="{name}">{escape(stops[own].label)}</output></label>'
        f'<input type="range" id="{name}" min="0" max="{len(stops) - 1}" step="1" '
        f'value="{own}" list="{name}-points" autocomplete="off">'
        f'<datalist id="{name}-points">{ticks}</datalist></div>'
    )


def _tile(result: Result, name: str, title: str, look: str) -> str:
    interval = '<small id="explorer-interval"></small>' if name == "step" else ""
    return (
        f'<div class="tile {look}"><span>'
        f"{escape(title.format(samples=result.samples.units))}</span>"
        f'<strong id="explorer-{name}"></strong>'
        f'<small id="explorer-{name}-change"></small>{interval}</div>'
    )


def _read(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _embed_json(data: Mapping[str, Any]) -> str:
    """JSON that no HTML parser can take for the end of the script or for a comment."""
    return json.dumps(data, allow_nan=False, separators=(",", ":")).translate(
        {ord(each): f"\\u{ord(each):04x}" for each in "<>&\u2028\u2029"}
    )
