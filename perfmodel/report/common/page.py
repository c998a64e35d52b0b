"""The frame of a page: one HTML document that needs nothing from the network."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.report.common.palette import DARK, QUIET_INK, channels

if TYPE_CHECKING:
    import plotly.graph_objects as go


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


def document(title: str, body: str) -> str:
    """Wrap a body in a page with plotly.js and the style sheet inside it."""
    from plotly.offline import get_plotlyjs

    style = f"{_asset('page.css')}{_dark()}"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n"
        f"<script>{get_plotlyjs()}</script>\n<script>\n{_asset('page.js')}</script>\n"
        f"</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def _dark() -> str:
    """Rules that exchange colours of figures and legends on a dark page, not on paper."""
    rules = []
    for light, dark in DARK.items():
        painted = "rgb({}, {}, {})".format(*channels(light))
        rules += [
            f'.plot [style*="{part}: {painted}"] {{ {part}: {dark} !important; }}'
            for part in ("fill", "stroke")
        ]
        rules.append(f'.swatch[style*="{light}"] {{ --c: {dark} !important; }}')
    return "@media screen and (prefers-color-scheme: dark) {{\n{}\n}}\n".format("\n".join(rules))


def figure_html(figure: go.Figure, name: str, description: str) -> str:
    """Turn a figure into HTML; its legend becomes text that wraps on narrow screens."""
    from plotly.io import to_html

    key = legend(figure)
    figure.update_layout(showlegend=False)
    drawing = to_html(
        figure,
        config=_CONFIG,
        include_plotlyjs=False,
        full_html=False,
        div_id=f"figure-{name}",
        default_height=f"{figure.layout.height}px",
    )
    return f'{key}<div class="plot" role="img" aria-label="{escape(description)}">{drawing}</div>'


def legend(figure: go.Figure) -> str:
    """List the traces of a figure with their colours, as HTML."""
    seen: dict[str, str] = {}
    for trace in figure.data:
        if trace.showlegend is not False and trace.name and trace.name not in seen:
            seen[trace.name] = _swatch(trace)
    if len(seen) < 2:
        return ""
    items = "".join(f"<li>{swatch}{escape(name)}</li>" for name, swatch in seen.items())
    return f'<ul class="legend">{items}</ul>'


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


def figure_section(title: str, lead: str, *parts: str) -> str:
    """Wrap figures and tables in a section with a heading and one sentence."""
    anchor = "".join(c if c.isalnum() else "-" for c in title.lower())
    sentence = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    content = "\n".join(parts)
    return f'<section id="{anchor}"><h2>{escape(title)}</h2>{sentence}\n{content}</section>'


def html_table(
    header: Sequence[str],
    rows: Iterable[Sequence[str]],
    *,
    words_at: Iterable[int] = (),
    marked: Collection[int] = (),
) -> str:
    """Write a table in a box that scrolls by itself; numbers right, words left.

    Parameters
    ----------
    header : sequence of str
    rows : iterable of sequences of str
    words_at : iterable of int
        Columns that hold words.
    marked : collection of int
        Rows above which a line is drawn.
    """
    left = set(words_at)

    def cells(values: Sequence[str], tag: str) -> str:
        return "".join(
            f"<{tag}{' class=w' if at in left else ''}>{escape(value)}</{tag}>"
            for at, value in enumerate(values)
        )

    body = "".join(
        f"<tr{' class=changed' if at in marked else ''}>{cells(row, 'td')}</tr>"
        for at, row in enumerate(rows)
    )
    return (
        '<div class="scroll" tabindex="0"><table><thead><tr>'
        f"{cells(header, 'th')}</tr></thead><tbody>{body}</tbody></table></div>"
    )
