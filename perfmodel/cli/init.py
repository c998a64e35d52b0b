"""Commands to begin with: ``init`` drafts a scenario; ``schema``, ``doctor``, ``mcp`` ..."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from perfmodel.cli.output import (
    ForceOption,
    JsonOption,
    check_outputs,
    flags_as_fields,
    print_json,
    print_listing,
    print_notes,
    print_text,
)
from perfmodel.errors import Fault, PerfmodelError, raise_faults, refuse_if
from perfmodel.units import MOST_NODES

if TYPE_CHECKING:
    from perfmodel.api.draft import Draft


_FLAGS = {
    "model": "--model",
    "name": "--model",
    "model.name": "--model",
    "model.config": "--config",
    "topology": "--node",
    "cluster.node": "--node",
    "cluster.nodes": "--nodes",
    "nodes": "--nodes",
    "cluster.fabric": "--fabric",
    "kind": "--fabric",
    "gpu": "--gpu",
    "strategy.kind": "--strategy",
    "strategy": "--strategy",
    "template": "--template",
    "compute.precision": "--precision",
    "training.batch_per_gpu": "--batch",
}


@flags_as_fields(_FLAGS)
def init(
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.yaml", help="Write the scenario here.")
    ] = Path("scenario.yaml"),
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="A model by name (see 'perfmodel models').")
    ] = None,
    config: Annotated[
        str | None, typer.Option(metavar="FILE", help="Its config.json of Hugging Face instead.")
    ] = None,
    node: Annotated[
        str | None, typer.Option(metavar="NAME", help="A machine (see 'perfmodel topology list').")
    ] = None,
    trace: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="A profiler's trace of it instead, or a folder of them."),
    ] = None,
    topo: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What nvidia-smi topo -m or NCCL said of it instead."),
    ] = None,
    gpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Its GPUs, if --topo or --trace do not say.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(min=1, max=MOST_NODES, metavar="N", help="How many machines.")
    ] = None,
    fabric: Annotated[
        str | None, typer.Option(metavar="F", help="Network between them; default: the usual one.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option(metavar="P", help="Of products; default: what the GPU has.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, metavar="B", help="Samples per GPU; default: what fits.")
    ] = None,
    strategy: Annotated[
        str | None, typer.Option(metavar="S", help="Such as fsdp; default: the first that fits.")
    ] = None,
    force: ForceOption = False,
) -> None:
    """Write a commented scenario that runs at once.

    On a terminal it asks for what no flag says. What is left open is chosen and written down: the
    precision that the GPU has, the first strategy and the largest batch that fit its memory.
    With --trace the model, its times, the strategy and the machine are those that were recorded;
    --model names its parameters, --node another machine.
    """
    from perfmodel.api.draft import DraftAnswers, check_new, draft_scenario
    from perfmodel.api.traced_draft import draft_from_trace
    from perfmodel.topology.templates.build import load_node
    from perfmodel.workload.zoo import build_model

    check_new(output, force=force)
    check_outputs({"-o": output}, {"--topo": topo, "--config": Path(config) if config else None})
    refuse_if(
        node is not None and topo is not None, "--topo", "both --node and --topo", "one of them"
    )
    if trace:
        unused = {"--config": config, "--precision": precision, "--strategy": strategy}
        raise_faults(
            Fault(
                flag,
                "a value",
                "nothing with --trace, which says it: change the file that is written",
            )
            for flag, value in unused.items()
            if value
        )
        if topo is not None:
            node, gpu = str(_import_node(topo, gpu, output, force=force)), None
        draft = draft_from_trace(
            trace,
            output,
            gpu=gpu,
            batch_per_gpu=batch,
            model=model,
            node=node,
            nodes=nodes,
            fabric=fabric,
            force=force,
        )
        _write(draft, output, f"perfmodel run {output}", force=force)
        return
    refuse_if(
        gpu is not None and topo is None,
        "--gpu",
        repr(gpu),
        "--topo beside it: a node has its own GPUs",
    )
    if sys.stdin.isatty() and model is None and config is None:
        model = _ask_for("Which model (perfmodel models lists them)?", "resnet50", build_model)
        if node is None and topo is None:
            node = _ask_for("Which machine (perfmodel topology list)?", "dgx-a100", load_node)
        if nodes is None:
            nodes = int(_ask_for("How many of them?", "1", _check_nodes))
    refuse_if(
        model is None and config is None,
        "--model",
        "nothing",
        "a model by name, or --config FILE",
    )
    if topo is not None:
        node = str(_import_node(topo, gpu, output, force=force))
    answers = DraftAnswers(
        model, config, node or "dgx-a100", nodes or 1, fabric, precision, batch, strategy
    )
    draft = draft_scenario(answers, output.parent)
    _write(
        draft,
        output,
        f"perfmodel run {output}, perfmodel advise {output}, perfmodel tune {output}",
        force=force,
    )


def _write(draft: Draft, output: Path, go_on: str, *, force: bool) -> None:
    """Write and print a draft, and say what was chosen and what to run next."""
    from perfmodel.api.draft import write_draft

    write_draft(draft, output, force=force)
    print_text(draft.text.rstrip("\n"))
    print_notes(*draft.notes, f"wrote {output}; next: {go_on}")


def _ask_for(question: str, default: str, check: Callable[[str], object]) -> str:
    """Ask until the answer is known; say why it is not."""
    while True:
        answer = str(typer.prompt(question, default=default)).strip()
        try:
            check(answer)
        except PerfmodelError as error:
            print_notes(str(error))
        else:
            return answer


def _check_nodes(text: str) -> None:
    refuse_if(
        not text.isdecimal() or not 1 <= int(text) <= MOST_NODES,
        "nodes",
        repr(text),
        f"a whole number from 1 to {MOST_NODES:,}",
    )


def _import_node(topo: Path, gpu: str | None, output: Path, *, force: bool) -> Path:
    """Write the machine that a file describes beside the scenario; return its file."""
    from perfmodel.api.draft import check_new
    from perfmodel.files import write_atomically
    from perfmodel.topology.importers import import_file

    place = output.with_name(f"{output.stem}-node.yaml")
    check_new(place, force=force)
    imported = import_file(topo, gpu=gpu)
    refuse_if(
        imported.is_fabric,
        "--topo",
        f"{str(topo)!r}, a network",
        "a file about one machine: nvidia-smi topo -m, or NCCL's topology XML",
    )
    imported.node()
    print_notes(*(f"assumed: {text}" for text in imported.notes))
    write_atomically(place, imported.text())
    print_notes(f"wrote {place}")
    return place


def scenarios(
    name: Annotated[
        str | None, typer.Argument(metavar="[SCENARIO]", help="Print the file of this one.")
    ] = None,
    json: JsonOption = False,
) -> None:
    """List the scenarios and the question of each, or print the file of one, to begin with."""
    from perfmodel.api.names import scenario_questions
    from perfmodel.files import find_file, read_text

    if name is not None:
        refuse_if(json, "--json", "beside a scenario", "only without: files are YAML")
        print_text(read_text(find_file(name, "scenarios", field="SCENARIO")).rstrip())
        return
    questions = scenario_questions()
    print_listing(
        {"scenarios": [{"name": n, "question": q} for n, q in questions.items()]},
        ("scenario", "question"),
        list(questions.items()),
        json=json,
    )


def schema(
    kind: Annotated[
        Literal["scenario", "topology"],
        typer.Argument(metavar="scenario|topology", help="Which file format."),
    ],
) -> None:
    """Print the JSON Schema of a file format."""
    from perfmodel.api.agents import schema_document

    print_json(schema_document(kind))


def mcp(
    time_limit: Annotated[
        float, typer.Option(min=1, metavar="SECONDS", help="For calls without time_limit_s.")
    ] = 600.0,
) -> None:
    """Offer the questions as tools to an agent, over stdin and stdout (Model Context Protocol).

    run, tune, compare, sweep, advise, plan, collective, topology, schema, and names of what there
    is; answers are those of --json, with a short text. Needs the SDK: pip install 'perfmodel[mcp]'.
    """
    from perfmodel.api.agents import serve

    serve(time_limit)


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
