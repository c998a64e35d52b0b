"""CSV, Parquet and JSON of a sweep."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from perfmodel.errors import ExecutorUnavailable
from perfmodel.files import attributes, write_atomically
from perfmodel.studies.sweep.run import SweepResult, format_value

if TYPE_CHECKING:
    import pandas as pd


def flatten(swept: SweepResult) -> pd.DataFrame:
    """Return the table with set fields as columns of one plain type, else as text."""
    table = swept.table
    for name in swept.fields:
        values = [variant.set.get(name) for variant in swept.variants]
        kinds = {type(value) for value in values if value is not None}
        if kinds == {int, float}:
            table[name] = [None if value is None else float(value) for value in values]
        elif len(kinds) > 1 or not kinds <= {str, int, float, bool}:
            table[name] = [None if value is None else format_value(value) for value in values]
    return table


def write_csv(swept: SweepResult, path: Path) -> None:
    """Write one row per variant; floats so that reading them gives the same bits."""
    write_atomically(path, flatten(swept).to_csv(lineterminator="\n"))


def check_parquet() -> None:
    """Check before the sweep that Parquet can be written after it.

    Raises `ExecutorUnavailable`: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet  # noqa: F401  (an extra)
    except ImportError:
        raise ExecutorUnavailable(
            "--parquet needs pyarrow: pip install 'perfmodel[parquet]'"
        ) from None


def write_parquet(swept: SweepResult, path: Path) -> None:
    """Write one row per variant.

    Raises `ExecutorUnavailable`: pyarrow is not installed.
    """
    check_parquet()
    import io

    import pyarrow as pa
    import pyarrow.parquet as pq

    content = io.BytesIO()
    pq.write_table(pa.Table.from_pandas(flatten(swept)), content)
    write_atomically(path, content.getvalue())


def to_json(name: str, question: str, swept: SweepResult) -> dict[str, Any]:
    """Write a sweep as plain data: what was set, and figures in SI units, variant by variant."""
    return {
        "scenario": name,
        "question": question,
        "fields": list(swept.fields),
        "count": len(swept.variants),
        **attributes(swept, "failed reused"),
        "variants": [
            attributes(variant, "index set digest") | answer.as_row
            for variant, answer in zip(swept.variants, swept.answers, strict=True)
        ],
    }
