"""``perfmodel capture``: a module of PyTorch as a model file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.options import JsonOption
from perfmodel.cli.output import print_json, print_note

CAPTURE_EXAMPLES = (
    "perfmodel capture train.py:example -o mymodel.yaml",
    "perfmodel capture mypackage.models:example --measure -o mymodel.yaml",
)


def capture(
    function: Annotated[
        str,
        typer.Argument(
            metavar="FILE.py:FUNCTION", help="Returns (model, batch) or (model, batch, loss)."
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
    json: JsonOption = False,
) -> None:
    """Write what perfmodel needs of your own module: use it as `model: {file: model.yaml}`.

    Imports the file or module and calls the function. The model runs on fake tensors, without
    memory or GPU, unless --measure or --real is given; build it under torch.device("meta") if it
    is large. Needs PyTorch: pip install 'perfmodel[torch]'.
    """
    from perfmodel.torch_modules.capture import capture as run_capture
    from perfmodel.torch_modules.user_function import call_function

    model, batch, loss = call_function(function)
    captured = run_capture(model, batch, loss=loss, name=name, real=real, measure=measure)
    path = captured.save(output)
    if json:
        print_json(captured.document)
        return
    typer.echo(repr(captured))
    print_note(f"wrote {path}; in a scenario: model: {{file: {path}}}")
