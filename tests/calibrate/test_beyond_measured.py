"""What is asked of a profile beyond what it was measured with is said, and only that."""

import json
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from perfmodel.calibrate.apply import describe_beyond, requests_of
from perfmodel.calibrate.profile import write_profile
from perfmodel.calibrate.transfer.fit import fit_profile
from perfmodel.cli.app import app
from perfmodel.library.corrections import CollectiveContext
from perfmodel.library.settings import LibrarySettings
from perfmodel.scenario.load import load_scenario
from perfmodel.studies.run.run import run_scenario
from perfmodel.studies.tune.run import tune_scenario
from perfmodel.topology.templates.build import build_topology
from perfmodel.training.plan.step_plan import Collective, Communicator, StepPlan, Task

SIZES = (2**12, 2**20, 2**28)


@dataclass(frozen=True)
class Row:
    nbytes: int
    time_s: float


def profile():
    topology = build_topology("dgx-a100", hosts=2, fabric="rail-optimised")
    rows = [Row(nbytes, 60e-6 + nbytes / 80e9) for nbytes in SIZES]
    return fit_profile([(topology, LibrarySettings(), "all_reduce", rows)], name="mine")


PROFILE = profile()


def test_what_was_measured_is_not_beyond_it():
    asked = [CollectiveContext("all_reduce", nbytes, 16, 2) for nbytes in (*SIZES, 5 * 2**20)]
    assert describe_beyond(PROFILE, asked) == ()
    assert describe_beyond(PROFILE, []) == ()


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        (("all_gather", 2**20, 16, 2), "all_gather (measured: all_reduce)"),
        (("all_reduce", 2**20, 128, 16), "128 ranks (measured: 16 ranks); 16 hosts (measured: 2"),
        (("all_reduce", 2**20, 8, 1), "8 ranks (measured: 16 ranks); 1 host (measured: 2 hosts)"),
        (("all_reduce", 8, 16, 2), "8 B (measured from 4 KiB on)"),
        (("all_reduce", 2**33, 16, 2), "8 GiB (measured up to 256 MiB)"),
    ],
)
def test_each_thing_beyond_is_named(asked, named):
    (sentence,) = describe_beyond(PROFILE, [CollectiveContext(*asked)])
    assert sentence.startswith("Beyond what profile mine was measured with: ")
    assert named in sentence
    assert sentence.endswith("the interval is wider.")


@given(
    st.sampled_from(["all_reduce", "all_gather"]),
    st.integers(1, 2**40),
    st.integers(2, 64),
    st.integers(1, 8),
)
def test_something_is_said_exactly_where_something_is_beyond(op, nbytes, ranks, hosts):
    inside = op == "all_reduce" and SIZES[0] <= nbytes <= SIZES[-1] and (ranks, hosts) == (16, 2)
    assert (describe_beyond(PROFILE, [CollectiveContext(op, nbytes, ranks, hosts)]) == ()) == inside


def test_collectives_of_a_step_are_those_between_ranks():
    groups = {"all": (range(16),), "pairs": ((0, 1), (2, 3)), "own": ((0,),)}
    plan = StepPlan(
        "step",
        (),
        (),
        tuple(Communicator(name, each) for name, each in groups.items()),
        tuple(Task(name, "", "", "", Collective("all_gather", 64, name, name)) for name in groups),
        1,
    )
    assert list(requests_of(plan, 8)) == [
        CollectiveContext("all_gather", 64, 16, 2),
        CollectiveContext("all_gather", 64, 2, 1),
    ]


# ---------------------------------------------------------------- in answers


@pytest.mark.slow
def test_collective_says_it(tmp_path):
    write_profile(PROFILE, tmp_path / "mine.yaml")
    words = "collective dgx-a100 --nodes 4 --fabric rail-optimised --json --profile"
    sizes = ["-b", "1 KiB", "-e", "1 KiB"]
    done = CliRunner().invoke(app, [*words.split(), str(tmp_path / "mine.yaml"), *sizes])
    notes = json.loads(done.stdout)["notes"]
    assert any("32 ranks (measured: 16 ranks)" in note for note in notes)
    assert any("1 KiB (measured from 4 KiB on)" in note for note in notes)


@pytest.mark.slow
def test_run_and_tune_say_it():
    few = ["model.name=resnet18", "cluster.nodes=4", "scale={gpus: [32]}"]
    scenario = load_scenario("resnet50-dgx-a100", few)
    result = run_scenario(scenario, profile=PROFILE)
    notes = [note for point in result.points for note in point.notes]
    assert any("Beyond what profile mine was measured with" in note for note in notes)
    tuned = tune_scenario(scenario, profile=PROFILE)
    assert any("Beyond what profile mine" in line for line in tuned.assumptions)
