"""``perfmodel compare``: scenarios or variations of one, side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.output import (
    JobsOption,
    JsonOption,
    ProfileOption,
    check_report_folder,
    load_profile,
    output_option,
    print_answer,
    progress_bar,
    refuse,
)
from perfmodel.errors import Fault, InputError

if TYPE_CHECKING:
    from perfmodel.scenario import Scenario
    from perfmodel.studies.comparison import Comparison


def compare(
    scenarios: Annotated[
        list[str], typer.Argument(metavar="SCENARIO...", help="Scenarios by name or file.")
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="FIELD=VALUE",
            help="With one SCENARIO: a variation of it, each a column. With several: for all.",
        ),
    ] = None,
    with_: Annotated[
        list[str] | None,
        typer.Option(
            "--with",
            metavar="'A=X; B=Y'",
            help="A variation of one SCENARIO in several fields; may be repeated.",
        ),
    ] = None,
    attribute: Annotated[
        bool,
        typer.Option(
            "--attribute",
            help="Also: what if the network were infinitely fast, latency zero, compute twice as "
            "fast ...",
        ),
    ] = False,
    jobs: JobsOption = None,
    output: Annotated[Path | None, output_option("DIR", "Write compare.html here.")] = None,
    profile: ProfileOption = None,
    json: JsonOption = False,
) -> None:
    """Put scenarios, or variations of one, side by side: what changed, by how much, and why.

    All are compared with the first, at the size that each asks about. With -o it writes
    compare.html (one file, works offline), compare.csv and compare.json.
    """
    columns = _columns(scenarios, set_ or [], with_ or [])
    if len(columns) < 2 and not attribute:
        allowed = "two or more, a variation (--set, --with), or --attribute"
        raise InputError(Fault("SCENARIO", "one scenario alone", allowed))

    from perfmodel.report.common.html import write_each
    from perfmodel.report.comparison.page import FILES, comparison_lines
    from perfmodel.studies.compare import compare as compare_columns
    from perfmodel.studies.comparison import to_json

    check_report_folder(output, FILES, columns.values(), profile)
    measured = load_profile(profile)
    with progress_bar("simulating") as progress:
        comparison = compare_columns(
            columns, profile=measured, attribute=attribute, jobs=jobs, progress=progress
        )
    print_answer(
        comparison,
        json=json,
        to_json=to_json,
        lines=comparison_lines,
        notes=_notes,
        write=partial(write_each, FILES),
        folder=output,
    )


def _columns(names: list[str], sets: list[str], withs: list[str]) -> dict[str, Scenario]:
    """Scenarios by label; all faults of all of them at once."""
    from perfmodel.scenario import load_scenario

    split = {text: [part.strip() for part in text.split(";") if part.strip()] for text in withs}
    if len(names) > 1 and withs:
        raise InputError(Fault("--with", "several scenarios", "variations of one"))
    if not all(split.values()):
        raise InputError(Fault("--with", "nothing", "fields such as 'strategy.hook=fp16; A=B'"))
    stems = [Path(name).stem for name in names]
    variations = [
        (name if stems.count(stem) > 1 else stem, name, sets)
        for name, stem in zip(names, stems, strict=True)
    ]
    if len(names) == 1:
        variations = [(stems[0], names[0], [])]
        variations += [(text, names[0], [text]) for text in sets]
        variations += [(text, names[0], split[text]) for text in withs]
    columns: dict[str, Scenario] = {}
    faults: list[Fault] = []
    for at, (label, name, overrides) in enumerate(variations, 1):
        try:
            loaded = load_scenario(name, overrides)
        except InputError as error:
            flag = "--with" if label in withs else "--set"
            faults += [replace(f, field=f.field.replace("--set", flag, 1)) for f in error.faults]
        else:
            columns[label if label not in columns else f"{label} ({at})"] = loaded
    refuse(faults)
    return columns


def _notes(comparison: Comparison) -> Iterator[str]:
    """Say what failed and what the numbers rest on."""
    for imagined in comparison.what_ifs:
        for side, message in zip(comparison.sides, imagined.messages, strict=True):
            if message:
                yield f"{imagined.what}, {side.label}: {message}"
    yield from comparison.assumptions[: 2 if comparison.what_ifs else 1]
