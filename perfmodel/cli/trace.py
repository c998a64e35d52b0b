"""``perfmodel trace``: what a profiler's trace says, and its step on another machine.

``perfmodel export``: a step in the format of another simulator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Literal

import typer

from perfmodel.cli.output import (
    FabricOption,
    GpusPerNodeOption,
    JsonOption,
    NodesOption,
    SetOption,
    check_outputs,
    check_report_folder,
    output_option,
    print_answer,
    print_json,
    print_notes,
    print_text,
    read_question,
    scenario_argument,
)
from perfmodel.errors import Fault, InputError, failed, raise_faults, refuse_if


def trace(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            help="Traces of PyTorch's profiler, one per rank, or a folder; a folder of Chakra's.",
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
    topology: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Of Chakra's traces: the machine."),
    ] = None,
    nodes: NodesOption = 1,
    gpus_per_node: GpusPerNodeOption = None,
    fabric: FabricOption = None,
    library: Annotated[
        Literal["nccl", "gloo", "mpi", "plain"], typer.Option(help="Of Chakra's traces.")
    ] = "nccl",
    json: JsonOption = False,
) -> None:
    """Sum up traces of PyTorch's profiler, rebuild the step, and simulate it.

    Says steps, layers, buckets, overlap, skew and launch gaps, and how far the rebuilt step is off
    the trace on the machine as recorded. -o writes an editable model.yaml with the layer times,
    machine.yaml, scenario.yaml for 'perfmodel run', and both timelines; --set changes the scenario
    and simulates it once more.
    Chakra's execution traces (a folder of PREFIX.RANK.et) are simulated on --topology.
    """
    flags = {"-o": output, "--gpu": gpu, "--batch": batch, "--model": model, "--set": set_}
    chakra = [path for path in traces if path.is_dir() and any(path.glob("*.et"))]
    if chakra or topology is not None:
        _simulate_chakra(traces, topology, (nodes, gpus_per_node, fabric), library, flags, json)
    else:
        refuse_if(
            (nodes, gpus_per_node, fabric, library) != (1, None, None, "nccl"),
            "--nodes, --fabric, --library",
            "a machine",
            "nothing with traces of a profiler: --set cluster.nodes=2, and so on",
        )
        _analyse(traces, output, json, gpu=gpu, batch=batch, model=model, changes=set_ or ())


def _analyse(
    traces: list[Path],
    output: Path | None,
    json: bool,
    *,
    gpu: str | None,
    batch: int | None,
    model: str | None,
    changes: Sequence[str],
) -> None:
    """Sum up traces of a profiler, print that, and write it where it is asked for."""
    from perfmodel.report.trace import FILES, trace_lines, write_trace_report
    from perfmodel.traces.run import analyse_traces, to_json

    if output is not None:
        check_outputs(
            {f"-o ({name})": output / name for name in FILES},
            {f"the trace {path}": path for path in traces if path.is_file()},
        )
    print_answer(
        analyse_traces(traces, gpu=gpu, batch=batch, model=model, changes=changes, folder=output),
        json=json,
        to_json=to_json,
        lines=trace_lines,
        write=write_trace_report,
        folder=output,
    )


def _simulate_chakra(
    folders: list[Path],
    topology: str | None,
    cluster: tuple[int, int | None, str | None],
    library: str,
    unused: Mapping[str, object],
    json: bool,
) -> None:
    """Simulate a folder of Chakra's traces; `unused`: flags that these have no use for."""
    machine, folder = "the machine to simulate Chakra's traces on", "one folder of Chakra's traces"
    raise_faults(
        failed(
            *(
                (is_set, flag, "a value", "nothing with Chakra's traces")
                for flag, is_set in unused.items()
            ),
            (topology is None, "--topology", "nothing", machine),
            (len(folders) != 1, "trace", f"{len(folders)} folders", folder),
        )
    )
    assert topology is not None
    from perfmodel.cli.topology import build_cluster
    from perfmodel.report.common import quantities
    from perfmodel.traces.run import simulate_trace

    simulated = simulate_trace(folders[0], build_cluster(topology, *cluster), library)
    ranks = sum(len(each.ranks) for each in simulated.plan.classes)
    if json:
        print_json(
            {
                "perfmodel": 1,
                "kind": "chakra",
                "ranks": ranks,
                "step_time_s": simulated.step_s,
                "tasks": len(simulated.plan.tasks),
                "collectives": simulated.collectives,
            }
        )
        return
    print_text(
        f"{ranks} ranks, {simulated.collectives} collectives: "
        f"{quantities.duration(simulated.step_s)} a step on {topology}"
    )


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
    from perfmodel.studies.run.steps.sized_job import prepare
    from perfmodel.traces.chakra_write import GROUPS, write_plan

    question = read_question(scenario, set_)
    check_report_folder(output, [GROUPS], [question])
    prepared = prepare(question)
    question.refuse_if(
        prepared.job.strategy.plan is None,
        "strategy.kind",
        repr(question.strategy.kind),
        "a strategy whose ranks share steps",
    )
    files = write_plan(prepared.plan_for(None), output, question.name)
    print_notes(f"wrote {len(files) - 1} traces and {files[-1]} ({kind})")
