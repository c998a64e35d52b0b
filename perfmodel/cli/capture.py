"""``perfmodel capture``: a module of PyTorch as a model file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.options import JsonOption
from perfmodel.cli.output import print_json, print_note
from perfmodel.errors import Fault, InputError

CAPTURE_EXAMPLES = (
    "perfmodel capture train.py:example -o mymodel.yaml",
    "perfmodel capture mypackage.models:example --measure -o mymodel.yaml",
    "perfmodel capture config.json --tokens 1024 -o mymodel.yaml",
)


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
    faults = [Fault(name, "the flag", f"only with {allowed}") for name, on in flags.items() if on]
    if faults:
        raise InputError(faults)
