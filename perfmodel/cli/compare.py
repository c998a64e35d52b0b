"""``perfmodel compare``: scenarios or variations of one, side by side."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.options import JobsOption, JsonOption, ProfileOption, load_profile, output_option
from perfmodel.cli.output import (
    check_report_folder,
    print_answer,
    print_note,
    progress_bar,
)
from perfmodel.errors import Fault, InputError

if TYPE_CHECKING:
    from perfmodel.scenario import Scenario
    from perfmodel.studies.compare import Comparison


COMPARE_EXAMPLES = (
    "perfmodel compare bert-large-v100-25g bert-large-v100-100g --attribute -o out",
    "perfmodel compare resnet50-dgx-a100 --set what_if.network_bandwidth=4 --set what_if.compute=2",
    "perfmodel compare gpt2-xl-pcie-p2p --with 'strategy.bucket_cap=50 MiB; strategy.hook=fp16'",
)


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

    if output is not None:
        from perfmodel.report.comparison.page import FILES

        check_report_folder(output, FILES, columns.values(), profile)

    from perfmodel.report.comparison.page import comparison_lines
    from perfmodel.studies.compare import compare as compare_columns
    from perfmodel.studies.compare.export import to_json

    measured = load_profile(profile)
    with progress_bar("simulating") as progress:
        comparison = compare_columns(
            columns, profile=measured, attribute=attribute, jobs=jobs, progress=progress
        )
    print_answer(comparison, json=json, to_json=to_json, lines=comparison_lines)
    if not json:
        _print_notes(comparison)
    if output is not None:
        from perfmodel.report.comparison.page import write_comparison

        print_note(f"wrote {write_comparison(comparison, output)}")


def _columns(names: list[str], sets: list[str], withs: list[str]) -> dict[str, Scenario]:
    """Scenarios by label; all faults of all of them at once."""
    from perfmodel.scenario import load_scenario

    if len(names) > 1 and withs:
        raise InputError(Fault("--with", "several scenarios", "variations of one"))
    if any(not _split(text) for text in withs):
        raise InputError(Fault("--with", "nothing", "fields such as 'strategy.hook=fp16; A=B'"))
    if len(names) > 1:
        twice = {name for name in names if [Path(n).stem for n in names].count(Path(name).stem) > 1}
        variations = [(name if name in twice else Path(name).stem, name, sets) for name in names]
    else:
        variations = [(Path(names[0]).stem, names[0], [])]
        variations += [(text, names[0], [text]) for text in sets]
        variations += [(text, names[0], _split(text)) for text in withs]
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
    if faults:
        raise InputError(dict.fromkeys(faults))
    return columns


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(";") if part.strip()]


def _print_notes(comparison: Comparison) -> None:
    """Say what failed and what the numbers rest on."""
    for imagined in comparison.what_ifs:
        for side, message in zip(comparison.sides, imagined.messages, strict=True):
            if message:
                print_note(f"{imagined.what}, {side.label}: {message}")
    for line in comparison.assumptions[: 2 if comparison.what_ifs else 1]:
        print_note(line)
