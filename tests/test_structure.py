"""The listing says where things are: small folders, one meaning a name, no scraps of modules."""

from __future__ import annotations

import ast
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import perfmodel

ROOT = Path(perfmodel.__file__).parent

MOST_ENTRIES = 9

LARGE_FOLDERS = {
    ".": "one folder per layer, and the modules below all of them",
    "cli": "one file per command",
    "collectives/algorithms": "one file per family of algorithms",
}
"""Folders with more entries, and why."""

REPEATED_STEMS: dict[str, str] = {}
"""File names that stand in several folders, and why the same word is right in each."""

SMALL_MODULES: dict[str, str] = {}
"""Modules under 110 lines with one importer, and why they stand alone."""

SMALL = 110

PARTICIPLES: dict[str, str] = {}
"""Modules that end in -ed or -ing and are nouns of the field."""

VAGUE = frozenset({
    "one", "found", "said", "known", "here", "there", "wanted", "told", "asked", "beside",
    "alike", "seen", "left", "taken", "made", "kept", "shown", "tried", "gone", "what", "which",
    "whose", "way", "ways", "words", "given",
})  # fmt: skip
"""Names that could stand in any function and tell nothing of what they hold."""


def files() -> list[Path]:
    return sorted(path for path in ROOT.rglob("*.py") if "_data" not in path.parts)


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix()


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def entries(folder: Path) -> list[str]:
    """Modules and folders of a folder; data files stand beside the module that reads them."""
    return sorted(
        path.name
        for path in folder.iterdir()
        if (path.suffix == ".py" and path.name != "__init__.py") or (path / "__init__.py").exists()
    )


def importers() -> dict[str, set[str]]:
    """Which modules import each module, by path; words of the API count as importers, too."""
    known = {name_of(path) for path in files()}
    found: dict[str, set[str]] = defaultdict(set)
    for path in files():
        for node in ast.walk(tree(path)):
            targets: list[str] = []
            if isinstance(node, ast.ImportFrom) and node.module:
                module = node.module.replace(".", "/").removeprefix("perfmodel/")
                targets = [f"{module}/{alias.name}" for alias in node.names] + [module]
            elif isinstance(node, ast.Constant) and str(node.value).startswith("perfmodel."):
                dotted = str(node.value).partition(":")[0]
                targets = [dotted.replace(".", "/").removeprefix("perfmodel/")]
            for target in targets:
                if target in known:
                    found[target].add(name_of(path))
    return found


def test_a_folder_has_few_entries() -> None:
    folders = {path.parent for path in files()}
    counts = {f.relative_to(ROOT).as_posix(): len(entries(f)) for f in folders}
    large = {folder: count for folder, count in counts.items() if count > MOST_ENTRIES}
    assert set(large) == set(LARGE_FOLDERS), large


def test_a_file_name_means_one_thing() -> None:
    stems = Counter(path.stem for path in files() if path.name != "__init__.py")
    commands = {path.stem for path in (ROOT / "cli").glob("*.py")}
    repeated = {stem for stem, count in stems.items() if count > 1 + (stem in commands)}
    assert repeated == set(REPEATED_STEMS)


def test_modules_are_nouns() -> None:
    stems = {path.stem for path in files()}
    assert {stem for stem in stems if stem.endswith(("ed", "ing"))} == set(PARTICIPLES)


def test_small_modules_have_several_importers() -> None:
    by_module = importers()
    small = {
        name_of(path)
        for path in files()
        if path.name != "__init__.py"
        and path.read_text(encoding="utf-8").count("\n") < SMALL
        and len(by_module[name_of(path)]) < 2
        and path.parent.name != "cli"
    }
    assert small == set(SMALL_MODULES)


def test_names_say_what_they_hold() -> None:
    vague = [
        f"{name_of(path)}:{node.lineno} {name}"
        for path in files()
        for node in ast.walk(tree(path))
        for name in (
            [node.id] if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            else [node.arg] if isinstance(node, ast.arg)
            else []
        )
        if name in VAGUE
    ]  # fmt: skip
    assert not vague


def test_these_tests_can_fail() -> None:
    assert entries(ROOT / "cli")
    assert importers()["units"]
    assert "one" in VAGUE
