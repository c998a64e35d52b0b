"""Blocks of a report as one HTML page that needs nothing from the network."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from perfmodel.files import write_atomically, write_json
from perfmodel.memo import grouped
from perfmodel.report.common.document import (
    Block,
    Box,
    Bullets,
    Code,
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
    join_applying,
)
from perfmodel.report.common.figures import Drawing, pack
from perfmodel.report.common.palette import DARK, QUIET_INK, channels
from perfmodel.report.common.quantities import SPACE

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
"""Browsers refuse every request of the page, so that a mailed report stays private."""

_CONFIG = {
    "responsive": True,
    "displaylogo": False,
    "displayModeBar": False,
    "showTips": False,
    "scrollZoom": False,
}

_DIGITS = re.compile(r"(?<=[\[,:])-?\d+\.\d{7,}(?:e[+-]?\d+)?(?=[,\]}])")
"""Numbers of figures with more digits than any screen has pixels."""

_ESCAPES = re.compile(r"\\\\|\\u00(?:3e|2f|a0)")
_PLAIN = {"\\u003e": ">", "\\u002f": "/", "\\u00a0": "\N{NO-BREAK SPACE}"}
"""Characters that are safe within a script as they are, once every ``<`` of it is escaped."""

_URL = re.compile(r"(https?://[^\s<>\"')\]]+[^\s<>\"')\].,;])")

_LONG_ROWS = 16
"""Rows from which a table may go on on the next sheet of paper."""

_MANY_COLUMNS = 8
"""Columns from which a table has less room between them."""

_TILE_LETTERS = 9
"""Letters that fit into a tile on a phone."""

_SHORT_TEXT = 16
"""Letters up to which text in a column stands on one line."""


def write_report_files(folder: Path, files: Mapping[str, Any]) -> Path:
    """Write files by name and return the path of the first.

    Text and bytes are written as they are, mappings as JSON; None is left out.

    Raises `InputError`: the folder cannot be written to.
    """
    for name, content in files.items():
        if isinstance(content, Mapping):
            write_json(folder / name, content)
        elif content is not None:
            write_atomically(folder / name, content)
    return folder / next(iter(files))


def write_each(files: Mapping[str, Callable[[Any], Any]], result: Any, folder: Path) -> Path:
    """Write each file as its function makes it of a result.

    Returns and raises as `write_report_files`.
    """
    return write_report_files(folder, {name: make(result) for name, make in files.items()})


def render_html(title: str, blocks: Iterable[Block | None]) -> str:
    """Write a page with plotly.js and the style sheet inside it; None among blocks is dropped.

    The library stands at the end, and `page.js` draws the figures: text is readable before. It is
    plotly.js without the kinds of traces that no figure here has, a quarter of the whole.
    """
    body = _render_all(block for block in blocks if block is not None)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_asset('page.css')}{_dark()}</style>\n"
        f"</head>\n<body>\n<main>\n{body}\n</main>\n"
        f"<script>{_asset('plotly_js/plotly-basic.min.js')}</script>\n"
        f"<script>\n{_asset('page.js')}</script>\n"
        "</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _dark() -> str:
    """Rules that exchange colours of figures and legends on a dark page, not on paper."""
    rules = [
        rule
        for light, dark in DARK.items()
        for rule in (
            *(
                '.plot [style*="{0}: rgb({1}, {2}, {3})"] {{ {0}: {4} !important; }}'.format(
                    part, *channels(light), dark
                )
                for part in ("fill", "stroke")
            ),
            f'.swatch[style*="{light}"] {{ --c: {dark} !important; }}',
        )
    ]
    return "@media screen and (prefers-color-scheme: dark) {{\n{}\n}}\n".format("\n".join(rules))


# ---------------------------------------------------------------- blocks


def _render_all(blocks: Iterable[Block]) -> str:
    return "\n".join(map(render_block, blocks))


def render_block(block: Block) -> str:
    """Write one block and what is in it."""
    match block:
        case Paragraph(text, role):
            tag = "h1" if role == "headline" else "p"
            html = f"<{tag}{_class(role if tag == 'p' else '')}>{_prose(text)}</{tag}>"
        case Heading(text):
            html = f"<h3>{escape(text)}</h3>"
        case Bullets(lines, style):
            items = "".join(f"<li>{_with_links(line)}</li>" for line in lines)
            html = f"<ul{_class(style)}>{items}</ul>"
        case Definitions(entries):
            rows = (f"<dt>{escape(k)}</dt><dd>{_with_links(v)}</dd>" for k, v in entries.items())
            html = f"<dl>{''.join(rows)}</dl>"
        case Code(text):
            html = (
                '<div class="scroll code" tabindex="0"><pre><code>'
                f"{escape(text)}</code></pre></div>"
            )
        case Table():
            html = _table(block)
        case Figure():
            html = _figure(block)
        case Tiles(tiles):
            html = f'<div class="tiles">{"".join(map(_tile, tiles))}</div>'
        case Markup(html):
            pass
        case _:
            html = _container(block)
    return html


def _container(block: Block) -> str:
    match block:
        case Header(inner):
            return f"<header>{_render_all(inner)}</header>"
        case Box(style, inner):
            return f"<div{_class(style)}>{_render_all(inner)}</div>"
        case Folded(title, inner):
            return f"<details><summary>{escape(title)}</summary>{_render_all(inner)}</details>"
        case Section(title, inner):
            anchor = "".join(c if c.isalnum() else "-" for c in title.lower())
            return f'<section id="{anchor}"><h2>{escape(title)}</h2>{_render_all(inner)}</section>'
    return ""


def _class(style: str) -> str:
    return f' class="{style}"' if style else ""


def _tile(tile: Tile) -> str:
    # a long number may leave its unit to the next line: a phone would break within the unit
    space = " " if len(tile.figure) > _TILE_LETTERS else SPACE
    return (
        f"<div{_class(f'tile {tile.style}'.strip())}><span>{escape(tile.title)}</span>"
        f"<strong>{escape(tile.figure.replace(SPACE, space))}</strong>"
        f"<small>{escape(tile.note)}</small></div>"
    )


def _table(block: Table) -> str:
    """Write a table in a box that scrolls by itself."""
    # a column of text needs no room to wrap in where all of it is short
    styles = [
        "" if numeric else "s" if max(map(len, values), default=0) <= _SHORT_TEXT else "w"
        for numeric, *values in zip(block.numeric, *block.rows, strict=True)
    ]

    def cell(value: str, style: str, tag: str) -> str:
        text = escape(value)
        if tag == "th" or block.wraps or style == "w":
            # names of fields break at their joints
            text = re.sub(r"(?<=[A-Za-z])[._](?=[A-Za-z])", r"\g<0><wbr>", text)
        return f"<{tag}{style and f' class={style}'}>{text}</{tag}>"

    def cells(values: Sequence[str], tag: str) -> str:
        return "".join(cell(*pair, tag) for pair in zip(values, styles, strict=True))

    body = "".join(
        f"<tr{' class=changed' if number in block.marked else ''}>{cells(row, 'td')}</tr>"
        for number, row in enumerate(block.rows)
    )
    many = len(block.titles) > _MANY_COLUMNS
    style = _class(join_applying((block.wraps, "wraps"), (many, "many")))
    long = " long" if len(block.rows) > _LONG_ROWS else ""
    return (
        f'<div class="scroll{long}" tabindex="0"><table{style}><thead><tr>'
        f"{cells(block.titles, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _with_links(text: str) -> str:
    """Escape text and turn web addresses into links, which load nothing until they are clicked."""
    # every second part is an address
    return "".join(
        f'<a rel="noopener noreferrer" href="{escape(part)}">{escape(part)}</a>'
        if at % 2
        else _prose(part)
        for at, part in enumerate(_URL.split(text))
    )


def _prose(text: str) -> str:
    """Escape a text, with what stands between backquotes as code."""
    return re.sub(r"`([^`\n]+)`", r"<code>\1</code>", escape(text))


# ---------------------------------------------------------------- figures


def _figure(block: Figure) -> str:
    """Turn a figure into HTML; its legend becomes text that wraps on narrow screens."""
    from plotly.io import to_html

    figure, key = block.figure, legend(block.figure)
    figure.update_layout(showlegend=False)
    drawing = to_html(
        figure,
        config=_CONFIG,
        include_plotlyjs=False,
        full_html=False,
        div_id=f"figure-{block.name}",
        default_height=f"{figure.layout.height}px",
    )
    drawing = drawing.replace("<script", '<script type="text/plain" class="drawing"', 1)
    drawing = _DIGITS.sub(lambda number: f"{float(number[0]):.7g}", drawing)
    drawing = pack(_ESCAPES.sub(lambda escaped: _PLAIN.get(escaped[0], escaped[0]), drawing))
    return (
        f'{key}<div class="plot" role="img" aria-label="{escape(block.description)}">{drawing}'
        "</div>"
    )


def legend(figure: Drawing) -> str:
    """List the traces of a figure with their colours, as HTML."""
    traces = grouped(
        (trace.name, trace) for trace in figure.data if trace.showlegend is not False and trace.name
    )
    items = (f"<li>{_swatch(own[0])}{escape(name)}</li>" for name, own in traces.items())
    return "" if len(traces) < 2 else f'<ul class="legend">{"".join(items)}</ul>'


def _swatch(trace: Any) -> str:
    marker = trace.marker
    colour, shape = marker.color, "box"
    if trace.type == "scatter" and ("lines" in trace.mode or marker.opacity == 0):
        colour = trace.line.color or marker.color
        shape = "dash" if trace.line.dash else "line"
    elif trace.type == "scatter":
        shape = f"{marker.symbol or 'circle'}".partition("-")[0]
    style = f"--c:{colour or QUIET_INK}" + (f";opacity:{marker.opacity}" if marker.opacity else "")
    return f'<i class="swatch {escape(shape)}" style="{escape(style)}"></i>'
