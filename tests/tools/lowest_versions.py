"""Run the test suite with the lowest declared version of every dependency.

    python tests/tools/lowest_versions.py [PYTEST ARGUMENTS]

Makes a virtual environment in a temporary folder, installs each requirement of pyproject.toml
(``>=`` read as ``==``) and perfmodel itself, and runs pytest there.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lowest(requirements: list[str]) -> list[str]:
    """Requirements with their lower bounds as exact versions; later bounds are kept out."""
    return [requirement.split(",")[0].replace(">=", "==") for requirement in requirements]


def main() -> int:
    """Install the lowest versions and run the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = lowest(project["dependencies"])
    tools = project["optional-dependencies"]["test"]
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = str(Path(folder, "bin", "python"))
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, "--no-deps", "-e", str(ROOT)], check=True)
        subprocess.run([*pip, *wanted, *tools], check=True)
        # pip may have raised a version for a tool's sake: say with which ones the suite runs
        subprocess.run([python, "-m", "pip", "freeze", "--exclude-editable"], check=True)
        arguments = sys.argv[1:] or ["-q", "-n", "auto", "--maxprocesses", "4"]
        done = subprocess.run(
            [python, "-m", "pytest", "-m", "not benchmarks", *arguments], cwd=ROOT, check=False
        )
        return done.returncode


if __name__ == "__main__":
    raise SystemExit(main())
