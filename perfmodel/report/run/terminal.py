"""A result in the terminal: one sentence, one table of sizes, and what to know about them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perfmodel.report.common import quantities
from perfmodel.report.run import events
from perfmodel.studies.run.result import Result

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


def print_result(result: Result) -> Group:
    """Arrange a result for ``rich.print``: the answer, the sizes, memory and certainty."""
    from rich.console import Group
    from rich.text import Text

    main = result.main
    lines = [quantities.memory(main.memory) + ".", *main.memory.advice]
    if not_fitting := [f"{p.gpus:,}" for p in result.points[:-1] if not p.memory.fits]:
        lines.append(f"Does not fit on {', '.join(not_fitting)} GPUs: those rows are hypothetical.")
    lines.append(f"{quantities.scaling(result)}. Step time: {quantities.interval(main)}.")
    return Group(
        Text(quantities.headline(result), style="bold"),
        sizes_table(result),
        *(Text(line) for line in events.lines(main)),
        Text("\n".join(lines), style="dim"),
    )


def sizes_table(result: Result) -> Table:
    """One row per cluster size."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    several = len(result.points) > 1  # one size says nothing about scaling
    efficiency = ("efficiency",) if several else ()
    for column in ("GPUs", "step", f"{quantities.samples_short(result)}/s", *efficiency, "exposed"):
        table.add_column(escape(column), justify="right", no_wrap=True)
    table.add_column("bottleneck", overflow="fold")
    for point in result.points:
        table.add_row(
            f"{point.gpus:,}",
            quantities.duration(point.step_time_s),
            quantities.count(point.samples_per_s),
            *((quantities.percent_column(point.scaling_efficiency),) if several else ()),
            quantities.duration(point.exposed_comm_s),
            escape(point.bottleneck),
        )
    return table
