"""Chakra's traces: bytes as the schema has them, out and in without loss, and those of others."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.errors import InputError
from perfmodel.library.machine import make_machine
from perfmodel.library.model import load_library
from perfmodel.scenario import load_scenario
from perfmodel.simulate.engine.engine import simulate
from perfmodel.studies.run.steps.sized_job import prepare
from perfmodel.testing.check_plan import check_plan
from perfmodel.topology.templates.build import build_topology
from perfmodel.traces import chakra_nodes
from perfmodel.traces.chakra_nodes import (
    COLLECTIVE,
    COMPUTE,
    METADATA,
    RECEIVE,
    SEND,
    TraceNode,
    decode_varint,
    encode_field,
    encode_trace,
    encode_varint,
    read_trace,
    signed,
)
from perfmodel.traces.chakra_read import read_plan
from perfmodel.traces.chakra_write import write_plan
from perfmodel.traces.run import simulate_trace
from perfmodel.training.plan.step_plan import Collective


def write(folder: Path, *ranks: Sequence[TraceNode]) -> Path:
    for rank, nodes in enumerate(ranks):
        (folder / f"job.{rank}.et").write_bytes(encode_trace(nodes))
    return folder


@given(st.integers(-(2**63), 2**63 - 1))
def test_varints(value: int) -> None:
    encoded = encode_varint(value)
    decoded, end = decode_varint(encoded, 0)
    assert (signed(decoded), end) == (value, len(encoded))


def test_bytes_of_a_file() -> None:
    """Put together by hand from et_def.proto and the encoding's documentation."""
    node = TraceNode(1, "ar", COLLECTIVE, (2,), (), 3, {"comm_size": 300, "is_cpu_op": False})
    size = bytes.fromhex("0a 09") + b"comm_size" + bytes.fromhex("68 ac 02")
    flag = bytes.fromhex("0a 09") + b"is_cpu_op" + bytes.fromhex("d8 01 00")
    message = (
        bytes.fromhex("08 01 12 02")
        + b"ar"
        + bytes.fromhex("18 07 2a 01 02 38 03")
        + bytes.fromhex("52 0e")
        + size
        + bytes.fromhex("52 0e")
        + flag
    )
    metadata = bytes.fromhex("07 0a 05") + b"0.0.4"
    assert encode_trace([node]) == metadata + bytes([len(message)]) + message


def test_attributes_of_all_kinds(tmp_path: Path) -> None:
    attributes = {
        "flag": True,
        "comm_size": 2**63,
        "comm_tag": 7,
        "negative": -3,
        "time": 0.1,
        "text": "ü",
        "list": (1, 300, 2**40),
    }
    node = TraceNode(9, "n", COMPUTE, (1, 2), (3,), 11, attributes)
    path = tmp_path / "job.0.et"
    path.write_bytes(encode_trace([node]))
    assert read_trace(path) == (node,)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("resnet50-dgx-a100", ["cluster.nodes=1"]),
        ("resnet50-dgx-a100", ["cluster.nodes=1", "strategy={kind: fsdp}"]),
        ("dataparallel-dgx1", ["compute.cuda_graphs=true"]),  # a trace has the device alone
        (
            "gpt3-175b-1024-a100",
            [
                "cluster.nodes=1",
                "parallel.pipeline={stages: 2, schedule: 1f1b}",
                "parallel.tensor=2",
                "parallel.vocabulary_multiple=128",
                "model={name: gpt2}",
                "strategy={kind: ddp, accumulate: 4}",
                "training={batch_per_gpu: 1}",
            ],
        ),
    ],
)
def test_out_and_in_gives_the_same_step(tmp_path: Path, name: str, changes: list[str]) -> None:
    prepared = prepare(load_scenario(name, ["scale=null", *changes]))
    plan = prepared.plan_for(None)
    write_plan(plan, tmp_path, name)
    again = read_plan(tmp_path).plan
    check_plan(again)
    assert len(again.tasks) == len(plan.tasks)
    before, after = (simulate(each, prepared.machine, steps=2) for each in (plan, again))
    assert after.step_times_s == pytest.approx(before.step_times_s, rel=1e-9)
    sent, received = (
        [t.work for t in each.tasks if isinstance(t.work, Collective)] for each in (plan, again)
    )
    assert sorted(map(repr, received)) == sorted(map(repr, sent))
    for path in tmp_path.glob("*.et"):
        path.write_bytes(encode_trace(map(as_others_read, read_trace(path))))
    bare = read_plan(tmp_path)
    check_plan(bare.plan)  # among others, that both ends of messages find each other
    assert not bare.own
    bare_s = simulate(bare.plan, prepared.machine, steps=1).step_time_s
    assert bare_s == pytest.approx(before.step_time_s, rel=0.1)


@pytest.mark.slow
def test_ranks_that_do_the_same_are_held_once(tmp_path: Path) -> None:
    """Reading eight of them takes little more memory than reading one; all are members."""
    nodes = [
        TraceNode(n, f"node {n}", COMPUTE, (n - 1,) if n else (), (), 5, {"is_cpu_op": False})
        for n in range(2_000)
    ]
    peaks = []
    for ranks in (1, 8):
        folder = tmp_path / str(ranks)
        folder.mkdir()
        write(folder, *[nodes] * ranks)
        tracemalloc.start()
        plan = read_plan(folder).plan
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert [each.ranks for each in plan.classes] == [tuple(range(ranks))]
    assert peaks[1] < 1.7 * peaks[0]


def as_others_read(node: TraceNode) -> TraceNode:
    """A node without what the format itself has no place for."""
    own = {k: value for k, value in node.attributes.items() if not k.startswith("perfmodel_")}
    return replace(node, attributes=own)


def test_sizes_as_astra_sim_counts_them(tmp_path: Path) -> None:
    """An all-gather's is that of one rank."""
    changes = ["scale=null", "cluster.nodes=1", "strategy={kind: fsdp}"]
    plan = prepare(load_scenario("resnet50-dgx-a100", changes)).plan_for(None)
    write_plan(plan, tmp_path, "fsdp")
    nodes = [node for node in read_trace(tmp_path / "fsdp.3.et") if node.kind == COLLECTIVE]
    gathers = [node for node in nodes if node.attributes["comm_type"] == 2]
    assert gathers
    assert all(
        node.attributes["comm_size"] == int(str(node.attributes["perfmodel_nbytes"])) // 8
        for node in gathers
    )
    groups = json.loads((tmp_path / "comm_groups.json").read_text())
    assert groups[str(nodes[0].attributes["pg_name"])] == list(range(8))


# ---------------------------------------------------------------- of others


def foreign(size: int = 10**6, group: str | None = None) -> list[TraceNode]:
    """Two kernels and an all-reduce, as ASTRA-sim's generators write them, behind metadata."""
    named = {} if group is None else {"pg_name": group}
    return [
        TraceNode(0, "init", METADATA),
        TraceNode(1, "a", COMPUTE, (0,), (), 500, {"is_cpu_op": False}),
        TraceNode(3, "ar", COLLECTIVE, (1,), (), 0, {"comm_type": 0, "comm_size": size, **named}),
        TraceNode(5, "b", COMPUTE, (), (0,), 700, {"is_cpu_op": False}),
        TraceNode(6, "c", COMPUTE, (3, 5), (), 100, {"is_cpu_op": False}),
    ]


def test_a_trace_of_another_program(tmp_path: Path) -> None:
    """The all-reduce hides behind the second kernel as far as it is shorter."""
    topology = build_topology("dgx-a100", gpus_per_host=4)
    short = simulate_trace(write(tmp_path, *[foreign()] * 4), topology)
    assert short.step_s == pytest.approx(1300e-6, rel=1e-9)
    long = simulate_trace(write(tmp_path, *[foreign(10**9)] * 4), topology)
    machine = make_machine(topology, load_library("nccl"))
    from perfmodel.simulate.uncontended import UncontendedTimer

    alone = UncontendedTimer(machine).best("all_reduce", 10**9, range(4))[1]
    assert long.step_s == pytest.approx(600e-6 + alone, rel=1e-6)


def test_the_command_says_what_was_simulated(tmp_path: Path) -> None:
    """Kernels take as long as they say; ranks that do the same are held once."""
    words = ["trace", str(write(tmp_path, *[foreign()] * 4)), "--topology", "dgx-a100", "--json"]
    answer = CliRunner().invoke(app, [*words, "--gpus-per-node", "4"])
    assert answer.exit_code == 0, answer.output
    said = json.loads(answer.stdout)
    assert said == {
        "perfmodel": 1,
        "kind": "chakra",
        "ranks": 4,
        "step_time_s": pytest.approx(1300e-6, rel=1e-9),
        "tasks": sum(node.kind != METADATA for node in foreign()),
        "collectives": 1,
    }


def test_messages_and_groups(tmp_path: Path) -> None:
    ends = {"comm_src": 0, "comm_dst": 1, "comm_size": 10**8, "comm_tag": 4}
    sends = [TraceNode(1, "s", SEND, (), (), 0, ends)]
    takes = [TraceNode(1, "r", RECEIVE, (), (), 0, ends)]
    folder = write(tmp_path, sends, takes, foreign(group="7"), foreign(group="7"))
    (folder / "comm_groups.json").write_text('{"7": [2, 3]}')
    plan = read_plan(folder).plan
    check_plan(plan)
    groups = {each.name: each.groups for each in plan.communicators}
    assert groups == {"0 to 1": ((0, 1),), "group 7": ((2, 3),)}
    assert simulate_trace(folder, build_topology("dgx-a100")).step_s > 1300e-6 - 1e-12


def test_dependencies_and_sizes_of_others(tmp_path: Path) -> None:
    """A node of the CPU waits for its control dependency; an all-gather's size is of one rank."""
    nodes = [
        TraceNode(1, "a", COMPUTE, (), (), 500, {"is_cpu_op": False}),
        TraceNode(2, "b", COMPUTE, (), (1,), 300, {"is_cpu_op": True}),
        TraceNode(3, "ag", COLLECTIVE, (2,), (), 0, {"comm_type": 2, "comm_size": 1000}),
    ]
    folder = write(tmp_path, nodes, nodes)
    plan = read_plan(folder).plan
    assert [task.after for task in plan.tasks] == [(), (0,), (1,)]
    assert [t.work.nbytes for t in plan.tasks if isinstance(t.work, Collective)] == [2000]
    assert simulate_trace(folder, build_topology("dgx-a100")).step_s > 800e-6


def test_messages_have_two_ends(tmp_path: Path) -> None:
    """Of a larger group; two that are exchanged; alike ones that do not name their own rank."""
    size = {"comm_size": 10**8, "pg_name": "7"}

    def node(kind: int, number: int, **ends: int) -> TraceNode:
        return TraceNode(number, "m", kind, (), (), 0, {**size, **ends})

    ranks = [
        [node(SEND, 1, comm_dst=2), node(SEND, 2, comm_src=0, comm_dst=3)],
        [node(SEND, 1, comm_dst=2)],
        [node(RECEIVE, 1, comm_src=0), node(RECEIVE, 2, comm_src=1)],
        [node(RECEIVE, 1, comm_src=0, comm_dst=3)],
    ]
    ranks[3].insert(0, node(SEND, 0, comm_src=3, comm_dst=0))
    ranks[0].append(node(RECEIVE, 3, comm_src=3, comm_dst=0))
    folder = write(tmp_path, *ranks)
    (folder / "comm_groups.json").write_text('{"7": [0, 1, 2, 3]}')
    plan = read_plan(folder).plan
    check_plan(plan)
    assert {each.name for each in plan.communicators} == {"0 to 2", "1 to 2", "0 to 3", "3 to 0"}


def _message(content: bytes) -> bytes:
    return encode_trace([]) + encode_varint(len(content)) + content


DAMAGED = {
    "empty": (b"", "no nodes"),
    "text": (b"hello world, this is no trace", "message 0"),
    "JSON": (b'{"schema": "1.1.1-chakra.0.0.4", "nodes": []}' * 4, "message 0"),
    "metadata alone": (encode_trace([]), "no nodes"),
    "a node first": (encode_trace(foreign())[len(encode_trace([])) :], "no metadata at the begin"),
    "a number for the version": (b"\x02\x08\x01" + encode_trace(foreign()), "no metadata"),
    "a number after the version": (
        b"\x05\x0a\x01v\x10\x01" + encode_trace(foreign()),
        "no metadata",
    ),
    "text that metadata has not": (b"\x02\x1a\x00" + encode_trace(foreign()), "no metadata"),
    "cut off": (encode_trace(foreign())[:-3], "it is cut off"),
    "long integer": (b"\xff" * 20, "cut off or too long"),
    "endless list": (_message(encode_field(5, b"\x01" * (1 << 21))), "integers in a list"),
    "endless nodes": (encode_trace([]) + b"\x02\x08\x01" * 5_001, "more than 5,000 nodes"),
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=[pytest.mark.slow] if kind.startswith("endless") else [])
        for kind in DAMAGED
    ],
)
def test_damaged_files(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chakra_nodes, "MOST_NODES", 5_000)
    content, message = DAMAGED[kind]
    (tmp_path / "job.0.et").write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_plan(tmp_path)


@pytest.mark.parametrize(
    "metadata",
    [
        b"",
        encode_field(1, "0.0.4"),
        encode_field(2, encode_field(1, "schema") + encode_field(29, "1.1.1-chakra.0.0.4")),
        encode_field(1, "0.0.4") + encode_field(2, b"") + encode_field(2, b""),
    ],
)
def test_metadata_are_a_version_and_attributes(tmp_path: Path, metadata: bytes) -> None:
    """Each of both fields of `GlobalMetadata` may lack or, of attributes, stand several times."""
    path = tmp_path / "job.0.et"
    message = encode_varint(len(metadata)) + metadata
    path.write_bytes(message + encode_trace(foreign())[len(encode_trace([])) :])
    assert read_trace(path) == tuple(foreign())


def test_flipped_bits_and_torn_files_are_refused_or_read(tmp_path: Path) -> None:
    """None is a traceback; a message that kept its length may still be a trace."""
    rng, topology, right = random.Random(7), build_topology("dgx-a100"), encode_trace(foreign())
    refused = 0
    for _ in range(150):
        data = bytearray(right)
        for _ in range(rng.choice((1, 3, 9))):
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        size = rng.choice((len(data), rng.randrange(len(data))))
        (tmp_path / "job.0.et").write_bytes(bytes(data[:size]))
        try:
            assert simulate_trace(tmp_path, topology).step_s >= 0
        except InputError:
            refused += 1
    assert refused > 75


def test_traces_that_do_not_hold(tmp_path: Path) -> None:
    topology = build_topology("dgx-a100")
    circle = [TraceNode(1, "a", COMPUTE, (2,)), TraceNode(2, "b", COMPUTE, (1,))]
    cases: list[tuple[list[list[TraceNode]], str]] = [
        ([circle], "a circle"),
        ([[TraceNode(1, "a", COMPUTE), TraceNode(1, "b", COMPUTE)]], "a number twice"),
        ([foreign(), foreign()[:2]], "collectives that all ranks of their group share"),
        ([foreign()] * 9, "9 ranks, on 8 GPUs"),
        ([[TraceNode(1, "x", COLLECTIVE, (), (), 0, {"comm_type": 9})]], "comm_type 9"),
    ]
    for number, (ranks, message) in enumerate(cases):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(InputError, match=message):
            simulate_trace(write(folder, *ranks), topology)
    (folder / "job.0.et").rename(folder / "job.4.et")
    with pytest.raises(InputError, match="no file of rank 0 and 3 more"):
        read_plan(folder)
