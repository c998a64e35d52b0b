"""Compare both fidelities with SimGrid, an independent simulator, and record what it says.

    python reports/oracle/simgrid_oracle.py [--python INTERPRETER] [--again]

SimGrid is a Debian and Ubuntu package (``apt-get install python3-simgrid``) for the system's
Python, or ``pip install simgrid`` with a C++ compiler; INTERPRETER is one that can import it
(default: this one, then /usr/bin/python3). Our side is always computed anew. SimGrid is asked only
what simgrid.csv does not hold yet, or with --again everything: a quarter of an hour, most of it for
rings of 512 ranks.

Writes simgrid.csv, which a test reads and holds against our side again, and simgrid.md. Exit code
0: all differences are within 1e-3 or explained; 1: not; 2: no SimGrid.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from oracle.compared import COLUMNS, WITHIN, Row, of_cell, of_scene  # noqa: E402  (line above)
from oracle.peers_tables import FEASIBLE, cells  # noqa: E402
from oracle.scenes import Scene  # noqa: E402
from oracle.shared_links import CASES, scenes  # noqa: E402
from oracle.simgrid_scene import digest, edges_of, exported, short_digest  # noqa: E402
from perfmodel import __version__  # noqa: E402

HOW = """SimGrid was found in none of: {tried}
Install it with: apt-get install python3-simgrid   (Debian, Ubuntu; for /usr/bin/python3)
or: pip install simgrid   (needs a C++ compiler and Boost), and name its interpreter: --python"""

EXPLANATION = (
    "Every number is in `simgrid.csv`. SimGrid's model is CM02: fluid flows, max-min fair shares;",
    "no cross-traffic, no TCP window, no correction factors. A difference is ours over SimGrid's,",
    "less one, of how long a flow or a collective takes.",
)


class SimGrid:
    """SimGrid in a process of its own, started by the first question."""

    def __init__(self, interpreters: Sequence[str]) -> None:
        self._interpreters = interpreters
        self._process: subprocess.Popen[str] | None = None
        self.version = ""

    def took_s(self, scene: Scene, told: dict[str, Any]) -> list[float]:
        """How long each launch of a scene takes; seconds."""
        ends, first = self._ends_s(told), 0
        took = []
        for launch, edges in zip(scene.launches, edges_of(scene), strict=True):
            took.append(max(ends[first : first + edges]) - launch.at_s)
            first += edges
        return took

    def _ends_s(self, told: dict[str, Any]) -> list[float]:
        """When the last send of each edge landed."""
        process = self._process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(told) + "\n")
        process.stdin.flush()
        answer = _read(process)
        if "ends_s" not in answer:
            raise RuntimeError(f"SimGrid: {answer.get('error', 'ended')}")
        return list(answer["ends_s"])

    def _start(self) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        for interpreter in self._interpreters:
            command = [interpreter, str(HERE / "simgrid_runner.py")]
            try:
                process = subprocess.Popen(  # noqa: S603  (our own script)
                    command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
                )
            except OSError:
                continue
            if hello := _read(process):
                self._process, self.version = process, str(hello["simgrid"])
                return process
        raise FileNotFoundError(HOW.format(tried=", ".join(self._interpreters)))


def _read(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    line = process.stdout.readline()
    return json.loads(line) if line else {}


class Oracle:
    """What SimGrid says, now or when it was asked before."""

    def __init__(self, simgrid: SimGrid, recorded: Path | None) -> None:
        self._simgrid = simgrid
        self._rows: dict[tuple[str, str], dict[str, str]] = {}
        if recorded is not None and recorded.exists():
            with recorded.open(newline="", encoding="utf-8") as file:
                self._rows = {(r["scene"], r["launch"]): r for r in csv.DictReader(file)}

    def took_s(self, scene: Scene, name: str, *, native: bool) -> tuple[list[float], str]:
        """How long each launch of a scene (by its digest) takes, in seconds, and who says so."""
        rows = [self._rows.get((scene.name, str(n))) for n in range(len(scene.launches))]
        known = [row for row in rows if row is not None and row["digest"] == name]
        if rows and len(known) == len(rows):
            return [float(row["wanted_s"]) for row in known], known[0]["source"]
        took = self._simgrid.took_s(scene, exported(scene, native=native))
        return took, f"SimGrid {self._simgrid.version}"


def main() -> int:
    """Compare, write, and say whether all is well."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", help="an interpreter that can import simgrid")
    parser.add_argument("--again", action="store_true", help="ask SimGrid everything again")
    asked = parser.parse_args()
    table = HERE / "simgrid.csv"
    known = [asked.python] if asked.python else [sys.executable, "/usr/bin/python3"]
    oracle = Oracle(SimGrid(known), None if asked.again else table)
    try:
        rows = [*_shared(oracle), *_tables(oracle)]
    except FileNotFoundError as error:
        print(error, file=sys.stderr)  # noqa: T201  (a script's output)
        return 2
    with table.open("w", newline="", encoding="utf-8") as file:
        out = csv.writer(file)
        out.writerow(COLUMNS)
        out.writerows(row.cells() for row in rows)
    text = _markdown(rows)
    (HERE / "simgrid.md").write_text(text, encoding="utf-8")
    print(text)  # noqa: T201
    return 1 if any(row.unexplained for row in rows) else 0


def _shared(oracle: Oracle) -> Iterator[Row]:
    """Shared links, launch by launch."""
    for scene, case in scenes(CASES):
        name = digest(exported(scene, native=case.native))
        took_s, source = oracle.took_s(scene, name, native=case.native)
        yield from of_scene(scene, case, name, took_s, source)


def _tables(oracle: Oracle) -> Iterator[Row]:
    """Two tables; the closed form stands in where SimGrid would take too long."""
    for cell in cells():
        scene = cell.make()
        if cell.ranks > FEASIBLE:
            yield of_cell(cell, scene, "", cell.closed_form_s, "closed form")
            continue
        name = short_digest(scene)
        (took_s,), source = oracle.took_s(scene, name, native=True)
        print(f"{scene.name}: {took_s:.9g} s", file=sys.stderr)  # noqa: T201  (some take minutes)
        yield of_cell(cell, scene, name, took_s, source)


def _markdown(rows: Sequence[Row]) -> str:
    who = sorted({row.source for row in rows if row.source != "closed form"})
    when = datetime.now(tz=UTC).date().isoformat()
    lines = [
        "# Both fidelities against SimGrid",
        "",
        f"Made by `python reports/oracle/simgrid_oracle.py` on {when}:",
        f"{', '.join(who)}, perfmodel {__version__}, NumPy {version('numpy')}.",
        *EXPLANATION,
        "",
        "| what | flows or collectives | message, worst | flow, worst | why they may differ |",
        "|---|--:|--:|--:|---|",
    ]
    for family in dict.fromkeys(row.family for row in rows):
        mine = [row for row in rows if row.family == family]
        reasons = dict.fromkeys(row.explained for row in mine if row.explained)
        message, flow = (
            _worst([getattr(row, name) for row in mine])
            for name in ("message_difference", "flow_difference")
        )
        lines.append(f"| {family} | {len(mine)} | {message} | {flow} | {'; '.join(reasons)} |")
    wrong = dict.fromkeys(row.scene for row in rows if row.unexplained)
    lines += [
        "",
        f"Scenes beyond {WITHIN:g} without an explanation: {len(wrong)}.",
        *(f"- {name}" for name in wrong),
    ]
    return "\n".join(lines) + "\n"


def _worst(differences: Sequence[float | None]) -> str:
    known = [abs(value) for value in differences if value is not None]
    return f"{max(known):.1e}" if known else "-"


if __name__ == "__main__":
    sys.exit(main())
