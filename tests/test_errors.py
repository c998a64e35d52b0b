"""Messages name file, line, field, found, allowed; errors survive a trip between processes."""

import pickle

import pytest

from perfmodel.errors import (
    DataMismatch,
    ExecutorUnavailable,
    Fault,
    InputError,
    MeasurementError,
    PerfmodelError,
    ScheduleError,
    SimulationError,
    SweepError,
    TopologyError,
    UnitError,
    allowed_names,
    nearest,
)


def test_a_fault_names_everything():
    fault = Fault("link.bandwidth", "25", "a bandwidth", "node.yaml", 7)
    assert str(fault) == "node.yaml:7: link.bandwidth: found 25; allowed: a bandwidth"
    assert str(Fault("--set", "x", "y")) == "--set: found x; allowed: y"
    assert str(Fault("f", "x", "y", "a.yaml")) == "a.yaml: f: found x; allowed: y"


def test_only_what_gets_shorter_is_cut():
    for count in range(1000):
        found = count * "x"
        text = str(Fault("f", found, "y"))
        assert found in text or len(text) < len(f"f: found {found}; allowed: y")


def test_all_faults_stand_in_one_message_one_per_line():
    error = InputError([Fault("a", "1", "2"), Fault("b", "3", "4")])
    assert str(error).splitlines() == ["a: found 1; allowed: 2", "b: found 3; allowed: 4"]


def test_located_fills_in_what_is_missing_only():
    error = InputError([Fault("a", "1", "2"), Fault("b", "1", "2", "other.yaml", 3)])
    first, second = error.located("mine.yaml", 9).faults
    assert (first.file, first.line) == ("mine.yaml", 9)
    assert (second.file, second.line) == ("other.yaml", 3)


@pytest.mark.parametrize("kind", [InputError, UnitError])
def test_faults_survive_pickling(kind):
    error = kind([Fault("a", "1", "2"), Fault("b", "3", "4")])
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is kind
    assert back.faults == error.faults


def test_exit_codes():
    wrong_input = (
        InputError,
        UnitError,
        TopologyError,
        ScheduleError,
        SimulationError,
        ExecutorUnavailable,
    )
    assert {error.exit_code for error in wrong_input} == {2}
    failed_work = (DataMismatch, MeasurementError, SweepError)
    assert {error.exit_code for error in failed_work} == {1}
    assert all(issubclass(error, PerfmodelError) for error in (*wrong_input, *failed_work))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("dgx-a10", "dgx-a100"),
        ("DGX_A100", "dgx-a100"),
        ("resnet-50", "resnet50"),
        ("zzz", None),
    ],
)
def test_nearest(typed, meant):
    assert nearest(["dgx-a100", "resnet50", "rail-optimised"], typed) == meant


def test_one_wrong_letter_is_nearer_than_one_too_many():
    assert nearest(["bf16", "fp16", "fp32", "fp8", "tf32"], "fp18") == "fp16"
    assert nearest(["fp16", "fp8"], "fp88") == "fp8"


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("aws-g5", "aws-g5-48xlarge"),
        ("g5", "aws-g5-48xlarge"),
        ("aws-p4", "aws-p4d"),
        ("a10g", None),
    ],
)
def test_a_part_of_a_name_is_meant_before_another_letter(typed, meant):
    assert nearest(["aws-p5", "aws-g5-48xlarge", "aws-p4d", "oci-a100"], typed) == meant


def test_one_of_lists_hints_and_stops():
    assert allowed_names(["b", "a"]) == "one of 'a', 'b'"
    assert allowed_names([], "x") == "nothing (there is none)"
    many = allowed_names([f"name{i:03}" for i in range(50)], "name049")
    assert "... (10 more)" in many
    assert many.endswith("(did you mean 'name049'?)")


def test_the_closest_stands_before_a_long_list() -> None:
    """Also where the list itself, which an earlier fault has, is not repeated."""
    names = [f"name{i:03}" for i in range(50)]
    first, second = (Fault("f", repr(x), allowed_names(names, x)) for x in ("nam049", "nme001"))
    lines = str(InputError([first, second])).splitlines()
    assert lines[0].startswith("f: found 'nam049' (did you mean 'name049'?); allowed: one of 'na")
    assert lines[1] == "f: found 'nme001' (did you mean 'name001'?); allowed: as above"
