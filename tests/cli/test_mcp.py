"""``perfmodel mcp`` as an agent meets it: by the SDK's own client, over stdio."""

from __future__ import annotations

import inspect
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal
from mcp import Client, StdioServerParameters
from mcp.types import CallToolResult, TextContent
from typer.testing import CliRunner

import perfmodel
from perfmodel.api.agents import TOOLS as CALLS
from perfmodel.api.names import describe_names
from perfmodel.cli.app import app
from tests.docs.pages import DOCS, blocks, is_alike

RUN = CliRunner()
TOOLS = {
    "run",
    "tune",
    "compare",
    "sweep",
    "advise",
    "plan",
    "collective",
    "diagnose",
    "topology",
    "schema",
    "names",
}
SMALL = {"scale": None, "cluster.nodes": 1}
LONG = {"scenario": "gpt3-175b-1024-a100"}

Talk = Callable[[Client], Awaitable[Any]]
Ask = Callable[[Talk], Any]


def server(*flags: str) -> StdioServerParameters:
    """The command, as a host starts it."""
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "perfmodel", "mcp", *flags],
        env={"PYTHONPATH": str(Path(perfmodel.__file__).parents[1])},
    )


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Talk to one server, in a thread of its own: a browser's test may have left a loop here."""
    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(server())) as client,
    ):
        yield lambda talk: portal.call(talk, client)


def text_of(answer: CallToolResult) -> str:
    return texts_of(answer)[0]


def texts_of(answer: CallToolResult) -> list[str]:
    """All blocks of text: lines for people, a note on what is large, JSON."""
    return [each.text for each in answer.content if isinstance(each, TextContent)]


def workers(of: int) -> Iterator[int]:
    """Processes of calls among the descendants of a process."""
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(place.read_text().rpartition(")")[2].split()[1])
            command = (place.parent / "cmdline").read_text()
        except OSError:  # it has ended
            continue
        if parent == of:
            number = int(place.parent.name)
            if "multiprocessing.spawn" in command and "resource_tracker" not in command:
                yield number
            yield from workers(number)


async def wait_until(holds: Callable[[], bool], most_s: float = 60.0) -> None:
    end_s = time.monotonic() + most_s
    while not holds():
        assert time.monotonic() < end_s
        await anyio.sleep(0.05)


def test_tools_have_schemas_and_faults_say_what_is_allowed(ask: Ask) -> None:
    async def talk(client: Client) -> None:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == TOOLS
        assert all(tool.description for tool in tools.values())
        for tool in tools.values():
            assert tool.annotations is not None
            assert tool.annotations.read_only_hint is True
            assert tool.annotations.open_world_hint is False
            assert "\n" not in (tool.description or "")
            assert {"time_limit_s", "answer_fields"} <= set(tool.input_schema["properties"])
        nodes = tools["collective"].input_schema["properties"]["nodes"]
        assert nodes["maximum"] > 1000
        assert tools["run"].input_schema["additionalProperties"] is False
        for name, arguments, said in (
            ("tun", {}, "did you mean 'run'?"),
            ("run", {"scenaro": "resnet50-dgx-a100"}, "did you mean 'scenario'?"),
            ("collective", {"topology": "dgx-a100", "nodes": 0}, "nodes: found 0; allowed:"),
            ("names", {"kind": "machine"}, "did you mean 'machines'?"),
            (
                "collective",
                {"topology": "dgx-a100", "nodes": 2, "fabric": "ethernet"},
                "; the node's NICs say whether it is Ethernet or InfiniBand",
            ),
            (
                "run",
                {"scenario": "resnet50-dgx-a100", "fields": {"cluster.fabric": "ethernet"}},
                "; the node's NICs say whether it is Ethernet or InfiniBand",
            ),
        ):
            answer = await client.call_tool(name, arguments)
            assert answer.is_error
            assert said in text_of(answer)

    ask(talk)


@pytest.mark.parametrize("tool", sorted(TOOLS - {"topology", "schema", "names"}))
def test_a_tool_has_the_fields_of_its_function(tool: str) -> None:
    taken = inspect.signature(getattr(perfmodel, tool)).parameters
    assert set(CALLS[tool].model_fields) - {"time_limit_s", "answer_fields"} <= set(taken)
    assert "progress" in taken


@pytest.mark.slow
def test_an_answer_is_that_of_the_command(ask: Ask) -> None:
    told: list[tuple[float, float | None]] = []

    async def note(done: float, total: float | None, message: str | None) -> None:
        told.append((done, total))

    async def talk(client: Client) -> list[CallToolResult]:
        asked = {"scenario": "resnet50-dgx-a100", "fields": SMALL}
        wrong = {"scenario": "resnet50-dgx-a100", "fields": {"cluster.nodez": 1}}
        return [
            await client.call_tool("run", asked, progress_callback=note),
            await client.call_tool("run", wrong),
            await client.call_tool("collective", {"topology": "dgx-a100", "sizes": ["1 GiB"]}),
        ]

    run, wrong, times = ask(talk)
    flags = [word for field in ("scale=null", "cluster.nodes=1") for word in ("--set", field)]
    command = ["run", "resnet50-dgx-a100", *flags]
    assert run.structured_content == json.loads(RUN.invoke(app, [*command, "--json"]).stdout)
    said = [line.rstrip() for line in text_of(run).splitlines()]
    assert said == RUN.invoke(app, command).stdout.splitlines()
    assert told == [(1, 1)]
    assert wrong.is_error
    assert "cluster.nodez: found an unknown field, 1 (did you mean" in text_of(wrong)
    command = ["collective", "dgx-a100", "-b", "1 GiB", "-e", "1 GiB", "--json"]
    assert times.structured_content == json.loads(RUN.invoke(app, command).stdout)


def test_json_stands_in_the_text_and_fields_are_chosen(ask: Ask) -> None:
    chosen = {"answer_fields": ["gpus", "sources"]}

    async def talk(client: Client) -> list[CallToolResult]:
        return [
            await client.call_tool("topology", {"topology": "dgx-a100"}),
            await client.call_tool("topology", {"topology": "dgx-a100"} | chosen),
            await client.call_tool("topology", {"topology": "dgx-a100", "answer_fields": ["gpu"]}),
            await client.call_tool("topology", {"topology": "dgx-a100", "graph": True}),
            await client.call_tool("schema", {"section": "plan"}),
            await client.call_tool("schema", {}),
        ]

    whole, part, wrong, large, section, schema = ask(talk)
    assert json.loads(texts_of(whole)[1]) == whole.structured_content
    assert whole.structured_content is not None
    assert part.structured_content == {
        name: whole.structured_content[name] for name in ("gpus", "sources")
    }
    assert wrong.is_error
    assert "answer_fields: found 'gpu' (did you mean 'gpus'?); allowed: one of" in text_of(wrong)
    assert large.structured_content is not None
    assert large.structured_content["gpus"] == 8
    names = {node["id"] for node in large.structured_content["graph"]["nodes"]}
    assert "n0/gpu7" in names
    size = len(json.dumps(large.structured_content["graph"]))
    _, note = texts_of(large)
    assert note.endswith(f"chooses from: name, gpus, summary, sources, graph ({size:,} characters)")
    _, note, written = texts_of(schema)
    assert json.loads(written) == schema.structured_content
    assert "$defs" in note
    assert section.structured_content is not None
    assert "target" in section.structured_content["$defs"]["PlanSection"]["properties"]


@pytest.mark.skipif(not DOCS.exists(), reason="pages stand in a checkout only")
def test_the_page_shows_how_a_host_starts_it_and_a_call(ask: Ask) -> None:
    host, call, lines, fields = [
        block.body for block in blocks((DOCS / "reference/agents.md").read_text("utf-8"))
    ]
    started = json.loads(host)["mcpServers"]["perfmodel"]
    assert started == {"command": "perfmodel", "args": ["mcp"]}
    asked = json.loads(call)

    async def talk(client: Client) -> CallToolResult:
        return await client.call_tool(asked["name"], asked["arguments"])

    answer = ask(talk)
    assert is_alike(lines, text_of(answer))
    assert texts_of(answer)[1] == fields.strip()
    assert answer.structured_content == json.loads(fields)


def test_names_are_those_that_commands_list(ask: Ask) -> None:
    """The tool answers what `describe_names` says of a kind."""

    async def talk(client: Client) -> CallToolResult:
        return await client.call_tool("names", {"kind": "scenarios"})

    listed = json.loads(RUN.invoke(app, ["scenarios", "--json"]).stdout)["scenarios"]
    questions = {each["name"]: each["question"] for each in listed}
    assert (ask(talk).structured_content or {})["names"] == questions
    listed = json.loads(RUN.invoke(app, ["topology", "list", "--json"]).stdout)["topologies"]
    nodes = {each["name"]: each["description"] for each in listed if each["kind"] == "node"}
    assert describe_names("machines") == nodes
    of_data_sheet = describe_names("gpus")["h100-sxm5-80gb"]
    assert of_data_sheet.startswith("hopper")
    assert of_data_sheet.endswith("3.35 TB/s")
    assert {"torus", "rail-optimised"} <= set(describe_names("fabrics"))
    assert set(describe_names("libraries")) == {"nccl", "plain", "rings", "gloo", "mpi"}
    assert {"ddp", "fsdp", "auto"} <= set(describe_names("strategies"))
    assert "epyc-2-cores-gloo" in describe_names("profiles")


def test_names_of_models_say_how_large_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfmodel.workload.zoo_names", lambda: ("resnet18", "gpt2"))
    named = describe_names("models")
    listed = json.loads(RUN.invoke(app, ["models", "--json"]).stdout)["models"]
    assert list(named) == [each["name"] for each in listed]
    assert named["gpt2"] == "124,439,808 parameters; one sample: sequence of 1024 tokens"


@pytest.mark.slow
def test_studies_answer_too(ask: Ask) -> None:
    base = {"scenario": "bucket-size-slow-ethernet", "fields": {"scale": None, "cluster.nodes": 2}}
    target = {
        "target": {"samples": 1e6},
        "candidates": [{"name": "one", "node": "dgx-a100", "nodes": [1]}],
    }

    async def talk(client: Client) -> dict[str, CallToolResult]:
        calls = {
            "tune": base,
            "compare": {"scenarios": [base["scenario"], {"strategy.hook": "fp16"}]},
            "sweep": base | {"grid": {"cluster.nodes": [1, 2]}},
            "plan": {"scenario": "resnet50-dgx-a100", "fields": {"plan": target}},
        }
        return {name: await client.call_tool(name, asked) for name, asked in calls.items()}

    answers = {name: answer.structured_content or {} for name, answer in ask(talk).items()}
    assert answers["tune"]["best_uniform"]["bucket_cap_mb"] > 0
    assert [side["label"] for side in answers["compare"]["sides"]][1] == "strategy.hook=fp16"
    assert answers["sweep"]["count"] == 2
    assert answers["sweep"]["scenario"] == "bucket-size-slow-ethernet"
    assert answers["plan"]["answers"]["cheapest"] is None
    assert answers["plan"]["answers"]["fastest"]["gpus"] == 8


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are found in /proc")
def test_what_takes_too_long_or_is_cancelled_ends() -> None:
    own = os.getpid()

    async def talk(client: Client) -> None:
        answer = await client.call_tool("run", LONG)
        assert answer.is_error
        assert "time_limit_s: found no answer in 1 s; allowed: a longer limit" in text_of(answer)
        assert "a smaller question: one cluster size" in text_of(answer)
        await wait_until(lambda: not list(workers(own)))
        async with anyio.create_task_group() as calls:
            calls.start_soon(client.call_tool, "run", LONG | {"time_limit_s": 1000})
            await wait_until(lambda: bool(list(workers(own))))
            calls.cancel_scope.cancel()
        await wait_until(lambda: not list(workers(own)))
        schema = await client.call_tool("schema", {"section": "seed", "time_limit_s": 100})
        assert not schema.is_error

    with (
        start_blocking_portal() as portal,
        portal.wrap_async_context_manager(Client(server("--time-limit", "1"))) as client,
    ):
        portal.call(talk, client)


def test_without_the_sdk_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name == "mcp" else find_spec(name)
    )
    answer = RUN.invoke(app, ["mcp"])
    assert answer.exit_code == 2
    assert answer.stderr.endswith("is not installed: pip install 'perfmodel[mcp]'\n")
