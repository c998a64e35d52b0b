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
    print_note,
    print_text,
    read_question,
    refuse,
    scenario_argument,
)
from perfmodel.errors import Fault, InputError, failed


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
        typer.Option(metavar="NAME", help="Of Chakra's and execution traces: the machine."),
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
    Chakra's execution traces (a folder of PREFIX.RANK.et) are simulated on --topology. Of an
    execution trace (ExecutionTraceObserver) alone, -o with --topology drafts a scenario, whose
    times are estimated.
    """
    from perfmodel.traces.execution_trace import is_execution_trace

    flags = {"-o": output, "--gpu": gpu, "--batch": batch, "--model": model, "--set": set_}
    files = [path for path in traces if path.is_file()]
    chakra = [path for path in traces if path.is_dir() and any(path.glob("*.et"))]
    executed = bool(files) and all(map(is_execution_trace, files))
    if chakra or (topology is not None and not executed):
        faults = _unused(flags, "Chakra's traces")
        _simulate_chakra(traces, topology, (nodes, gpus_per_node, fabric), library, faults, json)
    elif executed:
        faults = _unused({name: flags[name] for name in _NOT_EXECUTED}, "execution traces")
        _draft_executed(
            traces, output, batch, (topology, nodes, gpus_per_node, fabric), faults, json
        )
    elif (nodes, gpus_per_node, fabric, library) != (1, None, None, "nccl"):
        allowed = "nothing with traces of a profiler: --set cluster.nodes=2, and so on"
        raise InputError(Fault("--nodes, --fabric, --library", "a machine", allowed))
    else:
        _analyse(traces, output, json, gpu=gpu, batch=batch, model=model, changes=set_ or ())


_NOT_EXECUTED = ("--gpu", "--model", "--set")
"""Flags that execution traces have no use for."""


def _unused(flags: Mapping[str, object], traces: str) -> list[Fault]:
    """What was set of options that traces of a kind have no use for."""
    return [
        Fault(flag, "a value", f"nothing with {traces}") for flag, is_set in flags.items() if is_set
    ]


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


def _draft_executed(
    paths: list[Path],
    output: Path | None,
    batch: int | None,
    cluster: tuple[str | None, int, int | None, str | None],
    unused: Sequence[Fault],
    json: bool,
) -> None:
    """Draft a scenario from one execution trace, run it, and print both."""
    from perfmodel.report.run.text import result_lines, to_json
    from perfmodel.traces.rebuild import executed_scenario

    _refuse_unless_one(
        paths,
        "files",
        cluster[0],
        "one rank's execution trace",
        "the machine: an execution trace does not name its GPUs",
        [
            *unused,
            *failed((output is None, "-o", "nothing", "the folder of a drafted scenario")),
        ],
    )
    assert output is not None
    check_outputs(
        {f"-o ({name})": output / name for name in executed_scenario.FILES},
        {f"the trace {paths[0]}": paths[0]},
    )
    section = zip(("node", "nodes", "gpus_per_node", "fabric"), cluster, strict=True)
    path, result, notes = executed_scenario.run_draft(
        paths[0], {name: value for name, value in section if value is not None}, output, batch
    )
    print_answer(result, json=json, to_json=to_json, lines=result_lines)
    for note in (*notes, f"wrote {path}"):
        print_note(note)


def _refuse_unless_one(
    paths: list[Path],
    kind: str,
    topology: str | None,
    one: str,
    machine: str,
    faults: Sequence[Fault] = (),
) -> None:
    """Refuse several traces, and traces without a machine to simulate them on."""
    refuse(
        [
            *faults,
            *failed(
                (topology is None, "--topology", "nothing", machine),
                (len(paths) != 1, "trace", f"{len(paths)} {kind}", one),
            ),
        ]
    )


def _simulate_chakra(
    folders: list[Path],
    topology: str | None,
    cluster: tuple[int, int | None, str | None],
    library: str,
    unused: Sequence[Fault],
    json: bool,
) -> None:
    _refuse_unless_one(
        folders,
        "folders",
        topology,
        "one folder of Chakra's traces",
        "the machine to simulate Chakra's traces on",
        unused,
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
    if prepared.job.strategy.plan is None:
        raise question.fault(
            "strategy.kind", repr(question.strategy.kind), "a strategy whose ranks share steps"
        )
    files = write_plan(prepared.plan_for(None), output, question.name)
    print_note(f"wrote {len(files) - 1} traces and {files[-1]} ({kind})")
