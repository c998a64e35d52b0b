"""Execute the notebooks here without Jupyter, and store what their cells show.

``python -m reports.notebooks.execute`` runs each notebook and writes its outputs into it; with
``--check`` it only says whether texts and tables would be others. Figures are stored as pictures
where the extra ``img`` is installed.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent

Output = dict[str, Any]


def notebooks() -> list[Path]:
    """All notebooks, by name."""
    return sorted(HERE.glob("*.ipynb"))


def execute(notebook: Mapping[str, Any], *, pictures: bool) -> dict[str, Any]:
    """Run the code cells of a notebook in order; return it with their outputs."""
    names: dict[str, Any] = {"__name__": "__main__"}
    cells, count = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            count += 1
            outputs = _run("".join(cell["source"]), names, count, pictures=pictures)
            cells.append({**cell, "execution_count": count, "outputs": outputs})
        else:
            cells.append(cell)
    return {**notebook, "cells": cells}


def _run(source: str, names: dict[str, Any], count: int, *, pictures: bool) -> list[Output]:
    """Run one cell; what its last expression is, is shown."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(tree, f"cell {count}", "exec"), names)  # noqa: S102  (our own notebooks)
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), f"cell {count}", "eval"), names)  # noqa: S307
    outputs: list[Output] = []
    if printed.getvalue():
        outputs.append(
            {"output_type": "stream", "name": "stdout", "text": _lines(printed.getvalue())}
        )
    if value is not None:
        shown = dict(_shown(value, pictures=pictures))
        outputs.append(
            {
                "output_type": "execute_result",
                "execution_count": count,
                "metadata": {},
                "data": shown,
            }
        )
    return outputs


def _shown(value: object, *, pictures: bool) -> Iterator[tuple[str, Any]]:
    import plotly.graph_objects as go

    if isinstance(value, go.Figure):
        names = ", ".join(str(trace.name) for trace in value.data if trace.name)
        yield "text/plain", [f"Figure of {names}"]
        if pictures:
            yield "image/png", _picture(value)
        return
    yield "text/plain", _lines(repr(value))
    if hasattr(value, "_repr_html_"):
        yield "text/html", _lines(value._repr_html_())


def _picture(figure: Any) -> str:
    from perfmodel.report.common.images import Picture, render

    drawn = render({"figure": Picture(figure, "", "")}, "png")
    return base64.b64encode(next(iter(drawn.values()))).decode()


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def plain_texts(notebook: Mapping[str, Any]) -> list[list[str]]:
    """What each code cell shows as text; spaces, which tables are laid out with, do not count."""
    return [
        " ".join(
            "".join(output.get("text", output.get("data", {}).get("text/plain", [])))
            for output in cell["outputs"]
        ).split()
        for cell in notebook["cells"]
        if cell["cell_type"] == "code"
    ]


def main() -> None:
    """Execute all notebooks and write them, or check them."""
    check = "--check" in sys.argv[1:]
    for path in notebooks():
        before = json.loads(path.read_text(encoding="utf-8"))
        after = execute(before, pictures=not check)
        if check:
            print(
                f"{path.name}: {'same' if plain_texts(before) == plain_texts(after) else 'OTHER'}"
            )
        else:
            path.write_text(
                json.dumps(after, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
            )


if __name__ == "__main__":
    main()
