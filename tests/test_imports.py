"""Arrows point down only: a module imports nothing above it, function-level imports included."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import perfmodel

ROOT = Path(perfmodel.__file__).parent

LAYERS = [
    "__main__",
    "cli",
    "api",
    "report",
    "validate",
    "traces",
    "studies",
    "calibrate",
    "measure",
    "torch_modules",
    "simulate",
    "library",
    "testing",
    "training",
    "workload",
    "topology",
    "scenario",
    "collectives",
    "files",
    "garbage",
    "timeline",
    "arrays",
    "own_functions",
    "units",
    "errors",
    "memo",
    "escape",
    "version",
]
"""Top to bottom."""

RESULT_MAY_IMPORT = {"arrays", "timeline", "topology"}


def modules():
    for path in sorted(ROOT.rglob("*.py")):
        parts = path.relative_to(ROOT.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@cache
def parsed(path):
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path, known):
    """Modules of the package that a file imports anywhere, typing-only imports included."""
    found = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import hides which layer is meant"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
    return {name for name in found if name and name.split(".")[0] == "perfmodel"}


@cache
def graph():
    known = dict(modules())
    return {name: imported(path, known) for name, path in known.items()}


def layer(module):
    return module.split(".")[1] if "." in module else None


def climbing(arrows):
    return [
        f"{source} imports {target}"
        for source, targets in arrows.items()
        for target in targets
        if layer(source)
        and layer(target)
        and LAYERS.index(layer(source)) > LAYERS.index(layer(target))
    ]


def cycle(arrows):
    """Some cycle of imports, or None."""
    done, path = set(), []

    def visit(node):
        if node in path:
            return [*path[path.index(node) :], node]
        if node in done:
            return None
        path.append(node)
        for target in sorted(arrows.get(node, ())):
            found = visit(target)
            if found:
                return found
        path.pop()
        done.add(node)
        return None

    return next((found for node in sorted(arrows) if (found := visit(node))), None)


@pytest.mark.slow
def test_every_module_has_a_layer():
    assert {layer(name) for name in graph()} - {None} <= set(LAYERS)


def test_the_architecture_page_has_the_layers_in_order():
    page = (ROOT / "README.md").read_text(encoding="utf-8").split("```\n")[1]
    named = [line.split("  ")[0] for line in page.splitlines()]
    assert ", ".join(named).split(", ") == LAYERS


def test_arrows_point_down():
    assert climbing(graph()) == []


def test_no_cycles():
    assert cycle(graph()) is None


def test_a_result_knows_no_engine():
    package = "perfmodel.studies.run.result."
    uses = {name for module in graph() if module.startswith(package) for name in graph()[module]}
    uses -= {"perfmodel.workload.model"}  # what one sample is, in words and in tokens
    assert {layer(name) for name in uses if not name.startswith(package)} <= RESULT_MAY_IMPORT


def test_the_library_reaches_nccl_by_one_module():
    """Modules of library/nccl import from library/; of the others only `lower` imports them."""
    nccl = "perfmodel.library.nccl"
    importers = {
        source
        for source, targets in graph().items()
        if layer(source) == "library" and not source.startswith(nccl)
        if any(target.startswith(nccl) for target in targets)
    }
    assert importers == {"perfmodel.library.lowering.lower"}


def test_this_test_can_fail():
    assert climbing({"perfmodel.units": {"perfmodel.files.read"}})
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) == ["a", "b", "c", "a"]


@pytest.mark.parametrize("heavy", ["pandas", "scipy", "plotly", "torch"])
def test_heavy_libraries_are_imported_inside_functions(heavy):
    for _, path in modules():
        tree = parsed(path)
        names = [
            name.split(".")[0]
            for node in tree.body
            for name in (
                [alias.name for alias in node.names]
                if isinstance(node, ast.Import)
                else [node.module or ""]
                if isinstance(node, ast.ImportFrom)
                else []
            )
        ]
        assert heavy not in names, path


SMALL_RUN = ["run", "resnet50-dgx-a100", "--set", "cluster.nodes=2", "--set", "scale.gpus=[1]"]

MOST_MODULES = 253
"""Modules of ours that a small run imports: a third of a millisecond each."""

MOST_MODELS = 111
"""Models of pydantic that it builds: a millisecond each."""


def test_a_run_imports_what_it_asks_for_alone():
    """Of readers of models, strategies and hosts: two thirds of a small run were start-up."""
    code = (
        "import atexit, sys; from perfmodel.cli import main;"
        f"sys.argv[1:] = {SMALL_RUN};"
        "models = lambda of: sum(1 + models(each) for each in of.__subclasses__());"
        "found = lambda: print('\\n', models(sys.modules['pydantic'].BaseModel), *sys.modules);"
        "atexit.register(found);"
        "main()"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True, text=True)
    models, *modules = ran.stdout.splitlines()[-1].split()
    unasked = (
        "perfmodel.studies.sweep",
        "perfmodel.workload.configs.family",
        "perfmodel.training.fsdp",
        "perfmodel.training.zero",
        "perfmodel.training.megatron",
        "perfmodel.topology.composed.compose",
        "perfmodel.studies.run.loops",
        # libraries that take longer to load than a small run to simulate
        "dask",
        "duckdb",
        "IPython",
        "joblib",
        "matplotlib",
        "numba",
        "pandas",
        "plotly",
        "ray",
        "rich",
        "scipy",
        "torch",
        "transformers",
    )
    assert [name for name in modules if name.startswith(unasked)] == []
    assert sum(name.startswith("perfmodel") for name in modules) <= MOST_MODULES
    assert int(models) <= MOST_MODELS


def test_annotations_of_models_are_evaluated_once():
    """Where they are text, pydantic compiles each when the module is imported."""
    models = {"FileModel", "Section", "StrategyModel", "BaseModel"}
    late = [
        path.relative_to(ROOT).as_posix()
        for folder in ("scenario", "library", "topology/templates")
        for path in (ROOT / folder).rglob("*.py")
        if any(
            isinstance(node, ast.ClassDef)
            and models & {base.id for base in node.bases if isinstance(base, ast.Name)}
            for node in parsed(path).body
        )
        and "from __future__ import annotations" in path.read_text(encoding="utf-8")
    ]
    assert late == []
