"""``python -m tests.fuzz --inputs 20000 --seed N``: damaged inputs, and how commands end.

Exit code 1 if any ends in a traceback, a warning, an exit code but 0, 1 and 2, after more than 20 s
or 2 GiB, with a control character, or with a message that names neither file nor field.
``--only NUMBER`` writes one input to the current folder and runs it here.
"""

from __future__ import annotations

import argparse
import json
import os
import selectors
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.check import check, subject_of
from tests.fuzz.inputs import make_input

LONGEST_S = 20.0
LARGEST_BYTES = 2 * 2**30
TOO_LONG = f"more than {LONGEST_S:.0f} s"
DIED = "the process died (memory?)"


class Worker:
    """A process that checks inputs one after another; started afresh after one that hangs."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.start()

    def start(self) -> None:
        """Start the process."""
        environment = dict(os.environ, OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.fuzz.check", str(self.seed), str(LARGEST_BYTES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            cwd=Path(__file__).resolve().parents[2],
        )
        self.number, self.used_s = -1, 0.0

    def cpu_s(self) -> float:
        """CPU time that the process has used."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def give(self, number: int) -> None:
        """Let it check an input."""
        assert self.process.stdin is not None
        self.number, self.used_s, self.began_s = number, self.cpu_s(), time.monotonic()
        self.process.stdin.write(f"{number}\n".encode())
        self.process.stdin.flush()

    @property
    def hangs(self) -> bool:
        """Whether the input takes too long: of CPU, or without any of it."""
        waited = time.monotonic() - self.began_s
        return waited > LONGEST_S and (
            self.cpu_s() - self.used_s > LONGEST_S or waited > 8 * LONGEST_S
        )

    def lost(self, problem: str) -> dict[str, Any]:
        """The ending of an input that it was not done with."""
        command, strategy = subject_of(make_input(self.seed, self.number))
        return {"problem": problem, "code": None, "command": command, "strategy": strategy}

    def stop(self) -> None:
        """End it."""
        self.process.kill()
        self.process.communicate()


@dataclass(slots=True)
class Outcomes:
    """Numbers of inputs that ended badly by what is wrong, and counts of all by what was asked.

    `counts`: by ("command", name) and ("strategy", name) how often each outcome came.
    """

    problems: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    counts: dict[tuple[str, str], Counter[str]] = field(
        default_factory=lambda: defaultdict(Counter)
    )

    @property
    def totals(self) -> Counter[str]:
        """How often each outcome came."""
        commands = (each for (kind, _), each in self.counts.items() if kind == "command")
        return sum(commands, Counter[str]())

    @property
    def inputs(self) -> int:
        """How many inputs ended."""
        return self.totals.total()

    def add(self, number: int, ending: Mapping[str, Any]) -> None:
        """Count an input by its ending."""
        problem, code = ending["problem"], ending["code"]
        outcome = {0: "answered", 1: "answered", 2: "refused"}.get(code, "traceback")
        outcome = "too long" if problem == TOO_LONG else outcome
        for kind in ("command", "strategy"):
            if name := ending[kind]:
                self.counts[kind, name][outcome] += 1
        if problem is not None:
            self.problems[problem].append(number)
            print(f"input {number}: {problem}", file=sys.stderr, flush=True)

    def lines(self) -> list[str]:
        """A line for each problem, and one for each command and strategy."""
        found = sorted(self.problems.items(), key=lambda item: -len(item[1]))
        lines = [f"{len(each):5}  {problem}  (--only {each[0]})" for problem, each in found]
        columns = ("answered", "refused", "traceback", "too long")
        lines.append(f"{'':28}{'inputs':>10}" + "".join(f"{each:>10}" for each in columns))
        totals = self.totals
        for name, each in [(("all", ""), totals), *sorted(self.counts.items())]:
            cells = (each.total(), *(each[column] for column in columns))
            lines.append(f"{' '.join(name):28}" + "".join(f"{cell:>10,}" for cell in cells))
        return lines


def fuzz(outcomes: Outcomes, inputs: int, seed: int, jobs: int, first: int = 0) -> None:
    """Check inputs one after another, and count how they end."""
    numbers = iter(range(first, first + inputs))
    workers = [Worker(seed) for _ in range(jobs)]
    with selectors.DefaultSelector() as selector:
        for worker in list(workers):
            selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
            if not _next(worker, numbers):
                workers.remove(worker)
        while workers:
            for key, _ in selector.select(timeout=1.0):
                worker = key.data
                line = worker.process.stdout.readline()
                outcomes.add(worker.number, json.loads(line) if line else worker.lost(DIED))
                if not line:
                    _restart(worker, selector)
                if not _next(worker, numbers):
                    workers.remove(worker)
                    selector.unregister(worker.process.stdout)
                    worker.stop()
            for worker in [w for w in workers if w.hangs]:
                outcomes.add(worker.number, worker.lost(TOO_LONG))
                _restart(worker, selector)
                if not _next(worker, numbers):
                    workers.remove(worker)
                    worker.stop()


def _next(worker: Worker, numbers: object) -> bool:
    number = next(numbers, None)  # type: ignore[call-overload]
    if number is not None:
        worker.give(number)
    return number is not None


def _restart(worker: Worker, selector: selectors.BaseSelector) -> None:
    selector.unregister(worker.process.stdout)  # type: ignore[arg-type]
    worker.stop()
    worker.start()
    selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]


def main() -> int:
    """Read the flags, fuzz, and list what ended badly."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--only", type=int)
    flags = parser.parse_args()
    if flags.only is not None:
        made = make_input(flags.seed, flags.only)
        print("perfmodel", *map(repr, made.arguments))
        print(check(made, Path.cwd()))
        return 0
    began_s = time.monotonic()
    outcomes = Outcomes()
    with suppress(KeyboardInterrupt):  # what is done until then is listed
        fuzz(outcomes, flags.inputs, flags.seed, flags.jobs, flags.first)
    print(*outcomes.lines(), sep="\n")
    bad = sum(map(len, outcomes.problems.values()))
    print(
        f"{outcomes.inputs:,} inputs of seed {flags.seed} in {time.monotonic() - began_s:.0f} s: "
        f"{bad:,} ended badly"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
