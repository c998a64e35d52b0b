"""The routing of the fabric is named where its collisions cost more than a tenth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.scenario import load_scenario
from perfmodel.simulate.uncontended import UncontendedTimer
from perfmodel.studies.run.run import run_scenario
from perfmodel.studies.run.steps.routing_cost import NAMED_COST_RATIO
from perfmodel.studies.run.steps.sized_job import prepare

FABRICS = [
    ("resnet50-dgx-a100", "{kind: rail-optimised, routing: ecmp}", False),
    ("resnet50-dgx-a100", "{kind: leaf-spine, routing: ecmp}", True),
    ("resnet50-dgx-a100", "{kind: leaf-spine}", False),  # InfiniBand routes adaptively
    ("resnet50-dgx-a100", "{kind: leaf-spine, routing: adaptive}", False),
    ("resnet50-dgx-a100", "{kind: fat-tree, routing: ecmp}", True),
    ("bert-large-v100-100g", "{kind: leaf-spine, oversubscription: 2}", False),  # one flow a leaf
    ("bert-large-v100-100g", "{kind: one-switch}", False),
    ("bert-large-v100-100g", "{kind: leaf-spine, routing: rail}", False),
]
"""And whether collisions there cost more than a tenth."""


def all_reduce_s(name: str, fabric: str, nbytes: int) -> float:
    prepared = prepare(load_scenario(name, ("scale=null", f"cluster.fabric={fabric}")))
    timer = UncontendedTimer(prepared.machine)
    return timer.best("all_reduce", nbytes, prepared.allocation.own)[1]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fabric", "told"), FABRICS)
def test_the_routing_is_named_where_it_matters(name: str, fabric: str, told: bool) -> None:
    scenario = load_scenario(name, ("scale=null", f"cluster.fabric={fabric}"))
    result = run_scenario(scenario, with_first=False)
    largest = max(bucket.nbytes for bucket in result.main.buckets)
    adaptive = f"{fabric[:-1].removesuffix(', routing: ecmp')}, routing: adaptive}}"
    ratio = 1.0
    if "ecmp" in fabric or "oversubscription" in fabric:  # elsewhere nothing is hashed
        ratio = all_reduce_s(name, fabric, largest) / all_reduce_s(name, adaptive, largest)
    (note,) = [line for line in result.assumptions if "ECMP" in line] or [""]
    assert bool(note) == (ratio > NAMED_COST_RATIO) == told
    assert result.routing_cost == pytest.approx(ratio, rel=0.05)  # of ways that are drawn
    if note:
        assert f"takes {result.routing_cost:.2g} times as long" in note


LEAVES, SPINES = 4, 2
LISTED = {
    "kind": "listed",
    "hosts": [{"name": f"h{at}", "leaves": [f"l{at % LEAVES}"]} for at in range(16)],
    "trunks": [
        {"from": f"l{leaf}", "to": f"s{spine}", "cables": 2}
        for leaf in range(LEAVES)
        for spine in range(SPINES)
    ],
}
"""The cables of a leaf-spine fabric, one by one.

Neighbours in a ring are under different leaves, so that all four flows of a leaf need its cables.
"""
SOURCES = {"hosts": "made up", "trunks": "made up"}


@pytest.fixture
def listed(tmp_path: Path) -> str:
    path = tmp_path / "listed.yaml"
    document = {"perfmodel": 1, "kind": "fabric", "description": "x", "fabric": LISTED}
    path.write_text(json.dumps(document | {"sources": SOURCES}))
    return str(path)


def bonded(tmp_path: Path) -> str:
    """The same with all uplinks of a leaf as one cable to one switch, as if all were shared."""
    trunks = [{"from": f"l{leaf}", "to": "s0", "cables": 1} for leaf in range(LEAVES)]
    path = tmp_path / "bonded.yaml"
    fabric = LISTED | {"trunks": trunks, "uplink_bandwidth": "400 Gbit/s"}
    document = {"perfmodel": 1, "kind": "fabric", "description": "x", "fabric": fabric}
    sources = SOURCES | {"uplink_bandwidth": "four cables"}
    path.write_text(json.dumps(document | {"sources": sources}))
    return str(path)


def test_listed_cables_of_a_file_are_told_too(listed: str, tmp_path: Path) -> None:
    base = "scale=null", "cluster.nodes=16", "cluster.node=v100-x8-100g"
    scenario = load_scenario("bert-large-v100-100g", (*base, f"cluster.fabric={listed}"))
    result = run_scenario(scenario, with_first=False)
    largest = max(bucket.nbytes for bucket in result.main.buckets)
    hashed_s, shared_s = (
        UncontendedTimer(prepared.machine).best("all_reduce", largest, range(128))[1]
        for prepared in (
            prepare(load_scenario("bert-large-v100-100g", (*base, f"cluster.fabric={file}")))
            for file in (listed, bonded(tmp_path))
        )
    )
    assert hashed_s > NAMED_COST_RATIO * shared_s
    assert result.routing_cost == pytest.approx(hashed_s / shared_s, rel=0.1)
    assert any("static hash" in line for line in result.assumptions)


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ("{kind: leaf-spine, routing: ecmp}", True),
        ("{kind: leaf-spine}", False),
        ("{kind: rail-optimised, routing: ecmp}", False),
    ],
)
def test_collective_names_the_routing(shape: str, told: bool, tmp_path: Path) -> None:
    fabric = shape[1:-1].removeprefix("kind: ")
    if "ecmp" in shape:  # InfiniBand routes adaptively unless a file says otherwise
        path = tmp_path / "hashed.yaml"
        path.write_text(
            f"perfmodel: 1\nkind: fabric\ndescription: x\nfabric: {shape}\nsources: {{}}\n"
        )
        fabric = str(path)
    arguments = ["collective", "dgx-a100", "--nodes", "32", "--fabric", fabric, "-b", "64 MiB"]
    answer = CliRunner().invoke(app, [*arguments, "-e", "64 MiB", "--json"])
    assert answer.exit_code == 0, answer.output
    notes = json.loads(answer.stdout)["notes"]
    assert bool(notes) == told
    assert not notes or "an all-reduce of 64 MiB alone takes" in notes[0]
