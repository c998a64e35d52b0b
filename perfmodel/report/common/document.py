"""What a report is made of: headings, sentences, tables and figures, in the order of reading.

`html.render_html`, `markdown.render_markdown` and `terminal.render_terminal` write them out.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import plotly.graph_objects as go


Role = Literal["", "headline", "setting", "question", "lead", "note", "hint"]


class Block:
    """Any part of a document."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Paragraph(Block):
    """Text; `role` decides how it looks."""

    text: str
    role: Role = ""


@dataclass(frozen=True, slots=True)
class Heading(Block):
    """Heading of a part of a section."""

    text: str


@dataclass(frozen=True, slots=True)
class Bullets(Block):
    """A list of sentences."""

    lines: Sequence[str]
    style: str = ""


@dataclass(frozen=True, slots=True)
class Definitions(Block):
    """Names, and what each of them is."""

    entries: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Table(Block):
    """Cells as text.

    `header`: those of columns of numbers, which are set to the right, start with ``>``.
    `marked`: rows above which a line is drawn (in HTML).
    `ruled`: whether a rule follows the header (in the terminal).
    `wraps`: whether cells may break into lines, so that many columns fit (in HTML).
    """

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    marked: Collection[int] = ()
    ruled: bool = True
    wraps: bool = False

    @property
    def titles(self) -> list[str]:
        """Header without marks."""
        return [title.removeprefix(">") for title in self.header]

    @property
    def numeric(self) -> list[bool]:
        """Which columns hold numbers."""
        return [title.startswith(">") for title in self.header]


Column = tuple[str, Callable[[Any], str]]
"""Title of a column, and the function that writes its cell of an item."""


def tabulate(items: Iterable[Any], columns: Iterable[Column | None], **look: Any) -> Table:
    """Make a table of one row per item; None among columns is dropped.

    `look`: further fields of `Table`.
    """
    shown = [column for column in columns if column is not None]
    rows = [[write(item) for _, write in shown] for item in items]
    return Table([title for title, _ in shown], rows, **look)


@dataclass(frozen=True, slots=True)
class Tile:
    """One number in large type; `style` is "text" for words, "bad" for what fails."""

    title: str
    figure: str
    note: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Tiles(Block):
    """Numbers side by side."""

    tiles: Sequence[Tile]


@dataclass(frozen=True, slots=True)
class Figure(Block):
    """A plotly figure; `name` is unique in its document, `description` is read to the blind."""

    figure: go.Figure
    name: str
    description: str


@dataclass(frozen=True, slots=True)
class Code(Block):
    """Lines to copy."""

    text: str


@dataclass(frozen=True, slots=True)
class Markup(Block):
    """HTML that no other block makes; left out of other media."""

    html: str


@dataclass(frozen=True, slots=True)
class Box(Block):
    """Blocks laid out together in HTML by the rules of the style sheet for a class."""

    style: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Folded(Block):
    """Blocks that the reader unfolds."""

    title: str
    blocks: Sequence[Block]


@dataclass(frozen=True, slots=True)
class Header(Block):
    """Head of a document: what was asked, and the answer."""

    paragraphs: Sequence[Paragraph]


@dataclass(frozen=True, slots=True)
class Section(Block):
    """A titled part of a document."""

    title: str
    blocks: Sequence[Block]


def paragraphs(lines: Iterable[str], role: Role = "") -> list[Paragraph]:
    """One paragraph per line that is not empty."""
    return [Paragraph(line, role) for line in lines if line]


PREDICTED = "Predictions by simulation, not measurements."
"""What a page says of all of its numbers."""


def header(
    setting: str,
    headline: str,
    notes: Iterable[str],
    questions: Iterable[str] = (),
    sentences: Iterable[str] = (),
) -> Header:
    """Make the head of a document; empty texts are dropped."""
    return Header(
        [
            *paragraphs([setting], "setting"),
            *paragraphs([headline], "headline"),
            *paragraphs(questions, "question"),
            *paragraphs(sentences),
            *paragraphs(notes, "note"),
        ]
    )


def section(title: str, lead: str, *blocks: Block | None) -> Section:
    """Make a section that begins with a sentence, if there is one; None among blocks is dropped."""
    return Section(title, [*paragraphs([lead], "lead"), *(b for b in blocks if b is not None)])


def table_section(title: str, lead: str, table: Table) -> Section | None:
    """Make a section of one table; None if the table is empty."""
    return section(title, lead, table) if table.rows else None


def bullets_section(title: str, lines: Sequence[str]) -> Section | None:
    """Make a section of a list of sentences; None if there are none."""
    return section(title, "", Bullets(lines)) if lines else None


def pair(*columns: Sequence[Block]) -> Box:
    """Lay out blocks in two columns."""
    return Box("pair", [Box("", column) for column in columns])


def grounds(assumptions: Sequence[str], provenance: Mapping[str, str]) -> Section:
    """Make the section of what a page rests on, with its provenance folded away."""
    folded = Folded("Provenance", [Definitions(provenance)])
    return section("What this rests on", "", Bullets(assumptions), folded)
