"""``perfmodel advise``: what to change in a scenario, and what that costs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from perfmodel.cli.options import (
    JobsOption,
    JsonOption,
    ProfileOption,
    SetOption,
    load_profile,
    output_option,
    scenario_argument,
)
from perfmodel.cli.output import (
    check_report_folder,
    print_answer,
    print_note,
    progress_bar,
)

ADVISE_EXAMPLES = (
    "perfmodel advise bucket-size-slow-ethernet",
    "perfmodel advise resnet50-dgx-a100 --set cluster.nodes=4 -o out",
    "perfmodel advise my-scenario.yaml --json",
)


def advise(
    scenario: Annotated[
        str, scenario_argument("A scenario by name (see 'perfmodel scenarios') or file.")
    ],
    output: Annotated[Path | None, output_option("DIR", "Write advice.html here.")] = None,
    set_: SetOption = None,
    profile: ProfileOption = None,
    jobs: JobsOption = None,
    json: JsonOption = False,
) -> None:
    """Say what to change in a scenario: each change alone, and the best few together.

    Buckets, gradient hook, batch, micro-batches, precision, strategy, kernels, recomputation,
    degrees, network adapters and oversubscription are simulated; gains are samples per second,
    with 80 % intervals; what does not fit the memory is not proposed. With -o it writes
    advice.html (one file, works offline) and advice.json.
    """
    from perfmodel.scenario import load_scenario

    question = load_scenario(scenario, set_ or ())
    if output is not None:
        from perfmodel.report.advice import FILES

        check_report_folder(output, FILES, [question], profile)

    from perfmodel.report.advice import advice_lines
    from perfmodel.studies.advise.export import to_json
    from perfmodel.studies.advise.run import advise_scenario

    measured = load_profile(profile)
    with progress_bar("simulating changes") as progress:
        advice = advise_scenario(question, profile=measured, jobs=jobs, progress=progress)
    print_answer(advice, json=json, to_json=to_json, lines=advice_lines)
    if output is not None:
        from perfmodel.report.advice import write_advice

        print_note(f"wrote {write_advice(advice, output)}")
