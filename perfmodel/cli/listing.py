"""What there is: scenarios, topologies, and the schemas of both."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from perfmodel.cli.output import print_json, print_table
from perfmodel.cli.words import Json

SCENARIOS_EXAMPLES = ("perfmodel scenarios",)
SCHEMA_EXAMPLES = ("perfmodel schema scenario > scenario.schema.json",)


def scenarios(json: Json = False) -> None:
    """List the scenarios and the question of each."""
    from perfmodel.files import read_text, shipped  # noqa: PLC0415  (imports stay out of --help)
    from perfmodel.scenario import question_of  # noqa: PLC0415

    found = {name: question_of(read_text(path)) for name, path in shipped("scenarios").items()}
    if json:
        print_json({"scenarios": [{"name": n, "question": q} for n, q in found.items()]})
    else:
        print_table(("scenario", "question"), list(found.items()))


def topologies(json: Json = False) -> None:
    """List the shipped hardware descriptions."""
    from perfmodel.files import read_yaml, shipped  # noqa: PLC0415  (imports stay out of --help)

    found = [
        {"name": name, "kind": str(file["kind"]), "description": str(file.get("description", ""))}
        for name, path in shipped("topologies").items()
        for file in [read_yaml(path)]
    ]
    if json:
        print_json({"topologies": found})
    else:
        print_table(("topology", "kind", "what it is"), [tuple(row.values()) for row in found])


def schema(
    kind: Annotated[
        Literal["scenario", "topology"],
        typer.Argument(metavar="scenario|topology", help="Which file format."),
    ],
) -> None:
    """Print the JSON Schema of a file format."""
    from pydantic import TypeAdapter  # noqa: PLC0415  (imports stay out of --help)

    if kind == "scenario":
        from perfmodel.scenario import Scenario  # noqa: PLC0415

        document = Scenario.model_json_schema()
    else:
        from perfmodel.topology.spec import FabricFile, GpuTable, NodeSpec  # noqa: PLC0415

        document = TypeAdapter(NodeSpec | FabricFile | GpuTable).json_schema()
    draft = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"perfmodel {kind}",
    }
    print_json(document | draft)
