"""``perfmodel trace``: what a profiler's trace says, and its step on another machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from perfmodel.cli.options import JsonOption, SetOption, output_option
from perfmodel.cli.output import check_outputs, print_blocks, print_json, print_note

TRACE_EXAMPLES = (
    "perfmodel trace rank0.json.gz rank1.json.gz -o out",
    "perfmodel trace traces/ --model resnet50 --batch 64 -o out",
    "perfmodel trace rank0.json.gz --set cluster.node=dgx-h100 --set library.name=nccl",
)


def trace(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...", help="Traces of PyTorch's profiler, one per rank, or a folder."
        ),
    ],
    output: Annotated[
        Path | None, output_option("DIR", "Write model, machine, scenario and timelines here.")
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="The GPU, if its name is not known.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Samples per GPU, if not in the trace.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Of the zoo, or a file: names the parameters."),
    ] = None,
    set_: SetOption = None,
    json: JsonOption = False,
) -> None:
    """Sum up traces of PyTorch's profiler, rebuild the step, and simulate it.

    Says steps, layers, buckets, overlap, skew and launch gaps, and how far the rebuilt step is off
    the trace on the machine as recorded. -o writes an editable model.yaml with the layer times,
    machine.yaml, scenario.yaml for 'perfmodel run', and both timelines; --set changes the scenario
    and simulates it once more.
    """
    from perfmodel.report.traces.page import FILES
    from perfmodel.traces.run import analyse_traces

    if output is not None:
        inputs = {f"the trace {path}": path for path in traces if path.is_file()}
        check_outputs({f"-o ({name})": output / name for name in FILES}, inputs)
    analysis = analyse_traces(
        traces, gpu=gpu, batch=batch, model=model, changes=set_ or (), folder=output
    )
    if json:
        from perfmodel.traces.export import to_json

        print_json(to_json(analysis))
    else:
        from perfmodel.report.traces.text import trace_lines

        print_blocks(trace_lines(analysis))
    if output is not None:
        from perfmodel.report.traces.page import write_trace_report

        print_note(f"wrote {write_trace_report(analysis, output)}")
