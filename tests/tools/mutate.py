"""Break random lines of perfmodel, one at a time, and count how many a test notices.

    python tests/tools/mutate.py [--lines 200] [--seed 0] [--jobs 2] [--only perfmodel/library]

Each mutant changes one operator, comparison, constant or condition of one line, in a copy of the
checkout. The quick tests of the module's own name run first. On what they do not notice, files of
tests take turns, those nearest to what lives first: a file runs once on lines that are whole but
report which test evaluates them; then those tests alone run on each mutant, quickest first, until
one fails. What the quick tests do not notice goes through the slow ones in the same way. What no
test notices is printed. Exit code 1 if fewer than 90 % were caught.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import importlib
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, as_completed, wait
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import get_context
from pathlib import Path

import numba
import pytest

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

ROUNDS = ("not benchmarks and not slow", "slow and not benchmarks")
"""Marks of the tests that take part, one round after the other."""

WORTH = (0.0, 1.0, 8.0, 1.0)
"""How likely a file of tests catches a mutant, by how near it is, see `nearness`."""

COMPILED = {Path("perfmodel/compiled_loops"), Path("perfmodel/simulate/message")}
"""Folders with functions that numba compiles."""

# Imported once, before every run of tests forks; the package itself must be imported anew.
LIBRARIES = (
    *("hypothesis", "joblib", "jsonschema", "networkx", "numpy", "pandas", "pydantic"),
    *("plotly.graph_objects", "rich", "ruamel.yaml", "scipy.optimize", "scipy.sparse"),
    *("scipy.stats", "simpy", "typer.testing", "yaml"),
)

# A mutant that needs this much more CPU than whole lines do hangs; one that only sleeps hangs too.
HANG_CPU_S = 60.0
OWN_CPU_S = 120.0
SLEEP_CPU_SHARE = 0.02
WALL_LIMIT_S = 1200.0

REPORTER = """
import os
from pathlib import Path

FILE = Path(__file__).with_name("reached.txt")
seen = set()

def at(number, value):
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    if (number, test) not in seen:
        seen.add((number, test))
        with FILE.open("a", encoding="utf-8") as stream:
            stream.write(f"{number}\\t{test}\\n")
    return value
"""


@dataclass(frozen=True)
class Mutant:
    """One expression of a file, and another in its place."""

    path: Path
    line: int
    start: int
    end: int
    before: str
    after: str

    def put(self, text: str, after: str) -> str:
        """A file's text with something else in place of the expression."""
        lines = text.splitlines(keepends=True)
        line = lines[self.line - 1]
        lines[self.line - 1] = line[: self.start] + after + line[self.end :]
        return "".join(lines)

    def __str__(self) -> str:
        """The place, what stands there and what stood there instead."""
        return f"{self.path}:{self.line}  {self.before}  ->  {self.after}"


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
        if "f'" in line or 'f"' in line:
            continue
        if (other := changed(node)) is not None:
            place = path.relative_to(ROOT), node.lineno, start, end
            yield Mutant(*place, before, f"({ast.unparse(other)})")


def sample(folder: Path, count: int, seed: int) -> list[Mutant]:
    """One mutant of each of `count` random lines."""
    choose = random.Random(seed)
    every: dict[tuple[Path, int], list[Mutant]] = {}
    for path in sorted(folder.rglob("*.py")):
        for mutant in mutants(path):
            every.setdefault((mutant.path, mutant.line), []).append(mutant)
    lines = choose.sample(sorted(every), min(count, len(every)))
    return [choose.choice(every[line]) for line in lines]


def is_compiled(path: Path) -> bool:
    """Whether numba compiles functions of a file."""
    return path.parent in COMPILED


@cache
def probed(path: Path, chosen: tuple[tuple[int, Mutant], ...]) -> tuple[str, set[int]]:
    """A file whose chosen expressions report that they are evaluated, and which of them cannot."""
    text, silent = (ROOT / path).read_text(encoding="utf-8"), set[int]()
    if is_compiled(path):
        return text, {number for number, _ in chosen}  # what numba compiles can call nothing
    for number, mutant in chosen:
        other = mutant.put(text, f'(__import__("reached").at({number}, {mutant.before}))')
        try:
            compile(other, str(path), "exec")
            text = other
        except SyntaxError:  # in a pattern of `match`
            silent.add(number)
    return text, silent


# ---------------------------------------------------------------- which file of tests goes first


def nearness(module: Path, tests: Path, text: str) -> int:
    """3 for the tests of the module's name, 2 for those that import it, 1 for its folder's."""
    folder = Path("tests", *module.parts[1:-1])
    named = tests.parent == folder and tests.stem.startswith(f"test_{module.stem}")
    if named or tests == module:
        return 3
    dotted = ".".join(module.with_suffix("").parts)
    package, _, name = dotted.rpartition(".")
    if tests.parts[0] != "tests":
        return 0  # examples of another module
    if f"{dotted} import" in text or f"import {dotted}" in text:
        return 2
    if any(f"from {package} import" in line and name in line for line in text.splitlines()):
        return 2
    return int(len(module.parts) > 2 and tests.parts[1] == module.parts[1])


# ---------------------------------------------------------------- running tests in a fork


class Recorder:
    """A plugin of pytest that writes each test's outcome and seconds into a file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._path.unlink(missing_ok=True)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the line of a test that has run or could not be set up."""
        if report.when == "call" or report.failed:
            with self._path.open("a", encoding="utf-8") as stream:
                stream.write(f"{report.duration}\t{report.outcome}\t{report.nodeid}\n")

    def lines(self) -> list[tuple[float, str, str]]:
        """What was written: seconds, outcome and test."""
        with suppress(FileNotFoundError):
            text = self._path.read_text(encoding="utf-8")
            rows = (line.split("\t", 2) for line in text.splitlines())
            return [(float(seconds), outcome, test) for seconds, outcome, test in rows]
        return []


@dataclass(frozen=True)
class Outcome:
    """How a run of tests ended: `failed`, `passed`, `hung` or `undecided`."""

    kind: str
    cpu_s: float
    tests: list[tuple[float, str, str]]

    @property
    def failed(self) -> str:
        """The test that failed first, or how the run ended where none could start."""
        return next((test for _, outcome, test in self.tests if outcome == "failed"), self.kind)


def run_tests(
    checkout: Path, tests: Sequence[str], marks: str, cpu_limit_s: float | None, compiled: str = ""
) -> Outcome:
    """Run tests in a fork, until one fails or a limit is reached; without a limit all of them.

    `compiled`: where numba keeps what it compiles of a broken file, so that what it has compiled of
    the whole one stays.
    """
    recorder = Recorder(checkout / "outcomes.txt")
    started = time.monotonic()
    if not (child := os.fork()):
        if compiled:
            os.environ["NUMBA_CACHE_DIR"] = numba.config.CACHE_DIR = str(checkout / compiled)
        _run_in_child(checkout, tests, recorder, marks, cpu_limit_s)
    while True:
        done, status, usage = os.wait4(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() - started > WALL_LIMIT_S:
            os.killpg(child, signal.SIGKILL)
            _, status, usage = os.wait4(child, 0)
            break
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what tests left behind
    cpu_s = usage.ru_utime + usage.ru_stime
    code = os.waitstatus_to_exitcode(status)
    if code in {-signal.SIGXCPU, -signal.SIGKILL}:
        sleeps = cpu_s < SLEEP_CPU_SHARE * (time.monotonic() - started)
        kind = "hung" if code == -signal.SIGXCPU or sleeps else "undecided"
    else:
        kind = "passed" if code in {0, 5} else "failed"
    return Outcome(kind, cpu_s, recorder.lines())


def _run_in_child(
    checkout: Path, tests: Sequence[str], recorder: Recorder, marks: str, cpu_limit_s: float | None
) -> None:
    code = 1
    try:
        os.setsid()
        os.chdir(checkout)
        shown = os.open("shown.txt", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
        for stream in (0, 1, 2):
            os.dup2(shown, stream)
        if cpu_limit_s is not None:
            limit_s = int(cpu_limit_s)
            resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s + 10))
        os.environ |= {"PYTHONPATH": str(checkout), "PYTHONDONTWRITEBYTECODE": "1"}
        sys.dont_write_bytecode = True
        sys.path.insert(0, str(checkout))
        command = ["-q", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        command += ["-p", "no:cacheprovider", f"--rootdir={checkout}", "--timeout=0", "-m", marks]
        code = pytest.main([*command, *(["-x"] * (cpu_limit_s is not None)), *tests], [recorder])
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


# ---------------------------------------------------------------- one file of tests


Judged = tuple[dict[int, str], dict[int, float]]
"""By mutant: the test that caught it, and the CPU seconds that its tests took."""


@dataclass
class Worker:
    """A copy of the checkout, in which one process runs tests."""

    checkout: Path
    chosen: list[Mutant]

    def judge(self, tests: str, marks: str, alive: dict[int, tuple[int, float]]) -> Judged:
        """Run a file of tests on mutants, each with its nearness and the CPU left to it."""
        reached, whole = self._reached(tests, marks, alive)
        rows, waited_s = whole.tests, sum(seconds for seconds, _, _ in whole.tests)
        passed = {
            test: seconds
            * min(1.0, whole.cpu_s / max(waited_s, 1e-9))  # of CPU, on a machine that is busy
            for seconds, outcome, test in rows
            if outcome == "passed"
        }
        broken = {test for _, outcome, test in rows if outcome == "failed"}
        caught: dict[int, str] = {}
        spent: dict[int, float] = {}
        for number, names in reached.items():
            near, left_s = alive[number]
            run = passed.keys() if "" in names and near else names & passed.keys()
            asked = sorted(run - broken, key=passed.__getitem__)
            if not asked:
                continue
            whole_s = sum(passed[test] for test in asked)
            # a file that would use up a mutant's time runs its quickest tests alone
            while len(asked) > 1 and sum(passed[test] for test in asked) > left_s:
                asked.pop()
            outcome = self._run(number, asked, marks, HANG_CPU_S + 5 * whole_s)
            spent[number] = outcome.cpu_s
            if outcome.kind in {"failed", "hung"}:
                caught[number] = outcome.failed
            elif outcome.kind == "undecided":
                print(f"undecided  {self.chosen[number]}  in {tests}", flush=True)
        return caught, spent

    def judge_own(self, number: int, tests: Sequence[str]) -> Judged:
        """Run the quick tests of a mutant's own module."""
        outcome = self._run(number, tests, ROUNDS[0], OWN_CPU_S)
        noticed = outcome.kind == "failed" or (outcome.kind == "hung" and not outcome.tests)
        return {number: outcome.failed} if noticed else {}, {}

    def _run(self, number: int, tests: Sequence[str], marks: str, cpu_limit_s: float) -> Outcome:
        mutant = self.chosen[number]
        target = self.checkout / mutant.path
        text = (ROOT / mutant.path).read_text(encoding="utf-8")
        target.write_text(mutant.put(text, mutant.after), encoding="utf-8")
        compiled = f"compiled-{number}" if is_compiled(mutant.path) else ""
        outcome = run_tests(self.checkout, tests, marks, cpu_limit_s, compiled)
        shutil.copy2(ROOT / mutant.path, target)
        return outcome

    def _reached(
        self, tests: str, marks: str, alive: Iterable[int]
    ) -> tuple[dict[int, set[str]], Outcome]:
        """By mutant, which tests of a file evaluate its line ("" where it is imported)."""
        files: dict[Path, dict[int, Mutant]] = defaultdict(dict)
        for number in alive:
            files[self.chosen[number].path][number] = self.chosen[number]
        (self.checkout / "reached.py").write_text(REPORTER, encoding="utf-8")
        report = self.checkout / "reached.txt"
        report.unlink(missing_ok=True)
        reached: dict[int, set[str]] = defaultdict(set)
        for path, here in files.items():
            text, silent = probed(path, tuple(sorted(here.items(), key=lambda e: -e[1].line)))
            (self.checkout / path).write_text(text, encoding="utf-8")
            reached |= {number: {""} for number in silent}
        outcome = run_tests(self.checkout, [tests], marks, None)
        for path in files:
            shutil.copy2(ROOT / path, self.checkout / path)
        if report.exists():
            for row in report.read_text(encoding="utf-8").splitlines():
                place, _, test = row.partition("\t")
                reached[int(place)].add(test)
        return reached, outcome


worker: Worker


def start(folder: str, chosen: list[Mutant]) -> None:
    """Give a process its copy of the checkout."""
    global worker  # noqa: PLW0603
    checkout = Path(tempfile.mkdtemp(dir=folder))
    shutil.copytree(
        ROOT, checkout, ignore=shutil.ignore_patterns(".git", ".venv", "out"), dirs_exist_ok=True
    )
    compileall.compile_dir(checkout / "perfmodel", quiet=2)
    worker = Worker(checkout, chosen)


def judge(tests: str, marks: str, alive: dict[int, tuple[int, float]]) -> Judged:
    """Run a file of tests on mutants in this process's copy of the checkout."""
    return worker.judge(tests, marks, alive)


def judge_own(number: int, tests: Sequence[str]) -> Judged:
    """Run the tests of a mutant's own module in this process's copy of the checkout."""
    return worker.judge_own(number, tests)


def failing(tests: Sequence[str]) -> list[str]:
    """Which of some tests fail although nothing is broken."""
    named = [test for test in tests if "::" in test]
    rows = run_tests(worker.checkout, named, ROUNDS[0], None).tests if named else []
    return [test for _, outcome, test in rows if outcome == "failed"]


@dataclass
class Hunt:
    """Which mutants live, and which files of tests have not been asked yet."""

    chosen: list[Mutant]
    patience_s: float
    spent_s: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    caught: dict[int, str] = field(default_factory=dict)
    near: dict[str, list[int]] = field(default_factory=dict)

    def begin(self) -> None:
        """Begin a round: all files are asked again."""
        self.spent_s.clear()
        found = {path.relative_to(ROOT) for path in (ROOT / "tests").rglob("test_*.py")}
        found |= {mutant.path for mutant in self.chosen}
        texts = {path: (ROOT / path).read_text(encoding="utf-8") for path in sorted(found)}
        self.near = {
            str(path): [nearness(mutant.path, path, text) for mutant in self.chosen]
            for path, text in texts.items()
            if (path.parts[0] == "tests" or ">>> " in text) and "benchmarks" not in path.parts
        }

    @property
    def own(self) -> dict[int, list[str]]:
        """By mutant the tests of its module's name, where there are any."""
        own = {
            number: [tests for tests, near in self.near.items() if near[number] == 3]
            for number in self.alive
        }
        return {number: tests for number, tests in own.items() if tests}

    @property
    def alive(self) -> list[int]:
        """Mutants that no test has noticed and that have time left."""
        return [
            number
            for number in range(len(self.chosen))
            if number not in self.caught and self.spent_s[number] < self.patience_s
        ]

    @property
    def asks(self) -> bool:
        """Whether there is a file left to ask, and something to ask it about."""
        return bool(self.near and self.alive)

    def next(self) -> tuple[str, dict[int, tuple[int, float]]]:
        """The file of tests that is nearest to what lives, and that with its time left."""
        alive = self.alive
        tests = max(self.near, key=lambda file: self._worth(file, alive))
        near = self.near.pop(tests)
        return tests, {n: (near[n], self.patience_s - self.spent_s[n]) for n in alive}

    def _worth(self, tests: str, alive: Sequence[int]) -> float:
        """How likely it is that a file of tests catches something; its own tests have run."""
        near = self.near[tests]
        return sum(WORTH[near[number]] for number in alive)

    def take(self, done: Judged) -> None:
        """Note what a file of tests caught."""
        for number, test in done[0].items():
            if number not in self.caught:
                print(f"caught    {self.chosen[number]}  by {test}", flush=True)
        self.caught |= done[0]
        for number, cpu_s in done[1].items():
            self.spent_s[number] += cpu_s


def main() -> int:
    """Break lines, count what is caught, name what survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lines", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", type=Path, default=Path("perfmodel"))
    parser.add_argument("--patience", type=float, default=90, help="CPU seconds for one mutant")
    parser.add_argument("--minutes", type=float, default=1e9, help="ask no more tests after these")
    given = parser.parse_args()
    until = time.monotonic() + 60 * given.minutes
    hunt = Hunt(sample(ROOT / given.only, given.lines, given.seed), given.patience)
    for library in LIBRARIES:
        with suppress(ImportError):
            importlib.import_module(library)
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(given.jobs, get_context("fork"), start, (folder, hunt.chosen)) as pool,
    ):
        running: set[Future[Judged]] = set()
        hunt.begin()
        own = [pool.submit(judge_own, *each) for each in hunt.own.items()]
        for judged in as_completed(own):
            hunt.take(judged.result())
        for test in pool.submit(failing, sorted(set(hunt.caught.values()))).result():
            print(f"fails on whole lines, too: {test}", flush=True)
            hunt.caught = {n: noticed for n, noticed in hunt.caught.items() if noticed != test}
        for marks in ROUNDS:
            hunt.begin()
            while running or (hunt.asks and time.monotonic() < until):
                while len(running) < given.jobs and hunt.asks and time.monotonic() < until:
                    tests, alive = hunt.next()
                    print(f"{time.strftime('%H:%M:%S')}  {len(alive)} live  {tests}", flush=True)
                    running.add(pool.submit(judge, tests, marks, alive))
                done, running = wait(running, return_when=FIRST_COMPLETED)
                for each in done:
                    hunt.take(each.result())
    for number, mutant in enumerate(hunt.chosen):
        if number not in hunt.caught:
            print(f"survived  {mutant}  after {hunt.spent_s[number]:.0f} s of CPU", flush=True)
    print(f"{len(hunt.caught)} of {len(hunt.chosen)} caught")
    return 1 if len(hunt.caught) < 0.9 * len(hunt.chosen) else 0


if __name__ == "__main__":
    raise SystemExit(main())
