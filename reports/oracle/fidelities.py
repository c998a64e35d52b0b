"""Measure how far fidelity "flow" is from "message", family by family.

    python reports/oracle/fidelities.py

writes fidelities.csv (every scene) and fidelities.md (every family) beside this file. Exit code 1
if a limit is missed or a scene could not be measured.
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from oracle.agreement import SAME, Compared, Spread, at_both, compare, spread  # noqa: E402  (found by the line above)
from oracle.family import Family, scenes  # noqa: E402
from oracle.must_agree import MUST_AGREE  # noqa: E402
from oracle.need_not import NEED_NOT  # noqa: E402

MEDIAN, P90 = 0.03, 0.15
INTRODUCTION = (
    "Made by `python reports/oracle/fidelities.py`; every scene is in `fidelities.csv`. A "
    "difference is flow over message less one, of the collective of the scene on which they "
    "differ most; quantiles are of absolute differences, the mean is signed. Unlike are scenes "
    "that differ by more than 1e-6."
)


def main() -> int:
    """Measure, write, and say whether the limits hold."""
    begun = time.process_time()
    must, need_not = (
        [compare(scene, at_both(scene)) for scene in scenes(families)]
        for families in (MUST_AGREE, NEED_NOT)
    )
    _write_csv(HERE / "fidelities.csv", must + need_not)
    missed = [*_missed_must(must), *_missed_need_not(need_not)]
    text = _markdown(must, need_not, missed)
    (HERE / "fidelities.md").write_text(text, encoding="utf-8")
    print(text)  # noqa: T201  (a script's output)
    print(f"{time.process_time() - begun:.1f} CPU seconds")  # noqa: T201
    return 1 if missed else 0


def _missed_must(rows: Sequence[Compared]) -> list[str]:
    wrong = [row for row in rows if not row.missing and abs(row.difference) > SAME]
    return [
        *(f"{row.scene}: {row.difference:+.2e}, at most {SAME:g} is right" for row in wrong),
        *_unmeasured(rows),
    ]


def _missed_need_not(rows: Sequence[Compared]) -> list[str]:
    over = spread(rows)
    missed = _unmeasured(rows)
    if over and over.median > MEDIAN:
        missed.append(f"median {over.median:.1%}, at most {MEDIAN:.0%} is wanted")
    if over and over.p90 > P90:
        missed.append(f"90th percentile {over.p90:.1%}, at most {P90:.0%} is wanted")
    return missed


def _unmeasured(rows: Sequence[Compared]) -> list[str]:
    lacking: dict[tuple[str, str], int] = {}
    for row in rows:
        if row.missing:
            lacking[row.family, row.missing] = lacking.get((row.family, row.missing), 0) + 1
    return [f"{family}: {n} scenes not measured ({why})" for (family, why), n in lacking.items()]


def _write_csv(path: Path, rows: Sequence[Compared]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(("family", "scene", "message_s", "flow_s", "difference", "last_difference"))
        for row in rows:
            times = (f"{row.message_s:.9e}", f"{row.flow_s:.9e}")
            out.writerow(
                (
                    row.family,
                    row.scene,
                    *times,
                    f"{row.difference:.3e}",
                    f"{row.last_difference:.3e}",
                )
            )


def _markdown(must: Sequence[Compared], need_not: Sequence[Compared], missed: list[str]) -> str:
    lines = [
        "# Fidelity flow against fidelity message",
        "",
        INTRODUCTION,
        "",
        f"## Where they must agree to {SAME:g}",
        "",
        *_table(must, MUST_AGREE),
        "",
        f"## Where they need not: median at most {MEDIAN:.0%}, 90th percentile at most {P90:.0%}",
        "",
        *_table(need_not, NEED_NOT),
        "",
        *_unlike_only(need_not),
        "## Missed" if missed else "Nothing is missed.",
        "",
        *(f"- {line}" for line in missed),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _table(rows: Sequence[Compared], families: Mapping[str, Family]) -> list[str]:
    parts = [(name, [r for r in rows if r.family == name], f.why) for name, f in families.items()]
    lines = [
        "| family | scenes | unlike | median | p90 | worst | worst scene | mean | why |",
        "|---|--:|--:|--:|--:|--:|---|--:|---|",
    ]
    for name, mine, why in [*parts, ("all", list(rows), "")]:
        lines.append(_line(name, spread(mine), why, len(mine)))
    return lines


def _unlike_only(rows: Sequence[Compared]) -> list[str]:
    over = spread(row for row in rows if abs(row.difference) > SAME)
    if over is None:
        return []
    sizes = f"median {over.median:.1%}, 90th percentile {over.p90:.1%}"
    return [f"Of the {over.count} unlike scenes alone: {sizes}.", ""]


def _line(name: str, over: Spread | None, why: str, count: int) -> str:
    if over is None:
        return f"| {name} | 0 of {count} | - | - | - | - | - | - | {why} |"
    sizes = " | ".join(_share(x) for x in (over.median, over.p90, over.worst))
    head = f"| {name} | {over.count} | {over.unlike} | {sizes} | {over.worst_scene}"
    return f"{head} | {over.mean:+.2%} | {why} |"


def _share(value: float) -> str:
    return f"{value:.2%}" if value > 1e-5 else f"{value:.0e}"


if __name__ == "__main__":
    sys.exit(main())
