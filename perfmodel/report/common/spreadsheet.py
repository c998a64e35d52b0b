"""The document of an answer as a spreadsheet: numbers as numbers, with units in the heads."""

from __future__ import annotations

import importlib.util
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

SPREADSHEET = "result.xlsx"

_SUFFIX = re.compile(r"_(per_s|s|bytes|Bps|W|kWh|mb)$")
_UNITS = {"per_s": "1/s", "Bps": "bytes/s", "mb": "MiB"}
"""Units that are written otherwise than in names of fields."""
_MONEY = frozenset({"cost", "price", "saved", "budget"})
"""Amounts in the document's currency, and so their parts that have no unit of their own."""
_GROUNDS = frozenset({"sources", "provenance"})

_MOST_CHARACTERS = 32_767
"""Of a cell."""

_MADE = datetime(2000, 1, 1)  # noqa: DTZ001  (of the file; the same answer gives the same bytes)


def spreadsheet(document: Mapping[str, Any]) -> bytes | None:
    """Write a document as sheets: answers, each list of rows, assumptions and sources.

    Returns None where XlsxWriter is not installed.
    """
    if importlib.util.find_spec("xlsxwriter") is None:
        return None
    from xlsxwriter import Workbook

    content = io.BytesIO()
    as_text = {"strings_to_formulas": False, "strings_to_urls": False}
    with Workbook(content, {"in_memory": True, **as_text}) as book:
        book.set_properties({"created": _MADE})
        bold = book.add_format({"bold": True})
        for name, heads, rows in _sheets(document):
            sheet = book.add_worksheet(name)
            sheet.freeze_panes(1, 0)
            sheet.set_column(0, len(heads), 18)
            sheet.write_row(0, 0, heads, bold)
            for at, row in enumerate(rows, 1):
                sheet.write_row(
                    at, 0, (v[:_MOST_CHARACTERS] if isinstance(v, str) else v for v in row)
                )
    return content.getvalue()


Sheet = tuple[str, Sequence[str], Sequence[Sequence[object]]]
"""Name, heads and rows."""


def _sheets(document: Mapping[str, Any]) -> Iterator[Sheet]:
    lists = {
        name: value
        for name, value in document.items()
        if isinstance(value, list) and value and isinstance(value[0], Mapping | str)
    }
    tables = {name: rows for name, rows in lists.items() if isinstance(rows[0], Mapping)}
    grounds = {name: document[name] for name in _GROUNDS & document.keys()}
    said = {name: value for name, value in document.items() if name not in {*lists, *grounds}}
    currency = document.get("currency")
    answers = [
        (*_named(name, currency), value) for name, value in _flatten(said, "") if value is not None
    ]
    yield "answers", ("what", "unit", "value"), answers
    for name, rows in tables.items():
        flat = [dict(_flatten(row, "")) for row in rows]
        columns = list(dict.fromkeys(column for row in flat for column in row))
        named = (_named(column, currency) for column in columns)
        heads = [f"{what} [{unit}]" if unit else what for what, unit in named]
        yield name, heads, [[row.get(column) for column in columns] for row in flat]
    texts = [(name, str(text)) for name in lists.keys() - tables.keys() for text in lists[name]]
    yield "assumptions", ("kind", "text"), sorted(texts)
    facts = [
        *(row for name in sorted(grounds) for row in grounds[name].items()),
        *(
            (f"record: {near['record']}", near["source"])
            for near in (document.get("evidence") or {}).get("nearest", ())
        ),
    ]
    yield "sources", ("what", "source"), facts


def _flatten(value: object, name: str) -> Iterator[tuple[str, object]]:
    """Yield what stands at the ends of a value by dotted name; lists of rows are left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _flatten(inner, f"{name}.{key}".removeprefix("."))
    elif not isinstance(value, list):
        yield name, value
    elif len(value) == 2 and not any(isinstance(end, str | Mapping | list) for end in value):
        yield from ((f"{name}.{end}", at) for end, at in zip(("low", "high"), value, strict=True))
    elif value and not isinstance(value[0], Mapping):
        yield name, "; ".join(map(str, value))


def _named(name: str, currency: str | None) -> tuple[str, str]:
    """Split a dotted name of a field into what it is in words, and its unit.

    Examples
    --------
    >>> _named("step.interval_s.low", None), _named("samples_per_s", None)
    (('step interval low', 's'), ('samples', '1/s'))
    """
    parts = name.split(".")
    units = [match[1] for part in parts if (match := _SUFFIX.search(part))]
    words = " ".join(_SUFFIX.sub("", part) for part in parts).replace("_", " ")
    unit = _UNITS.get(units[-1], units[-1]) if units else ""
    return words, unit or (currency or "" if _MONEY & set(parts) else "")
