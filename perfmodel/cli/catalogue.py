"""``perfmodel scenarios``, ``models``, ``schema``, ``doctor``: what there is, what is installed."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from perfmodel.cli.options import JsonOption, flags_as_fields
from perfmodel.cli.output import print_json, print_table, print_text

SCENARIOS_EXAMPLES = ("perfmodel scenarios",)
MODELS_EXAMPLES = ("perfmodel models", "perfmodel models llama3-8b whisper-large-v3")
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
        from perfmodel.scenario.sections.node import NodeFile
        from perfmodel.topology.templates.spec import FabricFile, GpuTable, NodeSpec

        document = TypeAdapter(NodeSpec | NodeFile | FabricFile | GpuTable).json_schema()
    draft = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"perfmodel {kind}",
    }
    print_json(document | draft)


DOCTOR_EXAMPLES = ("perfmodel doctor", "perfmodel doctor --json")


def doctor(json: JsonOption = False) -> None:
    """Say what is installed, what each extra adds, which devices are seen, what to measure here.

    Sends nothing anywhere; paste its output into a question. It never fails.
    """
    from perfmodel.api.doctor import describe_installation, inspect_installation

    installation = inspect_installation()
    if json:
        from perfmodel.files import as_json

        print_json(as_json(installation, "installation"))
    else:
        print_text("\n".join(describe_installation(installation)))


def models(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[MODEL]...",
            help="Names, files of parameters, config.json or its folder, .safetensors; "
            "default: all of the zoo.",
        ),
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the models of the zoo, or show some, and those of a user's files."""
    from perfmodel.units import format_bytes
    from perfmodel.workload import load_workload, zoo_names

    with flags_as_fields({"model": "MODEL", "name": "MODEL"}):
        zoo = [load_workload(name) for name in names or zoo_names()]
    if json:
        documents = [
            {
                "name": m.name,
                "parameters": m.parameters,
                "tensors": len(m.tensors),
                "nbytes": m.nbytes,
                "sample": str(m.sample),
                "source": m.source,
            }
            for m in zoo
        ]
        print_json({"models": documents})
        return
    print_table(
        ("model", ">parameters", ">tensors", ">size in fp32", "one sample"),
        [
            (
                m.name,
                f"{m.parameters:,}",
                f"{len(m.tensors)}",
                format_bytes(m.nbytes),
                str(m.sample),
            )
            for m in zoo
        ],
    )
