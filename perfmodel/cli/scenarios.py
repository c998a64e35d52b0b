"""``perfmodel scenarios`` and ``perfmodel schema``: shipped scenarios, and the file formats."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from perfmodel.cli.options import JsonOption
from perfmodel.cli.output import print_json, print_table

SCENARIOS_EXAMPLES = ("perfmodel scenarios",)
SCHEMA_EXAMPLES = ("perfmodel schema scenario > scenario.schema.json",)


def scenarios(json: JsonOption = False) -> None:
    """List the scenarios and the question of each."""
    from perfmodel.files import list_shipped, read_text
    from perfmodel.files.read import first_comment

    questions = {
        name: first_comment(read_text(path)) for name, path in list_shipped("scenarios").items()
    }
    if json:
        print_json({"scenarios": [{"name": n, "question": q} for n, q in questions.items()]})
    else:
        print_table(("scenario", "question"), list(questions.items()))


def schema(
    kind: Annotated[
        Literal["scenario", "topology"],
        typer.Argument(metavar="scenario|topology", help="Which file format."),
    ],
) -> None:
    """Print the JSON Schema of a file format."""
    from pydantic import TypeAdapter

    if kind == "scenario":
        from perfmodel.scenario import Scenario

        document = Scenario.model_json_schema()
    else:
        from perfmodel.scenario.sections.cluster import NodeFile
        from perfmodel.topology.templates.spec import FabricFile, GpuTable, NodeSpec

        document = TypeAdapter(NodeSpec | NodeFile | FabricFile | GpuTable).json_schema()
    draft = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"perfmodel {kind}",
    }
    print_json(document | draft)
