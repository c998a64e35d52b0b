"""``perfmodel export``: a step in the format of another simulator."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from perfmodel.cli.options import SetOption, output_option, scenario_argument
from perfmodel.cli.output import check_report_folder, print_note
from perfmodel.errors import Fault, InputError

EXPORT_EXAMPLES = ("perfmodel export chakra resnet50-dgx-a100 -o et --set cluster.nodes=1",)


def export(
    kind: Annotated[
        Literal["chakra"],
        typer.Argument(metavar="FORMAT", help="chakra: execution traces, as ASTRA-sim reads them."),
    ],
    scenario: Annotated[str, scenario_argument("A scenario by name or file.")],
    output: Annotated[Path | None, output_option("DIR", "Write NAME.RANK.et here.")] = None,
    set_: SetOption = None,
) -> None:
    """Write one step of a scenario for another simulator.

    chakra: NAME.RANK.et for each rank, and comm_groups.json, of the cluster's full size.
    'perfmodel trace DIR --topology MACHINE' reads them again.
    """
    if output is None:
        raise InputError(Fault("-o", "nothing", "a folder to write to: -o DIR"))
    from perfmodel.scenario import load_scenario
    from perfmodel.studies.run.prepared import prepare
    from perfmodel.traces.chakra.write_plan import GROUPS, write_plan

    question = load_scenario(scenario, set_ or ())
    check_report_folder(output, [GROUPS], [question])
    prepared = prepare(question)
    if prepared.job.strategy.plan is None:
        allowed = "a strategy whose ranks share steps"
        raise question.fault("strategy.kind", repr(question.strategy.kind), allowed)
    files = write_plan(prepared.sized.plan_for(None), output, question.name)
    print_note(f"wrote {len(files) - 1} traces and {files[-1]} ({kind})")
