"""Tuned buckets in the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from perfmodel.report import tuning_words as words
from perfmodel.tune.caps import number
from perfmodel.tune.compromise import Compromise
from perfmodel.tune.tuned import Tuned

if TYPE_CHECKING:
    from rich.console import Group
    from rich.table import Table


def print_tuned(tuned: Tuned) -> Group:
    """Arrange a tuning for ``rich.print``: the answer, settings, what to paste."""
    from rich.console import Group  # noqa: PLC0415  (rich is loaded where something is printed)
    from rich.text import Text  # noqa: PLC0415

    paste = [f"  {code}  # {note}" for code, note in words.to_paste(tuned)]
    notes = [words.first_step(tuned), *tuned.assumptions]
    fusion = [] if tuned.horovod is None else [Text(words.horovod_line(tuned.horovod))]
    notes += [] if tuned.horovod is None else tuned.horovod.assumptions
    return Group(
        Text(words.headline(tuned), style="bold"),
        _table(words.COLUMNS, words.rows(tuned)),
        Text("\n".join(words.advice(tuned))),
        Text("\n".join(paste)),
        *fusion,
        Text("\n".join(notes), style="dim"),
    )


def print_compromise(found: Compromise) -> Group:
    """Arrange one setting for several scenarios for ``rich.print``."""
    from rich.console import Group  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    cap = number(found.best.bucket_cap_mb or 0)
    return Group(
        Text(words.shared_headline(found), style="bold"),
        _table(words.SHARED_COLUMNS, words.shared_rows(found)),
        Text(f"  DistributedDataParallel(model, bucket_cap_mb={cap})"),
    )


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    from rich.markup import escape  # noqa: PLC0415
    from rich.table import Table  # noqa: PLC0415

    table = Table(header_style="bold", box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for at, column in enumerate(columns):
        table.add_column(column, justify="left" if at == 0 else "right", no_wrap=at > 0)
    for row in rows:
        table.add_row(*(escape(cell) for cell in row))
    return table
