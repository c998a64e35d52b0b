"""Break random lines of perfmodel, one at a time, and count how many a test notices.

    python tests/tools/mutate.py [--lines 200] [--seed 0] [--jobs 2] [--only perfmodel/library]

Each mutant changes one operator, comparison, constant or condition of one line, in a copy of the
checkout. The tests that mirror the module run first, then those of the folders above it; a mutant
that passes them all has survived and is printed. Exit code 1 if fewer than 90 % were caught.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

ROOT = Path(__file__).resolve().parents[2]

SWAPS: dict[type[ast.AST], type[ast.AST]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.And: ast.Or,
    ast.Or: ast.And,
}

TIMEOUT_S = 600


@dataclass(frozen=True)
class Mutant:
    """A file with one expression replaced."""

    path: Path
    line: int
    before: str
    after: str
    source: str


def changed(node: ast.expr) -> ast.expr | None:
    """A copy of an expression that computes something else, or None."""
    copy = deepcopy(node)
    match copy:
        case ast.Compare(ops=[operator]) if type(operator) in SWAPS:
            copy.ops = [SWAPS[type(operator)]()]  # type: ignore[list-item]
        case ast.BinOp(op=operator) | ast.BoolOp(op=operator) if type(operator) in SWAPS:
            copy.op = SWAPS[type(operator)]()  # type: ignore[assignment]
        case ast.Constant(value=bool() as value):
            copy.value = not value
        case ast.Constant(value=int() | float() as value):
            copy.value = value + 1
        case ast.UnaryOp(op=ast.Not()):
            copy = copy.operand
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            copy.func = ast.Name("max" if name == "min" else "min", ast.Load())
        case _:
            return None
    return copy


def mutants(path: Path) -> Iterator[Mutant]:
    """All mutants of a file."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    parsed = ast.parse(text)
    decorated = (d for n in ast.walk(parsed) for d in getattr(n, "decorator_list", ()))
    options = {id(node) for decorator in decorated for node in ast.walk(decorator)}
    for node in ast.walk(parsed):
        if not isinstance(node, ast.expr) or node.lineno != node.end_lineno:
            continue
        if id(node) in options:  # that a dataclass is frozen changes no answer
            continue
        line = lines[node.lineno - 1]
        start, end = (
            len(line.encode()[:column].decode())
            for column in (node.col_offset, node.end_col_offset or 0)
        )
        before = line[start:end]
        if before != ast.get_source_segment(text, node) or "f'" in line or 'f"' in line:
            continue
        other = changed(node)
        if other is not None:
            after = f"({ast.unparse(other)})"
            source = "".join(
                (
                    *lines[: node.lineno - 1],
                    line[:start] + after + line[end:],
                    *lines[node.lineno :],
                )
            )
            yield Mutant(path.relative_to(ROOT), node.lineno, before, after, source)


def sample(folder: Path, count: int, seed: int) -> list[Mutant]:
    """One mutant of each of `count` random lines."""
    choose = random.Random(seed)
    every: dict[tuple[Path, int], list[Mutant]] = {}
    for path in sorted(folder.rglob("*.py")):
        for mutant in mutants(path):
            every.setdefault((mutant.path, mutant.line), []).append(mutant)
    lines = choose.sample(sorted(every), min(count, len(every)))
    return [choose.choice(every[line]) for line in lines]


def test_paths(module: Path) -> Iterator[list[str]]:
    """Tests to ask: the module's own, then those of each folder above it, nearest first."""
    folder = Path("tests", *module.parts[1:-1])
    own = sorted(ROOT.glob(f"{folder}/test_{module.stem}*.py"))
    if own:
        yield [str(path.relative_to(ROOT)) for path in own]
    while len(folder.parts) > 1:
        if (ROOT / folder).is_dir():
            yield [str(folder)]
        folder = folder.parent


def caught(mutant: Mutant, checkout: Path) -> bool:
    """Whether some test fails on the mutant, in a copy of the checkout."""
    target = checkout / mutant.path
    target.write_text(mutant.source, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        for paths in test_paths(mutant.path):
            command = [sys.executable, "-P", "-m", "pytest", "-qx", "-p", "no:cacheprovider"]
            command += ["-m", "not benchmarks"]
            try:
                done = subprocess.run(
                    [*command, *paths],
                    cwd=checkout,
                    env=environment,
                    capture_output=True,
                    timeout=TIMEOUT_S,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                return True
            if done.returncode not in {0, 5}:
                return True
        return False
    finally:
        shutil.copy(ROOT / mutant.path, target)


def main() -> int:
    """Break lines, count what is caught, name what survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=Path, default=Path("perfmodel"))
    given = parser.parse_args()
    chosen = sample(ROOT / given.only, given.lines, given.seed)
    survivors = 0
    with tempfile.TemporaryDirectory() as folder:
        free: SimpleQueue[Path] = SimpleQueue()
        for number in range(given.jobs):
            checkout = Path(folder) / str(number)
            ignore = shutil.ignore_patterns(".git", ".venv", "__pycache__", "out")
            shutil.copytree(ROOT, checkout, ignore=ignore)
            free.put(checkout)

        def judge(mutant: Mutant) -> bool:
            checkout = free.get()
            try:
                return caught(mutant, checkout)
            finally:
                free.put(checkout)

        with ThreadPoolExecutor(given.jobs) as pool:
            for mutant, noticed in zip(chosen, pool.map(judge, chosen), strict=True):
                if not noticed:
                    survivors += 1
                    place = f"{mutant.path}:{mutant.line}"
                    print(f"survived  {place}  {mutant.before}  ->  {mutant.after}", flush=True)
    print(f"{len(chosen) - survivors} of {len(chosen)} caught")
    return 1 if survivors > 0.1 * len(chosen) else 0


if __name__ == "__main__":
    raise SystemExit(main())
