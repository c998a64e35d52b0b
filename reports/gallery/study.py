"""What a study of the gallery consists of."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from perfmodel.report.common.images import Picture

HERE = Path(__file__).parent

Pages = Mapping[str, Callable[[Path], object]]
"""What writes a folder of HTML pages, by the folder's name."""


@dataclass(frozen=True)
class Study:
    """One study: its text, its tables and its pictures.

    Parameters
    ----------
    title : str
    text : str
        Markdown; pictures are named by their files.
    tables : mapping of str to str
        CSV by file name.
    pictures : mapping of str to Picture
        By file name without its ending.
    pages : mapping of str to callable
    """

    title: str
    text: str
    tables: Mapping[str, str]
    pictures: Mapping[str, Picture]
    pages: Pages = field(default_factory=dict)


def as_csv(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Write a table; floats with nine digits, which every machine gives alike."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(titles)
    writer.writerows(
        [f"{value:.9g}" if isinstance(value, float) else value for value in row] for row in rows
    )
    return text.getvalue()
