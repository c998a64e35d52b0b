"""``-o`` onto files, folders and links: refused before the work, and no input is ever replaced."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from perfmodel.cli.app import app
from perfmodel.report.comparison import FILES as COMPARE_FILES
from perfmodel.report.plan import FILES as PLAN_FILES
from perfmodel.report.run.page import FILES as RUN_FILES
from perfmodel.report.tuning import FILES as TUNE_FILES

SCENARIO = """\
# How long does it take?
perfmodel: 1
model: {name: resnet18}
compute: {precision: fp16, optimizer: sgd-momentum}
strategy: {kind: ddp}
cluster: {node: dgx-a100, nodes: 1}
training: {batch_per_gpu: 128}
plan:
  target: {samples: 1000000}
  candidates: [{name: a, node: dgx-a100, nodes: [1]}]
"""

COMMANDS = {
    "run": ((), RUN_FILES),
    "tune": ((), TUNE_FILES),
    "compare": (("--set", "seed=1", "-j", "1"), COMPARE_FILES),
    "plan": (("-j", "1"), PLAN_FILES),
}


@pytest.fixture(autouse=True)
def nothing_is_simulated(monkeypatch, request):
    """A place is refused before the work: the work fails the test."""
    if "written" in request.node.name:
        return

    def work(*_, **__):
        raise AssertionError("the work began")

    for name in (
        "run.run_scenario",
        "tune.run.tune_scenario",
        "compare.compare",
        "plan.plan_scenario",
    ):
        monkeypatch.setattr(f"perfmodel.studies.{name}", work)


def call(command: str, scenario: Path, output: Path | str, *more: str):
    words = [command, str(scenario), *COMMANDS[command][0], *more, "-o", str(output)]
    return CliRunner().invoke(app, words)


def refused(command: str, scenario: Path, output: Path | str, *more: str) -> str:
    done = call(command, scenario, output, *more)
    assert done.exit_code == 2, (done.output, done.exception)
    assert done.stdout == ""
    assert done.stderr.startswith("-o: found ")
    return done.stderr


@pytest.fixture
def scenario(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(SCENARIO)
    return path


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_file_is_no_folder(scenario, tmp_path, command):
    (tmp_path / "link").symlink_to(scenario)
    os.mkfifo(tmp_path / "pipe")
    for place in (scenario, tmp_path / "link", tmp_path / "pipe", Path("/dev/null")):
        assert "(a file); allowed: a folder, new or not" in refused(command, scenario, place)
    assert "Not a directory" in refused(command, scenario, scenario / "below")
    assert scenario.read_text() == SCENARIO


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_in_place_of_a_file(scenario, tmp_path, command):
    for name in COMMANDS[command][1]:
        out = tmp_path / f"out-{name}"
        (out / name).mkdir(parents=True)
        assert f"{name}' (a folder); allowed: a file" in refused(command, scenario, out)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_folder_that_cannot_be_written(scenario, command):
    assert "a place that can be written" in refused(command, scenario, "/proc/out")
    assert "(File name too long)" in refused(command, scenario, 300 * "n")
    named = refused(command, scenario, "/proc/out", "--profile", 300 * "n")
    assert "a place that can be written" in named


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("link", ["itself", "symbolic", "hard"])
def test_the_scenario_is_never_replaced(scenario, tmp_path, command, link):
    """A scenario that is named as a file of the report, or that such a file is a link to."""
    for name in COMMANDS[command][1]:
        out = tmp_path / f"out-{name}"
        out.mkdir()
        if link == "itself":
            asked = scenario.rename(out / name)
        elif link == "symbolic":
            (out / name).symlink_to(scenario)
            asked = scenario
        else:
            (out / name).hardlink_to(scenario)
            asked = scenario
        message = refused(command, asked, out)
        assert f"{name} would replace the scenario ({asked})" in message
        assert (out / name).read_text() == SCENARIO
        if link == "itself":
            asked.rename(scenario)


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_files_that_the_scenario_names_are_never_replaced(tmp_path, command):
    name = next(name for name in COMMANDS[command][1] if name.endswith(".csv"))
    (tmp_path / name).write_text("name,shape\nw,10x10\n")
    scenario = tmp_path / "mine.yaml"
    scenario.write_text(SCENARIO.replace("name: resnet18", f"file: {name}"))
    assert f"{name} would replace model.file" in refused(command, scenario, tmp_path)


@pytest.mark.parametrize("command", COMMANDS)
def test_the_profile_is_never_replaced(scenario, tmp_path, command):
    name = next(iter(COMMANDS[command][1]))
    (tmp_path / name).write_text("a profile")
    message = refused(command, scenario, tmp_path, "--profile", str(tmp_path / name))
    assert f"{name} would replace --profile" in message


def test_a_store_is_never_replaced(scenario, tmp_path):
    message = refused("plan", scenario, tmp_path, "--store", str(tmp_path / "plan.csv"))
    assert "plan.csv would replace --store" in message


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_all_that_is_written_was_checked(scenario, tmp_path, command):
    """Files of the report are those that were looked at before the work."""
    done = call(command, scenario, tmp_path / "out")
    assert done.exit_code == 0, (done.output, done.exception)
    assert {path.name for path in (tmp_path / "out").iterdir()} <= set(COMMANDS[command][1])


def test_a_topology_is_never_replaced(tmp_path):
    node = tmp_path / "mine.html"
    node.write_text("perfmodel: 1\n")
    done = CliRunner().invoke(app, ["topology", "show", str(node), "-o", str(node)])
    assert done.exit_code == 2
    assert "another file than that of TOPOLOGY" in done.stderr


def test_an_imported_file_is_never_replaced(tmp_path):
    table = tmp_path / "topo.txt"
    table.write_text("\tGPU0\tGPU1\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n")
    before = table.read_text()
    words = ["topology", "import", str(table), "-o", str(table), "--force"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert "another file than that of FILE" in done.stderr
    assert table.read_text() == before


@pytest.mark.slow
def test_faults_of_what_was_made_name_the_imported_file(tmp_path):
    """2,000 GPUs: the pattern of names that is too long stands in no file of the user."""
    gpus = "".join(
        f'<pci busid="0000:{n:04x}:00.0" class="0x030200" link_speed="16 GT/s" link_width="16">'
        f'<gpu dev="{n}" sm="80" rank="{n}" gdr="1"/></pci>'
        for n in range(2000)
    )
    dump = tmp_path / "topo.xml"
    dump.write_text(f'<system version="1"><cpu numaid="0" arch="x86_64">{gpus}</cpu></system>')
    words = ["topology", "import", str(dump), "--gpu", "a100-pcie-40gb"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"{dump}: nodes.0.id of the topology made from it: found ")


@pytest.mark.parametrize("command", COMMANDS)
def test_a_zero_byte_in_a_name_stops_no_check_of_places(tmp_path, command):
    """The name is refused later, by its field."""
    scenario, out = tmp_path / "mine.yaml", tmp_path / "out"
    scenario.write_text(SCENARIO.replace("name: resnet18", 'name: "a\\0b"'))
    out.mkdir()
    for name in COMMANDS[command][1]:
        (out / name).write_text("of a run before")
    assert str(call(command, scenario, out).exception) == "the work began"
