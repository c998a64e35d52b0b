"""Blocks as HTML: any text stays text, addresses become links."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import plotly.graph_objects as go
import pytest
from plotly.basedatatypes import BaseTraceType

import perfmodel.report
from perfmodel.report.common.document import (
    Bullets,
    Definitions,
    Folded,
    Header,
    Paragraph,
    Table,
    Tile,
    Tiles,
    pair,
    section,
)
from perfmodel.report.common.html import render_block, render_html

HOSTILE = "<img src=x> & </script>"
SAFE = "&lt;img src=x&gt; &amp; &lt;/script&gt;"


def test_text_of_every_block_is_escaped() -> None:
    blocks = [
        Header([Paragraph(HOSTILE, "headline"), Paragraph(HOSTILE, "note")]),
        Tiles([Tile(HOSTILE, HOSTILE, HOSTILE)]),
        section(HOSTILE, HOSTILE, Bullets([HOSTILE]), Definitions({HOSTILE: HOSTILE})),
        Folded(HOSTILE, [Table([HOSTILE, f">{HOSTILE}"], [(HOSTILE, HOSTILE)])]),
    ]
    html = "".join(map(render_block, blocks))
    assert "<img" not in html
    assert html.count(SAFE) == 2 + 3 + 5 + 5
    page = render_html(HOSTILE, [None, *blocks])
    assert f"<title>{SAFE}</title>" in page
    assert html.partition("</h1>")[0] in page


def test_only_columns_of_long_text_keep_room_to_wrap_in() -> None:
    rows = [("a", "latency of the ring's steps and NCCL itself"), ("b", "compute")]
    html = render_block(Table(["name", "bottleneck"], rows))
    assert "<th class=s>name</th><th class=w>bottleneck</th>" in html
    assert "<td class=s>b</td><td class=w>compute</td>" in html


def test_columns_of_numbers_and_rows_below_a_line() -> None:
    html = render_block(Table(["name", ">n"], [("a", "1"), ("b", "2")], marked=[1]))
    assert "<th class=s>name</th><th>n</th>" in html
    assert "<tr><td class=s>a</td><td>1</td></tr>" in html
    assert "<tr class=changed><td class=s>b</td><td>2</td></tr>" in html


def test_addresses_are_links_without_the_full_stop() -> None:
    html = render_block(Bullets(["see https://example.org/a."]))
    link = '<a rel="noopener noreferrer" href="https://example.org/a">https://example.org/a</a>'
    assert html == f"<ul><li>see {link}.</li></ul>"


def test_a_box_has_its_class_and_columns() -> None:
    html = render_block(pair([Paragraph("a")], [Paragraph("b", "hint")]))
    inner = '<div><p>a</p></div>\n<div><p class="hint">b</p></div>'
    assert html == f'<div class="pair">{inner}</div>'


# ---------------------------------------------------------------- plotly.js

REPORT = Path(perfmodel.report.__file__).parent
BUNDLE = REPORT / "common" / "plotly_js" / "plotly-basic.min.js"


def kinds_of_traces(source: str) -> set[str]:
    """Kinds that a module adds to figures, of all that plotly has."""
    kinds = {name.lower() for name in dir(go) if is_trace(getattr(go, name))}
    nodes = list(ast.walk(ast.parse(source)))
    called = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    described = {
        value.value
        for node in nodes
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Constant) and key.value == "type" and isinstance(value, ast.Constant)
    }
    return {kind for kind in kinds if f"add_{kind}" in called or kind in described}


def is_trace(thing: object) -> bool:
    return isinstance(thing, type) and issubclass(thing, BaseTraceType)


@pytest.mark.slow
def test_the_bundle_draws_every_kind_of_trace() -> None:
    drawn = set(re.findall(r'moduleType:"trace",name:"(\w+)"', BUNDLE.read_text(encoding="utf-8")))
    used = {path: kinds_of_traces(path.read_text("utf-8")) for path in REPORT.rglob("*.py")}
    assert {kind for kinds in used.values() for kind in kinds} == {"bar", "scatter"}
    assert {"bar", "scatter"} <= drawn
    assert not any("add_trace(" in path.read_text("utf-8") for path in used)
    assert kinds_of_traces("figure.add_heatmap(z=[[1]])") - drawn == {"heatmap"}
    assert kinds_of_traces('{"type": "heatmap", "z": [[1]]}') - drawn == {"heatmap"}


def test_the_bundle_comes_with_its_licence() -> None:
    assert "MIT License" in BUNDLE.with_name("LICENSE").read_text(encoding="utf-8")
    assert "Plotly" in BUNDLE.read_text(encoding="utf-8")[:200]


def test_what_stands_between_backquotes_is_code_and_stays_escaped() -> None:
    html = render_block(Paragraph("read by `perfmodel run <x>`, not by a lone ` here"))
    assert html == "<p>read by <code>perfmodel run &lt;x&gt;</code>, not by a lone ` here</p>"
    assert "<li>see <code>a</code></li>" in render_block(Bullets(("see `a`",)))


def test_a_long_number_may_break_before_its_unit_alone() -> None:
    space = "\N{NO-BREAK SPACE}"
    tiles = [Tile("Cost", f"740,331{space}USD", ""), Tile("Time", f"54.8{space}d", "")]
    page = render_block(Tiles(tiles))
    assert "<strong>740,331 USD</strong>" in page
    assert f"<strong>54.8{space}d</strong>" in page
