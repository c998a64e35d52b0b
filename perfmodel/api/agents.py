"""``perfmodel mcp``: the questions of the commands as tools of an agent, over stdio.

A call is checked here and answered in a process of its own, which sends its progress, and is killed
when the call is cancelled or its time is over. Nothing is kept between calls.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from multiprocessing import connection
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from perfmodel.api.names import Kind, describe_names
from perfmodel.errors import (
    Fault,
    InputError,
    PerfmodelError,
    allowed_names,
    look_up,
    raise_faults,
    require_installed,
)
from perfmodel.files import FileModel, Nodes, Parts, validate_document
from perfmodel.training.plan.step_plan import Op
from perfmodel.version import __version__

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.types import CallToolRequestParams, CallToolResult, ListToolsResult

Answer = tuple[str, dict[str, Any]]
"""Lines for people, and the document of ``--json``."""

Tell = Callable[..., None]
"""Called with how many of how many pieces are done, or with the next stage in words."""

INSTRUCTIONS = (
    "Predicts steps of distributed training on hardware that need not exist: how long, limited by "
    "what, at what cost. Questions are scenarios, by name or as all of their fields: the tool "
    "'names' lists scenarios, models, machines and others, 'schema' has the fields. An answer may "
    "be large: 'answer_fields' says which of its fields to return. Numbers are in SI units; "
    "predictions have 80 % intervals. What is wrong in a question is named with its field, what "
    "was found and what is allowed."
)

ScenarioField = Annotated[
    str | dict[str, Any],
    Field(description="a name such as 'resnet50-dgx-a100', a path, or all fields (see 'schema')"),
]
Changes = Annotated[
    dict[str, Any] | None,
    Field(description="dotted fields that differ, such as {'cluster.nodes': 4}; null removes one"),
]
Values = Annotated[
    dict[str, list[Any]] | None, Field(description="dotted fields, and a list of values of each")
]
Fidelity = Annotated[
    Literal["flow", "message", "reference"] | None,
    Field(description="rates on links (default), or every send: of small clusters"),
]


LONG_CHARACTERS = 20_000
"""Most of an answer in JSON that stands in the text, too; a field of a quarter is called large."""


class Call(FileModel):
    """What every tool takes."""

    time_limit_s: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="give up after so long; default: as the server was started"
    )
    answer_fields: list[str] | None = Field(
        default=None,
        description="top-level fields of the answer to return; default: all. It takes as long",
    )


class Study(Call):
    """What every tool takes that simulates."""

    profile: str | None = Field(default=None, description="measured numbers, by name or file")


class Question(Study):
    """What tools about one scenario take."""

    scenario: ScenarioField
    fields: Changes = None


class Run(Question):
    """Predict the step of a scenario at its cluster sizes: time, what limits it, scaling."""

    fidelity: Fidelity = None


class Tune(Question):
    """Find the best gradient buckets, or the best settings of another strategy than DDP."""

    horovod: bool = Field(default=False, description="Horovod's fusion threshold as well")


class Sweep(Question):
    """Answer many variants of a scenario: of its section 'sweep', or of 'grid' and 'zip'."""

    grid: Values = None
    zip: Values = None


class Plan(Question):
    """Compare the candidate clusters of a scenario's section 'plan': time, cost, failures."""


class Advise(Question):
    """Say what to change in a scenario: each change alone, and the best few together."""


class Compare(Study):
    """Put scenarios, or variations of the first one, side by side: what changed, and why."""

    scenarios: Annotated[list[ScenarioField], Field(min_length=1)] = Field(
        description="after the first also dotted fields that differ from it"
    )
    attribute: bool = Field(default=False, description="what-ifs of network and compute, too")


class Cluster(Call):
    """What tools about a machine take."""

    topology: str = Field(description="a machine such as 'dgx-a100', or a path")
    nodes: Nodes = Field(default=1, description="how many of these machines")
    gpus_per_node: Parts | None = Field(default=None, description="default: all of them")
    fabric: str | None = Field(
        default=None,
        description="shape of the network between them, such as 'rail-optimised'; needed for "
        "several nodes, whose NICs say whether it is InfiniBand or Ethernet",
    )


class Collective(Cluster, Study):
    """Time a collective over all GPUs of a machine by size, as nccl-tests would print it."""

    op: Op = "all_reduce"
    sizes: Annotated[list[int | str], Field(min_length=1)] = Field(
        default=["1 KiB", "1 MiB", "1 GiB"], description="bytes, or text such as '1 MiB'"
    )
    algorithm: str = Field(default="auto", description="auto (the library's own), ring, tree ...")
    library: Literal["nccl", "gloo", "mpi", "plain"] = "nccl"
    version: str | None = Field(default=None, description="of NCCL, such as 2.23.4")
    env: dict[str, str] | None = Field(default=None, description="NCCL's environment")
    fidelity: Literal["flow", "message", "reference"] = "flow"


class Diagnose(Study):
    """Say whether a log of nccl-tests is as expected of a machine, and what to look at if not."""

    log: str = Field(description="path of what nccl-tests printed")
    topology: str = Field(description="the machine as it should be: a name or a path")
    nodes: Nodes | None = Field(default=None, description="default: as the log says")
    gpus_per_node: Parts | None = Field(default=None, description="default: as the log says")
    fabric: str | None = Field(default=None, description="needed for several nodes")
    op: Op | None = Field(default=None, description="of tables that do not name theirs")
    version: str | None = Field(default=None, description="of NCCL, beside what the log states")
    env: dict[str, str] | None = Field(default=None, description="NCCL's environment, likewise")


class Topology(Cluster):
    """Describe a machine or a cluster: devices, links, paths, sources; its graph if asked."""

    graph: bool = Field(default=False, description="every device and link, as node-link data")


class Schema(Call):
    """Return the JSON Schema of a file format, or of one section of a scenario."""

    kind: Literal["scenario", "topology"] = "scenario"
    section: str | None = Field(default=None, description="such as 'strategy' or 'plan'")


class Names(Call):
    """List what there is by name, with a line on each: scenarios, models, machines and others."""

    kind: Kind


TOOLS: Mapping[str, type[Call]] = {
    "run": Run,
    "tune": Tune,
    "compare": Compare,
    "sweep": Sweep,
    "advise": Advise,
    "plan": Plan,
    "collective": Collective,
    "diagnose": Diagnose,
    "topology": Topology,
    "schema": Schema,
    "names": Names,
}

_ONE_SIZE = "one cluster size ('scale': null in 'fields'), fewer nodes"
SMALLER: Mapping[str, str] = {
    "run": f"{_ONE_SIZE}, fidelity 'flow'",
    "tune": _ONE_SIZE,
    "compare": "fewer scenarios, smaller ones, 'attribute' false",
    "sweep": "fewer values in 'grid' and 'zip', fewer nodes",
    "advise": _ONE_SIZE,
    "plan": "fewer candidates, and fewer numbers of nodes of each",
    "collective": "fewer and smaller 'sizes', fewer nodes, fidelity 'flow'",
    "topology": "fewer nodes, 'graph' false",
}
"""What makes a question of a tool take less time; those of the others are as small as can be."""


def serve(limit_s: float) -> None:
    """Answer calls until stdin ends; `limit_s`: of calls that set none."""
    require_installed("mcp", "agents are answered by the package mcp", "'perfmodel[mcp]'")

    import anyio

    anyio.run(_serve, limit_s)


async def _serve(limit_s: float) -> None:
    from mcp.server.lowlevel import Server
    from mcp.server.stdio import stdio_server
    from mcp.types import (
        CallToolResult,
        ListToolsResult,
        TextContent,
        Tool,
        ToolAnnotations,
    )

    async def list_tools(*_: object) -> ListToolsResult:
        return ListToolsResult(
            tools=[
                Tool(
                    name=name,
                    description=kind.__doc__,
                    input_schema=kind.model_json_schema(),
                    annotations=ToolAnnotations(
                        read_only_hint=True,
                        destructive_hint=False,
                        idempotent_hint=True,
                        open_world_hint=False,
                    ),
                )
                for name, kind in TOOLS.items()
            ]
        )

    async def call(context: ServerRequestContext, params: CallToolRequestParams) -> CallToolResult:
        try:
            text, document = await _answer_call(
                context, params.name, params.arguments or {}, limit_s
            )
        except PerfmodelError as error:
            return CallToolResult(content=[TextContent(text=str(error))], is_error=True)
        return CallToolResult(
            content=[
                TextContent(text=each)
                for each in in_text(text, document, whole=params.name == "schema")
            ],
            structured_content=document,
        )

    server = Server(
        "perfmodel",
        version=__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call,
    )
    async with stdio_server() as (calls, answers):
        await server.run(calls, answers, server.create_initialization_options())


async def _answer_call(
    context: ServerRequestContext, tool: str, arguments: dict[str, Any], limit_s: float
) -> Answer:
    """Answer a call in a process of its own, with its progress.

    Raises `PerfmodelError`: an unknown tool, wrong arguments, what the tool says of them, no answer
        in time, or a process that was killed.
    """
    import anyio

    given = validate_document(look_up(TOOLS, tool, "tool"), arguments)
    limit_s = given.time_limit_s or limit_s
    spawning = multiprocessing.get_context("spawn")
    ours, theirs = spawning.Pipe(duplex=False)
    worker = spawning.Process(target=work, args=(theirs, tool, given))
    worker.start()
    theirs.close()
    try:
        with anyio.fail_after(limit_s):
            told = 0
            while True:
                kind, *said = await anyio.to_thread.run_sync(ours.recv, abandon_on_cancel=True)
                if kind == "answer":
                    return said[0], select(said[1], given.answer_fields)
                if kind == "error":
                    raise said[0]
                told += 1
                done = said if len(said) > 1 else (told, None, said[0])
                await context.session.report_progress(*done)
    except TimeoutError:
        allowed = (
            "a longer limit, or a smaller question: "
            f"{SMALLER.get(tool, 'this one is the smallest')}; 'answer_fields' saves no time"
        )
        raise InputError(Fault("time_limit_s", f"no answer in {limit_s:g} s", allowed)) from None
    except EOFError:
        raise PerfmodelError(f"{tool}: its process ended without an answer") from None
    finally:
        _end(worker)


def _end(worker: BaseProcess) -> None:
    """End a process and those that it started, but for what removes their shared memory."""
    with suppress(ProcessLookupError, AttributeError):  # before it leads a group, and on Windows
        os.killpg(worker.pid or 0, signal.SIGTERM)
    worker.terminate()
    worker.join()


def in_text(text: str, document: Mapping[str, Any], *, whole: bool) -> list[str]:
    """Return the lines for people, what is large in the JSON, and this if short or wanted whole."""
    written = json.dumps(document)
    if len(written) <= LONG_CHARACTERS:
        return [text, written]
    fields = ", ".join(
        f"{name} ({size:,} characters)"
        if (size := len(json.dumps(value))) >= LONG_CHARACTERS / 4
        else name
        for name, value in document.items()
    )
    note = f"{len(written):,} characters of JSON; 'answer_fields' chooses from: {fields}"
    return [text, note, written] if whole else [text, note]


def select(document: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """Return some fields of an answer; None: all. Raises `InputError`: fields that it lacks."""
    chosen = document if names is None else names
    raise_faults(
        Fault("answer_fields", repr(name), allowed_names(document, name, limit=len(document)))
        for name in chosen
        if name not in document
    )
    return {name: document[name] for name in chosen}


# ---------------------------------------------------------------- in the process of a call


def work(answers: connection.Connection, tool: str, given: Call) -> None:
    """Answer a call: send progress, and the answer or the error."""
    if hasattr(os, "setsid"):
        os.setsid()  # processes of a sweep end with this one
    threading.Thread(target=_end_with_server, daemon=True).start()

    def tell(*done: object) -> None:
        answers.send(("progress", *done))

    try:
        answers.send(("answer", *answer(tool, given, tell)))
    except (PerfmodelError, OSError) as error:
        answers.send(("error", PerfmodelError(str(error)) if isinstance(error, OSError) else error))


def _end_with_server() -> None:
    """Wait for the end of the server, and end this process and those that it started."""
    server = multiprocessing.parent_process()
    assert server is not None
    connection.wait([server.sentinel])
    os.killpg(0, signal.SIGTERM)


def answer(tool: str, given: Call, tell: Tell) -> Answer:
    """Answer a call, as the command of its name does."""
    arguments = given.model_dump(exclude={"time_limit_s", "answer_fields"})
    if tool == "schema":
        named = arguments["section"] or arguments["kind"]
        return f"JSON Schema of a {named}", schema_document(**arguments)
    if tool == "names":
        return f"Names of {arguments['kind']}", {"names": describe_names(**arguments)}
    if tool == "topology":
        return _describe(**arguments)

    import perfmodel

    asked = [arguments.pop("scenarios")] if tool == "compare" else []
    shown = getattr(perfmodel, tool)(*asked, **arguments, progress=tell)
    return shown.to_text(), shown.to_json()


def _describe(*, graph: bool, **cluster: Any) -> Answer:
    """Describe a machine, with all that it consists of if its graph is asked for."""
    from perfmodel.report.topology import summary
    from perfmodel.topology import build_cluster
    from perfmodel.topology.graph_files import graph_document

    machine = build_cluster(cluster.pop("topology"), **cluster)
    text = "\n".join(summary(machine))
    return text, {
        "name": machine.name,
        "gpus": len(machine.ranks),
        "summary": text.splitlines(),
        "sources": dict(machine.sources),
        **({"graph": graph_document(machine)} if graph else {}),
    }


def schema_document(kind: str, section: str | None = None) -> dict[str, Any]:
    """Return the JSON Schema of a file format, or of one section of a scenario.

    Raises `InputError`: a section that a scenario does not have.
    """
    from pydantic import TypeAdapter

    from perfmodel.scenario import Scenario

    if section is not None:
        sections = Scenario.model_fields if kind == "scenario" else {}
        fields: Any = look_up(sections, section, "section").annotation
        document = TypeAdapter(fields).json_schema()
    elif kind == "scenario":
        document = Scenario.model_json_schema()
    else:
        from perfmodel.scenario.sections.cluster import NodeFile
        from perfmodel.topology.templates.spec import FabricFile, GpuTable, NodeSpec

        document = TypeAdapter(NodeSpec | NodeFile | FabricFile | GpuTable).json_schema()
    return document | {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"perfmodel {section or kind}",
    }
