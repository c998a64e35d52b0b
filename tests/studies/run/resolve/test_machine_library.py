"""What a scenario and a command line tell the library, and what users are told back."""

import json

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.errors import InputError
from perfmodel.scenario import load_scenario
from perfmodel.studies.run import run_scenario
from perfmodel.studies.run.resolve.machine import resolve_settings

TEXT = """\
# How long is a step?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp16}
cluster: {node: dgx-h100, gpus_per_node: 8}
training: {batch_per_gpu: 32}
scale: {gpus: [8]}
library: LIBRARY
"""


@pytest.fixture
def scenario(tmp_path):
    def loaded(library):
        path = tmp_path / "question.yaml"
        path.write_text(TEXT.replace("LIBRARY", library))
        return load_scenario(str(path))

    return loaded


def faults(loaded):
    with pytest.raises(InputError) as caught:
        resolve_settings(loaded)
    return [str(fault) for fault in caught.value.faults]


def test_settings_of_a_scenario(scenario):
    settings = resolve_settings(
        scenario("{version: 2.26.2, algorithm: nvls, protocol: simple, env: {NCCL_MIN_CTAS: 24}}")
    )
    assert settings.version == "2.26.2"
    assert dict(settings.env) == {
        "NCCL_MIN_CTAS": "24",
        "NCCL_ALGO": "nvls",
        "NCCL_PROTO": "simple",
    }
    assert settings.algorithms("all_reduce") == {"nvls"}


def test_nothing_said_is_nothing_told(scenario):
    settings = resolve_settings(scenario("{}"))
    assert (settings.version, dict(settings.env)) == (None, {})


def test_the_environment_wins_over_the_words(scenario):
    settings = resolve_settings(scenario("{algorithm: ring, env: {NCCL_ALGO: Tree}}"))
    assert settings.algorithms("all_reduce") == {"tree"}


def test_faults_name_line_and_nearest(scenario):
    (fault,) = faults(scenario("{env: {NCCL_PORTO: LL}}"))
    assert "question.yaml:8: library.env: found 'NCCL_PORTO'" in fault
    assert "did you mean 'NCCL_PROTO'" in fault
    (fault,) = faults(scenario("{env: {NCCL_PROTO: LL64}}"))
    assert "question.yaml:8: library.env.NCCL_PROTO: found 'LL64'" in fault
    (fault,) = faults(scenario("{version: two}"))
    assert "library.version: found 'two'" in fault


def test_other_libraries_have_no_such_settings(scenario):
    found = faults(
        scenario("{name: gloo, algorithm: tree, env: {NCCL_PROTO: LL}, version: 2.20.5}")
    )
    assert [fault.split(": ")[1] for fault in found] == [
        "library.algorithm",
        "library.version",
        "library.env",
    ]
    assert all("only for name: nccl" in fault for fault in found)


def test_unknown_words_are_refused_on_reading(scenario):
    for words, named in (
        ("{algorithm: rign}", "did you mean 'ring'"),
        ("{name: ncl}", "did you mean 'nccl'"),
        ("{processes: per-host}", "perfmodel collective --one-process"),
        ("{protocl: ll}", "did you mean 'protocol'"),
    ):
        with pytest.raises(InputError, match=named):
            scenario(words)


def test_an_algorithm_that_the_machine_has_not(scenario, tmp_path):
    path = tmp_path / "question.yaml"
    text = TEXT.replace("LIBRARY", "{algorithm: nvls}").replace("dgx-h100", "dgx-a100")
    path.write_text(text)
    with pytest.raises(InputError, match=r"library\.algorithm.*found 'nvls'.*'ring', 'tree'"):
        run_scenario(load_scenario(str(path)))


def test_mpi_in_a_scenario(scenario):
    result = run_scenario(scenario("{name: mpi}"))
    assert result.points[0].step_time_s > 0


def perf(*args):
    return CliRunner().invoke(app, ["collective", *args])


def rows(*args):
    result = perf(*args, "-b", "256 KiB", "-e", "256 KiB", "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)["rows"]


def refused(*args):
    result = perf(*args)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return " ".join(result.stderr.split())


def test_flags_choose_protocol_and_algorithm():
    assert rows("dgx-h100", "--protocol", "simple")[0]["protocol"] == "simple"
    assert rows("dgx-h100", "--env", "NCCL_PROTO=LL")[0]["protocol"] == "ll"
    (row,) = rows("dgx-h100", "--env", "NCCL_ALGO=NVLS", "--env", "NCCL_PROTO=Simple")
    assert row["algorithm"] == "nvls"
    (row,) = rows("dgx-h100", "--env", "NCCL_ALGO=Tree", "--protocol", "ll")
    assert (row["algorithm"], row["protocol"]) == ("tree", "ll")


def test_p2p_switched_off_is_slower():
    fast, slow = (
        rows("dgx-h100", *flags)[0]["time_s"] for flags in ((), ("--env", "NCCL_P2P_DISABLE=1"))
    )
    assert slow > 1.5 * fast


def test_mpi_by_flag():
    assert (
        rows("ethernet-10g", "--nodes", "4", "--fabric", "one-switch", "--library", "mpi")[0][
            "algorithm"
        ]
        == "rabenseifner"
    )


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--env", "NCCL_ALG=Ring"), "--env: found 'NCCL_ALG'"),
        (("--env", "NCCL_ALG=Ring"), "did you mean 'NCCL_ALGO'"),
        (("--env", "NCCL_ALGO"), "NAME=VALUE"),
        (("--env", "NCCL_P2P_LEVEL=NVX"), "--env NCCL_P2P_LEVEL: found 'NVX'"),
        (("--nccl-version", "newest"), "--nccl-version: found 'newest'"),
        (("--library", "gloo", "--protocol", "ll"), "only with nccl"),
        (("--protocol", "ll", "--env", "NCCL_PROTO=Simple"), "the same as in --env"),
        (("--protocol", "l128"), "ll128"),
        (("--env", "NCCL_ALGO=NVLSTree"), "for all_reduce on this machine"),
    ],
)
def test_wrong_flags(args, words):
    assert words in refused("dgx-h100", *args, "-b", "1 MiB", "-e", "1 MiB")


def test_what_changes_nothing_is_said_beside_the_answer():
    result = perf(
        "dgx-h100", "--env", "NCCL_TOPO_FILE=x.xml", "-b", "1 MiB", "-e", "1 MiB", "--json"
    )
    assert "NCCL_TOPO_FILE is ignored: the model takes the topology" in result.stderr
    assert len(json.loads(result.stdout)["rows"]) == 1


@pytest.mark.parametrize("library", ["gloo", "mpi"])
def test_other_libraries_have_neither_nccls_algorithms_nor_its_processes(library):
    told = "dgx-h100", "--library", library, "-b", "1 MiB", "-e", "1 MiB"
    assert "--algorithm: found 'nvls'" in refused(*told, "--algorithm", "nvls")
    assert "only with nccl" in refused(*told, "--one-process")


def test_ranks_that_are_no_gpus_have_a_time():
    assert rows("cpu-loopback")[0]["time_s"] > 0


def test_a_profile_of_another_library_is_a_fault_of_the_scenarios_field(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "# How long?\nperfmodel: 1\nmodel: {name: resnet18}\ncompute: {precision: fp32}\n"
        "cluster: {node: cpu-loopback, gpus_per_node: 2}\ntraining: {batch_per_gpu: 8}\n"
        "profile: epyc-2-cores-gloo-2-ranks\n"
    )
    with pytest.raises(InputError) as caught:
        run_scenario(load_scenario(path))
    first = caught.value.faults[0]
    assert (first.file, first.line, first.field) == (str(path), 7, "profile")
    assert "made for library 'gloo'" in first.found
