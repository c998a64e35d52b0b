"""Commands about what there is: ``capture``, ``scenarios``, ``models``, ``schema``, ``doctor``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import typer

from perfmodel.cli.output import (
    JsonOption,
    flags_as_fields,
    print_json,
    print_note,
    print_table,
    print_text,
    refuse,
)
from perfmodel.errors import Fault


def capture(
    function: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION|CONFIG",
            help="Returns (model, batch[, loss]); or a config.json of Hugging Face.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE", help="Write the model file here.")
    ] = Path("model.yaml"),
    measure: Annotated[
        bool, typer.Option("--measure", help="Also time each layer, where the model is.")
    ] = False,
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Name of the model.")] = None,
    real: Annotated[
        bool, typer.Option("--real", help="Run on real tensors: control flow needs their values.")
    ] = False,
    tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Tokens of a sample, for CONFIG.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """Write what perfmodel needs of your own module: use it as `model: {file: model.yaml}`.

    CONFIG is built by transformers, if that is installed: any of its families, without weights.
    Imports the file or module and calls the function. The model runs on fake tensors, without
    memory or GPU, unless --measure or --real is given; build it under torch.device("meta") if it
    is large. Needs PyTorch: pip install 'perfmodel[torch]'.
    """
    from perfmodel.torch_modules.capture import capture as run_capture
    from perfmodel.torch_modules.given_module import call_function, hub_module, is_configuration

    if is_configuration(function):
        _refuse({"--measure": measure}, "FILE.py:FUNCTION: CONFIG has no weights")
        name, model, batch = hub_module(Path(function), tokens=tokens, name=name, real=real)
        loss = None
    else:
        _refuse({"--tokens": tokens is not None}, "CONFIG: a function makes its batch itself")
        model, batch, loss = call_function(function)
    captured = run_capture(model, batch, loss=loss, name=name, real=real, measure=measure)
    path = captured.save(output)
    if json:
        print_json(captured.document)
        return
    typer.echo(repr(captured))
    print_note(f"wrote {path}; in a scenario: model: {{file: {path}}}")


def _refuse(flags: Mapping[str, bool], allowed: str) -> None:
    """Refuse flags that the kind of argument has no use for."""
    refuse(Fault(name, "the flag", f"only with {allowed}") for name, on in flags.items() if on)


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
