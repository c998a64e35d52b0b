"""What a user may tell NCCL, and how mistakes are worded."""

import contextlib
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from perfmodel.errors import InputError
from perfmodel.library.settings import LEVELS, LibrarySettings, environment_of, settings_of


def faults_of(**words):
    with pytest.raises(InputError) as caught:
        settings_of(**words)
    return [str(fault) for fault in caught.value.faults]


def test_nothing_is_said_by_default():
    settings = settings_of()
    assert settings == LibrarySettings()
    assert settings.release == (math.inf, math.inf)
    assert settings.algorithms("all_reduce") is None
    assert settings.protocols("all_reduce") is None
    assert settings.level("NCCL_P2P_LEVEL") is None
    assert settings.notes() == ()


@pytest.mark.parametrize(
    ("version", "release"),
    [("2.18.3", (2, 18)), ("2.26", (2, 26)), ("2.27.7+cuda12.4", (2, 27)), ("2.8.4-1", (2, 8))],
)
def test_versions(version, release):
    assert settings_of(version=version).release == release


@pytest.mark.parametrize("version", ["2", "two", "2.x", "", "2.18.3.4.5 beta"])
def test_wrong_versions(version):
    (fault,) = faults_of(version=version, fields=("--nccl-version", "--env"))
    assert fault.startswith(f"--nccl-version: found {version!r}; allowed: a version of NCCL such")


def test_unknown_variable_names_the_nearest():
    (fault,) = faults_of(env={"NCCL_ALG": "Ring"})
    assert "did you mean 'NCCL_ALGO'?" in fault
    (fault,) = faults_of(env={"NCCL_NCHANNELS_MIN": "4"}, fields=("version", "--env"))
    assert fault.startswith("--env: found 'NCCL_NCHANNELS_MIN'")
    assert "NCCL_MIN_NCHANNELS" in fault


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("NCCL_ALGO", "Rnig", "did you mean 'ring'?"),
        ("NCCL_ALGO", "", "one of 'collnet'"),
        ("NCCL_ALGO", "allredcue:Ring", "an operation before ':'"),
        ("NCCL_PROTO", "LL256", "one of 'll', 'll128', 'simple'"),
        ("NCCL_P2P_LEVEL", "NVLINK", "one of 'C2C'"),
        ("NCCL_P2P_DISABLE", "yes", "0 or 1"),
        ("NCCL_CROSS_NIC", "3", "at most 2"),
        ("NCCL_MIN_CTAS", "0", "a whole number above zero"),
        ("NCCL_BUFFSIZE", "4M", "a whole number of bytes, without a unit"),
        ("NCCL_NET", "", "a value"),
    ],
)
def test_wrong_values(name, value, allowed):
    (fault,) = faults_of(env={name: value})
    assert fault.startswith(f"env.{name}: found {value!r}")
    assert "; allowed: " in fault
    assert allowed in fault


def test_all_faults_at_once():
    actual = faults_of(version="new", env={"NCCL_MIN_CTAS": "-1", "NCCL_IB_DISABLE": "true"})
    assert [fault.split(":")[0] for fault in actual] == [
        "version",
        "env.NCCL_MIN_CTAS",
        "env.NCCL_IB_DISABLE",
    ]


def test_settings_check_themselves():
    assert LibrarySettings(env={"NCCL_MIN_CTAS": 24}).count("NCCL_MIN_CTAS") == 24
    assert LibrarySettings(env={"NCCL_P2P_DISABLE": True}).is_on("NCCL_P2P_DISABLE")
    with pytest.raises(ValidationError, match="NCCL_ALGO"):
        LibrarySettings(env={"NCCL_ALG": "Ring"})
    with pytest.raises(ValidationError, match="as text"):
        LibrarySettings(version=2.18)


@pytest.mark.parametrize(
    ("text", "op", "left"),
    [
        ("Ring", "all_reduce", {"ring"}),
        ("ring, TREE", "all_reduce", {"ring", "tree"}),
        ("NVLSTree", "all_reduce", {"nvls_tree"}),
        ("allreduce:Tree;allgather:Ring", "all_gather", {"ring"}),
        ("Ring;allreduce:Tree", "all_reduce", {"tree"}),
        ("allreduce:Tree", "all_gather", None),
        ("CollnetDirect", "all_reduce", {"collnet_direct"}),
    ],
)
def test_lists_of_algorithms(text, op, left):
    actual = settings_of(env={"NCCL_ALGO": text}).algorithms(op)
    assert actual == (None if left is None else frozenset(left))


def test_all_but():
    actual = settings_of(env={"NCCL_ALGO": "^Ring,NVLS"}).algorithms("all_reduce")
    assert "ring" not in actual
    assert "nvls" not in actual
    assert {"tree", "nvls_tree", "pat"} <= actual
    assert settings_of(env={"NCCL_PROTO": "^LL128"}).protocols("reduce") == {"ll", "simple"}


def test_levels_by_name_and_number():
    """Legacy numbers: NCCL user guide, NCCL_P2P_LEVEL."""
    numbers = {"0": "LOC", "1": "PIX", "2": "PXB", "3": "PHB", "4": "SYS", "5": "SYS"}
    for value, level in {**numbers, "nvl": "NVL", "SYS": "SYS"}.items():
        assert settings_of(env={"NCCL_P2P_LEVEL": value}).level("NCCL_P2P_LEVEL") == level


def test_notes_name_what_changes_nothing():
    env = {
        "NCCL_DEBUG": "INFO",
        "NCCL_TOPO_FILE": "x.xml",
        "NCCL_ALGO": "Ring",
        "NCCL_FASTRAK_NUM_FLOWS": "2",
    }
    notes = settings_of(env=env).notes()
    assert [note.split()[0] for note in notes] == [
        "NCCL_DEBUG",
        "NCCL_FASTRAK_NUM_FLOWS",
        "NCCL_TOPO_FILE",
    ]
    assert "topology" in notes[2]


def test_words_of_the_command_line():
    assert environment_of(["NCCL_ALGO=Ring", "NCCL_NET=a=b"]) == {
        "NCCL_ALGO": "Ring",
        "NCCL_NET": "a=b",
    }
    with pytest.raises(InputError, match="NAME=VALUE") as caught:
        environment_of(["NCCL_ALGO", "NCCL_PROTO=LL", "NCCL_PROTO=Simple"])
    assert len(caught.value.faults) == 2


@given(
    st.dictionaries(
        st.sampled_from(["NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL"]), st.sampled_from(LEVELS)
    )
)
def test_levels_survive(env):
    settings = settings_of(env=env)
    assert {name: settings.level(name) for name in env} == env


@given(st.text(max_size=12))
def test_no_text_breaks_the_check(text):
    for name in ("NCCL_ALGO", "NCCL_PROTO", "NCCL_MIN_CTAS", "NCCL_P2P_LEVEL", text or "X"):
        with contextlib.suppress(InputError):
            settings = settings_of(env={name: text})
            settings.algorithms("all_reduce")
            settings.protocols("all_reduce")
            settings.level("NCCL_P2P_LEVEL")
            settings.count("NCCL_MIN_CTAS")


@pytest.mark.parametrize("version", ["9.9.9", "1.3.4", "3.0", "2.100.1", "22304"])
def test_versions_that_nccl_never_had_are_refused_with_what_is_known(version):
    (fault,) = faults_of(version=version, fields=("--nccl-version", "--env"))
    assert fault.startswith(f"--nccl-version: found {version!r}; allowed: a version of NCCL")
    assert "from 2.0 to 2.30 (a later 2.x is taken for 2.30)" in fault
    with pytest.raises(ValidationError, match=r"from 2\.0 to 2\.30"):
        LibrarySettings(version=version)


def test_a_later_version_is_taken_for_the_newest_with_a_note():
    later = settings_of(version="v2.31.2-1")
    assert later.release > settings_of(version="2.30.7").release
    assert later.notes() == ("NCCL v2.31.2-1 is newer than 2.30, and is taken for it",)
    assert settings_of(version="2.30.7").notes() == ()
