"""The wheel holds the data, and names resolve from any folder, installed or editable."""

import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest

import perfmodel
from perfmodel.files import data_folder, list_shipped

ROOT = Path(perfmodel.__file__).resolve().parents[1]
CHECKOUT = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="perfmodel runs from a wheel, not a checkout"
)
PRINT_FOUND = (
    "import perfmodel, perfmodel.files as f\n"
    "print(perfmodel.__file__)\n"
    "print(f.find_file('resnet50-dgx-a100', 'scenarios'))\n"
    "print(f.find_file('dgx-a100', 'topologies'))\n"
)


def found_from(folder, path):
    done = subprocess.run(
        [sys.executable, "-c", PRINT_FOUND],
        cwd=folder,
        text=True,
        capture_output=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(path)},
        timeout=60,
    )
    return [Path(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Build a wheel without network."""
    if find_spec("hatchling") is None:
        pytest.skip("hatchling is not installed here, and this test must not need the network")
    folder = tmp_path_factory.mktemp("wheel")
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--disable-pip-version-check",
        "--wheel-dir",
        str(folder),
        str(ROOT),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    (built,) = folder.glob("perfmodel-*.whl")
    return built


@pytest.mark.slow
@CHECKOUT
def test_the_wheel_holds_everything_that_is_shipped(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    for kind in ("topologies", "scenarios"):
        wanted = {f"perfmodel/_data/{kind}/{name}.yaml" for name in list_shipped(kind)}
        assert wanted
        assert wanted <= names
    sources = {
        path.relative_to(ROOT).as_posix()
        for path in (ROOT / "perfmodel").rglob("*")
        if path.is_file() and not any(p.startswith((".", "__pycache")) for p in path.parts)
    }
    assert sources <= names
    assert "perfmodel/py.typed" in names
    assert not [name for name in names if name.startswith(("tests/", "reports/"))]


@CHECKOUT
def test_names_resolve_from_any_folder_when_installed(wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    package, *files = found_from(elsewhere, tmp_path / "site")
    data = package.parent / "_data"
    assert package.is_relative_to(tmp_path)
    assert files == [data / "scenarios/resnet50-dgx-a100.yaml", data / "topologies/dgx-a100.yaml"]


@CHECKOUT
def test_names_resolve_from_any_folder_when_editable(tmp_path):
    package, *files = found_from(tmp_path, ROOT)
    assert package == ROOT / "perfmodel" / "__init__.py"
    assert files == [ROOT / "scenarios/resnet50-dgx-a100.yaml", ROOT / "topologies/dgx-a100.yaml"]
    assert data_folder("scenarios") == ROOT / "scenarios"


@CHECKOUT
def test_one_version_everywhere():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["version"] == perfmodel.__version__
    assert f"## {perfmodel.__version__}" in (ROOT / "CHANGELOG.md").read_text()


@CHECKOUT
def test_the_readme_has_the_two_commands():
    lines = (ROOT / "README.md").read_text().splitlines()
    for mark in ("<!-- run -->", "<!-- test -->"):
        block = lines[lines.index(mark) + 1 :]
        assert block[0].startswith("```")
        assert ".venv" in block[1]


@CHECKOUT
def test_the_first_scenario_of_the_documents_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "reference" / "scenarios.md").read_text()
    block = page.split("```yaml\n")[1].split("```")[0]
    (tmp_path / "asked.yaml").write_text(block)
    (tmp_path / "my-model.csv").write_text("name,shape,dtype\nw,1000 1000,bf16\nb,1000,bf16\n")
    (tmp_path / "my-times.csv").write_text("name,forward,backward\nw,1.2 ms,2 ms\nb,1 ms,2 ms\n")
    from perfmodel.scenario import load_scenario
    from perfmodel.studies.run import run_scenario

    result = run_scenario(load_scenario(tmp_path / "asked.yaml"))
    assert [point.gpus for point in result.points] == [8, 16, 32]
    assert result.question.endswith("?")


@CHECKOUT
def test_the_readme_shows_what_its_command_prints():
    from typer.testing import CliRunner

    from perfmodel.cli.app import app

    shown = (ROOT / "README.md").read_text().split("It prints\n\n```\n")[1].split("```")[0]
    printed = CliRunner().invoke(app, ["run", "resnet50-dgx-a100"]).stdout
    assert shown == printed, f"put this into README.md:\n{printed}"


def test_every_word_of_the_api_is_what_it_says():
    assert set(perfmodel._HOMES) == set(perfmodel.__all__) - {"__version__"}
    for word in perfmodel.__all__:
        assert getattr(perfmodel, word) is not None
    assert set(perfmodel.__all__) <= set(dir(perfmodel))
    with pytest.raises(AttributeError, match="no attribute 'tuna'"):
        _ = perfmodel.tuna


def test_importing_the_package_is_cheap():
    heavy = "('numpy', 'pydantic', 'simpy')"
    code = f"import sys, perfmodel; print([m for m in {heavy} if m in sys.modules])"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "[]"
