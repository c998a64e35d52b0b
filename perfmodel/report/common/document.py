"""What a report is made of: headings, sentences, tables and figures, in the order of reading.

`html.render_html`, `markdown.render_markdown` and `terminal.render_terminal` write them out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, Literal

from perfmodel.memo import applying, first_applying

if TYPE_CHECKING:
    import plotly.graph_objects as go

    from perfmodel.topology.model import Topology

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
    return Table(
        [title for title, _ in shown],
        [[write(item) for _, write in shown] for item in items],
        **look,
    )


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


def join_applying(*said: tuple[object, str], by: str = " ") -> str:
    """Join the texts whose condition holds: `said` has (condition, text)."""
    return by.join(applying(*said))


PREDICTION = "A prediction by simulation, not a measurement."
"""What a page says of its answer."""
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
    return section(
        "What this rests on",
        "",
        Bullets(assumptions),
        Folded("Provenance", [Definitions(provenance)]),
    )


def spelled(facts: Mapping[str, str]) -> dict[str, str]:
    """Write the names of facts as words."""
    return {name.replace("_", " "): value for name, value in facts.items()}


# ---------------------------------------------------------------- words of other ranks
# Texts are written for NVIDIA's GPUs; of processes and chips they say so, and of AMD's GPUs "XGMI".

_Terms = tuple[tuple[re.Pattern[str], str], ...]

_PROCESSES: _Terms = (
    (re.compile(r", with room for the [^,]* of CUDA, NCCL and allocator"), ""),
    (re.compile(r"^(>?)GPU(?=s?\b)"), r"\1Process"),
    (re.compile(r"^(>?Process)s\b"), r"\1es"),
    (re.compile(r"\bGPUs\b"), "processes"),
    (re.compile(r"(?<!published throughputs of one )\bGPU\b"), "process"),
)
"""What is said of GPUs, and of processes; these keep no memory for CUDA."""

_AMD: _Terms = (
    (re.compile(r"\bNVLinks\b"), "XGMI links"),
    (re.compile(r"\bNVLink\b"), "XGMI"),
    (re.compile(r"(?:(?<=\()|^)nvlink(?=\)|$)"), "xgmi"),
    (re.compile(r"\bNV[0-9]+\b"), "XGMI"),
    (re.compile(r"\bCUDA, NCCL and allocator"), "ROCm, RCCL and allocator"),
)
"""What is said of NVIDIA's GPUs, and of AMD's, whose links are kinds of "nvlink" in the model."""

_CHIPS: _Terms = (
    (re.compile(r"\bCUDA, NCCL and (?:the )?allocator"), "the runtime and its buffers"),
    (re.compile(r"\bNVLinks?\b"), "links"),
    (re.compile(r"^(>?)GPU(?=s?\b)"), r"\1Chip"),
    (re.compile(r"(?<!published throughputs of one )\bGPU(?=s?\b)"), "chip"),
)
"""What is said of NVIDIA's GPUs, and of accelerators, which have neither CUDA nor NCCL."""

_ICI: _Terms = (
    *_CHIPS,
    (re.compile(r"\bhost('s|s') NICs?\b"), r"chip\1 ICI links"),
    (re.compile(r"\bPCIe, Ethernet\b"), "ICI"),
    (re.compile(r"\bEthernet\b"), "ICI"),
    (re.compile(r"(?:(?<=\()|^)ethernet(?=\)|$)"), "ici"),
)
"""The same of TPUs, whose links are kinds of "ethernet" in the model."""

_USERS_OWN = ("question", "setting")


def has_processes(topology: Topology) -> bool:
    """Whether ranks are processes on CPUs."""
    return topology.gpu.generation == "cpu"


def _terms_of(topology: Topology) -> _Terms:
    chip = topology.gpu.accelerator
    return first_applying(
        (has_processes(topology), _PROCESSES),
        (chip and topology.network == "ici", _ICI),
        (chip, _CHIPS),
        (topology.gpu.amd, _AMD),
        (True, ()),
    )


def in_words_of(topology: Topology, text: str) -> str:
    """A text as it is for NVIDIA's GPUs, in words of these ranks."""
    return _in_terms(text, _terms_of(topology))


def _in_terms(text: str, terms: _Terms) -> str:
    for pattern, instead in terms:
        text = pattern.sub(instead, text)
    return text


def count_ranks(topology: Topology) -> str:
    """Say how many ranks there are: "1,024 GPUs", "1 process"."""
    count = len(topology.ranks)
    if has_processes(topology):
        return f"{count:,} {'process' if count == 1 else 'processes'}"
    return f"{count:,} {'chip' if topology.gpu.accelerator else 'GPU'}{'' if count == 1 else 's'}"


def for_ranks_of(topology: Topology, blocks: Iterable[Block | None]) -> list[Block]:
    """Blocks as they are for NVIDIA's GPUs, in words of others; what users wrote stays."""
    present, terms = [block for block in blocks if block is not None], _terms_of(topology)
    return [_renamed(block, terms) for block in present] if terms else present


def _renamed(value: Any, terms: _Terms) -> Any:
    """Rename in every text of a block and of what is in it, HTML and figures too."""
    if isinstance(value, str):
        return _in_terms(value, terms)
    if isinstance(value, Figure):
        import plotly.graph_objects as go

        return Figure(
            go.Figure(_renamed(value.figure.to_plotly_json(), terms)),
            value.name,
            _renamed(value.description, terms),
        )
    own = isinstance(value, Paragraph) and value.role in _USERS_OWN
    if not own and hasattr(value, "__dataclass_fields__"):
        return replace(
            value, **{f.name: _renamed(getattr(value, f.name), terms) for f in fields(value)}
        )
    if isinstance(value, dict):
        return {_renamed(name, terms): _renamed(inner, terms) for name, inner in value.items()}
    return [_renamed(each, terms) for each in value] if isinstance(value, list | tuple) else value
