"""Commands about models: ``capture`` and ``models``, and ``buckets`` that DDP makes of one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from perfmodel.cli.output import (
    JsonOption,
    flags_as_fields,
    parse_quantities,
    print_json,
    print_listing,
    print_notes,
)
from perfmodel.errors import Fault, allowed_names, raise_faults, refuse_if

if TYPE_CHECKING:
    from perfmodel.training.ddp.options import DdpOptions


def buckets(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A model of the zoo (see 'perfmodel models'), a file of parameters, a "
            "config.json or its folder, or .safetensors.",
        ),
    ],
    bucket_cap: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="bucket_cap_mb; drops the 1 MiB first bucket."),
    ] = None,
    first_bucket: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Cap of the first bucket.")
    ] = None,
    caps_list: Annotated[
        str | None,
        typer.Option(metavar="SIZES", help="bucket_cap_mb_list, comma separated; last repeats."),
    ] = None,
    first_iteration: Annotated[
        bool, typer.Option("--first-iteration", help="Before DDP rebuilds its buckets.")
    ] = False,
    find_unused: Annotated[
        bool, typer.Option("--find-unused", help="find_unused_parameters=True.")
    ] = False,
    ready_order: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Parameter names in gradient-ready order, one a line."),
    ] = None,
    json: JsonOption = False,
) -> None:
    """Print the gradient buckets that PyTorch DDP makes.

    In launch order, to the byte; as they are from the second iteration on, unless
    --first-iteration or --find-unused (which never rebuilds) say otherwise.
    """
    options = _options(bucket_cap, first_bucket, caps_list, find_unused=find_unused)

    from perfmodel.training.ddp.buckets import ddp_buckets
    from perfmodel.units import format_bytes
    from perfmodel.workload import load_workload

    with flags_as_fields({"model": "MODEL", "name": "MODEL"}):
        workload = load_workload(model)
    if not any(layer.matmul_flops for layer in workload.layers):
        print_notes(*workload.notes)
    names = [tensor.name for tensor in workload.tensors]
    order = None if ready_order is None else read_order(ready_order, names)
    if order is not None and (first_iteration or find_unused):
        print_notes(
            "--ready-order has no effect: these buckets are made before any gradient is ready"
        )
        order = None
    with flags_as_fields({"ready_order": "--ready-order", "tensors": "MODEL"}):
        partition = ddp_buckets(
            workload,
            options,
            iteration="first" if first_iteration else "steady",
            ready_order=order,
        )
    held = [(bucket, [names[tensor] for tensor in bucket.tensors]) for bucket in partition]
    print_listing(
        {
            "buckets": [
                {"index": bucket.index, "nbytes": bucket.nbytes, "parameters": own}
                for bucket, own in held
            ]
        },
        (">bucket", ">bytes", ">size", ">tensors", "parameters"),
        [
            (
                f"{bucket.index}",
                f"{bucket.nbytes:,}",
                format_bytes(bucket.nbytes),
                f"{len(own)}",
                own[0] if len(own) == 1 else f"{own[0]} ... {own[-1]}",
            )
            for bucket, own in held
        ],
        json=json,
    )


def _options(
    bucket_cap: str | None, first_bucket: str | None, caps_list: str | None, *, find_unused: bool
) -> DdpOptions:
    from perfmodel.training.ddp.options import DdpOptions
    from perfmodel.units import parse_bytes

    named: dict[str, str | None] = {"--bucket-cap": bucket_cap, "--first-bucket": first_bucket}
    parts = [] if caps_list is None else caps_list.split(",")
    listed = {f"--caps-list {at}": part.strip() for at, part in enumerate(parts, 1)}
    sizes = parse_quantities(parse_bytes, named | listed)
    refuse_if(
        caps_list is not None and any(named.values()),
        "--caps-list",
        repr(caps_list),
        "no --bucket-cap and no --first-bucket beside it",
    )
    return DdpOptions(
        bucket_cap=sizes.get("--bucket-cap"),
        first_bucket=sizes.get("--first-bucket"),
        bucket_caps=tuple(sizes[flag] for flag in listed) or None,
        find_unused_parameters=find_unused,
    )


def read_order(path: Path, names: Sequence[str]) -> list[int]:
    """Read parameter names, one a line; return their indices in registration order.

    Raises `InputError`: unreadable, or names that the model does not have; with lines.
    """
    from perfmodel.files import read_text

    position = {name: index for index, name in enumerate(names)}
    lines = [(n, line.strip()) for n, line in enumerate(read_text(path).splitlines(), 1)]
    listed = [(n, line) for n, line in lines if line and not line.startswith("#")]
    raise_faults(
        Fault("--ready-order", repr(name), allowed_names(names, name, limit=5), str(path), n)
        for n, name in listed
        if name not in position
    )
    return [position[name] for _, name in listed]


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
    is large. Needs PyTorch: pip install 'perfmodel[torch]'. A whole train.py for the first example:

    \b
    import torch
    def example():
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 224 * 224, 1000))
        inputs = torch.randn(8, 3, 224, 224)
        labels = torch.zeros(8, dtype=torch.long)
        return model, (inputs, labels), torch.nn.CrossEntropyLoss()
    """  # noqa: D301 (a mark of click's that keeps lines apart)
    from perfmodel.torch_modules.capture import capture as run_capture
    from perfmodel.torch_modules.given_module import call_function, hub_module, is_configuration

    if is_configuration(function):
        refuse_if(
            measure,
            "--measure",
            "the flag",
            "only with FILE.py:FUNCTION: CONFIG has no weights",
        )
        name, model, batch = hub_module(Path(function), tokens=tokens, name=name, real=real)
        loss = None
    else:
        refuse_if(
            tokens is not None,
            "--tokens",
            "the flag",
            "only with CONFIG: a function makes its batch itself",
        )
        model, batch, loss = call_function(function)
    captured = run_capture(model, batch, loss=loss, name=name, real=real, measure=measure)
    path = captured.save(output)
    if json:
        print_json(captured.document)
        return
    typer.echo(repr(captured))
    if loss is None and not is_configuration(function):
        print_notes("No loss was returned: kernels of one are not counted; (model, batch, loss).")
    print_notes(f"wrote {path}; in a scenario: model: {{file: {path}}}")


@flags_as_fields({"model": "MODEL", "name": "MODEL"})
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

    zoo = [load_workload(name) for name in names or zoo_names()]
    print_listing(
        {
            "models": [
                {
                    "name": m.name,
                    "parameters": m.parameters,
                    "tensors": len(m.tensors),
                    "nbytes": m.nbytes,
                    "sample": str(m.sample),
                    "source": m.source,
                    "notes": m.notes,
                }
                for m in zoo
            ]
        },
        ("model", ">parameters", ">tensors", ">size", "of", "one sample"),
        [
            (
                m.name,
                f"{m.parameters:,}",
                f"{len(m.tensors)}",
                format_bytes(m.nbytes),
                " and ".join(sorted({tensor.dtype for tensor in m.tensors})),
                str(m.sample),
            )
            for m in zoo
        ],
        json=json,
    )
    if names and not json:
        print_notes(*(f"{m.name}: {note}" for m in zoo for note in m.notes))
